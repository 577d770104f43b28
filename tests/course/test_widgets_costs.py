"""Memory and traffic of a layout, of lesson 11: sizes by hand; every control changes the picture."""

import pytest

from course.widgets import layout_costs
from course.widgets.costs import costs_of
from tests.extent import every

# 784 · 256 + 256 + 2 · (256 · 256 + 256) + 256 · 10 + 10 numbers of 4 bytes
PARAMETERS_NBYTES = 4 * 335_114


def test_pure_data_parallelism_holds_all_parameters_and_an_eighth_of_the_batch():
    costs = costs_of((8, 1), "nothing", 256, 256)
    assert costs.parameters_nbytes == PARAMETERS_NBYTES
    assert costs.batch_nbytes == 4 * 32 * (784 + 10)
    # an all_reduce of every parameter and of the loss sends 2 · 7/8 of it
    assert costs.sent_nbytes == 2 * 7 * (PARAMETERS_NBYTES + 4) // 8
    assert costs.peak_nbytes > costs.parameters_nbytes + costs.batch_nbytes


def test_one_device_holds_everything_and_sends_nothing():
    costs = costs_of((1, 1), "nothing", 256, 256)
    assert (costs.parameters_nbytes, costs.batch_nbytes) == (PARAMETERS_NBYTES, 4 * 256 * (784 + 10))
    assert costs.sent_nbytes == 0


def test_two_cut_matrices_are_held_in_halves():
    costs = costs_of((4, 2), "W2 and W3", 256, 256)
    # half of W2, b2 and W3
    assert costs.parameters_nbytes == PARAMETERS_NBYTES - 2 * (2 * 256 * 256 + 256)


def test_fsdp_holds_an_eighth_of_the_weights_and_sends_what_an_all_reduce_sends():
    costs = costs_of((8, 1), "FSDP", 256, 256)
    biases = 4 * (3 * 256 + 10)
    assert costs.parameters_nbytes == (PARAMETERS_NBYTES - biases) // 8 + biases
    assert costs.sent_nbytes == costs_of((8, 1), "nothing", 256, 256).sent_nbytes
    weights = [(each.kind, each.count) for each in costs.traffic if each.nbytes > 2 * biases]
    assert weights == [("all_gather", 1), ("reduce_scatter", 3)]


@pytest.mark.parametrize(
    "mesh, cut", every(2, [((8, 1), "FSDP"), ((8, 1), "nothing"), ((4, 2), "W2 and W3"), ((1, 1), "nothing")])
)
def test_adam_holds_two_numbers_more_for_each_parameter_and_sends_no_more(mesh, cut):
    sgd, adam = costs_of(mesh, cut, 256, 256), costs_of(mesh, cut, 256, 256, "Adam")
    assert (sgd.state_nbytes, adam.state_nbytes) == (0, 2 * sgd.parameters_nbytes)
    assert adam.sent_nbytes == sgd.sent_nbytes
    assert adam.peak_nbytes >= sgd.peak_nbytes + adam.state_nbytes


def test_what_is_kept_for_the_backward_pass_is_the_outputs_of_the_layers():
    # of three layers the outputs and what clamp made of them, and the difference from the targets, which is counted
    # twice with its square; 32 examples
    kept = costs_of((8, 1), "nothing", 256, 256).kept_nbytes
    assert 4 * 32 * 6 * 256 <= kept <= 4 * 32 * (6 * 256 + 4 * 10)


def test_the_words_are_a_table_and_the_collectives_of_the_chosen_layout():
    lines = layout_costs().choose(mesh=(8, 1), cut="nothing").text.splitlines()
    assert lines[:5] == [
        "layers of 784, 256, 256, 256, 10; 256 examples, SGD",
        "                     parameters    optimizer        batch for backward  at the peak         sent        Mflop",
        "one device             1.28 MiB          0 B      794 KiB     1.51 MiB      4.1 MiB          0 B        410.8",
        "8 × 1, FSDP          166.29 KiB          0 B    99.25 KiB   715.38 KiB     1.57 MiB     2.24 MiB         51.3",
        "8 × 1, nothing         1.28 MiB          0 B    99.25 KiB   193.38 KiB     3.93 MiB     2.24 MiB         51.3",
    ]
    assert lines[-1] == "  all_reduce over data, 2 of them: 2,345,805 bytes"


@pytest.mark.parametrize(
    "choice",
    [
        {"mesh": (8, 1)},
        {"cut": "W1 and W2"},
        pytest.param({"cut": "FSDP"}, marks=pytest.mark.whole),
        {"optimizer": "Adam"},
        pytest.param({"width": 8192}, marks=pytest.mark.whole),
        pytest.param({"examples": 8192}, marks=pytest.mark.whole),
    ],
)
def test_every_control_changes_picture_and_words(choice):
    before = layout_costs()
    after = layout_costs().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text


def test_the_width_and_the_examples_are_those_that_were_chosen():
    before = layout_costs()
    after = layout_costs().choose(width=8192, examples=8192)
    assert after.text.splitlines()[0] == "layers of 784, 8,192, 8,192, 8,192, 10; 8,192 examples, SGD"
    # 8192 · (784 + 10) numbers of 4 bytes on one device
    assert after.text.splitlines()[2].split()[6:8] == ["24.81", "MiB"]
    assert after.svg != before.svg
