"""The traces of a function, and the programs made from each."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tinyshard.arrays.array import shaped_type_of
from tinyshard.compile.executable import DeviceAssignment, Executable, InputSpec
from tinyshard.compile.signature import Signature
from tinyshard.compile.spmd import constraints_of, partition_graph
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core.layout import is_same_placement
from tinyshard.core.types import ShapedType
from tinyshard.primitives.manual_region import regions_in
from tinyshard.runtime.cache import Recent, release
from tinyshard.sharding import Sharding
from tinyshard.transforms.applied import Derived
from tinyshard.transforms.in_shardings import assignment_at

MOST_TRACES = 1024  # of a function, for different signatures
MOST_ALIKE = 16  # of a function for one signature, as what it closes over changes its shape
MOST_PROGRAMS = 256  # of a trace, for different layouts


def _release(executable: Executable) -> None:
    release(executable.program)


def _release_all(executables: Recent[Any, Executable]) -> None:
    for executable in executables.values():
        _release(executable)


@dataclass(eq=False)
class TraceCacheEntry:
    """A trace, and the executables made from it.

    Attributes:
        traced: the graph.
        closed: shapes and dtypes of what it closes over; with others it does not fit.
        executables: partitioned, by devices and layouts.
        derived: its derivatives, once they have been asked for.
    """

    traced: Traced
    closed: tuple[ShapedType, ...]
    executables: Recent[Any, Executable] = field(default_factory=lambda: Recent(MOST_PROGRAMS, _release))
    derived: Derived | None = None

    def __post_init__(self) -> None:
        weakref.finalize(self, _release_all, self.executables).atexit = False

    @property
    def hides_tensors(self) -> bool:
        """Whether it closes over a tensor that cannot be found again, which may be another one at the next call."""
        return any(not c.paths for c in self.traced.closed)

    def is_same_as(self, other: TraceCacheEntry) -> bool:
        """Whether both have one graph on inputs of one kind: then the programs of one do for both."""
        mine, theirs = self.traced, other.traced
        plain = all(is_tensor for is_tensor, _ in (*mine.outputs, *theirs.outputs))
        literal = any(node.op == "get_attr" for node in mine.graph.graph.nodes)
        same = (mine.arguments, self.closed, mine.out_tree) == (theirs.arguments, other.closed, theirs.out_tree)
        return plain and not literal and same and mine.graph.code == theirs.graph.code

    @functools.cached_property
    def assignments(self) -> list[tuple[Sharding, DeviceAssignment]]:
        """What its constraints and regions say of where it runs."""
        named = [*constraints_of(self.traced), *(region.anywhere for region in regions_in(self.traced))]
        return [(sharding, assignment_at(sharding)) for sharding in named]

    def look_up(self, roots: Sequence[Any]) -> list[torch.Tensor] | None:
        """What it closes over, as it is now; None if the trace does not fit that."""
        now = [c.look_up(roots) for c in self.traced.closed]
        found = [x for x in now if x is not None]
        return found if len(found) == len(now) and tuple(map(shaped_type_of, found)) == self.closed else None

    def changes(self, roots: Sequence[Any]) -> list[str]:
        """What has become of what it closes over, for the tensors that are not as they were."""
        said = []
        for name, closed, before in zip(closed_names(self.traced), self.traced.closed, self.closed, strict=True):
            now = closed.look_up(roots)
            if not closed.paths:
                said.append(f"{name}, a tensor of {before} which it closes over, cannot be found again")
            elif now is None:
                said.append(f"{name}, which it closes over, is gone or means something else")
            elif shaped_type_of(now) != before:
                said.append(f"{name}, which it closes over: {before}, now {shaped_type_of(now)}")
        return said


Traces = Recent[Signature, list[TraceCacheEntry]]

_traces: weakref.WeakKeyDictionary[Any, Traces] = weakref.WeakKeyDictionary()


def traces_of(function: Callable[..., Any]) -> Traces:
    """The traces of a function: kept as long as it is there, and shared by all that is jitted of it."""
    if not isinstance(function, types.FunctionType):
        return Recent(MOST_TRACES)
    return _traces.setdefault(function, Recent(MOST_TRACES))


def partitioned(
    traced: Traced, assignment: DeviceAssignment, specs: Sequence[InputSpec], named: Sequence[Sharding | None]
) -> Executable:
    """The executable whose results lie as they are named, and say so in the same words."""
    shapes = [tuple(node.meta["val"].shape) for node in traced.results]
    layouts = [s if s is None else s.checked_layout(shape) for s, shape in zip(named, shapes, strict=True)]
    executable = partition_graph(traced, assignment, specs, layouts)
    if not any(named):
        return executable
    lie_so = [
        layout is not None and made is not None and is_same_placement(layout, made[0])
        for layout, made in zip(layouts, executable.results, strict=True)
    ]
    return replace(executable, shardings=tuple(s if fits else None for s, fits in zip(named, lie_so, strict=True)))
