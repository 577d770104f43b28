"""Control flow on one device: a step that runs programs in rounds.

    flow.begin()
    while (round := flow.next(failed)) is not None:
        body, inputs = round
        ...                         the steps of the body of this position, on these inputs
        flow.take(outputs, failed)
    flow.results()

A device that has failed still runs the rounds in whose collectives other devices wait, without inputs and outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.core.program import Eqn
from tinyshard.core.types import ShapedType

Round = tuple[int, list[Any]]  # position of a body among those of the step, and its inputs


class Flow:
    """A step of control flow while it runs.

    Args:
        step: the step.
        values: of the program around it.
        stacked: shape and dtype of its stacks.
        place: the GPU on which results are made; None for the CPU.
    """

    def __init__(
        self, step: Eqn, values: list[Any], *, stacked: Sequence[ShapedType | None], place: torch.device | None
    ) -> None:
        self._step = step
        self._stacked = stacked
        self._stacks: list[torch.Tensor] = []
        self._place = place
        self._start(*([values[x.number] for x in part] for part in step.args))

    def _start(self, *operands: Any, **no_others: Any) -> None:
        """Keep the operands, in the groups of the step's arguments."""
        raise NotImplementedError

    @staticmethod
    def stacked(step: Eqn, results: Sequence[ShapedType | None]) -> Sequence[ShapedType | None]:
        """Those of its results, of these shapes and dtypes, that are stacks, made before the first round."""
        return ()

    def begin(self) -> Sequence[torch.Tensor]:
        """Make them, still empty."""
        self._stacks = [torch.empty(m.shape, dtype=m.dtype, device=self._place) for m in self._stacked if m]
        return self._stacks

    def next(self, failed: bool) -> Round | None:
        """The next round; None at the end. If it raises, its state is unchanged."""
        raise NotImplementedError

    def take(self, outputs: list[Any], failed: bool) -> None:
        """Take the outputs of the round; each is None if the device has failed."""
        raise NotImplementedError

    def results(self) -> Sequence[Any]:
        """The results of the step."""
        raise NotImplementedError


class Scan(Flow):
    """One body for each row of some operands: a carry goes from round to round, and results are stacked."""

    def _start(self, carry: list[Any], rows: list[Any], constants: list[Any]) -> None:
        self._carry, self._rows, self._constants = carry, rows, constants
        self._order = range(self._step.kwargs["length"])[:: -1 if self._step.kwargs["reverse"] else 1]
        self._count = len(carry)
        self._done = 0

    @staticmethod
    def stacked(step: Eqn, results: Sequence[ShapedType | None]) -> Sequence[ShapedType | None]:
        """The stacks that rounds write to."""
        return results[len(step.args[0]) :]

    def next(self, failed: bool) -> Round | None:
        """The body, with the carry and the next row."""
        if self._done == len(self._order) or (failed and not self._step.communicates):
            return None
        inputs: list[Any] = []
        if not failed:
            i = self._order[self._done]
            inputs = [*self._carry, *(x[i] for x in self._rows), *self._constants]
            self._carry = []  # the body frees each part after its last use
        self._done += 1
        return 0, inputs

    def take(self, outputs: list[Any], failed: bool) -> None:
        """The carry of the next round; results are put in their stacks."""
        if failed:
            return
        self._carry = outputs[: self._count]
        i = self._order[self._done - 1]
        for stack, y in zip(self._stacks, outputs[self._count :], strict=True):
            stack[i].copy_(y)

    def results(self) -> Sequence[Any]:
        """The last carry, and the stacks."""
        return [*self._carry, *self._stacks]


class While(Flow):
    """A body, as long as a test of its carry is true. The bodies are test and body.

    If devices exchange data inside, they agree on the outcome of the test; so a failed device ends the loop on all.
    """

    def _start(self, carry: list[Any], of_test: list[Any], of_body: list[Any]) -> None:
        self._carry, self._of_test, self._of_body = carry, of_test, of_body
        self._goes_on: bool | None = None  # None: the test must run

    def next(self, failed: bool) -> Round | None:
        """The test; the body, if it was true."""
        if self._goes_on is False or (failed and not self._step.communicates):
            return None
        position, constants = (0, self._of_test) if self._goes_on is None else (1, self._of_body)
        inputs = [] if failed else [*self._carry, *constants]
        if self._goes_on:
            self._carry = []  # the body frees each part after its last use
        return position, inputs

    def take(self, outputs: list[Any], failed: bool) -> None:
        """The outcome of the test, or the next carry."""
        if self._goes_on:
            self._goes_on = None
            self._carry = [] if failed else outputs
        else:
            self._goes_on = outputs[0] is not None and bool(outputs[0])

    def results(self) -> Sequence[Any]:
        """The last carry."""
        return self._carry


class Branches(Flow):
    """The branch with a given number; the bodies are the branches."""

    def _start(self, index: list[Any], operands: list[Any]) -> None:
        (self._index,), self._operands = index, operands
        self._results: Sequence[Any] | None = None

    def next(self, failed: bool) -> Round | None:
        """The branch, once. If devices exchange data inside, they have agreed on the number."""
        if self._results is not None or (failed and not self._step.communicates):
            return None
        position = int(self._index)
        self._results = ()
        return position, [] if failed else self._operands

    def take(self, outputs: list[Any], failed: bool) -> None:
        """Its results."""
        self._results = outputs

    def results(self) -> Sequence[Any]:
        """The results of the branch."""
        return self._results or ()


FLOWS: dict[str, type[Flow]] = {"scan": Scan, "while": While, "cond": Branches}
