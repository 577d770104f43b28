"""What a device holds during a training step, by kind: counted in the step's program.

given       values        kind
arguments   parameters    parameters                  as the step is given them, and gives them back
            state         optimizer state
            batch         activations
made        a copy of parameters                      gathered weights
            values with a row for each example        activations
            of parameters, or of the state, alone     as these: it takes the place of a donated one
            all others                                gradients, and what an update makes of them
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import tinyshard as ts
from tinyshard.compile import memory
from tinyshard.compile.compiled import Compiled
from tinyshard.core import config
from tinyshard.core.program import Program, values_in
from tinyshard.core.types import ShapedType

__all__ = ["KINDS", "Given", "each_by_itself", "given_of", "held"]

KINDS = ("parameters", "optimizer state", "gradients", "gathered weights", "activations")
COPIES = ("all_gather", "aten._to_copy.default", "aten.clone.default", "aten.contiguous.default", "aten.t.default")


@dataclass(frozen=True)
class Given:
    """What a step gets, from parameters, state and batch to the loss, new parameters and new state.

    Attributes:
        parameters: how many tensors.
        state: how many tensors of the optimizer's state.
        batch: how many tensors of the batch.
        rows: how many examples one device has; no other dim may have this size.
        is_donated: whether old parameters and old state are donated.
    """

    parameters: int
    state: int
    batch: int
    rows: int
    is_donated: bool = True

    @property
    def kept(self) -> list[str]:
        """The kind of each parameter and each part of the state, in their order."""
        return [KINDS[0]] * self.parameters + [KINDS[1]] * self.state


def given_of(params: Any, state: Any, batch: Any) -> Given:
    """What a step gets, seen from its arguments: trees of Arrays or of their descriptions.

    Example:
        >>> import torch
        >>> mesh = ts.AbstractMesh((2,), ("d",))
        >>> x = ts.ShapeDtypeStruct((10, 8), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))
        >>> given_of([x, x], [], x)
        Given(parameters=2, state=0, batch=1, rows=5, is_donated=True)
    """
    of_params, of_state, of_batch = (ts.tree.leaves(tree) for tree in (params, state, batch))
    rows = of_batch[0].sharding.shard_shape(tuple(of_batch[0].shape))[0]
    return Given(len(of_params), len(of_state), len(of_batch), rows)


@contextlib.contextmanager
def each_by_itself() -> Iterator[None]:
    """Programs made in this block have no combined exchanges: those hold operands and results of all at once.

    Communication: none.
    """
    before = config.read("combine_nbytes")
    ts.config.update("combine_nbytes", 0)
    try:
        yield
    finally:
        ts.config.update("combine_nbytes", before)


def held(program: Compiled, given: Given, step: int | None = None) -> dict[str, int]:
    """The bytes that a device holds during one step of a program, by kind.

    Args:
        program: of a training step.
        given: what it gets.
        step: its number; None: the first one at the peak.

    Communication: none.

    Example:
        >>> import torch
        >>> mesh = ts.AbstractMesh((2,), ("d",))
        >>> def described(shape, spec):
        ...     return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))
        >>> def step(w, x):
        ...     value, grad = ts.value_and_grad(lambda w: (x @ w).square().mean())(w)
        ...     return value, w - grad
        >>> w, x = described((8, 3), ts.P()), described((10, 8), ts.P("d"))
        >>> program = ts.jit(step, donate_argnums=0).lower(w, x).compile()
        >>> found = held(program, given_of(w, [], x))
        >>> found["parameters"], sum(found.values()) == program.memory_analysis().peak_nbytes
        (96, True)
    """
    steps = program.program
    kinds = _kinds_of_values(given, steps)
    donated = range(len(given.kept)) if given.is_donated else ()
    found = dict.fromkeys(KINDS, 0)
    for n in memory.held_during(steps, program.memory_analysis().peak_step if step is None else step, donated):
        meta = steps.metas[n]
        found[kinds[n]] += 0 if meta is None else meta.nbytes
    for kind in set(given.kept) if given.is_donated else ():  # more than was given is what an update makes
        nbytes = sum(meta.nbytes for meta, own in zip(steps.metas, given.kept, strict=False) if meta and own == kind)
        found["gradients"] += max(0, found[kind] - nbytes)
        found[kind] = min(found[kind], nbytes)
    return found


def _kinds_of_values(given: Given, program: Program) -> dict[int, str]:
    """The kind of each value: its number → one of KINDS."""
    kinds = dict(enumerate([*given.kept, *["activations"] * given.batch]))
    for step in program.steps:
        operands = [kinds[v.number] for v in values_in((step.args, step.kwargs))]
        for n in step.results:
            kinds[n] = _kind(step.op, set(operands), program.metas[n] if n >= 0 else None, given.rows)
    return kinds | dict(zip(program.outputs, ["activations", *given.kept], strict=True))


def _kind(op: str, operands: set[str], meta: ShapedType | None, rows: int) -> str:
    if op in COPIES and operands <= {"parameters", "gathered weights"}:
        return "gathered weights"
    if meta is None or not meta.shape or rows in meta.shape:
        return "activations"
    of_one_kind = operands in ({"parameters"}, {"optimizer state"})
    return operands.pop() if of_one_kind else "gradients"
