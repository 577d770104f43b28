"""Arrays from parts that are made apart: by a function, on single devices, or in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tinyshard.core.layout import Layout
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime.controller.lineage import Buffer, users_line


def joined(
    runtime: Any,
    wanted: Sequence[tuple[Layout, Sequence[Buffer]]],
    types: Sequence[tuple[tuple[int, ...], torch.dtype]],
) -> list[Buffer]:
    """Make one value of values that single devices hold. Nothing is copied.

    Args:
        runtime: holds them.
        wanted: for each result its layout, and for each device of that the value that has its block.
        types: the global shape and dtype of each result.

    Returns:
        For each result its value.
    """
    made: dict[int, Buffer] = {}
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, (layout, _) in enumerate(wanted):
        groups.setdefault(layout.devices, []).append(i)
    for devices, members in groups.items():
        builder = Builder(devices, (len(devices),))
        metas = [ShapedType(wanted[i][0].shard_shape(types[i][0]), types[i][1]) for i in members]
        inputs = [[Value(builder.input(meta)) for _ in devices] for meta in metas]
        outputs = [builder.emit("held", (values,), {}, [meta])[0] for values, meta in zip(inputs, metas, strict=True)]
        buffers = [buffer for i in members for buffer in wanted[i][1]]
        made.update(zip(members, runtime.run(builder.finish(outputs), buffers, users_line()), strict=True))
    return [made[i] for i in range(len(wanted))]
