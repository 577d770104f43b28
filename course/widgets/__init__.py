"""Pictures that answer when they are touched, one for each lesson. Show one as the last line of a cell.

    base          a picture with controls: what a notebook shows, stores and compares
    card          the sheet on which a picture is drawn, legible on light and dark pages
    bars          rows of bars, end to end behind a name, and their legend
    grid          a small table of numbers in the colours of those to whom they belong
    device_panel  lesson 00: a lamp, a pid and the memory of each device
    spans         lesson 01: dispatch, queue, compute and wait; a button measures here
    recorded_spans  the times that it draws until then; record_spans is the command that took them
    axes          lesson 05: choose in_axes and out_axes; which numbers make up an example
    sharding      lesson 02: choose mesh, array and spec; what each device holds, and how many bytes
    array_moves   lesson 03: choose where an array is and where it goes; every step of the move on every device
    rounds        lesson 08: the rounds of three all-reduces on a circle; which is fastest, by links and row size
    stepper       lessons 07 and 08: step through a collective; what each device sends to which
    views         lesson 06: the whole beside one device, under pmap and shard_map
    layouts       lesson 04: layouts of the operands in; program, layout of the result, bytes and work out
    costs         lesson 11: what a training step holds, by kind, and sends, under a layout beside four others
    kind_bars     what a device holds by kind, counted and by a formula: bars of lessons 11 and 15
    cache         lesson 09: a function is called again; what jit finds in its caches, and what it makes
    counters      lesson 10: which counter makes which number, on which device
    waiting       lesson 12: which device waits for which
    planner       lesson 14: choose a machine; time, memory and bytes of a training step under three layouts
    memory        lesson 15: what a device holds at the peak of a training step, by kind, under four layouts and a limit
    loss_curve    lesson 16: the loss of each step of a training, which grows while it runs
    schedule      lesson 18: the steps of programs, and the memory that a device holds during each
    timetable     lesson 18: which stage of a pipeline works on which micro-batch, and how many it holds
    experts       lesson 17: the router's choices and the capacity; which tokens are dropped, what the boxes hold
    bridge        lesson 19: a program of torch.distributed beside the same training in tinyshard
    traffic       what is sent in a mapped function, recorded while its Program runs
    pattern_times what such a function, or a device_put, takes on the devices, beside the model
    timed         a time that is measured when a button is pressed, beside the model's
    moves         what is sent in a device_put from one device to all or back, likewise
    journey       what each device holds after every step of a device_put

A lesson says `from course import widgets`, and then for example `widgets.sharding_explorer()`.
"""

from course.widgets.array_moves import array_moves
from course.widgets.axes import axis_picker
from course.widgets.bridge import two_programs
from course.widgets.cache import cache_explorer
from course.widgets.costs import layout_costs
from course.widgets.counters import counter_map
from course.widgets.device_panel import device_panel
from course.widgets.experts import token_routing
from course.widgets.layouts import layout_table
from course.widgets.loss_curve import loss_curve
from course.widgets.memory import memory_by_kind
from course.widgets.planner import machine_planner
from course.widgets.rounds import exchange_rounds
from course.widgets.schedule import program_schedule
from course.widgets.sharding import sharding_explorer
from course.widgets.spans import time_line
from course.widgets.stepper import collective_stepper
from course.widgets.timetable import timetable
from course.widgets.views import two_views
from course.widgets.waiting import who_waits

__all__ = [
    "array_moves",
    "axis_picker",
    "cache_explorer",
    "collective_stepper",
    "counter_map",
    "device_panel",
    "exchange_rounds",
    "layout_costs",
    "layout_table",
    "loss_curve",
    "machine_planner",
    "memory_by_kind",
    "program_schedule",
    "sharding_explorer",
    "time_line",
    "timetable",
    "token_routing",
    "two_programs",
    "two_views",
    "who_waits",
]
