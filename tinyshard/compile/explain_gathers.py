"""What `ts.config.update("explain_gathers", True)` prints: which op gathers an operand, on whose line, and why."""

from __future__ import annotations

import sys

from tinyshard.compile.cost import bytes_sent
from tinyshard.compile.executable import DeviceAssignment, Executable
from tinyshard.compile.text import axis_names
from tinyshard.core import config
from tinyshard.core.program import Value
from tinyshard.runtime.controller.lineage import Where, users_line

_explained: set[tuple[int, str]] = set()
MOST = 4096  # remembered; then all are forgotten, and may be explained again


def explain_gathers(executable: Executable, assignment: DeviceAssignment) -> None:
    """Print, if the flag is set, why a program that is called gathers operands; once for each program and line.

    Communication: none.
    """
    program = executable.program
    if not program.reasons or not config.read("explain_gathers"):
        return
    caller = users_line()
    if (program.number, str(caller)) in _explained:
        return
    if len(_explained) >= MOST:
        _explained.clear()
    _explained.add((program.number, str(caller)))
    print(explanation(executable, assignment, caller), file=sys.stderr)


def explanation(executable: Executable, assignment: DeviceAssignment, caller: Where | None) -> str:
    """The gathers of a program, each in three lines.

    Args:
        executable, assignment: the program and where it runs.
        caller: the line that calls it, for ops that were not traced.
    """
    program = executable.program
    mesh_axes = axis_names(executable, assignment)
    lines = []
    for number, reason in program.reasons:
        step = program.steps[number]
        operand: Value = step.args[0]
        over = "*".join(name for a in step.kwargs["axes"] for name in mesh_axes[a])
        nbytes = bytes_sent(program, step)
        lines += [
            f"{reason.op} gathers an operand, in {reason.where or caller}",
            f"  what: all_gather of {program.metas[operand.number]} over {over}, {nbytes:,} bytes a device",
            f"  why:  {reason.why}",
        ]
    return "\n".join(lines)
