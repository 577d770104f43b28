"""Preparing a Program to run: ops are looked up, arguments become templates, last uses of values are found."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import EFFECT
from tinyshard.core.program import Eqn, Program, Value, values_in
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Communicator, Perform, Request
from tinyshard.runtime.failure import short
from tinyshard.runtime.worker.files import BLOCK_STEPS
from tinyshard.runtime.worker.flow import FLOWS, Flow
from tinyshard.runtime.worker.gpu import GPU_KERNELS
from tinyshard.runtime.worker.kernels import kernel_for, short_name, unless_seen, with_tensors_for_numbers

# a slice of what the device has: tinyshard's own way to say `narrow`; and a reshape that torch does not call a view
VIEWS = {"local_slice", "held", "aten._unsafe_view.default"}
MOST_SHOWN = 8  # arguments of a step, in an error
Send = Callable[[int, list[torch.Tensor]], None]  # (number of an effect, its operands)
_SEVERAL = (list, tuple)  # checked at every op: `list | tuple` would be built each time


@dataclass(frozen=True, slots=True)
class ReadyStep:
    """One step that is ready to run.

    Attributes:
        call: values of the program -> flat results; None for a collective, and for control flow.
        step: the program's step.
        request: a collective, or a transfer; None for an op.
        operand: number of its operand; of an exchange of several operands their numbers.
        perform: runs it, from `Communicator.ready`; None without a communicator.
        results: numbers of the results.
        dead: values that no later step uses.
        flow: for control flow, starts it on the values of the program.
        bodies: for control flow, the programs that it runs.
        makes_nbytes: the size of its results, as far as it is known, without views.
        line: the user's line that called the op; None where that is the line of the call.
        function: of torch's ops, what is called with the step's own arguments.
    """

    call: Callable[[list[Any]], Sequence[Any]] | None
    step: Eqn
    request: Request | None
    operand: int | tuple[int, ...]
    perform: Perform | None
    results: tuple[int, ...]
    dead: tuple[int, ...]
    flow: Callable[[list[Any]], Flow] | None = None
    bodies: tuple[ReadyProgram, ...] = ()
    makes_nbytes: int = 0
    line: Any = None
    function: Callable[..., Any] | None = None

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
        function: all steps as one function, from `device_code`: a list of operands, which it empties -> the results;
            None if the steps run one by one.
        lines: by line of that function's code, the position of the step.
    """

    program: Program
    steps: tuple[ReadyStep, ...]
    size: int
    may_print: bool
    function: Callable[[list[Any]], Sequence[Any]] | None = None
    lines: Sequence[int] = ()


def last_uses(program: Program) -> list[tuple[int, ...]]:
    """For each step the values that no later step uses, and that are no results of the program."""
    last: dict[int, int] = {}
    for k, step in enumerate(program.steps):
        for value in values_in((step.args, step.kwargs)):
            last[value.number] = k
        for number in step.results:
            last.setdefault(number, k)
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
    steps = tuple(_ready_step(k, program, dead, place, communicator, send) for k, dead in enumerate(last_uses(program)))
    if program.lines:
        steps = tuple(replace(step, line=line) for step, line in zip(steps, program.lines, strict=True))
    may_print = any(s.call and s.step.op != "literal" and not s.step.op.startswith("aten.") for s in steps)
    may_print = may_print or any(body.may_print for s in steps for body in s.bodies)
    return ReadyProgram(program, steps, len(program.metas), may_print)


def _ready_step(
    number: int,
    program: Program,
    dead: tuple[int, ...],
    place: torch.device | None,
    communicator: Communicator | None,
    send: Send | None,
) -> ReadyStep:
    step = program.steps[number]
    if step.op in COLLECTIVES or step.op == "transfer":
        operand = step.args[0].number
        several = tuple(x.number for x in step.args) if len(step.args) > 1 else ()
        params = {k: v for k, v in step.kwargs.items() if k != "axes"}
        axes = tuple(step.kwargs.get("axes", ()))
        meta, result = program.metas[operand], program.metas[step.results[0]]
        metas: Any = tuple(program.metas[n] for n in several)
        request = Request(step.op, program.devices, program.axes, axes, params, meta, result, metas)
        perform = communicator.ready(request) if communicator is not None else None
        nbytes = 0 if step.op in VIEWS else sum(_nbytes(program.metas[n]) for n in step.results)
        return ReadyStep(None, step, request, several or operand, perform, step.results, dead, makes_nbytes=nbytes)
    if step.op in FLOWS:
        bodies = tuple(make_ready(body, place, communicator, send) for body in step.bodies)
        types = tuple(program.metas[n] for n in step.results)
        flow = functools.partial(FLOWS[step.op], step, results=types, place=place)
        nbytes = sum(map(_nbytes, FLOWS[step.op].stacked(step, types)))
        return ReadyStep(None, step, None, -1, None, step.results, dead, flow, bodies, nbytes)
    if step.op in BLOCK_STEPS:
        does = BLOCK_STEPS[step.op]

        def handled(values: list[Any]) -> tuple[Any, ...]:
            return (does(*_filled(step.args, values), place),)

        return ReadyStep(handled, step, None, -1, None, step.results, dead, makes_nbytes=_made_nbytes(step, program))
    if step.op == EFFECT:
        operands, site = step.args
        return ReadyStep(functools.partial(_send, send, site, operands), step, None, -1, None, step.results, dead)
    try:
        if step.op == "literal":
            literal = (step.args[0].values.to(place),)
            return ReadyStep(lambda values: literal, step, None, -1, None, step.results, dead)
        call, function = _caller(step, program.metas, place, is_shortened=communicator is not None)
    except Exception as error:  # as for a missing op: an error of each call of the program
        call = function = functools.partial(_raise, error)
    nbytes = _made_nbytes(step, program)
    return ReadyStep(call, step, None, -1, None, step.results, dead, makes_nbytes=nbytes, function=function)


def _made_nbytes(step: Eqn, program: Program) -> int:
    """The size of a step's results, as far as it is known; nothing of those that look at operands."""
    return 0 if is_view(step) else sum(_nbytes(program.metas[n]) for n in step.results if n >= 0)


def _nbytes(meta: ShapedType | None) -> int:
    return 0 if meta is None else meta.nbytes


def is_view(step: Eqn) -> bool:
    """Whether the result of a step shares the memory of its first operand."""
    if step.op in VIEWS:
        return True
    return step.is_torch_op and has_op(step.op) and bool(find_op(step.op).is_view)


def _send(send: Send | None, site: int, operands: Sequence[Value], values: list[Any]) -> Sequence[Any]:
    assert send is not None
    send(site, [values[x.number] for x in operands])
    return ()


def _raise(error: Exception, *args: Any, **kwargs: Any) -> NoReturn:
    raise error.with_traceback(None)


def find_op(name: str) -> Any:
    """The op that "aten.add.Tensor" names."""
    namespace, packet, overload = name.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), packet), overload)


def has_op(name: str) -> bool:
    """Whether this process has the op."""
    try:
        find_op(name)
    except AttributeError:
        return False
    return True


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
    plain = [(i, a.number) for i, a in enumerate(template) if isinstance(a, Value)]
    nested = [(i, a) for i, a in enumerate(template) if not isinstance(a, Value) and any(values_in(a))]
    nested_kwargs = [(k, a) for k, a in kwargs.items() if any(values_in(a))]
    if is_shortened:
        op = short_name(op, template, kwargs)
    if place is not None:
        op = GPU_KERNELS.get(step.op, op)
    else:
        kernel = kernel_for(step, metas, op)
        op = kernel if is_shortened else unless_seen(kernel, op)

    def call(values: list[Any]) -> Sequence[Any]:
        args = template.copy()
        for i, number in plain:
            args[i] = values[number]
        for i, tree in nested:
            args[i] = _filled(tree, values)
        named = kwargs if not nested_kwargs else {**kwargs, **{k: _filled(t, values) for k, t in nested_kwargs}}
        out = op(*args, **named)
        return out if isinstance(out, _SEVERAL) else (out,)

    return call, op


def _filled(tree: Any, values: list[Any]) -> Any:
    if isinstance(tree, Value):
        return values[tree.number]
    if isinstance(tree, _SEVERAL):
        return type(tree)(_filled(item, values) for item in tree)
    return tree


def operands_of(step: ReadyStep, values: list[Any], failed: Any, place: torch.device | None = None) -> Any:
    """What a device brings to a collective: its operand, or a list of several; zeros if it has failed."""
    assert step.request is not None
    if isinstance(step.operand, tuple):
        return [zeros_for(m, place) for m in step.request.several] if failed else [values[n] for n in step.operand]
    return zeros_for(step.request.meta, place) if failed else values[step.operand]


def zeros_for(meta: ShapedType | None, place: torch.device | None = None) -> torch.Tensor:
    """The operand that a failed device uses in a collective, so that the other devices do not block.

    It is one zero, expanded: the failure may be that memory ran out.
    """
    assert meta is not None, "a collective's operand has a known shape"
    return torch.zeros((), dtype=meta.dtype, device=place).expand(meta.shape)
