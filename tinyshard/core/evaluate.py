"""The one walk over a traced graph: an interpreter computes the value of an input, a literal and an op.

The partitioner, the inliner, the replay of a graph that is differentiated and the printer are interpreters of
this walk. It is `torch.fx.Interpreter` without the execution of ops.

A derivative that recomputes a function is silent: the function's effects, as its prints, were performed when it ran.
A graph that is traced in a silent block stays silent: a later walk over it also skips the effects of its loops.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch.fx._lazy_graph_module import _LazyGraphModule, _use_lazy_graph_module
from torch.fx.node import map_arg

from tinyshard.core.named_scopes import within
from tinyshard.core.trace_thread import raise_interruption

# A graph is walked here, not executed: torch writes and compiles its source when somebody asks for it, not before.
GraphModule = _LazyGraphModule

_is_silent: ContextVar[bool] = ContextVar("tinyshard_is_silent", default=False)


def without_source() -> contextlib.AbstractContextManager[None]:
    """Graphs that torch's tracer makes here have no source until somebody asks for it."""
    return _use_lazy_graph_module(True)


class Interpreter:
    """Computes the values of nodes in a walk over a graph."""

    def literal(self, values: torch.Tensor) -> Any:
        """The value of a constant tensor of the graph."""
        return values

    def call(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of an op's result; a list for an op with several results.

        Args:
            node: the op is `node.target`, shape and dtype of its result are `node.meta["val"]`.
            args, kwargs: its arguments, with the values of earlier nodes in their places.
        """
        raise NotImplementedError

    def item(self, node: torch.fx.Node, several: Any, position: int) -> Any:
        """The value of one of several results."""
        return several[position]


def line_of(node: torch.fx.Node, around: Any = None) -> Any:
    """The user's line that called the op of a node; None if it is not known.

    Args:
        node: of a graph.
        around: the line at which the graph becomes a part of a program, if not as the whole.
    """
    where = node.meta.get("custom", {}).get("where")
    return where if around is None else within(where, around)


def evaluate(
    module: torch.fx.GraphModule,
    interpreter: Interpreter,
    inputs: Iterable[Any],
    values: dict[torch.fx.Node, Any] | None = None,
) -> Any:
    """Walk over the nodes of a graph in order.

    Args:
        module: the graph.
        interpreter: computes the values of the nodes.
        inputs: the values of the placeholders.
        values: an empty dict that keeps the value of each node, for an interpreter that looks at other nodes too.

    Returns:
        The value of the graph's output: the tree of its nodes, each replaced.
    """
    with silence_of(module):
        return _walked(module, interpreter, iter(inputs), {} if values is None else values)


def _walked(
    module: torch.fx.GraphModule, interpreter: Interpreter, given: Iterator[Any], values: dict[torch.fx.Node, Any]
) -> Any:
    for node in module.graph.nodes:
        raise_interruption()
        if node.op == "placeholder":
            values[node] = next(given)
        elif node.op == "get_attr":
            values[node] = interpreter.literal(getattr(module, str(node.target)))
        elif node.op == "output":
            return map_arg(node.args[0], values.__getitem__)
        elif node.target is operator.getitem:
            values[node] = interpreter.item(node, values[node.args[0]], node.args[1])
        else:
            args, kwargs = map_arg(node.args, values.__getitem__), map_arg(node.kwargs, values.__getitem__)
            values[node] = interpreter.call(node, args, kwargs)
    raise AssertionError("a graph ends with its output")


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """A block in which traced and partitioned functions have no effects: they were performed before."""
    token = _is_silent.set(True)
    try:
        yield
    finally:
        _is_silent.reset(token)


def note_silence(module: torch.fx.GraphModule) -> None:
    """Note whether a graph is traced in such a block: then all walks over it are silent."""
    module.meta["is_silent"] = is_silent()


def silence_of(module: torch.fx.GraphModule) -> contextlib.AbstractContextManager[None]:
    """A block that is silent if the graph is."""
    return silenced() if module.meta.get("is_silent") else contextlib.nullcontext()


def is_silent() -> bool:
    """Whether effects are left out now."""
    return _is_silent.get()
