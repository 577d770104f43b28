"""tinyshard's side."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import tinyshard as ts
from benchmarks import transformer
from benchmarks.cases import BATCH, COLLECTIVES, DEVICES, LAYER, LAYER_SHAPES, LAYERS, TRAININGS
from benchmarks.network import LAYOUTS, step
from benchmarks.serve import Generator, serve, timed
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime import lifecycle

N = DEVICES


def _rows() -> ts.NamedSharding:
    return ts.NamedSharding(ts.make_mesh((N,), ("i",)), ts.P("i"))


def _grid(*spec: Any) -> ts.NamedSharding:
    return ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), ts.P(*spec))


def eager() -> Generator:
    x = ts.device_put(torch.zeros(N), _rows())
    for i in itertools.count():
        seconds, y = timed(lambda: (x + 1).block_until_ready())
        if i % 16 == 0:
            assert y.tolist() == [float(i + 1)] * N
        x = y
        yield seconds


def eager_500() -> Generator:
    x = ts.device_put(torch.zeros(N), _rows())

    def call() -> Any:
        y: Any = x
        for _ in range(500):
            y = y + 1
        return y.block_until_ready()

    for i in itertools.count(1):
        seconds, x = timed(call)
        assert x.tolist() == [500.0 * i] * N
        yield seconds


def jit() -> Generator:
    x = ts.device_put(torch.zeros(N), _rows())
    f = ts.jit(lambda x: x * 2 + 1)
    expected = 0.0
    for i in itertools.count():
        seconds, x = timed(lambda: f(x).block_until_ready())
        expected = expected * 2 + 1
        if i % 16 == 15:
            assert x.tolist() == [expected] * N
            x, expected = ts.device_put(torch.zeros(N), _rows()), 0.0
        yield seconds


# our name and parameters, the shape of a device's operand of n floats, and the spec of the result
_CALLED: dict[str, tuple[str, dict[str, Any], Callable[[int], tuple[int, ...]]]] = {
    "psum": ("all_reduce", {"op": "sum"}, lambda n: (n,)),
    "all_gather": ("all_gather", {"dim": 0}, lambda n: (n,)),
    "psum_scatter": ("reduce_scatter", {"dim": 0, "op": "sum"}, lambda n: (n,)),
    "all_to_all": ("all_to_all", {"split": 1, "join": 0}, lambda n: (N, n // N)),
    "ppermute": ("collective_permute", {"pairs": tuple((i, (i + 1) % N) for i in range(N))}, lambda n: (n,)),
}


def collective(name: str, nbytes: int) -> Generator:
    """A program of nothing but one collective, on shards that were put there."""
    from tinyshard.core.collectives import COLLECTIVES as TABLE

    op, params, shape_of = _CALLED[name]
    shape = shape_of(nbytes // 4)
    meta = ShapedType(shape, torch.float32)
    builder = Builder(tuple(range(N)), (N,))
    builder.input(meta)
    made = builder.emit(op, (Value(0),), {"axes": (0,), **params}, [TABLE[op].meta(meta, N, params)])
    program = builder.finish(made)
    pool = lifecycle.current()
    generator = torch.Generator().manual_seed(1)
    hosts = [[torch.rand(shape, generator=generator) for _ in range(N)] for _ in range(2)]
    form = TABLE[op].form
    assert form is not None
    wanted = [form(torch.stack(h), **params)[3].numpy() for h in hosts]
    # as device_put does it: where the devices can see it
    inputs = [pool.put({d: pool.snapshot(x) for d, x in enumerate(h)}) for h in hosts]
    for i in itertools.count():

        def call(x: Any) -> Any:
            (y,) = pool.run(program, [x])
            pool.wait(y, range(N))
            return y

        seconds, y = timed(partial(call, inputs[i % 2]))
        got = pool.fetch(y, [3])[3].numpy()
        # by NumPy, as JAX's side: after torch's own, its OpenMP threads hold a core for 1 to 3 ms, waiting for more
        np.testing.assert_allclose(got, wanted[i % 2], rtol=1e-5, atol=1e-5)
        del y, got
        yield seconds


def device_put() -> Generator:
    host, place = torch.rand(8192, 8192), _grid("a", "b")
    for i in itertools.count():
        host[0, 0] = i
        seconds, x = timed(lambda: ts.device_put(host, place).block_until_ready())
        assert x[0, 0].item() == i and x[8191, 8191].item() == host[8191, 8191]
        del x
        yield seconds


def device_get() -> Generator:
    host = torch.rand(8192, 8192)
    x = ts.device_put(host, _grid("a", "b"))
    for i in itertools.count():
        y = (x + i).block_until_ready()
        seconds, back = timed(lambda y=y: y.numpy())
        assert back[8191, 1] == host[8191, 1] + i
        del back, y
        yield seconds


def reshard() -> Generator:
    host, there = torch.rand(8192, 8192), _grid("b", "a")
    x = ts.device_put(host, _grid("a", "b"))
    for i in itertools.count():
        y = (x + i).block_until_ready()
        seconds, z = timed(lambda y=y: ts.device_put(y, there).block_until_ready())
        assert z[8000, 1].item() == host[8000, 1] + i
        del z, y
        yield seconds


def sin() -> Generator:
    host = torch.rand(8192, 8192)
    xs = [ts.device_put(host * k, _grid("a", "b")) for k in (1, 2)]
    for i in itertools.count():
        seconds, y = timed(lambda i=i: torch.sin(xs[i % 2]).block_until_ready())
        assert abs(y[77, 8000].item() - torch.sin(host[77, 8000] * (1 + i % 2)).item()) < 1e-6
        del y
        yield seconds


def dot(dtype: torch.dtype, tolerance: float) -> Generator:
    host = torch.rand(2048, 2048).to(dtype)
    xs = [ts.device_put(host + k, _grid("a", None)) for k in (0, 1)]
    y = ts.device_put(host, _grid(None, "b"))
    wanted = [((host + k)[5].double() @ host[:, 2000].double()).item() for k in (0, 1)]
    for i in itertools.count():
        seconds, z = timed(lambda i=i: (xs[i % 2] @ y).block_until_ready())
        assert abs(z[5, 2000].item() / wanted[i % 2] - 1) < tolerance
        del z
        yield seconds


def drawn(name: str) -> Generator:
    """Numbers in the shape (30 M,), cut in eight."""
    draw = ts.jit(lambda key: getattr(ts.random, name)(key, (30_000_000,)), out_shardings=_rows())
    for i in itertools.count():
        key = ts.random.key(i)
        seconds, x = timed(lambda key=key: draw(key).block_until_ready())
        assert abs(x.mean().item() - {"uniform": 0.5, "normal": 0.0}[name]) < 1e-3
        del x
        yield seconds


def vmap_dot() -> Generator:
    host = torch.rand(10_000_000, 3)
    xs = [ts.device_put(host + k, _rows()) for k in (0, 1)]
    y = ts.device_put(host, _rows())
    dots = torch.func.vmap(torch.dot)
    wanted = [torch.dot(host[9_000_000] + k, host[9_000_000]).item() for k in (0, 1)]
    for i in itertools.count():
        seconds, z = timed(lambda i=i: dots(xs[i % 2], y).block_until_ready())
        assert abs(z[9_000_000].item() - wanted[i % 2]) < 1e-5
        del z
        yield seconds


def _steps(step: Callable[..., Any], params: Any, data: Any, wanted: float) -> Generator:
    """Steps of training, one a sample, the first traced and compiled; the first loss is checked."""
    f = ts.jit(step)
    ts.block_until_ready((params, data))
    seconds, (loss, _) = timed(lambda: ts.block_until_ready(f(params, data)))
    assert abs(loss.item() - wanted) < 1e-3
    yield seconds
    for _ in itertools.count():
        seconds, (_, params) = timed(lambda: ts.block_until_ready(f(params, data)))
        yield seconds


def training(layout: str) -> Generator:
    generator = torch.Generator().manual_seed(0)
    params = [(torch.randn(a, b, generator=generator) / a**0.5, torch.zeros(b)) for a, b in itertools.pairwise(LAYERS)]
    batch = (torch.randn(BATCH, LAYERS[0], generator=generator), torch.randn(BATCH, LAYERS[-1], generator=generator))
    wanted = step(params, batch)[0].item()
    placed, data = LAYOUTS[layout](params, batch)
    yield from _steps(step, placed, data, wanted)


def _attend_and_feed(params: dict[str, Any], x: Any) -> Any:
    """A transformer layer: attention with heads, then an MLP, each added to what it is given."""
    _, positions, width, heads = LAYER

    def split(y: Any) -> Any:
        return y.reshape(-1, positions, heads, width // heads).transpose(1, 2)

    q, k, v = (split(x @ params[name]) for name in ("q", "k", "v"))
    weights = torch.softmax(q @ k.transpose(-1, -2) / (width // heads) ** 0.5, -1)
    x = x + (weights @ v).transpose(1, 2).reshape(-1, positions, width) @ params["o"]
    return x + torch.relu(x @ params["up"]) @ params["down"]


def _layer_step(params: dict[str, Any], x: Any) -> Any:
    value, grads = ts.value_and_grad(lambda p: (_attend_and_feed(p, x) ** 2).mean())(params)
    return value, {name: w - 1e-3 * grads[name] for name, w in params.items()}


def layer() -> Generator:
    examples, positions, width, _ = LAYER
    generator = torch.Generator().manual_seed(0)
    params = {name: torch.randn(a, b, generator=generator) / a**0.5 for name, (a, b) in LAYER_SHAPES.items()}
    x = torch.randn(examples, positions, width, generator=generator)
    wanted = _layer_step(params, x)[0].item()
    place = _rows()
    placed = ts.device_put(params, ts.NamedSharding(place.mesh, ts.P()))
    yield from _steps(_layer_step, placed, ts.device_put(x, place), wanted)


def trained(plan: str) -> Generator:
    """Steps of a transformer's training, of which the first is traced and compiled."""
    os.environ["TINYSHARD_TESTS"] = "whole"  # the sizes of tests.training are those of benchmarks.transformer then
    from tests.training import Training

    training = Training(plan, params={name: torch.from_numpy(p) for name, p in transformer.parameters().items()})
    place = ts.NamedSharding(training.mesh, training.plan.data)
    for number in itertools.count():
        data = ts.device_put(torch.from_numpy(transformer.tokens(number)), place)
        arguments = ts.block_until_ready((training.params, training.state, data))
        seconds, results = timed(lambda arguments=arguments: ts.block_until_ready(training.step(*arguments)))
        loss, training.params, training.state = results
        transformer.check(number, loss.item())
        yield seconds


def again() -> Generator:
    """Devices afresh, as after a death."""

    def start() -> float:
        ts.init(devices=N, runtime="process")
        return float((ts.device_put(torch.ones(N), _rows()) + 1).sum())

    for _ in itertools.count():
        seconds, total = timed(start)
        assert total == 2 * N
        yield seconds


CASES: dict[str, Callable[[], Generator]] = {
    **{f.__name__: f for f in (eager, eager_500, jit, device_put, device_get, reshard, sin, vmap_dot)},
    **{name: partial(collective, *of) for name, of in COLLECTIVES.items()},
    "dot": partial(dot, torch.float32, 5e-5),
    "dot_bf16": partial(dot, torch.bfloat16, 1e-2),
    "again": again,
    "layer": layer,
    "step_8x1": partial(training, "8x1"),
    "step_4x2": partial(training, "4x2"),
    **{name: partial(trained, plan) for name, plan in TRAININGS.items()},
}
if hasattr(ts, "random"):
    CASES.update(uniform=partial(drawn, "uniform"), normal=partial(drawn, "normal"))

if __name__ == "__main__":
    runtime = os.environ.get("BENCHMARK_RUNTIME", "process")
    ts.init(devices=N, runtime=runtime, collectives=sys.argv[1] if len(sys.argv) > 1 else None)
    serve(CASES)
