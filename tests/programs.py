"""A dozen programs that several tests share: each a function and the layouts of its arguments.

tests/golden/NAME.txt holds the text of each. To write them anew after a wanted change, and read the difference:

    python -m tests.programs && git diff tests/golden
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import tinyshard as ts
from tinyshard import P

GOLDEN = Path(__file__).parent / "golden"


@dataclass(frozen=True)
class Case:
    """A function, and for each argument its shape and spec on a mesh (4, 2) named a, b."""

    function: Callable[..., Any]
    arguments: tuple[tuple[tuple[int, ...], P | None], ...]

    def described(self, mesh: ts.Mesh) -> list[ts.ShapeDtypeStruct]:
        """The arguments without values; also on an abstract mesh."""
        return [
            ts.ShapeDtypeStruct(shape, torch.float32, sharding=None if spec is None else ts.NamedSharding(mesh, spec))
            for shape, spec in self.arguments
        ]

    def values(self) -> list[torch.Tensor]:
        """Host values for the arguments."""
        generator = torch.Generator().manual_seed(0)
        return [torch.randn(shape, generator=generator) for shape, _ in self.arguments]

    def placed(self, mesh: ts.Mesh) -> list[torch.Tensor]:
        """The values on devices, where a spec says so."""
        return [
            x if spec is None else ts.device_put(x, ts.NamedSharding(mesh, spec))
            for x, (_, spec) in zip(self.values(), self.arguments, strict=True)
        ]


def two_layers(w1: torch.Tensor, w2: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Column-parallel then row-parallel."""
    return torch.maximum(x @ w1, torch.zeros(())) @ w2


def loss(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Of one layer."""
    return ((torch.tanh(x @ w + b) - y) ** 2).sum(-1).mean()


def step(w: torch.Tensor, b: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> Any:
    """One step of gradient descent."""
    value, (dw, db) = ts.value_and_grad(loss, argnums=(0, 1))(w, b, x, y)
    return value, w - 0.1 * dw, b - 0.1 * db


def _constrained(x: torch.Tensor, *spec: Any) -> Any:
    return ts.lax.with_sharding_constraint(x, P(*spec))


CASES = {
    "sine": Case(torch.sin, (((8, 4), P("a", "b")),)),
    "dot_rows_by_columns": Case(torch.matmul, (((8, 8), P("a")), ((8, 8), P(None, "b")))),
    "dot_over_sharded_dim": Case(torch.matmul, (((8, 8), P(None, "a")), ((8, 8), P("a")))),
    "dot_scattered": Case(lambda x, y: _constrained(x @ y, "a"), (((8, 8), P(None, "a")), ((8, 8), P("a")))),
    "sum_over_two_axes": Case(lambda x: x.sum(), (((8, 4), P("a", "b")),)),
    "maximum_of_rows": Case(lambda x: x.amax(1), (((8, 4), P("a", "b")),)),
    "softmax": Case(lambda x: torch.softmax(x, 1), (((8, 4), P("a", "b")),)),
    "rows_to_columns": Case(lambda x: _constrained(x * 2, None, "a"), (((8, 8), P("a")),)),
    "replicated": Case(lambda x: _constrained(x + 1), (((8, 8), P("a", "b")),)),
    "swapped": Case(lambda x: _constrained(x + 1, "b", "a"), (((8, 8), P("a", "b")),)),
    "tensor_parallel_pair": Case(two_layers, (((4, 8), P(None, "b")), ((8, 4), P("b")), ((8, 4), P("a")))),
    "data_parallel_step": Case(step, (((4, 6), P()), ((6,), P()), ((8, 4), P(("a", "b"))), ((8, 6), P(("a", "b"))))),
    "uncommitted_operands": Case(lambda x, y: x * y + y, (((8, 4), P("a", "b")), ((8, 4), None))),
}


def texts(case: Case, mesh: ts.Mesh) -> str:
    """The graph, the program and its cost."""
    with ts.set_mesh(mesh):
        lowered = ts.jit(case.function).lower(*case.described(mesh))
        compiled = lowered.compile()
    return "\n\n".join([lowered.as_text(), compiled.as_text(), str(compiled.cost_analysis())]) + "\n"


def main() -> None:
    """Write tests/golden/ anew."""
    mesh = ts.AbstractMesh((4, 2), ("a", "b"))
    GOLDEN.mkdir(exist_ok=True)
    for old in GOLDEN.glob("*.txt"):
        old.unlink()
    for name, case in CASES.items():
        (GOLDEN / f"{name}.txt").write_text(texts(case, mesh))


if __name__ == "__main__":
    main()
