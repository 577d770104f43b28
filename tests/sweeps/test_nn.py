"""The modules and losses of torch.nn on Arrays give what they give on plain tensors, forward and backward.

`make test` runs the first row of each module in one layout, `make test-all` a fifth of the others too, `make sweep` all
rows in all layouts. What is expected to miss stands in MISSES, and one that does not miss is a failure too.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from torch import nn

import tinyshard as ts
from tests.extent import IS_SWEEP, mostly_whole
from tests.sweeps.nn_cases import CASES
from tests.sweeps.nn_losses import LOSSES
from tests.sweeps.nn_running import WAYS, outcomes

ROWS = {**CASES, **LOSSES}
LAYOUTS = range(8 if IS_SWEEP else 1)

ANY_WAY = tuple(WAYS)

# row, or all rows of a loss by its name: the ways that are refused, and why
MISSES: dict[str, tuple[tuple[str, ...], str]] = {
    "BatchNorm1d no affine, averages": (("forward", "gradient", "jit"), "statistics in Arrays, values read"),
    "BatchNorm1d training in Arrays": (("forward", "gradient"), "statistics in Arrays"),
    "BatchNorm1d training, three dims": (("forward", "gradient"), "statistics in Arrays"),
    "BatchNorm2d training in Arrays": (("forward", "gradient"), "statistics in Arrays"),
    "BatchNorm3d training": (("forward", "gradient"), "statistics in Arrays"),
    "Embedding max_norm": (ANY_WAY, "weight written"),
    "InstanceNorm2d statistics": (("forward", "gradient"), "statistics in Arrays"),
    "ReLU in place": (("forward",), "operand written"),
    "CTCLoss": (("jit",), "shape from values"),
    "CTCLoss zero_infinity": (("jit",), "shape from values"),
    "Dropout training": (ANY_WAY, "random"),
    "Dropout2d training": (ANY_WAY, "random"),
    "RReLU training": (ANY_WAY, "random"),
}

# of torch.nn, and not swept: what they are instead of a call that has an answer
NOT_CALLS = {
    "containers": "Container Module ModuleDict ModuleList ParameterDict ParameterList Parameter Buffer",
    "no values yet": "UninitializedBuffer UninitializedParameter",
    "made of others that are swept": "Transformer TransformerDecoder CrossMapLRN2d RNNBase RNNCellBase",
    "for torch's own ways of parallel computing": "DataParallel SyncBatchNorm",
    "options": "LinearCrossEntropyOptions",
    "deprecated": "NLLLoss2d",
    "shapes from values": "AdaptiveLogSoftmaxWithLoss",
}


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def expected_to_miss(name: str) -> tuple[str, ...]:
    """The ways of a row that its entry in the table says are refused."""
    ways, _ = MISSES.get(name) or MISSES.get(name.rpartition(", ")[0]) or ((), "")
    return ways


def module_of(name: str) -> str:
    return name.partition(",")[0].split()[0]


def drawn() -> list[Any]:
    """The rows of this run."""
    first = set({module_of(name): name for name in reversed(ROWS)}.values())
    rows = [name for name in ROWS if IS_SWEEP or name in first or random.Random(name).random() < 1 / 5]
    return mostly_whole(rows, first.__contains__)


def check_row(name: str, layouts: Sequence[int]) -> None:
    """Call a row in these layouts, in every way, and hold what comes of it against plain torch or the table."""
    missing = expected_to_miss(name)
    for each in outcomes(name, ROWS[name], layouts):
        if each.way in missing:
            assert isinstance(each.problem, ts.TinyshardError), f"{each.what}\nis in the table, and is not refused"
        elif each.problem is not None:
            raise AssertionError(f"{each.what}\n{type(each.problem).__name__}: {each.problem}") from each.problem


@pytest.mark.parametrize("name", drawn())
def test_a_module_and_its_gradients_equal_plain_torchs(name: str) -> None:
    check_row(name, LAYOUTS)


def test_every_module_of_torch_nn_has_a_row_or_a_reason() -> None:
    left_out = {name for names in NOT_CALLS.values() for name in names.split()}
    rows = set(map(module_of, ROWS))
    public = {name for name in dir(nn) if isinstance(getattr(nn, name), type) and not name.startswith("Lazy")}
    assert public - rows - left_out == set()
    assert left_out & rows == set()


def test_every_row_of_the_table_of_misses_is_a_row() -> None:
    names = {*ROWS, *(name.rpartition(", ")[0] for name in LOSSES)}
    assert MISSES.keys() <= names
