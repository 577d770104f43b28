"""The training step of lesson 15, and its picture: sizes by hand, the model beside the count, values by plain torch."""

import pytest
import torch

import tinyshard as ts
from course.widgets import memory_by_kind
from course.zero import ADAM, LAYOUTS, PARAMETERS, SAVED, Layer, Plan, compiled, held_by_kind, initial, modelled
from tests.extent import every

MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


BFLOAT16 = torch.bfloat16


PLANS = {
    "copies": Plan(),
    "ZeRO-1": Plan(LAYOUTS["ZeRO-1"]),
    "ZeRO-2": Plan(LAYOUTS["ZeRO-2"]),
    "ZeRO-3": Plan(LAYOUTS["ZeRO-3"]),
    "many examples": Plan(LAYOUTS["ZeRO-1"], examples=4096),
    "recomputed": Plan(LAYOUTS["ZeRO-3"], examples=4096, saved=()),
    "gelu recomputed": Plan(LAYOUTS["ZeRO-2"], examples=4096, saved=("hidden",)),
    "bfloat16": Plan(LAYOUTS["ZeRO-2"], dtype=BFLOAT16),
    "bfloat16, copies": Plan(dtype=BFLOAT16),
    "not donated": Plan(is_donated=False),
    "not donated, ZeRO-1": Plan(LAYOUTS["ZeRO-1"], is_donated=False),
    "not donated, ZeRO-3": Plan(LAYOUTS["ZeRO-3"], is_donated=False),
}


@pytest.mark.parametrize("name", every(3, list(PLANS)))
def test_the_model_is_the_count_within_fifteen_percent_and_kinds_add_up_to_the_peak(name):
    plan = PLANS[name]
    program = compiled(plan)
    held, peak = held_by_kind(plan, program), program.memory_analysis().peak_nbytes
    assert sum(held.values()) == peak
    assert abs(sum(modelled(plan).values()) - peak) <= 0.15 * peak


def test_what_each_layout_keeps_and_sends_is_what_its_specs_say():
    found = {}
    for name in ("ZeRO-1", "ZeRO-2"):
        program = compiled(PLANS[name])
        cost = program.cost_analysis()
        found[name] = {each.kind: each.count for each in cost.traffic}, cost.nbytes
        assert held_by_kind(PLANS[name], program)["optimizer state"] // MIB == 8 * PARAMETERS // 8 // MIB
    halves = {"all_reduce": 1, "reduce_scatter": 8, "all_gather": 8}
    nbytes = 2 * 7 * 4 * PARAMETERS // 8 + 2 * 7 * 4 // 8  # of all parameters, and of the loss
    assert found == dict.fromkeys(found, (halves, nbytes))


def test_a_step_of_zero_3_with_recomputation_is_that_of_plain_torch():
    plan = Plan(LAYOUTS["ZeRO-3"], saved=())
    mesh = ts.make_mesh((8,), ("d",))
    parts = ts.NamedSharding(mesh, ts.P("d"))
    random = torch.Generator().manual_seed(0)
    x, wanted = (torch.randn(64, 128, generator=random) for _ in range(2))
    params = ts.device_put(initial(), parts)
    value, new, _ = compiled(plan, mesh)(params, ADAM.init(params), tuple(ts.device_put((x, wanted), parts)))

    layers = [Layer() for _ in initial()]
    for layer, weights in zip(layers, initial(), strict=True):
        layer.load_state_dict(weights)
    optimizer = torch.optim.AdamW([p for layer in layers for p in layer.parameters()], lr=1e-3)
    expected = (torch.nn.Sequential(*layers)(x) - wanted).square().mean()
    expected.backward()
    optimizer.step()
    torch.testing.assert_close(ts.device_get(value), expected.detach())
    for layer, weights in zip(layers, new, strict=True):
        # the first step of Adam is the sign of a gradient: of one that is almost 0, rounding decides
        differs = (ts.device_get(weights["up.weight"]) - layer.up.weight.detach()).abs() > 1e-5
        assert differs.float().mean() < 1e-3


def test_the_picture_says_which_layout_fits_and_every_control_changes_it():
    first = memory_by_kind()
    ends = [line.endswith("does not fit") for line in first.text.splitlines()[2:]]
    assert "limit 14 MiB" in first.text  # that of the lesson's devices
    assert ends == [True, False, False, False]
    assert "stroke-dasharray" in first.svg
    assert memory_by_kind().choose(limit=32).text != first.text
    assert memory_by_kind().choose(limit=32).svg != first.svg


@pytest.mark.whole
@pytest.mark.parametrize(
    "choice",
    [{"examples": 512}, {"recomputed": "the layer"}, {"dtype": "bfloat16"}, {"is_donated": False}, {"devices": 64}],
)
def test_more_controls_change_it(choice):
    assert memory_by_kind().choose(**choice).svg != memory_by_kind().svg


@pytest.mark.whole
def test_the_values_with_names_are_those_that_the_policy_finds():
    plans = [Plan(examples=4096, saved=saved) for saved in (SAVED, SAVED[:1])]
    peaks = [compiled(plan).memory_analysis().peak_nbytes for plan in plans]
    assert peaks[0] - peaks[1] == 3 * 512 * 1024 * 4  # `active` of all layers but the one at work
