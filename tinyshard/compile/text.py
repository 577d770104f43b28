"""What jit made of a function, as text: the graph on whole tensors, and a program."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.compile.cost import bytes_sent
from tinyshard.compile.executable import DeviceAssignment, Executable
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.primitives.collective import NAMED, call_of
from tinyshard.primitives.constraint import CONSTRAIN, constraint
from tinyshard.primitives.manual_region import MAPPED, ManualRegion, NamedDims, region_of

# arguments that say how a tensor lies in one machine's memory: noise to who reads where it lies over devices
_UNSAID = {"device", "layout", "memory_format", "pin_memory"}


def axis_names(executable: Executable, assignment: DeviceAssignment) -> tuple[str, ...]:
    """What to call the axes of a program: as the mesh does, "a*b" for several as one; else by their number."""
    sizes = executable.program.axes
    mesh = assignment.mesh
    named = None
    if mesh is not None and mesh.device_ids == assignment.devices:
        named = _joined([(name, size) for name, size in mesh.shape.items() if size > 1], sizes)
    return named or _numbered(executable.program)


def _numbered(program: Program) -> tuple[str, ...]:
    return tuple(str(i) for i in range(len(program.axes)))


def _joined(named: Sequence[tuple[str, int]], sizes: Sequence[int]) -> tuple[str, ...] | None:
    """Names for axes of these sizes, each the product of the next named ones; None if they do not fit.

    Example:
        >>> _joined([("a", 4), ("b", 2), ("c", 3)], (8, 3))
        ('a*b', 'c')
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
        out.append("*".join(names) or str(i))
    return tuple(out)


def program_text(program: Program, names: Sequence[str] | None = None) -> str:
    """A program with the names of its axes (by default their numbers), and the bytes sent in each collective."""
    names = _numbered(program) if names is None else names
    axes = " x ".join(f"{name}={size}" for name, size in zip(names, program.axes, strict=True))
    lines = [f"program on {len(program.devices)} devices, axes {axes}" if axes else "program on 1 device"]
    lines += [f"  {Value(i)}: {program.metas[i]} = input" for i in range(program.num_inputs)]
    reasons = dict(program.reasons)
    for number, step in enumerate(program.steps):
        made = ", ".join(f"{Value(n)}: {program.metas[n] or '?'}" for n in step.results if n >= 0)
        params = dict(step.kwargs)
        note = ""
        if step.op in COLLECTIVES:
            group = [names[a] for a in params.pop("axes")]
            params = {"over": "*".join(group), **params}
            sent = bytes_sent(program, step)
            note = f"    # {sent:,} bytes" if COLLECTIVES[step.op].communicates else ""
            note += f", gathered for {reasons[number].op}" if number in reasons else ""
        elif step.op == "transfer":
            params = {"over": "*".join(names)}
            note = f"    # {bytes_sent(program, step):,} bytes"
        named = [f"{k}={_short(v)}" for k, v in params.items() if k not in _UNSAID]
        lines.append(f"  {made or 'effect'} = {step.op}({', '.join([*map(repr, step.args), *named])}){note}")
    lines.append(f"  return {', '.join(repr(Value(n)) for n in program.outputs)}")
    return "\n".join(lines)


def _short(value: Any) -> str:
    text = str(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def graph_text(traced: Traced, name: str, names: Sequence[str]) -> str:
    """The graph on whole tensors, one op a line, inputs under the names that the function gives them.

    The function of a pmap or a shard_map stands indented below its line, on shards.
    """
    inputs = [*names, *closed_names(traced)]
    return "\n".join([f"{name} on whole tensors", *_lines(traced, inputs, "  ")])


def _lines(traced: Traced, inputs: Sequence[str], indent: str, returned: str = "") -> list[str]:
    numbers: dict[Any, Value] = {}
    lines = []
    following = iter(inputs)
    for node in traced.graph.graph.nodes:
        if node.op == "output":
            lines.append(f"{indent}return {', '.join(repr(numbers[x]) for x in node.args[0])}{returned}")
            continue
        number = numbers[node] = Value(len(numbers))
        made = f"{indent}{number}: {_meta(node)} ="
        if node.op == "placeholder":
            lines.append(f"{made} {next(following, 'input')}")
        elif node.op == "get_attr":
            lines.append(f"{made} literal")
        else:
            args, kwargs = tree_map_only(torch.fx.Node, numbers.__getitem__, (node.args, node.kwargs))
            if node.target is MAPPED:
                region = region_of(args[1])
                lines.append(f"{made} mapped({', '.join(map(repr, args[0]))}) over {region.mesh!r}:")
                lines += _region_lines(region, args[0], indent + "    ")
                continue
            if node.target is CONSTRAIN:
                args = (args[0], constraint(args[1]))
            if node.target is NAMED:
                call = call_of(args[1])
                lines.append(f"{made} {call.kind}({args[0]!r}, {call})")
                continue
            shown = [*map(repr, args), *(f"{k}={v!r}" for k, v in kwargs.items() if k not in _UNSAID)]
            target = "item" if node.target is operator.getitem else str(node.target)
            lines.append(f"{made} {target}({', '.join(shown)})")
    return lines


def _region_lines(region: ManualRegion, operands: Sequence[Value], indent: str) -> list[str]:
    def told(cut: NamedDims) -> str:
        last = max((i + 1 for i, names in enumerate(cut) if names), default=0)
        entries = [None if not names else names[0] if len(names) == 1 else names for names in cut[:last]]
        return f"P({', '.join(map(repr, entries))})"

    inputs = [f"shard of {x!r}, {told(cut)}" for x, cut in zip(operands, region.all_in_dims, strict=True)]
    return _lines(region.traced, inputs, indent, f" as {', '.join(map(told, region.out_dims))}")


class GraphText(str):
    """Text that shows itself as it is, in a notebook too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _meta(node: torch.fx.Node) -> str:
    value = node.meta.get("val")
    if value is None:
        return "none"
    values = value if isinstance(value, list | tuple) else [value]
    return ", ".join(str(ShapedType(tuple(v.shape), v.dtype)) for v in values if isinstance(v, torch.Tensor))
