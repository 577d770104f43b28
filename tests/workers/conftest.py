"""Worker tests drive real processes: one pool of eight a file, started again where a test has broken it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tinyshard as ts
from tests.workers.processes import Controller
from tinyshard.runtime import lifecycle, options
from tinyshard.runtime.controller.pool import ProcessPool


@pytest.fixture(scope="module")
def _one_pool_a_file() -> Iterator[None]:
    yield
    ts.init(devices=8, runtime="local")  # ends the workers, and keeps the process that the next file's are forked from


@pytest.fixture
def pool(_one_pool_a_file: None) -> ProcessPool:
    """Eight worker processes, all alive, and joined as the environment says."""
    runtime = lifecycle._runtime
    joined = options.collectives_for(os.environ.get("TINYSHARD_COLLECTIVES"), 8)
    is_whole = isinstance(runtime, ProcessPool) and runtime.is_alive and len(runtime.devices) == 8
    if runtime is None or not is_whole or runtime.collectives != joined:
        ts.init(devices=8, runtime="process")
    made = lifecycle.current()
    assert isinstance(made, ProcessPool)
    made.pid(0)  # waits until all have been started: tests count them, stop them and end them
    return made


@pytest.fixture
def rows(pool: ProcessPool) -> ts.Sharding:
    """Rows over all eight devices."""
    return ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)


@pytest.fixture
def controller(tmp_path: Path) -> Iterator[Callable[..., Controller]]:
    """Starts programs; they are gone after the test."""
    started: list[Controller] = []

    def start(code: str, **options: str) -> Controller:
        started.append(Controller(code, tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        if each.process.poll() is None:
            each.process.kill()
        each.process.communicate()
