"""`tinyshard doctor`: can the lessons run here, and if not, what is to be done?"""

import argparse
from collections.abc import Callable

from course.commands.command import Command
from course.doctor import machine, software
from course.doctor.finding import Finding, State, lines_of, summary

__all__ = ["DOCTOR"]

# The quick ones first. What takes seconds says what it does meanwhile.
LOOKS: tuple[tuple[Callable[[], Finding], str], ...] = (
    (machine.look_at_cores, ""),
    (machine.look_at_memory, ""),
    (machine.look_at_shared_memory, ""),
    (machine.look_at_loopback, ""),
    (software.look_at_torch, ""),
    (software.look_at_widgets, ""),
    (software.look_at_kernel, "starting a kernel of JupyterLab: a few seconds"),
    (software.look_at_devices, "starting two worker processes, which import torch: up to half a minute"),
)


def examine(arguments: argparse.Namespace) -> int:
    """Look at the machine and the software, and print each finding at once; 1 if something stops the lessons."""
    findings = []
    for look, meanwhile in LOOKS:
        if meanwhile:
            print(f"{'…':4}  {meanwhile}", flush=True)
        findings.append(look())
        print(*lines_of(findings[-1]), sep="\n", flush=True)
    print("", summary(findings), sep="\n")
    return int(any(each.state is State.FATAL for each in findings))


DOCTOR = Command("doctor", "see whether the lessons run on this machine, and what to do where they do not", examine)
