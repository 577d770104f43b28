"""A function cut in two: a part that runs at once and saves values, and a part that runs later on the saved values.

joint        x, g  ->  a, b, c, result      a, b, c: values on the way, which may be saved
cut          x     ->  b                    only b is needed
             b, x, g  ->  result            b is not recomputed
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.utils._pytree import tree_flatten

from tinyshard.compile.replay import Function, replayed_with_values
from tinyshard.compile.tracing import Traced, drop_dead_code
from tinyshard.core.primitive import primitive_of
from tinyshard.partition.op_table import ALIASES
from tinyshard.primitives.branching import types_of
from tinyshard.primitives.call import Split
from tinyshard.primitives.name import NAME
from tinyshard.transforms import bodies


def linear(traced: Traced, count: int) -> Function:
    """A function of values and tangents that returns, after its results, all values independent of the tangents.

    Args:
        traced: its graph.
        count: the number of inputs before the tangents; closed-over tensors, behind the tangents, are not tangents.
    """
    is_tangent = [count <= i < len(traced.arguments) for i in range(len(traced.inputs))]
    depends = bodies.dependents(traced.graph, is_tangent)
    function = replayed_with_values(traced, lambda node: not depends[node])
    return lambda *xs: function(*xs, *(c.value for c in traced.closed))


def cut(both: Traced, results: int, joint: Traced, count: int) -> Split:
    """Cut a function in two.

    Args:
        both: its graph, which returns its results and then the values that may be saved.
        results: the number of its results.
        joint: the graph from its operands, and more, to these values and then to the wanted results. It is changed.
        count: the number of values that may be saved.
    """
    graph = joint.graph.graph
    first, output = next(iter(graph.nodes)), next(n for n in reversed(graph.nodes) if n.op == "output")
    saved, wanted = list(output.args[0])[:count], len(output.args[0]) - count
    inputs: list[torch.fx.Node | None] = []
    for number, node in enumerate(map(_behind_aliases, saved)):
        if node.op in ("placeholder", "get_attr"):
            inputs.append(None)
            continue
        with graph.inserting_before(first):
            placeholder = graph.placeholder(f"saved_{number}")
        placeholder.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(placeholder)
        inputs.append(placeholder)
    output.args = (list(output.args[0])[count:],)
    drop_dead_code(joint.graph)
    used = [i for i, x in enumerate(inputs) if x is not None and x.users]
    metas = types_of([x for x in inputs if x is not None and x.users])
    for x in inputs:
        if x is not None and not x.users:
            graph.erase_node(x)
    backwards = _with_results(replace(joint, arguments=(*metas, *joint.arguments)), wanted)
    end = next(n for n in reversed(both.graph.graph.nodes) if n.op == "output")
    end.args = ([*end.args[0][:results], *(end.args[0][results + i] for i in used)],)
    drop_dead_code(both.graph)
    return Split(_with_results(both, results + len(used)), backwards)


def _with_results(traced: Traced, count: int) -> Traced:
    form = tree_flatten(tuple(range(count)))[1]
    return replace(traced, outputs=tuple((True, i) for i in range(count)), out_tree=form)


def _behind_aliases(node: torch.fx.Node) -> torch.fx.Node:
    """The node that computes a value, behind names and aliases."""
    while node.target in ALIASES or primitive_of(node.target) is NAME:
        node = node.all_input_nodes[0]
    return node
