"""A call of a module on Arrays, forward and backward, held against the same call on plain tensors."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import tinyshard as ts
from tests.sweeps.layouts import described, scattered
from tests.sweeps.nn_cases import Case

# of a value's own size, and of the greatest value beside it: sums that are added in another order differ by less
TOLERANCE = 1e-5

# what torch says of its own modules
TORCHS_OWN = "Using padding='same' with even|LSTM with projections|reduction: 'mean' divides"


class Call:
    """A case with its values: the operands that gradients are taken by, and the others.

    Args:
        case: what to call.
    """

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.module = case.make()
        self.kwargs = case.kwargs
        leaves, self.form = tree_flatten(case.inputs)
        moving = [i for i, x in enumerate(leaves) if x.is_floating_point() and i not in case.fixed]
        resting = [i for i in range(len(leaves)) if i not in moving]
        self.order = [*moving, *resting]
        params = {name: x.detach().clone() for name, x in self.module.named_parameters()}
        buffers = {name: x.clone() for name, x in self.module.named_buffers()}
        self.on_host = buffers if case.buffers_on_host else {}
        given = {} if case.buffers_on_host else buffers
        self.operands = (params, [leaves[i] for i in moving]), ([leaves[i] for i in resting], given)

    def __call__(self, by: Any, others: Any) -> Any:
        """The sum of the results, each with a weight of its own; and the results and the buffers as they are then."""
        (params, moving), (resting, buffers) = by, others
        given = dict(zip(self.order, [*moving, *resting], strict=True))
        inputs = tree_unflatten([given[i] for i in range(len(given))], self.form)
        written = {name: x.clone() for name, x in {**self.on_host, **buffers}.items()}
        out = functional_call(self.module, {**params, **written}, inputs, self.kwargs)
        total: Any = 0.0
        for x in tree_leaves(out):
            if isinstance(x, Tensor) and x.is_floating_point():
                total = total + (x * torch.linspace(0.5, 1.5, x.numel()).reshape(x.shape)).sum()
        return total, (out, written)

    def plain(self) -> Any:
        """By torch's own tape: the gradients; and the results and the buffers."""
        by, form = tree_flatten(self.operands[0])
        fresh = [x.clone().requires_grad_() for x in by]
        total, found = self(tree_unflatten(fresh, form), self.operands[1])
        slopes = torch.autograd.grad(total, fresh, allow_unused=True, materialize_grads=True)
        return tree_unflatten(slopes, form), found


def _forward(call: Call) -> Callable[..., Any]:
    return lambda by, others: call(by, others)[1]


def _gradient(call: Call) -> Callable[..., Any]:
    return ts.grad(call, has_aux=True)


# both ways of the gradient return the results too
WAYS: dict[str, Callable[[Call], Callable[..., Any]]] = {
    "forward": _forward,
    "gradient": _gradient,
    "jit": lambda call: ts.jit(_gradient(call)),
}


@dataclass(frozen=True)
class Outcome:
    """What came of one call.

    Attributes:
        way: one of WAYS.
        what: the case, the way and the layouts.
        problem: what differed, or the error; None where all was as in plain torch.
    """

    way: str
    what: str
    problem: Exception | None


def outcomes(name: str, case: Case, layouts: Sequence[int], ways: Sequence[str] = tuple(WAYS)) -> Iterator[Outcome]:
    """Call a case in several layouts and ways.

    Args:
        name: of the case.
        case: what to call.
        layouts: seeds; the name and one of these decide where each operand is put.
        ways: of WAYS.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", TORCHS_OWN, UserWarning)
        call = Call(case)
        slopes, found = call.plain()
        for layout in layouts:
            operands = scattered(random.Random(f"{name} {layout}").choice, call.operands)
            for way in ways:
                what = f"{name}: {way}, layout {layout}: {described(operands)}"
                try:
                    got = WAYS[way](call)(*operands)
                    check_near(got, found if way == "forward" else (slopes, found))
                except Exception as problem:  # of whatever kind: the sweep goes on, and names all of them at its end
                    yield Outcome(way, what, problem)
                else:
                    yield Outcome(way, what, None)


def check_near(got: Any, want: Any) -> None:
    """Shape, dtype and values of every tensor of a tree."""
    (ours, form), (theirs, expected) = tree_flatten(got), tree_flatten(want)
    assert form == expected, f"structure {form}, expected {expected}"
    for number, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        if isinstance(b, Tensor):
            _check_tensor(ts.device_get(a), b.detach(), f"result {number} of shape {tuple(b.shape)}")
        else:
            assert a == b, f"result {number}"


def _check_tensor(got: Tensor, want: Tensor, what: str) -> None:
    tolerance = scale = 0.0
    if want.is_floating_point():
        tolerance, scale = TOLERANCE, max(1.0, float(want.abs().nan_to_num(posinf=1.0).max())) if want.numel() else 1.0
    torch.testing.assert_close(
        got, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
