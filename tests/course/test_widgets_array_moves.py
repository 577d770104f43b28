"""The moves of lesson 03: what they show against device_put, slices by hand and the program's own count."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

import tinyshard as ts
from course.widgets import array_moves
from course.widgets.array_moves import MESHES
from course.widgets.journey import NAMES, SHAPE, record_journey

P = ts.P
CASES = [
    ((4, 2), ("a", "b"), ("b", "a")),
    ((4, 2), (("a", "b"),), (None, ("a", "b"))),
    ((2, 4), ("a",), (("b", "a"),)),
    ((4, 2), (), ("a",)),
    ((8,), ("a",), ()),
    ((8,), "one", ("a",)),
    ((4, 2), ("a", "b"), "one"),
]


@pytest.fixture(autouse=True)
def eight_devices():
    ts.init(devices=8, runtime="local")


def placed(mesh, place):
    return ts.devices()[0] if place == "one" else ts.NamedSharding(ts.make_mesh(mesh, NAMES[: len(mesh)]), P(*place))


def test_rows_to_columns_in_words():
    text = array_moves().choose(mesh=(8,), have=("a",), want=(None, "a")).text
    assert text.splitlines()[:4] == [
        'from P("a") to P(None, "a"), on a mesh of 8 devices',
        'ts.device_put(x, ts.NamedSharding(mesh, ts.P(None, "a")))',
        "start: a device holds 32 of 256 bytes",
        "  CPU 0: x[0:1, 0:8], from CPU 0",
    ]
    assert text.splitlines()[11:13] == [
        "all_to_all over a: the busiest sends 28 bytes, a device holds 32 of 256 bytes",
        "  CPU 0: x[0:8, 0:1], from CPU 0, 1, 2, 3, 4, 5, 6, 7",
    ]
    assert text.splitlines()[-1] == "the whole move: the busiest device sends 28 bytes, and holds up to 32"


@pytest.mark.parametrize("mesh, have, want", CASES)
def test_the_last_stage_is_what_device_put_does(mesh, have, want):
    table = torch.arange(64.0).reshape(SHAPE)
    moved = ts.device_put(ts.device_put(table, placed(mesh, have)), placed(mesh, want))
    held = {shard.device.id: ts.device_get(shard.data) for shard in moved.addressable_shards}
    for device, part in enumerate(record_journey(mesh, have, want).stages[-1].parts):
        assert (part is None) == (device not in held)
        if part:
            rows, columns = part.rows, part.columns
            assert torch.equal(held[device], table[rows.start : rows.stop, columns.start : columns.stop])


@pytest.mark.parametrize("mesh, have, want", [case for case in CASES if "one" not in case])
def test_the_bytes_are_those_of_the_program_that_moves(mesh, have, want):
    like = ts.ShapeDtypeStruct(SHAPE, torch.float32, sharding=placed(mesh, have))
    compiled = ts.jit(lambda x: x, out_shardings=placed(mesh, want)).lower(like).compile()
    assert record_journey(mesh, have, want).nbytes == compiled.cost_analysis().nbytes


@pytest.mark.parametrize("mesh, have, want", CASES)
def test_a_number_comes_from_a_device_that_held_it_at_the_start(mesh, have, want):
    first, *later = record_journey(mesh, have, want).stages
    for stage in later:
        for part in filter(None, stage.parts):
            for row, sources in zip(part.rows, part.sources, strict=True):
                for column, source in zip(part.columns, sources, strict=True):
                    assert row in first.parts[source].rows
                    assert column in first.parts[source].columns


def test_a_cut_of_copies_sends_nothing():
    assert [(stage.op, stage.nbytes) for stage in record_journey((4, 2), (), ("a",)).stages] == [
        ("start", 0),
        ("local_slice over a", 0),
    ]


def test_one_device_that_gives_to_all_sends_seven_eighths_of_the_table():
    assert record_journey((8,), "one", ("a",)).nbytes == 7 * 32


def test_the_picture_has_a_square_for_each_device_and_stage():
    found = array_moves()
    titles = [title.text for title in ElementTree.fromstring(found.svg).iter("{http://www.w3.org/2000/svg}title")]
    assert sum(title.startswith("CPU ") for title in titles) == 8 * 4
    assert "CPU 3: x[4:8, 2:4], from CPU 4, 6" in titles


@pytest.mark.parametrize("choice", [{"mesh": (2, 4)}, {"have": ()}, {"want": "one"}])
def test_every_control_changes_picture_and_words(choice):
    before, after = array_moves(), array_moves().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text


@pytest.mark.parametrize("mesh", MESHES)
def test_every_place_that_is_offered_can_be_moved_to_and_from(mesh):
    found = array_moves().choose(mesh=mesh)
    (have, want) = (control for control in found._controls if control.name in ("have", "want"))
    for _, start in found._offered(have):
        for _, end in found._offered(want):
            assert record_journey(mesh, start, end).stages
