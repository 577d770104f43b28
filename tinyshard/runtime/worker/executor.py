"""Preparing a Program to run: ops are looked up, arguments become templates, last uses of values are found."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import EFFECT
from tinyshard.core.program import Eqn, Program, Value, find_op, has_op, is_view, values_in
from tinyshard.core.stored_blocks import read_block, write_file
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Communicator, Perform, Request
from tinyshard.runtime.failure import short
from tinyshard.runtime.worker.flow import FLOWS, Flow
from tinyshard.runtime.worker.gpu import GPU_KERNELS
from tinyshard.runtime.worker.kernels import kernel_for, short_name, unless_seen, with_tensors_for_numbers

MOST_SHOWN = 8  # arguments of a step, in an error
_SMALL_STEPS, _SMALL_NBYTES = 8, 1 << 16  # of a small program; the bytes of all its values
Send = Callable[[int, list[torch.Tensor]], None]  # (number of an effect, its operands)
_SEVERAL = (list, tuple)  # checked at every op: `list | tuple` would be built each time


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """One step that is ready to run.

    Attributes:
        step: the program's step.
        results: numbers of the results.
        dead: values that no later step uses.
        line: the user's line that called the op; None where that is the line of the call.
        makes_nbytes: the size of its results, as far as it is known, without views.
        call: values of the program -> flat results; None for a collective, and for control flow.
        function: of torch's ops, what is called with the step's own arguments.
        request: a collective, or a transfer; None for an op.
        perform: runs it, from `Communicator.ready`; None without a communicator.
        flow: for control flow, starts it on the values of the program.
        bodies: for control flow, the programs that it runs.
    """

    step: Eqn
    results: tuple[int, ...]
    dead: tuple[int, ...]
    line: Any = None
    makes_nbytes: int = 0
    call: Callable[[list[Any]], Sequence[Any]] | None = None
    function: Callable[..., Any] | None = None
    request: Request | None = None
    perform: Perform | None = None
    flow: Callable[[list[Any]], Flow] | None = None
    bodies: tuple[ReadyProgram, ...] = ()

    def describe(self, values: list[Any]) -> str:
        """The call as an error shows it: "aten.add.Tensor(f32[2, 4], 1)"."""
        args = [short(_filled(a, values)) for a in self.step.args[:MOST_SHOWN]]
        args += [f"{len(self.step.args) - MOST_SHOWN} more"] if len(self.step.args) > MOST_SHOWN else []
        args += [f"{k}={short(_filled(v, values))}" for k, v in self.step.kwargs.items()]
        return f"{self.step.op}({', '.join(args)})"


@dataclass(frozen=True, slots=True)
class ReadyProgram:
    """A Program that is ready to run.

    Attributes:
        program: the program as it was sent.
        steps: its steps.
        size: the number of its values.
        may_print: whether it has an op that may print: torch's own ops do not print.
        is_small: it has few steps, and each takes no longer than to read and write its few values: a device does less
            for a call than the controller.
        function: all steps as one function, from `device_code`: a list of operands, which it empties -> the results;
            None if the steps run one by one.
        lines: by line of that function's code, the position of the step.
    """

    program: Program
    steps: tuple[ReadyStep, ...]
    size: int
    may_print: bool
    is_small: bool
    function: Callable[[list[Any]], Sequence[Any]] | None = None
    lines: Sequence[int] = ()


def last_uses(program: Program) -> list[tuple[int, ...]]:
    """For each step the values that no later step uses, and that are no results of the program."""
    last = {number: k for k, step in enumerate(program.steps) for number in (*step.operands, *step.results)}
    keep = set(program.outputs)
    dead: list[list[int]] = [[] for _ in program.steps]
    for number, k in last.items():
        if number not in keep and number >= 0:
            dead[k].append(number)
    return list(map(tuple, dead))


def make_ready(
    program: Program,
    place: torch.device | None = None,
    communicator: Communicator | None = None,
    send: Send | None = None,
) -> ReadyProgram:
    """Look up every op of the program once.

    Args:
        program: the program.
        place: the GPU on which values are kept and made; None for the CPU.
        communicator: runs the collectives. Without one the program runs in the user's own process: there
            the user's torch modes must see each op under its name, and no tensor made under them may be kept.
        send: sends the values of an effect to the controller; None in the controller's own process.
    """
    steps = []
    for number, (step, dead) in enumerate(zip(program.steps, last_uses(program), strict=True)):
        line = program.lines[number] if program.lines else None
        makes_nbytes = 0 if is_view(step) else _nbytes([program.metas[n] for n in step.results if n >= 0])
        differs = {"makes_nbytes": makes_nbytes, **_by_kind(step, program, place, communicator, send)}
        steps.append(ReadyStep(step, step.results, dead, line, **differs))
    may_print = any(s.call and s.step.op != "literal" and not s.step.op.startswith("aten.") for s in steps)
    may_print = may_print or any(body.may_print for s in steps for body in s.bodies)
    nbytes = sum(math.inf if meta is None else meta.nbytes for meta in program.metas)
    is_small = len(steps) <= _SMALL_STEPS and nbytes <= _SMALL_NBYTES and all(map(_is_quick, program.steps))
    return ReadyProgram(program, tuple(steps), len(program.metas), may_print, is_small)


def _is_quick(step: Eqn) -> bool:
    """Whether a step only reads and writes its values, once each: not `eig`, an exchange, a loop or a callback."""
    if not step.is_torch_op or not has_op(step.op):
        return step.op == "literal"
    return is_view(step) or torch.Tag.pointwise in find_op(step.op).tags


def _by_kind(
    step: Eqn,
    program: Program,
    place: torch.device | None,
    communicator: Communicator | None,
    send: Send | None,
) -> dict[str, Any]:
    """The attributes of a ready step that only steps of its kind have."""
    if step.op in COLLECTIVES or step.op == "transfer":
        axes = tuple(step.kwargs.get("axes", ()))
        params = {k: v for k, v in step.kwargs.items() if k not in ("axes", "groups")}
        metas, result = tuple(program.metas[n] for n in step.operands), program.metas[step.results[0]]
        groups = step.kwargs.get("groups")
        request = Request(step.op, program.devices, program.axes, axes, params, metas, result, groups)
        return {"request": request, "perform": communicator and communicator.ready(request)}
    if step.op in FLOWS:
        stacked = FLOWS[step.op].stacked(step, [program.metas[n] for n in step.results])
        flow = functools.partial(FLOWS[step.op], step, stacked=stacked, place=place)
        bodies = tuple(make_ready(body, place, communicator, send) for body in step.bodies)
        return {"flow": flow, "bodies": bodies, "makes_nbytes": _nbytes(stacked)}
    if step.op in BLOCK_STEPS:
        does = BLOCK_STEPS[step.op]
        return {"call": lambda values: (does(*_filled(step.args, values)).to(place),)}
    if step.op == EFFECT:
        return {"call": functools.partial(_send, send, *step.args)}
    try:
        if step.op == "literal":
            literal = (step.args[0].values.to(place),)
            return {"call": lambda values: literal, "makes_nbytes": 0}
        call, function = _caller(step, program.metas, place, is_shortened=communicator is not None)
    except Exception as error:  # as for a missing op: an error of each call of the program
        call = function = functools.partial(_raise, error)
    return {"call": call, "function": function}


# a device's steps with its own blocks, of the programs that `arrays.files` and `arrays.from_parts` make: no function is
# traced to them
BLOCK_STEPS: dict[str, Callable[..., torch.Tensor]] = {
    "write_file": write_file,
    "read_block": read_block,
    "held": lambda blocks: next(block for block in blocks if block is not None),  # the one that is on this device
}


def _nbytes(metas: Sequence[ShapedType | None]) -> int:
    return sum(0 if meta is None else meta.nbytes for meta in metas)


def _send(send: Send | None, operands: Sequence[Value], site: int, values: list[Any]) -> Sequence[Any]:
    assert send is not None
    send(site, [values[x.number] for x in operands])
    return ()


def _raise(error: Exception, *args: Any, **kwargs: Any) -> NoReturn:
    raise error.with_traceback(None)


def _caller(
    step: Eqn,
    metas: Sequence[ShapedType | None],
    place: torch.device | None,
    *,
    is_shortened: bool,
) -> tuple[Callable[[list[Any]], Sequence[Any]], Callable[..., Any]]:
    """What runs a step on the values of the program, and what that calls with the step's arguments."""
    op = find_op(step.op)
    is_quickened = is_shortened and place is None
    template = with_tensors_for_numbers(step, metas) if is_quickened else list(step.args)
    kwargs = step.kwargs
    if place is not None and any(argument.name == "device" for argument in op._schema.arguments):
        kwargs = {**kwargs, "device": place}
    given = [(i, a) for i, a in enumerate(template) if any(values_in(a))]
    named_given = [(k, a) for k, a in kwargs.items() if any(values_in(a))]
    if is_shortened:
        op = short_name(op, template, kwargs)
    if place is not None:
        op = GPU_KERNELS.get(step.op, op)
    else:
        kernel = kernel_for(step, metas, op)
        op = kernel if is_shortened else unless_seen(kernel, op)

    def call(values: list[Any]) -> Sequence[Any]:
        args = template.copy()
        for i, tree in given:
            args[i] = values[tree.number] if type(tree) is Value else _filled(tree, values)
        named = kwargs if not named_given else {**kwargs, **{k: _filled(t, values) for k, t in named_given}}
        out = op(*args, **named)
        return out if isinstance(out, _SEVERAL) else (out,)

    return call, op


def _filled(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, Value):
        return values[tree.number]
    if isinstance(tree, _SEVERAL):
        return type(tree)(_filled(item, values) for item in tree)
    return tree


def operands_of(step: ReadyStep, values: list[Any], failed: Any, place: torch.device | None = None) -> list[Any]:
    """The operands that a device brings to a collective; zeros if it has failed."""
    assert step.request is not None
    if failed:
        return [zeros_for(meta, place) for meta in step.request.metas]
    return [values[number] for number in step.step.operands]


def zeros_for(meta: ShapedType | None, place: torch.device | None = None) -> torch.Tensor:
    """The operand that a failed device uses in a collective, so that the other devices do not block.

    It is one zero, expanded: the failure may be that memory ran out.
    """
    assert meta is not None, "a collective's operand has a known shape"
    return torch.zeros((), dtype=meta.dtype, device=place).expand(meta.shape)
