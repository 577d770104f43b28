"""`predict("05.a")` asks before a cell is run, `explain("05.a")` says afterwards what the choice meant."""

from dataclasses import replace
from html import escape
from pathlib import Path
from typing import Any

from course.live import view_of
from course.predicted import note_choice, note_explained, read_guesses
from course.predictions import prediction_of
from course.predictions.prediction import Prediction
from course.saying import Line, Said
from course.sharing import share

__all__ = ["Buttons", "explain", "predict"]

# Asked for by `explain` in this process.
_reminded: set[str] = set()


def predict(id: str, choice: str | None = None) -> None:
    """Show the question with its choices and a button for each; or write down the choice that is given.

    The choice is kept in `.predictions.json` in the working folder, and shared where `TINYSHARD_ROOM` names a folder
    (sharing.py). It may be changed until `explain` has settled it.

    Args:
        id: lesson and letter of the prediction, such as "05.a".
        choice: the letter of a choice; None: ask.

    Raises:
        UnknownPredictionError: the prediction does not exist.
        UnknownChoiceError: it does not have a choice with this letter.

    Communication: none.

    In JAX: has no counterpart.
    """
    prediction = prediction_of(id)
    if choice is not None:
        noted = _noted(prediction, choice)
        Said("asked", f"{id}: ", noted.removeprefix(f"{id}: ")).show()
        return
    _asked(prediction).show()
    _display(Buttons(prediction))


def explain(id: str) -> None:
    """Show what was chosen and what that would mean, which choice is right, and why.

    A choice that was made is settled by this. Without one, a learner is asked for it once; the second call, and a run
    without a learner, show the right choice and its reason.

    Args:
        id: lesson and letter of the prediction, such as "05.a".

    Raises:
        UnknownPredictionError: there is no such prediction.

    Communication: none.

    In JAX: has no counterpart.
    """
    prediction = prediction_of(id)
    if id not in _reminded and id not in read_guesses(Path.cwd()) and _has_learner():
        _reminded.add(id)
        _asked_late(prediction).show()
        _display(Buttons(prediction))
        return
    unkept: tuple[Line, ...] = ()
    try:
        guess = note_explained(Path.cwd(), id)
    except OSError as error:
        unkept = (Line("", f"predictions are not kept: {error.strerror}"),)
        guess = read_guesses(Path.cwd()).get(id)
    chosen = guess.choice if guess and guess.choice in prediction.letters else None
    said = _explained(prediction, chosen)
    replace(said, lines=said.lines + unkept).show()


class Buttons:
    """A button for each choice, and a line that says what was noted; as text, how to choose without buttons.

    Example:
        >>> from course.predictions.prediction import Choice
        >>> two = Choice("2", "it takes two", "One."), Choice("3", "it takes three", "One.")
        >>> Buttons(Prediction("99.a", "How many?", (Choice("1"), *two), "One does."))
        Click a letter, or run predict("99.a", "…") with it.
    """

    def __init__(self, prediction: Prediction) -> None:
        import ipywidgets  # not at the top: the commands of the kit start without it

        guess = read_guesses(Path.cwd()).get(prediction.id)
        earlier = f"You chose {guess.choice} earlier." if guess and guess.is_explained else ""
        self.text = earlier or f'Click a letter, or run predict("{prediction.id}", "…") with it.'
        noted = f"{prediction.id}: {guess.choice} is noted." if guess else "Click a letter."
        self.line = ipywidgets.HTML(escape(earlier or noted))
        self.buttons = [self._button(prediction, letter) for letter in prediction.letters]
        row = ipywidgets.HBox([*self.buttons, self.line], layout={"flex_flow": "row wrap", "align_items": "center"})
        self.panel: Any = row

    def __repr__(self) -> str:
        """How to choose without buttons."""
        return self.text

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The live buttons for a notebook that runs; words for every other page, and for nbval."""
        return {**view_of(self.panel), "text/plain": self.text}

    def _button(self, prediction: Prediction, letter: str) -> Any:
        import ipywidgets

        tooltip = f"choose {letter}: {prediction.choice(letter).text}"
        button = ipywidgets.Button(description=letter, tooltip=tooltip, layout={"width": "3em"})
        button.on_click(lambda _: self._press(prediction, letter))
        return button

    def _press(self, prediction: Prediction, letter: str) -> None:
        self.line.value = escape(_noted(prediction, letter))


def _display(shown: Buttons) -> None:
    from IPython.display import display

    display(shown)


def _has_learner() -> bool:
    from tinyshard.core.users_code import can_ask  # not at the top: the commands of the kit start without torch

    return can_ask()


def _asked(prediction: Prediction) -> Said:
    choices = (Line(f"{letter}  ", prediction.choice(letter).text, "     ") for letter in prediction.letters)
    return Said("asked", f"{prediction.id}: ", prediction.question, tuple(choices))


def _asked_late(prediction: Prediction) -> Said:
    id = prediction.id
    then = f'Click a letter, then run this cell again, or explain("{id}") alone; or run it again without choosing.'
    return Said("asked", f"{id}: ", "what did you expect?", (Line("", then),))


def _noted(prediction: Prediction, letter: str) -> str:
    """Write the choice down, and say so."""
    prediction.choice(letter)
    id = prediction.id
    try:
        if note_choice(Path.cwd(), id, letter):
            noted = f'{id}: {letter} is noted. You may change it until explain("{id}") has run.'
            return f"{noted} {share(Path.cwd())}".strip()
    except OSError as error:
        return f"{id}: {letter} is not kept: {error.strerror}"
    guess = read_guesses(Path.cwd()).get(id)
    return f"{id}: it has been explained; " + (f"{guess.choice} counts." if guess else "no choice counts any more.")


def _explained(prediction: Prediction, chosen: str | None) -> Said:
    right = prediction.choice(prediction.right).text
    why = Line("why:  ", prediction.why)
    if chosen is None:
        return Said("right", f"{prediction.id}: {prediction.right} is right: ", right, (why,))
    choice = prediction.choice(chosen)
    heading = f"{prediction.id}: you chose {chosen}: "
    if choice.is_right:
        return Said("right", heading, choice.text, (Line("", "That is right."), why))
    lines = (
        Line("that says:  ", choice.misconception),
        Line("answer:  ", choice.answer),
        Line(f"{prediction.right} is right: ", right),
        why,
    )
    return Said("wrong", heading, choice.text, lines)
