"""Random programs give what plain torch gives: placements, jit and shard_map regions do not change a value.

Some hundreds by default, 10,000 with TINYSHARD_SWEEP=whole. A program that fails is printed as code, made small by
hypothesis; once mended, it is kept in KEPT.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import check_same
from tests.sweeps.random_programs import PLAIN, SHARDED, program, run

COUNT = 10_000 if os.environ.get("TINYSHARD_SWEEP") == "whole" else 300
SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large]

# programs that once gave something else
KEPT: dict[str, str] = {}


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def check_program(source: str) -> None:
    """Run it on plain tensors and on Arrays."""
    want = run(source, PLAIN)
    try:
        got = run(source, SHARDED)
        check_same([x if isinstance(x, ts.Array) else ts.array(x) for x in got], want, "results", 10.0)
    except Exception as problem:
        problem.add_note(f"run of\n\n{source}\n")
        raise


@given(data=st.data())
@settings(max_examples=COUNT, suppress_health_check=SLOW)
def test_a_random_program_gives_what_plain_torch_gives(data: Any) -> None:
    check_program(program(lambda choices: data.draw(st.sampled_from(choices))))


@pytest.mark.parametrize("name", KEPT)
def test_a_program_that_once_missed_gives_what_plain_torch_gives(name: str) -> None:
    check_program(KEPT[name])
