"""The one thread that talks to the workers, and the queue before it.

Any thread appends an item to the queue, which is one atomic step, and goes on. The I/O thread hands each item to the
devices that it concerns, in one order for all, and takes their answers. So a KeyboardInterrupt, which strikes the main
thread anywhere, never leaves half a broadcast behind.

A thread that waits for calls of its own host hands them out itself (`publication`), under the same lock, `carrying`.
"""

from __future__ import annotations

import collections
import contextlib
import selectors
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from tinyshard.errors import RuntimeStateError, TinyshardError, message
from tinyshard.runtime import wire
from tinyshard.runtime.controller.cancellation import Interrupts
from tinyshard.runtime.controller.connection import Link, Request
from tinyshard.runtime.controller.latch import Latch
from tinyshard.runtime.controller.lineage import Run, settle
from tinyshard.runtime.controller.printed import Printed
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.controller.remote_errors import lost_error
from tinyshard.runtime.controller.watchdog import look_again
from tinyshard.runtime.failure import gone
from tinyshard.runtime.forks import abandon_in_child, held_off
from tinyshard.runtime.launch.local import Starter
from tinyshard.runtime.publication import Publication, plan
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.stream import Bell, Outbox, Streams

# back-pressure, for each device: a loop that dispatches faster than it computes waits instead of filling the memory
MAX_RUNS_AHEAD = 1024
MAX_NBYTES_AHEAD = 128 << 20
RUNS_BETWEEN_REPORTS = 64
FEW_RUNS = 16
# a loop that dispatches would otherwise wake the I/O thread for each call, and wait each time until it gives way again
LINGER_S = 0.001
# after so long without anything to do what is kept for a next time is given back
REST_AFTER_S = 5.0
# until then it looks now and then for values that nobody holds any more: nothing wakes it for them
TIDY_EVERY_S = 0.25
_UNHURRIED = ("run", "put", "forget")


class Dispatcher:
    """Starts the workers and carries messages. What several threads touch is guarded by `state`, the queues apart.

    Args:
        starter: starts the workers, and ends them.
        platform: what they are called.
        buffers: tells which values nobody holds any more.
        memory: the first part of what the devices share with this process, if they do.
        rest: called when there has been nothing to do for a while.
        lend: called with a block of shared memory and a device, before that is told of the block.
    """

    def __init__(
        self,
        starter: Starter,
        platform: str,
        buffers: Buffers,
        memory: ControlBlock | None = None,
        rest: Callable[[], object] = lambda: None,
        lend: Callable[[Any, int], object] = lambda block, device: None,
    ) -> None:
        self.state = threading.Lock()
        self._carrying = threading.Lock()  # who has it hands out; it may take `state`, not the other way round
        self._publication: Publication | None = None
        self._carried_s = 0.0
        self._is_awaited = False  # somebody has waited for something since the last call
        self._has_carried = False  # a thread that waits has handed something out since the I/O thread last looked
        self.started = Latch()
        self.ended = Latch()
        self.links: list[Link] = []
        self._heard: list[int] = []  # by device, how many failures have come from it
        self.broken: TinyshardError | None = None
        self.closing = False
        self.has_lost = False  # some device is gone
        self._starter = starter
        self._platform = platform
        self._buffers = buffers
        self._memory = memory
        self._rest = rest
        self._lend = lend
        self._busy_s = time.monotonic()
        self._is_resting = False
        self._has_news = True
        self._bell = None if memory is None else Bell(memory)
        self._streams: Streams | None = None
        self._queue: collections.deque[tuple[Any, ...]] = collections.deque()
        self._unsettled: collections.deque[Run] = collections.deque()
        self._known: dict[int, set[int]] = {}
        self._held_back: collections.deque[Latch] = collections.deque()
        self._is_idle = False  # it sleeps until somebody wakes it
        self._is_listening = False  # likewise, or for `LINGER_S`
        self._interrupts = Interrupts(self.links, self._unsettled, self.state)
        self._newest = 0  # number of the last call that was handed out
        self._printed = Printed(self.state)
        with held_off():
            self._selector = selectors.DefaultSelector()
            self._wake_in, self._wake_out = socket.socketpair()
            abandon_in_child(self)
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._thread = threading.Thread(target=self._serve, name="tinyshard I/O", daemon=True)
        self._thread.start()

    # ---- from any thread --------------------------------------------------------------------------------------

    def post(self, kind: str, nbytes: int, *item: Any) -> None:
        """Queue a message.

        Args:
            kind: "put" (run, value, blocks, each with its place in shared memory or None), "run" (run, program, inputs,
                outputs), "forget" (program), "cancel" (the interrupted line), "look", or a question (request, what,
                and a tensor into which the devices write with its block, or None).
            nbytes: size of the tensors in it.
        """
        self._queue.append((kind, nbytes, *item))
        if self._is_idle:
            # a call that comes alone goes out from here; more of them, and one after a rest, are for the I/O thread
            is_alone = self._is_awaited or time.monotonic() - self._carried_s > LINGER_S
            if kind != "run" or not is_alone or self._is_resting or not self._carry():
                self._wake()
        elif self._is_listening and kind not in _UNHURRIED:
            self._wake()
        self._is_awaited = kind not in _UNHURRIED

    def hurry(self) -> None:
        """Let what is queued go out now: somebody is about to wait for it."""
        self._is_awaited = True
        if self._queue and self._is_listening and not self._carry():
            self._wake()

    def _carry(self) -> bool:
        """Hand out what is queued from this thread; False if something of it is for the I/O thread to do."""
        streams = self._streams
        if streams is None:
            return False
        # a lock may be this very thread's: garbage collection and signals run Python anywhere
        if self._carrying.locked() or self.state.locked():
            return False
        with self._carrying:
            self._do_publication()
            while self._queue and not self.closing and not self.broken:
                item = self._queue[0]
                # once that many are not over, devices are to be asked how far they are, which is the I/O thread's work
                if item[0] != "run" or self.has_lost or len(self._unsettled) >= RUNS_BETWEEN_REPORTS:
                    return False
                released = self._buffers.released()  # all that uses them is queued by now: so this comes first
                is_last = len(self._queue) == 1
                known = self._known.get(item[3].number) or set()
                self._publication = plan(item, self.links, known, released if is_last else (), streams)
                if self._publication is None:
                    return False
                self._has_carried = True
                self._carried_s = time.monotonic()
                self._do_publication()
        return True

    def _do_publication(self) -> None:
        """Do what is left of the publication, if there is one: each step may have been done."""
        publication = self._publication
        if publication is None or self._streams is None:
            return
        run = publication.run
        with self.state:  # before a device can be done with it
            self._newest = run.number
            if not run.settled and not (self._unsettled and self._unsettled[-1] is run):
                self._unsettled.append(run)
        self._streams.publish(publication.message, run.devices, publication.counts)
        self._buffers.drop(publication.released)
        if self._queue and self._queue[0] is publication.item:
            self._queue.popleft()
        self._publication = None

    def check_open(self) -> None:
        """Raise if the pool is closed or broken: RuntimeStateError, or DeviceLostError if a device did not start."""
        if self.closing:  # first: after ts.init(), what broke the old pool is nobody's business any more
            raise RuntimeStateError(
                message(
                    "the pool that held this value has been shut down",
                    rule="values live in the workers and end with them",
                    try_="ts.init() starts a fresh pool; make the arrays again there",
                )
            )
        if self.broken is not None:
            raise type(self.broken)(str(self.broken))

    @property
    def has_few_calls(self) -> bool:
        """Whether so few are not over that nobody needs to be held back for a call, which is a few bytes."""
        return len(self._queue) + len(self._unsettled) < FEW_RUNS

    def hold_back(self, devices: Sequence[int], wait: Callable[[Latch], object]) -> None:
        """Wait while too much is queued for one of these devices.

        Args:
            devices: their ids.
            wait: waits for a latch.
        """
        while self._has_too_much(devices):
            latch = Latch()
            self._held_back.append(latch)
            if self.closing or self.broken or not self._has_too_much(devices):
                return
            wait(latch)

    def _has_too_much(self, devices: Sequence[int]) -> bool:
        queued = list(self._queue)  # one atomic step
        nbytes = sum(item[1] for item in queued)
        if len(queued) > MAX_RUNS_AHEAD or nbytes > MAX_NBYTES_AHEAD:
            return True
        if not self.started.is_open:
            return False
        # read after the queue: what moves on meanwhile counts twice, not never
        most = MAX_RUNS_AHEAD - len(queued) - RUNS_BETWEEN_REPORTS  # so many may have been handed out as errands
        links = [self.links[d] for d in devices]
        return any(
            not x.lost and (x.has_ahead(most) or x.nbytes + x.lent_nbytes + nbytes > MAX_NBYTES_AHEAD) for x in links
        )

    def take_printed(self) -> list[tuple[int, str]]:
        """The lines that workers have printed since the last time, each with its device, in device order."""
        return self._printed.take()

    def is_quiet(self, told: list[int]) -> bool:
        """Whether all that devices have said has been taken in.

        Args:
            told: by device, how many failures it has sent.
        """
        if not self.started.is_open or self._heard != told:
            return False
        # first the pipes, then the thread: what it has read from them it has taken in when it is idle again
        return self._printed.is_all_read() and self._is_listening

    def pass_all(self, finished: Sequence[int]) -> None:
        """Note how far devices are.

        Args:
            finished: by device, the number of the last call that it has finished.
        """
        with self.state:
            for link, number in zip(self.links, finished, strict=True):
                if number > link.done:
                    link.done = number
            self._settle()

    def calls_ahead(self) -> list[Run]:
        """The calls that were handed out and are not known to be over, the oldest first."""
        return list(self._unsettled)  # one step, in C

    def close(self) -> None:
        """End the thread and the workers. An interrupt only ends the waiting for it."""
        self.closing = True
        self._wake()
        self.ended.wait()

    def abandon(self) -> None:
        """In a process that user code has forked from this one: let go of what the two share."""
        self.broken = _unusable("this process was forked from the one that the pool belongs to")
        self._close_own_ends()

    def _wake(self) -> None:
        with contextlib.suppress(OSError):  # a full pipe wakes just as well; a closed one has nobody to wake
            self._wake_out.send(b"x")

    # ---- the I/O thread: its life -----------------------------------------------------------------------------

    def _serve(self) -> None:
        try:
            self._start_workers()
            self.started.open()
            while not self.closing:
                self._turn()
        except TinyshardError as error:
            self.broken = error
        except BaseException:  # whoever waits must hear of it
            self.broken = _unusable("the thread that talks to the workers failed\n" + traceback.format_exc().strip())
        finally:
            self._end()

    def _start_workers(self) -> None:
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        for link in self._starter.links(lambda: not self.closing):
            if self._memory is not None and self._bell is not None:
                link.outbox = Outbox(self._memory, link.device, self._bell)
            self.links.append(link)
            self._heard.append(0)
            self._selector.register(link.sock, selectors.EVENT_READ, link)
            self._selector.register(link.control, selectors.EVENT_READ, link)
            self._selector.register(link.output, selectors.EVENT_READ, link)
            self._printed.watch(link)
        if self._memory is not None and self._bell is not None:
            self._streams = Streams(self._memory, len(self.links), self._bell)

    def _turn(self) -> None:
        """Hand out what is queued, write, then wait for news and take it in."""
        with self._carrying:
            self._do_publication()
            was_busy = self._distribute() or self._has_carried
            self._has_carried = False
            for link in self.links:
                if link.has_output:
                    link.write()
                    self._watch(link)
                if link.words or link.is_control_watched:
                    link.write_words()
                    self._watch_control(link)
            if self._bell is not None:
                self._bell.ring()
        if was_busy or self._has_news:
            self._release_held_back()
        self._is_listening = True
        self._is_idle = not was_busy  # from here on, whoever posts also wakes
        pause_s = None if self._is_resting else TIDY_EVERY_S
        events = self._selector.select(0 if self._queue else LINGER_S if was_busy else pause_s)
        self._is_idle = self._is_listening = False
        self._has_news = bool(events)
        now_s = time.monotonic()
        if events or was_busy or self._queue or self._has_carried:
            self._busy_s = now_s
        self._is_resting = now_s - self._busy_s > REST_AFTER_S
        if self._is_resting:
            self._rest()
        if events:
            with self._carrying:
                self._do_publication()  # before a device is found to be lost, all that it has before it is known
                for key, mask in events:
                    self._take_in(key, mask)

    def _take_in(self, key: selectors.SelectorKey, mask: int) -> None:
        link = key.data
        if link is None:
            with contextlib.suppress(BlockingIOError):
                self._wake_in.recv(4096)
        elif key.fd == link.output:
            self._take_lines(link)
        elif key.fileobj is link.control:
            self._hear(link)
        elif mask & selectors.EVENT_READ and not link.lost:
            self._read(link)

    def _watch(self, link: Link) -> None:
        if not link.lost and link.awaits_socket != link.is_watched:
            link.is_watched = link.awaits_socket
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.awaits_socket else 0)
            self._selector.modify(link.sock, events, link)

    def _watch_control(self, link: Link) -> None:
        if link.control.fileno() >= 0 and bool(link.words) != link.is_control_watched:
            link.is_control_watched = bool(link.words)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.words else 0)
            self._selector.modify(link.control, events, link)

    def _end(self) -> None:
        """Kill all workers, close everything, and wake all who wait."""
        with self._carrying:  # who hands out sees it, or is done
            self.closing = self.closing or not self.broken
            self._publication = None
        for link in self.links:
            self._take_lines(link)
        for link in self.links:
            self._starter.end(link)
            link.close()
        self._close_own_ends()
        self._unsettled.clear()
        self.started.open()
        self.ended.open()  # who posts from here on sees it; who posted before is found below
        for link in self.links:
            link.fail_asked()
        while self._queue:
            for part in self._queue.popleft():
                if isinstance(part, Request):
                    part.over.open()
        self._release_held_back()

    def _release_held_back(self) -> None:
        """Let those who are held back look again."""
        while self._held_back:
            self._held_back.popleft().open()

    def _close_own_ends(self) -> None:
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    # ---- the I/O thread: to the workers -----------------------------------------------------------------------

    def _distribute(self) -> bool:
        """Give every queued item to its devices, then tell them what was released before; whether there was any."""
        was_busy = bool(self._queue)
        released = self._buffers.take_released()  # all that uses them is queued by now, and is sent before
        while self._queue:
            whole = self._queue[0]
            kind, _, *item = whole
            if kind == "run":
                self._send_run(whole, released if len(self._queue) == 1 else {})
            elif kind == "put":
                self._send_put(*item)
            elif kind == "forget":
                self._forget(item[0])
            elif kind == "cancel":
                self._interrupts.add(self._newest, item[0])  # what is handed out from here on is not concerned
            elif kind == "look":
                self._look()
            else:
                self._ask(kind, *item)
            self._queue.popleft()  # only now: until the links have it, it counts here
        for devices, values in released.items():
            self._send(devices, ("free", values))
        return was_busy

    def _send_run(self, item: Sequence[Any], released: dict[tuple[int, ...], list[int]]) -> None:
        """Hand out a call, and with it what its devices hold and nobody will use after it."""
        run, program = item[2:4]
        if run.communicates:
            lost = next((link for link in self.links if link.lost), None)
            if lost is not None:
                # nobody starts it, also without the lost device among them: those left are no longer connected
                with self.state:
                    run.failures.update(dict.fromkeys(run.devices, (gone(lost.device, lost.lost), run.where)))
                    settle(run)
                return
        known = self._known.setdefault(program.number, set())
        if not known.issuperset(run.devices):
            new = [d for d in run.devices if d not in known]
            self._send(new, ("program", program.number, program))
            known.update(new)
        self._count(run)  # before a device can be done with it
        free = released.pop(run.devices, ())
        self._give(run.devices, [wire.frame_of_call(run.number, program.number, item[4], item[5], free, ())])

    def _send_put(self, run: Run, value: int, blocks: dict[int, Any]) -> None:
        self._count(run)
        for device, (block, place) in blocks.items():
            if place is not None and not self.links[device].lost:
                self._lend(place, device)  # by this thread, which Ctrl-C cannot strike before it tells the device
            head = ("put", run.number, value, tuple(block.shape), block.dtype, place)
            self._send([device], head, wire.tensor_bytes(block) if place is None else None)
        for device, (block, place) in blocks.items():
            if place is not None and self.links[device].lend(run.number, block.nbytes):
                self._send([device], ("sync", 0, None))

    def _count(self, run: Run) -> None:
        """Note that devices have a call before them, and ask now and then how far they have come."""
        self._newest = run.number
        self._unsettled.append(run)
        for device in run.devices:
            link = self.links[device]
            if link.lost:
                run.failures[device] = (gone(device, link.lost), run.where)
                continue
            link.count(run.number)
            link.since_report += 1
            if link.since_report >= RUNS_BETWEEN_REPORTS:
                link.since_report = 0
                self._send([device], ("sync", 0, None))

    def _forget(self, program: int) -> None:
        self._send(self._known.pop(program, ()), ("forget", program))

    def _ask(self, kind: str, request: Request, what: Any, lent: tuple[Any, Any] | None) -> None:
        for device in request.waiting:
            if lent is not None and not self.links[device].lost:
                self._lend(lent[1], device)
            self.links[device].asked[request.number] = request
            if self.links[device].lost:
                self.links[device].fail_asked()
        self._send(request.waiting, (kind, request.number, what))

    def _send(self, devices: Iterable[int], head: tuple[Any, ...], payload: memoryview | None = None) -> None:
        self._give(devices, wire.frame(head, payload))

    def _give(self, devices: Iterable[int], pieces: list[memoryview]) -> None:
        for device in devices:
            self.links[device].queue(pieces)

    # ---- the I/O thread: from the workers ---------------------------------------------------------------------

    def _read(self, link: Link) -> None:
        messages = link.read()
        if messages is None:
            self._lose(link)
            return
        if messages:
            self._take_lines(link)  # what a worker printed before it answered is there before the answer
        with self.state:
            for head, payload in messages:
                self._take(link, head, payload)

    def _take(self, link: Link, head: tuple[Any, ...], payload: bytearray | None) -> None:
        if head[0] == "ready":
            link.is_up = True
        elif head[0] == "room":
            pass  # it woke this thread, which writes in its next turn
        elif head[0] == "failed":
            _, number, failure = head
            # a device that had done its part could not take the result: it tells whoever asks it for that
            run = next((run for run in self._unsettled if run.number == number), None)
            if run is not None:
                run.failures.setdefault(link.device, (failure, run.where))
            self._heard[link.device] += 1
        elif head[0] == "reply":
            _, number, done, answer = head
            link.done = max(link.done, done)
            self._settle()
            request = link.asked.pop(number, None)
            if request is not None:
                request.answers[link.device] = (answer, payload)
                request.waiting.discard(link.device)
                if not request.waiting:
                    request.over.open()

    def _settle(self) -> None:
        """Calls that are over on all their devices, in order."""
        while self._unsettled:
            run = self._unsettled[0]
            number = run.number
            for device in run.devices:
                link = self.links[device]
                if link.done < number and not link.lost:
                    return
            settle(self._unsettled.popleft())

    # ---- the I/O thread: the control lines --------------------------------------------------------------------

    def _hear(self, link: Link) -> None:
        if link.control.fileno() < 0:
            return
        messages = link.hear()
        if messages is None:
            self._close_control(link)
        for head, _ in messages or ():
            if head[0] == "frozen":
                self._interrupts.note_frozen(link.device, head[1])
            elif head[0] == "seen" and link.sight is not None:
                link.sight = look_again(link.sight, time.monotonic(), *head[1:])

    def _close_control(self, link: Link) -> None:
        if link.control.fileno() >= 0:
            self._selector.unregister(link.control)
            link.control.close()

    def _look(self) -> None:
        for link in self.links:
            if not link.lost:
                link.look(time.monotonic())

    def _take_lines(self, link: Link) -> None:
        self._printed.read(link, self._selector.unregister)

    def _lose(self, link: Link) -> None:
        """The worker is gone: say so to all who wait for it."""
        self._selector.unregister(link.sock)
        self._close_control(link)
        self._take_lines(link)
        lost = self._starter.end(link)
        with self.state:
            link.lost = lost
            self.has_lost = True
            link.drop()
            for run in self._unsettled:
                if run.number > link.done and link.device in run.devices:
                    run.failures.setdefault(link.device, (gone(link.device, lost), run.where))
            self._settle()
        link.fail_asked()
        for other in self.links:
            other.tell("lost", link.device, lost)
        self._interrupts.note_frozen(link.device, link.done)
        if not link.is_up:
            raise lost_error(link.device, lost, self._platform)  # the others wait for it: no device will start


def _unusable(why: str) -> RuntimeStateError:
    return RuntimeStateError(
        message(
            "the pool cannot be used any more",
            got=why,
            rule="values live in the workers and end with them",
            try_="ts.init() starts a fresh pool; make the arrays again there",
        )
    )
