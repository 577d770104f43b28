"""Predictions: chosen by a click or by text, changed until they are explained, kept in a file that may be damaged."""

import json
from pathlib import Path

import pytest

from course import explain, predict, predicted, predicting
from course.predicted import PREDICTED, Guess, read_guesses
from course.predicting import Buttons
from course.predictions import UnknownPredictionError, predictions_of
from course.predictions.prediction import Choice, Prediction, UnknownChoiceError

RIGHT = Choice("224")
ONCE = Choice("32", misconception="a device sends its row once", answer="Seven others need it.")
ITSELF = Choice("256", misconception="a device also sends to itself", answer="Its own copy is there already.")
BYTES = Prediction("99.a", "How many bytes does a device send?", (ONCE, RIGHT, ITSELF), why="7 times 32 is 224.")


@pytest.fixture(autouse=True)
def prediction(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One prediction, 99.a, in an empty folder."""
    monkeypatch.setattr(predicting, "prediction_of", lambda id: BYTES)
    monkeypatch.setattr(predicted, "_explained", set())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TINYSHARD_ROOM", raising=False)


def explained(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    explain("99.a")
    return capsys.readouterr().out.splitlines()


def test_the_question_is_printed_with_its_choices_and_how_to_choose(capsys: pytest.CaptureFixture[str]) -> None:
    predict("99.a")
    assert capsys.readouterr().out.splitlines() == [
        "99.a: How many bytes does a device send?",
        "  a  32",
        "  b  224",
        "  c  256",
        'Click a letter, or run predict("99.a", "…") with it.',
    ]


def test_without_a_choice_the_right_one_is_explained_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    predict("99.a")
    assert explained(capsys) == ["99.a: b is right: 224", "  why:  7 times 32 is 224."]
    assert list(tmp_path.iterdir()) == []


def test_a_learner_who_has_not_chosen_is_asked_once_before_it_is_explained(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_has_learner", lambda: True)
    monkeypatch.setattr(predicting, "_reminded", set())
    asked, *then, buttons = explained(capsys)
    assert asked == "99.a: what did you expect?"
    assert "run this cell again" in " ".join(then)
    assert buttons == 'Click a letter, or run predict("99.a", "…") with it.'
    assert explained(capsys)[0] == "99.a: b is right: 224"


def test_a_learner_who_has_chosen_is_not_asked_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predicting, "_has_learner", lambda: True)
    monkeypatch.setattr(predicting, "_reminded", set())
    explain("99.a")
    predict("99.a", "b")
    assert explained(capsys)[0] == "99.a: you chose b: 224"
    predicting._reminded.clear()
    assert explained(capsys)[0] == "99.a: you chose b: 224"


def test_a_wrong_choice_gets_its_misconception_and_the_answer_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    predict("99.a", "c")
    assert explained(capsys) == [
        "99.a: you chose c: 256",
        "  that says:  a device also sends to itself",
        "  answer:  Its own copy is there already.",
        "  b is right: 224",
        "  why:  7 times 32 is 224.",
    ]


def test_a_right_choice_is_told_that_it_is_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    predict("99.a", "b")
    assert explained(capsys) == ["99.a: you chose b: 224", "  That is right.", "  why:  7 times 32 is 224."]


def test_a_click_notes_the_choice_within_the_widget_and_prints_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    shown = Buttons(BYTES)
    assert [button.description for button in shown.buttons] == ["a", "b", "c"]
    shown.buttons[1].click()
    assert capsys.readouterr().out == ""
    assert "99.a: b is noted." in shown.line.value
    assert read_guesses(tmp_path) == {"99.a": Guess("b")}


def test_what_a_cell_stores_is_the_same_before_and_after_a_click(capsys: pytest.CaptureFixture[str]) -> None:
    def told() -> str:
        predict("99.a")
        return capsys.readouterr().out

    shown = Buttons(BYTES)
    before, stored = told(), shown._repr_mimebundle_()
    shown.buttons[0].click()
    assert shown._repr_mimebundle_() == stored
    assert told() == before
    assert stored["text/plain"] == repr(shown)
    assert "model_id" in stored["application/vnd.jupyter.widget-view+json"]


def test_a_choice_may_be_changed_until_it_is_explained(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    predict("99.a", "a")
    shown = Buttons(BYTES)
    shown.buttons[2].click()
    assert explained(capsys)[0] == "99.a: you chose c: 256"
    shown.buttons[1].click()
    assert shown.line.value == "99.a: it has been explained; c counts."
    predict("99.a", "b")
    assert capsys.readouterr().out == "99.a: it has been explained; c counts.\n"
    assert read_guesses(tmp_path) == {"99.a": Guess("c", is_explained=True)}
    later = Buttons(BYTES)
    assert repr(later) == later.line.value == "You chose c earlier."
    assert explained(capsys)[0] == "99.a: you chose c: 256"


def test_a_lesson_that_is_forgotten_can_be_predicted_again_and_the_others_stay(tmp_path: Path) -> None:
    predict("99.a", "a")
    explain("99.a")
    predicted.note_choice(tmp_path, "9.a", "c")
    predicted.forget(tmp_path, "99")
    assert read_guesses(tmp_path) == {"9.a": Guess("c")}
    predict("99.a", "b")
    assert read_guesses(tmp_path)["99.a"] == Guess("b")


def test_whoever_has_read_the_answer_does_not_predict_it_before_the_next_kernel(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    explain("99.a")
    capsys.readouterr()
    predict("99.a", "b")
    assert capsys.readouterr().out == "99.a: it has been explained; no choice counts any more.\n"
    assert read_guesses(tmp_path) == {}
    monkeypatch.setattr(predicted, "_explained", set())
    predict("99.a", "b")
    assert read_guesses(tmp_path) == {"99.a": Guess("b")}


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "[]",
        '{"edition": 3, "predictions": 3}',
        '{"edition": 3, "predictions": {"99.a": {"choice": 1}}}',
        '{"predictions": {"99',
    ],
)
def test_a_damaged_file_counts_as_nothing_chosen(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, damaged: str
) -> None:
    (tmp_path / PREDICTED).write_text(damaged)
    assert explained(capsys)[0] == "99.a: b is right: 224"
    predicted._explained.clear()
    predict("99.a", "a")
    assert read_guesses(tmp_path) == {"99.a": Guess("a")}


@pytest.mark.parametrize("earlier", ["", '"edition": 2, '])
def test_a_choice_of_an_earlier_edition_counts_as_none_and_the_learner_stays_the_same(
    tmp_path: Path, earlier: str
) -> None:
    kept = f'{{{earlier}"learner": "{"ab" * 8}", "predictions": {{"99.a": {{"choice": "a", "explained": true}}}}}}'
    (tmp_path / PREDICTED).write_text(kept)
    assert read_guesses(tmp_path) == {}
    predict("99.a", "b")
    assert read_guesses(tmp_path) == {"99.a": Guess("b")}
    assert json.loads((tmp_path / PREDICTED).read_text())["learner"] == "ab" * 8


def test_a_choice_that_the_prediction_no_longer_has_counts_as_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / PREDICTED).write_text('{"edition": 3, "predictions": {"99.a": {"choice": "d"}}}')
    assert explained(capsys)[0] == "99.a: b is right: 224"


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / PREDICTED).mkdir()  # a folder in its place: also for root, who may write everywhere
    predict("99.a", "a")
    assert capsys.readouterr().out == "99.a: a is not kept: Is a directory\n"
    assert explained(capsys)[0] == "99.a: b is right: 224"


def test_the_file_holds_letters_and_a_random_learner_who_stays_the_same(tmp_path: Path) -> None:
    predict("99.a", "a")
    first = json.loads((tmp_path / PREDICTED).read_text())
    predict("99.a", "b")
    second = json.loads((tmp_path / PREDICTED).read_text())
    assert first["learner"] == second["learner"]
    assert len(bytes.fromhex(first["learner"])) == 8
    assert second["predictions"] == {"99.a": {"choice": "b", "explained": False}}


def test_a_prediction_that_is_not_there_is_an_error_that_names_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for id in ("99.a", "1", "", 4.2):
        for ask in (predict, explain):
            with pytest.raises(UnknownPredictionError, match=r"got: .*\n  rule: the lesson, a point and .*\n  try: "):
                ask(id)  # type: ignore[arg-type]
    assert predictions_of("99") == {}


@pytest.mark.parametrize("letter", ["d", "ab", "", "B", 1])
def test_a_letter_that_is_not_offered_is_an_error_that_names_the_letters(letter: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownChoiceError, match="rule: one letter of a, b, c"):
        predict("99.a", letter)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "id, choices, why, rule",
    [
        ("5.a", (ONCE, RIGHT, ITSELF), "why", "an id is the lesson"),
        ("05.1", (ONCE, RIGHT, ITSELF), "why", "an id is the lesson"),
        ("05.a", (ONCE, RIGHT), "why", "3 or 4 choices"),
        ("05.a", (ONCE, RIGHT, ITSELF, ONCE, ITSELF), "why", "3 or 4 choices"),
        ("05.a", (ONCE, ITSELF, ONCE), "why", "exactly one choice is right"),
        ("05.a", (ONCE, RIGHT, RIGHT), "why", "exactly one choice is right"),
        ("05.a", (ONCE, RIGHT, Choice("256", misconception="no answer to it")), "why", "a wrong choice has"),
        ("05.a", (ONCE, Choice("224", answer="yes"), ITSELF), "why", "a wrong choice has"),
        ("05.a", (ONCE, RIGHT, ITSELF), "", "question and why"),
    ],
)
def test_what_is_no_prediction_is_refused_where_it_is_made(
    id: str, choices: tuple[Choice, ...], why: str, rule: str
) -> None:
    with pytest.raises(ValueError, match=f"that is no prediction: '{id}'\n  got:  .*\n  rule: .*{rule}"):
        Prediction(id, "How many?", choices, why)
    assert Prediction("A.b", "How many?", (ONCE, RIGHT, ITSELF), "So many.").right == "b"
