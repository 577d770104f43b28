"""The collectives between worker processes, over torch.distributed's gloo.

Each method does between processes what the function of its name in `tinyshard.core.collectives` does on stacked
shards. Blocks are sent as bytes, and each member reduces them in the same order: so every dtype can be sent, and a sum
is the same to the last bit on all members.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tinyshard.core.collectives import reduced
from tinyshard.core.types import ShapedType, as_bytes
from tinyshard.runtime.collectives.base import Communicator, Group, Moment, PeerLostError, Perform, Request

# one device may compute for hours while other devices wait for it; the watchdog finds the waits that will not end
TIMEOUT = timedelta(days=7)
# how often a waiting device looks whether the wait was aborted
_LOOK_EVERY_S = 0.05
# one round of messages instead of two: on 8 devices a sum of 4 KB takes 0.6 of the time
_GATHERED_NBYTES = 1 << 15

# (bytes, the other device, tag)
Message = tuple[Tensor, int, int]
T = TypeVar("T")


class GlooCommunicator(Communicator):
    """Collectives over gloo: a process group for each set of devices, made at its first use.

    Args:
        store: where the devices find each other.
        device: id of this device.
        count: number of devices.
        host: the address of this machine on which gloo listens.
        place: where blocks are, if not on the CPU.
    """

    def __init__(
        self,
        store: dist.Store,
        device: int,
        count: int,
        host: str = "127.0.0.1",
        place: torch.device | None = None,
    ) -> None:
        super().__init__(device)
        self._place = place
        self._store = store
        self._host = host
        self._groups: dict[tuple[int, ...], Any] = {}
        self._is_aborted = False
        self._thread = ThreadPoolExecutor(1, "gloo")
        self._world = self.group(tuple(range(count)))  # connects now, so that "ready" means that all can communicate

    def group(self, members: tuple[int, ...]) -> Any:
        """The process group of these device ids, ranks in this order. All members make groups in the same order."""
        if members not in self._groups:
            store = dist.PrefixStore("-".join(map(str, members)), self._store)
            self._groups[members] = self._connect(store, members.index(self._device), len(members))
        return self._groups[members]

    def _connect(self, store: dist.Store, rank: int, count: int) -> Any:
        """A new gloo group. Raises PeerLostError if a device is lost."""
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=self._host)]
        options._timeout = TIMEOUT
        return self._call(lambda: gloo(store, rank, count, options))

    def _call(self, communicate: Callable[[], T]) -> T:
        """Call gloo in a separate thread, which an abort abandons: gloo may block in it for ever.

        A lost peer does not end a wait for a connection, or for a message that was partly sent or received.

        Raises:
            PeerLostError: a device is lost. gloo reports a closed connection only in its message.
        """
        running = self._thread.submit(communicate)
        while True:
            try:
                return running.result(_LOOK_EVERY_S)
            except TimeoutError:
                if self._is_aborted:
                    raise PeerLostError("gloo was aborted: a device is gone") from None
            except RuntimeError as error:
                raise PeerLostError(str(error)) from error

    def abort(self) -> None:
        """Abort all collectives, from another thread."""
        self._is_aborted = True

    def _ready_exchange(self, name: str, group: Group, metas: Sequence[ShapedType], params: dict[str, Any]) -> Perform:
        perform: Callable[..., list[Tensor]] = getattr(self, name)
        return lambda xs, moment: perform(group, xs, **params)

    def _ready_transfer(self, request: Request) -> Perform:
        devices, moves = request.devices, request.params["moves"]
        here = devices.index(self._device)
        gets = any(target == here for _, target, _, _ in moves)
        result: Any = request.result

        def perform(xs: Sequence[Tensor | None], moment: Moment) -> Sequence[Tensor | None]:
            (x,) = xs
            out: Any = torch.empty(result.shape, dtype=result.dtype, device=self._place) if gets else None
            sends: list[Message] = []
            receives: list[Message] = []
            parts = []
            for tag, (source, target, cut, place) in enumerate(moves):
                block = x[cut] if x is not None and source == here else None
                if source == target == here:
                    out[place] = block
                elif block is not None:
                    sends.append((as_bytes(block), devices[target], tag))
                elif target == here:
                    parts.append((place, torch.empty_like(out[place], memory_format=torch.contiguous_format)))
                    receives.append((as_bytes(parts[-1][1]), devices[source], tag))
            self.send_and_receive(sends, receives)
            for place, part in parts:
                out[place] = part
            return [out]

        return perform

    def send_and_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send blocks to devices and receive others, all at the same time."""

        def communicate() -> None:
            works = [self._world.send([block], device, tag) for block, device, tag in sends]
            works += [self._world.recv([block], device, tag) for block, device, tag in receives]
            for work in works:
                work.wait()

        self._call(communicate)

    # ---- collectives: all operands have one dtype, and are sent as one message ------------------------------------

    def all_reduce(self, group: Group, xs: Sequence[Tensor], *, op: str) -> list[Tensor]:
        """Each member reduces its block of large operands; all gather these blocks, and small operands whole."""
        are_large = [x.nbytes > _GATHERED_NBYTES for x in xs]
        rows = [_in_rows(x, group.count) for x, is_large in zip(xs, are_large, strict=True) if is_large]
        blocks = iter(self._blocks_of(group, rows) if rows else ())
        parts = [reduced(next(blocks), op) if is_large else x for x, is_large in zip(xs, are_large, strict=True)]
        return [
            got.flatten()[: x.numel()].view(x.shape) if is_large else reduced(got, op)
            for x, got, is_large in zip(xs, self._all_at_once(group, parts), are_large, strict=True)
        ]

    def all_gather(self, group: Group, xs: Sequence[Tensor], *, dim: int) -> list[Tensor]:
        """Each member gets all members' operands."""
        return [torch.cat(x.unbind(), dim) for x in self._all_at_once(group, xs)]

    def reduce_scatter(self, group: Group, xs: Sequence[Tensor], *, dim: int, op: str) -> list[Tensor]:
        """Each member gets its block of all members' operands and reduces them."""
        stacks = [torch.stack(x.chunk(group.count, dim)) for x in xs]
        return [reduced(x, op) for x in self._blocks_of(group, stacks)]

    def all_to_all(self, group: Group, xs: Sequence[Tensor], *, split: int, join: int) -> list[Tensor]:
        """Each member gets its block of all members' operands."""
        stacks = [torch.stack(x.chunk(group.count, split)) for x in xs]
        return [torch.cat(x.unbind(), join) for x in self._blocks_of(group, stacks)]

    def collective_permute(self, group: Group, xs: Sequence[Tensor], *, pairs: Any) -> list[Tensor]:
        """A target gets the operands of its source; a member that is not a target gets zeros."""
        x, members, place = _joined([x.flatten() for x in xs]), group.members, group.place
        source = next((s for s, t in pairs if t == place), None)
        out = x if source == place else torch.zeros_like(x) if source is None else torch.empty_like(x)
        sends = [(as_bytes(x), members[t], 0) for s, t in pairs if s == place != t]
        receives = [(as_bytes(out), members[source], 0)] if source not in (None, place) else []
        self.send_and_receive(sends, receives)
        parts = out.split([x.numel() for x in xs])
        return [part.view(x.shape) for part, x in zip(parts, xs, strict=True)]

    def _all_at_once(self, group: Group, xs: Sequence[Tensor]) -> list[Tensor]:
        """Of each operand those of all members, stacked in the order of the members."""
        x = _joined([x.flatten() for x in xs])
        got = x.new_empty((group.count, *x.shape))
        if x.numel():
            joined = self.group(group.members)
            self._call(lambda: joined._allgather_base(as_bytes(got), as_bytes(x)).wait())
        return _cut(got, [x.shape for x in xs])

    def _blocks_of(self, group: Group, stacks: Sequence[Tensor]) -> list[Tensor]:
        """Send block i of each stack to member i. Returns, for each, the received blocks in the members' order."""
        blocks = _joined([stack.flatten(1) for stack in stacks])
        got = blocks.new_empty(blocks.shape)
        if blocks.numel():
            joined = self.group(group.members)
            self._call(lambda: joined.alltoall_base(as_bytes(got), as_bytes(blocks), [], []).wait())
        return _cut(got, [stack.shape[1:] for stack in stacks])


def _joined(xs: Sequence[Tensor]) -> Tensor:
    """Contiguous tensors in one, along the last dim."""
    return torch.cat(list(xs), -1) if len(xs) > 1 else xs[0].contiguous()


def _in_rows(x: Tensor, count: int) -> Tensor:
    """The elements in so many equal rows, the last one filled up with zeros."""
    flat, missing = x.flatten(), -x.numel() % count
    return (torch.cat([flat, flat.new_zeros(missing)]) if missing else flat).view(count, -1)


def _cut(rows: Tensor, shapes: Sequence[torch.Size]) -> list[Tensor]:
    """Of each row its parts of these shapes: a stack of them for each, contiguous, as one part alone is received."""
    parts = rows.split([math.prod(shape) for shape in shapes], 1)
    return [part.contiguous().view(len(rows), *shape) for part, shape in zip(parts, shapes, strict=True)]
