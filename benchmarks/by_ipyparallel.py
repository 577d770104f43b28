"""ipyparallel: eight engines, what a notebook would otherwise use to hold eight processes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import ipyparallel
import numpy as np

from benchmarks.cases import DEVICES
from benchmarks.serve import Generator, serve, timed

N = DEVICES


def main() -> None:
    """Start the engines and answer."""
    import logging

    with ipyparallel.Cluster(n=N, log_level=logging.ERROR) as client:
        view = client[:]
        view.execute("import numpy as np; x = np.zeros(1, np.float32); y = None", block=True)

        def eager() -> Generator:
            for i in itertools.count(1):
                seconds, _ = timed(lambda: view.execute("x = x + 1", block=True))
                assert [v.item() for v in view["x"]] == [i] * N
                yield seconds

        def device_put() -> Generator:
            host = np.random.default_rng(0).random((8192, 8192), np.float32)
            for i in itertools.count():
                host[0, 0] = i
                seconds, _ = timed(lambda: view.scatter("y", host, block=True))
                yield seconds

        def device_get() -> Generator:
            host = np.random.default_rng(0).random((8192, 8192), np.float32)
            view.scatter("y", host, block=True)
            for _ in itertools.count():
                seconds, back = timed(lambda: view.gather("y", block=True))
                assert np.asarray(back)[8191, 1] == host[8191, 1]
                yield seconds

        cases: dict[str, Callable[[], Any]] = {"eager": eager, "device_put": device_put, "device_get": device_get}
        serve(cases)


if __name__ == "__main__":
    main()
