"""What lives on a device, for an error that says that nothing more fits."""

from __future__ import annotations

import math
from collections.abc import Iterable

from tinyshard.runtime.controller.lineage import Buffer
from tinyshard.runtime.controller.remote_errors import Failure

_MOST_SHOWN = 5
_SIGNS = ("MemoryError", "can't allocate memory", "not enough memory", "CUDA out of memory")


def is_out_of_memory(failure: Failure) -> bool:
    """Whether an op failed for want of memory."""
    return any(sign in failure.error for sign in _SIGNS)


def block_nbytes(buffer: Buffer) -> int:
    """Size of one device's block; 0 where only running tells."""
    return math.prod(buffer.block.shape) * buffer.block.dtype.itemsize if buffer.block is not None else 0


def alive_text(buffers: Iterable[Buffer]) -> str:
    """What the values of one device take, the largest first, each with the line that made it.

    Returns:
        "12.0 MB in 3 values\n8.0 MB f32[1024, 2048] made by In[2], line 3: y = x + 1 ..."
    """
    held = sorted(buffers, key=block_nbytes, reverse=True)
    lines = [f"{megabytes(sum(map(block_nbytes, held)))} in {len(held)} values that somebody holds"]
    lines += [f"{megabytes(block_nbytes(b))} {b.block} made by {b.run.where}" for b in held[:_MOST_SHOWN]]
    if len(held) > _MOST_SHOWN:
        lines.append(f"and {len(held) - _MOST_SHOWN} more")
    return "\n".join(lines)


def megabytes(nbytes: int) -> str:
    """A size for people.

    Example:
        >>> megabytes(1 << 22)
        '4.2 MB'
    """
    return f"{nbytes / 1e6:.1f} MB"
