"""Lesson 16: answers."""

import tinyshard as ts
from course.solutions.answers import Answers, Wrong
from course.training import begin

__all__ = ["ANSWERS"]

P = ts.P
ROWS = {f"layers.*.{name}.{part}": P("model") for name in ("q", "k", "v", "up") for part in ("weight", "bias")}
CUT = {**ROWS, "layers.*.o.weight": P(None, "model"), "layers.*.down.weight": P(None, "model")}

MLP = ("layers.*.up.weight", "layers.*.up.bias", "layers.*.down.weight")

# ---- 16.2 ----------------------------------------------------------------------------------------------------------


def longest_waited_for(events):  # type: ignore[no-untyped-def]
    """The device for which the others lost most time."""
    late = dict.fromkeys(events.devices, 0)
    for step in events.steps:
        late[step.device] += step.held_up_ns
    return max(late, key=late.get)  # type: ignore[arg-type]


def longest_wait(events):  # type: ignore[no-untyped-def]
    """Names a victim."""
    waits = {device: sum(s.wait_ns for s in events.steps if s.device == device) for device in events.devices}
    return max(waits, key=waits.get)  # type: ignore[arg-type]


def shortest_wait(events):  # type: ignore[no-untyped-def]
    """Takes a whole row that is on time for late."""
    waits = {device: sum(s.wait_ns for s in events.steps if s.device == device) for device in events.devices}
    return min(waits, key=waits.get)  # type: ignore[arg-type]


def most_often_last(events):  # type: ignore[no-untyped-def]
    """Counts, and does not weigh."""
    times = {device: sum(s.held_up_ns > 0 for s in events.steps if s.device == device) for device in events.devices}
    return max(times, key=times.get)  # type: ignore[arg-type]


def longest_at_work(events):  # type: ignore[no-untyped-def]
    """Adds up what a device does without waiting."""
    work = {device: sum(s.busy_ns + s.held_up_ns for s in events.steps if s.device == device) for device in DEVICES}
    return max(work, key=work.get)  # type: ignore[arg-type]


DEVICES = range(8)

# ---- 16.3 ----------------------------------------------------------------------------------------------------------


def resumed(folder, mesh):  # type: ignore[no-untyped-def]
    """All that was saved, where the new mesh has it."""
    places = ts.tree.map(lambda x: getattr(x, "sharding", None), begin(mesh, CUT))
    return ts.load(folder, places)


def without_moments(folder, mesh):  # type: ignore[no-untyped-def]
    """AdamW begins again."""
    now = begin(mesh, CUT)
    return {**resumed(folder, mesh), "adam": now["adam"]}


def from_step_0(folder, mesh):  # type: ignore[no-untyped-def]
    """The same pieces of the text again."""
    return {**resumed(folder, mesh), "step": 0}


def as_it_was(folder, mesh):  # type: ignore[no-untyped-def]
    """The values are there, on the old mesh."""
    return ts.load(folder)


def whole_moments(folder, mesh):  # type: ignore[no-untyped-def]
    """Every device holds all moments."""
    places = ts.tree.map(lambda x: x.sharding, begin(mesh, CUT)["params"])
    return ts.load(folder, {"params": places, "adam": ts.NamedSharding(mesh, P()), "step": None})


ANSWERS = {
    "16.1": Answers(
        solution=({"data": 2, "model": 4}, CUT),
        wrong=(
            Wrong(({"data": 8, "model": 1}, {"*": P("data")}), "each matrix is gathered before it is used"),
            Wrong(({"data": 1, "model": 8}, CUT), "How many pieces has a device on 2 x 4"),
            Wrong(({"data": 2, "model": 4}, ROWS), "which dim of theirs may be cut"),
            Wrong(({"data": 2, "model": 4}, {"*": P("model")}), "is cut by its outputs"),
            Wrong(({"data": 2, "model": 4}, {name: CUT[name] for name in MLP}), "Still whole on each device"),
        ),
    ),
    "16.2": Answers(
        solution=longest_waited_for,
        wrong=(
            Wrong(longest_wait, "The device that waits longest is a victim"),
            Wrong(shortest_wait, "Ask who was waited for"),
            Wrong(most_often_last, "Add up times, do not count"),
            Wrong(longest_at_work, "no device waits for it"),
        ),
    ),
    "16.3": Answers(
        solution=resumed,
        wrong=(
            Wrong(without_moments, "With moments of zero"),
            Wrong(from_step_0, "which pieces of the text come next"),
            Wrong(as_it_was, "The new mesh cuts in more parts"),
            Wrong(whole_moments, "ask its Arrays for their"),
        ),
    ),
}
