"""One process of a program, run alone in this one: which collectives it calls, without the other processes.

Its process group is torch's "fake" one: each collective returns at once, with whatever is in its result. So the numbers
are wrong, except the process's own; which collectives are called, and on how many bytes, does not depend on them.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course.bridge import launch, loop
from course.bridge.setting import examples
from course.bridge.traffic import KINDS, LIBRARIES, Traffic
from course.transformer import cross_entropy

__all__ = ["Alone", "Saved", "run", "save"]


@dataclass(frozen=True)
class Alone:
    """What process 0 did.

    Attributes:
        model: what it passes to `train`.
        place, parts: which of how many parts of the examples it has.
        sent: for each kind of collective of one forward and backward pass how many there were, and the bytes sent.
    """

    model: torch.nn.Module
    place: int
    parts: int
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __str__(self) -> str:
        """A line for each kind of collective."""
        return "\n".join(f"{kind}: {count} times, {nbytes:,} bytes" for kind, (count, nbytes) in self.sent.items())


def run(script: str, processes: int = 2) -> Alone:
    """Run process 0 of a program up to its `train`, and one forward and backward pass there.

    Args:
        script: the text; its training is that of `course.bridge.loop`.
        processes: how many there would be.

    Returns:
        Its model and what it sent. DistributedDataParallel cannot train alone: `sent` is empty then.

    Raises:
        ValueError: the script does not call `train`.

    Communication: none.
    """
    kept: list[Alone] = []

    def train(model: torch.nn.Module, place: int = 0, parts: int = 1, *args: Any, **kwargs: Any) -> None:
        with Traffic() as traffic:
            if not isinstance(model, torch.nn.parallel.DistributedDataParallel):
                tokens, targets = (each.chunk(parts)[place] for each in examples(0))
                cross_entropy(model(tokens), targets).backward()
        kept.append(Alone(model, place, parts, traffic.sent))

    _run(script, 0, processes, train)
    if not kept:
        raise ValueError("the script does not call train(model, rank, processes)")
    return kept[0]


@dataclass(frozen=True)
class Saved:
    """What one process did while a checkpoint was made.

    Attributes:
        rank: its number.
        returned: what it returned.
        called: the collectives in order, each with the bytes of its smallest tensor: one process's part.
        held_nbytes: the most that it held at a time, beside its own part of the model.
    """

    rank: int
    returned: Any
    called: list[tuple[str, int]]
    held_nbytes: int

    def __str__(self) -> str:
        """One line."""
        counts = Counter(kind for kind, _ in self.called)
        called = ", ".join(f"{count} {kind}s" for kind, count in counts.items()) or "no collectives"
        returned = f"{len(self.returned)} tensors" if isinstance(self.returned, Mapping) else repr(self.returned)
        held = f"at most {self.held_nbytes:,} bytes held"
        return f"process {self.rank}: {called}, {returned} returned, {held}"


def save(checkpoint: Callable[[torch.nn.Module, int], Any], rank: int, processes: int = 2) -> Saved:
    """Run one process of the program with FSDP2, which makes a checkpoint where it would train.

    Args:
        checkpoint: called with the sharded model and the rank.
        rank: of the process.
        processes: how many there would be.

    Communication: none.
    """
    kept: list[Saved] = []

    def train(model: torch.nn.Module, *args: Any, **kwargs: Any) -> None:
        own: list[Any] = list(model.parameters())
        with _Held([p.to_local() for p in own]) as held, _Called() as called:
            returned = checkpoint(model, rank)
        kept.append(Saved(rank, returned, called.in_order, held.most_nbytes))

    _run(launch.code("fsdp"), rank, processes, train)
    return kept[0]


class _Held(TorchDispatchMode):
    """The most bytes that results of operators take at a time, in a `with` block; `own` does not count."""

    def __init__(self, own: list[torch.Tensor]) -> None:
        super().__init__()
        self.most_nbytes = 0
        self._own = {x.untyped_storage()._cdata for x in own}
        self._held: dict[int, StorageWeakRef] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **kwargs or {})
        for x in tree_leaves(out):
            if type(x) is torch.Tensor:  # the others, as a DTensor, have no memory of their own
                storage = x.untyped_storage()
                if storage._cdata not in self._own:
                    self._held[storage._cdata] = StorageWeakRef(storage)
        self._held = {key: ref for key, ref in self._held.items() if not ref.expired()}
        # FSDP2 makes a storage empty to drop what was gathered: it is asked for its size each time
        storages = [torch.UntypedStorage._new_with_weak_ptr(ref.cdata) for ref in self._held.values()]
        self.most_nbytes = max(self.most_nbytes, sum(each.nbytes() for each in storages))
        return out


# What torch's libraries of collectives have beside them: for one process, and between two.
_NO_COLLECTIVES = ("wait_tensor", "_wrap_tensor_autograd", "send", "recv_", "recv_any_source_")


class _Called(TorchDispatchMode):
    """The collectives in a `with` block, in order, each with the bytes of its smallest tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.in_order: list[tuple[str, int]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        library, _, name = func.name().partition("::")
        name = name.partition(".")[0]
        if library in LIBRARIES and name not in _NO_COLLECTIVES:
            nbytes = [x.nbytes for x in tree_leaves(args) if isinstance(x, torch.Tensor)]
            self.in_order.append((KINDS.get(name, name.strip("_")), min(nbytes, default=0)))
        return func(*args, **kwargs or {})


def _run(script: str, rank: int, processes: int, train: Callable[..., None]) -> None:
    """Run a script with the fake process group and this `train`."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    starts = dist.init_process_group

    def start(*args: Any, **kwargs: Any) -> None:
        starts("fake", store=FakeStore(), rank=rank, world_size=processes)

    try:
        with (
            warnings.catch_warnings(),
            mock.patch.object(dist, "init_process_group", start),
            mock.patch.object(loop, "train", train),
        ):
            warnings.simplefilter("ignore")
            exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
