"""What jit made of a function, as the records of which `draw.program` makes a table: a program, a graph."""

from __future__ import annotations

import itertools
import linecache
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.cost import Cost, bytes_sent
from tinyshard.compile.memory import MemoryAnalysis, memory_of_bodies, short_name
from tinyshard.compile.text import INPUTS, UNSAID, described, short
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core.evaluate import Interpreter, evaluate, line_of
from tinyshard.core.layout import Layout
from tinyshard.core.primitive import primitive_of
from tinyshard.core.program import CROSSING, Cut, Eqn, Program, Value, values_in
from tinyshard.core.types import ShapedType
from tinyshard.draw.html import human_bytes
from tinyshard.draw.program import Drawn, Section, Step, Variable

_LONGEST_LINE = 100  # characters of a line of the user's


def drawn_program(
    program: Program,
    names: Sequence[str],
    mesh_axes: Sequence[tuple[str, ...]],
    platform: str,
    cost: Cost,
    memory: MemoryAnalysis,
) -> Drawn:
    """A program, with what it costs.

    Args:
        names: of its inputs.
        mesh_axes: for each axis of the program the names of the mesh axes that it is.
        platform: what the devices are, for their pictures.

    Communication: none.
    """
    axes = ["*".join(several) for several in mesh_axes]
    count = len(program.devices)
    on = f"on {count} devices, axes {' × '.join(f'{n}={k}' for n, k in zip(axes, program.axes, strict=True))}"
    collectives = sum(t.count for t in cost.traffic)
    remarks = [
        f"{len(program.steps):,} {_plural(len(program.steps), 'step')}",
        f"{cost.nbytes:,} bytes sent by the busiest device in {collectives} {_plural(collectives, 'collective')}",
        f"{human_bytes(memory.peak_nbytes)} held by a device at the peak",
    ]
    remarks += [f"{cost.flops:,} flops a device"] if cost.flops else []
    section = _Sections(axes, platform).of(program, f"program {on if axes else 'on 1 device'}", names, memory)
    sized = tuple(zip(axes, program.axes, strict=True))
    return Drawn(section, (" · ".join(remarks),), program.devices, sized, memory.peak_nbytes)


class _Sections:
    """From programs to sections; the axes have the same names in all of them."""

    def __init__(self, axes: Sequence[str], platform: str) -> None:
        self._axes = axes
        self._platform = platform

    def of(
        self, program: Program, heading: str, names: Sequence[str], memory: MemoryAnalysis, origins: Sequence[str] = ()
    ) -> Section:
        """A program, its inputs under these names."""
        known = [f"{Value(i)} {name}".strip() for i, name in enumerate(names)]
        variables = [
            self._variable(program, number, known[number] if number < len(known) else f"{Value(number)}")
            for number in range(len(program.metas))
        ]
        given = variables[: program.num_inputs]
        said = [*origins, *[""] * (len(given) - len(origins))]
        inputs = tuple(replace(x, origin=origin) for x, origin in zip(given, said, strict=True))
        reasons = dict(program.reasons)
        steps = tuple(
            self._step(program, step, variables, held.nbytes, where, reasons.get(k))
            for k, (step, held, where) in enumerate(
                zip(program.steps, memory.steps, program.lines or (None,) * len(program.steps), strict=True)
            )
        )
        return Section(heading, inputs, steps, tuple(variables[n] for n in program.outputs))

    def _step(
        self, program: Program, step: Eqn, variables: Sequence[Variable], held: int, where: Any, reason: Any
    ) -> Step:
        params = dict(step.kwargs)
        is_crossing = step.op in CROSSING
        along = params.pop("axes", None)
        over = "*".join(self._axes if along is None else [self._axes[a] for a in along])
        said = [f"{k}={short(v)}" for k, v in params.items() if k not in UNSAID]
        bodies = []
        for number, (body, memory) in enumerate(zip(step.bodies, memory_of_bodies(step), strict=True)):
            origins = INPUTS[step.op](number, *step.args)
            bodies.append(self.of(body, _body(step, number), (), memory, origins))
        line, place = _line(where)
        return Step(
            op=short_name(step.op),
            name=step.op,
            takes=tuple(_merged([*_taken(step.args, variables), *said])),
            makes=tuple(variables[n] for n in step.results if n >= 0),
            kind=step.op if is_crossing else "",
            over=over if is_crossing or along is not None else "",
            sent=bytes_sent(program, step) if is_crossing else None,
            why=f"{reason.op}: {reason.why}" if reason else "",
            held=held,
            line=line,
            place=place,
            bodies=tuple(bodies),
        )

    def _variable(self, program: Program, number: int, name: str) -> Variable:
        meta = program.metas[number]
        cut = program.cuts[number] if number < len(program.cuts) else None
        if meta is None or cut is None or len(cut[0]) != len(meta.shape):
            return Variable(name, str(meta or "?"))
        layout = Layout(program.devices, program.axes, cut[0], self._platform)
        whole = ShapedType(layout.global_shape(meta.shape), meta.dtype)
        return Variable(name, str(meta), self._whole(whole, cut), layout, tuple(dict.fromkeys(op for _, op in cut[1])))

    def _whole(self, whole: ShapedType, cut: Cut) -> str:
        """As `typeof` says it: "f32[64, 8192@model]"."""
        sizes = [
            f"{size}@{'*'.join(self._axes[a] for a in axes)}" if axes else f"{size}"
            for size, axes in zip(whole.shape, cut[0], strict=True)
        ]
        return f"{str(whole).partition('[')[0]}[{', '.join(sizes)}]"


def _taken(args: Iterable[Any], variables: Sequence[Variable]) -> Iterator[Variable | str]:
    """The arguments of a step in order; lists of values as their values."""
    for arg in args:
        if isinstance(arg, Value):
            yield variables[arg.number]
        elif isinstance(arg, list | tuple) and any(isinstance(x, Value) for x in arg):
            yield from _taken(arg, variables)
        elif arg is not None and arg != []:
            yield short(arg)


def _merged(parts: Iterable[Variable | str]) -> Iterator[Variable | str]:
    """Words that follow each other, as one."""
    for is_text, several in itertools.groupby(parts, key=lambda x: isinstance(x, str)):
        if is_text:
            yield ", ".join(str(x) for x in several)
        else:
            yield from several


def _body(step: Eqn, number: int) -> str:
    if step.op == "scan":
        return f"a round of the scan, of {step.kwargs['length']:,}"
    if step.op == "while":
        return ("the test of the loop", "a round of the loop")[number]
    return f"branch {number}"


def _plural(count: int, word: str) -> str:
    return word if count == 1 else word + "s"


def _line(where: Any) -> tuple[str, str]:
    """A line of the user's, and where it is."""
    if where is None:
        return "", ""
    text = linecache.getline(where.file, where.line).strip()
    place = os.path.basename(str(where).removesuffix(f": {text}"))
    if not text:
        return place, ""
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…", place


# ---- graphs on whole tensors --------------------------------------------------------------------------------------


def drawn_graph(traced: Traced, name: str, names: Sequence[str]) -> Drawn:
    """A graph on whole tensors, inputs under the names that the function gives them.

    Communication: none.
    """
    section = _Graph().section(traced, f"{name} on whole tensors", [*names, *closed_names(traced)])
    count = len(section.steps)
    return Drawn(
        section, (f"{count:,} {_plural(count, 'op')}, not yet partitioned: compile() says which device does what",)
    )


class _Graph(Interpreter):
    """The walk over a graph; nodes become Values, and each but an input is a step."""

    def __init__(self) -> None:
        self._variables: list[Variable] = []
        self._steps: list[Step] = []
        self._bodies: list[Section] = []

    def section(self, traced: Traced, heading: str, inputs: Sequence[str]) -> Section:
        """A graph as a section, with what its inputs are called."""
        names = [*inputs, *[""] * len(traced.inputs)]
        values = [self._value(described(node), name) for node, name in zip(traced.inputs, names, strict=False)]
        given = tuple(self._variables)
        out = evaluate(traced.graph, self, values)
        results = tuple(self._variables[x.number] for x in out if isinstance(x, Value))
        return Section(heading, given, tuple(self._steps), results)

    def nested(self, traced: Traced, inputs: Sequence[str], returned: str) -> list[str]:
        """The graph of a body; a primitive asks for it, who writes its line."""
        body = _Graph().section(traced, f"its function, results{returned}" if returned else "its function", ())
        given = tuple(replace(x, origin=origin) for x, origin in zip(body.inputs, inputs, strict=False))
        self._bodies.append(replace(body, inputs=given))
        return []

    def literal(self, values: torch.Tensor) -> Value:
        return self._step("literal", "literal", (), str(shaped_type_of(values)), None)

    def call(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Value:
        primitive = primitive_of(node.target)
        own = None if primitive is None else primitive.text(self, "", args)
        if own is None:
            words = [f"{k}={short(v)}" for k, v in kwargs.items() if k not in UNSAID]
            name = str(node.target)
            takes = [*_taken(args, self._variables), *words]
        else:
            name, _, rest = own[0].strip().partition("(")
            said = re.sub(r"%\d+(, )?", "", rest).rstrip(":")
            said = said[1:].strip() if said.startswith(")") else said.removesuffix(")")
            takes = [*(self._variables[x.number] for x in values_in(args)), *filter(None, [said])]
        return self._step(short_name(name), name, takes, described(node), line_of(node))

    def item(self, node: torch.fx.Node, several: Value, position: int) -> Value:
        return self._step("item", "item", (self._variables[several.number], f"{position}"), described(node), None)

    def _step(self, op: str, name: str, takes: Iterable[Variable | str], type: str, where: Any) -> Value:
        bodies, self._bodies = tuple(self._bodies), []
        line, place = _line(where)
        value = self._value(type)
        made = (self._variables[value.number],)
        kind = name if name in CROSSING else ""
        self._steps.append(
            Step(op, name, tuple(_merged(takes)), made, kind=kind, line=line, place=place, bodies=bodies)
        )
        return value

    def _value(self, type: str, name: str = "") -> Value:
        value = Value(len(self._variables))
        self._variables.append(Variable(f"{value} {name}".strip(), type))
        return value
