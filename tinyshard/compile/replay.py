"""A graph run again as a function, to be vmapped or differentiated by some inputs; primitives are bound again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.compile.tracing import Traced
from tinyshard.core.evaluate import Interpreter, evaluate, silenced
from tinyshard.core.primitive import primitive_of

Function = Callable[..., Sequence[torch.Tensor]]

aten = torch.ops.aten

# ops without a derivative, which torch calls where no gradient is needed -> the same op with a derivative
_WITH_DERIVATIVE = {aten._embedding_bag_forward_only.default: aten._embedding_bag.default}
_FLASH = aten._scaled_dot_product_flash_attention_for_cpu.default


class _Replay(Interpreter):
    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        op: Any = node.target
        primitive = primitive_of(op)
        if primitive is not None:
            return primitive.replay(args, kwargs)
        if op is aten.detach.default:  # the user's: a gradient stops there
            return args[0].detach()
        if op is _FLASH and not _is_second_used(node):  # no derivative with respect to its mask: torch chooses again
            named = dict(zip(("query", "key", "value", "dropout_p", "is_causal"), args, strict=False))
            return torch.nn.functional.scaled_dot_product_attention(**named, **kwargs), None
        if op is aten.copy.default:  # torch has no derivative of it
            return args[1].to(args[0].dtype).expand_as(args[0]).clone()
        if op is aten.slice_scatter.default:  # torch's vmap of it takes bounds as they are: [-3:] and [1:] fail
            args = (args[0], args[1].to(args[0].dtype), *_within(args[0], *args[2:]))
            if args[0].is_complex():  # torch has no derivative of it
                x, part = (torch.view_as_real(x.resolve_conj()) for x in args[:2])
                return torch.view_as_complex(op(x, part, args[2] % args[0].dim(), *args[3:]))
        if op is aten.select_scatter.default:  # torch's vmap of it has a wrong gradient, and for complex x none
            return _with_part(*args)
        return _WITH_DERIVATIVE.get(op, op)(*args, **kwargs)


def _with_part(x: torch.Tensor, part: torch.Tensor, dim: int, index: int) -> torch.Tensor:
    """x with another tensor in place of `x.select(dim, index)`."""
    dim, size = dim % x.dim(), x.shape[dim]
    is_there = torch.arange(size) == index % size
    return torch.where(is_there.reshape([size, *[1] * (x.dim() - dim - 1)]), part.to(x.dtype).unsqueeze(dim), x)


def _within(x: torch.Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Any:
    """The dim and bounds of a slice of x, as numbers from 0 to the size of the dim."""
    first, last, step = slice(start, end, step).indices(x.shape[dim])
    return dim, first, max(first, last), step


def _is_second_used(node: torch.fx.Node) -> bool:
    """Whether an op uses the second result of this one."""
    return any(user.args[1] == 1 and user.users for user in node.users)


def replayed(traced: Traced) -> Function:
    """A graph as a function of all its inputs, to be transformed; the graph has autocast's conversions already."""

    def function(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
        with torch._C._DisableAutocast():
            return tuple(evaluate(traced.graph, _Replay(), xs))

    return function


def replayed_with_values(traced: Traced, is_chosen: Callable[[torch.fx.Node], bool]) -> Function:
    """As `replayed`; after the results it returns the values of the chosen nodes, in their order."""

    def function(*xs: torch.Tensor) -> Sequence[torch.Tensor]:
        walk = _Choosing(is_chosen)
        with torch._C._DisableAutocast():
            return (*evaluate(traced.graph, walk, xs), *walk.values)

    return function


class _Choosing(_Replay):
    """A replay that keeps the values of some nodes."""

    def __init__(self, is_chosen: Callable[[torch.fx.Node], bool]) -> None:
        self._is_chosen = is_chosen
        self.values: list[torch.Tensor] = []

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        result = super().call(node, args, kwargs)
        if isinstance(result, torch.Tensor) and self._is_chosen(node):
            self.values.append(result)
        return result

    def item(self, node: torch.fx.Node, several: Any, position: int) -> Any:
        result = super().item(node, several, position)
        if isinstance(result, torch.Tensor) and self._is_chosen(node.all_input_nodes[0]):
            self.values.append(result)
        return result


def gradients(
    function: Function,
    inputs: Sequence[torch.Tensor],
    wanted: Sequence[int],
    results: Sequence[int],
    cotangents: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """The gradients with respect to the `wanted` inputs, from those of some `results`, all by their numbers."""
    with silenced():
        pull: Any = torch.func.vjp(_of_some(function, inputs, wanted, results), *(inputs[i] for i in wanted))[1]
        return tuple(pull(tuple(cotangents)))


def tangents(
    function: Function,
    inputs: Sequence[torch.Tensor],
    moved: Sequence[int],
    results: Sequence[int],
    given: Sequence[torch.Tensor],
) -> Sequence[torch.Tensor]:
    """The tangents of some `results`, from those `given` of the `moved` inputs, all by their numbers."""
    alone, primals = _of_some(function, inputs, moved, results), tuple(inputs[i] for i in moved)
    with silenced():
        return tuple(torch.func.jvp(alone, primals, tuple(given))[1])


def _of_some(
    function: Function, inputs: Sequence[torch.Tensor], numbers: Sequence[int], results: Sequence[int]
) -> Function:
    """The graph as a function of some inputs, with all other inputs fixed, that returns some of its results."""

    def alone(*chosen: torch.Tensor) -> Sequence[torch.Tensor]:
        xs = list(inputs)
        for i, x in zip(numbers, chosen, strict=True):
            xs[i] = x
        outputs = function(*xs)
        return tuple(outputs[i] for i in results)

    return alone
