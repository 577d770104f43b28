"""Ops that reduce dims, and elementwise losses, which reduce all of them."""

from __future__ import annotations

import torch

from tinyshard.partition.rule import Passes, Rule, letters
from tinyshard.partition.rules.call import Call, Family, Row, singles, tail
from tinyshard.partition.rules.elementwise import elementwise

_OF_BOOLS = {"sum": "max", "product": "min"}  # devices combine bools as numbers


def reduced(*hows: str, argument: str = "dim", passes: Passes = "") -> Family:
    """The dims that an argument names are reduced; all dims where the op does not have this argument.

    Args:
        *hows: for each result how the results of blocks are combined: "sum", "avg", "max", "min", "product"; "" where
            they cannot be combined, so that the reduced dims must be whole.
        argument: its name.
        passes: as `Rule` has it.
    """

    def family(call: Call) -> Rule:
        names = letters(len(call.shape))
        gone = [names[d] for d in sorted(call.dims(argument))]
        left = [() if f in gone else (f,) for f in names]
        result = left if call.get("keepdim") else [(f,) for f in names if f not in gone]
        combined = []
        for r, how in zip(call.results, hows, strict=True):
            of = _OF_BOOLS.get(how, how) if r is not None and r.dtype == torch.bool else how
            combined.append(dict.fromkeys(gone, of))
        others = [[()] * len(s) for s in call.shapes[1:]]
        whole = () if all(hows) else gone
        return call.rule([singles(names), *others], [result] * len(hows), combined, whole=whole, passes=passes)

    return family


def loss(call: Call) -> Rule:
    """Elementwise, and then reduced as `reduction` says: not at all, to a mean, to a sum."""
    how = ("", "avg", "sum")[call["reduction"]]
    if not how:
        return elementwise(call)
    names = letters(max(map(len, call.shapes)))
    return call.rule([tail(singles(names), len(s)) for s in call.shapes], [[]], [dict.fromkeys(names, how)])


def loss_gradient(call: Call) -> Rule:
    """Elementwise; the gradient of a mean counts the elements: it is partitioned as one of a sum (`decompositions`)."""
    rank = max(map(len, call.shapes))
    return elementwise(call, whole=range(rank) if call["reduction"] == 1 else ())


ROWS: dict[str, Row] = {
    "sum sum.dim_IntList": reduced("sum", passes="summed"),
    "mean mean.dim": reduced("avg", passes="summed"),
    "nansum count_nonzero count_nonzero.dim_IntList": reduced("sum"),
    "any any.dim any.dims": reduced("max"),
    "all all.dim all.dims": reduced("min"),
    "prod prod.dim_int": reduced("product"),
    "amax max": reduced("max"),
    "amin min": reduced("min"),
    "aminmax": reduced("min", "max"),
    "argmax argmin var.correction std.correction": reduced(""),
    "linalg_vector_norm norm.ScalarOpt_dim logsumexp": reduced(""),
    "var_mean.correction std_mean.correction": reduced("", ""),
    "max.dim min.dim median.dim nanmedian.dim mode kthvalue": reduced("", ""),
    "mse_loss smooth_l1_loss huber_loss soft_margin_loss": loss,
    "binary_cross_entropy binary_cross_entropy_with_logits": loss,
    "mse_loss_backward smooth_l1_loss_backward huber_loss_backward": loss_gradient,
    "soft_margin_loss_backward binary_cross_entropy_backward": loss_gradient,
}
