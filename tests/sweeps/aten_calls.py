"""Every aten op that torch's op database comes down to, forward and backward, as the partitioner meets it.

`collect` runs samples of the database on plain tensors and writes down each aten op that is called, with its arguments.
`hold` partitions one such call for operands in random layouts (some partial as partial results, some with transposed
memory), runs the program on the local runtime, and compares each device's block with the op on whole tensors.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import tinyshard as ts
from tests.sweeps import aten_extra
from tests.sweeps.op_db import DTYPES, OPS, samples
from tinyshard.core.layout import Layout
from tinyshard.core.program import Builder
from tinyshard.core.types import ShapedType
from tinyshard.partition import partitioner
from tinyshard.partition.reshard import ShardedVar, reduce_partial
from tinyshard.runtime.controller.refs import Wanted

AXES = ((5, 2), (2, 5), (2, 2), (2, 2, 2))
LARGEST = 4_000
MOST = 40  # calls kept of one op

Call = tuple[tuple[Any, ...], dict[str, Any]]


class Recorder(TorchDispatchMode):
    """Writes down calls of aten ops that are functions of their operands, by op."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, dict[Any, Call]] = {}

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if _is_function(op):
            self._keep(op, args, kwargs)
        return op(*args, **kwargs)

    def _keep(self, op: Any, args: Any, kwargs: Any) -> None:
        leaves = tree_leaves((args, kwargs))
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        if not tensors or any(x.layout != torch.strided or x.numel() > LARGEST for x in tensors):
            return
        key = tuple((tuple(x.shape), x.dtype) if isinstance(x, torch.Tensor) else repr(x) for x in leaves)
        known = self.calls.setdefault(op, {})
        if key not in known and len(known) < MOST:
            known[key] = tree_map_only(torch.Tensor, _own, (args, kwargs))


def _own(x: torch.Tensor) -> torch.Tensor:
    return x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def _is_function(op: Any) -> bool:
    if op.namespace != "aten" or op._schema.is_mutable or torch.Tag.nondeterministic_seeded in op.tags:
        return False
    name = op._schema.name.removeprefix("aten::")
    return "empty" not in name and all("Tensor" in str(r.type) for r in op._schema.returns)


def collect(count: int, every: int = 1) -> dict[Any, list[Call]]:
    """The calls that the first samples of each op of the database come down to, by aten op.

    Args:
        count: samples of an op in float32; of other dtypes a quarter as many.
        every: 3 for every third op of the database.
    """
    recorder = Recorder()
    for info in [*OPS.values()][::every]:
        for dtype in DTYPES:
            if dtype not in info.dtypes or "jiterator" in info.name:
                continue
            for _, sample in samples(info, dtype, count if dtype == torch.float32 else -(-count // 4)):
                given = tree_map_only(torch.Tensor, _with_gradient, (sample.input, sample.args, sample.kwargs))
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    _record(recorder, info, sample, *given)
    found = {op: [*known.values()] for op, known in recorder.calls.items()}
    for op, extra in aten_extra.calls().items():
        found[op] = extra + found.get(op, [])
    return found


def _with_gradient(x: torch.Tensor) -> torch.Tensor:
    x = x.detach().clone()
    return x.requires_grad_() if x.is_floating_point() or x.is_complex() else x


def _record(recorder: Recorder, info: Any, sample: Any, first: Any, args: Any, kwargs: Any) -> None:
    try:
        with recorder:
            made = sample.output_process_fn_grad(info.op(first, *args, **kwargs))
            outs = [x for x in tree_leaves(made) if isinstance(x, torch.Tensor) and x.requires_grad]
            ins = [x for x in tree_leaves((first, args, kwargs)) if isinstance(x, torch.Tensor) and x.requires_grad]
            if outs and ins:
                torch.autograd.grad(outs, ins, [torch.ones_like(x) for x in outs], allow_unused=True)
    except Exception:  # samples that torch refuses; what was called before counts all the same
        return


@dataclass(frozen=True)
class Outcome:
    """One call, partitioned and run.

    Attributes:
        wrong: how the result differs; None if it is right.
        case: operands, layouts and other arguments.
        steps: what the program does.
    """

    wrong: str | None
    case: str
    steps: tuple[str, ...]


def negative_dims(op: Any, call: Call) -> Iterator[Call]:
    """The same call with each dim that it names counted from the end, where torch makes the same of it."""
    args, kwargs = call
    names = [a.name for a in op._schema.arguments]
    places = [i for i, n in enumerate(names[: len(args)]) if n.startswith("dim") and type(args[i]) is int]
    if not places:
        return
    expected = tree_leaves(op(*args, **kwargs))
    for rank in range(1, 7):
        changed = tuple(x - rank if i in places and x >= 0 else x for i, x in enumerate(args))
        try:
            made = tree_leaves(op(*changed, **kwargs))
        except (IndexError, RuntimeError):
            continue
        if changed != args and all(
            torch.equal(m, e) if isinstance(e, torch.Tensor) else m is e for m, e in zip(made, expected, strict=True)
        ):
            yield changed, kwargs
            return


def hold(op: Any, call: Call, seed: str) -> Outcome | None:
    """Partition a call for operands in layouts drawn by `seed`, and compare; None where nothing is sharded.

    Raises:
        Whatever the partitioner or a device raises.
    """
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(draw.randrange(2**31))
    axes = draw.choice(AXES)
    count = math.prod(axes)
    builder = Builder(tuple(range(count)), axes)
    runtime = ts.platform.current()
    leaves, form = tree_flatten(call)
    operands: list[Any] = []
    whole: list[Any] = []
    buffers, told = [], []
    for x in leaves:
        if not isinstance(x, torch.Tensor):
            operands.append(x)
            whole.append(x)
            continue
        dims = _random_dims(draw, x.shape, axes)
        used = {a for cut in dims for a in cut}
        partial: tuple[tuple[int, str], ...] = ()
        if draw.random() < 0.25:
            how = draw.choice(_ways(x.dtype))
            partial = tuple((a, how) for a in range(len(axes)) if a not in used and draw.random() < 0.7)
        if partial and x.is_floating_point():
            x = (x * 16).round() / 16 + 0.0  # so that parts add up to it exactly, and no zero is -0.0
        value = ShardedVar(0, tuple(x.shape), x.dtype, dims, partial)
        number = builder.input(value.local(axes))
        operands.append(ShardedVar(number, value.shape, value.dtype, dims, partial))
        parts = _parts(x, partial, axes, generator)
        layout = Layout(tuple(range(count)), axes, dims, "cpu")
        turned = draw.random() < 0.3
        blocks = {d: _block(parts[d], layout, d, turned) for d in range(count)}
        buffers.append(runtime.put(blocks))
        whole.append(x)
        told.append(f"{x.dtype}{list(x.shape)} {dims}{f' partial {partial}' if partial else ''}{' turned' * turned}")
    if not any(isinstance(x, ShardedVar) and not x.is_whole for x in operands):
        return None
    args, kwargs = tree_unflatten(whole, form)
    expected = op(*args, **kwargs)
    args, kwargs = tree_unflatten(operands, form)
    applied = partitioner.apply(builder, op, tuple(args), kwargs)
    results = [None if x is None else reduce_partial(builder, x) for x in applied]
    made = [x for x in results if x is not None]
    program = builder.finish([x.number for x in made])
    outputs = runtime.run(program, buffers)
    flat = list(expected) if isinstance(expected, list | tuple) else [expected]
    wrong = _difference(flat, results, made, outputs, axes)
    others = [x for x in leaves if not isinstance(x, torch.Tensor)]
    return Outcome(wrong, f"{axes}: {'; '.join(told)}; {others}", tuple(s.op for s in program.steps))


def _random_dims(draw: random.Random, shape: Sequence[int], axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    cuts: list[list[int]] = [[] for _ in shape]
    for axis in draw.sample(range(len(axes)), len(axes)):
        if draw.random() < 0.35:
            continue
        fitting = [
            d for d, n in enumerate(shape) if n and n % (axes[axis] * math.prod(axes[other] for other in cuts[d])) == 0
        ]
        if fitting:
            cuts[draw.choice(fitting)].append(axis)
    return tuple(map(tuple, cuts))


def _ways(dtype: torch.dtype) -> Sequence[str]:
    """How parts of a tensor of this dtype may be combined; the parts of bools are not added (`combined_by`)."""
    if dtype == torch.bool:
        return ("max", "min")
    if dtype.is_complex:
        return ("sum",)
    return (
        ("sum", "sum", "avg", "max", "min", "product") if dtype.is_floating_point else ("sum", "max", "min", "product")
    )


def _parts(
    x: torch.Tensor, partial: Sequence[tuple[int, str]], axes: Sequence[int], generator: torch.Generator
) -> list[torch.Tensor]:
    """For each device the tensor that it holds a block of; combined along `partial` axes these are `x`, exactly."""
    count = math.prod(axes)
    held = [x] * count
    for axis, how in partial:
        stride, size = math.prod(axes[axis + 1 :]), axes[axis]
        for first in range(count):
            if first // stride % size:
                continue
            for place, share in enumerate(_shares(held[first], how, size, generator)):
                held[first + place * stride] = share
    return held


def _shares(x: torch.Tensor, how: str, size: int, generator: torch.Generator) -> list[torch.Tensor]:
    """`size` tensors that are `x` when they are combined as `how` says.

    Integers wrap, as those that a device adds up do. Of a maximum each element is with one device, drawn; the other
    devices hold it too, or something lower, as low as the dtype goes.
    """
    if how in ("sum", "avg"):
        total = x * size if how == "avg" else x
        noise = [torch.randint(-32, 32, x.shape, generator=generator) for _ in range(size - 1)]
        shares = [(n / 16).to(x.dtype) if x.is_floating_point() or x.is_complex() else n.to(x.dtype) for n in noise]
        return [*shares, total - sum(shares)]
    if how == "product":
        signs = [1 - 2 * torch.randint(0, 2, x.shape, generator=generator).to(x.dtype) for _ in range(size - 1)]
        return [*signs, math.prod(signs, start=x)]
    holder = torch.randint(0, size, x.shape, generator=generator)
    kinds = [torch.randint(0, 3, x.shape, generator=generator) for _ in range(size)]
    end = _end(x.dtype, how)
    step = -1 if how == "max" else 1
    near = torch.full_like(x, end) if x.dtype == torch.bool else torch.where(x == end, x, x + step)
    return [
        torch.where((holder == place) | (kind == 0) | x.isnan(), x, torch.where(kind == 1, near, end))
        for place, kind in enumerate(kinds)
    ]


def _end(dtype: torch.dtype, how: str) -> Any:
    """What no maximum is below, or no minimum above."""
    if dtype == torch.bool:
        return torch.tensor(how == "min")
    if dtype.is_floating_point:
        return torch.tensor(-math.inf if how == "max" else math.inf, dtype=dtype)
    info = torch.iinfo(dtype)
    return torch.tensor(info.min if how == "max" else info.max, dtype=dtype)


def _block(x: torch.Tensor, layout: Layout, device: int, turned: bool) -> torch.Tensor:
    block = x[layout.index(device, tuple(x.shape))]
    dims = list(range(block.dim()))[::-1]
    return block.permute(dims).contiguous().permute(dims) if turned else block.contiguous().clone()


def _difference(
    expected: Sequence[Any],
    results: Sequence[ShardedVar | None],
    made: Sequence[ShardedVar],
    outputs: Sequence[Any],
    axes: Sequence[int],
) -> str | None:
    if len(expected) != len(results):
        return f"{len(results)} results for {len(expected)}"
    tensors = [e for e, r in zip(expected, results, strict=True) if r is not None]
    runtime = ts.platform.current()
    count = math.prod(axes)
    for number, (want, placed, buffer) in enumerate(zip(tensors, made, outputs, strict=True)):
        if want is None or (tuple(want.shape), want.dtype) != (placed.shape, placed.dtype):
            return f"result {number} is {ShapedType(placed.shape, placed.dtype)} for {want}"
        want = want.resolve_conj().resolve_neg()
        layout = Layout(tuple(range(count)), tuple(axes), placed.dims, "cpu")
        local = placed.local(tuple(axes))
        everything = {d: tuple(slice(0, n) for n in local.shape) for d in range(count)}
        for device in range(count):
            (got,) = runtime.gather([Wanted(buffer, {device: everything[device]}, local.shape, local.dtype)])
            if not same(got, want[layout.index(device, tuple(want.shape))], want):
                return f"result {number} is wrong on device {device}"
    return None


def same(got: torch.Tensor, want: torch.Tensor, whole: torch.Tensor) -> bool:
    if not (want.is_floating_point() or want.is_complex()):
        return torch.equal(got, want)
    sizes = whole.abs().nan_to_num(0.0, 0.0, 0.0)
    scale = max(float(sizes.max()), 1.0) if sizes.numel() else 1.0
    return torch.allclose(got, want, rtol=1e-3, atol=2e-4 * scale, equal_nan=True)


def outcomes(op: Any, calls: Sequence[Call], count: int) -> Iterator[tuple[str, Outcome | Exception]]:
    """Hold `count` draws of an op's calls; what was raised in place of an outcome where something was."""
    found = [*calls, *itertools.chain.from_iterable(negative_dims(op, c) for c in calls[:6])]
    # the first, the last, the second, the last but one: few draws meet several dtypes, many meet all calls
    varied = [found[-1 - n // 2] if n % 2 else found[n // 2] for n in range(len(found))]
    for number in range(count):
        seed = f"{op} {number}"
        call = varied[number % len(varied)] if number < len(varied) else random.Random(seed).choice(varied)
        try:
            outcome = hold(op, call, seed)
        except partitioner.UnknownShape:
            continue
        except Exception as error:
            yield seed, error
        else:
            if outcome is not None:
                yield seed, outcome


__all__ = ["Outcome", "collect", "hold", "outcomes", "same"]
