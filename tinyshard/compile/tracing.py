"""Tracing: a Python function on tensors becomes a graph of aten ops on whole tensors.

The function runs once on stand-ins that have a shape and a dtype and no values; torch's make_fx records every op, and
its functionalization turns in-place ops on values made inside into out-of-place ones. Tensors that the function closes
over become inputs of the graph, like its arguments.
"""

from __future__ import annotations

import contextlib
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.fx.traceback import preserve_node_meta
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.explicit import Types, sharding_of
from tinyshard.arrays.function_overrides.implicit_mutation import max_norm_error, statistics_error
from tinyshard.arrays.refusals import traced_value_error
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile.capture import Recorder, Watch, has_effect, is_of_this_trace
from tinyshard.compile.closure import PathStep, follow, reachable, spelled
from tinyshard.compile.intercept import Intercept, distributions_unchecked
from tinyshard.compile.modes import Mode, mode_of, uses_module
from tinyshard.compile.outlived import end_value, refuse_holders
from tinyshard.compile.trace_errors import closed_over_changed
from tinyshard.core import collector
from tinyshard.core.activity import spanned
from tinyshard.core.errors import ImmutableError
from tinyshard.core.evaluate import note_silence, silence_of, without_source
from tinyshard.core.named_scopes import SCOPE
from tinyshard.core.primitive import primitive_of
from tinyshard.core.thread_state import compiling, process_kept, recording, this_thread, unlogged
from tinyshard.core.trace_thread import in_trace_thread, in_turn, raise_interruption
from tinyshard.core.types import ShapedType
from tinyshard.core.users_code import PACKAGE, TORCH
from tinyshard.core.users_line import Where
from tinyshard.sharding import NamedSharding


class Closed:
    """A tensor that the function closes over. One that can be found again is not kept alive.

    Attributes:
        paths: the paths to it from the function and its static arguments; empty if it was not found, then the tensor
            itself is used.
        type: shape and dtype.
        sharding: how it is cut along explicit axes.
    """

    __slots__ = ("_kept", "_seen", "paths", "sharding", "type")

    def __init__(self, paths: tuple[tuple[PathStep, ...], ...], value: torch.Tensor) -> None:
        self.paths = paths
        self.type = shaped_type_of(value)
        self.sharding = sharding_of(value)
        self._kept = None if paths else value
        self._seen = weakref.ref(value)

    @property
    def value(self) -> torch.Tensor:
        """The tensor from the time of the trace; valid right after it."""
        found = self._kept if self._kept is not None else self._seen()
        assert found is not None, "it is looked up after the trace"
        return found

    def look_up(self, roots: Sequence[Any]) -> torch.Tensor | None:
        """The present tensor; None if it is gone, or if its names now mean different tensors."""
        found: Any = self._kept
        for i, path in enumerate(self.paths):
            try:
                value = follow(roots, path)
            except (LookupError, AttributeError, TypeError, ValueError):
                return None
            if not isinstance(value, torch.Tensor) or (i and value is not found):
                return None
            found = value
        return found


@dataclass(frozen=True, slots=True)
class Traced:
    """A function as a graph.

    Attributes:
        graph: a torch.fx GraphModule; its placeholders are the arguments and then `closed`.
        arguments: metas of the tensor arguments.
        closed: the tensors that it closes over, in the order of the remaining placeholders.
        outputs: for each output leaf (True, its position among the graph's outputs) or (False, a Python value).
        out_tree: the structure of the output.
        kept: objects that its ops refer to by number.
        custom_derivative: what makes its derivative differ from its graph's, as torch.no_grad does; or None.
        modes: of the modules that it uses; if they change, the graph may change.
        shardings: how each tensor output is cut along explicit axes, None where there are none; empty if not typed.
        default_dtype: torch's, when it was traced.
    """

    graph: torch.fx.GraphModule
    arguments: tuple[ShapedType, ...]
    closed: tuple[Closed, ...]
    outputs: tuple[tuple[bool, Any], ...]
    out_tree: TreeSpec
    kept: tuple[Any, ...] = ()
    custom_derivative: str | None = None
    modes: tuple[Mode, ...] = ()
    shardings: tuple[NamedSharding | None, ...] = ()
    default_dtype: torch.dtype = field(default_factory=torch.get_default_dtype)

    @property
    def inputs(self) -> list[torch.fx.Node]:
        """The placeholders: the arguments, and then the tensors that it closes over."""
        return [node for node in self.graph.graph.nodes if node.op == "placeholder"]

    @property
    def results(self) -> list[torch.fx.Node]:
        """The nodes that make the tensor outputs."""
        return list(next(n for n in reversed(self.graph.graph.nodes) if n.op == "output").args[0])

    @property
    def tree_of_results(self) -> Any:
        """The function's output, with a number in place of each tensor and None in place of everything else."""
        return tree_unflatten([i if is_tensor else None for is_tensor, i in self.outputs], self.out_tree)


def _line_of(error: BaseException) -> Where | None:
    """The user's innermost line that the error came through."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith((PACKAGE, TORCH))]
    return Where(frames[-1].filename, frames[-1].lineno or 0) if frames else None


@spanned("trace", lambda roots, *_: _name_of(roots))
@in_trace_thread(in_turn, collector.paused, process_kept)
def trace(
    roots: Sequence[Any],
    call: Callable[[Sequence[torch.Tensor]], Any],
    metas: Sequence[ShapedType],
    names: Callable[[], list[str]],
    numbers: Sequence[bool] = (),
    types: Types | VaryingTypes | None = None,
) -> Traced:
    """Trace a function.

    Args:
        roots: the function and its static arguments: from there the tensors that it uses are searched for.
        call: calls it, with the tensor arguments put in their places.
        metas: shapes and dtypes of the tensor arguments.
        names: of the arguments, for errors.
        numbers: which of them are Python numbers; by default none.
        types: how they are cut along explicit axes, or along which axes they vary; None for a function whose values
            are not typed so.

    Raises:
        ShardingError: along explicit axes, the operands of an op leave open how its result is cut.
        DtypeError: a result is an object of a class that torch's trees do not know, and holds traced values.
        TracedValueError: it branches in Python on a traced value, or asks torch's autograd for a gradient.
        ImmutableError: it changes an argument, or a tensor that it closes over.
        StatefulRandomError: it draws from torch's generator.

    An outer trace, or a transformation of torch.func, does not see this one: a value that the function closes
    over from there becomes an input.

    It runs in its own thread; see `core/trace_thread.py`.

    Communication: none.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode, dispatch_functionalize
    from torch.fx.experimental.proxy_tensor import make_fx

    fake = FakeTensorMode(allow_non_fake_inputs=True)
    recorder = Recorder(fake, types)
    result: list[Any] = []
    name = _name_of(roots)

    def flat(*stand_ins: torch.Tensor) -> list[torch.Tensor]:
        recorder.note_made(stand_ins)
        recorder.numbers.update((x, None) for x, is_one in zip(stand_ins, numbers, strict=False) if is_one)
        if types is not None:
            types.note_arguments(stand_ins)
        try:
            out = call(stand_ins)
        finally:  # here torch's tracer goes on, or ends
            raise_interruption()
        leaves, tree = tree_flatten(out)
        refuse_holders(out, name)
        tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
        _refuse_changed(stand_ins, names, recorder)
        for x, stand_in in recorder.captured.values():
            if _is_changed(stand_in):  # through a view, which can no longer be traced back to it
                if recorder.rescales_weights:
                    raise max_norm_error()
                raise closed_over_changed(f"a tensor of shape {tuple(x.shape)}, {x.dtype}")
        result.extend((leaves, tree, () if types is None else tuple(map(types.sharding_of, tensors))))
        return [x if isinstance(x, FunctionalTensor) and is_of_this_trace(x) else torch.clone(x) for x in tensors]

    try:
        with _disable_current_modes(), temporarily_clear_interpreter_stack(), fake:
            stand_ins = [torch.empty(m.shape, dtype=m.dtype) for m in metas]
        called = register_module_forward_pre_hook(recorder.note_called)
        # with gradients on: without, torch's derivatives of `solve` and `det` use ops that have no derivative
        with (
            called,
            recording(recorder),
            torch.enable_grad(),
            _alone(),
            Watch(),
            unlogged(),
            preserve_node_meta(),
        ):
            functional = dispatch_functionalize(flat, FunctionalTensorMode())
            with fake, without_source():  # tensors that the function makes, as torch.zeros(n), have no memory either
                graph = make_fx(functional, tracing_mode="real", _allow_non_fake_inputs=True)(*stand_ins)
    except RuntimeError as error:
        # torch's messages where NumPy takes a tensor, or torch's own functions read one
        if ".numpy() is not supported" in str(error):
            cure = "torch.as_tensor(a), where a is a NumPy array beside it; functions of torch in place of NumPy's"
            raise traced_value_error(_line_of(error), "NumPy asks for a traced tensor's value", try_=cure) from error
        if "its data is not allocated yet" in str(error):
            raise traced_value_error(_line_of(error)) from error
        if "a leaf Variable that requires grad is being used in an in-place operation" in str(error):
            raise closed_over_changed(f"a tensor that requires a gradient, in {_line_of(error)}") from error
        raise
    finally:  # whether it failed or not
        for x in recorder.left():
            end_value(x, name)
    _inputs_first(graph)
    note_silence(graph)
    paths, modules = reachable(roots)
    met = {*(id(x) for x, _ in recorder.captured.values()), *recorder.modes}
    # the function may use a module without calling it, as `model.forward` does; then it has used the module's tensors
    recorder.note_modes(mode_of(m) for m in modules if uses_module(m, met))
    closed = tuple(Closed(tuple(paths.get(id(x), ())), x) for x, _ in recorder.captured.values())
    leaves, tree, shardings = result
    count = iter(range(len(leaves)))
    outputs = tuple((True, next(count)) if isinstance(x, torch.Tensor) else (False, x) for x in leaves)
    # as they are now, for a hook may have been removed; modules made inside are gone
    used = ((mode, mode.module()) for mode in recorder.modes.values())
    modes = tuple(mode_of(x) for mode, x in used if x is not None and x.training is mode.training)
    kept = tuple(recorder.kept)
    return Traced(graph, tuple(metas), closed, outputs, tree, kept, recorder.custom_derivative, modes, shardings)


def _name_of(roots: Sequence[Any]) -> str:
    return getattr(roots[0], "__name__", type(roots[0]).__name__) if roots else "a function"


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Without the trace, the levels of torch.func and the named scopes that are around it."""
    is_transformed = this_thread.task.is_transformed or torch._C._functorch.maybe_current_level() is not None
    intercept = Intercept(captures=is_transformed)
    levels = temporarily_clear_interpreter_stack()
    scope = SCOPE.set("")
    try:
        with _disable_current_modes(), levels, intercept, distributions_unchecked(), compiling():
            yield
    finally:
        SCOPE.reset(scope)


def _is_changed(x: Any) -> bool:
    torch._sync(x)
    return bool(torch._functionalize_has_data_mutation(x.elem))  # type: ignore[attr-defined]


def _refuse_changed(stand_ins: Sequence[Any], names: Callable[[], list[str]], recorder: Recorder) -> None:
    for number, x in enumerate(stand_ins):
        if _is_changed(x):
            if recorder.rescales_weights:
                raise max_norm_error()
            if recorder.statistics:
                raise statistics_error(recorder.statistics)
            raise ImmutableError(
                "a traced function changes its argument in place",
                got=f"argument {names()[number]}",
                rule="arguments are immutable Arrays",
                try_="y = x + 1 in place of x.add_(1); x.clone() first where you want to write into it",
            )


def _inputs_first(module: torch.fx.GraphModule) -> None:
    """Move the placeholders of closed-over tensors from their first use to behind the arguments. Drop dead code."""
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
    drop_dead_code(module)


def drop_dead_code(module: torch.fx.GraphModule) -> None:
    """Remove the nodes of a graph that neither a result nor an effect needs."""
    with silence_of(module):
        module.graph.eliminate_dead_code(is_impure_node=_stays)


def _stays(node: torch.fx.Node) -> bool:
    """Whether a node stays though nothing uses its result."""
    return node.op in ("placeholder", "output") or acts(node)


def acts(node: torch.fx.Node) -> bool:
    """Whether the op of a node is called for its effect, as a check of values is."""
    primitive = primitive_of(node.target)
    return has_effect(node.target) or (primitive is not None and primitive.has_effect(node.args))


def is_effective(graph: torch.fx.GraphModule) -> bool:
    """Whether an op of a graph is called for its effect, as a check of values is."""
    with silence_of(graph):
        return any(map(acts, graph.graph.nodes))


def closed_names(traced: Traced) -> list[str]:
    """A name for each closed-over tensor, as a learner would write it."""
    return [spelled(c.paths[0]) if c.paths else f"closed_{i}" for i, c in enumerate(traced.closed)]
