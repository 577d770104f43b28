"""JAX's side: the same cases on eight forced CPU devices."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from benchmarks.cases import BATCH, COLLECTIVES, DEVICES, LAYER, LAYER_SHAPES, LAYERS, TRAININGS

os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import jax_training, transformer
from benchmarks.serve import Generator, serve, timed

N = DEVICES


def _mesh(shape: tuple[int, ...], names: tuple[str, ...]) -> Any:
    return jax.sharding.Mesh(np.array(jax.devices()).reshape(shape), names)


def _rows() -> Any:
    return NamedSharding(_mesh((N,), ("i",)), P("i"))


def _grid(*spec: Any) -> Any:
    return NamedSharding(_mesh((4, 2), ("a", "b")), P(*spec))


def _random(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random(shape, np.float32)


def eager() -> Generator:
    x = jax.device_put(np.zeros(N, np.float32), _rows())
    for i in itertools.count():
        seconds, y = timed(lambda: (x + 1).block_until_ready())
        if i % 16 == 0:
            assert y.tolist() == [float(i + 1)] * N
        x = y
        yield seconds


def eager_500() -> Generator:
    x = jax.device_put(np.zeros(N, np.float32), _rows())

    def call() -> Any:
        y = x
        for _ in range(500):
            y = y + 1
        return y.block_until_ready()

    for i in itertools.count(1):
        seconds, x = timed(call)
        assert x.tolist() == [500.0 * i] * N
        yield seconds


def jit() -> Generator:
    x = jax.device_put(np.zeros(N, np.float32), _rows())
    f = jax.jit(lambda x: x * 2 + 1)
    expected = 0.0
    for i in itertools.count():
        seconds, x = timed(lambda: f(x).block_until_ready())
        expected = expected * 2 + 1
        if i % 16 == 15:
            assert x.tolist() == [expected] * N
            x, expected = jax.device_put(np.zeros(N, np.float32), _rows()), 0.0
        yield seconds


# the function of a device's operand, its shape for n floats, the spec of the result, and what device 3 gets of all
_CALLED: dict[str, tuple[Any, Callable[[int], tuple[int, ...]], Any, Callable[[np.ndarray], np.ndarray]]] = {
    "psum": (lambda x: jax.lax.psum(x, "i"), lambda n: (n,), P(), lambda a: a.sum(0)),
    "all_gather": (
        lambda x: jax.lax.all_gather(x, "i", tiled=True), lambda n: (n,), P(), lambda a: a.reshape(-1),
    ),
    "psum_scatter": (
        lambda x: jax.lax.psum_scatter(x, "i", tiled=True), lambda n: (n,), P("i"),
        lambda a: a.sum(0).reshape(N, -1)[3],
    ),
    "all_to_all": (
        lambda x: jax.lax.all_to_all(x, "i", 1, 0, tiled=True), lambda n: (N, n // N), P("i"),
        lambda a: np.concatenate([np.split(block, N, 1)[3] for block in a]),
    ),
    "ppermute": (
        lambda x: jax.lax.ppermute(x, "i", [(i, (i + 1) % N) for i in range(N)]), lambda n: (n,), P("i"),
        lambda a: a[2],
    ),
}  # fmt: skip


def collective(name: str, nbytes: int) -> Generator:
    """shard_map of one collective under jit."""
    function, shape_of, spec, wanted_of = _CALLED[name]
    shape = shape_of(nbytes // 4)
    mesh = _mesh((N,), ("i",))
    f = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=P("i"), out_specs=spec, check_vma=False))
    hosts = [_random(N, *shape, seed=k) for k in range(2)]
    wanted = [wanted_of(h) for h in hosts]
    xs = [jax.device_put(h.reshape(N * shape[0], *shape[1:]), NamedSharding(mesh, P("i"))) for h in hosts]
    for i in itertools.count():
        seconds, y = timed(lambda i=i: f(xs[i % 2]).block_until_ready())
        got = np.asarray(y.addressable_shards[3].data)
        np.testing.assert_allclose(got, wanted[i % 2], rtol=1e-5, atol=1e-5)
        del y, got
        yield seconds


def device_put() -> Generator:
    host, place = _random(8192, 8192), _grid("a", "b")
    for i in itertools.count():
        host[0, 0] = i
        seconds, x = timed(lambda: jax.device_put(host, place).block_until_ready())
        assert x[0, 0].item() == i and x[8191, 8191].item() == host[8191, 8191]
        del x
        yield seconds


def device_get() -> Generator:
    host = _random(8192, 8192)
    x = jax.device_put(host, _grid("a", "b"))
    for i in itertools.count():
        y = (x + i).block_until_ready()
        seconds, back = timed(lambda y=y: np.asarray(y))
        assert back[8191, 1] == host[8191, 1] + np.float32(i)
        del back, y
        yield seconds


def reshard() -> Generator:
    host, there = _random(8192, 8192), _grid("b", "a")
    x = jax.device_put(host, _grid("a", "b"))
    for i in itertools.count():
        y = (x + i).block_until_ready()
        seconds, z = timed(lambda y=y: jax.device_put(y, there).block_until_ready())
        assert z[8000, 1].item() == host[8000, 1] + np.float32(i)
        del z, y
        yield seconds


def sin() -> Generator:
    host = _random(8192, 8192)
    xs = [jax.device_put(host * k, _grid("a", "b")) for k in (1, 2)]
    for i in itertools.count():
        seconds, y = timed(lambda i=i: jnp.sin(xs[i % 2]).block_until_ready())
        assert abs(y[77, 8000].item() - np.sin(host[77, 8000] * (1 + i % 2))) < 1e-6
        del y
        yield seconds


def dot(dtype: Any, tolerance: float) -> Generator:
    host = jnp.asarray(_random(2048, 2048), dtype)
    xs = [jax.device_put(host + k, _grid("a", None)) for k in (0, 1)]
    y = jax.device_put(host, _grid(None, "b"))
    column = np.asarray(host, np.float64)[:, 2000]
    wanted = [np.dot(np.asarray(host + k, np.float64)[5], column) for k in (0, 1)]
    for i in itertools.count():
        seconds, z = timed(lambda i=i: (xs[i % 2] @ y).block_until_ready())
        assert abs(float(z[5, 2000]) / wanted[i % 2] - 1) < tolerance
        del z
        yield seconds


def drawn(name: str) -> Generator:
    """Numbers in the shape (30 M,), cut in eight."""
    draw = jax.jit(lambda key: getattr(jax.random, name)(key, (30_000_000,)), out_shardings=_rows())
    for i in itertools.count():
        key = jax.random.key(i)
        seconds, x = timed(lambda key=key: draw(key).block_until_ready())
        assert abs(x.mean().item() - {"uniform": 0.5, "normal": 0.0}[name]) < 1e-3
        del x
        yield seconds


def vmap_dot() -> Generator:
    host = _random(10_000_000, 3)
    xs = [jax.device_put(host + k, _rows()) for k in (0, 1)]
    y = jax.device_put(host, _rows())
    dots = jax.vmap(jnp.dot)
    wanted = [np.dot(host[9_000_000] + k, host[9_000_000]) for k in (0, 1)]
    for i in itertools.count():
        seconds, z = timed(lambda i=i: dots(xs[i % 2], y).block_until_ready())
        assert abs(z[9_000_000].item() - wanted[i % 2]) < 1e-5
        del z
        yield seconds


def _loss(params: Any, batch: Any) -> Any:
    inputs, targets = batch
    for weight, bias in params:
        outputs = inputs @ weight + bias
        inputs = jnp.maximum(outputs, 0)
    return ((outputs - targets) ** 2).sum(-1).mean()


def _step(params: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(_loss)(params, batch)
    return value, [(w - 1e-5 * dw, b - 1e-5 * db) for (w, b), (dw, db) in zip(params, grads, strict=True)]


def _steps(step: Callable[..., Any], params: Any, data: Any, wanted: float) -> Generator:
    """Steps of training, one a sample, the first traced and compiled; the first loss is checked."""
    f = jax.jit(step)
    jax.block_until_ready((params, data))
    seconds, (loss, _) = timed(lambda: jax.block_until_ready(f(params, data)))
    assert abs(float(loss) - wanted) < 1e-2
    yield seconds
    for _ in itertools.count():
        seconds, (_, params) = timed(lambda: jax.block_until_ready(f(params, data)))
        yield seconds


def training(layout: str) -> Generator:
    normal = np.random.default_rng(0).standard_normal
    params = [
        ((normal((a, b)) / a**0.5).astype(np.float32), np.zeros(b, np.float32)) for a, b in itertools.pairwise(LAYERS)
    ]
    batch = (normal((BATCH, LAYERS[0])).astype(np.float32), normal((BATCH, LAYERS[-1])).astype(np.float32))
    wanted = float(_step(params, batch)[0])
    if layout == "8x1":
        mesh = _mesh((N,), ("i",))
        placed = jax.device_put(params, NamedSharding(mesh, P()))
        data = jax.device_put(batch, NamedSharding(mesh, P("i")))
    else:
        places = [(P(), P()), (P(None, "b"), P("b")), (P("b", None), P()), (P(), P())]
        placed = [
            (jax.device_put(w, _grid(*p)), jax.device_put(b, _grid(*q)))
            for (w, b), (p, q) in zip(params, places, strict=True)
        ]
        data = jax.device_put(batch, _grid("a"))
    yield from _steps(_step, placed, data, wanted)


def _attend_and_feed(params: Any, x: Any) -> Any:
    _, positions, width, heads = LAYER

    def split(y: Any) -> Any:
        return y.reshape(-1, positions, heads, width // heads).swapaxes(1, 2)

    q, k, v = (split(x @ params[name]) for name in ("q", "k", "v"))
    weights = jax.nn.softmax(q @ k.swapaxes(-1, -2) / (width // heads) ** 0.5, -1)
    x = x + (weights @ v).swapaxes(1, 2).reshape(-1, positions, width) @ params["o"]
    return x + jnp.maximum(x @ params["up"], 0) @ params["down"]


def _layer_step(params: Any, x: Any) -> Any:
    value, grads = jax.value_and_grad(lambda p: (_attend_and_feed(p, x) ** 2).mean())(params)
    return value, {name: w - 1e-3 * grads[name] for name, w in params.items()}


def layer() -> Generator:
    examples, positions, width, _ = LAYER
    normal = np.random.default_rng(0).standard_normal
    params = {name: (normal((a, b)) / a**0.5).astype(np.float32) for name, (a, b) in LAYER_SHAPES.items()}
    x = normal((examples, positions, width)).astype(np.float32)
    wanted = float(_layer_step(params, x)[0])
    mesh = _mesh((N,), ("i",))
    placed = jax.device_put(params, NamedSharding(mesh, P()))
    yield from _steps(_layer_step, placed, jax.device_put(x, NamedSharding(mesh, P("i"))), wanted)


def trained(plan: str) -> Generator:
    """Steps of a transformer's training, of which the first is traced and compiled."""
    training = jax_training.Training(plan)
    for number in itertools.count():
        data = jax.device_put(transformer.tokens(number).astype(np.int32), training.data)
        arguments = jax.block_until_ready((training.params, training.state, data))
        seconds, results = timed(lambda arguments=arguments: jax.block_until_ready(training.step(*arguments)))
        loss, training.params, training.state = results
        transformer.check(number, loss.item())
        yield seconds


CASES: dict[str, Callable[[], Generator]] = {
    **{f.__name__: f for f in (eager, eager_500, jit, device_put, device_get, reshard, sin, vmap_dot)},
    **{name: partial(collective, *of) for name, of in COLLECTIVES.items()},
    "dot": partial(dot, jnp.float32, 5e-5),
    "dot_bf16": partial(dot, jnp.bfloat16, 1e-2),
    "uniform": partial(drawn, "uniform"),
    "normal": partial(drawn, "normal"),
    "layer": layer,
    "step_8x1": partial(training, "8x1"),
    "step_4x2": partial(training, "4x2"),
    **{name: partial(trained, plan) for name, plan in TRAININGS.items()},
}

if __name__ == "__main__":
    serve(CASES)
