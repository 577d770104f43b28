"""A room's predictions: shared without a name, pooled from files, and no hindrance where the folder is missing."""

import argparse
import json
from collections import Counter
from pathlib import Path

import pytest

import course.__main__
import course.commands.lab
import course.commands.room
from course import explain, predict, predicted, predicting
from course.commands.room import room_lines
from course.errors import MissingRoomError, UnknownLessonError
from course.predicted import PREDICTED
from course.predictions.prediction import Choice, Prediction
from course.room import choices_in, poll

WRONG = Choice("32", "a device sends its row once", "Seven need it."), Choice("256", "it sends to itself", "It has it.")
BYTES = Prediction("98.a", "How many bytes does a device send?", (WRONG[0], Choice("224"), WRONG[1]), why="7 times 32.")
NEXT = Prediction("98.b", "And of 64?", (WRONG[0], Choice("448"), WRONG[1]), why="7 times 64.")


@pytest.fixture(autouse=True)
def lesson(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two predictions of a lesson 98, and no room."""
    monkeypatch.setattr(predicting, "prediction_of", {"98.a": BYTES, "98.b": NEXT}.get)
    monkeypatch.setattr(predicted, "_explained", set())
    monkeypatch.setattr(course.commands.room, "lesson_numbers", lambda: ["98"])
    monkeypatch.setattr(course.commands.room, "predictions_of", lambda number: {"98.a": BYTES, "98.b": NEXT})
    monkeypatch.delenv("TINYSHARD_ROOM", raising=False)


@pytest.fixture
def room(tmp_path: Path) -> Path:
    folder = tmp_path / "room"
    folder.mkdir()
    return folder


def learner_at(folder: Path, monkeypatch: pytest.MonkeyPatch, **choices: str) -> None:
    """A learner in a folder of their own, who chooses."""
    folder.mkdir(exist_ok=True)
    monkeypatch.chdir(folder)
    for letter, choice in choices.items():
        predict(f"98.{letter}", choice)


def test_what_learners_choose_comes_into_the_room_once_for_each(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    learner_at(tmp_path / "one", monkeypatch, a="a", b="b")
    learner_at(tmp_path / "two", monkeypatch, a="b")
    learner_at(tmp_path / "two", monkeypatch, a="c")
    assert choices_in(room) == {"98.a": Counter(a=1, c=1), "98.b": Counter(b=1)}
    assert len(list(room.iterdir())) == 2


def test_a_file_in_the_room_holds_no_name_and_lies_under_a_random_one(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    learner_at(tmp_path / "mara", monkeypatch, a="a")
    (shared,) = room.iterdir()
    kept = json.loads(shared.read_text())
    assert shared.name == f"{kept['learner']}.json"
    assert kept["predictions"] == {"98.a": {"choice": "a", "explained": False}}
    assert set(kept) == {"edition", "learner", "predictions"}


def test_a_choice_that_does_not_count_does_not_come_into_the_room(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    learner_at(tmp_path / "one", monkeypatch)
    explain("98.a")
    predict("98.a", "b")
    assert list(room.iterdir()) == []


def test_collected_working_folders_are_a_room_too_and_nobody_counts_twice(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    learner_at(room / "one", monkeypatch, a="a")
    monkeypatch.delenv("TINYSHARD_ROOM")
    learner_at(room / "two", monkeypatch, a="b")
    assert (room / "one" / PREDICTED).exists()
    assert len(list(room.glob("*.json"))) == 1
    assert choices_in(room) == {"98.a": Counter(a=1, b=1)}


@pytest.mark.parametrize(
    "damaged", ["", "[]", "{", '{"edition": 3, "predictions": []}', '{"edition": 3, "predictions": {"98.a": 1}}']
)
def test_a_damaged_file_in_the_room_counts_as_empty(room: Path, damaged: str) -> None:
    (room / "some.json").write_text(damaged)
    assert choices_in(room) == {}


def test_a_learner_that_is_no_random_name_is_given_one_so_that_no_other_file_is_written(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(room))
    (tmp_path / PREDICTED).write_text('{"learner": "../elsewhere", "predictions": {}}')
    learner_at(tmp_path, monkeypatch, a="a")
    assert not (tmp_path / "elsewhere.json").exists()
    assert choices_in(room) == {"98.a": Counter(a=1)}


def test_a_room_that_is_not_there_is_said_in_a_line_and_stops_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TINYSHARD_ROOM", str(tmp_path / "nowhere"))
    learner_at(tmp_path, monkeypatch, a="a")
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("98.a: a is noted.")
    assert told.endswith(f"The room does not get it: {tmp_path / 'nowhere'}: No such file or directory")
    explain("98.a")
    assert capsys.readouterr().out.startswith("98.a: you chose a: 32\n")


def test_the_screen_shows_counts_and_bars_and_nothing_that_gives_the_right_choice_away() -> None:
    assert list(poll([BYTES], {"98.a": {"a": 3, "b": 6, "d": 9}})) == [
        "98.a  9 answers  How many bytes does a device send?",
        "  a   ████████████              3  32",
        "  b   ████████████████████████  6  224",
        "  c                             0  256",
    ]


@pytest.mark.parametrize("words", [[], ["98"]])
def test_only_answers_on_the_command_line_brings_the_mark(
    room: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    learner_at(room / "one", monkeypatch, a="b", b="a")
    capsys.readouterr()
    assert course.__main__.main(["room", str(room), *words]) == 0
    assert "✓" not in capsys.readouterr().out
    assert course.__main__.main(["room", str(room), *words, "--answers"]) == 0
    assert capsys.readouterr().out.count("✓") == 2


def test_with_answers_the_screen_shows_beliefs_and_the_right_choice() -> None:
    assert list(poll([BYTES, NEXT], {"98.a": {"a": 3, "b": 6, "d": 9}}, answers=True)) == [
        "98.a  9 answers  How many bytes does a device send?",
        "  a   ████████████              3  32: a device sends its row once",
        "  b ✓ ████████████████████████  6  224",
        "  c                             0  256: it sends to itself",
        "98.b  0 answers  And of 64?",
        "  a                             0  32: a device sends its row once",
        "  b ✓                           0  448",
        "  c                             0  256: it sends to itself",
    ]


def test_a_long_belief_goes_on_under_its_first_word() -> None:
    long = Choice("32", "so many words " * 9, "No.")
    lines = list(poll([Prediction("98.a", "How many?", (long, Choice("1"), WRONG[1]), "why")], {}, answers=True))
    assert max(map(len, lines)) <= 100
    assert lines[2].startswith(" " * 35)
    assert " ".join(" ".join(lines[1:-2]).split()) == "a 0 32: " + " ".join(("so many words " * 9).split())


def test_all_lessons_show_what_was_answered_and_one_lesson_all_of_its_own(
    room: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert room_lines(room, None) == [f"there are no predictions yet; looked in {room}"]
    learner_at(room / "one", monkeypatch, b="b")
    assert [line[:4] for line in room_lines(room, None)] == ["98.b", "  a ", "  b ", "  c "]
    assert [line[:4] for line in room_lines(room, "98")][::4] == ["98.a", "98.b"]
    with pytest.raises(UnknownLessonError, match="there are no predictions of lesson '7'\n"):
        room_lines(room, "7")


def test_without_a_folder_the_command_says_which_one_is_meant(tmp_path: Path, capsys) -> None:
    with pytest.raises(MissingRoomError, match="tinyshard lab --room FOLDER"):
        choices_in(tmp_path / "nowhere")
    assert course.__main__.main(["room", str(tmp_path / "nowhere")]) == 1
    assert capsys.readouterr().err.startswith("there is no room to look at\n")


def test_watching_looks_again_until_it_is_interrupted(
    room: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def learner_comes_or_teacher_goes(_: float) -> None:
        if (room / "one").exists():
            raise KeyboardInterrupt
        learner_at(room / "one", monkeypatch, a="b")
        capsys.readouterr()

    monkeypatch.setattr(course.commands.room.time, "sleep", learner_comes_or_teacher_goes)
    assert course.commands.room.show_room(argparse.Namespace(folder=room, lesson=None, watch=True, answers=False)) == 0
    assert "98.a  1 answer  How many" in capsys.readouterr().out


def test_lab_names_the_room_to_all_kernels(monkeypatch: pytest.MonkeyPatch, room: Path, tmp_path: Path) -> None:
    started = []
    monkeypatch.setattr(course.commands.lab, "shipped_folder", lambda: tmp_path)
    monkeypatch.setattr(course.commands.lab, "working_folder", lambda named: tmp_path / "my-lessons")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "")
    monkeypatch.setenv("TINYSHARD_ROOM", "another")
    monkeypatch.setattr("os.execv", lambda program, words: started.append((words, course.commands.lab.os.environ)))
    monkeypatch.chdir(tmp_path)
    course.__main__.main(["lab", "--room", "room", "--no-browser"])
    ((words, environment),) = started
    assert environment["TINYSHARD_ROOM"] == str(room)
    assert "--room" not in words
    assert words[-1] == "--no-browser"
