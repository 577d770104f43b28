"""An executable: a program with its input and output layouts.

An op on Arrays and a jitted function are compiled and called in the same way:

    assignment_of   which devices it runs on: those of the committed operands
    open_program    a builder with an input for each operand
    close_program   the program, the layouts of its inputs and of its results
    call            operands that are not in place yet are put there; the program is sent once; one message calls it
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._pytree import tree_unflatten

from tinyshard.arrays.array import Array, shaped_type_of
from tinyshard.arrays.transfer import move, put_tensor
from tinyshard.compile.combine import combined
from tinyshard.compile.donation import donated_buffers
from tinyshard.compile.explain import explain_gathers
from tinyshard.compile.join_products import with_joined_products
from tinyshard.compile.simplify import simplified
from tinyshard.compile.tracing import Traced
from tinyshard.core.errors import ShardingError
from tinyshard.core.layout import Layout, coarsest, refine, replicated
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.reshard import ShardedVar, noted
from tinyshard.runtime import lifecycle
from tinyshard.sharding import NamedSharding, Sharding
from tinyshard.sharding.contexts import device_by_default
from tinyshard.sharding.mesh import Mesh


@dataclass(frozen=True, slots=True)
class DeviceAssignment:
    """Where a program runs.

    Attributes:
        devices: ids in mesh order.
        platform: of the devices.
        mesh: the mesh that names the axes of the results' shardings.
        committed: whether an operand bound the program to these devices.
    """

    devices: tuple[int, ...]
    platform: str
    mesh: Mesh | None
    committed: bool


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An operand: its shape and dtype, and its layout if it is on the program's devices already."""

    meta: ShapedType
    layout: Layout | None


@dataclass(frozen=True, slots=True)
class Executable:
    """A program, and the layouts of its inputs and results.

    Attributes:
        program: what the devices run.
        inputs: the layout in which each operand must be when the program is called.
        results: layout, shape and dtype of each result; None if its shape depends on values.
        gaps: positions at which one op returns None between its results.
        shardings: the sharding that the user named for each result, None for a result without one; empty if no result
            has one.
    """

    program: Program
    inputs: tuple[Layout, ...]
    results: tuple[tuple[Layout, ShapedType] | None, ...]
    gaps: tuple[int, ...] = ()
    shardings: tuple[Sharding | None, ...] = ()


@dataclass(frozen=True, slots=True)
class UnalignedVar:
    """A value of a program in a layout that the program's axes cannot express, as (3, 2) where they are (2, 3).

    Attributes:
        number: its number in the program.
        shape, dtype: of the whole tensor.
        layout: its layout, over the program's devices.
    """

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: Layout


def assignment_of(operands: Sequence[Any], names: Callable[[], Sequence[str]] | None = None) -> DeviceAssignment:
    """The devices of the committed operands; without one, those of the first Array, or the default device.

    Args:
        operands: tensors, or ShapeDtypeStructs.
        names: what a learner would call each operand, for errors.

    Raises:
        ShardingError: committed operands on different devices, or in different orders.
        RuntimeStateError: none is committed, and the devices of one are gone.
    """
    first: Any = None
    mesh: Mesh | None = None
    position = 0
    for i, x in enumerate(operands):
        if getattr(x, "committed", False):
            if first is None:
                first, position = x, i
            elif x._layout.devices != first._layout.devices:
                raise _devices_error(first, x, None if names is None else (names()[position], names()[i]))
            mesh = mesh or x._mesh
    if first is not None:
        return DeviceAssignment(first._layout.devices, first._layout.platform, mesh, True)
    check_devices_live(operands)
    for x in operands:
        if isinstance(x, Array):
            return DeviceAssignment(x._layout.devices, x._layout.platform, x._mesh, False)
    default = device_by_default()
    return DeviceAssignment((default.id,), default.platform, None, False)


def check_devices_live(operands: Sequence[Any]) -> None:
    """Raise RuntimeStateError if the devices of an Array are gone. Does not start devices."""
    running = lifecycle.running()
    for x in operands:
        if isinstance(x, Array) and x._buffer.runtime is not running:
            x._buffer.runtime.check_open()


def assignment_at(sharding: Sharding) -> DeviceAssignment:
    """The devices of a sharding, to which a program is bound."""
    mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    devices = sharding.devices
    return DeviceAssignment(tuple(d.id for d in devices), devices[0].platform, mesh, True)


def _devices_error(ours: Any, theirs: Any, names: tuple[str, str] | None) -> ShardingError:
    def description(x: Any) -> str:
        return f"{list(x._layout.devices)} on platform {x._layout.platform.upper()}"

    first, second = "array", "another array's"
    if names is not None:
        first, second = (
            f"{names[0]} of {shaped_type_of(ours)}, {first}",
            f"{names[1]} of {shaped_type_of(theirs)}, {second}",
        )
    return ShardingError(
        "Devices of all `Array` inputs and outputs should be the same.",
        got=f"{first} device ids {description(ours)}\nand {second} device ids {description(theirs)}",
        rule="committed arrays must have the same devices in the same order",
        try_="ts.device_put one of them to the other's sharding",
    )


def spec_of(x: Any, assignment: DeviceAssignment) -> InputSpec:
    """The spec of an operand: with its layout if it is on the program's devices, else still to be placed."""
    layout = getattr(x, "_layout", None)
    return InputSpec(shaped_type_of(x), layout if layout is not None and layout.devices == assignment.devices else None)


def open_program(
    assignment: DeviceAssignment,
    specs: Sequence[InputSpec],
    targets: Sequence[Layout] = (),
    required: Sequence[Layout] = (),
) -> tuple[Builder, list[ShardedVar], list[Layout | None], list[Layout | None]]:
    """Start a program with an input for each spec.

    Args:
        assignment: where it will run.
        specs: the operands.
        targets: layouts that values of the program will be resharded to.
        required: layouts that determine the program's axes before those of the operands do.

    Returns:
        The builder; a ShardedVar for each spec; `targets` and `required` on the program's axes, with None for
        a layout that these cannot express. An operand with such a layout is replicated.
    """
    known = [coarsest(s.layout) for s in specs if s.layout is not None]
    axes, written = _on_common_axes(assignment, [*map(coarsest, required), *known, *map(coarsest, targets)])
    builder = Builder(assignment.devices, axes)
    written, must = written[len(required) :], written[: len(required)]
    layouts = iter(written[: len(known)])
    placed = []
    for spec in specs:
        layout = None if spec.layout is None else next(layouts)
        dims = ((),) * len(spec.meta.shape) if layout is None else layout.dims
        value = ShardedVar(0, spec.meta.shape, spec.meta.dtype, dims)
        value = noted(builder, replace(value, number=builder.input(value.local(axes))))
        if spec.layout is None:
            builder.free.add(value.number)
        placed.append(value)
    return builder, placed, written[len(known) :], must


def _on_common_axes(
    assignment: DeviceAssignment, layouts: Sequence[Layout]
) -> tuple[tuple[int, ...], list[Layout | None]]:
    """Axes for a program, and all layouts on them; None for one that an earlier layout excludes: (2, 3) does (3, 2)."""
    fitting: list[Layout] = [Layout(assignment.devices, (len(assignment.devices),), (), assignment.platform)]
    for layout in dict.fromkeys(layouts):  # many inputs have one layout
        fitting += [layout] if refine([*fitting, layout]) is not None else []
    common = refine(fitting)
    assert common is not None
    written = dict(zip(fitting[1:], common[1:], strict=True))
    return common[0].axes, [written.get(layout) for layout in layouts]


def close_program(
    builder: Builder,
    assignment: DeviceAssignment,
    inputs: Sequence[ShardedVar],
    results: Sequence[ShardedVar | UnalignedVar | Value],
) -> Executable:
    """End a program.

    Args:
        inputs: as `open_program` gave them.
        results: each result, as a bare number if its shape depends on values.
    """

    def layout(dims: Any) -> Layout:
        return coarsest(Layout(assignment.devices, builder.axes, dims, assignment.platform))

    def result_of(x: ShardedVar | UnalignedVar | Value) -> tuple[Layout, ShapedType] | None:
        if isinstance(x, Value):
            return None
        return coarsest(x.layout) if isinstance(x, UnalignedVar) else layout(x.dims), ShapedType(x.shape, x.dtype)

    program = simplified(builder.finish([x.number for x in results]))
    return Executable(
        combined(with_joined_products(program)) if program.repeats_ops else program,
        tuple(layout(builder.wanted.get(x.number, x.dims)) for x in inputs),
        tuple(map(result_of, results)),
    )


def call(
    executable: Executable,
    operands: Sequence[torch.Tensor],
    assignment: DeviceAssignment,
    donated: Sequence[int] = (),
) -> list[Array]:
    """Call the program on its devices; returns at once unless the shape of a result depends on values.

    Args:
        donated: positions of operands whose memory may be reused.

    Raises:
        RuntimeStateError: an operand's devices are gone, or it was donated before.
        DonationError: a donated operand is among the operands twice.

    Communication: operands that are not in place are moved; then that of the program.
    """
    check_devices_live(operands)
    buffers = []
    for x, layout in zip(operands, executable.inputs, strict=True):
        if not isinstance(x, Array):
            x = put_tensor(x.detach(), layout, committed=False)
        elif x._layout is not layout and x._layout != layout:
            x = move(x, layout, committed=False)
        buffers.append(x._buffer)
    runtime = buffers[0].runtime if buffers else lifecycle.current()
    freed = donated_buffers(operands, buffers, donated) if donated else ()
    outputs = runtime.run(executable.program, buffers, guards=not executable.results, donated=freed)
    if executable.program.checks_nans and outputs:
        runtime.wait(outputs[0], assignment.devices)
    results: Any = executable.results
    if None in results:
        metas: Any = runtime.describe(outputs, assignment.devices[0])
        results = [(replicated(assignment.devices, len(m.shape), assignment.platform), m) for m in metas]
    if executable.program.reasons:
        explain_gathers(executable.program, assignment.mesh)
    shardings = executable.shardings or (None,) * len(results)
    return [
        Array(buffer, layout, meta, assignment.committed, assignment.mesh, sharding)
        for buffer, (layout, meta), sharding in zip(outputs, results, shardings, strict=True)
    ]


def assembled(traced: Traced, outputs: Sequence[torch.Tensor]) -> Any:
    """Results as the traced function returns them."""
    leaves = [outputs[x] if is_tensor else x for is_tensor, x in traced.outputs]
    tree = traced.out_tree
    return leaves[0] if tree.is_leaf() else tree_unflatten(leaves, tree)
