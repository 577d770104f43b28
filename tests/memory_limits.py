"""Programs whose counted memory is compared with the model, on any runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from tests import transformer
from tinyshard import P

PLANS = ("dp", "dp x tp", "fsdp")


def counted(compiled: Any, arguments: tuple[Any, ...]) -> int:
    """The most that device 0 has held while it ran a compiled function, once, on fresh devices with a limit."""
    device = ts.devices()[0]
    held = device.memory_stats()["bytes_in_use"]
    assert held == compiled.memory_analysis().argument_nbytes
    results = compiled(*arguments)
    ts.block_until_ready(results)
    return device.memory_stats()["peak_bytes_in_use"]


def plan(layout: str) -> tuple[Any, tuple[Any, ...]]:
    """A step of the transformer under a layout, and its arguments."""
    mesh = ts.make_mesh((4, 2), ("d", "m"))
    _, params = transformer.network()
    specs = transformer.specs(layout, params)
    placed = {name: ts.device_put(x, ts.NamedSharding(mesh, specs[name])) for name, x in params.items()}
    batch = P("d") if layout == "dp x tp" else P(("d", "m"))
    shape = (transformer.BATCH, transformer.LENGTH + 1)
    words = torch.randint(transformer.VOCABULARY, shape, generator=torch.Generator().manual_seed(0))
    tokens = ts.device_put(words, ts.NamedSharding(mesh, batch))
    return transformer.compiled(layout, mesh), (placed, tokens)


def _layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.softmax(torch.tanh(x @ w) @ w.T, -1).sum(0)


def _loop(x: torch.Tensor, w: torch.Tensor) -> Any:
    def body(c: torch.Tensor, row: torch.Tensor) -> Any:
        c = torch.tanh(c + row @ w)
        return c, c * 2

    return ts.lax.scan(body, torch.zeros(w.shape[1]), x)


def _choice(x: torch.Tensor, w: torch.Tensor) -> Any:
    return ts.lax.cond(x.sum() > 0, lambda x, w: (x @ w).sin(), lambda x, w: (x - 1) @ (w + 1), x, w)


def _repeated(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return ts.lax.fori_loop(0, 5, lambda i, v: torch.sin(v) * 0.5 + (v @ w) @ w.T, x)


def _updated(x: torch.Tensor, w: torch.Tensor) -> Any:
    return x - 0.1 * (x @ (w @ w.T)), w.sum(1)


# function, specs of x [512, 256] and of w [256, 128], donated arguments
SMALLER: dict[str, tuple[Callable[..., Any], P, P, tuple[int, ...]]] = {
    "a layer, its batch sharded": (_layer, P("d"), P(), ()),
    "a layer, its matrix sharded": (_layer, P(), P("m", "d"), ()),
    "a scan": (_loop, P(None, "d"), P("d"), ()),
    "a cond": (_choice, P("d"), P(None, "m"), ()),
    "a loop": (_repeated, P(("d", "m")), P(), ()),
    "an update in donated memory": (_updated, P("d"), P(), (0,)),
}


def smaller(name: str) -> tuple[Any, tuple[Any, ...]]:
    """One of these, compiled, and its arguments."""
    mesh = ts.make_mesh((4, 2), ("d", "m"))
    function, *specs, donated = SMALLER[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (512, 256), (256, 128)
    arguments = tuple(
        ts.device_put(torch.randn(shape, generator=generator), ts.NamedSharding(mesh, spec))
        for shape, spec in zip(shapes, specs, strict=True)
    )
    return ts.jit(function, donate_argnums=donated).lower(*arguments).compile(), arguments
