"""Each rule by which the partitioner keeps operands in parts, held against torch's values; the other ops as well."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest

import tinyshard as ts
from tests.extent import drawn
from tests.sweeps import aten_calls, factors

pytestmark = pytest.mark.xdist_group("rules")  # one process collects the calls of the op database

DRAWS = drawn(1, 3, 60)
PARTS = drawn(16, 16, 24)  # none takes longer than the limit of a test
SAMPLES = drawn(1, 2, 12)
EVERY = drawn(3, 1, 1)  # of the ops of the database
# kernels that make sparse tensors
SPARSE = {
    "aten._sparse_coo_tensor_with_dims_and_tensors.default",
    "aten._to_sparse.default",
    "aten._to_sparse.sparse_dim",
}


@pytest.fixture(scope="module", autouse=True)
def local_devices() -> Iterator[None]:
    ts.init(devices=10, runtime="local")
    yield
    ts.shutdown()


@cache
def found() -> dict[str, tuple[Any, list[aten_calls.Call]]]:
    with ThreadPoolExecutor(1) as thread:  # torch formats the stack of each seed that it sets, and pytest's is deep
        collected = thread.submit(aten_calls.collect, SAMPLES, EVERY).result()
    return {str(op): (op, calls) for op, calls in collected.items()}


@pytest.mark.parametrize("part", range(PARTS))
def test_an_op_partitioned_in_random_layouts_gives_what_torch_gives(part: int) -> None:
    wrong = []
    for name in sorted(found())[part::PARTS]:
        if name in SPARSE:
            continue
        op, calls = found()[name]
        for seed, outcome in aten_calls.outcomes(op, calls, DRAWS):
            if isinstance(outcome, ts.DtypeError) and "torch.sparse_coo" in str(outcome):
                continue  # a sparse result is refused
            if isinstance(outcome, Exception):
                wrong.append(f"{seed}: {type(outcome).__name__}: {outcome}")
            elif outcome.wrong is not None:
                wrong.append(f"{seed}: {outcome.wrong}; {outcome.case}; {outcome.steps}")
    assert not wrong, "\n".join(wrong[:10])


CALLS = drawn(2, 6, 60)


@pytest.mark.parametrize("part", range(PARTS))
def test_an_op_on_blocks_gives_blocks_or_parts_of_the_result_as_its_rule_says(part: int) -> None:
    wrong = []
    for name in sorted(found())[part::PARTS]:
        op, calls = found()[name]
        for call in [*calls[: CALLS // 2], *calls[CALLS // 2 :][-CALLS // 2 :]]:
            try:
                wrong += [f"{name}: {problem}" for problem in factors.problems(op, call)]
            except Exception as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
    assert not wrong, "\n".join(wrong[:10])
