"""Pictures that answer when they are touched, one for each lesson. Show one as the last line of a cell.

    base       a picture with controls: what a notebook shows, stores and compares
    card       the sheet on which a picture is drawn, legible on light and dark pages
    sharding   lesson 03: choose mesh, array and spec; who holds what, and how many bytes
    planner    lesson 10: choose a machine; time, memory and bytes of a training step under three layouts
    schedule   lesson 11: the steps of programs, and the memory that a device holds during each

A lesson says `from course import widgets`, and then for example `widgets.sharding_explorer()`.
"""

from course.widgets.planner import machine_planner
from course.widgets.schedule import program_schedule
from course.widgets.sharding import sharding_explorer

__all__ = ["machine_planner", "program_schedule", "sharding_explorer"]
