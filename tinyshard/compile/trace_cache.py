"""The traces of a function, and the executables made from each, by devices and layouts."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinyshard.arrays.abstract import described
from tinyshard.arrays.array import Array, shaped_type_of
from tinyshard.arrays.explicit import sharding_of
from tinyshard.arrays.transfer import check_devices
from tinyshard.compile.executable import (
    DeviceAssignment,
    Executable,
    InputSpec,
    assignment_at,
    assignment_of,
    call,
    spec_of,
)
from tinyshard.compile.signature import Signature
from tinyshard.compile.spmd import compile_graph
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core import activity
from tinyshard.core.cache import Recent
from tinyshard.core.devices import Device
from tinyshard.core.errors import ShardingError
from tinyshard.core.layout import is_same_placement
from tinyshard.core.primitive import bound_in
from tinyshard.core.trace_thread import in_trace_thread
from tinyshard.core.types import ShapedType, default_dtype
from tinyshard.runtime import lifecycle
from tinyshard.sharding import NamedSharding, Sharding
from tinyshard.sharding.mesh import AbstractMesh, Mesh

MOST_TRACES = 1024  # of a function, for different signatures
MOST_ALIKE = 16  # of a function for one signature, as the tensors that it closes over change their shapes
MOST_PROGRAMS = 256  # of a trace, for different layouts
_MOST_WRAPPED = 16  # how deep a function is looked for within others


@dataclass(eq=False)
class TraceCacheEntry:
    """A trace, and the executables made from it.

    Attributes:
        traced: the graph.
        executables: partitioned, by devices and layouts.
        closed: shapes, dtypes and explicit shardings of the tensors that it closes over; they must match.
        derived: its derivatives, once they have been computed.
    """

    traced: Traced
    executables: Recent[Any, Executable] = field(default_factory=lambda: Recent(MOST_PROGRAMS))
    closed: tuple[tuple[ShapedType, NamedSharding | None], ...] = field(init=False)
    derived: Any = None

    def __post_init__(self) -> None:
        self.closed = tuple((c.type, c.sharding) for c in self.traced.closed)

    @property
    def hides_tensors(self) -> bool:
        """Whether it closes over a tensor that cannot be found again, which may differ at the next call."""
        return any(not c.paths for c in self.traced.closed)

    def is_same_as(self, other: TraceCacheEntry) -> bool:
        """Whether both have the same graph on inputs of the same types, so that they can share programs."""
        mine, theirs = self.traced, other.traced
        plain = all(is_tensor for is_tensor, _ in (*mine.outputs, *theirs.outputs))
        literal = any(node.op == "get_attr" for node in mine.graph.graph.nodes)
        same = (mine.arguments, self.closed, mine.out_tree) == (theirs.arguments, other.closed, theirs.out_tree)
        same = (
            same
            and (mine.custom_derivative is None) == (theirs.custom_derivative is None)
            and mine.shardings == theirs.shardings
        )
        return plain and not literal and same and mine.graph.code == theirs.graph.code

    @functools.cached_property
    def assignments(self) -> list[tuple[Sharding, DeviceAssignment]]:
        """The shardings of its constraints and regions, which determine where it runs."""
        named = [s for _, primitive, params in bound_in(self.traced.graph) for s in primitive.shardings(params)]
        return [(sharding, assignment_at(sharding)) for sharding in named]

    def assignment(
        self,
        operands: Sequence[Any],
        names: Callable[[], list[str]] | None = None,
        results: Sequence[Sharding] = (),
    ) -> DeviceAssignment:
        """The devices of the committed operands, else those that a constraint, a region or a result's sharding names.

        Raises:
            ShardingError: these are not the same.
        """
        all_names = None if names is None else lambda: [*names(), *closed_names(self.traced)]
        assignment = assignment_of(operands, all_names)
        for sharding, named in [*self.assignments, *((s, assignment_at(s)) for s in results)]:
            if not assignment.committed:
                assignment = named
            if named.devices != assignment.devices:
                raise ShardingError(
                    "Devices of all `Array` inputs and outputs should be the same.",
                    got=f"array device ids {list(assignment.devices)} on platform {assignment.platform.upper()}\n"
                    f"and {list(named.devices)} in {sharding!r}",
                    rule="constraints, regions and out_shardings name the arguments' devices, in their order",
                    try_="ts.device_put the arguments there before the call",
                )
        return assignment

    def executable(
        self, operands: Sequence[Any], assignment: DeviceAssignment, results: Sequence[Sharding | None] | None = None
    ) -> Executable:
        """The executable for operands of these layouts, compiled once.

        Args:
            operands: its inputs; a ShapeDtypeStruct may be among them.
            assignment: where it will run.
            results: the sharding that each result should have; None where the partitioner chooses.
        """
        specs = tuple(spec_of(x, assignment) for x in operands)
        asked = (None,) * len(self.traced.results) if results is None else tuple(results)
        key = (assignment.platform, assignment.devices, specs, asked)
        known = self.executables.get(key)
        if known is None:
            what = f"planning a program for {len(assignment.devices)} devices"
            with activity.doing(what):
                known = self.executables.put(key, _compiled(self.traced, assignment, specs, asked))
        return known

    def check_callable(self, operands: Sequence[Any], assignment: DeviceAssignment, name: str) -> None:
        """Raise ShardingError for a program whose devices do not exist, or that has an AbstractMesh."""
        if any(getattr(x, "committed", False) for x in operands):
            return  # it is on them
        refuse_abstract(assignment.mesh, name)
        check_devices((Device(i, assignment.platform) for i in assignment.devices), lifecycle.current())

    def call(self, operands: Sequence[torch.Tensor], name: str) -> list[Array]:
        """Call it on operands that nothing transforms; the results are where the partitioner chose."""
        assignment = self.assignment(operands)
        self.check_callable(operands, assignment, name)
        return call(self.executable(operands, assignment), operands, assignment)

    def look_up(self, roots: Sequence[Any]) -> list[torch.Tensor] | None:
        """The tensors that it closes over, as they are now; None if the trace does not fit them."""
        if not all(mode.is_unchanged for mode in self.traced.modes):
            return None
        now = [c.look_up(roots) for c in self.traced.closed]
        found = [x for x in now if x is not None]
        return found if len(found) == len(now) and tuple(map(_type_of, found)) == self.closed else None

    def changes(self, roots: Sequence[Any]) -> list[str]:
        """The changes of the tensors that it closes over, in words."""
        changes = [words for mode in self.traced.modes for words in mode.changes()]
        for name, closed, before in zip(closed_names(self.traced), self.traced.closed, self.closed, strict=True):
            now = closed.look_up(roots)
            if not closed.paths:
                changes.append(f"{name}, a tensor of {before[0]} which it closes over, cannot be found again")
            elif now is None:
                changes.append(f"{name}, which it closes over, is gone or means something else")
            elif _type_of(now) != before:
                was, is_now = (described(x.shape, x.dtype, sharding) for x, sharding in (before, _type_of(now)))
                changes.append(f"{name}, which it closes over: {was}, now {is_now}")
        return changes


def _type_of(x: torch.Tensor) -> tuple[ShapedType, NamedSharding | None]:
    return shaped_type_of(x), sharding_of(x)


def refuse_abstract(mesh: Mesh | None, name: str) -> None:
    """Raise ShardingError for the call of a program on a mesh without devices."""
    if isinstance(mesh, AbstractMesh):
        raise ShardingError(
            "a program for an abstract mesh cannot be called",
            got=f"{name} called, with {mesh!r}",
            rule="an AbstractMesh has no devices: it is for planning, drawing and lower()",
            try_=f"{name}.lower(...), or ts.make_mesh(sizes, names) for a mesh of devices",
        )


Traces = Recent[Signature, list[TraceCacheEntry]]

Codes = tuple[tuple[types.FunctionType, types.CodeType], ...]

_traces: weakref.WeakKeyDictionary[Any, tuple[list[types.CodeType], Traces]] = weakref.WeakKeyDictionary()


def codes_of(function: Any) -> Codes:
    """The functions whose code runs, as far as they can be found from this one, each with its present code."""
    found: list[types.FunctionType] = []
    for _ in range(_MOST_WRAPPED):
        if function is None:
            break
        if isinstance(function, types.FunctionType):
            found.append(function)
            function = getattr(function, "__wrapped__", None)
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, functools.partial):
            function = function.func
        elif isinstance(function, torch.nn.Module):
            function = type(function).forward
        else:
            method = type(function).__call__
            function = getattr(function, "__wrapped__", method if isinstance(method, types.FunctionType) else None)
    return tuple((each, each.__code__) for each in found)


def traces_of(function: Callable[..., Any]) -> Traces:
    """The traces of a function: kept as long as it and its code exist, and shared by all jitted functions of it."""
    if not isinstance(function, types.FunctionType):
        return Recent(MOST_TRACES)
    codes = [code for _, code in codes_of(function)]
    known = _traces.get(function)
    if known is None or known[0] != codes:
        known = _traces[function] = codes, Recent(MOST_TRACES)
    return known[1]


@in_trace_thread()
def _compiled(
    traced: Traced, assignment: DeviceAssignment, specs: Sequence[InputSpec], named: Sequence[Sharding | None]
) -> Executable:
    """The executable whose results have the named shardings, and are described by them."""
    shapes = [tuple(node.meta["val"].shape) for node in traced.results]
    layouts = [s if s is None else s.checked_layout(shape) for s, shape in zip(named, shapes, strict=True)]
    with default_dtype(traced.default_dtype):
        executable = compile_graph(traced.graph, specs, assignment, layouts)
    if not any(named):
        return executable
    fits = [
        layout is not None and result is not None and is_same_placement(layout, result[0])
        for layout, result in zip(layouts, executable.results, strict=True)
    ]
    return replace(executable, shardings=tuple(s if fit else None for s, fit in zip(named, fits, strict=True)))
