"""associative_scan: all running results of an associative function, in a logarithmic number of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.explicit import called, known_as
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.core.jax_hints import check_others
from tinyshard.lax.operands import dim_of
from tinyshard.lax.scan import Tensors, flat

Combine = Callable[[Tensors, Tensors], Tensors]


def associative_scan(
    fn: Callable[[Any, Any], Any], elems: Any, reverse: bool = False, axis: int = 0, **others: Any
) -> Any:
    """Combine elements along a dim: result i is `fn(... fn(fn(e0, e1), e2) ..., ei)`.

    The function is called on many pairs at once, about 2 log2(n) times in all: there is no loop, and all
    transformations of its ops work here. It must be associative: `fn(fn(a, b), c)` is `fn(a, fn(b, c))`.

    Args:
        fn: takes two trees of elements, several along the dim: combines them pair by pair, as `torch.add` does.
        elems: a tree of tensors of the same size along the dim.
        reverse: whether to go from the last element to the first.
        axis: the dim, which may be negative.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        A tree as elems is.

    Raises:
        MappingError: no tensors, sizes that differ, or a dim that does not exist.
        DtypeError: fn returns another tree, shape or dtype than it is passed.

    Communication: only that of fn along other dims; along the dim itself operands are gathered.

    Example:
        >>> associative_scan(torch.add, torch.tensor([1, 2, 3, 4]))
        tensor([ 1,  3,  6, 10])
    """
    check_others(associative_scan, others)
    elements, form = flat(elems)
    if not elements:
        raise MappingError("associative_scan has no elements", got="elems without a tensor")
    dims = [dim_of(axis, x.dim(), "axis") for x in elements]
    sizes = {x.shape[dim] for x, dim in zip(elements, dims, strict=True)}
    if len(sizes) > 1:
        raise MappingError("associative_scan's elements differ in number", got=f"{sorted(sizes)} along axis {axis}")
    if reverse:
        with called("associative_scan"):
            elements = [x.flip(dim) for x, dim in zip(elements, dims, strict=True)]

    def combine(left: Tensors, right: Tensors) -> Tensors:
        running, of_made = flat(fn(tree_unflatten(left, form), tree_unflatten(right, form)))
        described = [[str(shaped_type_of(x)) for x in several] for several in (left, running)]
        if of_made != form or described[0] != described[1]:
            raise DtypeError(
                "the function of an associative_scan returns something else than it is given",
                got=f"given {', '.join(described[0])}, {form}\nreturned {', '.join(described[1])}, {of_made}",
                rule="it combines elements to elements of the same tree, shapes and dtypes",
            )
        return running

    running = _running(combine, elements, dims)
    if reverse:
        running = [x.flip(dim) for x, dim in zip(running, dims, strict=True)]
    return tree_unflatten(running, form)


def _running(combine: Combine, elements: Tensors, dims: list[int]) -> Tensors:
    """For elements 0 1 2 3 4: the scan of pairs 01, 23 gives results 1 and 3; 2 is 01 with 2, and 4 is 0123 with 4."""
    count = elements[0].shape[dims[0]]
    if count < 2:
        return elements

    @known_as("associative_scan")
    def part(several: Tensors, first: int, last: int | None, step: int = 1) -> Tensors:
        return [x[(*[slice(None)] * dim, slice(first, last, step))] for x, dim in zip(several, dims, strict=True)]

    pairs = count // 2
    odd = _running(combine, combine(part(elements, 0, 2 * pairs, 2), part(elements, 1, None, 2)), dims)
    even = part(elements, 0, 1)
    if count > 2:
        later = combine(part(odd, 0, (count - 1) // 2), part(elements, 2, None, 2))
        even = [torch.cat(some, dim) for *some, dim in zip(even, later, dims, strict=True)]
    running = []
    for evens, between, dim in zip(even, odd, dims, strict=True):
        both = torch.stack([evens.narrow(dim, 0, pairs), between], dim + 1).flatten(dim, dim + 1)
        running.append(both if count == 2 * pairs else torch.cat([both, evens.narrow(dim, pairs, 1)], dim))
    return running
