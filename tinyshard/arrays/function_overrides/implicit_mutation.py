"""Functions of torch that change an argument in place implicitly, or draw a mask on the host.

Batch norm in training mode writes new running statistics into the tensors that it is passed:

    plain tensors           changed, as in torch; the new values come to the host, so the call waits
    tensors made by torch   changed (`F.instance_norm` makes copies)
    Arrays, traced values   an error: they are immutable

An embedding with max_norm rescales rows of its weight; a weight that is an Array, or traced, is an error.

Within `ts.grad` and `ts.vmap` torch makes the mask of a dropout as a plain tensor, so no op on the Array is
random: it would be drawn from torch's generator, whose state is not a part of the program. That is an error.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import _disable_current_modes

from tinyshard.arrays.refusals import Immutable, optimizer_error
from tinyshard.core.errors import ImmutableError, StatefulRandomError
from tinyshard.core.frames import is_called_from
from tinyshard.core.thread_state import innermost

aten = torch.ops.aten

_NEW_STATISTICS = (
    "track_running_stats=False, or F.batch_norm(x, None, None, weight, bias, training=True); and as a new value\n"
    "running_mean = (1 - momentum) * running_mean + momentum * x.mean((0, 2, 3)), likewise running_var, returned"
)


def writes_statistics(args: tuple[Any, ...]) -> bool:
    """Whether a call of one of `op_table.BATCH_NORMS` changes running statistics: it is passed some, in training."""
    return bool(args[5]) and args[3] is not None


def with_new_statistics(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Run batch norm in training mode on Arrays, and write the new values of its statistics.

    Returns:
        The result, and the mean and inverse deviation of the batch.

    Raises:
        ImmutableError: the statistics are the user's Arrays.

    Communication: that of batch norm; statistics in plain tensors are copied to the host.
    """
    targets = args[3:5]
    if any(isinstance(x, Immutable) and not x._is_own() for x in targets):
        raise statistics_error("running_mean and running_var are Arrays")
    with torch._C.DisableTorchFunctionSubclass():  # values made here belong to the running call
        *results, mean, variance = aten._native_batch_norm_legit_functional(*args)
        for target, new in zip(targets, (mean, variance), strict=True):
            target.copy_(new if isinstance(target, Immutable) else new._gather())
    return tuple(results)


def statistics_error(got: str) -> ImmutableError:
    """The error for running statistics that cannot be changed."""
    return ImmutableError(
        "batch norm in training mode changes its running statistics in place",
        got=got,
        rule="an Array is immutable, and a traced function runs once: new statistics are a result, as in JAX",
        try_=_NEW_STATISTICS,
    )


_BATCH_NORMS = [("torch.nn.modules.batchnorm", ""), ("torch.nn.functional", "instance_norm")]


def runs_in_batch_norm() -> bool:
    """Whether the caller is torch.nn's batch norm or instance norm, which change more in place than the op does."""
    return is_called_from(_BATCH_NORMS)


def max_norm_error() -> ImmutableError:
    """The error for an embedding that would rescale its weight."""
    return ImmutableError(
        "an embedding with max_norm changes its weight in place",
        got="F.embedding(..., max_norm=...), F.embedding_bag or a module of them, whose weight is an Array",
        rule="an Array is immutable: other arrays and queued computations may share its shards",
        try_="without max_norm, on weight * (max_norm / weight.norm(dim=1, keepdim=True)).clamp(max=1)",
    )


def call_profiler(op: Any, args: tuple[Any, ...], where: object) -> Any:
    """Call one of the ops that mark a block for torch's profiler. An optimizer's step is such a block.

    Raises:
        ImmutableError: it marks an optimizer's step, in a traced function.
    """
    if str(args[0]).startswith("Optimizer."):  # "Optimizer.step#SGD.step"
        raise optimizer_error(f"{args[0].rpartition('#')[2]} in {where}")
    with _disable_current_modes():
        return op(*args)


DROPOUTS = {
    F.dropout,
    F.dropout1d,
    F.dropout2d,
    F.dropout3d,
    F.alpha_dropout,
    F.feature_alpha_dropout,
    torch.dropout,
    torch.alpha_dropout,
    torch.feature_dropout,
    torch.feature_alpha_dropout,
}


@cache
def _signature(func: Any) -> inspect.Signature:
    try:
        return inspect.signature(func)
    except ValueError:  # a builtin of torch's: (input, p, train)
        return inspect.signature(lambda input, p, train: None)


def dropout(func: Any, *args: Any, **kwargs: Any) -> Any:
    """A dropout within a transformation.

    Raises:
        StatefulRandomError: it is in training mode, and would draw a mask on the host for an Array.
    """
    given = _signature(func).bind(*args, **kwargs)
    given.apply_defaults()
    is_training = given.arguments.get("training", given.arguments.get("train")) and given.arguments["p"]
    if is_training and isinstance(innermost(given.arguments["input"]), Immutable):
        raise StatefulRandomError(
            "a stateful random op on an Array",
            got=f"{getattr(func, '__name__', func)} in training mode",
            rule="its mask would come from torch's own generator, and not from a key",
            try_="ts.random.functional(fn, key), a function whose dropouts draw from the key; or training=False",
        )
    return func(*args, **kwargs)
