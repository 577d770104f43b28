"""Control flow on one device: a step that runs programs in rounds.

    while (round := flow.next(failed)) is not None:
        program, values = round
        ...                         the steps of the program, on these values
        flow.take(values, failed)
    flow.results()

A device that has failed still runs the rounds in whose collectives other devices wait, without values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from tinyshard.core.program import Eqn, Program
from tinyshard.core.types import ShapedType


class Body(Protocol):
    """A program of a step, ready to run."""

    @property
    def program(self) -> Program:
        """The program as it was sent."""

    @property
    def size(self) -> int:
        """The number of its values."""


Round = tuple[Any, list[Any]]  # a body, and its values


def _values(body: Body, inputs: Sequence[Any] = ()) -> list[Any]:
    """The values of a body before it runs: its inputs come first; none if the device has failed."""
    return [*inputs, *[None] * (body.size - len(inputs))]


class Flow(Protocol):
    """A step of control flow while it runs."""

    @staticmethod
    def stacked(step: Eqn, results: Sequence[ShapedType | None]) -> Sequence[ShapedType | None]:
        """Those of its results, of these shapes and dtypes, that it makes before the first round."""

    def begin(self) -> Sequence[torch.Tensor]:
        """Make them."""

    def next(self, failed: bool) -> Round | None:
        """The program to run now, and its values; None at the end. If it raises, its state is unchanged."""

    def take(self, values: list[Any], failed: bool) -> None:
        """Take the results of the round."""

    def results(self) -> Sequence[Any]:
        """The results of the step."""


class Scan:
    """One body for each row of some operands: a carry goes from round to round, and results are stacked.

    Args:
        step: the step.
        values: of the program around it.
        bodies: its body.
        results: shape and dtype of each result.
        place: the GPU on which results are made; None for the CPU.
    """

    def __init__(
        self,
        step: Eqn,
        values: list[Any],
        *,
        bodies: Sequence[Body],
        results: Sequence[ShapedType | None],
        place: torch.device | None,
    ) -> None:
        carry, rows, constants = ([values[x.number] for x in part] for part in step.args)
        self._carry: Sequence[Any] = carry
        self._rows, self._constants = rows, constants
        (self._body,) = bodies
        self._length, self._reverse = step.kwargs["length"], step.kwargs["reverse"]
        self._count = len(carry)
        self._stacked = self.stacked(step, results)
        self._stacks: list[torch.Tensor] = []
        self._place = place
        self._done = 0

    @staticmethod
    def stacked(step: Eqn, results: Sequence[ShapedType | None]) -> Sequence[ShapedType | None]:
        """The stacks that rounds write to."""
        return results[len(step.args[0]) :]

    def begin(self) -> Sequence[torch.Tensor]:
        """The stacks, still empty."""
        self._stacks = [torch.empty(m.shape, dtype=m.dtype, device=self._place) for m in self._stacked if m]
        return self._stacks

    def next(self, failed: bool) -> Round | None:
        """The body, with the carry and the next row."""
        if self._done == self._length or (failed and not self._body.program.communicates):
            return None
        inputs: list[Any] = []
        if not failed:
            i = self._at(self._done)
            inputs = [*self._carry, *(x[i] for x in self._rows), *self._constants]
            self._carry = ()  # the body frees each part after its last use
        self._done += 1
        return self._body, _values(self._body, inputs)

    def _at(self, number: int) -> int:
        return self._length - 1 - number if self._reverse else number

    def take(self, values: list[Any], failed: bool) -> None:
        """The carry of the next round; results are put in their stacks."""
        if failed:
            return
        outputs = [values[number] for number in self._body.program.outputs]
        self._carry = outputs[: self._count]
        i = self._at(self._done - 1)
        for stack, y in zip(self._stacks, outputs[self._count :], strict=True):
            stack[i].copy_(y)

    def results(self) -> Sequence[Any]:
        """The last carry, and the stacks."""
        return [*self._carry, *self._stacks]


class _WithoutStacks:
    @staticmethod
    def stacked(step: Eqn, results: Sequence[ShapedType | None]) -> Sequence[ShapedType | None]:
        """None."""
        return ()

    def begin(self) -> Sequence[torch.Tensor]:
        """Nothing."""
        return ()


class While(_WithoutStacks):
    """A body, as long as a test of its carry is true. The arguments are those of `Scan`; the bodies are test and body.

    If devices exchange data inside, they agree on the outcome of the test; so a failed device ends the loop on all.
    """

    def __init__(
        self,
        step: Eqn,
        values: list[Any],
        *,
        bodies: Sequence[Body],
        results: Sequence[ShapedType | None],
        place: torch.device | None,
    ) -> None:
        self._carry, self._of_test, self._of_body = ([values[x.number] for x in part] for part in step.args)
        self._test, self._body = bodies
        self._together = step.communicates
        self._goes_on: bool | None = None  # None: the test must run

    def next(self, failed: bool) -> Round | None:
        """The test; the body, if it was true."""
        if self._goes_on is False or (failed and not self._together):
            return None
        body, constants = (self._test, self._of_test) if self._goes_on is None else (self._body, self._of_body)
        values = _values(body, [] if failed else [*self._carry, *constants])
        if self._goes_on:
            self._carry = []  # the body frees each part after its last use
        return body, values

    def take(self, values: list[Any], failed: bool) -> None:
        """The outcome of the test, or the next carry."""
        if self._goes_on:
            self._goes_on = None
            self._carry = [] if failed else [values[number] for number in self._body.program.outputs]
        else:
            outcome = values[self._test.program.outputs[0]]
            self._goes_on = outcome is not None and bool(outcome)

    def results(self) -> Sequence[Any]:
        """The last carry."""
        return self._carry


class Branches(_WithoutStacks):
    """The branch with a given number. The arguments are those of `Scan`; the bodies are the branches."""

    def __init__(
        self,
        step: Eqn,
        values: list[Any],
        *,
        bodies: Sequence[Body],
        results: Sequence[ShapedType | None],
        place: torch.device | None,
    ) -> None:
        (index,), operands = step.args
        self._index = values[index.number]
        self._operands = [values[x.number] for x in operands]
        self._bodies = bodies
        self._together = step.communicates
        self._results: Sequence[Any] | None = None

    def next(self, failed: bool) -> Round | None:
        """The branch, once. If devices exchange data inside, they have agreed on the number."""
        if self._results is not None or (failed and not self._together):
            return None
        body = self._bodies[int(self._index)]
        self._results = ()
        return body, _values(body, [] if failed else self._operands)

    def take(self, values: list[Any], failed: bool) -> None:
        """Its results."""
        self._results = [values[number] for number in self._bodies[int(self._index)].program.outputs]

    def results(self) -> Sequence[Any]:
        """Take the results of the branch."""
        return self._results or ()


FLOWS: dict[str, type[Scan] | type[While] | type[Branches]] = {"scan": Scan, "while": While, "cond": Branches}
