"""torchmonarch: one controller and an actor in each of eight processes, on the same machine."""

from __future__ import annotations

import itertools

from monarch.actor import Actor, endpoint, this_host

from benchmarks.cases import DEVICES
from benchmarks.serve import Generator, serve, timed


class Adder(Actor):
    """Adds to a number that it keeps."""

    def __init__(self) -> None:
        self.x = 0

    @endpoint
    def add(self, number: int) -> int:
        """The sum so far."""
        self.x += number
        return self.x


def main() -> None:
    """Start the actors and answer."""
    adders = this_host().spawn_procs(per_host={"gpus": DEVICES}).spawn("adders", Adder)

    def eager() -> Generator:
        adders.add.call(0).get()
        for i in itertools.count(1):
            seconds, made = timed(lambda: adders.add.call(1).get())
            assert [total for _, total in made] == [i] * DEVICES
            yield seconds

    serve({"eager": eager})


if __name__ == "__main__":
    main()
