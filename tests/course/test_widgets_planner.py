"""The planner's picture: what it says of a layout is what the cost model says, and every control changes it."""

import dataclasses
import xml.etree.ElementTree as ElementTree

import pytest
import torch

import tinyshard as ts
from course.network import LAYOUTS, parameter_specs, step_on, training_step
from course.planner import GPU_BOXES, LAPTOPS, Estimate, Exchange
from course.widgets.card import card
from course.widgets.planner import Planned, describe, draw, look, machine_planner, seconds, sized
from tinyshard.compile.memory import memory_of

SVG = "{http://www.w3.org/2000/svg}"


def planned(**seconds_of):
    """Layouts with so many seconds of compute and, between hosts, ten times as many; only "data" fits."""
    made = {
        name: Estimate(16, value, (Exchange("all_reduce", 16, 1000, 1000, 10 * value),), 10**9, name == "data")
        for name, value in seconds_of.items()
    }
    return Planned(LAPTOPS, 16, 4096, made)


def bars(svg):
    """(what, width in px) of each bar."""
    found = []
    for group in ElementTree.fromstring(svg).iter(f"{SVG}g"):
        title, bar = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and bar is not None:
            found.append((title.text, float(bar.get("width"))))
    return found


def test_a_bar_is_as_long_as_its_part_of_the_slowest_step():
    svg = card("a step", draw(planned(data=1.0, tensor=2.0, fsdp=4.0)))
    # 300 px stand for 44 s
    assert bars(svg) == [
        ("compute: 1.0 s", 6.82),
        ("between hosts: 10.0 s", 68.18),
        ("compute: 2.0 s", 13.64),
        ("between hosts: 20.0 s", 136.36),
        ("compute: 4.0 s", 27.27),
        ("between hosts: 40.0 s", 272.73),
    ]


def test_with_perfect_overlap_both_parts_begin_together_and_the_longer_one_is_the_step():
    found = planned(data=1.0, tensor=2.0)
    overlapped = dataclasses.replace(found, is_overlapped=True)
    svg = card("a step", draw(overlapped))
    # 300 px stand for 20 s
    assert bars(svg) == [
        ("compute: 1.0 s", 15),
        ("between hosts: 10.0 s", 150),
        ("compute: 2.0 s", 30),
        ("between hosts: 20.0 s", 300),
    ]
    parts = [
        g.find(f"{SVG}rect") for g in ElementTree.fromstring(svg).iter(f"{SVG}g") if g.find(f"{SVG}title") is not None
    ]
    assert {part.get("x") for part in parts} == {"150"}
    assert describe(overlapped).splitlines()[2].endswith("<- least max")


def test_both_bounds_of_a_step_are_said_in_the_table_and_behind_its_bar():
    found = planned(data=1.0)
    assert describe(found).splitlines()[2].split()[2:7] == ["1.0", "s", "-", "10.0", "s"]
    assert "  11.0 s   10.0 s " in describe(found).splitlines()[2]
    assert ">10.0 s to 11.0 s</text>" in draw(found).piece.svg


def test_the_words_say_which_is_fastest_of_those_that_fit():
    lines = describe(planned(data=4.0, tensor=2.0, fsdp=1.0)).splitlines()
    assert lines[2].endswith("<- least sum")
    assert [line.endswith("does not fit") for line in lines[2:5]] == [False, True, True]


def test_it_opens_on_sixty_four_gpus_and_draws_anew_for_every_control():
    opened = machine_planner()
    assert opened.text.startswith("64 devices of GPU boxes (8 hosts), 65,536 examples")
    pictures = {opened.svg}
    for moved in (
        {"machine": LAPTOPS},
        {"devices": 8},
        {"batch": "each"},
        {"rounds": "halving and doubling"},
        {"overlap": "perfect"},
    ):
        pictures.add(opened.choose(**moved).svg)
    assert len(pictures) == 6


def test_tensor_parallelism_wins_where_data_parallelism_waits_for_the_ring():
    assert look(GPU_BOXES, 64, "all", "ring").best == "tensor"
    assert look(GPU_BOXES, 8, "all", "ring").best == "data"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_has_the_work_of_the_whole_network_over_its_devices(layout):
    # forwards one product a layer, backwards two, but one for the first layer: 11 of 2 * 65,536 * 8192^2
    assert step_on(layout, 64, 65_536).cost_analysis().flops * 64 == 11 * 2 * 65_536 * 8192**2


@pytest.mark.parametrize("layout", ["fsdp", "fsdp_kept"])
def test_parameters_that_are_cut_are_held_in_parts(layout):
    whole, cut = (step_on(name, 64, 65_536).program.metas for name in ("data", layout))
    assert (whole[0].shape, cut[0].shape) == ((8192, 8192), (128, 8192))


MATRIX = 8192 * 8192 * 4  # bytes
LOSS = 7  # bytes of an all_reduce of one number over 64 devices: 2 * 63 / 64 * 4


@pytest.mark.parametrize("layout, gathers", [("fsdp_kept", 4), ("fsdp", 7)])
def test_fsdp_gathers_each_matrix_and_reduce_scatters_each_gradient(layout, gathers):
    # backwards three of the four matrices are needed again: no gradient by the first layer's inputs is asked for
    cost = step_on(layout, 64, 65_536).cost_analysis()
    assert [cost.count(op) for op in ("all_gather", "reduce_scatter", "all_reduce")] == [gathers, 4, 1]
    assert cost.nbytes == (gathers + 4) * MATRIX * 63 // 64 + LOSS


def test_fsdp_with_kept_matrices_sends_what_data_parallelism_sends():
    kept, data = (step_on(layout, 64, 65_536).cost_analysis().nbytes for layout in ("fsdp_kept", "data"))
    assert kept == data == 4 * 2 * MATRIX * 63 // 64 + LOSS


def test_what_is_gathered_again_is_not_held_in_the_meantime():
    held = {name: memory_of(step_on(name, 64, 65_536).program).peak_nbytes for name in LAYOUTS}
    assert held["fsdp"] + MATRIX < held["fsdp_kept"] < held["data"] - 4 * MATRIX


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_under_each_layout_is_that_of_plain_torch(layout):
    ts.init(devices=8, runtime="local")
    torch.manual_seed(0)
    matrices = [torch.randn(16, 16, requires_grad=True) for _ in range(4)]
    inputs, targets = torch.randn(2, 32, 16)
    outputs = inputs
    for number, matrix in enumerate(matrices):
        outputs = (outputs.relu() if number else outputs) @ matrix
    expected = ((outputs - targets) ** 2).sum(1).mean()
    expected.backward()
    mesh = ts.make_mesh((4, 2), ("data", "model"))
    specs = parameter_specs(layout)
    params = [
        ts.device_put(matrix.detach(), ts.NamedSharding(mesh, specs[number % 2]))
        for number, matrix in enumerate(matrices)
    ]
    batch = ts.device_put((inputs, targets), ts.NamedSharding(mesh, ts.P("data")))
    value, new = ts.jit(training_step(layout, mesh))(params, batch)
    torch.testing.assert_close(ts.device_get(value), expected.detach())
    for matrix, given, made in zip(matrices, params, new, strict=True):
        assert made.sharding == given.sharding
        torch.testing.assert_close(ts.device_get(made), (matrix - 1e-3 * matrix.grad).detach())


@pytest.mark.parametrize(
    "value, words", [(0.00213, "2.1 ms"), (0.9994, "999.4 ms"), (4.2, "4.2 s"), (1511.0, "25 min")]
)
def test_times_have_a_unit_that_suits_them(value, words):
    assert seconds(value) == words


def test_bytes_are_counted_in_thousands():
    assert (sized(2_113_929_223), sized(917_504)) == ("2.11 GB", "0.92 MB")
