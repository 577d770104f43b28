"""Lesson 00: one laptop, eight devices."""

from collections.abc import Callable, Sequence

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs

__all__ = ["EXERCISES"]

DEVICES, HIDDEN = 8, 8192
KIB = 1024
# KiB of the tensors, and of the room of each device; the first is the lesson's, a 256th of its size
PLACEMENTS = (
    ((48, 8, 24, 8, 24, 8, 8, 16, 48, 8, 40, 8, 32, 16), (64, 64, 64, 32, 64, 64, 64, 64)),
    ((64, 64, 64, 64, 64, 64, 64, 64), (64, 64, 64, 64, 64, 64, 64, 64)),
    ((8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8), (0, 16, 0, 16, 0, 24, 64, 8)),
)
KEPT = (4, 512 * 1024 * 4)


Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _layer(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ up) @ down


# layers with `relu` in the wrong place, and what to say of their parts
MISPLACED: tuple[tuple[Layer, str], ...] = (
    (
        lambda x, up, down: x @ up @ down,
        "The eight parts add up to the layer without `relu`. Which line of the program has it?",
    ),
    (
        lambda x, up, down: torch.relu(x @ up @ down),
        "Here `relu` comes last. In the program it is %4, between the two products.",
    ),
    (
        lambda x, up, down: torch.relu(x) @ up @ down,
        "Here `relu` is applied to `x`. In the program it is applied to %3, the first product.",
    ),
)


def judge_part(part: Callable[..., object]) -> Verdict:
    """00.1: relu(x @ its columns) @ its rows, for each of eight devices."""
    generator = torch.Generator().manual_seed(1)
    shapes = (2, 4), (4, HIDDEN), (HIDDEN, 3)
    x, up, down = (torch.randint(-1, 2, shape, generator=generator).float() for shape in shapes)
    y = _layer(x, up, down)
    got = [part(x, up, down, k) for k in range(DEVICES)]
    sizes = "x, up and down of shapes " + ", ".join(map(str, shapes))
    reported = [
        difference(mine, _part(x, up, down, k), f"for {sizes} the part of device {k}") for k, mine in enumerate(got)
    ]
    if not any(reported):
        return PASSED
    first = next(filter(None, reported))
    if any(each is None or plain(each).shape != y.shape for each in got):
        return differs(first, "Each part has the shape of the whole y: a device sums over its rows of `down` only.")
    if not difference(got[0], y):
        return differs(first, "That is the whole y. The device has 1024 columns of `up` and 1024 rows of `down`.")
    for misplaced, hint in MISPLACED:
        if not any(difference(mine, _part(x, up, down, k, misplaced)) for k, mine in enumerate(got)):
            return differs(first, hint)
    if difference(sum(map(plain, got)), y):
        return differs(first)
    if not difference(got[0], y / DEVICES):
        return differs(first, "The sum is right, but no device could compute this from its own columns and rows.")
    return differs(first, "The sum is right, but these are not its columns: device 0 has the first 1024, in one block.")


def _part(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, k: int, layer: Layer = _layer) -> torch.Tensor:
    width = up.shape[1] // DEVICES
    mine = slice(k * width, (k + 1) * width)
    return layer(x, up[:, mine], down[mine])


def judge_place(place: Callable[..., Sequence[object]]) -> Verdict:
    """00.2: whole tensors, each on one device that has room for it; the rooms differ."""
    for sizes, rooms in PLACEMENTS:
        tensors = [torch.full((kib, 256), float(number)) for number, kib in enumerate(sizes)]
        room = {device: kib * KIB for device, kib in zip(ts.devices(), rooms, strict=True)}
        verdict = _judge_placed(place(tensors, dict(room)), tensors, room)
        if not verdict.is_passed:
            return verdict
    return PASSED


def _judge_placed(placed: object, tensors: Sequence[torch.Tensor], room: dict[ts.Device, int]) -> Verdict:
    if not isinstance(placed, list | tuple) or len(placed) != len(tensors):
        return differs(f"it does not return a list of {len(tensors)} Arrays")
    taken, numbers = dict.fromkeys(room, 0), dict.fromkeys(room, 0)
    for number, (array, tensor) in enumerate(zip(placed, tensors, strict=True)):
        if not isinstance(array, ts.Array):
            hint = "A plain tensor is in the memory of the controller. Which function sends it to a device?"
            return differs(f"number {number} is of type {type(array).__name__}, not an Array", hint)
        reported = difference(array, tensor, f"number {number}")
        if reported:
            return differs(reported)
        if array.dtype != tensor.dtype:
            return differs(f"number {number} is of type {array.dtype}, not {tensor.dtype}")
        if len(array.devices()) > 1:
            hint = "Each tensor stays whole, on one device: give `device_put` a device of `room`, not a sharding."
            return differs(f"number {number} is on {len(array.devices())} devices, not on one", hint)
        (device,) = array.devices()
        taken[device] += array.nbytes
        numbers[device] += array.numel()
    full = [device for device in room if taken[device] > room[device]]
    if not full:
        return PASSED
    reported = f"{full[0]} gets {taken[full[0]] // KIB} KiB, and has room for {room[full[0]] // KIB}"
    if sum(nbytes > 0 for nbytes in taken.values()) == 1:
        return differs(
            reported, "All are on one device, and the seven others keep nothing. `ts.devices()` lists eight."
        )
    if all(array.devices() == {ts.devices()[number % DEVICES]} for number, array in enumerate(placed)):
        return differs(reported, "Taking the devices in turn counts tensors. Count bytes.")
    if all(nbytes <= max(room.values()) for nbytes in taken.values()):
        return differs(reported, "That would fit if all devices had as much room as the emptiest. They do not.")
    if all(numbers[device] <= room[device] for device in room):
        return differs(reported, "`numel` counts numbers, and each of them has 4 bytes. `nbytes` counts bytes.")
    return differs(reported)


def judge_kept(answer: object) -> Verdict:
    """00.3: one sum on CPU 2; what CPU 4 was sent."""
    numbers = [number_in(each) for each in answer] if isinstance(answer, list | tuple) else []
    if len(numbers) != 2 or not all(isinstance(each, int) for each in numbers):
        return differs("it is not a list of two whole numbers of bytes")
    on_2, on_4 = numbers
    assert on_2 is not None
    right = sum(each == want for each, want in zip(numbers, KEPT, strict=True))
    if right == 2:
        return PASSED
    reported = f"{right} of 2 {'is' if right == 1 else 'are'} right"
    half = KEPT[1]
    if (on_2, on_4) in ((1, half // 4), (4, half // 4), (1, half)):
        return differs(reported, "These are numbers, not bytes: a 32-bit float has 4 bytes.")
    if on_4 == 0:
        return differs(reported, "`device_get` fetches a copy of `c`. What becomes of `c` itself?")
    if on_2 >= half:
        return differs(
            reported, "An Array without a name is forgotten. Which names are left for the first `a` and the first `b`?"
        )
    if on_2 == 0:
        return differs(reported, "Where is a sum computed, and where is it kept? Its Array still has a name.")
    return differs(reported)


EXERCISES = (
    Exercise(
        "00.1",
        judge_part,
        (
            "Read the program of section 1 from %0 to %5, for one device. Which columns and rows has device k?",
            "Device k has the columns from 1024 k up to 1024 (k + 1), and the rows of `down` with the same numbers.",
            "It is `layer` itself, called with the whole `x` and two slices: one in dim 1 of `up`, the same one in "
            "dim 0 of `down`.",
        ),
        why="Columns of `x @ up` need only their columns of `up`, `relu` works number by number, and each number of "
        "y is a sum over all rows of `down`: each device adds up its own rows, and one all_reduce adds the eight sums.",
    ),
    Exercise(
        "00.2",
        judge_place,
        (
            "For each device, keep a count of the bytes that you have sent there.",
            "Before you send a tensor: which device still has room for its bytes?",
            "When a device gets a tensor, its room shrinks by `tensor.nbytes`. Look at the rooms as they are now.",
        ),
        why="Bytes count, not tensors, and each device has a room of its own. Tensors that are far too much for one "
        "device fit on eight. A tensor that no device has room for must be cut, as in section 1.",
    ),
    Exercise(
        "00.3",
        judge_kept,
        (
            "Make a table: for each line, which Array begins, where, and of how many bytes? Which one loses its "
            "last name?",
            "After the last line three names are left: `b`, `c` and `d`. Which process keeps the numbers of each?",
        ),
        stub=[None, None],
        why="The first `a` and the first `b` have lost their names, so CPU 2 keeps only the sum, one number of "
        "4 bytes. `c` is a copy on CPU 4, 512 × 1024 × 4 bytes; `d` is a plain tensor in the controller's memory.",
    ),
)
