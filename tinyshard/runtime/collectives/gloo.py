"""The collectives between worker processes, over torch.distributed's gloo.

Each function does between processes what its namesake in `tinyshard.collectives` says over a list of shards. gloo takes
few dtypes: blocks travel as bytes, and reductions are cast to a type that gloo can add.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyshard.collectives import COLLECTIVES, group_positions, reduce_stack
from tinyshard.program import Meta
from tinyshard.runtime.collectives.base import MOST_HANDED, Perform, Request
from tinyshard.runtime.launch.rendezvous import Rendezvous
from tinyshard.runtime.wire import as_bytes

# computing on one device may take hours while the others wait for it; the controller tells that from a fault
TIMEOUT = timedelta(days=7)

_GLOO_OPS = {
    "sum": dist.ReduceOp.SUM,
    "avg": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
_NARROW_INTS = {torch.int16: torch.int32, torch.uint16: torch.int32, torch.uint32: torch.int64}
_BITS = {
    torch.float64: torch.int64, torch.float32: torch.int32, torch.float16: torch.int16, torch.bfloat16: torch.int16,
}  # fmt: skip
_REDUCED_AS_THEY_ARE = {
    torch.float64, torch.float32, torch.float16, torch.bfloat16,
    torch.int64, torch.int32, torch.int8, torch.uint8,
}  # fmt: skip


class _Counting:
    """A gloo group that notes what it is handed: (gloo's name, group size, bytes of the operand)."""

    def __init__(self, group: Any, size: int, handed: deque[tuple[str, int, int]]) -> None:
        self._group = group
        self._size = size
        self._handed = handed

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method: Callable[..., Any] = getattr(self._group, name)
        operand = _OPERANDS.get(name)
        if operand is None:
            return method

        def call(*args: Any) -> Any:
            x = args[operand]
            self._handed.append((name, self._size, (x[0] if isinstance(x, list) else x).nbytes))
            return method(*args)

        return call


# which argument of gloo's methods is the operand
_OPERANDS = {"allreduce": 0, "_allgather_base": 1, "alltoall_base": 1, "send": 0, "recv": 0}


class GlooCommunicator:
    """This device's way to the others: process groups over any set of them, made when first used. A `Communicator`.

    Args:
        store: path of a file that all workers share, for gloo's rendezvous; or how they meet over a network.
        device: id of this device.
        count: number of devices.
        place: where blocks are, if not on the CPU.
    """

    def __init__(self, store: str | Rendezvous, device: int, count: int, place: torch.device | None = None) -> None:
        self._place = place
        self._rendezvous = store if isinstance(store, Rendezvous) else None
        self._store = dist.FileStore(store, count) if isinstance(store, str) else store.store
        self._device = device
        self._groups: dict[tuple[int, ...], Any] = {}
        self._is_aborted = False
        self._foreign = _connections()  # what is connected before gloo connects is not gloo's
        self.handed: deque[tuple[str, int, int]] = deque(maxlen=MOST_HANDED)  # what was handed to gloo, for tests
        self.group(tuple(range(count)))  # connects now, so that "ready" means that all can talk

    def group(self, members: tuple[int, ...]) -> Any:
        """The gloo group over these device ids, ranks in this order. All members ask for it in the same order."""
        if members not in self._groups:
            store = dist.PrefixStore("-".join(map(str, members)), self._store)
            rank = members.index(self._device)
            if self._groups:
                self._meet(store, rank, len(members))
            self._groups[members] = _Counting(self._connect(store, rank, len(members)), len(members), self.handed)
        return self._groups[members]

    def _connect(self, store: dist.Store, rank: int, count: int) -> Any:
        gloo: Any = dist.ProcessGroupGloo
        options = gloo._Options()
        # gloo would listen on the interface of the host's name; on one host only the loopback is anyone's business, and
        # with others that by which this one reaches the controller
        host = "127.0.0.1" if self._rendezvous is None else self._rendezvous.host
        options._devices = [gloo.create_device(hostname=host)]
        options._timeout = TIMEOUT
        return self._unless_aborted(lambda: gloo(store, rank, count, options))

    def _unless_aborted(self, connect: Callable[[], Any]) -> Any:
        """What `connect` returns. A member may die before this: gloo waits for it, and is left to."""
        made: list[Any] = []

        def run() -> None:
            try:
                made.append(connect())
            except BaseException as error:  # it belongs to who asked
                made.append(error)

        thread = threading.Thread(target=run, name="connecting", daemon=True)
        thread.start()
        while not made:
            if self._is_aborted:
                raise RuntimeError("gloo cannot connect: a device is gone")
            thread.join(0.01)
        if isinstance(made[0], BaseException):
            raise made[0]
        return made[0]

    def _meet(self, store: dist.Store, rank: int, count: int) -> None:
        """Wait for the other members: gloo itself would wait for one that is gone, and nothing could end that."""
        store.set(f"here {rank}", "")
        while not store.check([f"here {i}" for i in range(count)]):
            if self._is_aborted:
                raise RuntimeError("gloo cannot connect: a device is gone")
            time.sleep(0.001)

    def abort(self) -> None:
        """End every exchange, from another thread: who waits in one gets an error. (gloo's own abort ends none.)"""
        self._is_aborted = True
        for descriptor, _ in _connections() - self._foreign:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
                copy.shutdown(socket.SHUT_RDWR)
        if self._rendezvous is not None:
            self._rendezvous.store.close()

    def ready(self, request: Request) -> Perform:
        """A collective of a program, or a transfer, as a function. It raises if a device of the group is gone."""
        name, devices, params = request.name, request.devices, request.params
        if name == "transfer":
            return lambda x, call: self.transfer(x, request.meta, devices, request.made, **params)
        return lambda x, call: self.perform(name, x, devices, request.axes, request.named, params)

    def settle(self) -> None:
        """A call is over: nothing is left of it."""

    def room_for(self, name: str, meta: Meta) -> Callable[[], Tensor] | None:
        """What makes room for an operand where the others can read it: nothing, for all is sent.

        Args:
            name: of the collective.
            meta: of the operand.
        """
        return None

    def perform(
        self, name: str, x: Tensor, devices: tuple[int, ...], axes: tuple[int, ...], named: tuple[int, ...],
        params: dict[str, Any],
    ) -> Tensor:  # fmt: skip
        """Take part in one collective of a program.

        Args:
            name: the collective.
            x: this device's shard.
            devices, axes: the program's.
            named: the axes along which it communicates.
            params: its other parameters.
        """
        params = dict(params)
        positions = group_positions(axes, named, devices.index(self._device), params.pop("groups", None))
        members = tuple(devices[p] for p in positions)
        place = members.index(self._device)
        own = COLLECTIVES[name].own
        if own is not None:
            return own(x, place, len(members), **params)
        if len(members) == 1:
            return x
        return _PERFORM[name](self.group(members), place, len(members), x, **params)

    def transfer(
        self, x: Tensor | None, meta: Meta | None, devices: tuple[int, ...], made: Any, moves: Any
    ) -> Tensor | None:
        """Move blocks between any devices of the program: what `device_put` needs from one set of devices to another.

        Args:
            x: this device's shard; None if it has none.
            meta: of the shard, wherever there is one.
            made: meta of the result on a device that gets one.
            moves: (source position, target position, slices of the source, slices of the target).
        """
        here = devices.index(self._device)
        out = (
            torch.empty(made.shape, dtype=made.dtype, device=self._place) if any(m[1] == here for m in moves) else None
        )
        sends: list[tuple[Tensor, int, int]] = []
        receives: list[tuple[Tensor, int, int]] = []
        parts = []
        for tag, (source, target, cut, place) in enumerate(moves):
            if source == target == here:
                assert x is not None and out is not None
                out[place] = x[cut]
            elif source == here:
                assert x is not None
                sends.append((as_bytes(x[cut]), devices[target], tag))
            elif target == here:
                assert out is not None
                part = torch.empty_like(out[place], memory_format=torch.contiguous_format)
                parts.append((place, part))
                receives.append((as_bytes(part), devices[source], tag))
        _send_and_receive(self._world(), sends, receives)
        for place, part in parts:
            assert out is not None
            out[place] = part
        return out

    def _world(self) -> Any:
        return next(iter(self._groups.values()))


def _connections() -> set[tuple[int, int]]:
    """The TCP connections of this process: descriptor and inode. A listening socket, which gloo needs, is none."""
    found = set()
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):
            status = os.stat(int(name))
            if stat.S_ISSOCK(status.st_mode):
                with socket.socket(fileno=os.dup(int(name))) as copy:
                    if copy.family in (socket.AF_INET, socket.AF_INET6):
                        copy.getpeername()  # raises for one that listens
                        found.add((int(name), status.st_ino))
    return found


def _all_reduce(group: Any, place: int, count: int, x: Tensor, *, op: str) -> Tensor:
    if x.dtype not in _REDUCED_AS_THEY_ARE and x.dtype not in _NARROW_INTS:
        if x.is_complex() and op in ("sum", "avg"):
            parts = _all_reduce(group, place, count, torch.view_as_real(x.resolve_conj()), op=op)
            return torch.view_as_complex(parts)
        gathered = _all_gather(group, place, count, x.unsqueeze(0), dim=0)
        return reduce_stack(list(gathered), op)
    if x.dtype in _BITS and op in ("max", "min"):
        made = _all_reduce(group, place, count, _ordered(x, nan_is_first=op == "min"), op=op)
        return _flipped(made).view(x.dtype)
    work = x.to(_NARROW_INTS.get(x.dtype, x.dtype), copy=True, memory_format=torch.contiguous_format)
    options: Any = dist.AllreduceOptions()
    options.reduceOp = _GLOO_OPS[op]
    group.allreduce([work], options).wait()
    if op == "avg":
        work = work / count
    return work.to(x.dtype)


def _ordered(x: Tensor, *, nan_is_first: bool) -> Tensor:
    """Floats as ints of the same order; nan first or last of all, for gloo's own max and min of floats lose it."""
    ints = _flipped(x.contiguous().view(_BITS[x.dtype]))
    limits = torch.iinfo(ints.dtype)
    return torch.where(x.isnan(), limits.min if nan_is_first else limits.max, ints)


def _flipped(bits: Tensor) -> Tensor:
    """The bits of floats as ints of the same order, and back: those of negative ones count the other way."""
    limits = torch.iinfo(bits.dtype)
    return bits ^ ((bits >> (limits.bits - 1)) & limits.max)


def _all_gather(group: Any, place: int, count: int, x: Tensor, *, dim: int) -> Tensor:
    sent = as_bytes(x)
    got = torch.empty(count * sent.numel(), dtype=torch.uint8, device=sent.device)
    if sent.numel():
        group._allgather_base(got, sent).wait()
    blocks = [got[i * sent.numel() : (i + 1) * sent.numel()].view(x.dtype).reshape(x.shape) for i in range(count)]
    return torch.cat(blocks, dim) if x.dim() else torch.stack(blocks)


def _all_to_all(group: Any, place: int, count: int, x: Tensor, *, split: int, join: int) -> Tensor:
    return torch.cat(_exchange(group, list(x.chunk(count, split))), join)


def _exchange(group: Any, blocks: list[Tensor]) -> list[Tensor]:
    """Send block i to member i; the blocks that came, in the order of the members."""
    shape, dtype = blocks[0].shape, blocks[0].dtype
    sent = torch.cat([as_bytes(block) for block in blocks])
    got = torch.empty_like(sent)
    if sent.numel():
        group.alltoall_base(got, sent, [], []).wait()
    return [part.view(dtype).reshape(shape) for part in got.chunk(len(blocks))] if sent.numel() else blocks


def _reduce_scatter(group: Any, place: int, count: int, x: Tensor, *, dim: int, op: str) -> Tensor:
    # every member gets the blocks that it is to combine and adds them in the members' order: right for every dtype
    return reduce_stack(_exchange(group, list(x.chunk(count, dim))), op)


def _collective_permute(group: Any, place: int, count: int, x: Tensor, *, pairs: Any) -> Tensor:
    x = x.contiguous()
    sends = [(as_bytes(x), target, 0) for source, target in pairs if source == place != target]
    source = next((s for s, t in pairs if t == place), None)
    out, receives = x, []
    if source is None:
        out = torch.zeros_like(x)
    elif source != place:
        out = torch.empty_like(x)
        receives = [(as_bytes(out), source, 0)]
    _send_and_receive(group, sends, receives)
    return out


def _send_and_receive(
    group: Any, sends: list[tuple[Tensor, int, int]], receives: list[tuple[Tensor, int, int]]
) -> None:
    """Send blocks to members and receive others, all at the same time.

    NCCL begins them one after the other, each once its partner has begun: two devices that both send first would wait
    for ever, unless what belongs together is grouped.

    Args:
        sends, receives: (bytes, the other member, tag).
    """
    if not sends and not receives:
        return
    is_grouped = group.name() == "nccl"
    place = (sends or receives)[0][0].device
    if is_grouped:
        group._start_coalescing(place)
    works = [group.send([block], member, tag) for block, member, tag in sends]
    works += [group.recv([block], member, tag) for block, member, tag in receives]
    if is_grouped:
        works = [group._end_coalescing(place)]
    for work in works:
        work.wait()


_PERFORM: dict[str, Callable[..., Tensor]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _collective_permute,
}
