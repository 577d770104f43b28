"""jit: a function is traced once for each signature, partitioned once for each layout of its operands, then called.

f = ts.jit(f)
f(x)                                  one message to each device
f.lower(x).as_text()                  ops on whole tensors, before partitioning
f.lower(x).compile().as_text()        what each device runs, collectives and all
"""

from __future__ import annotations

import functools
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.array import Array, meta_of
from tinyshard.arrays.placement import array, as_sharding, device_put
from tinyshard.compile.compiled import Closure, Compiled
from tinyshard.compile.executable import Home, Recipe, Slot, call, home_of, slot_of
from tinyshard.compile.explain import explanation
from tinyshard.compile.explain_gathers import explain_gathers
from tinyshard.compile.lowered import Lowered
from tinyshard.compile.signature import Bound, Signature, bind, static_both_ways
from tinyshard.compile.spmd import constraints_of, partition_graph
from tinyshard.compile.text import GraphText
from tinyshard.compile.tracing import Traced, closed_names, trace
from tinyshard.core import axis_names, config
from tinyshard.core.absent import check_arguments
from tinyshard.core.current_trace import is_tracing
from tinyshard.core.errors import DtypeError, ShardingError, message
from tinyshard.core.layout import is_same_placement
from tinyshard.core.types import Meta
from tinyshard.primitives.manual_region import Region, regions_in
from tinyshard.runtime.cache import Recent, forget_released, release
from tinyshard.runtime.controller.lineage import users_line
from tinyshard.sharding import NamedSharding, PartitionSpec, Sharding
from tinyshard.sharding.mesh import AbstractMesh, current_mesh
from tinyshard.sharding.prefix import spread
from tinyshard.transforms import applied

MOST_TRACES = 1024  # of a function, for different signatures
MOST_ALIKE = 16  # of a function for one signature, as what it closes over changes its shape
MOST_PROGRAMS = 256  # of a trace, for different layouts


def _release(recipe: Recipe) -> None:
    release(recipe.program)


def _release_all(recipes: Recent[Any, Recipe]) -> None:
    for recipe in recipes.values():
        _release(recipe)


@dataclass(eq=False)
class Entry:
    """A trace, and the recipes made from it.

    Attributes:
        traced: the graph.
        closed: shapes and dtypes of what it closes over; with others it does not fit.
        recipes: partitioned, by devices and layouts.
    """

    traced: Traced
    closed: tuple[Meta, ...]
    recipes: Recent[Any, Recipe] = field(default_factory=lambda: Recent(MOST_PROGRAMS, _release))

    def __post_init__(self) -> None:
        weakref.finalize(self, _release_all, self.recipes).atexit = False

    @property
    def hides_tensors(self) -> bool:
        """Whether it closes over a tensor that cannot be found again, which may be another one at the next call."""
        return any(not c.paths for c in self.traced.closed)

    def is_same_as(self, other: Entry) -> bool:
        """Whether both have one graph on inputs of one kind: then the programs of one do for both."""
        mine, theirs = self.traced, other.traced
        plain = all(is_tensor for is_tensor, _ in (*mine.outputs, *theirs.outputs))
        literal = any(node.op == "get_attr" for node in mine.graph.graph.nodes)
        same = (mine.arguments, self.closed, mine.out_tree) == (theirs.arguments, other.closed, theirs.out_tree)
        return plain and not literal and same and mine.graph.code == theirs.graph.code

    @functools.cached_property
    def derived(self) -> applied.Derived:
        """Its derivatives."""
        return applied.Derived(self.traced, lambda function: _of_constants(jit(function)))

    @functools.cached_property
    def homes(self) -> list[tuple[Sharding, Home]]:
        """What its constraints and regions say of where it runs."""
        named = [*constraints_of(self.traced), *(region.anywhere for region in regions_in(self.traced))]
        return [(sharding, _home_at(sharding)) for sharding in named]

    def look_up(self, roots: Sequence[Any]) -> list[torch.Tensor] | None:
        """What it closes over, as it is now; None if the trace does not fit that."""
        now = [c.look_up(roots) for c in self.traced.closed]
        found = [x for x in now if x is not None]
        return found if len(found) == len(now) and tuple(map(meta_of, found)) == self.closed else None

    def changes(self, roots: Sequence[Any]) -> list[str]:
        """What has become of what it closes over, for the tensors that are not as they were."""
        said = []
        for name, closed, before in zip(closed_names(self.traced), self.traced.closed, self.closed, strict=True):
            now = closed.look_up(roots)
            if not closed.paths:
                said.append(f"{name}, a tensor of {before} which it closes over, cannot be found again")
            elif now is None:
                said.append(f"{name}, which it closes over, is gone or means something else")
            elif meta_of(now) != before:
                said.append(f"{name}, which it closes over: {before}, now {meta_of(now)}")
        return said


Traces = Recent[Signature, list[Entry]]

_traces: weakref.WeakKeyDictionary[Any, Traces] = weakref.WeakKeyDictionary()


def _traces_of(function: Callable[..., Any]) -> Traces:
    """The traces of a function: kept as long as it is there, and shared by all that is jitted of it."""
    if not isinstance(function, types.FunctionType):
        return Recent(MOST_TRACES)
    return _traces.setdefault(function, Recent(MOST_TRACES))


def _of_constants(jitted: Jitted) -> Jitted:
    """The jitted function, of which what it closes over stays as it is."""
    jitted._is_of_constants = True
    return jitted


class Jitted:
    """A function under jit. Made by `jit`."""

    def __init__(
        self,
        function: Callable[..., Any],
        in_shardings: Any,
        out_shardings: Any,
        static_argnums: tuple[int, ...],
        static_argnames: tuple[str, ...],
    ) -> None:
        functools.update_wrapper(self, function, updated=())  # its other attributes are asked for by __getattr__
        self._function = function
        self._name = getattr(function, "__name__", type(function).__name__)
        self._in_shardings = in_shardings
        self._out_shardings = out_shardings
        self._static_argnums = static_argnums
        self._static_argnames = static_argnames
        self._entries = _traces_of(function)
        self._asked: weakref.WeakKeyDictionary[Entry, list[Sharding | None]] = weakref.WeakKeyDictionary()
        self._found: Recent[Any, tuple[Entry, Recipe, Home]] = Recent(MOST_TRACES)
        self._is_of_constants = False

    def __getattr__(self, name: str) -> Any:
        """What the function has, as `training` of a module; the jitted one has no copies that could go stale."""
        wrapped = self.__dict__.get("__wrapped__")
        if wrapped is None or name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(wrapped, name)

    def __repr__(self) -> str:
        return f"<jit of {getattr(self._function, '__name__', self._function)}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on the devices of the arguments; returns at once. Within a trace it becomes a part of it."""
        if is_tracing():
            return self._inlined(args, kwargs)
        key = self._key(args, kwargs)
        found = None if key is None else self._found.get(key)
        if found is not None:
            return _run(*found, args)
        if axis_names.in_scope() and axis_names.level():  # collectives inside may name an axis that vmap binds outside
            return self._inlined(args, kwargs)
        bound = self._bind(args, kwargs)
        if any(isinstance(x, ShapeDtypeStruct) for x in bound.operands):
            raise DtypeError(
                message(
                    "a described value cannot be computed with",
                    got=f"{self._name} called with a ShapeDtypeStruct",
                    rule="it stands for an array in lower(), and has no values",
                    try_=f"jit({self._name}).lower(...), or a call with Arrays",
                )
            )
        entry, everything = self._everything(bound, self._in_place(bound))
        if _is_watched(everything):
            return self._applied(bound, entry, everything)
        recipe, home = self._executable(bound, entry, everything)
        # without anything that it closes over, a trace always fits: the first one will be found again
        if key is not None and not entry.traced.closed and self._entries_for(bound.signature)[0] is entry:
            self._found.put(key, (entry, recipe, home))
        return _assembled(entry, _called(recipe, everything, home))

    def _executable(self, bound: Bound, entry: Entry, everything: Sequence[Any]) -> tuple[Recipe, Home]:
        home = self._home(entry, everything, bound.names)
        if isinstance(home.mesh, AbstractMesh) and not any(getattr(x, "committed", False) for x in everything):
            raise ShardingError(
                message(
                    "a program for an abstract mesh cannot be called",
                    got=f"{self._name} called, with {home.mesh!r}",
                    rule="an AbstractMesh has no devices: it is for planning, drawing and lower()",
                    try_=f"{self._name}.lower(...), or ts.make_mesh(sizes, names) for a mesh of devices",
                )
            )
        return self._recipe(entry, everything, home), home

    def _applied(self, bound: Bound, entry: Entry, everything: Sequence[torch.Tensor]) -> Any:
        """Within a transformation, or on torch's tape: as one op."""
        if entry.traced.own_rule is not None:  # its graph does not tell its derivative: the function itself does
            operands = everything[: len(bound.operands)]
            return self._laid_out(bound.call([array(x) for x in operands]))

        def run(*inputs: torch.Tensor) -> list[Array]:
            recipe, home = self._executable(bound, entry, inputs)
            return _called(recipe, inputs, home)

        return _assembled(entry, applied.apply(entry.derived, run, everything))

    def _inlined(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function as if it were not jitted, but for its shardings, which are constraints then."""
        if self._in_shardings is not None:
            bound = self._bind(args, kwargs)
            return self._laid_out(bound.call(self._in_place(bound)))
        return self._laid_out(self._function(*args, **kwargs))

    def _laid_out(self, out: Any) -> Any:
        """A tree of results where out_shardings wants them."""
        if self._out_shardings is None:
            return out
        leaves, form = tree_flatten(out)
        places = iter(spread(self._out_shardings, out))
        return tree_unflatten([None if x is None else _at(x, next(places)) for x in leaves], form)

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What decides on trace, recipe and home together, for the most common call; None for others."""
        if not args or kwargs or self._in_shardings is not None or self._static_argnums or self._static_argnames:
            return None
        key: list[Any] = [config.key(), current_mesh()]
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
            args, kwargs: as for a call; a `ShapeDtypeStruct` may stand for a tensor, also one on an AbstractMesh.

        Returns:
            What was traced: `as_text()`, `compile()`.

        Communication: none; no process is started for abstract arguments.
        """
        bound = self._bind(args, kwargs)
        entry, everything = self._everything(bound, self._in_place(bound, described=True))

        def compiled() -> Compiled:
            home = self._home(entry, everything, bound.names)
            recipe, roots = self._recipe(entry, everything, home), (self._function, *bound.statics)
            closure = Closure(lambda: entry.look_up(roots), lambda: entry.changes(roots))
            return Compiled(self._name, entry.traced, recipe, home, bound, closure)

        return Lowered(entry.traced, self._name, tuple(bound.names()), compiled)

    def _cache_size(self) -> int:
        """How many traces there are."""
        return sum(map(len, self._entries.values()))

    def _entries_for(self, signature: Signature) -> list[Entry]:
        known = self._entries.get(signature)
        return self._entries.put(signature, []) if known is None else known

    # ---- which trace ------------------------------------------------------------------------------------------

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Bound:
        return bind(self._function, self._static_now(args), self._static_argnames, args, kwargs)

    def _static_now(self, args: Sequence[Any]) -> Sequence[int]:
        """Which arguments of this call are static."""
        return self._static_argnums

    def _everything(self, bound: Bound, operands: list[Any]) -> tuple[Entry, list[Any]]:
        """The trace that fits, and all its inputs: operands, then what it closes over."""
        roots = (self._function, *bound.statics)
        entries = self._entries_for(bound.signature)
        for entry in list(entries):
            if entry.hides_tensors and not self._is_of_constants:
                continue
            closed = entry.look_up(roots)
            if closed is not None:
                return entry, [*operands, *closed]
        if config.read("explain_cache_misses"):
            before = [s for s, made in self._entries.items() if made]
            changed = entries[-1].changes(roots) if entries else []
            told = explanation(self._name, bound.names(), bound.signature, before, users_line(), changed)
            print(told, file=sys.stderr)
        traced = trace(roots, bound.call, bound.signature.metas, bound.names)
        closed = [c.value for c in traced.closed]
        entry = Entry(traced, tuple(map(meta_of, closed)))
        same = next((e for e in entries if e.is_same_as(entry)), None) if entry.hides_tensors else None
        if same is not None:
            return same, [*operands, *closed]
        entries.append(entry)
        del entries[: len(entries) - MOST_ALIKE]
        return entry, [*operands, *closed]

    # ---- where it runs ----------------------------------------------------------------------------------------

    def _in_place(self, bound: Bound, *, described: bool = False) -> list[Any]:
        """The operands where in_shardings wants them; only described, if nothing is to be moved."""
        if self._in_shardings is None:
            return bound.operands
        places = spread(self._in_shardings, bound.positional)
        by_name = [None] * (len(bound.operands) - len(places))
        return [
            x if place is None else _put_where(x, as_sharding(place), described)
            for x, place in zip(bound.operands, [*places, *by_name], strict=True)
        ]

    def _home(self, entry: Entry, operands: Sequence[Any], names: Callable[[], list[str]]) -> Home:
        """The devices of the committed operands, else those that a constraint, a region or out_shardings names.

        Raises:
            ShardingError: these are not the same.
        """
        home = home_of(operands, lambda: [*names(), *closed_names(entry.traced)])
        places = [as_sharding(p) for p in _places(self._out_shardings) if p is not None]
        for sharding, named in [*entry.homes, *((place, _home_at(place)) for place in places)]:
            if not home.committed:
                home = named
            if named.devices != home.devices:
                raise ShardingError(
                    message(
                        "Devices of all `Array` inputs and outputs should be the same.",
                        got=f"array device ids {list(home.devices)} on platform {home.platform.upper()}\n"
                        f"and {list(named.devices)} in {sharding!r}",
                        rule="constraints, regions and out_shardings name the arguments' devices, in their order",
                        try_="ts.device_put the arguments there before the call",
                    )
                )
        return home

    def _recipe(self, entry: Entry, operands: Sequence[Any], home: Home) -> Recipe:
        slots = tuple(slot_of(x, home) for x in operands)
        asked = self._asked.get(entry)
        if asked is None:
            asked = self._asked[entry] = self._named(entry.traced)
        key = (home.platform, home.devices, slots, tuple(asked))
        recipe = entry.recipes.get(key)
        if recipe is None:
            forget_released()
            recipe = entry.recipes.put(key, _partitioned(entry.traced, home, slots, asked))
        return recipe

    def _named(self, traced: Traced) -> list[Sharding | None]:
        """The sharding that out_shardings names for each tensor result; None where the partitioner chooses."""
        if self._out_shardings is None:
            return [None] * len(traced.results)
        return [p if p is None else as_sharding(p) for p in spread(self._out_shardings, traced.tree_of_results)]


def _partitioned(traced: Traced, home: Home, slots: Sequence[Slot], named: Sequence[Sharding | None]) -> Recipe:
    """The recipe whose results lie as they are named, and say so in the same words."""
    shapes = [tuple(node.meta["val"].shape) for node in traced.results]
    layouts = [s if s is None else s.checked_layout(shape) for s, shape in zip(named, shapes, strict=True)]
    recipe = partition_graph(traced, home, slots, layouts)
    if not any(named):
        return recipe
    lie_so = [
        layout is not None and made is not None and is_same_placement(layout, made[0])
        for layout, made in zip(layouts, recipe.results, strict=True)
    ]
    return replace(recipe, shardings=tuple(s if fits else None for s, fits in zip(named, lie_so, strict=True)))


def _run(entry: Entry, recipe: Recipe, home: Home, operands: Sequence[Any]) -> Any:
    return _assembled(entry, _called(recipe, operands, home))


def _called(recipe: Recipe, operands: Sequence[Any], home: Home) -> list[Array]:
    arrays = call(recipe, operands, home)
    if recipe.program.reasons:
        explain_gathers(recipe, home)
    return arrays


def _assembled(entry: Entry, made: Sequence[torch.Tensor]) -> Any:
    """The results as the function returns them."""
    leaves = [made[x] if is_tensor else x for is_tensor, x in entry.traced.outputs]
    tree = entry.traced.out_tree
    return leaves[0] if tree.is_leaf() else tree_unflatten(leaves, tree)


def _is_watched(operands: Sequence[Any]) -> bool:
    """Whether a transformation of torch.func, or torch's tape, watches what is done with the operands."""
    if torch._C._functorch.maybe_current_level() is not None:
        return True
    if not torch.is_grad_enabled():
        return False
    with torch._C.DisableTorchFunctionSubclass():  # else each question would be a call of `Array.__torch_function__`
        return any(isinstance(x, torch.Tensor) and x.requires_grad for x in operands)


def _at(x: Any, place: Any) -> Any:
    return device_put(x, as_sharding(place)) if place is not None and isinstance(x, torch.Tensor) else x


def _places(shardings: Any) -> list[Any]:
    return [] if shardings is None else tree_leaves(shardings, is_leaf=lambda x: isinstance(x, PartitionSpec))


def _put_where(x: Any, sharding: Sharding, described: bool) -> Any:
    layout = sharding.checked_layout(tuple(x.shape))
    if getattr(x, "committed", False) and not is_same_placement(x._layout, layout):
        raise ShardingError(
            message(
                "an argument is committed to another sharding than in_shardings says",
                got=f"an Array of shape {tuple(x.shape)} with {x.sharding!r}",
                rule=f"in_shardings says {sharding!r}",
                try_="ts.device_put(x, sharding) before the call, or no in_shardings",
            )
        )
    return ShapeDtypeStruct(tuple(x.shape), x.dtype, sharding=sharding) if described else device_put(x, sharding)


def _home_at(sharding: Sharding) -> Home:
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    devices = sharding.devices
    return Home(tuple(d.id for d in devices), devices[0].platform, mesh, True)


_TAKEN = ("fun", "in_shardings", "out_shardings", "static_argnums", "static_argnames")


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    **others: Any,
) -> Any:
    """Compile a function of tensors into one program for the devices.

    It is traced once for each signature (shapes, dtypes, static values) and partitioned once for each layout of its
    operands; after that a call is one message to each device. Also a decorator, with or without arguments. Another
    `jit` of the same function finds the same traces.

    grad, jvp, vmap and `.backward()` of it run programs too: one of the function, and one of its derivative, made from
    the trace (which computes the function's values again); so results require a gradient where an operand or a
    closed-over tensor does. In the function of another jit it becomes a part of that one's program, and its shardings
    are constraints. A function with a derivative of its own (`torch.no_grad`, a `torch.autograd.Function`) runs op by
    op where it is differentiated from outside.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors. What it closes over (Arrays,
            tensors, module parameters) is looked up at each call. Where it cannot be found again (in a set, in another
            function's cache), the function is traced at each call.
        in_shardings: a Sharding for every positional argument, or a tree of them that is a prefix of the arguments;
            None leaves an argument where it is, and so do arguments by name.
        out_shardings: likewise for the results.
        static_argnums: positions of arguments that are Python values; another value is another trace.
        static_argnames: names of such arguments.
        others: JAX's donate_argnums, donate_argnames, keep_unused and inline are taken, and have no effect.

    Returns:
        A function of the same arguments that returns Arrays; it has `lower`, and the attributes of `fun`.

    Raises:
        TracedValueError: when called, if the function branches in Python on a traced value.
        ImmutableError: if it changes an argument or a closed-over tensor in place.
        ShardingError: if committed operands have different devices, or an argument contradicts in_shardings.
        DtypeError: if an argument is no tensor, jit has no argument of that name, or the shape of a result depends on
            values, as with `nonzero`, a mask as an index, and `torch.linalg.lstsq`.
        StaticArgumentError: if a static argument cannot be hashed, or the function has none of that place or name.

    Communication: what the program's text says.

    In JAX: nothing is donated, as memory is used again once the last Array of it is gone; backend does not exist here.
    Arrays that the function closes over are constants of the trace there; here tensors that it closes over are looked
    up at each call. A function of tensors that is not jitted stays plain torch, and its results have no `.sharding` and
    no `.block_until_ready()`: `ts.array` and `ts.device_put` make Arrays.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> f = ts.jit(lambda x, n: x * n, static_argnums=1)
        >>> f(torch.arange(3), 2)
        Array([0, 2, 4], dtype=int64)
    """
    check_arguments("jit", others, _TAKEN)
    if fun is None:
        return functools.partial(
            jit,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
        )
    if not callable(fun):
        raise DtypeError(message("jit takes a function", got=f"{fun!r} ({type(fun).__name__})", try_="ts.jit(f)"))
    numbers = (static_argnums,) if isinstance(static_argnums, int) else tuple(static_argnums or ())
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    numbers, names = static_both_ways(fun, numbers, names)
    return Jitted(fun, in_shardings, out_shardings, numbers, names)


def make_graph(fun: Callable[..., Any], static_argnums: int | Sequence[int] | None = None) -> Callable[..., GraphText]:
    """What a function is to the tracer: its ops on whole tensors.

    Args:
        fun: a function as jit takes it.
        static_argnums: positions of arguments that are Python values.

    Returns:
        A function of the same arguments (or of ShapeDtypeStructs) that returns the text of the graph.

    Raises:
        As jit, when called.

    Communication: none.

    In JAX: `jax.make_jaxpr`.

    Example:
        >>> make_graph(lambda x: torch.sin(x) + 1)(torch.zeros(3))
        <lambda> on whole tensors
          %0: f32[3] = x
          %1: f32[3] = aten.sin.default(%0)
          %2: f32[3] = aten.add.Tensor(%1, 1)
          return %2
    """
    jitted = jit(fun, static_argnums=static_argnums)
    return lambda *args, **kwargs: GraphText(jitted.lower(*args, **kwargs).as_text())


Region._jit = staticmethod(jit)
