"""One torch op on Arrays: a graph of one node, compiled as a jitted function is, then called on the devices.

It is compiled once for its operands' shapes, dtypes and layouts, and its other arguments. After that a call is one
message.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard.arrays import explicit
from tinyshard.arrays.array import Array
from tinyshard.arrays.function_overrides.implicit_mutation import with_new_statistics, writes_statistics
from tinyshard.arrays.function_overrides.memory import is_part
from tinyshard.arrays.placement import device_get
from tinyshard.arrays.views import remember
from tinyshard.compile.capture import written
from tinyshard.compile.executable import DeviceAssignment, Executable, assignment_of, call, spec_of
from tinyshard.compile.spmd import compile_graph
from tinyshard.core import config
from tinyshard.core.cache import Recent, frozen_leaf
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.errors import DtypeError, StatefulRandomError, TracedValueError
from tinyshard.core.evaluate import GraphModule
from tinyshard.core.primitive import primitive_of
from tinyshard.core.thread_state import this_thread
from tinyshard.dispatch.inplace import rebind
from tinyshard.partition.op_table import draws, op_traits

MAX_EXECUTABLES = 4096
_SEVERAL = (list, tuple)  # used by every op: `list | tuple` would be constructed each time

_executables: Recent[Any, Executable] = Recent(MAX_EXECUTABLES)

_mode, _PROXY = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.PROXY  # that of make_fx


def dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op with an Array among its operands.

    Args:
        op: an OpOverload.
        args, kwargs: its arguments; tensors among them may be Arrays or plain.

    Returns:
        The results of the op, with Arrays for tensors; at once, unless a shape depends on values.

    Raises:
        ImmutableError: the op changes an Array in place.
        StatefulRandomError: the op draws from torch's own generator.
        TracedValueError: torch traces a function that uses an Array.
        ShardingError: committed operands on different devices.
        DtypeError: it names a torch device other than that of Arrays; an operand, or a result, is of a kind that no
            device can hold.

    Communication: that of the op, by the text of its program.
    """
    if _mode(_PROXY) is not None and this_thread.recorder is None:
        raise TracedValueError(
            "a trace of torch's own sees an Array",
            got=f"{op} within torch.func.linearize, make_fx or torch.export",
            rule="it would record memory that nothing has written in place of the Array's values",
            try_="ts.jvp(f, (x,), (t,)) in place of linearize; ts.jit(f).lower(x) for a program to read",
        )
    known = op_traits(op)
    if known.is_alias:
        return _alias(args[0])
    if known.may_draw and draws(op, args, kwargs):
        raise StatefulRandomError(
            "a stateful random op on an Array",
            got=str(op),
            rule="each device would draw other numbers, and copies of a block would differ",
            try_="ts.random.functional(fn, key), whose draws come from the key; or ts.device_put of numbers drawn here",
        )
    if known.is_batch_norm and writes_statistics(args):
        return with_new_statistics(args)
    if known.is_mutable:
        if any(isinstance(x, Array) for x in written(op, args, kwargs)):
            return rebind(op, args, kwargs)
        return op(*device_get(args), **device_get(kwargs))  # into plain tensors: the values are copied to the host
    if known.is_answer:
        return op(*device_get(args), **device_get(kwargs))  # item(), equal(): the answer is a Python value
    if "device" in kwargs:
        kind = _kind(op, kwargs["device"])
        if kind == "meta":  # torch.func needs only shapes
            return op(
                *tree_map_only(Array, lambda x: torch.empty(tuple(x.shape), dtype=x.dtype, device=kind), args), **kwargs
            )
    operands: list[torch.Tensor] = []
    _collect(args, operands)
    _collect(kwargs, operands)
    assignment = assignment_of(operands)
    executable = _executable(op, args, kwargs, operands, assignment)
    arrays: list[Any] = list(call(executable, operands, assignment))
    if known.is_view:
        remember(op, args, kwargs, arrays)
        of_part = is_part(op, operands[0])
        for x in arrays:
            x._is_part = of_part
    for position in executable.gaps:
        arrays.insert(position, None)
    if known.returns == 0:
        return None
    if known.container is not None:
        return known.container(arrays)
    return arrays[0]


def _alias(x: Array) -> Array:
    alias = Array(x._buffer, x._layout, x._meta, x.committed, x._mesh, x._sharding)
    alias._is_part = x._is_part
    remember(None, (x,), {}, [alias])
    return alias


def _executable(
    op: Any, args: Any, kwargs: Any, operands: Sequence[torch.Tensor], assignment: DeviceAssignment
) -> Executable:
    """The executable for operands of these shapes and layouts: cached, or compiled now."""
    cache_key = (
        _key(args, assignment),
        _key(kwargs, assignment),
        torch.get_default_dtype(),
        config.values["debug_nans"],
    )
    mesh = assignment.mesh
    typed = mesh if mesh is not None and mesh.is_explicit and explicit.follows_operands() else None
    key = (op, assignment.platform, assignment.devices, typed, *cache_key)
    executable = _executables.get(key)
    if executable is None:
        if typed is not None:
            explicit.check_eager(typed, op, args, kwargs)
        specs = [spec_of(x, assignment) for x in operands]
        executable = _executables.put(key, compile_graph(_graph(op, args, kwargs), specs, assignment))
    return executable


def _kind(op: Any, device: Any) -> str:
    """The kind of a torch device that an op should make its result on."""
    kind = "cpu" if device is None else torch.device(device).type
    if kind not in ("cpu", "meta"):
        raise DtypeError(
            "torch's .to(device) does not place Arrays",
            got=f"{op} with device={device}",
            try_="ts.device_put(x, device_or_sharding), or ts.device_get(x) for a plain tensor",
        )
    return kind


def _collect(tree: Any, operands: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        if not isinstance(tree, Array):
            check_holdable(tree)
        operands.append(tree)
    elif isinstance(tree, _SEVERAL):
        for item in tree:
            _collect(item, operands)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, operands)


def _key(tree: Any, assignment: DeviceAssignment) -> Any:
    if isinstance(tree, Array) and tree._layout.devices == assignment.devices:
        return (tree._meta, tree._layout)
    if isinstance(tree, torch.Tensor):
        return (tree.shape, tree.dtype)  # it can be placed where the op needs it
    if isinstance(tree, _SEVERAL):
        return (type(tree), *[_key(item, assignment) for item in tree])
    if isinstance(tree, dict):
        return tuple([(k, _key(v, assignment)) for k, v in tree.items()])
    return frozen_leaf(tree)


def _graph(op: Any, args: Any, kwargs: Any) -> torch.fx.GraphModule:
    """The graph of one op: an input for each tensor among its arguments, and its results."""
    graph, names = torch.fx.Graph(), map("x{}".format, itertools.count())

    def placeholder(x: torch.Tensor) -> torch.fx.Node:
        node = graph.placeholder(next(names))
        node.meta["val"] = torch.empty(x.shape, dtype=x.dtype, device="meta")
        return node

    node_args, node_kwargs = tree_map_only(torch.Tensor, placeholder, (args, kwargs))
    node = graph.call_function(op, node_args, node_kwargs)
    if primitive_of(op) is not None:  # its own rules need the type of its result
        node.meta["val"] = op(*tree_map_only(torch.fx.Node, lambda x: x.meta["val"], node_args), **kwargs)
    graph.output(node)
    return GraphModule(torch.nn.Module(), graph)


Array._dispatch = staticmethod(dispatch)
