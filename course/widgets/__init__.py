"""Pictures that answer when they are touched, one for each lesson. Show one as the last line of a cell.

    base       a picture with controls: what a notebook shows, stores and compares
    card       the sheet on which a picture is drawn, legible on light and dark pages
    grid       a small table of numbers in the colours of those to whom they belong
    axes       lesson 02: choose in_axes and out_axes; which numbers make up an example
    sharding   lesson 03: choose mesh, array and spec; who holds what, and how many bytes
    stepper    lesson 04: step through a collective; who sends what to whom
    traffic    what is sent in a mapped function, recorded while its Program runs
    layouts    lesson 06: layouts of the operands in; program, layout of the result, bytes and work out

A lesson says `from course import widgets`, and then for example `widgets.sharding_explorer()`.
"""

from course.widgets.axes import axis_picker
from course.widgets.layouts import layout_table
from course.widgets.sharding import sharding_explorer
from course.widgets.stepper import collective_stepper

__all__ = ["axis_picker", "collective_stepper", "layout_table", "sharding_explorer"]
