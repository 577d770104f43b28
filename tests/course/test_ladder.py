"""The puzzle ladder: par by hand, the counts of a program, the board, and what the room sees of it."""

import json
import re

import pytest
import torch

import tinyshard as ts
from course import check, ladder
from course.climbs import CLIMBED, RUNGS, Climb, note_climb, read_climber
from course.commands.room import room_lines
from course.exercises import exercises_of
from course.ladder.rung import counts_of, rounds_of
from course.room import climbers_in
from course.solutions import lesson_18 as solutions
from tests.course.lesson_cells import LESSONS, stored_cells
from tests.rows import for_every_row


@pytest.fixture(scope="module", autouse=True)
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.fixture(autouse=True)
def working_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINYSHARD_ROOM", raising=False)
    return tmp_path


def test_every_rung_is_an_exercise_and_has_three_wrong_answers_or_more():
    assert list(ladder.RUNGS) == list(exercises_of("18")) == list(solutions.ANSWERS)
    assert len(ladder.RUNGS) == RUNGS
    assert all(len(answers.wrong) >= 3 for answers in solutions.ANSWERS.values())


# by hand, in bytes: a row is 1,024 floats; a block of x 32 x 512; a matrix 128 x 128; keys and values 2 x 64 x 16
SENT = {
    "18.1": 7 * 4096,
    "18.2": 7 * 4096,
    "18.3": 2 * 7 * 4096,
    "18.4": 2 * (4 + 2 + 1) * 4096,
    "18.5": 7 * 4096,
    "18.6": 7 * 32 * 512 * 4,
    "18.7": 2 * (2 * 64 * 4 * 7 // 8),
    "18.8": (2 + 1) * 64 * 4 * 7 // 8,
    "18.9": (4 + 2 + 4) * 128 * 128 * 4 * 7 // 8,
    "18.10": 2 * (2 * 16 * 64 * 4 * 7 // 8),
    "18.11": 7 * 2 * 64 * 16 * 4,
    "18.12": 7 * 2 * 64 * 16 * 4,
    "18.13": 14 * 4 * 32 * 4,
    "18.14": 2 * 10 * 8 * 32 * 4 + 2 * 32 * 32 * 4 * 1 // 2,
}


@for_every_row(SENT.items())
def test_the_bytes_of_par_are_those_counted_by_hand(id, nbytes):
    assert ladder.RUNGS[id].par.nbytes == nbytes


def test_other_numbers_of_par_are_those_counted_by_hand():
    assert [ladder.RUNGS[f"18.{n}"].par.rounds for n in (1, 2, 3, 4, 5)] == [7, 7, 14, 6, 1]
    assert ladder.RUNGS["18.12"].par.flops == 17 * 2 * (2 * 32 * 32 * 16)  # of 32 pairs of chunks
    assert ladder.RUNGS["18.13"].par.flops == 15 * 2 * 4 * 32 * 32
    assert ladder.RUNGS["18.14"].par.flops == (11 + 2 * 11 - 1) * 2 * 8 * 32 * 32


@for_every_row(ladder.RUNGS)
def test_the_targets_that_the_lesson_states_are_par(id):
    tasks = [cell["source"] for cell in stored_cells(LESSONS["18"]) if f"### Exercise {id}:" in cell["source"]]
    stated = re.findall(r"[\d,]*\d", tasks[0].partition("**Target:**")[2])
    wanted = [f"{most:,}" for most in vars(ladder.RUNGS[id].par).values() if most is not None]
    assert set(wanted) <= set(stated), (wanted, stated)


def program_of(function):
    mesh = ts.AbstractMesh((8,), ("d",))
    x = ts.ShapeDtypeStruct((64,), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))
    mapped = ts.shard_map(function, mesh=mesh, in_specs=ts.P("d"), out_specs=ts.P("d"))
    return mapped.lower(x).compile().program


@pytest.mark.parametrize(
    "function, rounds",
    [
        (lambda x: x + 1, 0),
        (lambda x: ts.lax.psum(x, "d") + ts.lax.ppermute(x, "d", solutions.RING), 1),
        (lambda x: ts.lax.psum(x * ts.lax.psum(x, "d"), "d"), 2),
        (lambda x: ts.lax.fori_loop(0, 5, lambda _, y: ts.lax.ppermute(y, "d", solutions.RING), x), 5),
    ],
)
def test_rounds_are_the_longest_chain_of_exchanges(function, rounds):
    assert max(rounds_of(program_of(function))) == rounds


def test_an_answer_that_gathers_is_seen_to_do_so_however_it_does_it():
    rung = ladder.RUNGS["18.11"]
    for gathers in (solutions.attention_of_the_gathered, solutions.attention_of_kept_blocks):
        assert rung.over_par(counts_of(rung.compile(gathers))) == ["peak_nbytes"]
    assert (
        ladder.RUNGS["18.1"].unwanted(ladder.RUNGS["18.1"].compile(solutions.gathered_by_the_library)) == "all_gather"
    )


def pipeline_of_gathered_stages(W, batches, targets):
    """No pipeline at all: every device has all stages, and two of the eight micro-batches."""
    whole = ts.lax.all_gather(W, "stage", tiled=True)
    me = ts.lax.axis_index("stage")
    x, target = (each.unflatten(0, (4, 2))[me] for each in (batches, targets))

    def loss(whole):
        out = x
        for stage in range(4):
            out = out.relu() @ whole[stage]
        return ((out - target) ** 2).sum() / 2

    return ts.lax.psum(ts.lax.psum_scatter(ts.grad(loss)(whole), "stage", tiled=True), "data")


def test_a_pipeline_is_not_replaced_by_gathering_its_stages():
    rung = ladder.RUNGS["18.14"]
    compiled = rung.compile(pipeline_of_gathered_stages)
    assert rung.differs(compiled) == ""
    assert rung.over_par(counts_of(compiled))[0] == "nbytes"


def test_the_score_shows_each_number_beside_par_and_of_an_empty_cell_par_alone():
    assert str(ladder.score("18.2", solutions.scattered_by_the_library)).splitlines() == [
        "18.2 reduce-scatter",
        "                     yours           par",
        "values               right         right  yes",
        "collectives reduce_scatter      ppermute  no",
        "bytes sent          28,672        28,672  par",
        "peak bytes          36,864        49,152  below par",
        "rounds                   1             7  below par",
    ]

    def answer(x): ...

    assert str(ladder.score("18.2", answer)).splitlines()[4] == "bytes sent                        28,672"


def test_a_picture_has_every_device_and_every_value_in_words_and_on_the_page():
    for rung in ladder.RUNGS.values():
        drawing = ladder.show(rung.id)
        assert len(str(drawing).splitlines()) == 2 + len(rung.given) + len(rung.wanted)
        assert drawing.html.count("<th") >= 8 and rung.name.replace("'", "&#x27;") in drawing.html
        assert max(map(len, str(drawing).splitlines())) <= 96


def climb(got, par=100, peak=1):
    return Climb({"nbytes": (got, par), "peak_nbytes": (peak, 9)}, is_par=got <= par)


def test_the_best_right_answer_is_kept(working_folder):
    for each in (climb(300), climb(100, peak=5), climb(200), climb(100, peak=3), climb(100, peak=4)):
        note_climb(working_folder, "18.1", each)
    assert read_climber(working_folder).climbs == {"18.1": climb(100, peak=3)}


@pytest.mark.parametrize("damaged", ["", "[]", '{"rungs": 3}', '{"rungs": {"18.1": {"used": {"nbytes": 1}}}}'])
def test_a_damaged_file_counts_as_not_climbed(working_folder, damaged):
    (working_folder / CLIMBED).write_text(damaged)
    assert read_climber(working_folder).climbs == {}
    note_climb(working_folder, "18.1", climb(1))
    assert read_climber(working_folder).at_par == 1


def test_check_fills_the_boards_of_the_learner_and_of_the_room(tmp_path, monkeypatch, capsys):
    room, mine = tmp_path / "room", tmp_path / "mine"
    for folder in (room, mine):
        folder.mkdir()
    monkeypatch.chdir(mine)
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    ladder.call_me("window  table")
    check("18.1", solutions.gathered_in_order_of_arrival)  # wrong: on no board
    check("18.1", solutions.gathered_by_passing_on_all)
    check("18.2", solutions.reduce_scatter)
    board = str(ladder.board()).splitlines()
    assert board[1].split()[2:6] == ["right", "229,376", "/", "28,672"]
    assert board[2].split()[2:6] == ["par", "28,672", "/", "28,672"]
    (shared,) = room.iterdir()
    assert json.loads(shared.read_text())["name"] == "window table"
    assert [(each.shown, each.at_par) for each in climbers_in(room)] == [("window table", 1)]
    assert room_lines(room, None) == [
        "The ladder: 1 climber",
        "▪■□□□□□□□□□□□□   1 at par  window table",
        "                on 18.2: bytes 28,672 / 28,672, peak 45,060 / 49,152, rounds 7 / 7",
    ]
    assert room_lines(room, "18")[0] == "The ladder: 1 climber"
    assert room_lines(room, "05")[0].startswith("05.a")


def test_collected_working_folders_are_a_room_too_and_the_best_come_first(tmp_path):
    for name, rungs in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        for number in range(1, rungs + 1):
            note_climb(tmp_path / name, f"18.{number}", climb(1))
    found = climbers_in(tmp_path)
    assert [each.at_par for each in found] == [2, 1]
    assert all(each.shown.startswith("learner ") for each in found)
