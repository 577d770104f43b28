"""What fault tests share: a wait that must be over in time, and a device that is seen to wait in a collective.

`make faults TIMES=20` runs the fault suite twenty times in a row. `make test` runs one case of each kind, and
`make test-all` the series. What is promised, and what shows it:

    A device dies: waits that depend on it end within 5 s and name it and the signal; other devices   test_faults_deaths
    keep what they have; ts.init() starts afresh, old Arrays say so; what was saved is loaded
    under any sharding
    The process that forks and reaps the workers is stopped: a death is named all the same,       test_faults_deaths
    and a pool is shut down
    Devices stop and die at random moments of a busy machine: each wait ends                      test_faults_random
    Memory runs out, on a device, in an exchange, for all: a clear error, or a death by name;         test_faults_memory
    nobody is held up                                                    unit: shm_collectives, system, live
    Ctrl-C ends a cell within 2 s, cancels what is queued, and leaves the rest                    test_faults_interrupts
    wherever it strikes, the next call works and no memory    test_pool_endings, test_faults_handing_out, test_faults_
    stays held                                                                                      interrupted_blocks
    A collective that cannot complete names who reached it; who computes for long is waited for       test_faults_stalls
    Shutdown, restart, crash: no process, port or file is left                      test_pool_endings, test_faults_walls
    A system without memory files, flags or measurements: the same, or gloo and a warning             test_other_systems
    Notebooks do not see each other; nobody else gets in; little or no /dev/shm does                   test_faults_walls
    A controller without stdin, stdout or stderr has its devices all the same              test_closed_descriptors
    A child that user code forks gets on, whatever the pool does, and keeps nothing of it           test_forked_children
    What no device can hold is refused before it is sent                               test_holdable, unit/test_holdable
    A loop that dispatches faster than devices compute fills no memory                      test_faults_walls, test_pool
    Memory of values that are gone goes back to the system within seconds, without a further call            test_memory
    The same between machines; strangers are refused          test_hosts, unit/test_hosts, unit/test_authentication
    An op that fails concerns who asks for its value                                                       test_failures
    What cannot be sent concerns who asks for its value                                                    test_failures
    Wrong calls say what is wrong and harm nothing                                 ../wrong_calls.py, test_bad_input

Two files may run at a time, so that a wait shares the cores with eight more workers: the time is the promised one all
the same. What would not be over in time then, or keeps all cores busy, carries the marker `alone`.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from tests.workers.processes import wait_until
from tinyshard.runtime.controller.waiting import Waiting

# what the project promises of every wait after a fault
OVER_WITHIN_S = 5


def outcome(call: Callable[[], Any], within_s: float = OVER_WITHIN_S) -> Callable[[], Any]:
    """Begin a call in a thread.

    Returns:
        A function that waits for its end, fails if that is not in time, and gives what it returned or raised.
    """
    ended = []

    def run() -> None:
        try:
            ended.append(call())
        except BaseException as error:  # it is what the test asks about
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def end() -> Any:
        thread.join(within_s)
        assert ended, f"not over after {within_s} s"
        return ended[0]

    return end


def wait_until_in_a_collective(pool: Any, devices: Sequence[int]) -> None:
    """Until these devices wait for others."""

    def they_do() -> bool:
        pool._dispatcher.ask_for_look()
        sights = [pool._dispatcher.links[device].sight for device in devices]
        return all(sight is not None and sight.current is not None for sight in sights)

    wait_until(they_do, f"devices {devices} are in a collective")


def wait_until_throttled(what: str) -> None:
    """Until a thread that dispatches waits, because a device has too many calls before it."""
    wanted = {Waiting.throttle.__code__, Waiting._block.__code__}

    def it_waits() -> bool:
        stacks = [traceback.walk_stack(frame) for frame in sys._current_frames().values()]
        return any(wanted <= {frame.f_code for frame, _ in stack} for stack in stacks)

    wait_until(it_waits, what)
