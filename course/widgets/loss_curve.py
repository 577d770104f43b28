"""Lesson 16: the loss of a training, step by step: a picture that grows while the training runs.

The training adds a point after each step, from the thread that runs the cell; nothing is drawn in between.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from course.widgets.base import Choice, Explorer
from course.widgets.card import INK, MUTED, Piece, Sheet, paragraph, stack
from tinyshard.draw.cell import number, text
from tinyshard.draw.colours import OKABE_ITO

__all__ = ["Curve", "LossCurve", "Run", "describe", "draw", "loss_curve"]

HEADING = "The loss of each step"
WIDTH, HEIGHT, LEFT = 560, 200, 44
SMOOTHED = 10  # steps of a mean
DRAWN, THEN_EVERY = 1000, 10  # so many points of a run are all drawn; of those beyond, each tenth
COLOURS = (OKABE_ITO[5], OKABE_ITO[6], OKABE_ITO[2])  # blue, vermilion, green: one after the other
DASHES = ("", "7 3", "2 3")  # for those to whom colours say little


@dataclass(frozen=True)
class Run:
    """A training, or what goes on of it under other circumstances.

    Attributes:
        name: in the legend.
        points: (step, loss), in their order.
    """

    name: str
    points: tuple[tuple[int, float], ...] = ()

    def smoothed(self, count: int) -> Run:
        """With each loss replaced by the mean of it and those before it, `count` at most.

        Example:
            >>> Run("a", ((0, 4.0), (1, 2.0), (2, 1.0))).smoothed(2).points
            ((0, 4.0), (1, 3.0), (2, 1.5))
        """
        losses = [loss for _, loss in self.points]
        means = (statistics.fmean(losses[max(0, i + 1 - count) : i + 1]) for i in range(len(losses)))
        return Run(self.name, tuple((step, mean) for (step, _), mean in zip(self.points, means, strict=True)))

    @property
    def drawn(self) -> tuple[tuple[int, float], ...]:
        """The points that are drawn: of a long run's, not all."""
        return self.points[:DRAWN] + self.points[DRAWN::THEN_EVERY]


@dataclass(frozen=True)
class Curve:
    """What the picture shows.

    Attributes:
        steps: up to which the axis goes, at least.
        most: the loss at the top.
        runs: in their order; a later one may begin before an earlier one has ended.
        marks: (step, words): what happened before that step.
    """

    steps: int
    most: float
    runs: tuple[Run, ...]
    marks: tuple[tuple[int, str], ...] = ()

    @property
    def end(self) -> int:
        """Where the axis ends: at `steps`, or at the last step if that is later."""
        return max([self.steps, *(run.points[-1][0] for run in self.runs if run.points)])

    def x(self, step: int) -> float:
        """Where a step is, in px."""
        return LEFT + step / self.end * WIDTH

    def y(self, loss: float) -> float:
        """Where a loss is, in px; what is above the top is drawn there."""
        return (1 - min(loss, self.most) / self.most) * HEIGHT


class LossCurve(Explorer[Curve]):
    """The picture, and how a training makes it grow. It has no thread: it is drawn again at each call.

    Args:
        steps: up to which the axis goes, at least.
        most: the loss at the top.
        name: of the first run.

    Communication: none.

    Example:
        >>> curve = LossCurve(steps=4, most=5.0, name="eight devices")
        >>> for step, loss in enumerate((4.0, 3.0)):
        ...     curve.add(step, loss)
        >>> curve
        eight devices: steps 0 to 1, the loss falls from 4.00 to 3.00
    """

    def __init__(self, steps: int, most: float, name: str) -> None:
        self._curve = Curve(steps, most, (Run(name),))
        shown = [("each step", 1), (f"the mean of {SMOOTHED} steps", SMOOTHED)]
        super().__init__(HEADING, [Choice("mean", "show", shown)], self._looked, draw, describe)

    def _looked(self, mean: int) -> Curve:
        curve = self._curve
        return Curve(curve.steps, curve.most, tuple(run.smoothed(mean) for run in curve.runs), curve.marks)

    def add(self, step: int, loss: float) -> None:
        """Add the loss of a step to the last run."""
        *earlier, last = self._curve.runs
        self._change((*earlier, Run(last.name, (*last.points, (step, loss)))), self._curve.marks)

    def begin(self, name: str) -> None:
        """Begin another run, in another colour."""
        self._change((*self._curve.runs, Run(name)), self._curve.marks)

    def mark(self, step: int, words: str) -> None:
        """Say what happened before a step."""
        self._change(self._curve.runs, (*self._curve.marks, (step, words)))

    def losses(self, run: int) -> dict[int, float]:
        """The losses of a run, by step; run 0 is the first."""
        return dict(self._curve.runs[run].points)

    def _change(self, runs: Sequence[Run], marks: tuple[tuple[int, str], ...]) -> None:
        self._curve = Curve(self._curve.steps, self._curve.most, tuple(runs), marks)
        self.refresh()


def loss_curve(steps: int = 300, most: float = 4.5, name: str = "eight devices") -> LossCurve:
    """An empty curve, which a training fills: `curve.add(step, loss)`.

    Args:
        steps: up to which the axis goes, at least.
        most: the loss at the top.
        name: of the first run.

    Returns:
        The curve; show it as the last line of a cell, before the training and after it.

    Communication: none.

    Example:
        >>> loss_curve()
        eight devices: no step yet
    """
    return LossCurve(steps, most, name)


def draw(curve: Curve) -> Sheet:
    """A line for each run over one axis of steps, with what happened above it, and a legend."""
    parts = [*_axes(curve), *_marks(curve)]
    for k, run in enumerate(curve.runs):
        points = " ".join(f"{number(curve.x(step))},{number(curve.y(loss))}" for step, loss in run.drawn)
        if len(run.points) == 1:
            step, loss = run.points[0]
            parts.append(
                f'<circle cx="{number(curve.x(step))}" cy="{number(curve.y(loss))}" r="2" fill="{_colour(k)}"/>'
            )
        elif points:
            parts.append(
                f'<polyline points="{points}" fill="none" stroke="{_colour(k)}" stroke-width="2" '
                f'stroke-dasharray="{DASHES[k % len(DASHES)]}"/>'
            )
    picture = Piece("".join(parts), LEFT + WIDTH + 20, HEIGHT + 40)
    return Sheet(f"{HEADING}. {describe(curve)}", stack([_legend(curve), picture, paragraph(_told(curve), size=12)]))


def describe(curve: Curve) -> str:
    """A line for each run, and one for each mark."""
    return "\n".join([*_told(curve), *(f"before step {step}: {words}" for step, words in curve.marks)])


def _told(curve: Curve) -> list[str]:
    return [f"{run.name}: {_from_to(run)}" for run in curve.runs]


def _from_to(run: Run) -> str:
    if not run.points:
        return "no step yet"
    (first, begin), (last, end) = run.points[0], run.points[-1]
    verb = "falls" if end <= begin else "rises"
    return f"steps {first} to {last}, the loss {verb} from {begin:.2f} to {end:.2f}"


def _colour(run: int) -> str:
    return COLOURS[run % len(COLOURS)]


def _axes(curve: Curve) -> list[str]:
    found = [f'<path d="M{LEFT} 0V{HEIGHT}H{LEFT + WIDTH}" fill="none" stroke="{INK}"/>']
    for loss in range(int(curve.most) + 1):
        y = curve.y(loss)
        found.append(f'<path d="M{LEFT} {number(y)}h{WIDTH}" stroke="{MUTED}" stroke-width="0.3"/>')
        found.append(text(str(loss), LEFT - 10, y, 12, fill=MUTED, anchor="end"))
    for k in range(5):
        step = round(curve.end * k / 4)
        x = curve.x(step)
        found.append(f'<path d="M{number(x)} {HEIGHT}v5" stroke="{INK}"/>')
        found.append(text(str(step), x, HEIGHT + 14, 12, fill=MUTED))
    found.append(text("step", LEFT + WIDTH / 2, HEIGHT + 32, 12, fill=MUTED))
    return found


def _marks(curve: Curve) -> list[str]:
    """Lines from top to bottom; their words are one below the other, so that near ones can be read."""
    found = []
    for k, (step, words) in enumerate(curve.marks):
        x, y = curve.x(step), 10 + 16 * (k % 5)
        found.append(f'<path d="M{number(x)} 0V{HEIGHT}" stroke="{INK}" stroke-dasharray="3 3" stroke-width="0.8"/>')
        found.append(text(words, x + 5, y, 12, fill=INK, anchor="start"))
    return found


def _legend(curve: Curve) -> Piece:
    drawn, x = [], float(LEFT)
    for k, run in enumerate(curve.runs):
        line = f'stroke="{_colour(k)}" stroke-width="3" stroke-dasharray="{DASHES[k % len(DASHES)]}"'
        drawn.append(f'<path d="M{number(x)} 9h26" {line} fill="none"/>')
        drawn.append(text(run.name, x + 32, 9, 12, fill=MUTED, anchor="start"))
        x += 32 + 7 * len(run.name) + 24
    return Piece("".join(drawn), x, 18)
