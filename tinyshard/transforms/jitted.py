"""Jitted: a function under jit. A call of it finds or compiles a program and runs it."""

from __future__ import annotations

import copy
import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from tinyshard.arrays.abstract import ShapeDtypeStruct, put_at, put_where
from tinyshard.arrays.array import Array
from tinyshard.arrays.constraint import has_tangent
from tinyshard.arrays.explicit import Types, types_of
from tinyshard.arrays.placement import array, as_sharding
from tinyshard.compile.compiled import Compiled, Lowered
from tinyshard.compile.donation import donated_operands, usable, warn_of_kept
from tinyshard.compile.executable import DeviceAssignment, Executable, assembled, call
from tinyshard.compile.explain import explanation
from tinyshard.compile.python_numbers import note_numbers
from tinyshard.compile.signature import Bound, Signature, argument_names, bind
from tinyshard.compile.trace_cache import MOST_ALIKE, MOST_PROGRAMS, TraceCacheEntry, Traces, codes_of, traces_of
from tinyshard.compile.tracing import trace
from tinyshard.core import activity, axis_names, config
from tinyshard.core.cache import Recent
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import this_thread
from tinyshard.core.users_line import users_line
from tinyshard.sharding import PartitionSpec, Sharding
from tinyshard.sharding.prefix import map_with, spread, spread_over_arguments
from tinyshard.transforms import jit_autodiff


def _derived(entry: TraceCacheEntry) -> jit_autodiff.Derived:
    if entry.derived is None:
        jit = functools.partial(Jitted, is_of_constants=True)
        entry.derived = jit_autodiff.Derived(entry.traced, jit)
    return entry.derived


class Jitted:
    """A function under jit. Made by `jit`."""

    what = "jit"

    def __init__(
        self,
        function: Callable[..., Any],
        in_shardings: Any = None,
        out_shardings: Any = None,
        static_argnums: tuple[int, ...] = (),
        static_argnames: tuple[str, ...] = (),
        is_of_constants: bool = False,  # the tensors that it closes over never change
        donate_argnums: tuple[int, ...] = (),
        donate_argnames: tuple[str, ...] = (),
    ) -> None:
        functools.update_wrapper(self, function, updated=())  # its other attributes are asked for by __getattr__
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._donate_argnums = donate_argnums
        self._donate_argnames = donate_argnames
        self._usable: Recent[Any, tuple[int, ...]] = Recent(MOST_PROGRAMS)
        self._codes = codes_of(function)
        self._entries = self._known_traces()
        self._asked: weakref.WeakKeyDictionary[TraceCacheEntry, list[Sharding | None]] = weakref.WeakKeyDictionary()
        self._found: Recent[Any, tuple[TraceCacheEntry, Executable, DeviceAssignment, Sequence[int]]] = Recent(
            MOST_PROGRAMS
        )
        self._is_of_constants = is_of_constants

    def __getattr__(self, name: str) -> Any:
        """The attribute of the function, as `training` of a module; Jitted has no copies, which could become stale."""
        wrapped = self.__dict__.get("__wrapped__")
        if wrapped is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(wrapped, name)

    def __reduce__(self) -> str:
        """Pickled as a function is: by its name, under which a decorated one is found in its module."""
        return str(getattr(self, "__qualname__", self._name))

    def __deepcopy__(self, memo: dict[int, Any]) -> Jitted:
        """Copied with the function: a plain function is its own copy, a method becomes that of the copied object."""
        twin = memo[id(self)] = type(self).__new__(type(self))
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin

    def __repr__(self) -> str:
        return f"<jit of {getattr(self._function, '__name__', self._function)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the devices of the arguments; returns at once. Within a trace the call becomes a part of it."""
        if this_thread.recorder is not None:
            return self._inlined(args, kwargs)
        if config.read("disable_jit") and self.what == "jit" and not self._is_of_constants:
            return self._op_by_op(args, kwargs)
        key = self._key(args, kwargs)
        found = None if key is None or self._is_edited() else self._found.get(key)
        if found is not None:
            entry, executable, assignment, donated = found
            return assembled(entry.traced, call(executable, args, assignment, donated))
        if axis_names.in_scope():  # collectives inside may name an axis that vmap binds outside
            warn_of_kept(self._name, self._donate_argnums, self._donate_argnames)
            return self._inlined(args, kwargs)
        bound = self._bind(args, kwargs)
        if any(isinstance(x, ShapeDtypeStruct) for x in bound.operands):
            raise DtypeError(
                "a described value cannot be computed with",
                got=f"{self._name} called with a ShapeDtypeStruct",
                rule="it stands for an array in lower(), and has no values",
                try_=f"ts.{self.what}({self._name}).lower(...), or a call with Arrays",
            )
        bound, operands = self._typed(bound, self._apply_in_shardings(bound))
        entry, everything = self._trace_and_inputs(bound, operands)
        if _is_watched(everything):
            warn_of_kept(self._name, self._donate_argnums, self._donate_argnames)
            return self._applied(bound, entry, everything)
        executable, assignment = self._executable(bound, entry, everything)
        donated = self._donated(bound, executable)
        # a trace without closed-over tensors always fits: the first one will be found again
        closes_over = entry.traced.closed or entry.traced.modes
        if key is not None and not closes_over and self._entries_for(bound.signature)[0] is entry:
            self._found.put(key, (entry, executable, assignment, donated))
        return assembled(entry.traced, call(executable, everything, assignment, donated))

    def _executable(
        self, bound: Bound, entry: TraceCacheEntry, everything: Sequence[Any]
    ) -> tuple[Executable, DeviceAssignment]:
        assignment = self._assignment(entry, everything, bound.names)
        entry.check_callable(everything, assignment, self._name)
        return entry.executable(everything, assignment, self._named(entry)), assignment

    def _donated(self, bound: Bound, executable: Executable) -> tuple[int, ...]:
        """The operands whose memory the program may reuse; a warning, once, names those that it cannot use."""
        if not self._donate_argnums and not self._donate_argnames:
            return ()
        donated = donated_operands(bound, self._donate_argnums, self._donate_argnames)
        key = executable.program.number, donated
        known = self._usable.get(key)
        return self._usable.put(key, usable(executable.program, donated)) if known is None else known

    def _applied(self, bound: Bound, entry: TraceCacheEntry, everything: Sequence[torch.Tensor]) -> Any:
        """Within a transformation, or on torch's tape: as one op."""
        if torch._C._functorch.maybe_current_level() is None and has_tangent(everything):
            raise DtypeError(
                "a jitted function is called on a value with a tangent of torch.autograd.forward_ad",
                got=self._name,
                rule="within a dual_level no other tangents can be taken, as a program for them is made",
                try_=f"ts.jvp({self._name}, (x,), (t,)); or {self._name} without jit",
            )
        if (
            entry.traced.custom_derivative is not None
        ):  # its derivative differs from its graph's: the function itself is called
            operands = everything[: len(bound.operands)]
            return self._laid_out(bound.call([array(x) for x in operands]))

        def run(*inputs: torch.Tensor) -> list[Array]:
            executable, assignment = self._executable(bound, entry, inputs)
            return call(executable, inputs, assignment)

        return assembled(entry.traced, jit_autodiff.apply(_derived(entry), run, everything))

    def _op_by_op(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function on Arrays without a trace, because of the flag `disable_jit`."""
        bound = self._bind(args, kwargs)
        result = bound.call([array(x) for x in self._apply_in_shardings(bound)])
        return self._laid_out(tree_map(lambda x: array(x) if isinstance(x, torch.Tensor) else x, result))

    def _inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function inside an outer trace or mapped function; its shardings become constraints."""
        bound = self._bind(args, kwargs)
        note_numbers(bound.operands, bound.signature.numbers)
        return self._laid_out(bound.call(self._apply_in_shardings(bound)))

    @property
    def _misfit_of_results(self) -> str:
        return f"{self.what}'s out_shardings do not fit the result of {self._name}"

    def _argument_names(self, bound: Bound, count: int) -> list[str]:
        """The user's names of the `count` positional arguments that are traced."""
        static = {key for key, _, _ in bound.signature.static if isinstance(key, int)}
        return argument_names(self._function, count + len(static), static)

    def _laid_out(self, out: Any) -> Any:
        """A tree of results in their out_shardings."""
        return (
            out if self._out_shardings is None else map_with(self._misfit_of_results, put_at, out, self._out_shardings)
        )

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One key for trace, executable and assignment, for the most common kind of call; None for other calls."""
        if not args or kwargs or self._in_shardings is not None or self._static_argnums or self._static_argnames:
            return None
        key: list[Any] = [config.key()]
        for x in args:
            if type(x) is not Array or not x.committed:
                return None
            key += x._meta, x._layout, x._mesh
        return None if _is_watched(args) else tuple(key)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """A decorated method: bound as a function is, `self` among the arguments."""
        if instance is None:
            return self
        method: Any = functools.partial(self, instance)
        method.lower = functools.partial(self.lower, instance)
        return method

    def lower(self, *args: Any, **kwargs: Any) -> Lowered:
        """Trace for these arguments, and go no further.

        Args:
            args, kwargs: as for a call; a `ShapeDtypeStruct` may replace a tensor, also one on an AbstractMesh.

        Returns:
            The traced function, with `as_text()` and `compile()`.

        Communication: none; no process is started for abstract arguments.
        """
        bound = self._bind(args, kwargs)
        bound, operands = self._typed(bound, self._apply_in_shardings(bound, described=True))
        entry, everything = self._trace_and_inputs(bound, operands)

        def compiled() -> Compiled:
            assignment = self._assignment(entry, everything, bound.names)
            executable = entry.executable(everything, assignment, self._named(entry))
            roots = (self._function, *bound.statics)
            donated = self._donated(bound, executable)
            return Compiled(self._name, entry, executable, assignment, bound, roots, self.what, donated)

        return Lowered(entry.traced, self._name, tuple(bound.names()), compiled)

    def _cache_size(self) -> int:
        """The number of traces."""
        return sum(map(len, self._entries.values()))

    def _entries_for(self, signature: Signature) -> list[TraceCacheEntry]:
        known = self._entries.get(signature)
        return self._entries.put(signature, []) if known is None else known

    # ---- which trace ------------------------------------------------------------------------------------------

    def _known_traces(self) -> Traces:
        return traces_of(self._function)

    def _is_edited(self) -> bool:
        """Whether the function's code has changed since the trace: IPython's autoreload puts new code into it."""
        return any(function.__code__ is not code for function, code in self._codes)

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        if self._is_edited():
            self._codes = codes_of(self._function)
            self._entries, self._found = self._known_traces(), Recent(MOST_PROGRAMS)
        return bind(self._function, self._static_now(args), self._static_argnames, args, kwargs, self.what)

    def _static_now(self, args: Sequence[Any]) -> Sequence[int]:
        """Which arguments of this call are static."""
        return self._static_argnums

    def _trace_and_inputs(self, bound: Bound, operands: list[Any]) -> tuple[TraceCacheEntry, list[Any]]:
        """The trace that fits, and all its inputs: operands, then closed-over tensors."""
        roots = (self._function, *bound.statics)
        entries = self._entries_for(bound.signature)
        for entry in list(entries):
            if entry.hides_tensors and not self._is_of_constants:
                continue
            closed = entry.look_up(roots)
            if closed is not None:
                return entry, [*operands, *closed]
        if config.read("explain_cache_misses"):
            before = [s for s, traced in self._entries.items() if traced]
            changed = entries[-1].changes(roots) if entries else []
            reasons = explanation(self._name, bound.names(), bound.signature, before, users_line(), changed)
            print(reasons, file=sys.stderr)
        entry = self._traced(bound, roots)
        closed = [c.value for c in entry.traced.closed]
        same = next((e for e in entries if e.is_same_as(entry)), None) if entry.hides_tensors else None
        if same is not None:
            return same, [*operands, *closed]
        entries.append(entry)
        del entries[:-MOST_ALIKE]
        return entry, [*operands, *closed]

    def _traced(self, bound: Bound, roots: Sequence[Any]) -> TraceCacheEntry:
        numbers = bound.signature.numbers
        with activity.doing(f"tracing {self._name}"):
            # the graph of a derivative was typed when it was traced, and gradients have any layout
            types = None if self._is_of_constants else Types(bound.signature.types or ())
            return TraceCacheEntry(trace(roots, bound.call, bound.signature.metas, bound.names, numbers, types))

    # ---- where it runs ----------------------------------------------------------------------------------------

    def _apply_in_shardings(self, bound: Bound, *, described: bool = False) -> list[Any]:
        """The operands in their in_shardings; only described, if nothing should be moved."""
        if self._in_shardings is None:
            return bound.operands
        args = tuple(bound.arguments[0])
        names = self._argument_names(bound, len(args))
        places = spread_over_arguments("jit's in_shardings", self._name, self._in_shardings, args, names)
        by_name = [None] * (len(bound.operands) - len(places))
        return [
            x if place is None else put_where(x, as_sharding(place), described)
            for x, place in zip(bound.operands, [*places, *by_name], strict=True)
        ]

    def _typed(self, bound: Bound, operands: list[Any]) -> tuple[Bound, list[Any]]:
        """The call with the layouts of its operands along explicit axes in its signature, and the operands."""
        types = types_of(operands)
        return (bound if types is None else replace(bound, signature=replace(bound.signature, types=types))), operands

    def _assignment(
        self, entry: TraceCacheEntry, operands: Sequence[Any], names: Callable[[], list[str]]
    ) -> DeviceAssignment:
        places = tree_leaves(self._out_shardings, is_leaf=lambda x: isinstance(x, PartitionSpec))
        results = [*(as_sharding(p) for p in places if p is not None), *filter(None, entry.traced.shardings)]
        return entry.assignment(operands, names, results)

    def _named(self, entry: TraceCacheEntry) -> Sequence[Sharding | None] | None:
        """The sharding of each tensor result, by out_shardings or its type; None where the partitioner chooses."""
        typed = entry.traced.shardings
        if self._out_shardings is None:
            return typed if any(typed) else None
        asked = self._asked.get(entry)
        if asked is None:
            places = spread(self._misfit_of_results, self._out_shardings, entry.traced.tree_of_results)
            typed = typed or (None,) * len(places)
            asked = [t if p is None else as_sharding(p) for p, t in zip(places, typed, strict=True)]
            self._asked[entry] = asked
        return asked


def _is_watched(values: Sequence[Any]) -> bool:
    """Whether a transformation of torch.func, or torch's tape, records ops on the values."""
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    if torch.is_grad_enabled():
        with torch._C.DisableTorchFunctionSubclass():  # without it each would call `Array.__torch_function__`
            if any(isinstance(x, torch.Tensor) and x.requires_grad for x in values):
                return True
    return forward_ad._current_level >= 0 and has_tangent(values)
