"""Worker processes as the controller sees them: calls that return at once, and waiting for what they make."""

from __future__ import annotations

import atexit
import itertools
import os
import threading
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tinyshard.devices import Device
from tinyshard.errors import DeviceLostError, RuntimeStateError, message
from tinyshard.program import Meta, Program
from tinyshard.runtime import channel, zygote
from tinyshard.runtime.runs import Ancestry, Buffer, Run, Where, ancestry, input_runs, remote_error
from tinyshard.runtime.switchboard import Link, Request, Switchboard, check_open, print_output

# back-pressure: a loop that dispatches faster than the devices compute waits here instead of filling the memory
MAX_RUNS_AHEAD = 1024
MAX_BYTES_AHEAD = 512 << 20


class ProcessPool:
    """Worker processes, one a device, joined by gloo.

    Args:
        count: number of devices.
        platform: "cpu".

    Communication: socket pairs to the workers; gloo between them, on the loopback.
    """

    kind = "process"

    def __init__(self, count: int, platform: str = "cpu") -> None:
        self.devices = tuple(Device(i, platform) for i in range(count))
        self._platform = platform
        self._owner = os.getpid()
        self._order = threading.Lock()  # a call gets its number and its place in the queue in one step
        self._numbers = itertools.count(1)
        self._values = itertools.count(1)
        self._board = Switchboard(zygote.start(), count)
        atexit.register(self.shutdown)

    def put(self, blocks: dict[int, torch.Tensor], where: Where) -> Buffer:
        """Send a block to each device; the tensors must not change afterwards."""
        check_open(self._board)
        with self._order:
            number = next(self._numbers)
            run = Run(number, tuple(blocks), False, where)
            value = next(self._values)
            with self._board.changed:
                self._board.bytes_ahead += sum(t.nbytes for t in blocks.values())
            self._board.post("put", run, value, blocks)
        self._hold_back(run)
        return Buffer(value, run, self, self._board.release)

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
        check_open(self._board)
        with self._order:
            number = next(self._numbers)
            run = Run(number, program.devices, program.communicates, where, input_runs(inputs))
            made = [next(self._values) for _ in program.outputs]
            self._board.post("run", run, program, tuple(b.number for b in inputs), tuple(made))
        if guards:
            for buffer in inputs:
                buffer.run.checks.append(run)
        self._hold_back(run)
        return [Buffer(value, run, self, self._board.release) for value in made]

    def fetch(self, buffer: Buffer, device_ids: Sequence[int]) -> dict[int, torch.Tensor]:
        """Wait for the blocks on these devices and bring them here.

        Raises:
            RemoteError: the value, or one that it was computed from, could not be computed.
            DeviceLostError: a device that it depends on is gone.
        """
        known = self._ancestry(buffer, device_ids)
        others = known.devices - set(device_ids)
        asked = [self._ask("sync", others)] if others else []
        fetched = self._ask("fetch", device_ids, buffer.number)
        self._wait([*asked, fetched])
        self._raise_failures(buffer, device_ids)
        out = {}
        for device, (meta, payload) in fetched.answers.items():
            if meta is None:
                problem = f"{self.devices[device]} does not hold the value"
                raise RuntimeStateError(message(problem, got=f"value {buffer.number}"))
            out[device] = channel.tensor_of(payload, meta.shape, meta.dtype)
        return out

    def wait(self, buffer: Buffer, device_ids: Sequence[int]) -> None:
        """Wait until the blocks on these devices are computed. Raises as `fetch` does."""
        late = self._late(self._ancestry(buffer, device_ids))
        if late:
            self._wait([self._ask("sync", late)])
        self._raise_failures(buffer, device_ids)

    def is_ready(self, buffer: Buffer, device_ids: Sequence[int]) -> bool:
        """Whether `wait` would return at once. An idle device answers within a millisecond; a busy one is not ready."""
        late = self._late(self._ancestry(buffer, device_ids))
        return not late or self._wait([self._ask("sync", late)], timeout_s=0.02)

    def describe(self, buffers: Sequence[Buffer], device: int) -> list[Meta | None]:
        """Shapes and dtypes of values that only running could tell. Waits, and raises as `fetch` does."""
        request = self._ask("describe", [device], tuple(b.number for b in buffers))
        self._wait([request])
        for buffer in buffers:
            self._raise_failures(buffer, [device])
        return list(request.answers[device][0])

    def forget(self, program: Program) -> None:
        """Let the workers drop a program that will not be called again."""
        with self._order:
            self._board.post("forget", program.number)

    def pid(self, device: int) -> int:
        """The process id of a device's worker."""
        link = self._link(device)
        if link.lost:
            raise self._lost_error(link)
        return link.pid

    @property
    def is_alive(self) -> bool:
        """Whether calls can be made: not shut down, and no device lost."""
        board = self._board
        return not board.closing and not board.broken and not any(link.lost for link in board.links)

    def shutdown(self) -> None:
        """End all workers. Values that lived there are gone."""
        if self._board.closing or os.getpid() != self._owner:
            return
        atexit.unregister(self.shutdown)
        self._board.close()

    def _ancestry(self, buffer: Buffer, device_ids: Iterable[int]) -> Ancestry:
        self._board.started.wait()
        check_open(self._board)
        with self._board.changed:
            return ancestry(buffer.run, device_ids)

    def _raise_failures(self, buffer: Buffer, device_ids: Iterable[int]) -> None:
        failures = self._ancestry(buffer, device_ids).failures
        if failures:
            raise remote_error(failures, self._platform)

    def _late(self, known: Ancestry) -> list[int]:
        """The devices that have not yet reported what matters."""
        links = self._board.links
        return [d for d in sorted(known.devices) if links[d].ahead and links[d].ahead[0] <= known.last]

    def _ask(self, kind: str, device_ids: Iterable[int], what: Any = None) -> Request:
        with self._order:
            request = Request(next(self._numbers), set(device_ids))
            self._board.requests[request.number] = request
            self._board.post(kind, request, what)
        return request

    def _wait(self, requests: Sequence[Request], timeout_s: float | None = None) -> bool:
        """Until all have answered. Raises DeviceLostError as soon as one of them cannot."""
        board = self._board
        try:
            with board.changed:
                while any(r.waiting for r in requests):
                    check_open(board)
                    for device in {d for r in requests for d in r.waiting}:
                        if board.links[device].lost:
                            raise self._lost_error(board.links[device])
                    if not board.changed.wait(timeout_s) and timeout_s is not None:
                        return False
        finally:
            for request in requests:
                board.requests.pop(request.number, None)
            print_output(board, self.devices)
        return True

    def _link(self, device: int) -> Link:
        self._board.started.wait()
        check_open(self._board)
        return self._board.links[device]

    def _lost_error(self, link: Link) -> DeviceLostError:
        return DeviceLostError(
            message(
                f"{self.devices[link.device]} is gone: {link.lost}",
                rule="values that lived on it, and all that waits for it, are lost",
                try_="ts.init() starts a fresh pool",
            )
        )

    def _hold_back(self, run: Run) -> None:
        """Wait while too much is queued for the run's devices."""
        board = self._board
        with board.changed:
            while board.bytes_ahead > MAX_BYTES_AHEAD or board.runs_ahead(run.devices) > MAX_RUNS_AHEAD:
                if board.closing or board.broken or any(board.links[d].lost for d in run.devices if board.links):
                    return  # whoever asks for the value is told
                board.changed.wait(1.0)
