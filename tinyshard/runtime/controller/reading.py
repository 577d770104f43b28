"""How a thread reads values: their dependencies, their errors, and their blocks.

Several values are read in one round trip: all requests are sent before the first wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.types import ShapedType, tensor_of
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.items import Request
from tinyshard.runtime.controller.lineage import Ancestry, Buffer, ancestry
from tinyshard.runtime.controller.refs import Buffers, Wanted, put_together
from tinyshard.runtime.controller.remote_errors import error_of, lost_error, no_room
from tinyshard.runtime.controller.waiting import Waiting
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.shm import allocator


class Reading:
    """How a pool reads values, for the controller's threads: a base of `ProcessPool`, which has the attributes."""

    _dispatcher: Dispatcher  # sends requests
    _waiting: Waiting  # for answers
    _buffers: Buffers  # the values in use, for errors
    _arena: allocator.Arena | None  # the memory shared with the devices
    _platform: str  # "cpu" or "gpu"

    def fetch(self, buffer: Buffer, device_ids: Sequence[int]) -> dict[int, torch.Tensor]:
        """Block until the blocks on these devices are computed, and copy them here. Raises as `gather` does."""
        return self._fetch([(buffer, device_ids)])[0]

    def _fetch(self, wanted: Sequence[tuple[Buffer, Sequence[int]]]) -> list[dict[int, torch.Tensor]]:
        late: set[int] = set()
        for buffer, device_ids in wanted:
            late |= self._waiting.late(self._known(buffer, device_ids).needs)
        requests = [self._waiting.ask("fetch", ids, (buffer.number, None)) for buffer, ids in wanted]
        if others := late.difference(*(ids for _, ids in wanted)):  # their failures may concern the values
            requests.append(self._waiting.ask("sync", others))
        self._waiting.wait(requests)
        found = []
        for (buffer, device_ids), request in zip(wanted, requests, strict=False):
            self._raise_failures(buffer, device_ids)
            metas = self._answered(request, buffer)
            found.append({d: tensor_of(request.answers[d][1], m.shape, m.dtype) for d, m in metas.items()})
        return found

    def gather(self, wanted: Sequence[Wanted]) -> list[torch.Tensor]:
        """Block until values are computed, and copy each of their blocks into its place in one tensor.

        Raises:
            RemoteError: a value, or one that it was computed from, could not be computed.
            DeviceLostError: a device that it depends on is lost.
        """
        arena = self._arena
        large = [] if arena is None else [w for w in wanted if arena.is_for(ShapedType(w.shape, w.dtype).nbytes)]
        small = [w for w in wanted if w not in large]
        for w in large:  # no requests: shared memory shows when a value is computed
            self.wait(w.buffer, list(w.places))
        lent = [self._lend(w) for w in large]
        fetched = self._fetch([(w.buffer, list(w.places)) for w in small])
        self._waiting.wait(lent)
        whole = dict(zip(small, map(put_together, fetched, small), strict=True))
        for w, request in zip(large, lent, strict=True):
            self._answered(request, w.buffer)
            assert arena is not None and request.lent is not None
            whole[w], block = request.lent
            arena.settle(block)
        if large:
            self._dispatcher.check_open()  # a pool that was shut down before has released the blocks
        return [whole[w] for w in wanted]

    def _lend(self, w: Wanted) -> Request:
        """Ask the devices to write their blocks of a value into a tensor in shared memory."""
        assert self._arena is not None
        out = self._new(w.shape, w.dtype)
        block = self._arena.block_of(out)
        assert block is not None
        what = w.buffer.number, (block, w.shape, w.places)
        return self._waiting.ask("fetch", w.places, what, (out, block))

    def _answered(self, fetched: Request, buffer: Buffer) -> dict[int, ShapedType]:
        """Shape and dtype of the block that each device has sent; raises if one could not send it."""
        for device, (meta, payload) in fetched.answers.items():
            if isinstance(meta, Failure):
                raise error_of({device: (meta, buffer.run.where)}, self._platform, self._buffers)
            if meta is None:
                problem = f"{self._platform.upper()} {device} does not hold the value"
                raise RuntimeStateError(problem, got=f"the value that was dispatched by {buffer.run.where}")
            if fetched.lent is None and payload is None and meta.nbytes:  # the reader had no memory for it
                raise no_room(f"{meta} of {self._platform.upper()} {device}")
        return {device: meta for device, (meta, _) in fetched.answers.items()}

    def wait(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Block until the blocks on these devices are computed. Raises as `gather` does."""
        run = buffer.run
        known = self._known(buffer, device_ids)
        if not run.settled or run.checks:
            self._waiting.until_finished(known.needs)
        self._raise_failures(buffer, device_ids)

    def _new(self, shape: tuple[int, ...], dtype: torch.dtype, what: str = "") -> torch.Tensor:
        """A tensor in shared memory."""
        assert self._arena is not None
        try:
            return self._arena.new(shape, dtype)
        except MemoryError as error:
            self._dispatcher.check_open()  # a signal's handler may have shut the pool down meanwhile
            raise no_room(f"{ShapedType(shape, dtype)}{what}: {error}") from error

    def _known(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        """The dependencies of a value. Raises at once if one of their devices is lost, while other devices compute."""
        dispatcher = self._waiting.open_dispatcher()
        self._waiting.check_can_wait()
        dispatcher.advance()  # an interrupt may have left a call without a number
        with dispatcher.calls.lock:
            known = ancestry(buffer.run, device_ids)
        if known.failures and any(failure.lost for failure, _ in known.failures.values()):
            raise error_of(known.failures, self._platform, self._buffers)
        return known

    def _raise_failures(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Raise the error of a value that could not be computed on these devices."""
        run = buffer.run
        if not run.settled or run.failures or run.checks:
            failures = self._waiting.ancestry(buffer, device_ids).failures
            if failures:
                raise error_of(failures, self._platform, self._buffers)
        if self._dispatcher.calls.has_lost:
            for device in device_ids:
                if lost := self._dispatcher.links[device].lost:
                    raise lost_error(device, lost, self._platform)
