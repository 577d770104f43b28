"""What a program of torch.distributed sends, counted while it runs.

torch's own `CommDebugMode` counts the collectives; the bytes are counted here, by the model of a ring that tinyshard
counts by too, so that both can be compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

__all__ = ["KINDS", "LIBRARIES", "Traffic", "kinds_of"]

LIBRARIES = ("c10d", "_c10d_functional", "c10d_functional")  # of torch's collectives

# What torch calls a collective in its two libraries, and in which of its tensors the parts of all are together.
KINDS = {
    "allreduce_": "all_reduce",
    "all_reduce": "all_reduce",
    "_allgather_base_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
}
_ROUNDS = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}


class Traffic(TorchDispatchMode):
    """Counts collectives and the bytes that this process sends in them, in a `with` block.

    In a ring of n processes each passes on n - 1 of the n parts, twice in an all_reduce.

    Attributes:
        sent: for each kind how many collectives there were, and bytes.

    Example, in a program that torchrun has started:

        with Traffic() as traffic:
            loss = model(x).sum()
            loss.backward()
        print(traffic.sent)   # {"all_reduce": (1, 441600)}
    """

    def __init__(self) -> None:
        super().__init__()
        self.sent: dict[str, tuple[int, int]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        library, name = func.name().split("::")
        kind = KINDS.get(name.split(".")[0])
        if kind and library in LIBRARIES:
            n = _group_of(args).size()
            whole = max(x.nbytes for x in tree_leaves((args, out)) if isinstance(x, torch.Tensor))
            count, nbytes = self.sent.get(kind, (0, 0))
            self.sent[kind] = count + 1, nbytes + _ROUNDS[kind] * whole * (n - 1) // n
        return out


def kinds_of(counts: Mapping[Any, int]) -> dict[str, int]:
    """What CommDebugMode counted, by the names that tinyshard has for the collectives.

    Args:
        counts: its `get_comm_counts()`.

    Example:
        >>> kinds_of({torch.ops.c10d.allreduce_: 3})
        {'all_reduce': 3}
    """
    found: dict[str, int] = {}
    for op, count in counts.items():
        name = str(op).rpartition(".")[2]
        kind = KINDS.get(name, name)
        found[kind] = found.get(kind, 0) + count
    return found


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    """c10d's operators get the group itself, those of DTensor its name, which is their last argument."""
    for x in tree_leaves(args):
        if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x):
            return dist.ProcessGroup.unbox(x)
    return distributed_c10d._resolve_process_group(args[-1])
