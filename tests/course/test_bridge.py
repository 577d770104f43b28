"""The bridge: programs of torch.distributed and their twins here have the same losses, and send the same bytes."""

from __future__ import annotations

import psutil
import pytest
import torch

import tinyshard as ts
from course.bridge import launch
from course.bridge.ours import LAYOUTS, train
from course.bridge.setting import RATE, STEPS, examples, new_model
from course.transformer import cross_entropy
from tests.extent import every


@pytest.fixture(scope="module", autouse=True)
def four_devices():
    ts.init(devices=4, runtime="local")
    yield
    ts.shutdown()


def losses_of_one_process() -> list[float]:
    model, losses = new_model(), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    for step in range(STEPS):
        tokens, targets = examples(step)
        loss = cross_entropy(model(tokens), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def bytes_of(trained, kind: str) -> int:
    return sum(each.nbytes for each in trained.sent if each.kind == kind)


@pytest.mark.parametrize("name", every(3, LAYOUTS))
def test_a_layout_has_the_losses_of_one_process(name):
    assert train(name).losses == pytest.approx(losses_of_one_process(), rel=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("name", launch.PROGRAMS)
def test_a_program_of_torch_has_the_losses_of_one_process(name):
    assert launch.run(name).losses == pytest.approx(losses_of_one_process(), rel=1e-5)


@pytest.mark.whole
def test_both_send_the_same_gradients_and_weights():
    loss_nbytes = 8  # ours adds up the loss in the program too: a sum and a count
    by_hand, ddp, fsdp = (launch.run(name).sent for name in ("by_hand", "ddp", "fsdp"))
    ours = train("ddp")
    assert by_hand["all_reduce"][1] == ddp["all_reduce"][1] == bytes_of(ours, "all_reduce") - loss_nbytes
    assert by_hand["all_reduce"][0] == len(list(new_model().parameters()))
    ours = train("fsdp")
    # each parameter is gathered once here; FSDP2 gathers it again in the backward pass, all but the last unit
    once = bytes_of(ours, "all_gather")
    assert fsdp["reduce_scatter"][1] == bytes_of(ours, "reduce_scatter") == once
    assert once < fsdp["all_gather"][1] < 2 * once


@pytest.mark.whole
def test_a_program_that_does_not_end_in_time_is_stopped_with_all_its_processes():
    with pytest.raises(TimeoutError, match=r"ddp had not ended after 3 s, and was stopped"):
        launch.run("ddp", timeout_s=3)
    assert not [p for p in psutil.process_iter(["cmdline"]) if "course.bridge.ddp" in (p.info["cmdline"] or ())]


def test_a_program_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="the programs are by_hand, ddp, fsdp"):
        launch.run("dpp")
    with pytest.raises(ValueError, match="in_jax"):
        launch.code("dpp")
    assert "fully_shard(layer" in launch.code("fsdp")
