"""What fault tests share: a wait that must be over in time, and a device that is seen to wait in a collective."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from tests.workers.processes import wait_until

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
        pool._board.post("look", 0)
        sights = [pool._board.links[device].sight for device in devices]
        return all(sight is not None and sight.spot is not None for sight in sights)

    wait_until(they_do, f"devices {devices} are in a collective")
