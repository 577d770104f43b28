"""One torch op on Arrays: found in the cache or partitioned, then called on the devices.

What an op needs is decided once for its operands' shapes, dtypes and layouts, and its other arguments; the resulting
Program is kept. Calling it again costs one message.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from tinyshard import partition, platform
from tinyshard.array import _DEFAULT_ORIGIN, Array, _refuse, origin
from tinyshard.errors import DtypeError, ShardingError, StatefulRandomError, message
from tinyshard.layout import Layout, coarsest, refine, replicated
from tinyshard.mesh import Mesh
from tinyshard.placement import device_get, move, put_tensor
from tinyshard.program import Builder, Meta, Program
from tinyshard.reshard import Placed
from tinyshard.runtime.runs import users_line

aten = torch.ops.aten
MAX_PLANS = 4096

_ALIASES = {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten.view_as.default}


@dataclass(frozen=True, slots=True)
class Recipe:
    """A partitioned op.

    Attributes:
        program: what the devices run.
        inputs: the layout in which each operand must be when the program is called.
        results: layout, shape and dtype of each result; None where only running tells.
        container: list or tuple if the op returns one, else None.
    """

    program: Program
    inputs: tuple[Layout, ...]
    results: tuple[tuple[Layout, Meta] | None, ...]
    container: type | None


_recipes: OrderedDict[Any, Recipe] = OrderedDict()


def dispatch(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one op of which some operand is an Array.

    Raises:
        ImmutableError: the op changes an Array in place.
        StatefulRandomError: the op draws from torch's own generator.
        ShardingError: committed operands on different devices.
    """
    if op in _ALIASES:
        return _alias(args[0])
    if op._schema.is_mutable:
        return _rebind(op, args, kwargs)
    if torch.Tag.nondeterministic_seeded in op.tags:
        raise StatefulRandomError(
            message(
                "a stateful random op on an Array",
                got=str(op),
                rule="each device would draw other numbers, and copies of a block would differ",
                try_="draw with ts.random and a key, or draw on the host and ts.device_put the numbers",
            )
        )
    if any(not _is_tensors(r.type) for r in op._schema.returns):
        return op(*device_get(args), **device_get(kwargs))  # item(), equal(): the answer is a Python value
    apart = partition.decomposition(op)
    if apart is not None:
        return apart(*args, **kwargs)
    _check_target(op, kwargs)
    operands: list[torch.Tensor] = []
    home, mesh, committed = _home(args, kwargs, operands)
    key = (op, home.devices, _key(args, home), _key(kwargs, home))
    recipe = _recipes.get(key)
    if recipe is None:
        recipe = _recipes[key] = _partition(op, args, kwargs, operands, home)
        if len(_recipes) > MAX_PLANS:
            platform.current().forget(_recipes.popitem(last=False)[1].program)
    else:
        _recipes.move_to_end(key)
    return _call(recipe, operands, home, committed, mesh, op)


def _is_tensors(kind: Any) -> bool:
    return "Tensor" in str(kind)


def _alias(x: Array) -> Array:
    return Array(x._buffer, x._layout, x.shape, x.dtype, x.committed, x._mesh)


def _rebind(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Autograd's own in-place ops on fresh intermediates get the out-of-place result; a user's are refused."""
    name = op._schema.name.removeprefix("aten::")
    target = args[0] if args else None
    now = origin()
    fresh = isinstance(target, Array) and target._origin == now != _DEFAULT_ORIGIN
    out_of_place = getattr(aten, name.removesuffix("_"), None) if name.endswith("_") else None
    if fresh and out_of_place is not None:
        assert isinstance(target, Array)
        result = getattr(out_of_place, op._overloadname)(*args, **kwargs)
        target._buffer, target._layout, target._mesh = result._buffer, result._layout, result._mesh
        return target
    if "out" in kwargs or op._overloadname.endswith("out"):
        _refuse(f"torch.{name}(..., out=...)", f"y = torch.{name}(...)")
    if not isinstance(target, Array):
        _refuse(
            f"{name} of an Array into a plain tensor", f"out of place: torch.{name.removesuffix('_')}, or device_get(x)"
        )
    _refuse(f"x.{name}(...)", f"y = torch.{name.removesuffix('_')}(x, ...)")


def _check_target(op: Any, kwargs: dict[str, Any]) -> None:
    device = kwargs.get("device")
    if device is not None and torch.device(device).type != "cpu":
        raise DtypeError(
            message(
                "torch's .to(device) does not place Arrays",
                got=f"{op} with device={device}",
                try_="ts.device_put(x, device_or_sharding), or ts.device_get(x) for a plain tensor",
            )
        )


def _home(args: Any, kwargs: Any, operands: list[torch.Tensor]) -> tuple[Layout, Mesh | None, bool]:
    """Where the op runs: the devices of its committed operands, else the default device. Collects the operands."""
    _collect(args, operands)
    _collect(kwargs, operands)
    first: Array | None = None
    mesh = None
    for x in operands:
        if isinstance(x, Array) and x.committed:
            if first is None:
                first = x
            elif x._layout.devices != first._layout.devices:
                raise _devices_error(first, x)
            mesh = mesh or x._mesh
    if first is not None:
        return first._layout, mesh, True
    for x in operands:
        if isinstance(x, Array) and x._buffer.runtime is platform.current():
            return x._layout, x._mesh, False
    default = platform.devices()[0]
    return Layout((default.id,), (), (), default.platform), None, False


def _devices_error(a: Array, b: Array) -> ShardingError:
    got = (f"{list(x._layout.devices)} on platform {x._layout.platform.upper()}" for x in (a, b))
    ours, theirs = got
    return ShardingError(
        message(
            "Devices of all `Array` inputs and outputs should be the same.",
            got=f"array device ids {ours}\nand another array's device ids {theirs}",
            rule="committed arrays meet only where they have the same devices in the same order",
            try_="ts.device_put one of them to the other's sharding",
        )
    )


def _collect(tree: Any, operands: list[torch.Tensor]) -> None:
    if isinstance(tree, torch.Tensor):
        operands.append(tree)
    elif isinstance(tree, list | tuple):
        for item in tree:
            _collect(item, operands)
    elif isinstance(tree, dict):
        for item in tree.values():
            _collect(item, operands)


def _key(tree: Any, home: Layout) -> Any:
    if isinstance(tree, Array) and tree._layout.devices == home.devices:
        return (tree.shape, tree.dtype, tree._layout)
    if isinstance(tree, torch.Tensor):
        return (tree.shape, tree.dtype)  # it can be put where the op wants it
    if isinstance(tree, list | tuple):
        return (type(tree), *(_key(item, home) for item in tree))
    if isinstance(tree, dict):
        return tuple((k, _key(v, home)) for k, v in tree.items())
    return (type(tree), repr(tree) if isinstance(tree, float | complex) else tree)  # 1, 1.0, True, -0.0 and nan differ


def _partition(op: Any, args: Any, kwargs: Any, operands: Sequence[torch.Tensor], home: Layout) -> Recipe:
    """Build the program for an op on operands of these shapes and layouts."""
    flat = [Layout(home.devices, (len(home.devices),), (), home.platform)]
    layouts = [coarsest(x._layout) for x in operands if isinstance(x, Array) and x._layout.devices == home.devices]
    common = refine(layouts) if layouts else flat
    if common is None:  # as (3, 2) with (2, 3): the first keeps its layout, the others are gathered
        common = [
            layouts[0],
            *((refine([layouts[0], x]) and x) or replicated(x.devices, x.ndim, x.platform) for x in layouts[1:]),
        ]
        common = refine(common) or common
    axes = common[0].axes
    builder = Builder(home.devices, axes)
    placed = iter(common)
    numbers: dict[int, Placed] = {}

    def as_placed(x: torch.Tensor) -> Placed:
        at_home = isinstance(x, Array) and x._layout.devices == home.devices
        dims = next(placed).dims if at_home else ((),) * x.dim()
        value = Placed(0, tuple(x.shape), x.dtype, dims)
        value = replace(value, number=builder.input(value.local(axes)))
        if not at_home:
            builder.free.add(value.number)
        numbers[value.number] = value
        return value

    new_args, new_kwargs = tree_map_only(torch.Tensor, as_placed, (args, kwargs))
    try:
        results = partition.finish(builder, partition.apply(builder, op, new_args, new_kwargs))
    except partition.UnknownShape:
        results = None
    if results is None:
        count = len(op._schema.returns)
        outs = partition.apply_unknown(builder, op, new_args, new_kwargs, count)
        made: tuple[tuple[Layout, Meta] | None, ...] = (None,) * count
    else:
        outs = tuple(r.number for r in results if r is not None)
        made = tuple(
            (coarsest(Layout(home.devices, axes, r.dims, home.platform)), Meta(r.shape, r.dtype))
            for r in results
            if r is not None
        )
    inputs = tuple(
        coarsest(Layout(home.devices, axes, builder.wanted.get(n, x.dims), home.platform)) for n, x in numbers.items()
    )
    kind = str(op._schema.returns[0].type) if op._schema.returns else ""
    container = list if "List" in kind else tuple if len(op._schema.returns) != 1 else None
    return Recipe(builder.finish(outs), inputs, made, container)


def _call(
    recipe: Recipe, operands: Sequence[torch.Tensor], home: Layout, committed: bool, mesh: Mesh | None, op: Any
) -> Any:
    runtime = platform.current()
    buffers = []
    for x, layout in zip(operands, recipe.inputs, strict=True):
        if not isinstance(x, Array):
            x = put_tensor(x.detach(), layout, committed=False)
        elif x._layout != layout:
            x = move(x, layout, committed=False)
        buffers.append(x._buffer)
    runtime = buffers[0].runtime
    made = runtime.run(recipe.program, buffers, users_line(), guards=not recipe.results)
    results = recipe.results
    if None in results:
        metas = runtime.describe(made, home.devices[0])
        results = tuple((replicated(home.devices, len(m.shape), home.platform), m) for m in metas)
    arrays = [
        Array(buffer, layout, meta.shape, meta.dtype, committed, mesh)
        for buffer, (layout, meta) in zip(made, results, strict=True)
    ]
    if recipe.container is not None:
        return recipe.container(arrays) if arrays else None
    return arrays[0]
