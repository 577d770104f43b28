"""Worker processes as the controller sees them: calls that return at once, and waiting for what they make."""

from __future__ import annotations

import atexit
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import torch

from tinyshard.devices import Device
from tinyshard.errors import OutOfMemoryError, RemoteError, RuntimeStateError, message
from tinyshard.program import Meta, Program
from tinyshard.runtime import wire
from tinyshard.runtime.controller.cancellation import after_interrupted_cells
from tinyshard.runtime.controller.connection import Link, Request
from tinyshard.runtime.controller.dispatcher import Dispatcher
from tinyshard.runtime.controller.latch import Latch
from tinyshard.runtime.controller.lineage import Ancestry, Buffer, Run, Where, ancestry, input_runs, users_line
from tinyshard.runtime.controller.refs import Buffers, alive_text, put_together
from tinyshard.runtime.controller.remote_errors import lost_error, remote_error
from tinyshard.runtime.controller.watchdog import Patience, check_progress
from tinyshard.runtime.failure import Failure, is_out_of_memory
from tinyshard.runtime.launch import forkserver
from tinyshard.runtime.launch.local import Forked, Starter
from tinyshard.runtime.progress import Overview
from tinyshard.runtime.shm import allocator

# whoever waits longer than this looks whether the devices get on
LOOK_EVERY_S = 0.5
# an idle device answers in less; what has not answered by then is busy
READY_WITHIN_S = 0.02
# shared memory shows at once what is over; how long to sleep for that, and how long to look for answers in between
GLANCE_FOR_S = 0.05
BETWEEN_GLANCES_S = 0.005
_number_of = attrgetter("number")


class ProcessPool:
    """Worker processes, one a device, joined by shared memory, gloo or NCCL.

    Args:
        count: number of devices.
        platform: "cpu" or "gpu".
        collectives: "shared", memory that all of them map, or "gloo"; for GPUs "nccl" or "gloo".
        starter: starts the workers on other machines; by default they are forked on this one.
        gpus: by device, the number of its GPU on this machine; none for CPUs.

    Communication: to the workers a ring in shared memory (`stream`) if they have it, else a socket pair, by which they
    also answer; between them shared memory, or gloo on the loopback.
    With a starter: TCP to the workers, gloo between their machines.
    """

    kind = "process"

    def __init__(
        self,
        count: int,
        platform: str = "cpu",
        collectives: str = "gloo",
        starter: Starter | None = None,
        gpus: Sequence[int] = (),
    ) -> None:
        self.collectives = collectives
        self.devices = tuple(Device(i, platform) for i in range(count))
        self._platform = platform
        self._owner = os.getpid()
        self._order = threading.Lock()  # a call gets its number and its place in the queue in one step
        self._numbers = itertools.count(1)
        self._buffers = Buffers()
        self._arena = allocator.of_controller(count) if collectives == "shared" else None
        fd = -1 if self._arena is None else self._arena.fd
        self._overview = None if self._arena is None else Overview(self._arena.control)
        self._starter = starter or Forked(forkserver.start(), count, collectives, fd, gpus)
        shared = () if self._arena is None else (self._arena.control, self._arena.trim, self._arena.lend)
        self._dispatcher = Dispatcher(self._starter, platform, self._buffers, *shared)
        self._stop_hearing = after_interrupted_cells(self.cancel)
        atexit.register(self.shutdown)

    def snapshot(self, host: torch.Tensor) -> torch.Tensor:
        """A copy for `put`, where the devices can see it."""
        self._dispatcher.check_open()  # a process that the user has forked from this one must not hand out blocks
        if self._arena is None or host.nbytes < allocator.SMALLEST_NBYTES:
            return host.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
        try:
            return self._arena.new(host.shape, host.dtype).copy_(host)
        except MemoryError as error:
            raise _no_room(f"{Meta(tuple(host.shape), host.dtype)} to be placed: {error}") from error

    def put(self, blocks: dict[int, torch.Tensor], where: Where) -> Buffer:
        """Send a block to each device; the tensors must not change afterwards."""
        dispatcher = self._dispatcher
        dispatcher.check_open()
        place_of = (lambda block: None) if self._arena is None else self._arena.block_of
        placed = {device: (block, place_of(block)) for device, block in blocks.items()}
        with self._order:
            run = Run(next(self._numbers), tuple(blocks), False, where, computes=False)
            block = next(iter(blocks.values()))
            buffer = self._buffers.make(run, self, Meta(tuple(block.shape), block.dtype))
            dispatcher.post("put", sum(block.nbytes for block in blocks.values()), run, buffer.number, placed)
        self._hold_back(run)
        return buffer

    def run(self, program: Program, inputs: Sequence[Buffer], where: Where, *, guards: bool = False) -> list[Buffer]:
        """Call a program on its devices.

        Args:
            program: what to run; sent only once.
            inputs: a value for each input.
            where: the user's line, for errors.
            guards: the program has no results that anyone asks for; its errors belong to the makers of its inputs.

        Returns:
            A Buffer for each output, at once: the values are futures.
        """
        dispatcher = self._dispatcher
        dispatcher.check_open()
        with self._order:
            run = Run(next(self._numbers), program.devices, program.communicates, where, input_runs(inputs))
            made = [self._buffers.make(run, self, program.metas[number]) for number in program.outputs]
            if guards:
                for buffer in inputs:
                    buffer.run.checks.append(run)
            dispatcher.post("run", 0, run, program, tuple(map(_number_of, inputs)), tuple(map(_number_of, made)))
        if not dispatcher.has_few_calls:
            self._hold_back(run)
        return made

    def fetch(self, buffer: Buffer, device_ids: Sequence[int]) -> dict[int, torch.Tensor]:
        """Wait for the blocks on these devices and bring them here.

        Raises:
            RemoteError: the value, or one that it was computed from, could not be computed.
            DeviceLostError: a device that it depends on is gone.
        """
        others = self._late(self._known(buffer, device_ids)) - set(device_ids)
        asked = [self._ask("sync", others)] if others else []
        fetched = self._ask("fetch", device_ids, (buffer.number, None))
        self._wait([*asked, fetched])
        self._raise_failures(buffer, device_ids)
        metas = self._answered(fetched, buffer)
        return {d: wire.tensor_of(fetched.answers[d][1], m.shape, m.dtype) for d, m in metas.items()}

    def _answered(self, fetched: Request, buffer: Buffer, *, is_received: bool = True) -> dict[int, Meta]:
        """Shape and dtype of what each device has brought; raises if one could not."""
        for device, (meta, payload) in fetched.answers.items():
            if isinstance(meta, Failure):
                raise self._error({device: (meta, buffer.run.where)})
            if meta is None:
                problem = f"{self.devices[device]} does not hold the value"
                raise RuntimeStateError(message(problem, got=f"value {buffer.number}"))
            if is_received and payload is None and math.prod(meta.shape):  # the channel found no room for it
                raise _no_room(f"{meta} of {self.devices[device]}")
        return {device: meta for device, (meta, _) in fetched.answers.items()}

    def gather(
        self, buffer: Buffer, places: dict[int, tuple[slice, ...]], shape: tuple[int, ...], dtype: torch.dtype
    ) -> torch.Tensor:
        """Wait for blocks and put them together here; raises as `fetch` does.

        Args:
            buffer: the value.
            places: by device, where its block is to stand.
            shape, dtype: of the whole.
        """
        nbytes = math.prod(shape) * dtype.itemsize
        if self._arena is None or nbytes < allocator.SMALLEST_NBYTES:
            return put_together(self.fetch(buffer, list(places)), places, shape, dtype)
        self.wait(buffer, list(places))
        try:
            out = self._arena.new(shape, dtype)
        except MemoryError as error:
            raise _no_room(f"{Meta(shape, dtype)}: {error}") from error
        block = self._arena.block_of(out)
        assert block is not None
        fetched = self._ask("fetch", places, (buffer.number, (block, shape, places)), (out, block))
        self._wait([fetched])
        self._answered(fetched, buffer, is_received=False)
        self._arena.settle(block)
        return out

    def wait(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Wait until the blocks on these devices are computed. Raises as `fetch` does."""
        run = buffer.run
        known = self._known(buffer, device_ids)
        if (not run.settled or run.checks) and not self._sees_finished(known):
            late = self._late(known)
            if late:
                # a device answers after all that was handed to it before, so the looking goes on
                look = None if self._overview is None else lambda: self._glances(known, GLANCE_FOR_S)
                self._wait([self._ask("sync", late)], seen=look)
        self._raise_failures(buffer, device_ids)

    def _sees_finished(self, known: Ancestry) -> bool:
        """Whether shared memory soon shows that all is over that matters: nobody needs to be asked then."""
        try:
            return self._glances(known, GLANCE_FOR_S)
        except KeyboardInterrupt:
            self.cancel(users_line())
            raise

    def _glances(self, known: Ancestry, within_s: float) -> bool:
        overview, dispatcher = self._overview, self._dispatcher
        if overview is None:
            return False
        dispatcher.hurry()
        finished = overview.wait_a_moment(known.needs, dispatcher.is_quiet, within_s)
        if finished is None:
            return False
        dispatcher.pass_all(finished)
        self._print_output()
        return True

    def is_ready(self, buffer: Buffer, device_ids: Sequence[int]) -> bool:
        """Whether `wait` would return or raise at once. An idle device answers in time; a busy one is not ready."""
        known = self._ancestry(buffer, device_ids)
        late = self._late(known)
        if not late or any(link.lost for link in self._links(late)):
            return True
        if self._overview is not None:
            return self._glances(known, READY_WITHIN_S)
        return self._wait([self._ask("sync", late)], READY_WITHIN_S)

    def describe(self, buffers: Sequence[Buffer], device: int) -> list[Meta | None]:
        """Shapes and dtypes of values that only running could tell. Waits, and raises as `fetch` does."""
        request = self._ask("describe", [device], tuple(b.number for b in buffers))
        self._wait([request])
        for buffer in buffers:
            self._raise_failures(buffer, [device])
        return list(request.answers[device][0])

    def held(self, device: int) -> int:
        """How many values a device holds, after all that was called and released before."""
        self._wait([self._ask("sync", [device])])
        request = self._ask("held", [device])
        self._wait([request])
        return int(request.answers[device][0])

    def handed(self) -> dict[int, list[tuple[str, int, int]]]:
        """What each device exchanged since last asked: (name, with gloo its own; group size; operand bytes)."""
        request = self._ask("handed", range(len(self.devices)))
        self._wait([request])
        return {device: answer[0] for device, answer in request.answers.items()}

    def cancel(self, where: Where) -> None:
        """Cancel all calls that are not finished; values that were sent or are computed stay.

        Args:
            where: the interrupted line, for the errors of whoever asks for what was cancelled.
        """
        self._dispatcher.post("cancel", 0, str(where))

    def forget(self, program: Program) -> None:
        """Let the workers drop a program that will not be called again."""
        self._dispatcher.post("forget", 0, program.number)

    def pid(self, device: int) -> int:
        """The process id of a device's worker."""
        self._open_dispatcher()
        link = self._dispatcher.links[device]
        if link.lost:
            raise lost_error(device, link.lost, self._platform)
        return link.pid

    def host(self, device: int) -> str | None:
        """The address of a device's machine; None if it is this one."""
        return self._starter.host(device)

    @property
    def is_alive(self) -> bool:
        """Whether calls can be made: not shut down, and no device lost."""
        dispatcher = self._dispatcher
        return not dispatcher.closing and not dispatcher.broken and not dispatcher.has_lost

    def shutdown(self) -> None:
        """End all workers; values that lived there are gone. Again, or in a forked process, it does nothing."""
        if os.getpid() != self._owner:
            return
        self._stop_hearing()
        self._dispatcher.close()
        if self._arena is not None:
            self._arena.leave()
        atexit.unregister(self.shutdown)
        self._print_output()

    def _open_dispatcher(self) -> Dispatcher:
        dispatcher = self._dispatcher
        dispatcher.check_open()
        if not dispatcher.started.is_open:
            dispatcher.started.wait()
            dispatcher.check_open()
        return dispatcher

    def _links(self, device_ids: Iterable[int]) -> list[Link]:
        return [self._dispatcher.links[d] for d in device_ids]

    def _ancestry(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        with self._open_dispatcher().state:
            return ancestry(buffer.run, device_ids)

    def _known(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        """What a value depends on. Raises at once if a device among that is gone, however long others still compute."""
        dispatcher = self._open_dispatcher()
        with dispatcher.state:
            known = ancestry(buffer.run, device_ids)
        if known.failures and any(failure.lost for failure, _ in known.failures.values()):
            raise self._error(known.failures)
        return known

    def _raise_failures(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        run = buffer.run
        if not run.settled or run.failures or run.checks:
            failures = self._ancestry(buffer, device_ids).failures
            if failures:
                raise self._error(failures)
        if self._dispatcher.has_lost:
            for link in self._links(device_ids):
                if link.lost:
                    raise lost_error(link.device, link.lost, self._platform)

    def _error(self, failures: Mapping[int, tuple[Failure, object]]) -> RemoteError:
        """One error for all devices; where memory ran out it tells what is alive on the first of them."""
        error = remote_error(failures, self._platform)
        full = next((d for d, (failure, _) in failures.items() if is_out_of_memory(failure)), None)
        if full is None or type(error) is not RemoteError:
            return error
        kept = [buffer for buffer in self._buffers.held_by(full) if full not in buffer.run.failures]
        alive = alive_text(kept).replace("\n", "\n    ")
        return OutOfMemoryError(
            f"{error}\n  alive on {self.devices[full]}: {alive}\n"
            "  try:  del what you no longer need (ts.live_arrays() lists it), or cut the array over more devices"
        )

    def _late(self, known: Ancestry) -> set[int]:
        """The devices that have not yet told that they have finished what matters."""
        return {d for d, number in known.needs.items() if self._dispatcher.links[d].done < number}

    def _ask(
        self,
        kind: str,
        device_ids: Iterable[int],
        what: Any = None,
        lent: tuple[torch.Tensor, allocator.Block] | None = None,
    ) -> Request:
        """Ask devices something.

        Args:
            lent: a tensor into which they write, and its block.
        """
        with self._order:
            request = Request(next(self._numbers), set(device_ids))
            self._dispatcher.post(kind, 0, request, what, lent)
        return request

    def _wait(self, requests: Sequence[Request], timeout_s: float = -1, seen: Callable[[], bool] | None = None) -> bool:
        """Until all have answered; False if that takes longer. Raises DeviceLostError as soon as one of them cannot.

        Args:
            seen: looks for a moment whether what is waited for is over without an answer.
        """
        patience = Patience()
        try:
            for request in requests:
                if self._dispatcher.ended.is_open or not self._watch(
                    request.over, request.waiting, patience, timeout_s, seen
                ):
                    self._dispatcher.check_open()
                    return False
                if seen is not None and not request.over.is_open:
                    return True
                if request.waiting:
                    break  # one of them is lost: the others may wait for it, and need not be waited for
        finally:
            self._print_output()
        self._dispatcher.check_open()
        waiting = {d for r in requests for d in r.waiting}
        if waiting:  # one of them is lost
            for link in sorted(self._dispatcher.links, key=lambda link: link.device not in waiting):
                if link.lost:
                    raise lost_error(link.device, link.lost, self._platform)
        return True

    def _hold_back(self, run: Run) -> None:
        patience = Patience()
        self._dispatcher.hold_back(run.devices, lambda latch: self._watch(latch, run.devices, patience))

    def _watch(
        self,
        latch: Latch,
        devices: Iterable[int],
        patience: Patience,
        timeout_s: float = -1,
        seen: Callable[[], bool] | None = None,
    ) -> bool:
        """Wait for a latch that these devices open, or for what `seen` says; False if that takes longer.

        Raises:
            CollectiveTimeoutError: none of the devices that this depends on gets on.
        """
        try:
            if timeout_s >= 0:
                return latch.wait(timeout_s)
            while not latch.wait(LOOK_EVERY_S if seen is None else BETWEEN_GLANCES_S):
                if seen is not None and seen():
                    return True
                now_s = time.monotonic()
                if seen is not None and now_s - patience.looked_s < LOOK_EVERY_S:
                    continue
                patience.look(now_s)
                self._dispatcher.post("look", 0)
                if self._dispatcher.started.is_open:
                    links, calls = self._dispatcher.links, self._dispatcher.calls_ahead()
                    check_progress(links, calls, list(devices), patience.since_s, self._platform)
        except KeyboardInterrupt:
            self.cancel(users_line())
            raise
        return True

    def _print_output(self) -> None:
        """Print what workers wrote, here in the thread that asks, so that it lands in the asking cell."""
        for device, line in self._dispatcher.take_printed():
            print(f"[{self.devices[device]}] {line}", file=sys.stderr)


def _no_room(got: str) -> OutOfMemoryError:
    return OutOfMemoryError(
        message(
            "this process has no memory for the values of an array",
            got=got,
            rule="it shares the machine's memory with the devices; nothing was placed or fetched",
            try_="del what you no longer need (ts.live_arrays() lists it), or move less at a time",
        )
    )
