"""Writes tinyshard/partition/verified.py: the rules of DTensor's to be used, and the kernels that take any strides.

    python -m tests.sweeps.verify [draws]

Each aten op that torch's op database comes down to is partitioned by DTensor's rule, whatever it says, for operands in
`draws` random layouts (default 120), and run. A rule with one wrong number, or one error, is not written down. It takes
about half an hour on two cores; run it when torch changes.
"""

from __future__ import annotations

import os
import sys
import textwrap
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[2] / "tinyshard" / "partition" / "verified.py"
HEADER = '''"""What the sweep of the partitioning rules has found right; `python -m tests.sweeps.verify` writes it.

RULES        aten ops whose rule of DTensor's gave torch's numbers in every layout that was drawn; others are gathered
ANY_STRIDES  aten ops whose kernel gave torch's numbers on operands with transposed memory; others get contiguous ones
"""

# ruff: noqa: SIM905
from __future__ import annotations

'''
_calls: dict[Any, Any] = {}


class Everything:
    """A set that has everything in it."""

    def __contains__(self, name: object) -> bool:
        return True


def _start() -> None:
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(1)
    import tinyshard as ts
    from tests.sweeps import aten_calls
    from tinyshard.partition import op_table, strategy

    strategy.RULES = Everything()  # type: ignore[assignment]
    op_table.ANY_STRIDES = Everything()  # type: ignore[assignment]
    ts.init(devices=10, runtime="local")
    _calls.update({str(op): (op, calls) for op, calls in aten_calls.collect(12).items()})


def _names(_: int) -> list[str]:
    return sorted(_calls)


def _count(name: str, draws: int) -> tuple[str, Counter[str], list[str]]:
    from tests.sweeps import aten_calls

    counted: Counter[str] = Counter()
    notes: list[str] = []
    op, calls = _calls[name]
    for seed, outcome in aten_calls.outcomes(op, calls, draws):
        if isinstance(outcome, Exception):
            counted.update(["error", type(outcome).__name__])
            notes.append(f"{seed}: {type(outcome).__name__}: {str(outcome)[:200]}")
            continue
        counted[f"{'wrong' if outcome.wrong else 'right'}{' rule' * outcome.by_rule}{' turned' * outcome.turned}"] += 1
        if outcome.wrong:
            notes.append(f"{seed}: {outcome.wrong}; {outcome.case}")
    return name, counted, notes


def _table(name: str, names: list[str]) -> str:
    lines = textwrap.wrap(" ".join(n.removeprefix("aten.") for n in names), 112)
    body = "\n".join(f"    {line}" for line in lines)
    return (
        f'{name}: frozenset[str] = frozenset(\n    f"aten.{{name}}"\n    for name in """\n{body}\n    """.split()\n)\n'
    )


def main(draws: int) -> None:
    """Run the sweep and write the file."""
    rules, strides = [], []
    with ProcessPoolExecutor(os.cpu_count(), get_context("spawn"), _start) as pool:
        names = pool.submit(_names, 0).result()
        for name, counted, notes in pool.map(_count, names, [draws] * len(names)):
            for note in notes[:2]:
                print(f"{name}: {note}", flush=True)
            wrong_by_rule = counted["wrong rule"] + counted["wrong rule turned"]
            wrong_turned = counted["wrong rule turned"] + counted["wrong turned"]
            right_by_rule = counted["right rule"] + counted["right rule turned"]
            # a device's error is that of a kernel that wants contiguous memory
            if right_by_rule and not wrong_by_rule and counted["error"] == counted["RemoteError"]:
                rules.append(name)
            if counted["right rule turned"] + counted["right turned"] and not wrong_turned and not counted["error"]:
                strides.append(name)
    TARGET.write_text(HEADER + _table("RULES", rules) + "\n" + _table("ANY_STRIDES", strides))
    print(f"{len(rules)} rules and {len(strides)} kernels of {len(names)} ops")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 120)
