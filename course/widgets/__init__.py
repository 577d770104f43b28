"""Pictures that answer when they are touched, one for each lesson. Show one as the last line of a cell.

    base          a picture with controls: what a notebook shows, stores and compares
    card          the sheet on which a picture is drawn, legible on light and dark pages
    device_panel  lesson 00: a lamp, a pid and the memory of each device
    sharding      lesson 03: choose mesh, array and spec; who holds what, and how many bytes
    stepper       lesson 04: step through a collective; who sends what to whom
    traffic       what is sent in a mapped function, recorded while its Program runs
    waiting       lesson 09: who waits for whom
    planner       lesson 10: choose a machine; time, memory and bytes of a training step under three layouts
    schedule      lesson 11: the steps of programs, and the memory that a device holds during each

A lesson says `from course import widgets`, and then for example `widgets.sharding_explorer()`.
"""

from course.widgets.device_panel import device_panel
from course.widgets.planner import machine_planner
from course.widgets.schedule import program_schedule
from course.widgets.sharding import sharding_explorer
from course.widgets.stepper import collective_stepper
from course.widgets.waiting import who_waits

__all__ = [
    "collective_stepper",
    "device_panel",
    "machine_planner",
    "program_schedule",
    "sharding_explorer",
    "who_waits",
]
