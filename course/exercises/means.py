"""The means that a task names: was the function mapped over devices, and which collectives does it use?

A judge compares values first, and then asks for the means: `lambda m: m.sum(0)` has the values of a `shard_map` with a
`psum`, and has understood neither. It asks the program of the answer, not its source, so that every right way passes:

    told = difference(column_sums(MATRIX), MATRIX.sum(0), "the result")
    if told:
        return differs(told)
    told = lacks(column_sums, MATRIX, mapped=True, all_reduce=1)
    return differs(told, "Right, but one device did it all. Each is to add up its own block.") if told else PASSED

    made_by(f)                      "shard_map", "pmap", "vmap" or "jit": what returned f; "" for a plain function
    is_mapped(f, *args)             whether devices run a function of their own shard in it, also within a function
    collectives(f, *args)           kind → how many: {"all_reduce": 1}; for bytes and axes ask ts.collectives_in
    lacks(f, *args, mapped=True, all_reduce=1, …)   what is missing, in a line; "" where nothing is

`args` decide what the partitioner adds by itself: of plain tensors nothing, of an Array cut by rows `m.sum(0)` has an
all_reduce, too. Nothing of this runs on devices. An answer that cannot be traced raises, which counts as its own error.
"""

from typing import Any

import tinyshard as ts
from tinyshard.compile.compiled import Compiled
from tinyshard.compile.lowered import Lowered
from tinyshard.transforms.jitted import Jitted
from tinyshard.transforms.over_devices import OverDevices

__all__ = ["collectives", "compiled", "is_mapped", "lacks", "made_by"]


def made_by(function: Any) -> str:
    """Which of the transformations returned the function itself; what is called inside of it does not count.

    Example:
        >>> made_by(ts.vmap(lambda x: 2 * x)), made_by(lambda x: 2 * x)
        ('vmap', '')
    """
    if isinstance(function, OverDevices):
        return function.what
    if isinstance(function, Jitted):
        return "jit"
    code = getattr(function, "__code__", None)
    return "vmap" if getattr(code, "co_qualname", "").startswith("vmap.") else ""


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


def collectives(function: Any, *args: Any) -> dict[str, int]:
    """How many collectives of each kind its program has, such as {"all_reduce": 1}."""
    counts: dict[str, int] = {}
    for each in ts.collectives_in(compiled(function, *args)):
        counts[each.kind] = counts.get(each.kind, 0) + each.count
    return counts


def lacks(function: Any, *args: Any, mapped: bool = False, **counts: int) -> str:
    """What the function lacks of the means that the task names.

    Args:
        function: the learner's.
        args: its arguments.
        mapped: whether it must be, or call, a `pmap` or `shard_map`.
        counts: kind of collective → how many; those that are not named may be there, `all_gather=0` forbids one.

    Returns:
        A line such as "its program has 1 all_gather, not 0"; empty where nothing is missing.
    """
    if mapped and not is_mapped(function, *args):
        return "no device runs a function of its own shard in it: there is no shard_map or pmap"
    found = collectives(function, *args)
    for kind, count in counts.items():
        if found.get(kind, 0) != count:
            return f"its program has {found.get(kind, 0)} {kind}, not {count}"
    return ""


def _lowered(function: Any, *args: Any) -> Lowered:
    jitted = function if isinstance(function, Jitted) else ts.jit(function)
    return jitted.lower(*args)
