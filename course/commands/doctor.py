"""`tinyshard doctor`: can the lessons run here, and if not, what is to be done?"""

import argparse

from course.commands.command import Command
from course.doctor import machine, software
from course.doctor.finding import State, lines_of, summary

__all__ = ["DOCTOR"]

LOOKS = (
    machine.look_at_cores,
    machine.look_at_memory,
    machine.look_at_shared_memory,
    machine.look_at_loopback,
    software.look_at_torch,
    software.look_at_devices,
    software.look_at_kernel,
    software.look_at_widgets,
)


def examine(arguments: argparse.Namespace) -> int:
    """Look at the machine and the software, and print each finding at once; 1 if something stops the lessons."""
    print("looking; the first answers come at once, those of devices and kernel within a minute", flush=True)
    findings = []
    for look in LOOKS:
        findings.append(look())
        print(*lines_of(findings[-1]), sep="\n", flush=True)
    print("", summary(findings), sep="\n")
    return int(any(each.state is State.FATAL for each in findings))


DOCTOR = Command("doctor", "see whether the lessons run on this machine, and what to do where they do not", examine)
