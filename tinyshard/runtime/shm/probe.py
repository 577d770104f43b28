"""Whether memory can be shared here; tried on untested systems: two processes exchange data in it, as workers will.

On Linux with x86-64, where all tests have passed, nothing is tried and no time is lost. Elsewhere the first start
of devices takes two starts of Python longer (0.5 s on two cores), since separate processes can hang without harm.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
from multiprocessing.connection import wait
from pathlib import Path

from tinyshard.runtime.shm import control_block, segment, system
from tinyshard.runtime.shm.control_block import ControlBlock
from tinyshard.runtime.shm.segment import Mapping

# on a machine that is busy
_START_WITHIN_S = 30.0
# from the moment when both processes are up
_EXCHANGE_WITHIN_S = 1.0
# only the modules of this folder: the package loads torch, which takes seconds
_START = """
import sys, types
package = types.ModuleType("tinyshard")
package.__path__ = [sys.argv[1]]
sys.modules["tinyshard"] = package
from tinyshard.runtime.shm import probe
probe.meet(int(sys.argv[2]), int(sys.argv[3]))
"""


def why_not(count: int) -> str:
    """Why `count` workers cannot share memory here; empty if they can.

    Communication: none; two processes are started for a moment if it must be tried.
    """
    if not segment.is_possible(count):
        return "the system grants no file that all of them can map: address space, or room for a file, is limited"
    return "" if system.is_measured() else _failure()


@functools.cache
def _failure() -> str:
    """The error when two processes exchanged data; empty if there was none."""
    fd = segment.create(2)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for member in (0, 1):
            command = [sys.executable, "-P", "-c", _START, str(Path(__file__).parents[2]), str(fd), str(member)]
            null, pipe = subprocess.DEVNULL, subprocess.PIPE
            started.append(subprocess.Popen(command, stdin=null, stdout=pipe, stderr=null, pass_fds=[fd]))
        end_s = time.monotonic() + _START_WITHIN_S
        for process in started:
            assert process.stdout is not None
            # readable once the process is up, or has ended
            if not wait([process.stdout.fileno()], max(0.0, end_s - time.monotonic())):
                return f"two processes that tried it did not start within {_START_WITHIN_S:g} s"
        end_s = time.monotonic() + _EXCHANGE_WITHIN_S
        codes = [process.wait(max(0.0, end_s - time.monotonic())) for process in started]
        return "" if codes == [0, 0] else f"two processes that tried it ended with codes {codes}"
    except subprocess.TimeoutExpired:
        return f"two processes that tried it did not exchange anything within {_EXCHANGE_WITHIN_S:g} s"
    except OSError as error:
        return f"no processes can be started to try it: {error}"
    finally:
        os.close(fd)
        for process in started:
            process.kill()
            process.communicate()


def meet(fd: int, member: int) -> None:
    """One of the two processes: report that it is up, then write to the memory, and wait for its peer's write.

    Args:
        fd: of a memory for two devices.
        member: 0 or 1.
    """
    memory = Mapping(fd, os.fstat(fd).st_size).bytes[: control_block.nbytes(2)]
    control = ControlBlock(memory, 2)
    monitor, waking, words = control.exchange_monitor, control.waking(member), control.exchanges["message"][0].data
    sys.stdout.write("x")
    sys.stdout.flush()
    with monitor:
        words[member] = 1
    waking.wake((1 - member,))
    waking.wait(lambda: words[1 - member] == 1)
