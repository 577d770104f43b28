"""The primitive of branches. Its gradient, its tangent and its vmapped form are branches again.

gradient    each branch becomes its gradient, which computes the branch again
vmap        where the choice is mapped, all branches run, and a `where` chooses for each example
partition   one step; each branch is a program, and their results have the same layouts
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.compile import replay
from tinyshard.compile.replay import gradients, replayed
from tinyshard.compile.tracing import Traced, is_effective
from tinyshard.core import axis_names
from tinyshard.core.errors import ShardingError
from tinyshard.core.evaluate import evaluate
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.core.program import Value, values_in
from tinyshard.core.types import ShapedType
from tinyshard.primitives.branching import Branches, agreed, check_same, types_of
from tinyshard.primitives.varying import Varying
from tinyshard.transforms import bodies, partitioned_bodies
from tinyshard.transforms.vmap import vmap


def apply_branches(branches: Branches, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Call one of the branches within a trace, and within any transformation there.

    Args:
        branches: the branches.
        operands: the number of the branch, int32[], and the operands that all branches take.
    """
    for graph in BRANCHES.graphs(branches):
        operands = bodies.lifted_along(graph, operands)
    return BRANCHES.bind(branches, *operands)


def chosen(index: torch.Tensor, results: Sequence[Sequence[torch.Tensor]]) -> list[torch.Tensor]:
    """Choose the results of one branch from those of all; with an index for each example, choose for each."""

    def one(*several: torch.Tensor) -> torch.Tensor:
        x = several[-1]
        for number, other in reversed(list(enumerate(several[:-1]))):
            x = torch.where((index <= number).reshape([*index.shape, *[1] * (other.dim() - index.dim())]), other, x)
        return x

    return [one(*several) for several in zip(*results, strict=True)]


def _continuous(metas: Sequence[ShapedType]) -> list[int]:
    return [i for i, m in enumerate(metas) if m.dtype.is_floating_point or m.dtype.is_complex]


class BranchesPrimitive(FunctionPrimitive[Branches]):
    """Branches: the operands are the number of one, and the operands that all take."""

    name = "cond"
    asks = True

    def abstract(self, params: Branches, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: Branches, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        """On plain tensors, as in a checkpointed function outside of a trace: run the chosen branch."""
        chosen = min(max(int(xs[0]), 0), len(params.branches) - 1)
        return bodies.own(replayed(params.branches[chosen])(*xs[1:]), xs)

    def graphs(self, params: Branches) -> Sequence[torch.fx.GraphModule]:
        return [branch.graph for branch in params.branches]

    def has_effect(self, args: Sequence[Any]) -> bool:
        return any(map(is_effective, self.graphs(self.params(args))))

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return apply_branches(self.params(args), args[0])

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        branches = self.params(args).branches
        first, *others = (branch.shardings for branch in branches)
        if any(each != first for each in others):
            raise ShardingError(
                "the branches of a cond or switch give a result different shardings",
                got=" and ".join(str([at and at.spec for at in each]) for each in (first, *others)),
                rule="along Explicit axes how a value is cut is a part of its type, and all branches return one type",
                try_="ts.reshard of what a branch returns",
            )
        return bodies.layouts_of_results(branches[0])

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> list[frozenset[str]]:
        graphs = self.graphs(self.params(args))
        check_same("cond or switch", given[0], graphs)
        results = [evaluate(graph, Varying(), given[1:]) for graph in graphs]
        return [given[0].union(*several) for several in zip(*results, strict=True)]

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        inputs = [f"{x!r} of the graph around it" for x in args[0][1:]]
        nested = [printer.nested(branch, inputs, "") for branch in self.params(args).branches]
        first = f"{result} cond({', '.join(map(repr, args[0]))}), {len(nested)} branches:"
        return [first, *(line for lines in nested for line in lines)]

    # ---- derivatives --------------------------------------------------------------------------------------------

    def check_differentiable(self, params: Branches) -> None:
        for branch in params.branches:
            bodies.check_differentiable("cond", branch)

    def gradient(
        self,
        params: Branches,
        wanted: tuple[int, ...],
        xs: Sequence[torch.Tensor],
        cotangents: Sequence[torch.Tensor],
    ) -> Sequence[torch.Tensor]:
        taken, flowing = types_of(params.branches[0].inputs), _continuous(params.outputs)

        def of(function: bodies.Function) -> bodies.Function:
            count, numbers = len(taken), [i - 1 for i in wanted]
            return lambda *given: gradients(function, given[:count], numbers, flowing, given[count:])

        metas = [*taken, *(params.outputs[i] for i in flowing)]
        branches = bodies.derived(
            params.derived, ("gradient", wanted), lambda: _each(params, of, metas, bodies.traced_silently)
        )
        return apply_branches(branches, [*xs, *cotangents])

    def tangent(
        self, params: Branches, moved: tuple[int, ...], xs: Sequence[torch.Tensor], tangents: Sequence[torch.Tensor]
    ) -> Sequence[torch.Tensor]:
        taken, flowing = types_of(params.branches[0].inputs), _continuous(params.outputs)

        def of(function: bodies.Function) -> bodies.Function:
            count, numbers = len(taken), [i - 1 for i in moved]
            return lambda *given: replay.tangents(function, given[:count], numbers, flowing, given[count:])

        metas = [*taken, *(taken[i - 1] for i in moved)]
        branches = bodies.derived(
            params.derived, ("tangent", moved), lambda: _each(params, of, metas, bodies.traced_silently)
        )
        return apply_branches(branches, [*xs, *tangents])

    def batch(
        self, params: Branches, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        name = None if here is None else here.name
        in_axes = tuple(None if d is None else 0 for d in dims[1:])
        index, *fronted = (x if d is None else x.movedim(d, 0) for x, d in zip(xs, dims, strict=True))

        def of(function: bodies.Function) -> bodies.Function:
            return vmap(function, in_axes, axis_name=name, axis_size=size)

        if dims[0] is not None:
            outputs: Sequence[torch.Tensor] = chosen(index, [of(replayed(b))(*fronted) for b in params.branches])
        else:
            taken = zip(types_of(params.branches[0].inputs), in_axes, strict=True)
            metas = [m if d is None else replace(m, shape=(size, *m.shape)) for m, d in taken]
            key = ("vmap", in_axes, size, name)
            outputs = apply_branches(
                bodies.derived(params.derived, key, lambda: _each(params, of, metas)), [index, *fronted]
            )
        return outputs, [0] * len(outputs)

    # ---- programs -----------------------------------------------------------------------------------------------

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return partitioned_bodies.branches(partitioner, self.params(args), args[0])

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        params, builder = self.params(args), inliner.builder

        def emit() -> list[Value]:
            programs = tuple(bodies.inlined(inliner, branch) for branch in params.branches)
            index, *others = args[0]
            if any(program.communicates for program in programs):
                index = Value(agreed(builder, index.number))
            return [Value(n) for n in builder.emit("cond", ([index], others), {}, params.outputs, programs)]

        results: list[Value] = builder.once(("cond", args[1], tuple(values_in(args[0]))), emit)
        return results


BRANCHES = BranchesPrimitive()


def _each(
    params: Branches,
    of: Callable[[bodies.Function], bodies.Function],
    metas: Sequence[ShapedType],
    traced: Callable[..., Traced] = bodies.traced_body,
) -> Branches:
    """A value derived from each branch."""
    bodies_of_branches = (
        traced(of(replayed(b)), metas, custom_derivative=b.custom_derivative) for b in params.branches
    )
    return Branches(tuple(bodies_of_branches))
