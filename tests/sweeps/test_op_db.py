"""Every op of torch's op database on sharded operands: plain torch's numbers, or a row in the table of misses."""

from __future__ import annotations

import zlib
from collections.abc import Container, Iterator

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_SWEEP, IS_WHOLE, drawn, every
from tests.sweeps.op_db import DEVICES, DTYPES, OPS, check, samples
from tests.sweeps.op_db_misses import MISSES, NOT_RUN, ONE_OP

SAMPLES = drawn(1, 1, 14)  # of float32; of each other dtype a quarter, at least one


@pytest.fixture(scope="module", autouse=True)
def local_devices() -> Iterator[None]:
    ts.init(devices=DEVICES, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize("name", every(6, (name for name in OPS if name not in NOT_RUN)))
def test_an_op_on_sharded_operands_gives_what_torch_gives(name: str) -> None:
    info = OPS[name]
    found = []
    count = 0
    for dtype in DTYPES:
        if dtype not in info.dtypes or (not IS_SWEEP and dtype not in (torch.float32, _other(name, info.dtypes))):
            continue
        for number, sample in samples(info, dtype, SAMPLES if dtype == torch.float32 else -(-SAMPLES // 4)):
            count += 1
            found += check(info, dtype, number, sample, mapped=number % 4 == 0)
    allowed = MISSES.get(name)
    modes = set(allowed.modes) if allowed is not None else set()
    others = [miss for miss in found if miss.kind == "wrong" or miss.mode not in modes]
    assert not others, f"{len(others)} of {count} samples:\n" + "\n".join(map(str, others[:8]))
    if allowed is not None and IS_SWEEP:
        passed = modes - {miss.mode for miss in found}
        assert not passed, f"{name} is in the table of misses, and nothing missed in {sorted(passed)}: take it out"


def _other(name: str, dtypes: Container[torch.dtype]) -> torch.dtype | None:
    """The one other dtype that a drawn part runs, in `make test` for a third of the ops: drawn by the op's name."""
    having = [d for d in DTYPES[1:] if d in dtypes]
    number = zlib.crc32(name.encode())
    return having[number % len(having)] if having and (IS_WHOLE or number % 3 == 0) else None


def test_the_table_of_misses_names_ops_of_the_database_and_no_wrong_number() -> None:
    assert set(MISSES) <= set(OPS)
    assert set(NOT_RUN) <= set(OPS)
    counted = {ONE_OP.get(name, name) for name, miss in MISSES.items() if miss.reason in ("written", "refused")}
    assert len(counted) <= 10, sorted(counted)
