"""The collectives between GPUs: over NCCL, or over gloo through the memory of the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.runtime.collectives.base import Communicator, PeerLostError, Perform, Request
from tinyshard.runtime.collectives.gloo import TIMEOUT, GlooCommunicator, Message, T


def communicator_on(
    place: torch.device, collectives: str, store: dist.Store, device: int, count: int, host: str
) -> Communicator:
    """The communicator of a GPU.

    Args:
        place: the GPU.
        collectives: "nccl" or "gloo".
        store, device, count, host: those of `gloo.GlooCommunicator`.
    """
    if collectives == "nccl":
        return NcclCommunicator(store, device, count, host, place)
    return StagedCommunicator(GlooCommunicator(store, device, count, host), place)


class StagedCommunicator(Communicator):
    """Copies operands from the GPU to the host, and results back.

    Args:
        inner: runs the collectives on the host.
        place: the GPU.
    """

    def __init__(self, inner: GlooCommunicator, place: torch.device) -> None:
        self._inner = inner
        self._place = place
        self.handed = inner.handed

    def abort(self) -> None:
        """Abort all collectives, from another thread."""
        self._inner.abort()

    def ready(self, request: Request) -> Perform:
        """A collective, or a transfer, as a function; without communication it stays on the GPU."""
        perform = self._inner.ready(request)
        if request.name in COLLECTIVES and COLLECTIVES[request.name].own is not None:
            return perform

        def through_the_host(x: Tensor | None, call: int) -> Tensor | None:
            out: Tensor | None = perform(None if x is None else x.cpu(), call)
            return None if out is None else out.to(self._place)

        return through_the_host


class NcclCommunicator(GlooCommunicator):
    """Collectives over NCCL: those of `GlooCommunicator`, with NCCL's process groups.

    Args:
        store, device, count, host: those of `gloo.GlooCommunicator`.
        place: this device's GPU.
    """

    def _connect(self, store: dist.Store, rank: int, count: int) -> Any:
        if not self._groups:  # all devices: `batch_isend_irecv` works with torch's default group alone
            dist.init_process_group(
                "nccl", store=store, rank=rank, world_size=count, timeout=TIMEOUT, device_id=self._place
            )
            return dist.group.WORLD
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = TIMEOUT
        group = dist.ProcessGroupNCCL(store, rank, count, options)
        group.eager_connect_single_device(self._place)  # now, as all members do it now
        return group

    def _call(self, communicate: Callable[[], T]) -> T:
        """Call NCCL, which an abort ends, in the thread that has chosen its GPU."""
        try:
            return communicate()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def send_and_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send blocks to devices and receive others, all at the same time."""
        exchange(sends, receives)

    def abort(self) -> None:
        """Abort all collectives, from another thread."""
        self._is_aborted = True
        for group in list(self._groups.values()):
            with contextlib.suppress(Exception):  # a group that cannot be aborted has ended
                group.abort()


def exchange(sends: Sequence[Message], receives: Sequence[Message]) -> None:
    """Send blocks to members of torch's default group and receive others, as one batch.

    NCCL starts single operations one after another, each when its peer starts: devices that all send first would
    deadlock.
    """
    operations = [dist.P2POp(dist.isend, block, device, tag=tag) for block, device, tag in sends]
    operations += [dist.P2POp(dist.irecv, block, device, tag=tag) for block, device, tag in receives]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
