"""Collectives written by hand in NumPy, on the stack of everyone's values, and cases of them that hypothesis draws.

A case has `call(v, name)`, what one position runs, and `by_hand(stack)`, what all of them get: row i is position i's.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinyshard as ts

DTYPES = (
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
)
LINEAR = (
    "psum",
    "pmean",
    "all_gather",
    "psum_scatter",
    "all_to_all",
    "pswapaxes",
    "ppermute",
    "pshuffle",
)
KINDS = (*LINEAR, "pmax", "pmin", "axis_index", "axis_size")
MESHES = ((2, 2), (1, 4), (4, 2), (2, 3), (2, 1))


@dataclass(frozen=True)
class Case:
    """A collective with its arguments, and everyone's operand."""

    told: str
    call: Callable[[torch.Tensor, Any], torch.Tensor]
    by_hand: Callable[[np.ndarray], np.ndarray]
    stack: np.ndarray

    def __repr__(self) -> str:
        return f"{self.told} on {self.stack.shape} {self.stack.dtype}"

    @property
    def operand(self) -> torch.Tensor:
        return torch.from_numpy(self.stack.copy())


def summed(stack: np.ndarray) -> np.ndarray:
    """The sum of the rows, in their own dtype; bools are counted."""
    return stack.sum(0, dtype="int32" if stack.dtype == bool else stack.dtype)


def mean(stack: np.ndarray) -> np.ndarray:
    total = summed(stack)
    return total / len(stack) if total.dtype.kind in "fc" else (total / len(stack)).astype("float32")


def for_all(row: np.ndarray, n: int) -> np.ndarray:
    return np.stack([row] * n)


def scattered(stack: np.ndarray, dim: int, tiled: bool) -> np.ndarray:
    n, total = len(stack), summed(stack)
    if tiled:
        return np.stack(np.split(total, n, dim))
    return np.stack([np.take(total, j, dim) for j in range(n)])


def gathered(stack: np.ndarray, dim: int, tiled: bool) -> np.ndarray:
    return for_all(np.concatenate(stack, dim) if tiled else np.stack(stack, dim), len(stack))


def exchanged(stack: np.ndarray, split: int, join: int, tiled: bool) -> np.ndarray:
    n = len(stack)
    if tiled:
        return np.stack([np.concatenate([np.split(row, n, split)[j] for row in stack], join) for j in range(n)])
    return np.stack([np.stack([np.take(row, j, split) for row in stack], join) for j in range(n)])


def permuted(stack: np.ndarray, pairs: list[tuple[int, int]]) -> np.ndarray:
    out = np.zeros_like(stack)
    for source, target in pairs:
        out[target] = stack[source]
    return out


def grouped(by_hand: Callable[[np.ndarray], np.ndarray], groups: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Each group of rows by itself; a row of the result belongs to the position that it came from."""

    def each(stack: np.ndarray) -> np.ndarray:
        made = [by_hand(stack[list(group)]) for group in groups]
        out = np.zeros((len(stack), *made[0].shape[1:]), made[0].dtype)
        for group, rows in zip(groups, made, strict=True):
            out[list(group)] = rows
        return out

    return each if groups is not None else by_hand


@st.composite
def index_groups(draw: Any, n: int) -> list[list[int]]:
    """All positions, shuffled, in groups of one size."""
    size = draw(st.sampled_from([k for k in range(1, n + 1) if n % k == 0]))
    order = draw(st.permutations(range(n)))
    return [list(order[i : i + size]) for i in range(0, n, size)]


def operands(draw: Any, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Small whole numbers: their sums are exact, so that the order of adding does not matter."""
    low = 0 if dtype == "bool" or dtype.startswith("uint") else -6
    high = 1 if dtype == "bool" else 6
    seed = draw(st.integers(0, 2**16))
    made = np.random.default_rng(seed).integers(low, high + 1, shape).astype(dtype)
    return made + 1j * made[::-1] if dtype.startswith("complex") else made


@st.composite
def cases(
    draw: Any, kind: str, n: int, dtypes: tuple[str, ...] = DTYPES, groups_allowed: bool = True, distinct: bool = False
) -> Case:
    """One collective over n positions, with drawn arguments, shape and dtype."""
    if kind in ("pmax", "pmin"):
        dtypes = tuple(d for d in dtypes if not d.startswith("complex"))
    dtype = draw(st.sampled_from(dtypes))
    can_group = kind in ("psum", "pmean", "pmax", "pmin", "all_gather", "psum_scatter", "all_to_all", "pswapaxes")
    groups = draw(st.none() | index_groups(n)) if groups_allowed and can_group else None
    size = len(groups[0]) if groups else n
    least = 1 if kind in ("psum_scatter", "all_to_all", "pswapaxes") else 0
    shape = (
        list(draw(hnp.array_shapes(min_dims=least, max_dims=3, min_side=1, max_side=3)))
        if least
        else list(draw(st.lists(st.integers(1, 3), max_size=3)))
    )
    told = f"{kind} over {n}, groups {groups}"
    ndim = len(shape)
    tiled = draw(st.booleans())
    lax: Any = ts.lax

    def dim(rank: int) -> int:
        return draw(st.integers(-rank, rank - 1))

    call: Callable[[torch.Tensor, Any], Any]
    by_hand: Callable[[np.ndarray], np.ndarray]
    if kind in ("psum", "pmean", "pmax", "pmin"):
        row = {"psum": summed, "pmean": mean, "pmax": lambda s: s.max(0), "pmin": lambda s: s.min(0)}[kind]
        call = lambda v, name: getattr(lax, kind)(v, name, axis_index_groups=groups)  # noqa: E731
        by_hand = lambda s: for_all(row(s), len(s))  # noqa: E731
    elif kind == "all_gather":
        tiled = tiled and ndim > 0
        d = dim(ndim if tiled else ndim + 1)
        told += f", axis {d}, tiled {tiled}"
        call = lambda v, name: lax.all_gather(v, name, axis=d, tiled=tiled, axis_index_groups=groups)  # noqa: E731
        by_hand = lambda s: gathered(s, d, tiled)  # noqa: E731
    elif kind == "psum_scatter":
        d = dim(ndim)
        shape[d] = shape[d] * size if tiled else size
        told += f", dim {d}, tiled {tiled}"
        call = lambda v, name: lax.psum_scatter(  # noqa: E731
            v, name, scatter_dimension=d, tiled=tiled, axis_index_groups=groups
        )
        by_hand = lambda s: scattered(s, d, tiled)  # noqa: E731
    elif kind == "all_to_all":
        d, e = dim(ndim), dim(ndim)
        shape[d] = shape[d] * size if tiled else size
        told += f", split {d}, concat {e}, tiled {tiled}"
        call = lambda v, name: lax.all_to_all(v, name, d, e, tiled=tiled, axis_index_groups=groups)  # noqa: E731
        by_hand = lambda s: exchanged(s, d, e, tiled)  # noqa: E731
    elif kind == "pswapaxes":
        d = dim(ndim)
        shape[d] = size
        told += f", axis {d}"
        call = lambda v, name: lax.pswapaxes(v, name, d, axis_index_groups=groups)  # noqa: E731
        by_hand = lambda s: exchanged(s, d, d, False)  # noqa: E731
    elif kind == "ppermute":
        count = draw(st.integers(0, n))
        pairs = list(zip(draw(st.permutations(range(n)))[:count], draw(st.permutations(range(n)))[:count], strict=True))
        told += f", {pairs}"
        call = lambda v, name: lax.ppermute(v, name, pairs)  # noqa: E731
        by_hand = lambda s: permuted(s, pairs)  # noqa: E731
    elif kind == "pshuffle":
        order = draw(st.permutations(range(n)))
        told += f", {order}"
        call = lambda v, name: lax.pshuffle(v, name, order)  # noqa: E731
        by_hand = lambda s: s[list(order)]  # noqa: E731
    elif kind == "axis_index":
        call = lambda v, name: lax.axis_index(name)  # noqa: E731
        by_hand = lambda s: np.arange(len(s), dtype="int32")  # noqa: E731
    else:
        call = lambda v, name: torch.full_like(v, lax.axis_size(name))  # noqa: E731
        by_hand = lambda s: np.full_like(s, len(s))  # noqa: E731
    if distinct:  # no two values equal, so that the largest is one position's alone
        seed = draw(st.integers(0, 2**16))
        stack = np.random.default_rng(seed).permutation(n * int(np.prod(shape))).reshape(n, *shape) / 7 - 1
    else:
        stack = operands(draw, (n, *shape), dtype)
    return Case(told, call, grouped(by_hand, groups), stack)


def same(got: Any, expected: np.ndarray) -> None:
    """Values, shape and dtype. Half precision rounds the quotient of a mean."""
    made = np.asarray(ts.device_get(got) if isinstance(got, ts.Array) else got)
    assert made.dtype == expected.dtype
    np.testing.assert_allclose(made, expected, rtol=2e-3 if expected.dtype == np.float16 else 1e-6, atol=0)


def over_two_axes(case: Case, mesh_shape: tuple[int, int]) -> dict[str, torch.Tensor]:
    """The case over a tuple of two names, bound in each way; rows as one position a row."""
    a, b = mesh_shape
    square = case.operand.unflatten(0, (a, b))

    def inner(v: torch.Tensor) -> torch.Tensor:
        return case.call(v, ("a", "b"))

    spec = ts.P(("a", "b"))
    mesh = ts.make_mesh(mesh_shape, ("a", "b"))
    both = ts.shard_map(lambda v: inner(v[0])[None], mesh=mesh, in_specs=spec, out_specs=spec)
    return {
        "vmap of vmap": ts.vmap(ts.vmap(inner, axis_name="b"), axis_name="a")(square).flatten(0, 1),
        "pmap of vmap": ts.pmap(ts.vmap(inner, axis_name="b"), axis_name="a")(square).flatten(0, 1),
        "vmap of pmap": ts.vmap(ts.pmap(inner, axis_name="b"), axis_name="a")(square).flatten(0, 1),
        "shard_map": both(case.operand),
    }


def extremes_keep_nan(mapped: Callable[..., Any]) -> None:
    """Compare pmax and pmin of rows with nan, infinities and negative numbers with NumPy's, which keep nan."""
    nan, inf = float("nan"), float("inf")
    rows = np.array([[1.0, nan, -inf, -2.0, -0.5], [nan, 3.0, -1.0, -3.0, 0.0], [0.0, nan, inf, -2.5, -7.0]])
    given = [torch.from_numpy(rows).to(d) for d in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    made = mapped(lambda tree: (ts.lax.pmax(tree, "i"), ts.lax.pmin(tree, "i")), axis_name="i")(given)
    for everyone, by_hand in zip(ts.device_get(made), (rows.max(0), rows.min(0)), strict=True):
        for x, got in zip(given, everyone, strict=True):
            assert got.dtype == x.dtype
            np.testing.assert_array_equal(got.double().numpy(), np.tile(by_hand, (3, 1)))
