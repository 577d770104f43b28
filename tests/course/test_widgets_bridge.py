"""The picture of two programs: each statement of a program is in the part to which it belongs, its numbers below."""

from types import SimpleNamespace

import pytest

from course.bridge import launch
from course.bridge.launch import Result
from course.widgets.bridge import MOST, PARTS, look, two_programs

THEIRS = Result([4.5, 4.25], {"all_gather": (3, 220_800)}, {"all_gather": 3}, "torchrun")
OURS = SimpleNamespace(
    losses=[4.5, 4.25],
    sent=[
        SimpleNamespace(kind="all_gather", count=17, nbytes=220_800),
        SimpleNamespace(kind="all_reduce", count=1, nbytes=8),
    ],
)


@pytest.mark.parametrize("name", launch.PROGRAMS)
def test_every_statement_is_shown_once_and_fits_its_column(name):
    twins = look(name, {})
    shown = [line for part in twins.theirs for line in part]
    assert sum("init_process_group" in line for line in shown) == 1
    assert [any("train(" in line for line in part) for part in twins.theirs] == [False, False, True]
    assert max(map(len, [*shown, *(line for part in twins.ours for line in part)])) <= MOST
    assert len(twins.theirs) == len(twins.ours) == len(PARTS)


def test_what_divides_the_parameters_is_beside_their_specs():
    twins = look("two_dims", {})
    assert "    fully_shard(layer, mesh=data," in twins.theirs[1]
    assert any(line.startswith("    parallelize_module") for line in twins.theirs[1])
    assert '    "layers.*.o.weight": P("data", "model"),' in twins.ours[1]


def test_the_numbers_of_both_stand_below_and_nothing_is_said_of_what_has_not_run():
    picture = two_programs({"fsdp": (THEIRS, OURS)})
    assert [line.split() for line in picture.text.splitlines()[-3:]] == [
        ["loss", "4.5000", "...", "4.2500", "4.5000", "...", "4.2500"],
        ["all_gather", "3", "x,", "220,800", "bytes", "17", "x,", "220,800", "bytes"],
        ["all_reduce", "-", "1", "x,", "8", "bytes"],
    ]
    assert picture.choose(name="ddp").text.endswith("not run yet")
