"""cond and switch: one of several functions is called, chosen by a value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.explicit import types_within
from tinyshard.arrays.placement import as_tensor
from tinyshard.arrays.varying_types import described
from tinyshard.compile.tracing import Traced
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.thread_state import is_tracing, varying_types
from tinyshard.core.types import ShapedType
from tinyshard.lax.scan import Tensors, flat, has_array
from tinyshard.primitives.branching import Branches
from tinyshard.transforms import bodies
from tinyshard.transforms.branch_rules import apply_branches, chosen
from tinyshard.transforms.jitted import Jitted

Branch = Callable[..., Any]


def cond(pred: Any, true_fun: Branch, false_fun: Branch, *operands: Any, **others: Any) -> Any:
    """Call one of two functions: `true_fun(*operands) if pred else false_fun(*operands)`.

    In a trace (jit, pmap, shard_map) both are traced, and the devices run one: it is one step of the program. Under
    `vmap` with a predicate for each example both run, and a `where` chooses. On Arrays outside of a trace it is jitted;
    on plain tensors one function is called. Its gradient runs one branch, too.

    Args:
        pred: a bool[] or number[], or a Python value, which chooses the function at once.
        true_fun: a function of the operands that returns a tree of tensors.
        false_fun: likewise; both results have the same tree, shapes and dtypes.
        operands: trees of tensors.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The result of one function.

    Raises:
        DtypeError: pred has dims, or the results differ in tree, shape or dtype.
        ShardingError: inside pmap or shard_map, pred may differ between devices, and a collective is inside.

    Communication: that of the branch; if any branch communicates, an all_reduce of 4 bytes, by which the devices agree.

    In JAX: the same. `torch.cond` in a program runs both branches.

    Example:
        >>> cond(torch.tensor(True), torch.sin, torch.cos, torch.tensor(0.0))
        tensor(0.)
    """
    check_others(cond, others)
    if not hasattr(pred, "shape"):
        return (true_fun if pred else false_fun)(*operands)
    return _called(_number(pred, "pred") != 0, (false_fun, true_fun), operands)


def switch(index: Any, branches: Sequence[Branch], *operands: Any, **others: Any) -> Any:
    """Call one of several functions: `branches[index](*operands)`, with the index clamped to the range.

    As `cond`, with a number in place of a predicate.

    Args:
        index: an int[], or an int, which chooses the function at once.
        branches: functions of the operands; their results have the same tree, shapes and dtypes.
        operands: trees of tensors.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The result of one function.

    Raises:
        DtypeError: no branches, index is not a number without dims, or the results differ in tree, shape or dtype.
        ShardingError: inside pmap or shard_map, index may differ between devices, and a collective is inside.

    Communication: that of the branch; if any branch communicates, an all_reduce of 4 bytes, by which the devices agree.

    Example:
        >>> switch(torch.tensor(2), [torch.neg, torch.abs, torch.exp], torch.tensor(0.0))
        tensor(1.)
    """
    check_others(switch, others)
    branches = tuple(branches)
    if not branches:
        raise DtypeError("switch has no branches", got="an empty list", rule="one of them is called")
    if not hasattr(index, "shape"):
        return branches[min(max(operator.index(index), 0), len(branches) - 1)](*operands)
    number = _number(index, "index")
    if number.is_floating_point() or number.is_complex() or number.dtype == torch.bool:
        raise DtypeError("switch's index is a whole number", got=str(shaped_type_of(number)))
    return _called(number.clamp(0, len(branches) - 1), branches, operands)


def _number(value: Any, name: str) -> torch.Tensor:
    x = value if isinstance(value, torch.Tensor) else as_tensor(value)
    if x.dim():
        raise DtypeError(
            f"{name} is a value without dims",
            got=str(shaped_type_of(x)),
            rule="it chooses one function",
            try_="ts.vmap, for one of each example; torch.where, for one of each element",
        )
    return x


def _called(index: torch.Tensor, branches: tuple[Branch, ...], operands: tuple[Any, ...]) -> Any:
    if is_tracing():
        return _in_program(index, branches, operands)
    if has_array((index, operands)):
        return _jitted(index, branches, operands)
    if torch._C._functorch.maybe_current_level() is not None:  # the number may differ between examples
        results, form = _results([branch(*operands) for branch in branches])
        return tree_unflatten(chosen(index.int(), results), form)
    return branches[int(index)](*operands)


def _on_arrays(index: torch.Tensor, branches: tuple[Branch, ...], operands: tuple[Any, ...]) -> Any:
    if is_tracing():
        return _in_program(index, branches, operands)
    # a function with a custom derivative, which is differentiated op by op
    results, form = _results([branch(*operands) for branch in branches])
    return tree_unflatten(chosen(index.int(), results), form)


_on_arrays.__name__ = "cond"
_jitted = Jitted(_on_arrays, static_argnums=(1,))


def _results(several: Sequence[Any]) -> tuple[list[Tensors], TreeSpec]:
    """The results of all branches, as tensors, and their trees. Raises DtypeError if they differ."""
    flattened = [flat(result) for result in several]
    return [xs for xs, _ in flattened], _check_alike([([*map(shaped_type_of, xs)], form) for xs, form in flattened])


def _check_alike(kinds: Sequence[tuple[list[ShapedType], TreeSpec]]) -> TreeSpec:
    """The common tree of the results of all branches. Raises DtypeError if trees, shapes or dtypes differ."""
    if any(kind != kinds[0] for kind in kinds):
        raise DtypeError(
            "the branches of a cond or switch have different results",
            got="\n".join(f"branch {i}: {', '.join(map(str, xs))}, {form}" for i, (xs, form) in enumerate(kinds)),
            rule="all return the same tree of tensors of the same shapes and dtypes",
        )
    return kinds[0][1]


def _in_program(index: torch.Tensor, branches: tuple[Branch, ...], operands: tuple[Any, ...]) -> Any:
    values, form = flat(operands)
    types = varying_types()
    least = frozenset[str]() if types is None else types.names(index)
    if types is not None:  # what differs between devices is chosen from
        values = [types.cast(x, least) for x in values]
    metas = [shaped_type_of(x) for x in values]
    kinds: list[tuple[list[ShapedType], TreeSpec]] = []
    axes: list[list[frozenset[str]]] = []

    def of(branch: Branch) -> Callable[..., Tensors]:
        def body(*given: torch.Tensor) -> Tensors:
            results, of_made = flat(branch(*tree_unflatten(given, form)))
            kinds.append(([*map(shaped_type_of, results)], of_made))
            here = varying_types()
            axes.append([] if here is None else [here.names(x) for x in results])
            return results

        return body

    parts = [
        bodies.used_now(bodies.traced_body(of(branch), metas, types=types_within(values, least=least)))
        for branch in branches
    ]
    of_made = _check_alike(kinds)
    _check_varying_alike(axes)
    each = _widened([traced for traced, _ in parts], len(values))
    closed = [x if types is None else types.cast(x, least) for _, some in parts for x in some]
    return tree_unflatten(apply_branches(Branches(each), [index.to(torch.int32), *values, *closed]), of_made)


def _check_varying_alike(axes: Sequence[Sequence[frozenset[str]]]) -> None:
    """Raise ShardingError for branches whose results vary along other axes."""
    for number, found in enumerate(zip(*axes, strict=True)):
        every = frozenset[str]().union(*found)
        if any(names != every for names in found):
            named = ", ".join(map(repr, sorted(every)))
            raise ShardingError(
                "the results of the branches vary along different axes between devices",
                got="\n".join(f"branch {i}, result {number}: {described(names)}" for i, names in enumerate(found)),
                rule="all branches return values of the same types",
                try_=f"ts.lax.pcast(x, ({named},), to='varying') of the result that is the same on all devices",
            )


def _widened(branches: Sequence[Traced], count: int) -> tuple[Traced, ...]:
    """Branches that all take the `count` operands, and then the closed-over tensors of all."""
    closed = [branch.inputs[count:] for branch in branches]
    for number, branch in enumerate(branches):
        graph = branch.graph.graph
        first = next(node for node in graph.nodes if node.op != "placeholder")
        before = [node.meta["val"] for some in closed[:number] for node in some]
        after = [node.meta["val"] for some in closed[number + 1 :] for node in some]
        for place, values in ((closed[number][0] if closed[number] else first, before), (first, after)):
            with graph.inserting_before(place):
                for value in values:
                    graph.placeholder("closed_by_another").meta["val"] = value
    return tuple(branches)
