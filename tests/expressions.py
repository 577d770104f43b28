"""Random placements and random expressions for the tests, on whichever runtime is up; plain torch is the oracle.

A case has one device order (1 to 8 devices, permuted). Each operand gets a sharding of its own over that order, or is a
plain tensor, or an uncommitted Array. After every op the result is held against plain torch, which is given the same
operands, value by value; then the result is an operand for the next.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from hypothesis import note
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._pytree import tree_leaves

import tinyshard as ts
from tests.operations import ANY, OPERATIONS, Operation, Pick, numbers

TOLERANCE = {
    torch.bfloat16: 0.05, torch.float16: 0.01, torch.float32: 1e-4, torch.complex64: 1e-4,
    torch.float64: 1e-9, torch.complex128: 1e-9,
}  # fmt: skip

# said once a process, of experimental dtypes and of operands that torch has to copy
TORCHS_OWN = "ComplexHalf|torch.(searchsorted|bucketize)|An output with one or more"


def factorizations(count: int) -> list[tuple[int, ...]]:
    """All ordered ways to write count as a product of sizes above 1."""
    if count == 1:
        return [()]
    return [(n, *rest) for n in range(2, count + 1) if count % n == 0 for rest in factorizations(count // n)]


@st.composite
def device_orders(draw: Any) -> tuple[ts.Device, ...]:
    """1 to 8 of the devices in any order."""
    count = draw(st.sampled_from((8, 4, 6, 2, 3, 1, 5, 7)))
    ids = draw(st.permutations(range(8)))[:count] if draw(st.booleans()) else range(count)
    devices = ts.devices()
    return tuple(devices[i] for i in ids)


@st.composite
def shapes(draw: Any, least: int = 0, most: int = 4) -> tuple[int, ...]:
    sizes = st.sampled_from((8, 4, 6, 2, 12, 3, 1, 16, 5, 0, 24))
    shape = tuple(draw(st.lists(sizes, min_size=least, max_size=most)))
    while math.prod(shape) > 2000:
        largest = shape.index(max(shape))
        shape = (*shape[:largest], 2, *shape[largest + 1 :])
    return shape


@st.composite
def shardings(draw: Any, order: tuple[ts.Device, ...], shape: Sequence[int]) -> ts.Sharding:
    """A sharding over the devices in this order that cuts the shape evenly."""
    axes = draw(st.sampled_from(factorizations(len(order)) or [()]))
    axes = axes or (1,)
    cuts: list[list[int]] = [[] for _ in shape]
    parts = [1] * len(shape)
    for axis in draw(st.permutations(range(len(axes)))):
        fitting = [d for d, n in enumerate(shape) if n % (parts[d] * axes[axis]) == 0]
        chosen = draw(st.sampled_from([*fitting, None]))
        if chosen is not None:
            cuts[chosen].append(axis)
            parts[chosen] *= axes[axis]
    if draw(st.booleans()):
        mesh = ts.Mesh(np.array(order, dtype=object).reshape(axes), tuple("abcd"[: len(axes)]))
        return ts.NamedSharding(mesh, ts.P(*(tuple(mesh.axis_names[a] for a in cut) or None for cut in cuts)))
    free = [a for a in range(len(axes)) if all(a not in cut for cut in cuts)]
    grid = ts.sharding.PositionalSharding(np.array(order, dtype=object).reshape(axes))
    grid = grid.transpose(*[a for cut in cuts for a in cut], *free)
    kept = len(axes) - len(free)
    return grid.replicate(tuple(range(kept, len(axes))), keepdims=False).reshape(tuple(parts))


def placed(draw: Any, order: tuple[ts.Device, ...], x: Tensor) -> Tensor:
    """The tensor as an operand: mostly committed, at times a plain tensor or an uncommitted Array."""
    kind = draw(st.sampled_from(("put", "put", "put", "plain", "array", "turned")))
    if kind == "plain":
        return x
    if kind == "array":
        return ts.array(x)
    if kind == "turned" and x.dim() > 1:  # shards whose strides are not those of a fresh tensor
        turned = x.mT.contiguous()
        return ts.device_put(turned, draw(shardings(order, turned.shape))).mT
    return ts.device_put(x, draw(shardings(order, x.shape)))


def picker(draw: Any) -> Pick:
    return Pick(lambda choices: draw(st.sampled_from(choices)))


def leaf(draw: Any, operation: Operation) -> Tensor:
    """A plain tensor that the operation takes."""
    dtype = draw(st.sampled_from(operation.dtypes))
    low, high = operation.ndim
    shape = draw(shapes(low, min(high, max(low, 3))))
    if not operation.empty:
        shape = tuple(n or 2 for n in shape)
    return numbers(shape, dtype, draw(st.integers(0, 5)))


def check_same(got: Any, want: Any, what: str, scale: float = 1.0) -> None:
    """Shape, dtype and values of every tensor of a result."""
    ours, theirs = tree_leaves(got), tree_leaves(want)
    assert len(ours) == len(theirs), what
    for a, b in zip(ours, theirs, strict=True):
        if not isinstance(b, Tensor):
            assert a == b, what
            continue
        assert isinstance(a, ts.Array), what
        assert (tuple(a.shape), a.dtype) == (tuple(b.shape), b.dtype), what
        whole = ts.device_get(a)
        assert (tuple(whole.shape), whole.dtype) == (tuple(b.shape), b.dtype), what
        tolerance = TOLERANCE.get(b.dtype, 0)
        scale = max(scale, size_of(b[b.isfinite()]))
        torch.testing.assert_close(
            whole, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True, msg=lambda m: f"{what}\n{m}"
        )


def size_of(x: Tensor) -> float:
    return float(x.abs().max()) if x.numel() and x.dtype != torch.bool else 1.0


def run_operation(draw: Any, order: tuple[ts.Device, ...], name: str, x: Tensor, whole: Tensor) -> Any:
    """Draw one call of the operation on the placed `x`, whose value is `whole`, and check it."""
    drawn = OPERATIONS[name].draw(picker(draw), whole)
    call, *others = drawn if isinstance(drawn, tuple) else (drawn,)
    operands = [placed(draw, order, o) for o in others]
    everything = [x, *operands]
    if not any(isinstance(o, ts.Array) for o in everything):
        everything[0] = ts.array(x)
    what = f"{name} of {', '.join(describe(o) for o in everything)}"
    note(what)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", TORCHS_OWN, UserWarning)
        try:
            want = call(whole, *others)
        except (RuntimeError, IndexError, TypeError, ValueError):  # torch has no such op for this dtype
            return None
        got = call(*everything)
        check_same(got, want, what, max([1.0, *(size_of(o) for o in (whole, *others))]) ** 2)
    return got


def check_round_trip(draw: Any) -> None:
    """`device_put` then `numpy()` gives the tensor back, and each shard is its slice."""
    order = draw(device_orders())
    shape = draw(shapes())
    x = numbers(shape, draw(st.sampled_from([d for d in ANY if d != torch.bfloat16])), draw(st.integers(0, 5)))
    sharding = draw(shardings(order, shape))
    y = ts.device_put(x, sharding)
    note(describe(y))
    np.testing.assert_array_equal(y.numpy(), x.numpy())
    assert y.numpy().dtype == x.numpy().dtype
    assert {shard.device: shard.index for shard in y.addressable_shards} == sharding.devices_indices_map(shape)
    for shard in y.addressable_shards:
        np.testing.assert_array_equal(shard.data.numpy(), x[shard.index].numpy())


def describe(x: Tensor) -> str:
    kind = f"{x.dtype}{list(x.shape)}".removeprefix("torch.")
    if not isinstance(x, ts.Array):
        return f"{kind} plain"
    layout = x.layout_of_shards
    return f"{kind} {layout.dims} of {layout.axes} on {layout.devices}{'' if x.committed else ' uncommitted'}"


def run_expression(draw: Any, length: int) -> None:
    """Grow an expression by `length` ops from operands placed at random."""
    order = draw(device_orders())
    names = sorted(OPERATIONS)
    first = OPERATIONS[draw(st.sampled_from(names))]
    values: list[Tensor] = [placed(draw, order, leaf(draw, first))]
    for _ in range(length):
        x = draw(st.sampled_from(values))
        whole = ts.device_get(x)
        fitting = [n for n in names if OPERATIONS[n].takes(whole)]
        if not fitting:
            continue
        made = run_operation(draw, order, draw(st.sampled_from(fitting)), x, whole)
        for result in tree_leaves(made)[:3]:
            if isinstance(result, ts.Array) and result.dtype in ANY and is_tame(ts.device_get(result)):
                values.append(result)


def is_tame(x: Tensor) -> bool:
    """Whether an op on it may still be compared: neither large nor infinite."""
    return x.numel() <= 4000 and x.dim() < 6 and bool(x.isfinite().all()) and size_of(x) < 40
