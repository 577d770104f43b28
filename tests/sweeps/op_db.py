"""torch's own op database, held against plain torch: each sample of an op, its tensors in random layouts over a mesh.

A sample is checked forward, in its gradient by all differentiable operands, under `ts.jit`, and a drawn part under
`ts.vmap`. A draw depends on the op's name, the dtype and the sample's number alone, so that each miss can be repeated.
"""

from __future__ import annotations

import itertools
import math
import random
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.opinfo import core
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import tinyshard as ts
from tinyshard.core.errors import TinyshardError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's database warns of what it uses itself
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.opinfo.core import OpInfo, SampleInput

DEVICES = 10
MESHES = (((5, 2), ("a", "b")), ((10,), ("a",)))  # the samples' dims are multiples of 5 and of 10
DTYPES = (torch.float32, torch.int64, torch.bool, torch.complex64, torch.uint8, torch.int8)
LARGEST = 40_000  # elements of one operand; samples of the database are smaller but for a few

OPS: dict[str, OpInfo] = {}
for _info in (each for each in op_db if "jiterator" not in each.name):  # those are for CUDA alone
    OPS.setdefault(_info.full_name if _info.full_name not in OPS else f"{_info.full_name}-{len(OPS)}", _info)


@dataclass(frozen=True)
class Miss:
    """What did not hold.

    Attributes:
        kind: "wrong" for other values than torch's, "refused" for an error where torch has none.
        mode: "eager", "gradient", "jit" or "vmap".
        where: dtype, number of the sample, layouts of its tensors.
        why: the first difference, or the error.
    """

    kind: str
    mode: str
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.kind} ({self.mode}; {self.where}): {self.why}"


# torch looks through the stack, source lines and all, for the test that asks for a sample: most of the time of a sweep.
core.extract_test_fn = lambda: None


def samples(info: OpInfo, dtype: torch.dtype, count: int) -> Iterator[tuple[int, SampleInput]]:
    """The first samples of an op that hold dense tensors of moderate size."""
    torch.manual_seed(zlib.crc32(info.full_name.encode()))
    random.seed(info.full_name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = itertools.islice(info.sample_inputs("cpu", dtype, requires_grad=False), count)
        for number, sample in enumerate(found):
            tensors = [x for x in tree_leaves((sample.input, sample.args, sample.kwargs)) if _is_tensor(x)]
            if tensors and all(x.layout == torch.strided and x.numel() <= LARGEST for x in tensors):
                yield number, sample


def _is_tensor(x: Any) -> bool:
    return isinstance(x, torch.Tensor)


class Layouts:
    """Draws layouts: each axis of a mesh cuts a dim that it divides, or none."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)
        sizes, names = self._random.choice(MESHES)
        self.mesh = ts.make_mesh(sizes, names, devices=ts.devices()[: math.prod(sizes)])
        self.drawn: list[str] = []

    def __call__(self, x: torch.Tensor) -> Any:
        cuts: list[list[str]] = [[] for _ in x.shape]
        names = list(self.mesh.axis_names)
        self._random.shuffle(names)
        for name in names:
            size = self.mesh.shape[name]
            fitting = [
                d
                for d, n in enumerate(x.shape)
                if n and n % (size * math.prod(self.mesh.shape[other] for other in cuts[d])) == 0
            ]
            if fitting and self._random.random() < 0.75:
                cuts[self._random.choice(fitting)].append(name)
        spec = ts.P(*(tuple(cut) or None for cut in cuts))
        self.drawn.append(f"{list(x.shape)} {spec}")
        return ts.device_put(x, ts.NamedSharding(self.mesh, spec))


def difference(got: Any, want: Any, *, loose: float = 1.0) -> str | None:
    """How two trees of results differ; None if they do not."""
    got, want = ts.device_get(got), ts.device_get(want)
    given, expected = tree_leaves(got), tree_leaves(want)
    if len(given) != len(expected):
        return f"{len(given)} results for {len(expected)}"
    for g, w in zip(given, expected, strict=True):
        if _is_tensor(w) != _is_tensor(g):
            return f"{type(g).__name__} for {type(w).__name__}"
        if not _is_tensor(w):
            if g != w and not (g != g and w != w):
                return f"{g!r} for {w!r}"
            continue
        if g.shape != w.shape or g.dtype != w.dtype:
            return f"{g.dtype}{list(g.shape)} for {w.dtype}{list(w.shape)}"
        far = _distance(g, w, loose)
        if far is not None:
            return far
    return None


def _distance(got: torch.Tensor, want: torch.Tensor, loose: float) -> str | None:
    if want.layout != torch.strided:
        got, want = got.to_dense(), want.to_dense()
    if not (want.is_floating_point() or want.is_complex()):
        return None if torch.equal(got, want) else f"{_short(got)} for {_short(want)}"
    finite = want.detach().abs().nan_to_num(0.0, 0.0, 0.0)
    scale = max(float(finite.max()), 1.0) if finite.numel() else 1.0
    half = want.dtype in (torch.float16, torch.bfloat16)
    tolerance = (2e-2 if half else 3e-4) * loose
    same = torch.allclose(got.detach(), want.detach(), rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    return None if same else f"{_short(got)} for {_short(want)}"


def _short(x: torch.Tensor) -> str:
    values = ", ".join(f"{v:.6g}" if isinstance(v, float) else str(v) for v in x.detach().flatten()[:6].tolist())
    return f"[{values}{', …' if x.numel() > 6 else ''}]"


def check(info: OpInfo, dtype: torch.dtype, number: int, sample: SampleInput, *, mapped: bool) -> list[Miss]:
    """Hold one sample against plain torch; the misses, none if it is right."""
    layouts = Layouts(f"{info.full_name} {dtype} {number}")
    given = (sample.input, sample.args, sample.kwargs)
    leaves, form = tree_flatten(tree_map_only(torch.Tensor, lambda x: x.detach().clone().contiguous(), given))
    places = [i for i, x in enumerate(leaves) if _is_tensor(x)]

    def run(*tensors: torch.Tensor) -> Any:
        full = list(leaves)
        for place, x in zip(places, tensors, strict=True):
            full[place] = x
        first, args, kwargs = tree_unflatten(full, form)
        return sample.output_process_fn_grad(info.op(first, *args, **kwargs))

    plain = [leaves[i] for i in places]
    try:
        want = run(*[x.clone() for x in plain])
        again = run(*[x.clone() for x in plain])
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        return []  # the database holds samples that torch itself refuses
    if difference(again, want) is not None:
        return []  # not a function of its operands: what torch.empty holds, or a draw
    placed = [layouts(x) for x in plain]
    where = f"{str(dtype).removeprefix('torch.')}, sample {number}, {'; '.join(layouts.drawn)}"
    found: list[Miss] = []

    def hold(mode: str, compute: Callable[[], Any], expected: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                difference_ = difference(compute(), expected)
        except Exception as error:  # whatever is raised, torch raised nothing
            ours = isinstance(error, TinyshardError)
            text = str(error).strip().splitlines()
            why = f"{type(error).__name__}: {' | '.join(text[:3])[:300]}"
            found.append(Miss("refused", mode, where, why + ("" if ours else " (not an error of tinyshard's)")))
        else:
            if difference_ is not None:
                found.append(Miss("wrong", mode, where, difference_))

    hold("eager", lambda: run(*placed), want)
    hold("jit", lambda: ts.jit(run)(*placed), want)
    if info.supports_autograd and (dtype.is_floating_point or dtype.is_complex):
        expected = _gradients(run, plain, lambda x: x)
        if expected is not None:
            hold("gradient", lambda: _gradients(run, placed, layouts), expected)
    if mapped:
        stacked = [torch.stack([x, x]) for x in plain]
        expected = _mapped(torch.func.vmap, run, stacked)
        if expected is not None:
            hold("vmap", lambda: ts.vmap(run)(*[layouts(x) for x in stacked]), expected)
    return found


def _gradients(run: Callable[..., Any], tensors: Sequence[Any], place: Callable[[torch.Tensor], Any]) -> Any:
    """Gradients by all floating operands, of the outputs multiplied by fixed numbers; None where torch has none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        floating = [x.is_floating_point() or x.is_complex() for x in tensors]
        taken = [x.detach().requires_grad_() if f else x for x, f in zip(tensors, floating, strict=True)]
        is_plain = not any(isinstance(x, ts.Array) for x in tensors)
        try:
            outs = [o for o in tree_leaves(run(*taken)) if _is_tensor(o) and o.requires_grad]
            weights = [_weights(o) for o in outs]
            wanted = [x for x in taken if x.requires_grad]
            if not outs or not wanted:
                return None if is_plain else []
            return torch.autograd.grad(outs, wanted, [place(w) for w in weights], allow_unused=True)
        except (RuntimeError, NotImplementedError):
            if is_plain:
                return None
            raise


def _weights(x: torch.Tensor) -> torch.Tensor:
    """Numbers that do not repeat, to multiply an output with."""
    count = x.numel()
    made = torch.cos(torch.arange(count, dtype=torch.float64) * 1.7 + 0.3).reshape(tuple(x.shape))
    return made.to(x.dtype)


def _mapped(vmap: Callable[..., Any], run: Callable[..., Any], stacked: Sequence[torch.Tensor]) -> Any:
    """What torch's vmap makes of it; None where it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return vmap(run)(*stacked)
        except Exception:  # torch's vmap refuses much, in many words
            return None
