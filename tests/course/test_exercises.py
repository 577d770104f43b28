"""Each exercise: its stub is not accepted, its solution is, and wrong answers are refused with the hint they need."""

import importlib
import os
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tinyshard as ts
from course import check, checking
from course.exercises import exercises_of, lesson_numbers
from course.patterns import network
from course.solutions.answers import Answers, Made, Wrong
from course.solutions.lesson_04 import column_sums
from course.solutions.lesson_07 import relayed_from_three
from course.solutions.lesson_11 import COUNTING
from tests.extent import mostly_whole
from tests.rows import for_every_row

P = ts.P
EXERCISES = {id: exercise for lesson in lesson_numbers() for id, exercise in exercises_of(lesson).items()}


def answers_of(id: str) -> Answers:
    lesson = id.partition(".")[0]
    found = importlib.import_module(f"course.solutions.lesson_{lesson}").ANSWERS[id]
    assert isinstance(found, Answers)
    return found


# Compiled or traced over and over, and told by the judge what another wrong answer to the same exercise is told.
EXPENSIVE_AND_ALIKE = ("09.3-wrong-4",)
# A program of eight devices for each answer: of each exercise one wrong answer.
COMPILED = ("11.3", "15", "16", "18")
WRONG = mostly_whole(
    [
        pytest.param(id, wrong, id=f"{id}-wrong-{number}")
        for id in EXERCISES
        for number, wrong in enumerate(answers_of(id).wrong, start=1)
    ],
    lambda row: row.id not in EXPENSIVE_AND_ALIKE and (not row.id.startswith(COMPILED) or row.id.endswith("-wrong-1")),
)


def made(answer: object) -> object:
    return answer.make() if isinstance(answer, Made) else answer


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.fixture(autouse=True)
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty one for each answer, so that each is the first attempt; a busy machine changes no verdict."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "LIMIT_S", 250.0)
    return tmp_path


@pytest.mark.parametrize("id", EXERCISES)
def test_the_solution_is_passed_and_told_why_it_is_right(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    solution = made(answers_of(id).solution)
    check(id, solution)
    verdict, *why = capsys.readouterr().out.splitlines()
    assert verdict == f"{id}: passed"
    right = EXERCISES[id].why_of(solution)
    assert right
    assert " ".join(" ".join(why).split()) == " ".join(f"why: {right}".split())


@pytest.mark.parametrize("id, wrong", WRONG)
def test_a_wrong_answer_is_refused_with_its_hint(id: str, wrong: Wrong, capsys: pytest.CaptureFixture[str]) -> None:
    check(id, made(wrong.answer))
    told, _, hint = capsys.readouterr().out.partition("\n  hint")
    assert told.startswith(f"{id}: ")
    assert told not in (f"{id}: passed", f"{id}: not yet", f"{id}: ")
    assert wrong.hint in " ".join(hint.split())


@pytest.mark.parametrize("id", EXERCISES)
def test_the_stub_is_not_yet_and_leaves_no_trace(
    id: str, capsys: pytest.CaptureFixture[str], working_folder: Path
) -> None:
    check(id, None)
    check(id, EXERCISES[id].stub)
    assert capsys.readouterr().out == f"{id}: not yet\n" * 2
    assert list(working_folder.iterdir()) == []


@for_every_row(EXERCISES)
def test_a_ladder_has_two_rungs_or_three_and_an_exercise_two_wrong_answers_or_more(id: str) -> None:
    assert 2 <= len(EXERCISES[id].hints) <= 3
    assert len(answers_of(id).wrong) >= 2


@for_every_row(lesson_numbers())
def test_exercises_are_numbered_in_the_order_of_their_lesson(lesson: str) -> None:
    ids = list(exercises_of(lesson))
    assert ids == [f"{lesson}.{number}" for number in range(1, len(ids) + 1)]
    assert list(importlib.import_module(f"course.solutions.lesson_{lesson}").ANSWERS) == ids


def benchmark_by(clock: Callable[[], float], second: float = 1) -> Callable[[Any], float]:
    """The right answer to 01.2, by another clock, which its cell knows by a name of its own."""
    cell = {"clock": clock, "second": second}
    exec(
        "def benchmark(matrix):\n"
        "    matrix.block_until_ready()\n"
        "    start = clock()\n"
        "    (matrix @ matrix).block_until_ready()\n"
        "    return (clock() - start) / second\n",
        cell,
    )
    benchmark: Callable[[Any], float] = cell["benchmark"]  # type: ignore[assignment]
    return benchmark


def benchmark_by_monotonic(matrix: Any) -> float:
    matrix.block_until_ready()
    start = time.monotonic()
    (matrix @ matrix).block_until_ready()
    return time.monotonic() - start


def fetch_of_named_data(array: Any) -> torch.Tensor:
    """Names the data of copies too, and asks for their shape: neither fetches them."""
    whole = torch.empty(array.size())
    for shard in array.addressable_shards:
        block = shard.data
        if shard.replica_id == 0 and block.numel():
            whole[shard.index] = ts.device_get(block.block_until_ready())
    return whole


def fetch_after_waiting(array: Any) -> torch.Tensor:
    """To wait for a copy is not to fetch it."""
    for shard in array.addressable_shards:
        shard.data.block_until_ready()
    return fetch_of_named_data(array)


def fetch_by_rows(array: Any) -> torch.Tensor:
    whole = torch.empty(array.shape)
    for shard in array.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = torch.stack([ts.device_get(row) for row in shard.data])
    return whole


def measured_as_tensor(matrix: Any) -> torch.Tensor:
    return torch.tensor(benchmark_by(time.perf_counter)(matrix))


def waits_and_knows(matrix: Any) -> float:
    (matrix @ matrix).block_until_ready()
    return 1.0


def nearest_by_names(distance: Any, points: Any) -> Any:
    table = ts.vmap(lambda one: ts.vmap(lambda other: distance(b=other, a=one))(points))(points)
    return table.fill_diagonal_(torch.inf).argmin(0)


def pulls_by_names(loss: Any, w: Any, examples: Any, targets: Any) -> Any:
    def on_block(w: Any, examples: Any, targets: Any) -> Any:
        def length(x: Any, target: Any) -> Any:
            return ts.grad(lambda w: loss(w=w, x=x, target=target))(ts.lax.pcast(w, "d", to="varying")).norm()

        return ts.vmap(length)(examples, targets)

    line = ts.make_mesh((8,), ("d",))
    specs = ts.P(), ts.P("d"), ts.P("d")
    return ts.shard_map(on_block, mesh=line, in_specs=specs, out_specs=ts.P("d"))(w, examples, targets)


def loss_that_ignores(params: Any, batch: Any, counts: Any) -> Any:
    """PyTorch's own way: a label that is not counted."""
    x, labels = batch
    outputs = torch.func.functional_call(network(), params, (x,))
    return torch.nn.functional.cross_entropy(outputs, torch.where(counts > 0, labels, -100))


def train_fetching_a_list(w: Any, steps: int) -> tuple[Any, list[torch.Tensor]]:
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w, ts.device_get(losses)


def alive_by_the_system(devices: Any) -> list[int]:
    def lives(device: Any) -> bool:
        try:
            os.kill(device.pid, 0)
        except (OSError, ts.DeviceLostError):
            return False
        return True

    return [device.id for device in devices if lives(device)]


def exchanged_quarters(row: Any) -> Any:
    part = ts.lax.psum_scatter(row, "device", tiled=True)
    return ts.lax.all_gather(part + ts.lax.ppermute(part, "host", [(0, 1), (1, 0)]), "device", tiled=True)


OTHER_RIGHT_ANSWERS = [
    ("00.3", (torch.tensor(4), 512 * 1024 * 32 / 8)),
    ("01.2", benchmark_by(time.perf_counter)),
    ("01.2", benchmark_by(time.perf_counter_ns, 1e9)),
    ("01.2", benchmark_by(time.monotonic)),
    ("01.2", benchmark_by_monotonic),
    ("01.2", measured_as_tensor),
    ("03.1", lambda array, row, column: tuple(answers_of("03.1").solution(array, row, column))),  # type: ignore[operator]
    ("03.2", fetch_of_named_data),
    ("03.2", fetch_after_waiting),
    ("05.1", nearest_by_names),
    ("06.3", pulls_by_names),
    ("07.2", relayed_from_three),
    ("08.4", Fraction(80) * 100_000 / Fraction(3, 4)),
    ("11.1", (COUNTING, loss_that_ignores)),
    ("12.2", lambda devices: tuple(answers_of("12.2").solution(devices))),  # type: ignore[operator]
    ("12.2", alive_by_the_system),
    ("12.4", [ts.P(None, "d"), ts.P(None, "d")]),
    ("13.1", train_fetching_a_list),
    ("13.2", (ts.P(("host", "device")), ts.P("device"), ts.P("device"))),
    ("13.3", exchanged_quarters),
    ("14.1", np.int64(310)),
    ("14.2", torch.tensor(1997)),
    ("14.2", 1997.0),
]


total_jit = ts.jit(lambda v: v.sum())


def mean_in_one_bucket(v: Any) -> Any:
    return total_jit(torch.nn.functional.pad(v, (0, 64 - len(v)))) / len(v)


def mean_in_buckets_of_ten(v: Any) -> Any:
    return total_jit(torch.nn.functional.pad(v, (0, -len(v) % 10))) / len(v)


THREE_LAYERS = {"layers.0.*": P("model"), "layers.1.*": P("model"), "layers.2.weight": P(None, "model")}
# Of answers that differ in what they reach, each is told what is true of it.
WHY = [
    ("04.2", (P("a"), P(None, ("b", "a"))), "its columns, cut by a as well as by b"),
    ("04.3", (P(), P(None, "a"), P("a", "b")), "b cuts the columns of down"),
    ("04.4", column_sums(P("a", "b"), P()), "2,368 bytes"),
    (
        "11.3",
        {"layers.0.*": P("model"), "layers.1.*": P("model"), "layers.2.weight": P(None, "model")},
        "163,840 bytes",
    ),
    ("09.3", mean_in_one_bucket, "64 times as long"),
    ("09.3", mean_in_buckets_of_ten, "7 shapes serve all 64 lengths"),
]


@pytest.mark.parametrize("id, answer, why", WHY)
def test_why_an_answer_is_right_is_true_of_that_answer(
    id: str, answer: object, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(id, answer)
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith(f"{id}: passed")
    assert why in told


@pytest.mark.parametrize("id, answer", OTHER_RIGHT_ANSWERS)
def test_a_right_answer_that_is_written_in_another_way_is_passed(
    id: str, answer: object, capsys: pytest.CaptureFixture[str]
) -> None:
    check(id, answer)
    assert capsys.readouterr().out.splitlines()[0] == f"{id}: passed"


WRONG_ANSWERS: list[tuple[str, object, str]] = [
    ("01.2", lambda matrix: 1.0, "it does not wait for the product"),
    ("01.2", waits_and_knows, "where one product takes 3 seconds, by `time.perf_counter`, it says 1"),
    ("03.1", lambda board: [0], "it cannot be called as the task calls it: TypeError: <lambda>() takes 1 positional"),
    ("03.2", fetch_by_rows, "right, but it fetches 8 arrays for 4 blocks, and not all are the `data` of shards"),
    ("05.1", torch.add, "it cannot be called as the task calls it: TypeError: add(): argument 'input'"),
    (
        "05.1",
        lambda distance, points: ts.vmap(lambda a: distance(a))(points),
        "distance(): missing a required argument",
    ),
]


@pytest.mark.parametrize("id, answer, told", WRONG_ANSWERS)
def test_of_a_wrong_answer_it_is_said_what_is_wrong_with_it(
    id: str, answer: object, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    check(id, answer)
    printed = capsys.readouterr().out
    assert told in printed
    assert "raise TypeError" not in printed


@pytest.mark.parametrize("id", ["02.2", "07.1", "07.3", "07.4", "08.3", "04.4"])
def test_of_a_function_without_return_it_is_said_that_it_returns_none(
    id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def forgetful(*operands: Any) -> None:
        torch.zeros(2)

    check(id, forgetful)
    told = capsys.readouterr().out
    assert "None" in told.splitlines()[0]
    assert "it raised" not in told


def test_a_value_of_the_wrong_form_has_raised_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    check("11.1", ((2, 4),))
    assert capsys.readouterr().out.startswith("11.1: what it is cannot be checked: ValueError: ")
