"""Memory and traffic of a layout, of lesson 11: sizes by hand, the formula beside the count, every control."""

import pytest
import torch

import tinyshard as ts
from course.patterns import LAYOUTS, OPTIMIZERS, Network, Plan, compiled, held_by_kind, modelled, training_step
from course.widgets import layout_costs
from course.widgets.costs import costs_of
from tests.extent import every

# 784 · 256 + 256 + 2 · (256 · 256 + 256) + 256 · 16 + 16 numbers of 4 bytes
PARAMETERS_NBYTES = 4 * 336_656
PAIR_NBYTES = 4 * (2 * 256 * 256 + 256)  # W1, b1 and W2
LOSS_NBYTES = 8  # a sum, and a count


def test_data_parallelism_holds_all_parameters_and_state_and_an_eighth_of_the_activations():
    held = held_by_kind(Plan())
    assert held["parameters"] == PARAMETERS_NBYTES
    # two numbers for each parameter, and for each of eight parameters a step, and one count
    assert 2 * PARAMETERS_NBYTES <= held["optimizer state"] <= 2 * PARAMETERS_NBYTES + 100
    assert held["gathered weights"] == 0
    # an all_reduce of every parameter and of the loss sends 2 · 7/8 of it
    assert compiled(Plan()).cost_analysis().nbytes == 2 * 7 * (PARAMETERS_NBYTES + LOSS_NBYTES) // 8
    alone = held_by_kind(Plan((1, 1)))
    assert {kind: alone[kind] - held[kind] for kind in held if kind != "activations"} == {
        "parameters": 0,
        "optimizer state": 0,
        "gradients": 0,
        "gathered weights": 0,
    }
    assert held["activations"] < alone["activations"] / 7


def test_two_sharded_layers_are_held_in_halves():
    assert held_by_kind(Plan((4, 2), "layers 1 and 2"))["parameters"] == PARAMETERS_NBYTES - PAIR_NBYTES // 2


def test_fsdp_holds_an_eighth_of_parameters_and_state_and_sends_what_an_all_reduce_sends():
    fsdp = costs_of(Plan(layout="FSDP"))
    assert fsdp.counted["parameters"] == PARAMETERS_NBYTES // 8
    assert fsdp.counted["optimizer state"] // 8 <= PARAMETERS_NBYTES // 8
    assert fsdp.sent_nbytes == costs_of(Plan()).sent_nbytes
    assert {each.kind: each.count for each in fsdp.traffic} == {"all_gather": 8, "reduce_scatter": 8, "all_reduce": 2}


def test_zero_1_holds_an_eighth_of_the_state_and_sends_no_more():
    zero, copies = costs_of(Plan(layout="ZeRO-1")), costs_of(Plan())
    assert zero.counted["parameters"] == PARAMETERS_NBYTES
    assert zero.counted["optimizer state"] // 8 <= PARAMETERS_NBYTES // 4
    assert zero.sent_nbytes == copies.sent_nbytes


@pytest.mark.parametrize("layout", every(2, ["data parallel", "FSDP"]))
def test_sgd_has_no_state_and_sends_no_less(layout):
    sgd, adamw = Plan(layout=layout, optimizer="SGD"), Plan(layout=layout)
    assert held_by_kind(sgd)["optimizer state"] <= 100  # counters
    assert compiled(sgd).cost_analysis().nbytes == compiled(adamw).cost_analysis().nbytes


PLANS = [
    Plan((8, 1), "FSDP"),
    Plan((8, 1), "ZeRO-1"),
    Plan((4, 2), "layers 1 and 2"),
    Plan((4, 2), "all layers", examples=10_240),
    Plan((8, 1), "FSDP", width=8192),
    Plan((8, 1), "FSDP", width=8192, examples=10_240),
    Plan((1, 8), "all layers", "SGD", examples=10_240),
    Plan((2, 4), "ZeRO-1", width=8192),
]


@pytest.mark.parametrize("plan", every(4, PLANS))
def test_the_formula_is_the_count_within_three_percent_and_kinds_add_up_to_the_peak(plan):
    peak = compiled(plan).memory_analysis().peak_nbytes
    assert sum(held_by_kind(plan).values()) == peak
    assert abs(sum(modelled(plan).values()) - peak) <= 0.03 * peak


def test_a_step_of_fsdp_is_that_of_plain_torch():
    torch.manual_seed(0)
    model, batch = Network(), (torch.randn(64, 784), torch.arange(64) % 16)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    ts.init(devices=8, runtime="local")
    try:
        mesh = ts.make_mesh((8,), ("data",))
        params = ts.device_put(start, ts.shardings(start, LAYOUTS["FSDP"].rules, mesh))
        rows = ts.device_put(batch, ts.NamedSharding(mesh, ts.P("data")))
        step = ts.jit(training_step("SGD"))
        value, new, _ = ts.device_get(step(params, OPTIMIZERS["SGD"].init(params), rows))
    finally:
        ts.shutdown()
    expected = torch.nn.functional.cross_entropy(model(batch[0]), batch[1])
    expected.backward()
    torch.optim.SGD(model.parameters(), lr=3e-2).step()
    torch.testing.assert_close(value, expected.detach())
    torch.testing.assert_close(new, {name: p.detach() for name, p in model.named_parameters()})


def test_the_words_are_a_table_and_the_collectives_of_the_chosen_layout():
    lines = layout_costs().choose(mesh=(8, 1), layout="data parallel").text.splitlines()
    assert lines[0] == "layers of 784, 256, 256, 256, 16; 320 examples, AdamW"
    assert [line[:22].strip() for line in lines[2:6]] == [
        "one device",
        "8 × 1, ZeRO-1",
        "8 × 1, FSDP",
        "8 × 1, data parallel",
    ]
    assert lines[5].split()[5:] == ["1.28", "2.57", "2.05", "0.00", "0.12", "6.02", "6.02", "2.25", "65"]
    assert lines[-1] == "  all_reduce over data, 10 of them: 2,356,606 bytes"


@pytest.mark.parametrize(
    "choice",
    [
        {"mesh": (8, 1)},
        {"layout": "all layers"},
        pytest.param({"optimizer": "SGD"}, marks=pytest.mark.whole),
        pytest.param({"width": 8192}, marks=pytest.mark.whole),
        pytest.param({"examples": 10_240}, marks=pytest.mark.whole),
    ],
)
def test_every_control_changes_picture_and_words(choice):
    before = layout_costs()
    after = layout_costs().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text
