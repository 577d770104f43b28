"""What `ts.config.update("explain_gathers", True)` prints: which op gathers an operand, on whose line, and why."""

from __future__ import annotations

import sys

from tinyshard.compile.cost import bytes_sent
from tinyshard.compile.executable import Home, Recipe
from tinyshard.compile.text import axis_names
from tinyshard.core import config
from tinyshard.core.program import Value
from tinyshard.runtime.controller.lineage import Where, users_line

_explained: set[tuple[int, str]] = set()
MOST = 4096  # remembered; then all are forgotten, and may be explained again


def explain_gathers(recipe: Recipe, home: Home) -> None:
    """Print, if the flag is set, why a program that is called gathers operands; once for each program and line.

    Communication: none.
    """
    program = recipe.program
    if not program.reasons or not config.read("explain_gathers"):
        return
    caller = users_line()
    if (program.number, str(caller)) in _explained:
        return
    if len(_explained) >= MOST:
        _explained.clear()
    _explained.add((program.number, str(caller)))
    print(explanation(recipe, home, caller), file=sys.stderr)


def explanation(recipe: Recipe, home: Home, caller: Where | None) -> str:
    """The gathers of a program, each in three lines.

    Args:
        recipe, home: the program and where it runs.
        caller: the line that calls it, for ops that were not traced.
    """
    program = recipe.program
    names = axis_names(recipe, home)
    lines = []
    for number, reason in program.reasons:
        step = program.steps[number]
        operand: Value = step.args[0]
        over = "*".join(names[a] for a in step.kwargs["axes"])
        nbytes = bytes_sent(program, step)
        lines += [
            f"{reason.op} gathers an operand, in {reason.where or caller}",
            f"  what: all_gather of {program.metas[operand.number]} over {over}, {nbytes:,} bytes a device",
            f"  why:  {reason.why}",
        ]
    return "\n".join(lines)
