"""Tracing: a Python function on tensors becomes a graph of aten ops on whole tensors.

The function runs once on stand-ins that have a shape and a dtype and no values; torch's make_fx records every op, and
its functionalization turns in-place ops on values made inside into out-of-place ones. Tensors that the function closes
over become inputs of the graph, like its arguments.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only

from tinyshard.array import Array
from tinyshard.branch import both_branches
from tinyshard.closure import Step, follow, reachable, spelled
from tinyshard.errors import DtypeError, ImmutableError, StatefulRandomError, TinyshardError, message
from tinyshard.operators import is_random
from tinyshard.program import Meta
from tinyshard.runtime.runs import Where, users_line

aten = torch.ops.aten


class TracedValueError(TinyshardError, TypeError):
    """Python asked a traced value for its number, as `if` does."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A tensor that the function closes over.

    Attributes:
        paths: the ways to it from the function and its static arguments; none if it was not found, then `value`
            itself is used.
        value: as it was when the function was traced.
    """

    paths: tuple[tuple[Step, ...], ...]
    value: torch.Tensor

    def look_up(self, roots: Sequence[Any]) -> torch.Tensor | None:
        """The tensor that is there now; None if there is none any more, or if its names now mean different tensors."""
        found: Any = self.value
        for i, path in enumerate(self.paths):
            try:
                at = follow(roots, path)
            except (LookupError, AttributeError, TypeError, ValueError):
                return None
            if not isinstance(at, torch.Tensor) or (i and at is not found):
                return None
            found = at
        return found


@dataclass(frozen=True, slots=True)
class Traced:
    """A function as a graph.

    Attributes:
        graph: a torch.fx GraphModule; its placeholders are the arguments and then `closed`.
        arguments: metas of the tensor arguments.
        closed: what it closes over, in the order of the remaining placeholders.
        outputs: for each output leaf (True, its position among the graph's outputs) or (False, a Python value).
        out_tree: how the output leaves are put together.
        kept: objects that the numbers of its ops stand for.
    """

    graph: torch.fx.GraphModule
    arguments: tuple[Meta, ...]
    closed: tuple[Closed, ...]
    outputs: tuple[tuple[bool, Any], ...]
    out_tree: TreeSpec
    kept: tuple[Any, ...] = ()

    @property
    def results(self) -> list[torch.fx.Node]:
        """The nodes that make the tensor outputs."""
        return list(next(n for n in reversed(self.graph.graph.nodes) if n.op == "output").args[0])


class _Recorder:
    """The trace in progress: what has been lifted to an input so far."""

    def __init__(self, fake: Any) -> None:
        self.fake = fake
        self.lifted: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: the tensor and its stand-in
        self.kept: list[Any] = []

    def lift(self, x: torch.Tensor) -> torch.Tensor:
        """The stand-in for a tensor that the function closes over; makes it an input."""
        from torch._subclasses.functional_tensor import FunctionalTensor
        from torch.fx.experimental.proxy_tensor import get_proxy_mode, track_tensor_tree

        known = self.lifted.get(id(x))
        if known is None:
            shape = tuple(x.shape)
            with temporarily_clear_interpreter_stack():
                with _disable_current_modes(), self.fake:
                    stand_in = torch.empty(shape, dtype=x.dtype)
                mode = get_proxy_mode()
                assert mode is not None
                tracer = mode.tracer
                proxy = tracer.create_proxy("placeholder", f"closed_{len(self.lifted)}", (), {})
                proxy.node.meta["val"] = stand_in
                track_tensor_tree(stand_in, proxy, constant=None, tracer=tracer)
                known = (x, FunctionalTensor.to_functional(stand_in))
            self.lifted[id(x)] = known
        return known[1]


_tracing = threading.RLock()  # torch's tracer is one for the process
_state = threading.local()  # .recorder: the trace in progress, seen by the thread that traces alone


def _recorder() -> _Recorder | None:
    return getattr(_state, "recorder", None)


def is_tracing() -> bool:
    """Whether a function is being traced now."""
    return _recorder() is not None


def keep(thing: Any) -> None:
    """During a trace: let an object that an op's number stands for live as long as what is traced."""
    recorder = _recorder()
    assert recorder is not None
    recorder.kept.append(thing)


def lift_arrays(tree: Any) -> Any:
    """During a trace: every Array of the tree as the stand-in that is an input of the graph."""
    recorder = _recorder()
    assert recorder is not None
    return tree_map_only(Array, recorder.lift, tree)


class _Watch(TorchDispatchMode):
    """Sees every op before it is recorded: lifts closed-over tensors, refuses what a program cannot do."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import DynamicOutputShapeException
        from torch._subclasses.functional_tensor import FunctionalTensor

        kwargs = kwargs or {}
        recorder = _recorder()
        if recorder is None:
            return op(*args, **kwargs)
        if is_random(op, args, kwargs):
            raise StatefulRandomError(
                message(
                    "a stateful random op in a traced function",
                    got=f"{op} in {users_line()}",
                    rule="it would be drawn once, when the function is traced, or differ between copies",
                    try_="draw with ts.random and a key, or pass the numbers in as an argument",
                )
            )
        if op in (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default):
            raise _traced_value_error()
        fresh = op in (aten.lift_fresh.default, aten.lift_fresh_copy.default)
        if op._schema.is_mutable and any(_is_closed_over(x, FunctionalTensor) for x in _written(op, args, kwargs)):
            raise _closed_over_changed(f"{op._schema.name.removeprefix('aten::')} in {users_line()}")
        if not fresh:
            args, kwargs = tree_map_only(
                torch.Tensor, lambda x: recorder.lift(x) if _is_closed_over(x, FunctionalTensor) else x, (args, kwargs)
            )
        if _has_effect(op):
            return _recorded_as_it_is(op, args, kwargs)
        try:
            return op(*args, **kwargs)
        except DynamicOutputShapeException as error:
            raise DtypeError(
                message(
                    "the shape of a result depends on values",
                    got=f"{op} in {users_line()}",
                    rule="a program has static shapes",
                    try_="torch.where(mask, x, 0), or call it outside of jit",
                )
            ) from error


def _written(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an in-place op, or one with out=, writes into."""
    given = {a.name: x for a, x in zip(op._schema.arguments, args, strict=False)} | kwargs
    names = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tree_leaves([given.get(name) for name in names])


def _closed_over_changed(got: str) -> ImmutableError:
    return ImmutableError(
        message(
            "a traced function changes a tensor that it closes over",
            got=got,
            rule="a traced function runs once; what it does to outer tensors would happen only then",
            try_="return the new value, and assign it outside; x.clone() first where you want to write into it",
        )
    )


def _has_effect(op: Any) -> bool:
    """It is called for what it does, as `_linalg_check_errors` and not as `sin`."""
    return isinstance(op, torch._ops.OpOverload) and not op._schema.returns


def _recorded_as_it_is(op: Any, args: Any, kwargs: Any) -> Any:
    """Record an op with an effect without functionalization, which would want tokens that order the effects."""
    from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode

    def plain(x: FunctionalTensor) -> torch.Tensor:
        torch._sync(x)
        return torch._from_functional_tensor(x.elem)

    args, kwargs = tree_map_only(FunctionalTensor, plain, (args, kwargs))
    with disable_functional_mode():
        return op(*args, **kwargs)


def _is_closed_over(x: Any, functional: type) -> bool:
    if isinstance(x, functional):
        return not _is_of_this_trace(x)
    return isinstance(x, Array) or type(x) in (torch.Tensor, torch.nn.Parameter)


def _is_of_this_trace(x: Any) -> bool:
    """A stand-in of the trace that runs now, not of one around it."""
    recorder = _recorder()
    below = torch._from_functional_tensor(x.elem)
    return recorder is None or getattr(below, "fake_mode", recorder.fake) is recorder.fake


class _LiftWrapped(TorchFunctionMode):
    """In a trace within a transformation of torch.func: lifts what the function closes over and the transformation
    has wrapped, before torch.func's own dispatch sees it, for which its level is not there now."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = lift_outer((args, kwargs or {}))
        return func(*args, **kwargs)


def lift_outer(tree: Any) -> Any:
    """During a trace: every tensor that a transformation around the trace has wrapped as an input of the graph."""
    recorder = _recorder()
    if recorder is None:
        return tree
    with torch._C.DisableTorchFunction():  # to ask for a shape is a function of torch too, which would lift once more
        return tree_map_only(torch.Tensor, lambda x: recorder.lift(x) if _is_wrapped_outside(x) else x, tree)


def _is_wrapped_outside(x: torch.Tensor) -> bool:
    from torch._subclasses.functional_tensor import FunctionalTensor

    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(x):
        return False
    while functorch.is_functorch_wrapped_tensor(x):
        x = functorch.get_unwrapped(x)
    return not (isinstance(x, FunctionalTensor) and _is_of_this_trace(x))


def _traced_value_error(where: Where | None = None) -> TracedValueError:
    return TracedValueError(
        message(
            "Python asks for the value of a traced tensor",
            got=str(where or users_line()),
            rule="a traced function runs once, on stand-ins without values: if, while, float(), item() see nothing",
            try_="torch.where(condition, a, b) to choose element by element,\n"
            "torch.cond(condition, if_true, if_false, operands) to choose a branch,\n"
            "or static_argnums for an argument that is a Python value",
        )
    )


def _line_of(error: BaseException) -> Where | None:
    """The user's innermost line that the error came through."""
    ours = (os.path.dirname(__file__), os.path.dirname(torch.__file__))
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(ours)]
    return Where(frames[-1].filename, frames[-1].lineno or 0) if frames else None


def trace(
    roots: Sequence[Any],
    call: Callable[[Sequence[torch.Tensor]], Any],
    metas: Sequence[Meta],
    names: Callable[[], list[str]],
) -> Traced:
    """Trace a function.

    Args:
        roots: the function and its static arguments: from there the tensors that it meets are searched for.
        call: calls it, with the tensor arguments put in their places.
        metas: shapes and dtypes of the tensor arguments.
        names: what a learner would call them, for errors.

    Raises:
        TracedValueError: it branches in Python on a traced value.
        ImmutableError: it changes an argument, or a tensor that it closes over.
        StatefulRandomError: it draws from torch's generator.

    Within another trace, or a transformation of torch.func, it is as if that did not run: what the function closes
    over from there becomes an input.

    Communication: none.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = _Recorder(fake)
    result: list[Any] = []

    def flat(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
        out = call(stand_ins)
        leaves, tree = tree_flatten(out)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        _refuse_changed(stand_ins, names)
        for x, stand_in in recorder.lifted.values():
            if _is_changed(stand_in):  # through a view, which is no longer seen to belong to it
                raise _closed_over_changed(f"a tensor of shape {tuple(x.shape)}, {x.dtype}")
        result.extend((leaves, tree))
        return [x if isinstance(x, FunctionalTensor) else torch.clone(x) for x in tensors]

    with _disable_current_modes(), temporarily_clear_interpreter_stack(), fake:
        stand_ins = [torch.empty(m.shape, dtype=m.dtype) for m in metas]
    with _tracing:
        before, _state.recorder = _recorder(), recorder
        try:
            with torch.no_grad(), both_branches(), _alone(), _Watch(), _unlogged():
                functional = dispatch_functionalize(flat, FunctionalTensorMode())
                graph = make_fx(functional, tracing_mode="real", _allow_non_fake_inputs=True)(*stand_ins)
        except RuntimeError as error:
            if ".numpy() is not supported" in str(error):  # torch tells this for want of a better message
                raise _traced_value_error(_line_of(error)) from error
            raise
        finally:
            _state.recorder = before
    _inputs_first(graph)
    paths = reachable(roots) if recorder.lifted else {}
    closed = tuple(Closed(tuple(paths.get(id(x), ())), x) for x, _ in recorder.lifted.values())
    leaves, tree = result
    count = iter(range(len(leaves)))
    outputs = tuple((True, next(count)) if isinstance(x, torch.Tensor) else (False, x) for x in leaves)
    return Traced(graph, tuple(metas), closed, outputs, tree, tuple(recorder.kept))


@contextlib.contextmanager
def _unlogged() -> Iterator[None]:
    """Without torch's log of an error in the shapes: the error is raised, and a page of its stack helps nobody."""

    def has_no_error(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(has_no_error)
    try:
        yield
    finally:
        log.removeFilter(has_no_error)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without the trace and the levels of torch.func that run around it."""
    wrapped = torch._C._functorch.maybe_current_level() is not None
    watch = _LiftWrapped() if wrapped else contextlib.nullcontext()
    with _disable_current_modes(), temporarily_clear_interpreter_stack(), watch:
        yield


def _is_changed(x: Any) -> bool:
    torch._sync(x)
    return bool(torch._functionalize_has_data_mutation(x.elem))  # type: ignore[attr-defined]


def _refuse_changed(stand_ins: Sequence[Any], names: Callable[[], list[str]]) -> None:
    for number, x in enumerate(stand_ins):
        if _is_changed(x):
            raise ImmutableError(
                message(
                    "a traced function changes its argument in place",
                    got=f"argument {names()[number]}",
                    rule="arguments are immutable Arrays",
                    try_="y = x + 1 in place of x.add_(1); x.clone() first where you want to write into it",
                )
            )


def _inputs_first(module: torch.fx.GraphModule) -> None:
    """Closed-over tensors became placeholders where they were met: move them behind the arguments. Drop dead code."""
    graph = module.graph
    holders = [n for n in graph.nodes if n.op == "placeholder"]
    first = next(iter(graph.nodes))
    last = None
    for node in holders:
        if last is None:
            if node is not first:
                first.prepend(node)
        else:
            last.append(node)
        last = node
    graph.eliminate_dead_code(is_impure_node=lambda n: n.op in ("placeholder", "output") or _has_effect(n.target))
    module.recompile()


def closed_names(traced: Traced) -> list[str]:
    """How a learner would call each closed-over tensor."""
    return [spelled(c.paths[0]) if c.paths else f"closed_{i}" for i, c in enumerate(traced.closed)]
