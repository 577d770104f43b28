"""Everyone sends slices of different lengths to everyone."""

from __future__ import annotations

from typing import Any

import torch

from tinyshard.arrays.placement import as_tensor
from tinyshard.core.collectives import selected
from tinyshard.core.errors import DtypeError, MappingError
from tinyshard.lax.exchange import all_to_all
from tinyshard.lax.gather import all_gather
from tinyshard.lax.operands import axes_of, groups_of
from tinyshard.primitives.collective import axis_total


def ragged_all_to_all(
    operand: torch.Tensor,
    output: torch.Tensor,
    input_offsets: Any,
    send_sizes: Any,
    output_offsets: Any,
    recv_sizes: Any,
    *,
    axis_name: Any,
    axis_index_groups: Any = None,
) -> torch.Tensor:
    """Each sends a slice of rows to each, where the number of rows is a value of the program.

    Slice i of the caller's goes to position `i // (k / n)`, n being the size of the axis: with k = n, slice i to
    position i. It is rows `input_offsets[i] : input_offsets[i] + send_sizes[i]` of the operand, and becomes rows
    `output_offsets[i] : output_offsets[i] + send_sizes[i]` of the receiver's result.

    Args:
        operand: the rows to send, [rows, ...].
        output: what the result is where nothing is received, [rows of the result, ...], of the operand's dtype.
        input_offsets: where each slice starts in the operand, integers[k]; k is a multiple of n.
        send_sizes: how many rows it has, integers[k].
        output_offsets: where it starts in the receiver's result, integers[k].
        recv_sizes: how many rows each slice has that the caller receives, integers[k]: the senders' `send_sizes`, which
            decide.
        axis_name: a bound name, or a tuple of names, most significant first.
        axis_index_groups: lists of positions, of equal size, that work each for itself.

    Returns:
        [rows of the result, ...]: `output` with the received rows in it. Rows beyond the operand or the result are not
        sent. The gradient of the operand is the exchange back; that of `output` is zero in the received rows.

    Raises:
        AxisNameError: the name is not bound.
        MappingError: shapes or groups that do not fit.
        DtypeError: offsets or sizes that are not integers, or two dtypes.

    Communication: over devices an all_to_all of the offsets and sizes, and an all_gather of the whole operand, of which
    each keeps its rows: as many bytes as slices padded to all rows of the operand would send. Backward a
    reduce_scatter. Under vmap none.

    In JAX: only the rows in the slices are sent, and not on CPUs. Where two positions receive the same row of the
    operand, its gradient there is that of one of them; here it is their sum.

    Example:
        >>> import tinyshard as ts
        >>> send = lambda x, sizes: ragged_all_to_all(  # position 0 sends 1 row to itself and 2 to position 1
        ...     x, torch.zeros(4), [0, 1], sizes, [0, 0], [0, 0], axis_name="i")
        >>> x, sizes = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), torch.tensor([[1, 2], [0, 0]])
        >>> ts.vmap(send, axis_name="i")(x, sizes)
        tensor([[1., 0., 0., 0.],
                [2., 3., 0., 0.]])
    """
    axes = axes_of(axis_name)
    size = axis_total(axes, groups_of(axes, axis_index_groups))
    operand, output, *integers = (
        x if isinstance(x, torch.Tensor) else as_tensor(x)
        for x in (operand, output, input_offsets, send_sizes, output_offsets, recv_sizes)
    )
    named = dict(zip(("input_offsets", "send_sizes", "output_offsets", "recv_sizes"), integers, strict=True))
    _check(operand, output, named, size)
    numbers = torch.stack([named[name].long() for name in ("input_offsets", "send_sizes", "output_offsets")])
    received = all_to_all(numbers, axis_name, 1, 1, axis_index_groups=axis_index_groups, tiled=True)
    everyone = all_gather(operand, axis_name, tiled=True, axis_index_groups=axis_index_groups)
    start, length, place = (row.unsqueeze(1) for row in received.unbind())
    # for each slice received [k, 1] and each row of the result [rows]: its row of the slice, of the operand, of all
    row = torch.arange(output.shape[0]) - place
    taken = start + row
    is_sent = (row >= 0) & (row < length) & (taken >= 0) & (taken < operand.shape[0])
    sender = torch.arange(received.shape[1]).unsqueeze(1) // (received.shape[1] // size)
    index = torch.where(is_sent, sender * operand.shape[0] + taken, -1).amax(0)
    if not everyone.shape[0]:
        return output
    rows = selected(everyone, 0, index.clamp(min=0))
    return torch.where((index >= 0).reshape(-1, *[1] * (output.dim() - 1)), rows, output)


def _check(operand: torch.Tensor, output: torch.Tensor, named: dict[str, torch.Tensor], size: int) -> None:
    for name, x in named.items():
        if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
            raise DtypeError(f"ragged_all_to_all's {name} are integers", got=str(x.dtype))
    shapes = {name: tuple(x.shape) for name, x in named.items()}
    (first, *_) = shapes.values()
    if len(set(shapes.values())) > 1 or len(first) != 1 or not size or not first[0] or first[0] % size:
        raise MappingError(
            "ragged_all_to_all's offsets and sizes do not fit",
            got=", ".join(f"{name} {shape}" for name, shape in shapes.items()) + f", an axis of size {size}",
            rule="all are of one length, a multiple of the size of the axis",
        )
    if operand.dtype != output.dtype:
        raise DtypeError(
            "ragged_all_to_all writes rows into rows of their dtype", got=f"{operand.dtype}, {output.dtype}"
        )
    if not operand.dim() or not output.dim() or operand.shape[1:] != output.shape[1:]:
        raise MappingError(
            "ragged_all_to_all writes rows into rows of their shape",
            got=f"an operand of shape {tuple(operand.shape)}, an output of shape {tuple(output.shape)}",
            rule="all dims but the first are equal",
        )
