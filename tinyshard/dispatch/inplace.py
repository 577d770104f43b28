"""In-place ops: the user's are refused; those of torch on its own values give the handles new values.

torch's composite functions and its gradients change intermediates in place: `F.linear` of a vector squeezes its
result, `irfft`'s gradient doubles a slice of a fresh tensor, `svd`'s fills a diagonal. Such a value was made inside the
running call (`array.origin`), and no other code has it. Devices never change a value: the handle gets another one.

    w = x * 2                a root: a handle that is not a view
    part = w[:, 1:]          a view: it remembers `w` and the ops that lead from it (`tinyshard.arrays.views`)
    part.mul_(3)             one program: w is copied, the ops lead to the part, mul_ changes it. Tracing makes that
                             functional. Its results, w and each live view of w, are the handles' new values
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.array import Array, is_own
from tinyshard.arrays.function_overrides.implicit_mutation import max_norm_error, runs_in_batch_norm, statistics_error
from tinyshard.arrays.refusals import refuse, writes_for_a_module
from tinyshard.arrays.transfer import move
from tinyshard.arrays.views import Link, chain_of, follow, live_views, root_of
from tinyshard.compile.capture import written
from tinyshard.compile.executable import Executable, assignment_of, call, spec_of
from tinyshard.compile.spmd import compile_graph
from tinyshard.compile.trace_errors import custom_op_writes
from tinyshard.compile.tracing import trace
from tinyshard.core.cache import Recent, frozen
from tinyshard.core.types import ShapedType

aten = torch.ops.aten

MAX_WRITES = 512
_writes: Recent[Any, Executable] = Recent(MAX_WRITES)


def rebind(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an op that changes its operands, on values made inside the running call.

    Returns:
        The results of the op; a target, and all handles that share memory with it in torch, have the new values.

    Raises:
        ImmutableError: a target is the user's, or a part of a user's value.
    """
    targets: list[Any] = [x for x in written(op, args, kwargs) if isinstance(x, torch.Tensor)]
    only_shape = torch.Tag.inplace_view in op.tags
    if not targets or not all(is_own(x) and (only_shape or not root_of(x)._viewed) for x in targets):
        if writes_for_a_module() and out_of_place(op) is not None:
            return _given_to_module(op, args, kwargs, targets)
        _refuse_op(op, args, kwargs)
    with torch._C.DisableTorchFunctionSubclass():  # values made here belong to the running call
        if only_shape:
            return _reshaped(op, args, kwargs)
        target, functional = targets[0], out_of_place(op)
        if functional is not None and target is args[0] and target._view is None and not live_views(target):
            target._take(functional(*args, **kwargs))
            return target
        return _written_through(op, args, kwargs, targets)


def _given_to_module(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Sequence[Any]) -> Any:
    """Run an op by which torch writes to the parameters of a module, or to gradients: their handles get new values."""
    results = out_of_place(op)(*args, **kwargs)
    for target, result in zip(targets, results if isinstance(results, list | tuple) else [results], strict=True):
        if isinstance(target, Array):  # it keeps its placement
            target._take(move(result, target._layout, committed=target.committed, sharding=target._sharding))
        else:
            target.copy_(result)
    return args[0]


# in-place ops without a torch function -> an expression for their values
_WITHOUT_FUNCTION = {
    "copy": "value.to(x.dtype).expand_as(x)",
    "zero": "torch.zeros_like(x)",
    "resize": "x.reshape(...), x[...] or torch.nn.functional.pad(x, ...)",
    "resize_as": "x.reshape(other.shape)",
}


def _refuse_op(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = op._schema.name.removeprefix("aten::")
    plain = name.removesuffix("_")
    if op is aten.embedding_renorm_.default:
        raise max_norm_error()
    if runs_in_batch_norm():
        raise statistics_error("num_batches_tracked, running_mean and running_var are Arrays")
    if "out" in kwargs or op._overloadname.endswith("out"):
        refuse(f"torch.{name}(..., out=...)", f"y = torch.{name}(...)")
    if op.namespace != "aten":
        raise custom_op_writes(op, str(op))
    if isinstance(args[0], list | tuple):
        listed = f"y, ... = torch.{plain}([x, ...], ...)" if hasattr(torch, plain) else "ops that return new tensors"
        refuse(f"torch.{name}([x, ...], ...)", listed)
    listed = (
        f"torch.{plain}(x, ...)" if hasattr(torch, plain) else _WITHOUT_FUNCTION.get(plain, "an op that returns it")
    )
    refuse(f"x.{name}(...)", f"y = {listed}")


@cache
def out_of_place(op: Any) -> Any:
    """The op with the same arguments that returns the new value: `pow.Tensor_Scalar` for `pow_.Scalar`; or None.

    Example:
        >>> out_of_place(aten.pow_.Scalar)
        <OpOverload(op='aten.pow', overload='Tensor_Scalar')>
    """
    name = op._schema.name.removeprefix("aten::")
    packet = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    if packet is None:
        return None

    def takes(overload: Any) -> list[tuple[str, str]]:
        return [(a.name, str(a.type)) for a in overload._schema.arguments]

    overloads = [getattr(packet, each) for each in packet.overloads()]
    return next((each for each in overloads if takes(each) == takes(op)), None)


# ---- writes to shared memory ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Operand:
    """A tensor among the arguments: the number of its root's operand, and the ops that lead to it from there."""

    number: int
    chain: tuple[Link, ...] = ()


def _written_through(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], targets: Sequence[Array]) -> Any:
    """Run the op on copies of the targets' roots, and give each handle that shares their memory its new values."""
    roots = list({id(root): root for root in map(root_of, targets)}.values())
    numbers = {id(root): number for number, root in enumerate(roots)}
    operands: list[torch.Tensor] = list(roots)
    leaves, form = tree_flatten((args, kwargs))
    spelled: list[Any] = []
    for leaf in leaves:
        if not isinstance(leaf, torch.Tensor):
            spelled.append(leaf)
        elif isinstance(leaf, Array) and any(leaf is target for target in targets):
            spelled.append(_Operand(numbers[id(root_of(leaf))], chain_of(leaf)))
        else:
            spelled.append(_Operand(len(operands)))
            operands.append(leaf)
    views = [view for root in roots for view in live_views(root)]
    reached = [_Operand(numbers[id(root_of(view))], chain_of(view)) for view in views]

    def changed(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        bases = [x.clone() for x in tensors[: len(roots)]] + list(tensors[len(roots) :])

        def meant(x: Any) -> Any:
            return follow(x.chain, bases[x.number]) if isinstance(x, _Operand) else x

        given, named = tree_unflatten([meant(x) for x in spelled], form)
        result = op(*given, **named)
        return [*bases[: len(roots)], *map(meant, reached), *_fresh(op, result)]

    key = (op, form, len(roots), frozen(spelled), frozen(reached))
    new = _call(key, changed, operands)
    handles = [*roots, *views]
    for handle, value in zip(handles, new, strict=False):
        handle._take(value)
    return _returned(op, args, kwargs, new[len(handles) :])


def _call(key: Any, function: Any, operands: Sequence[torch.Tensor]) -> list[Array]:
    """Call a function of tensors as one program: cached for this key and these operands, or compiled now."""
    assignment = assignment_of(operands)
    specs = tuple(spec_of(x, assignment) for x in operands)
    key = (key, assignment.devices, specs)
    executable = _writes.get(key)
    if executable is None:
        with torch.no_grad():
            traced = trace((), function, [spec.meta for spec in specs], lambda: ["a value of torch's own"] * len(specs))
        executable = _writes.put(key, compile_graph(traced.graph, specs, assignment, [None] * len(traced.outputs)))
    return call(executable, operands, assignment)


def _is_written(returned: Any) -> bool:
    return returned.alias_info is not None and returned.alias_info.is_write


def _fresh(op: Any, outputs: Any) -> list[torch.Tensor]:
    """The results that are not targets."""
    results = outputs if isinstance(outputs, tuple) else (outputs,)
    pairs = zip(op._schema.returns, results, strict=True) if op._schema.returns else ()
    return [x for returned, x in pairs if not _is_written(returned)]


def _returned(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any], fresh: Sequence[Array]) -> Any:
    """The results of the op: the handles of its targets, and new ones."""
    given = {a.name: x for a, x in zip(op._schema.arguments, args, strict=False)} | kwargs
    by_alias = {frozenset(a.alias_info.before_set): given.get(a.name) for a in op._schema.arguments if a.alias_info}
    following = iter(fresh)
    results = tuple(
        by_alias[frozenset(r.alias_info.before_set)] if _is_written(r) else next(following) for r in op._schema.returns
    )
    return None if not results else results[0] if len(results) == 1 else results


# ---- ops that change only the shape of a handle -----------------------------------------------------------------


def _reshaped(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Array:
    """Run an op as `squeeze_`. Handles that share its memory are not changed any more: autograd could not follow."""
    target: Array = args[0]
    functional = out_of_place(op)
    if functional is None:
        _refuse_op(op, args, kwargs)
    family = [root_of(target), *live_views(root_of(target))]
    target._take(functional(*args, **kwargs))
    if len(family) > 1:
        for x in family:
            x._viewed, x._view = True, None
    _reshape_handle(op, args, kwargs)
    target._meta = ShapedType(tuple(target.shape), target.dtype)
    return target


def _reshape_handle(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Change the shape of the handle itself, as torch's own tensor wrappers do."""
    before = torch._C._meta_in_tls_dispatch_include()
    torch._C._set_meta_in_tls_dispatch_include(True)
    try:
        with no_dispatch():
            op(*args, **kwargs)
    finally:
        torch._C._set_meta_in_tls_dispatch_include(before)
