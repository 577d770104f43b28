"""The one walk over a traced graph: an interpreter says what an input, a literal and an op become.

The partitioner, the inliner, the replay of a graph that is differentiated and the printer are among the interpreters of
this walk. It is `torch.fx.Interpreter` without the execution of ops that comes with that.
"""

from __future__ import annotations

import linecache
import operator
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx import graph_module
from torch.fx.node import map_arg

from tinyshard.core.effects import silence_of
from tinyshard.core.named_scopes import within
from tinyshard.core.trace_thread import raise_interruption


class Interpreter:
    """What a walk over a graph makes of its nodes."""

    def literal(self, values: torch.Tensor) -> Any:
        """What a tensor that the graph holds as a constant becomes."""
        return values

    def call(self, node: torch.fx.Node, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the result of an op becomes; a list for an op with several results.

        Args:
            node: the op is `node.target`, shape and dtype of its result are `node.meta["val"]`.
            args, kwargs: its arguments, with what earlier nodes became in their places.
        """
        raise NotImplementedError

    def item(self, node: torch.fx.Node, several: Any, position: int) -> Any:
        """What one of several results becomes."""
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
        interpreter: what its nodes become.
        inputs: what the placeholders become.
        values: an empty dict that keeps what each node became, for an interpreter that looks at other nodes too.

    Returns:
        What the graph's output becomes: the tree of its nodes, each replaced.
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


def forget_source(module: torch.fx.GraphModule) -> None:
    """Let torch not keep the module's source: it does so for tracebacks, for ever, and a graph here is not executed."""
    key = type(module).forward.__code__.co_filename
    graph_module._loader.eval_cache.pop(key, None)
    linecache.cache.pop(key, None)
