"""A value under a name, by which a policy of `checkpoint` finds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.core.primitive import Primitive
from tinyshard.core.types import ShapedType


class Name(Primitive[str]):
    """The identity, with a name."""

    name = "checkpoint_name"

    def abstract(self, params: str, *xs: ShapedType) -> Sequence[ShapedType]:
        return xs

    def run(self, params: str, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        return [xs[0].clone()]

    def transpose(self, ctx: Any, *gradients: torch.Tensor) -> Sequence[torch.Tensor]:
        return gradients

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor]:
        return self.bind(ctx.params, *(dx for dx in tangents if dx is not None))

    def batch(
        self, params: str, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        return self.bind(params, *xs), dims

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return args[0]

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        return [f"{result} {self.name}({args[0]!r}, {self.params(args)!r})"]


NAME = Name()
