"""Lesson 16: a transformer, start to finish."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import tinyshard as ts
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.training import OPTIMIZER, begin, compiled_for, initial
from tinyshard.profiler.events import Events, Step

__all__ = ["CUT", "EXERCISES", "MOST_HELD", "MOST_SENT"]

P = ts.P
MIB = 1 << 20
MOST_HELD, MOST_SENT = 5 * MIB, 2.5 * MIB  # bytes of a device
AT_REST = 12  # bytes of a parameter: itself and AdamW's two moments; its gradient has four more
# Heads and MLP by rows, and back by columns, as section 4 of the lesson has them.
CUT = {
    **{f"layers.*.{name}.{part}": P("model") for name in ("q", "k", "v", "up") for part in ("weight", "bias")},
    **{f"layers.*.{name}.weight": P(None, "model") for name in ("o", "down")},
}

# ---- 16.1 ----------------------------------------------------------------------------------------------------------


def judge_layout(answer: object) -> Verdict:
    """16.1: a step fits, and sends little, because both axes are used."""
    if not (isinstance(answer, list | tuple) and len(answer) == 2 and all(isinstance(x, Mapping) for x in answer)):
        return differs("it is not a pair of two dicts, the axes and the cut")
    axes, cut = answer
    if set(axes) != {"data", "model"} or axes["data"] * axes["model"] != 8:
        return differs(f"the axes are {dict(axes)}, not data and model with 8 devices together")
    compiled = compiled_for(axes, cut)
    held, sent = compiled.memory_analysis().peak_nbytes, compiled.cost_analysis().nbytes
    reported = f"{held / MIB:.2f} MiB at the peak, {sent / MIB:.2f} MiB sent"
    if held <= MOST_HELD and sent <= MOST_SENT:
        return PASSED
    specs = _specs_of_matrices(axes, cut)
    named = {matrix for matrix, spec in specs.items() if "model" in str(spec)}
    if held > MOST_HELD and not any(cut.values()):
        return differs(
            reported,
            "Every device holds all parameters, gradients and moments. What is cut along `model` is held in parts.",
        )
    if axes["model"] == 1 or not named:
        return differs(
            reported,
            "Cut along `data` alone, each matrix is gathered before it is used and its gradient is scattered. Let the "
            "devices along `model` work on parts of a matrix, which never is whole.",
        )
    if not {"o", "down"} & named:
        return differs(
            reported,
            "`o` and `down` are whole on each device. Their inputs arrive in parts; which dim of theirs may be cut?",
        )
    if any("model" in str(tuple(specs[matrix])[:1]) for matrix in ("o", "down")):
        return differs(
            reported,
            "`o` or `down` is cut by its outputs, so its inputs, which arrive in parts, are gathered first. Which dim "
            "of the weight are its inputs?",
        )
    if axes["data"] == 1:
        return differs(
            reported,
            "All eight devices add up the activations of all sixteen pieces. How many pieces has a device on 2 x 4?",
        )
    if held > MOST_HELD and axes["model"] < 4:
        return differs(
            reported, f"Each device still holds 1/{axes['model']} of the layers, four times. Give `model` more."
        )
    if held > MOST_HELD and set(specs) - named:
        still_whole = ", ".join(f"`{matrix}`" for matrix in specs if matrix not in named)
        return differs(reported, f"Still whole on each device, four times with gradient and moments: {still_whole}.")
    return differs(
        reported,
        "Between two matrices nothing should move: what the first one gives in parts, the second one takes in parts.",
    )


def _specs_of_matrices(axes: Mapping[str, int], cut: Mapping[str, ts.PartitionSpec]) -> dict[str, ts.PartitionSpec]:
    """How the six matrices of the first layer are cut."""
    of_all = ts.shardings(initial(), cut, ts.AbstractMesh(tuple(axes.values()), tuple(axes)))
    return {matrix: of_all[f"layers.0.{matrix}.weight"].spec for matrix in ("q", "k", "v", "o", "up", "down")}


# ---- 16.2 ----------------------------------------------------------------------------------------------------------

MS = 1_000_000  # in ns
DEVICES = range(8)


def _exchange(late_ns: Mapping[int, int], at_ns: int, group: Sequence[int] = DEVICES) -> list[Step]:
    """One all_reduce that begins at `at_ns`, but on some devices later."""
    last = max(group, key=lambda device: late_ns.get(device, 0))
    waits = {device: late_ns.get(last, 0) - late_ns.get(device, 0) for device in group}
    held_up = sum(waits.values()) // (len(group) - 1)
    return [
        Step(
            device, 0, "all_reduce", at_ns + late_ns.get(device, 0), at_ns + late_ns.get(last, 0) + MS // 10,
            True, waits[device], held_up if device == last else 0, 0, 4096, "train",
        )
        for device in group
    ]  # fmt: skip


def _computing(device: int, at_ns: int, lasts_ns: int) -> Step:
    return Step(device, 0, "aten.mm.default", at_ns, at_ns + lasts_ns, False, 0, 0, 0, 4096, "train")


def _events(*steps: Sequence[Step]) -> Events:
    every = tuple(sorted((s for several in steps for s in several), key=lambda s: (s.device, s.start_ns)))
    return Events(tuple(DEVICES), "cpu", max(s.end_ns for s in every), every, (), ())


# What happens, the events, and which device delayed the rest.
CASES = (
    (
        "CPU 5 comes 40 ms late to each of three exchanges",
        _events(*(_exchange({5: 40 * MS}, at * 50 * MS) for at in range(3))),
        5,
    ),
    (
        "CPU 2 is last six times, by 0.01 ms; CPU 7 once, by 30 ms",
        _events(*(_exchange({2: MS // 100}, at * MS) for at in range(6)), _exchange({7: 30 * MS}, 10 * MS)),
        7,
    ),
    (
        "CPU 6 comes 5 ms late; after the last exchange CPU 1 computes for 100 ms more",
        _events(_exchange({6: 5 * MS}, 0), [_computing(1, 6 * MS, 100 * MS)]),
        6,
    ),
    (
        "the two rows of a mesh exchange apart; in the second one CPU 6 comes 20 ms late",
        _events(_exchange({}, 0, range(4)), _exchange({6: 20 * MS}, 0, range(4, 8))),
        6,
    ),
)


def judge_straggler(straggler: Callable[[Events], object]) -> Verdict:
    """16.2: the device that was waited for the longest."""
    for what, events, want in CASES:
        got = straggler(events)
        got = got.id if isinstance(got, ts.Device) else got
        if isinstance(got, int) and got == want:
            continue
        reported = f"{what}: it returns {got!r}, not {want}"
        if got is None or not isinstance(got, int) or got not in DEVICES:
            return differs(reported)
        waits = {d: sum(s.wait_ns for s in events.steps if s.device == d) for d in DEVICES}
        times = {d: sum(s.held_up_ns > 0 for s in events.steps if s.device == d) for d in DEVICES}
        computes_ns = sum(s.end_ns - s.start_ns for s in events.steps if s.device == got and not s.is_exchange)
        if computes_ns and not times[got]:
            return differs(
                reported, "It computes long, but no device waits for it. Only what comes late to an exchange counts."
            )
        if waits[got] == max(waits.values()) > 0:
            return differs(reported, "The device that waits longest is a victim. Which one does it wait for?")
        if times[got] > times[want]:
            return differs(reported, "Being last costs the others a time, long or short. Add up times, do not count.")
        return differs(reported, "A device may wait little because its own group is on time. Ask who was waited for.")
    return PASSED


# ---- 16.3 ----------------------------------------------------------------------------------------------------------

SAVED_AT = 40


def _trained() -> dict[str, Any]:
    """Something that 40 steps may have left, in this process: no moment is zero, and the counters are not either."""
    params = initial()
    params, adam = ts.tree.map(lambda x: x + SAVED_AT, (params, OPTIMIZER.init(params)))
    return {"params": params, "adam": adam, "step": SAVED_AT}


def judge_resume(resume: Callable[[Path, ts.Mesh], Any]) -> Verdict:
    """16.3: parameters, moments, counters and the number of the step, on the devices of another mesh."""
    count = len(ts.devices())
    saved = _trained()
    mesh = ts.make_mesh((1, count), ("data", "model"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "saved"
        places = _places(saved, ts.make_mesh((2, count // 2), ("data", "model")))
        ts.save({**saved, **{part: ts.device_put(saved[part], places[part]) for part in places}}, path)
        got = resume(path, mesh)
        if not isinstance(got, Mapping) or set(got) != set(saved):
            return differs(f"it does not return a dict with {', '.join(map(repr, saved))}")
        return _compared(got, saved, _places(saved, mesh))


def _places(saved: dict[str, Any], mesh: ts.Mesh) -> dict[str, Any]:
    """Where `begin` puts parameters and state: a moment beside its parameter, counters everywhere."""
    params, whole = ts.shardings(saved["params"], CUT, mesh), ts.NamedSharding(mesh, P())
    slots = {
        name: {part: params[name] if x.dim() else whole for part, x in slot.items()}
        for name, slot in saved["adam"]["slots"].items()
    }
    return {"params": params, "adam": {"count": whole, "slots": slots}}


def _compared(got: Mapping[str, Any], saved: dict[str, Any], places: dict[str, Any]) -> Verdict:
    if not isinstance(got["step"], int) or got["step"] != SAVED_AT:
        return differs(
            f"the step is {got['step']!r}, and {SAVED_AT} was saved",
            "The number of the step says which pieces of the text come next. Where was it written?",
        )
    for part in ("params", "adam"):
        if ts.tree.structure(got[part]) != ts.tree.structure(saved[part]):
            return differs(f"`{part}` has another form than what was saved: {type(got[part]).__name__}")
        mine = ts.tree.leaves(ts.device_get(got[part]))
        if not all(map(torch.equal, mine, ts.tree.leaves(saved[part]))):
            hint = (
                "AdamW divides by the root of the second moment. With moments of zero its next steps are as long "
                "as the first ones."
                if part == "adam"
                else "Which parameters are in the file, and which does `begin` make?"
            )
            return differs(f"the values in `{part}` are not those that were saved", hint)
    for part in ("params", "adam"):
        wanted = sum(ts.tree.leaves(ts.tree.map(_shard_nbytes, saved[part], places[part])))
        held = _held_nbytes(got[part])
        if held != wanted:
            return differs(
                f"the values are right, but of `{part}` CPU 0 holds {held:,} bytes, not {wanted:,}",
                "The new mesh cuts in more parts. `begin` puts everything where it belongs: ask its Arrays for their "
                "`sharding`.",
            )
    return PASSED


def _shard_nbytes(x: torch.Tensor, sharding: ts.NamedSharding) -> int:
    return math.prod(sharding.shard_shape(tuple(x.shape))) * x.itemsize


def _held_nbytes(tree: Any) -> int:
    """What device 0 holds of a tree."""
    blocks = [shard.data for x in ts.tree.leaves(tree) for shard in x.addressable_shards if shard.device.id == 0]
    return sum(block.nbytes for block in blocks)


# ---- the answer cells before they are touched ----------------------------------------------------------------------


# Stubs, word by word as in the answer cells: a docstring would make them other functions.
def _of_the_longest_wait(events: Any) -> Any:
    waited = dict.fromkeys(events.devices, 0)
    for step in events.steps:
        waited[step.device] += step.wait_ns
    return max(waited, key=waited.get)  # type: ignore[arg-type]


def _from_the_beginning(folder: Any, mesh: Any) -> Any:
    return begin(mesh, CUT)


EXERCISES = (
    Exercise(
        "16.1",
        judge_layout,
        (
            "What do eight copies of 16 bytes a parameter hold? Which matrices have most of the parameters?",
            "Cut `q`, `k`, `v` and `up` so that a device makes its own heads and its own hidden values: which dim of "
            "a weight are its outputs? The pattern `layers.*.up.weight` names that of all layers.",
            "`o` and `down` take what is in parts: cut their inputs. Then share the eight devices between the axes, so "
            "that neither the parameters nor the activations weigh too much.",
        ),
        stub=({"data": 8, "model": 1}, {}),
        why="Along `model` no matrix is ever whole, and a layer adds up two activations; along `data` a device adds up "
        "the gradients of its quarter of the layers, once in a step.",
    ),
    Exercise(
        "16.2",
        judge_straggler,
        (
            "The fields of a step: `device`, `is_exchange`, `wait_ns`, `held_up_ns`. Which one blames, and which one "
            "complains?",
            "`held_up_ns` belongs to the device that comes last: so long did its group wait for it. Add it up for each "
            "device.",
        ),
        stub=_of_the_longest_wait,
        why="`held_up_ns` is charged to the one that came last, in the time that the others lost. Waits are theirs.",
    ),
    Exercise(
        "16.3",
        judge_resume,
        (
            "Which three things did `train` hand to `ts.save`?",
            "`ts.load(folder, shardings)` takes a tree of shardings of the same form; None for what is no Array.",
            "`begin` makes all of it on the new mesh, with wrong values in the right places. Map over its tree, and "
            "take each Array's sharding.",
        ),
        stub=_from_the_beginning,
        why="Each device of the new mesh reads its own blocks, of parameters and of moments alike; the counters in "
        "AdamW's state carry on the schedule, and the number of the step carries on the text.",
    ),
)
