"""The means that a task names: was the function mapped over devices, and which collectives does it use?

A judge compares values first, and then asks for the means: `lambda m: m.sum(0)` has the values of a `shard_map` with a
`psum`, and has understood neither. It asks the program of the answer, not its source, so that every right way passes:

    if not is_mapped(column_sums, MATRIX):
        return differs("the sums are right, but no device runs a function of its own block", hint)
    found = ts.collectives_in(compiled(column_sums, MATRIX))

The arguments decide what the partitioner adds by itself: of plain tensors nothing, of an Array cut by rows `m.sum(0)`
has an all_reduce, too. Nothing of this runs on devices. An answer that cannot be traced raises, which counts as its own
error.
"""

from collections.abc import Callable
from typing import Any

import tinyshard as ts
from tinyshard.compile.compiled import Compiled, Lowered
from tinyshard.transforms.jitted import Jitted

__all__ = ["compiled", "is_mapped", "on_each_device"]

ROWS = ts.P("i")


def on_each_device(function: Callable[..., Any], count: int = 1, out_specs: Any = ROWS) -> Jitted:
    """The learner's function on eight devices along the axis `i`, jitted; each of `count` arguments is cut by dim 0."""
    mesh = ts.make_mesh((8,), ("i",))
    return ts.jit(ts.shard_map(function, mesh=mesh, in_specs=(ROWS,) * count, out_specs=out_specs))


def compiled(function: Any, *args: Any) -> Compiled:
    """The program of the function for these arguments; of a plain function that of `ts.jit(function)`."""
    return _lowered(function, *args).compile()


def is_mapped(function: Any, *args: Any) -> bool:
    """Whether it is a `pmap` or `shard_map`, or calls one.

    Example:
        >>> import torch
        >>> is_mapped(lambda m: m.sum(0), torch.zeros(8, 4))
        False
    """
    return " = mapped(" in _lowered(function, *args).as_text()


def _lowered(function: Any, *args: Any) -> Lowered:
    jitted = function if isinstance(function, Jitted) else ts.jit(function)
    return jitted.lower(*args)
