"""Program: the steps that every device runs on its own shard. Plain data, sent to a worker once, then called by number.

A program is a list of steps in order, the same on every device. A step is an aten op on local shards, one of the
collectives of `tinyshard.core.collectives`, which name the axes along which devices exchange blocks, or control flow,
which contains programs: the body of a loop, the branches of a condition.

    x of f32[8, 4], rows cut in 4           %0: f32[2, 4] = input
    x.sum(0)                                %1: f32[4] = aten.sum.dim_IntList(%0, [0])
                                            %2: f32[4] = all_reduce(%1, over=0, op=sum)    # 24 bytes
                                            return %2
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from tinyshard.core import config
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import Site
from tinyshard.core.types import ShapedType

T = TypeVar("T")

CROSSING = {"transfer", *(name for name, row in COLLECTIVES.items() if row.communicates)}  # steps that exchange data
# how a whole tensor is cut: for each dim the axes; and (axis, op) where devices have parts that are not combined yet
Cut = tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, str], ...]]
_EVERYWHERE = ("aten.", "prims.", "tinyshard.")  # ops that every worker has
# a slice of what the device has: tinyshard's own way to say `narrow`; and a reshape that torch does not call a view
_VIEWS = {"local_slice", "held", "aten._unsafe_view.default"}


@dataclass(frozen=True, slots=True)
class Value:
    """The value with this number, inside a step's arguments."""

    number: int

    def __repr__(self) -> str:
        return f"%{self.number}"


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    """A constant tensor of the function: it is sent with the program, once."""

    values: torch.Tensor

    def __repr__(self) -> str:
        return str(self.values.item()) if self.values.dim() == 0 else str(self.values.tolist())


@dataclass(frozen=True, slots=True)
class Eqn:
    """One op or collective.

    Attributes:
        op: "aten.add.Tensor", the name of a collective, "literal", "effect", or control flow: "scan".
        args: Values, numbers, dtypes, and lists of these.
        kwargs: likewise, by name.
        results: numbers of the values it makes; -1 for a result that is None.
        bodies: for control flow the programs that it runs, on the same devices and axes, with their own values.
        operands: numbers of the values that it takes, in the order of its arguments.
    """

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[int, ...]
    bodies: tuple[Program, ...] = ()
    operands: tuple[int, ...] = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "operands", tuple([x.number for x in values_in((self.args, self.kwargs))]))

    @property
    def is_torch_op(self) -> bool:
        """Whether an op in torch's registry computes it; else it is a collective, a literal, an effect or a loop."""
        return "." in self.op

    @property
    def communicates(self) -> bool:
        """Whether it exchanges data between devices, itself or in its bodies."""
        return self.op in CROSSING or any(body.communicates for body in self.bodies)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a step gathers an operand.

    Attributes:
        op: the op that needs it.
        why: the layout that the op needs, or why no rule keeps the operand sharded.
        where: the user's line that called the op; None where that is the line that calls the program.
    """

    op: str
    why: str
    where: Any = None


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Program:
    """Steps that every device of `devices` runs.

    Attributes:
        devices: ids in mesh order.
        axes: sizes whose product is `len(devices)`; collectives name these axes by number.
        num_inputs: values 0 .. num_inputs - 1 are the inputs.
        steps: the steps in order.
        outputs: numbers of the values that it returns.
        metas: local shape and dtype of each value; None if its shape depends on values.
        reasons: for each step that gathers an operand of an op (its position among the steps, why).
        default_dtype: torch's default dtype when it was made, which ops use for ints and Python floats.
        number: identifies the program, so that it is sent to a worker once.
        foreign: ops that workers may not know, each with the user's line; None where that is the line of the call.
        lines: for each step the user's line that called its op; None where that is the line of the call.
        effects: of its steps and of those in bodies; on a device their numbers.
        cuts: for each value how its tensor is cut; None where each device has a value of its own.
        checks_nans: whether a step that makes a NaN raises.
        communicates: whether any step exchanges data between devices.
        largest_nbytes: size of its largest value; infinite if a shape depends on values.
    """

    devices: tuple[int, ...]
    axes: tuple[int, ...]
    num_inputs: int
    steps: tuple[Eqn, ...]
    outputs: tuple[int, ...]
    metas: tuple[ShapedType | None, ...]
    reasons: tuple[tuple[int, Reason], ...] = field(default=(), compare=False)
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    number: int = field(default_factory=itertools.count(1).__next__, compare=False)
    foreign: tuple[tuple[str, Any], ...] = field(default=(), compare=False)
    lines: tuple[Any, ...] = field(default=(), compare=False)
    effects: tuple[Site, ...] = field(default=(), compare=False)
    cuts: tuple[Cut | None, ...] = field(default=(), compare=False)
    checks_nans: bool = field(default_factory=lambda: config.values["debug_nans"])
    communicates: bool = field(init=False, compare=False)
    largest_nbytes: float = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "communicates", any(step.communicates for step in self.steps))
        sizes = [math.inf if meta is None else meta.nbytes for meta in self.metas]
        within = [body.largest_nbytes for step in self.steps for body in step.bodies]
        object.__setattr__(self, "largest_nbytes", max([*sizes, *within], default=0))

    @property
    def repeats_ops(self) -> bool:
        """Whether an op is in it twice, or a step has bodies: then some steps may be combined."""
        return len({step.op for step in self.steps}) < len(self.steps) or any(step.bodies for step in self.steps)

    def made_by(self, step: Eqn) -> str:
        """The results of a step as text: "%5: f32[16, 4]"."""
        return ", ".join(f"{Value(n)}: {self.metas[n] or '?'}" for n in step.results if n >= 0)


def values_in(tree: Any) -> list[Value]:
    """Every Value in a step's arguments, in order."""
    found: list[Value] = []
    rest = [tree]
    while rest:
        item = rest.pop()
        if isinstance(item, Value):
            found.append(item)
        elif isinstance(item, list | tuple):
            rest += reversed(item)
        elif isinstance(item, dict):
            rest += reversed(item.values())
    return found


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


def is_view(step: Eqn) -> bool:
    """Whether the result of a step shares the memory of its first operand."""
    if step.op in _VIEWS:
        return True
    return step.is_torch_op and has_op(step.op) and bool(find_op(step.op).is_view)


@dataclass
class Builder:
    """Builds a Program.

    Attributes:
        free: inputs that are not on the devices yet: the first op that takes one determines its layout.
        wanted: for each free input that has been taken, the axes that should cut each dim.
        copies: values that were already brought to another layout, so that two ops share one exchange.
        reordered: values that show the dims of another value in another order: how, a `partition.reshard.Reordered`.
        reasons: why a step gathers an operand, by its position among the steps.
        foreign: ops that workers may not know, with the user's line of the first step of each.
        lines: for each step the value of `where`.
        effects: of the steps so far.
        cuts: how the tensor of a value is cut, where that is known.
        where: the user's line that called the op which is being written; None outside of a trace.
    """

    devices: tuple[int, ...]
    axes: tuple[int, ...]
    steps: list[Eqn] = field(default_factory=list)
    metas: list[ShapedType | None] = field(default_factory=list)
    num_inputs: int = 0
    free: set[int] = field(default_factory=set)
    wanted: dict[int, tuple[tuple[int, ...], ...]] = field(default_factory=dict)
    copies: dict[Any, Any] = field(default_factory=dict)
    reordered: dict[int, Any] = field(default_factory=dict)
    reasons: dict[int, Reason] = field(default_factory=dict)
    foreign: dict[str, Any] = field(default_factory=dict)
    lines: list[Any] = field(default_factory=list)
    effects: list[Site] = field(default_factory=list)
    cuts: dict[int, Cut] = field(default_factory=dict)
    where: Any = None

    def input(self, meta: ShapedType) -> int:
        """Add an input; all inputs come before all steps."""
        self.metas.append(meta)
        self.num_inputs += 1
        return len(self.metas) - 1

    def emit(
        self,
        op: str,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        metas: Sequence[ShapedType | None] = (),
        bodies: tuple[Program, ...] = (),
    ) -> tuple[int, ...]:
        """Add a step that makes values of these metas; returns their numbers."""
        first = len(self.metas)
        results = tuple(range(first, first + len(metas)))
        self.metas.extend(metas)
        if "." in op and not op.startswith(_EVERYWHERE):
            self.foreign.setdefault(op, self.where)
        for inner, where in itertools.chain.from_iterable(body.foreign for body in bodies):
            self.foreign.setdefault(inner, where)
        self.effects += itertools.chain.from_iterable(body.effects for body in bodies)
        self.steps.append(Eqn(op, tuple(args), dict(kwargs or {}), results, bodies))
        # one object for a run of equal lines: the program is sent with them
        self.lines.append(self.lines[-1] if self.lines and self.lines[-1] == self.where else self.where)
        return results

    def literal(self, values: torch.Tensor) -> int:
        """Add a step that makes a constant tensor, whole on every device; returns its number."""
        held = values.detach()
        return self.emit("literal", (Literal(held),), {}, [ShapedType(tuple(held.shape), held.dtype)])[0]

    def once(self, key: Any, emit: Callable[[], T]) -> T:
        """The result of `emit`, called once per key, so that two steps of a program share it."""
        if key not in self.copies:
            self.copies[key] = emit()
        value: T = self.copies[key]
        return value

    @contextlib.contextmanager
    def apart(self) -> Iterator[None]:
        """A block whose steps do not share results with those outside, though they may compute the same."""
        outside, self.copies = self.copies, {}
        try:
            yield
        finally:
            self.copies = outside

    def finish(self, outputs: Sequence[int]) -> Program:
        """The Program so far, which returns these values."""
        parts = tuple(self.steps), tuple(outputs), tuple(self.metas), tuple(self.reasons.items())
        cuts: dict[int, Cut] = self.cuts | {number: (dims, ()) for number, dims in self.wanted.items()}
        beside: dict[str, Any] = {
            "foreign": tuple(self.foreign.items()),
            "lines": tuple(self.lines),
            "effects": tuple(self.effects),
            "cuts": tuple(map(cuts.get, range(len(self.metas)))),
        }
        return Program(self.devices, self.axes, self.num_inputs, *parts, **beside)
