"""The text of a graph on whole tensors, and of a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.cost import bytes_sent
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.evaluate import Interpreter, evaluate, line_of
from tinyshard.core.primitive import primitive_of
from tinyshard.core.program import CROSSING, Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.sharding.mesh import Mesh

# arguments that say how a tensor is laid out in one machine's memory: noise to who reads how it is over devices
UNSAID = {"device", "layout", "memory_format", "pin_memory"}


def axis_names(program: Program, mesh: Mesh | None) -> tuple[tuple[str, ...], ...]:
    """For each axis of a program the mesh axes that it consists of, which may be several; else its number."""
    named = None
    if mesh is not None and mesh.device_ids == program.devices:
        named = _joined([(name, size) for name, size in mesh.shape.items() if size > 1], program.axes)
    return named or _numbered(program)


def _numbered(program: Program) -> tuple[tuple[str, ...], ...]:
    return tuple((str(i),) for i in range(len(program.axes)))


def _joined(named: Sequence[tuple[str, int]], sizes: Sequence[int]) -> tuple[tuple[str, ...], ...] | None:
    """Names for axes of these sizes, each the product of the next named ones; None if they do not fit.

    Example:
        >>> _joined([("a", 4), ("b", 2), ("c", 3)], (8, 3))
        (('a', 'b'), ('c',))
    """
    left = list(named)
    out = []
    for i, size in enumerate(sizes):
        names = []
        while size > 1 and left and size % left[0][1] == 0:
            name, part = left.pop(0)
            names.append(name)
            size //= part
        if size > 1:
            return None
        out.append(tuple(names) or (str(i),))
    return tuple(out)


def program_text(program: Program, mesh_axes: Sequence[tuple[str, ...]] | None = None) -> str:
    """A program with the names of its axes (by default their numbers), and the bytes sent in each collective."""
    names = ["*".join(axes) for axes in (_numbered(program) if mesh_axes is None else mesh_axes)]
    axes = " x ".join(f"{name}={size}" for name, size in zip(names, program.axes, strict=True))
    first = f"program on {len(program.devices)} devices, axes {axes}" if axes else "program on 1 device"
    return "\n".join([first, *_lines(program, names, "  ", ["input"] * program.num_inputs)])


def _lines(program: Program, names: Sequence[str], indent: str, inputs: Sequence[str]) -> list[str]:
    """The lines of a program; the bodies of control flow are indented below its line, with their own values."""
    lines = [f"{Value(i)}: {program.metas[i]} = {origin}" for i, origin in enumerate(inputs)]
    reasons = dict(program.reasons)
    for number, step in enumerate(program.steps):
        params = dict(step.kwargs)
        notes = []
        if step.op in COLLECTIVES:
            group = [names[a] for a in params.pop("axes")]
            params = {"over": "*".join(group), **params}
        elif step.op == "transfer":
            params = {"over": "*".join(names)}
        if step.op in CROSSING:
            notes.append(f"{bytes_sent(program, step):,} bytes")
        if number in reasons:
            notes.append(f"gathered for {reasons[number].op}: {reasons[number].why}")
        where = program.lines[number] if program.lines else None
        if where is not None and where.scope:
            notes.append(f"in {where.scope}")
        named = [f"{k}={short(v)}" for k, v in params.items() if k not in UNSAID]
        note = (":" if step.bodies else "") + (f"    # {', '.join(notes)}" if notes else "")
        result = program.made_by(step) or "effect"
        lines.append(f"{result} = {step.op}({', '.join([*map(repr, step.args), *named])}){note}")
        for number, body in enumerate(step.bodies):
            lines += _lines(body, names, "    ", INPUTS[step.op](number, *step.args))
    lines.append(f"return {', '.join(repr(Value(n)) for n in program.outputs)}")
    return [indent + line for line in lines]


def _carried(values: Sequence[Value]) -> list[str]:
    return [f"carry, at first {x}" for x in values]


def _from_outside(values: Sequence[Value]) -> list[str]:
    return [f"{x} of the program around it" for x in values]


# control flow -> what the body of a number is given, from the parts of its arguments
INPUTS: dict[str, Callable[..., list[str]]] = {
    "scan": lambda _, carry, rows, closed: [
        *_carried(carry),
        *(f"row of {x}" for x in rows),
        *_from_outside(closed),
    ],
    "cond": lambda _, index, operands: _from_outside(operands),
    "while": lambda number, carry, *closed: [*_carried(carry), *_from_outside(closed[number])],
}


def short(value: Any) -> str:
    """An argument that is no value, in at most 60 characters."""
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def graph_text(traced: Traced, name: str, names: Sequence[str]) -> str:
    """The graph on whole tensors, one op a line, inputs under the names that the function gives them.

    The function of a pmap or a shard_map is indented below its line, on shards.
    """
    inputs = [*names, *closed_names(traced)]
    return "\n".join([f"{name} on whole tensors", *Printer("  ").lines_of(traced, inputs)])


class Printer(Interpreter):
    """The walk over a graph; nodes become the Values under which the text names them."""

    def __init__(self, indent: str) -> None:
        self._indent = indent
        self._count = itertools.count()
        self._lines: list[str] = []

    def lines_of(self, traced: Traced, inputs: Sequence[str], returned: str = "") -> list[str]:
        """The lines of a graph.

        Args:
            traced: the graph.
            inputs: the name of each input; "input" for the remaining ones.
            returned: a note about the results.
        """
        names = itertools.chain(inputs, itertools.repeat("input"))
        given = (self._line(described(node), lambda result: [f"{result} {next(names)}"]) for node in traced.inputs)
        out = evaluate(traced.graph, self, given)
        return [*self._lines, f"{self._indent}return {', '.join(map(repr, out))}{returned}"]

    def nested(self, traced: Traced, inputs: Sequence[str], returned: str) -> list[str]:
        """The lines of a graph nested below an op of this one."""
        return Printer(self._indent + "    ").lines_of(traced, inputs, returned)

    def literal(self, values: torch.Tensor) -> Value:
        return self._line(str(shaped_type_of(values)), lambda result: [f"{result} literal"])

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Value:
        primitive = primitive_of(node.target)

        def lines(result: str) -> list[str]:
            own = None if primitive is None else primitive.text(self, result, args)
            if own is not None:
                return own
            shown = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items() if k not in UNSAID)]
            return [f"{result} {node.target}({', '.join(shown)})"]

        where = line_of(node)
        return self._line(
            described(node), lines, f"    # in {where.scope}" if where is not None and where.scope else ""
        )

    def item(self, node: torch.fx.Node, several: Value, position: int) -> Value:
        return self._line(described(node), lambda result: [f"{result} item({several!r}, {position})"])

    def _line(self, described: str, lines: Callable[[str], list[str]], note: str = "") -> Value:
        number = Value(next(self._count))
        first, *below = lines(f"{number}: {described} =")
        self._lines += [self._indent + first + note, *below]
        return number


class GraphText(str):
    """Text that a terminal shows as it is, and a notebook as the drawing that it was given."""

    html: str | None = None

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str | None:
        return self.html


def described(node: torch.fx.Node) -> str:
    """Shape and dtype of what a node makes, "f32[8, 4]"."""
    value = node.meta.get("val")
    if value is None:
        return "none"
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(str(ShapedType(tuple(v.shape), v.dtype)) for v in values if isinstance(v, torch.Tensor))
