"""A trace in progress: what happens to each op of the traced function before it is recorded.

an Array or a tensor from outside       captured: it becomes an input of the graph, like an argument
a value that a transformation wraps     likewise, before torch.func sees it
a draw from torch's generator,
a read of a value,
a change of a tensor from outside       an error: the function runs once, and its effect would not happen again
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from tinyshard.arrays.array import Array
from tinyshard.arrays.explicit import Types
from tinyshard.arrays.function_overrides.implicit_mutation import (
    call_profiler,
    runs_in_batch_norm,
    statistics_error,
    writes_statistics,
)
from tinyshard.arrays.refusals import traced_value_error
from tinyshard.arrays.varying_types import VaryingTypes
from tinyshard.compile import python_numbers
from tinyshard.compile.modes import Mode, mode_of
from tinyshard.compile.trace_errors import closed_over_changed, custom_op_writes, unknown_shape_error
from tinyshard.compile.zero_tangents import propagate_zeros
from tinyshard.core.device_dtypes import check_holdable, check_makes_holdable
from tinyshard.core.errors import StatefulRandomError
from tinyshard.core.thread_state import current_recorder, innermost
from tinyshard.core.trace_thread import raise_interruption
from tinyshard.core.users_line import Where, users_line
from tinyshard.partition.decompositions import always
from tinyshard.partition.op_table import BATCH_NORMS, draws, has_mask
from tinyshard.partition.shape_inference import check_takes

aten = torch.ops.aten

# gradients of losses (g, input, target, reduction, ...): on tensors without values torch divides by the size in Python,
# which fails for a size of 0. The gradient of a mean over no element is empty, like that of a sum.
_DIVIDED_BY_SIZE = {getattr(aten, f"{name}_loss_backward").default for name in ("mse", "smooth_l1", "huber")}
_MEAN, _SUM = 1, 2  # torch's numbers for reduction="mean" and reduction="sum"
_WRAPPED = {complex: torch.complex128, float: torch.float64, int: torch.int64, bool: torch.bool}  # in a tensor


class Recorder:
    """The trace in progress, and the tensors that it has captured as inputs.

    Attributes:
        custom_derivative: what makes the function's derivative differ from its graph's, if anything does.
    """

    def __init__(self, fake: Any, types: Types | VaryingTypes | None = None) -> None:
        self.fake = fake
        self.types = types  # how values are cut along explicit axes; or along which axes they vary
        self.custom_derivative: str | None = None
        self.captured: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by id: the tensor and its stand-in
        self.kept: list[Any] = []
        self.modes: dict[int, Mode] = {}  # by id of the module
        self.rescales_weights = False  # whether it has seen an embedding with max_norm
        self.is_stopping = False  # whether the user asks for `detach` now
        self.detached = WeakIdKeyDictionary()  # result of `detach` -> its operand, which torch does not keep in `_base`
        self.zeros = WeakIdKeyDictionary()  # tangents of zero
        self.numbers = WeakIdKeyDictionary()  # stand-ins for Python numbers
        self.statistics = ""  # which call of batch norm, if any, wrote running statistics
        self._made: list[weakref.ref[torch.Tensor]] = []
        self._lines: dict[int, Where] = {}  # by the number of a node of autograd: the user's line of its op

    def where(self) -> Where:
        """The user's line of the current op; for an op of a gradient, the line of the op that is differentiated."""
        node: Any = torch._C._current_autograd_node()
        here = users_line()
        if node is not None:
            return self._lines.get(node._sequence_nr(), here)
        autograd: Any = torch._C._autograd
        self._lines.setdefault(autograd._get_sequence_nr() - 1, here)  # autograd makes an op's node before this runs
        return here

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """A block in which `detach` is called by the user: gradients of the trace stop there."""
        before, self.is_stopping = self.is_stopping, True
        try:
            yield
        finally:
            self.is_stopping = before

    def note_detached(self, op: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Remember what the user detached. A write through it has no gradient, which the graph does not show."""
        if op is aten.detach.default:
            self.detached[result] = args[0]
        elif self.detached and op._schema.is_mutable and self.custom_derivative is None:
            targets = [x for x in written(op, args, kwargs) if isinstance(x, torch.Tensor)]
            if any(x in self.detached or x._base in self.detached for x in targets):
                self.custom_derivative = f"a write through detach or data in {users_line()}"

    def note_modes(self, modes: Iterable[Mode]) -> None:
        """Remember the first state of each module that the function uses."""
        for mode in modes:
            self.modes.setdefault(id(mode.module()), mode)

    def note_called(self, module: torch.nn.Module, _: Any) -> None:
        """A hook that torch calls before any module's forward."""
        if current_recorder() is not None:  # not of another thread
            self.note_modes([mode_of(module)])

    def note_made(self, tree: Any) -> None:
        """Remember the stand-ins of the trace: use of those that outlive it is an error."""
        self._made.extend(weakref.ref(x) for x in tree_leaves(tree) if isinstance(x, torch.Tensor))

    def note_wrapped(self, tree: Any) -> None:
        """As `note_made`, for the wrappers that a transformation inside the trace puts around its stand-ins."""
        with torch._C.DisableTorchFunction():
            for x in tree_leaves(tree):
                if type(x) is torch.Tensor and _is_wrapped(x) and not _is_wrapped_outside(x):
                    self._made.append(weakref.ref(x))

    def left(self) -> list[torch.Tensor]:
        """The stand-ins that are still alive."""
        return [x for known in self._made if (x := known()) is not None]

    def capture(self, x: torch.Tensor) -> torch.Tensor:
        """The stand-in for a tensor that the function closes over; makes it an input.

        Raises:
            DtypeError: no device can hold it.
        """
        from torch._subclasses.functional_tensor import FunctionalTensor
        from torch.fx.experimental.proxy_tensor import get_proxy_mode, track_tensor_tree

        known = self.captured.get(id(x))
        if known is None:
            if not isinstance(x, Array):
                check_holdable(x)
            shape = tuple(x.shape)
            with temporarily_clear_interpreter_stack():
                with _disable_current_modes(), self.fake:
                    stand_in = torch.empty(shape, dtype=x.dtype)
                mode = get_proxy_mode()
                assert mode is not None
                tracer = mode.tracer
                proxy = tracer.create_proxy("placeholder", f"closed_{len(self.captured)}", (), {})
                proxy.node.meta["val"] = stand_in
                track_tensor_tree(stand_in, proxy, constant=None, tracer=tracer)
                known = (x, FunctionalTensor.to_functional(stand_in))
            self.captured[id(x)] = known
            if self.types is not None:
                self.types.note_captured(known[1], x)
        return known[1]


def note_modes(modes: Iterable[Mode]) -> None:
    """During a trace: remember the modules of a part of it that was traced before."""
    recorder = current_recorder()
    if recorder is not None:
        recorder.note_modes(modes)


class Watch(TorchDispatchMode):
    """Sees every op before it is recorded: captures closed-over tensors, refuses what a program cannot do."""

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        from torch._subclasses.fake_tensor import DynamicOutputShapeException
        from torch._subclasses.functional_tensor import FunctionalTensor

        raise_interruption()
        recorder, kwargs = current_recorder(), kwargs or {}
        if recorder is None:
            return op(*args, **kwargs)
        where = recorder.where()
        if op.namespace == "profiler":
            return call_profiler(op, args, where)
        fx_traceback.current_meta["custom"] = {"where": where}  # fx copies it to the nodes that are made
        if torch.Tag.nondeterministic_seeded in op.tags and draws(op, args, kwargs):
            raise StatefulRandomError(
                "a stateful random op in a traced function",
                got=f"{op} in {where}",
                rule="it would be drawn once, when the function is traced, or differ between copies",
                try_="ts.random.functional(fn, key), a function that draws from the key; or the numbers as an argument",
            )
        check_makes_holdable(op)
        if op is aten.detach.default and not recorder.is_stopping:  # called by torch, on values saved for a gradient
            op = aten.alias.default
        asked, op = op, aten.zeros.default if op is aten._efficientzerotensor.default else op  # it has no memory
        if op in (aten._local_scalar_dense.default, aten.is_nonzero.default, aten.equal.default, aten.allclose.default):
            raise traced_value_error(where)
        recorder.rescales_weights |= op is aten.embedding_renorm_.default
        if op in BATCH_NORMS and writes_statistics(args):
            got = f"running_mean and running_var of a call in {where}, under jit"
            if any(_is_closed_over(x, FunctionalTensor) for x in args[3:5]):
                raise statistics_error(got)
            recorder.statistics = recorder.statistics or got
        if op._schema.is_mutable and any(_is_closed_over(x, FunctionalTensor) for x in written(op, args, kwargs)):
            if runs_in_batch_norm():
                raise statistics_error(f"num_batches_tracked of a module called in {where}, under jit")
            raise closed_over_changed(f"{op._schema.name.removeprefix('aten::')} in {where}")
        if op._schema.is_mutable and op.namespace not in ("aten", "prims"):
            raise custom_op_writes(op, f"{op} in {where}")
        if op not in (aten.lift_fresh.default, aten.lift_fresh_copy.default):
            args, kwargs = _captured((args, kwargs), lambda x: _is_closed_over(x, FunctionalTensor))
        if has_effect(op):
            return _recorded_as_it_is(op, args, kwargs)
        if op is aten.linalg_lu_solve.default:  # now, and not by the partitioner: a shard needs it, too
            op = always(op, args, kwargs) or op
        if op is aten.index.Tensor and has_mask(args[1]):  # torch asks for other dtypes where a mask is of uint8
            raise unknown_shape_error(op, where)
        if op in _DIVIDED_BY_SIZE and args[1].numel() == 0 and args[3] == _MEAN:
            args = (*args[:3], _SUM, *args[4:])
        cut = () if recorder.types is None else recorder.types.of_results(op, args, kwargs)
        try:
            with torch._C.DisableTorchFunction():  # the functions that torch calls to record an op are not the user's
                if _is_number_alone(op, args):
                    args = (torch.scalar_tensor(args[0], dtype=_WRAPPED[type(args[0])]), *args[1:])
                result = python_numbers.called(recorder.numbers, op, args, kwargs)
                result = (
                    propagate_zeros(recorder.zeros, asked, args, result)
                    if recorder.zeros or asked is not op
                    else result
                )
                if op is aten._linalg_svd.default:  # torch's derivative of det asks for theirs: as in `intercept`
                    result = tuple(x.contiguous() for x in result)
                recorder.note_detached(op, args, kwargs, result)
            recorder.note_made(result)
            if cut:
                recorder.types.note_results(result, cut)
            return result
        except DynamicOutputShapeException as error:
            raise unknown_shape_error(op, where) from error
        except (AssertionError, KeyError):  # how torch's functions for tensors without values refuse dtypes
            check_takes(op, args, kwargs)
            raise


def _is_number_alone(op: Any, args: Sequence[Any]) -> bool:
    """Whether an op of a tensor is passed only a number, as `_conj(1j)` in the gradient of x * 1j."""
    if not args or type(args[0]) not in _WRAPPED or any(isinstance(x, torch.Tensor) for x in args):
        return False
    return isinstance(op._schema.arguments[0].type, torch.TensorType)


def written(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[Any]:
    """The tensors that an in-place op, or one with out=, writes into."""
    given = {a.name: x for a, x in zip(op._schema.arguments, args, strict=False)} | kwargs
    names = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tree_leaves([given.get(name) for name in names])


def has_effect(op: Any) -> bool:
    """Whether it is called for its effect: `_linalg_check_errors` is, `sin` and `_foreach_add_` are not."""
    return isinstance(op, torch._ops.OpOverload) and not op._schema.returns and not op._schema.is_mutable


def _recorded_as_it_is(op: Any, args: Any, kwargs: Any) -> Any:
    """Record an op with an effect without functionalization, which would need tokens that order the effects."""
    from torch._subclasses.functional_tensor import FunctionalTensor, disable_functional_mode

    def plain(x: FunctionalTensor) -> torch.Tensor:
        torch._sync(x)
        return torch._from_functional_tensor(x.elem)

    args, kwargs = tree_map_only(FunctionalTensor, plain, (args, kwargs))
    with disable_functional_mode():
        return op(*args, **kwargs)


def _is_closed_over(x: Any, functional: type) -> bool:
    if isinstance(x, functional):
        return not is_of_this_trace(x)
    if isinstance(x, Array) or type(x) in (torch.Tensor, torch.nn.Parameter):
        return True
    recorder = current_recorder()
    is_fake_of_others = recorder is not None and getattr(x, "fake_mode", recorder.fake) is not recorder.fake
    return isinstance(x, torch.Tensor) and (is_fake_of_others or x.is_nested)  # to be refused


def is_of_this_trace(x: Any) -> bool:
    """A stand-in of the trace that runs now, not of one around it."""
    recorder = current_recorder()
    below = torch._from_functional_tensor(x.elem)
    return recorder is None or getattr(below, "fake_mode", recorder.fake) is recorder.fake


def capture_outer(tree: Any) -> Any:
    """During a trace: every tensor that a transformation around the trace has wrapped as an input of the graph."""
    return _captured(tree, _is_wrapped_outside)


def capture_arguments(tree: Any) -> Any:
    """During a trace: every tensor from outside of it as an input of the graph, before a transformation wraps it."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return _captured(
        tree, lambda x: _is_wrapped_outside(x) or (not _is_wrapped(x) and _is_closed_over(x, FunctionalTensor))
    )


def _captured(tree: Any, is_outer: Callable[[torch.Tensor], bool]) -> Any:
    recorder = current_recorder()
    if recorder is None:
        return tree
    with torch._C.DisableTorchFunction():  # otherwise reading a shape would capture once more
        if not any(isinstance(x, torch.Tensor) and is_outer(x) for x in tree_leaves(tree)):  # as of most ops
            return tree
        return tree_map_only(torch.Tensor, lambda x: recorder.capture(x) if is_outer(x) else x, tree)


def _is_wrapped(x: torch.Tensor) -> bool:
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(x))


def _is_wrapped_outside(x: torch.Tensor) -> bool:
    from torch._subclasses.functional_tensor import FunctionalTensor

    inner = innermost(x)
    return inner is not x and not (isinstance(inner, FunctionalTensor) and is_of_this_trace(inner))
