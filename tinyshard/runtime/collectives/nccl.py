"""The collectives between GPUs: over NCCL, or over gloo through the memory of the host."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Group, Moment, PeerLostError, Perform, Request
from tinyshard.runtime.collectives.gloo import TIMEOUT, GlooCommunicator, Message, T


class StagedCommunicator(GlooCommunicator):
    """Collectives of GPUs over gloo: operands are copied to the host, and results back to this device's `gpu`."""

    def __init__(self, store: dist.Store, device: int, count: int, host: str, gpu: torch.device) -> None:
        super().__init__(store, device, count, host)
        self._gpu = gpu

    def _ready_transfer(self, request: Request) -> Perform:
        return self._through_the_host(super()._ready_transfer(request))

    def _ready_exchange(self, name: str, group: Group, metas: Sequence[ShapedType], params: dict[str, Any]) -> Perform:
        return self._through_the_host(super()._ready_exchange(name, group, metas, params))

    def _through_the_host(self, perform: Perform) -> Perform:
        def staged(xs: Sequence[Any], moment: Moment) -> Sequence[Any]:
            results = perform([None if x is None else x.cpu() for x in xs], moment)
            return [None if x is None else x.to(self._gpu) for x in results]

        return staged


class NcclCommunicator(GlooCommunicator):
    """Collectives over NCCL: those of `GlooCommunicator`, with NCCL's process groups; `place` is this device's GPU."""

    def _connect(self, store: dist.Store, rank: int, count: int) -> Any:
        if not self._groups:  # all devices: `batch_isend_irecv` works only with torch's default group
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
        """Call NCCL, which an abort ends, in the thread that has selected its GPU."""
        try:
            return communicate()
        except RuntimeError as error:
            raise PeerLostError(str(error)) from error

    def send_and_receive(self, sends: Sequence[Message], receives: Sequence[Message]) -> None:
        """Send blocks to devices and receive others, all at the same time."""
        exchange(sends, receives)

    def abort(self) -> None:
        """Abort all collectives, from another thread."""
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
