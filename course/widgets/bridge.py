"""Lesson 19: a program of torch.distributed beside its twin in tinyshard, part by part."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass

from course.bridge import launch
from course.bridge.launch import Result
from course.bridge.ours import LAYOUTS, Trained
from course.widgets.base import Choice, Explorer
from course.widgets.card import MUTED, Piece, Sheet, beside, folded, paragraph, stack
from tinyshard.draw.colours import OKABE_ITO

__all__ = ["Twins", "describe", "draw", "look", "two_programs"]

HEADING = "One training, two programs"
TITLES = {
    "by_hand": "by hand: all_reduce",
    "ddp": "DistributedDataParallel",
    "fsdp": "FSDP2: fully_shard",
    "tensor_parallel": "tensor parallel: DTensor",
    "two_dims": "tensor parallel and FSDP2",
}
PARTS = ("who takes part", "where the parameters are", "the training")
COLOURS = (OKABE_ITO[0], OKABE_ITO[1], OKABE_ITO[2])
MOST = 53  # characters of a line of code
CODE = 10  # px

Ran = Mapping[str, tuple[Result, Trained]]


@dataclass(frozen=True)
class Twins:
    """Two programs, each in its three parts.

    Attributes:
        name: of the program of torch.distributed.
        theirs, ours: for each of PARTS the lines of code.
        numbers: lines on what both sent, if they have run.
    """

    name: str
    theirs: tuple[list[str], ...]
    ours: tuple[list[str], ...]
    numbers: list[str]


def two_programs(ran: Ran | None = None) -> Explorer[Twins]:
    """Choose a program of the bridge; see it beside the same training in tinyshard.

    Args:
        ran: by name, the results of those programs that have run: of torch.distributed, and ours.

    Returns:
        The explorer; show it as the last line of a cell.

    Communication: none.

    Example:
        >>> print(two_programs().choose(name="fsdp").text.splitlines()[0])
        FSDP2: fully_shard
    """
    names = [(TITLES[name], name) for name in launch.PROGRAMS]
    start = list(ran)[-1] if ran else "fsdp"
    return Explorer(
        HEADING, [Choice("name", "program", names, start=start)], lambda name: look(name, ran or {}), draw, describe
    )


def look(name: str, ran: Ran) -> Twins:
    """Take both programs apart.

    Args:
        name: of `launch.PROGRAMS`.
        ran: by name, the results of those that have run.
    """
    return Twins(name, _theirs(name), _ours("ddp" if name == "by_hand" else name), _numbers(ran.get(name)))


def draw(twins: Twins) -> Sheet:
    """Two columns of code, in a frame of its colour each part."""
    rows = [
        _row(title, colour, left, right)
        for title, colour, left, right in zip(PARTS, COLOURS, twins.theirs, twins.ours, strict=True)
    ]
    heads = beside(
        [_column(["torch.distributed, the same in each process"]), _column(["tinyshard, once, for all devices"])]
    )
    numbers = paragraph(twins.numbers, size=11, is_code=True)
    return Sheet(f"{TITLES[twins.name]}, beside tinyshard", stack([heads, *rows, numbers], 8))


def describe(twins: Twins) -> str:
    """The same in words."""
    lines = [TITLES[twins.name]]
    for title, left, right in zip(PARTS, twins.theirs, twins.ours, strict=True):
        lines += [f"{title}: torch.distributed", *(f"  {line}" for line in left)]
        lines += [f"{title}: tinyshard", *(f"  {line}" for line in right)]
    return "\n".join([*lines, *twins.numbers])


def _column(lines: list[str], is_code: bool = False) -> Piece:
    piece = paragraph(lines, size=CODE if is_code else 12, is_code=is_code, fill="currentColor" if is_code else MUTED)
    return Piece(piece.svg, MOST * CODE * 0.61 + 8, piece.height)


def _row(title: str, colour: str, left: list[str], right: list[str]) -> Piece:
    piece = stack(
        [paragraph([title], size=12), beside([_column(left or [""], True), _column(right or [""], True)], 12)], 2
    )
    bar = f'<rect x="0" y="0" width="4" height="{piece.height:.0f}" fill="{colour}"/>'
    return beside([Piece(bar, 4, piece.height), piece], 8)


def _theirs(name: str) -> tuple[list[str], ...]:
    functions: dict[str, tuple[ast.FunctionDef, str]] = {}
    for module in ("tensor_parallel", name) if name == "two_dims" else (name,):
        code = launch.code(module)
        functions |= {node.name: (node, code) for node in ast.parse(code).body if isinstance(node, ast.FunctionDef)}
    main, code = functions["main"]
    parts: tuple[list[str], ...] = ([], [], [])
    for node in main.body[1:]:  # without its docstring
        parts[_part(node)].extend(_lines(node, code))
    if "divide" in functions:
        divide, code = functions["divide"]
        parts[1].extend(["", "def divide(layer, mesh):"])
        for node in divide.body[1:]:
            parts[1].extend(f"    {line}" for line in _lines(node, code, MOST - 4))
    return parts


def _part(node: ast.stmt) -> int:
    text = ast.unparse(node)
    if any(word in text for word in ("init_process_group", "get_rank", "get_world_size", "init_device_mesh")):
        return 0
    return 2 if isinstance(node, ast.FunctionDef) or text.startswith("train(") else 1


def _lines(node: ast.stmt, code: str, most: int = MOST) -> list[str]:
    """The source of a statement without comments, in lines of a column."""
    lines = code.splitlines()[node.lineno - 1 : node.end_lineno]
    bare = textwrap.dedent("\n".join(line.partition("  # ")[0] for line in lines))
    return [short for line in bare.splitlines() for short in folded(line, most)]


def _ours(name: str) -> tuple[list[str], ...]:
    layouts = LAYOUTS[name]
    mesh = f"mesh = ts.make_mesh({tuple(layouts.axes.values())}, {tuple(layouts.axes)})".replace("'", '"')
    specs = [f'    "{pattern}": {spec},' for pattern, spec in layouts.params.items()]
    written = ["specs = {", *specs, "}"] if specs else ["specs = {}  # all on every device"]
    place = ["params = ts.device_put(", "    params, ts.shardings(params, specs, mesh)", ")"]
    code = textwrap.dedent("""\
        def step(params, state, tokens, targets):
            value, grads = ts.value_and_grad(loss)(
                params, tokens, targets)
            return value, *optimizer.update(
                params, grads, state)

        jitted = ts.jit(step, out_shardings=at_rest)""")
    return [*folded(mesh, MOST)], [line.replace("'", '"') for line in [*written, *place]], code.splitlines()


def _numbers(both: tuple[Result, Trained] | None) -> list[str]:
    """Losses, and for each kind the collectives and bytes of both."""
    if both is None:
        return ["not run yet"]
    theirs, ours = both
    found: dict[str, tuple[int, int]] = {}
    for each in ours.sent:
        count, nbytes = found.get(each.kind, (0, 0))
        found[each.kind] = count + each.count, nbytes + each.nbytes
    rows = [f"{'':15} {'torch.distributed':>26} {'tinyshard':>26}"]
    losses = [f"{run.losses[0]:.4f} ... {run.losses[-1]:.4f}" for run in both]
    rows.append(f"{'loss':15} {losses[0]:>26} {losses[1]:>26}")
    for kind in {**theirs.sent, **found}:
        cells = [
            f"{sent[kind][0]} x, {sent[kind][1]:,} bytes" if kind in sent else "-" for sent in (theirs.sent, found)
        ]
        rows.append(f"{kind:15} {cells[0]:>26} {cells[1]:>26}")
    return rows
