"""Lesson 16's training: the losses of plain torch, the layout's numbers, and the slowed device."""

import math
from types import SimpleNamespace

import pytest
import torch

import tinyshard as ts
from course import training
from course.exercises.lesson_16 import CUT, MOST_HELD, MOST_SENT
from course.slowing import slowed
from course.transformer import Transformer, cross_entropy
from course.widgets import loss_curve
from tests.course.lesson_cells import LESSONS, stored_cells

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture(scope="module")
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def losses_by_torch(steps):
    torch.manual_seed(0)
    model = Transformer(training.WIDTH, training.HEADS, training.DEPTH, training.LENGTH)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, betas=(0.9, 0.95), weight_decay=0.1)
    found = []
    for step in range(steps):
        rising = (step + 1) / 10
        falling = 0.55 + 0.45 * math.cos(math.pi * (step - 10) / 290)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (rising if step < 10 else falling)
        optimizer.zero_grad()
        rows = training.rows(step).flatten(0, 1)
        loss = cross_entropy(model(rows[:, :-1]), rows[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.whole
def test_the_losses_are_plain_torchs_without_micro_batches_and_devices():
    mesh = ts.make_mesh((2, 4), ("data", "model"))
    now = training.begin(mesh, CUT)
    at = ts.tree.map(lambda x: x.sharding, (now["params"], now["adam"]))
    step = ts.jit(training.step, out_shardings=(ts.NamedSharding(mesh, ts.P()), *at), donate_argnums=(0, 1))
    params, adam, found = now["params"], now["adam"], []
    for k in range(14):  # the schedule turns in the tenth
        loss, params, adam = step(params, adam, training.rows(k))
        found.append(loss.item())
    torch.testing.assert_close(found, losses_by_torch(14), rtol=0, atol=1e-4)


@pytest.mark.whole
def test_what_is_counted_without_the_update_is_the_whole_steps_peak_and_bytes():
    mesh = ts.make_mesh((2, 4), ("data", "model"))
    now = training.begin(mesh, CUT)
    rows = ts.device_put(training.rows(0), ts.NamedSharding(mesh, ts.P(None, "data")))
    at = ts.tree.map(lambda x: x.sharding, (now["params"], now["adam"]))
    step = ts.jit(training.step, out_shardings=(ts.NamedSharding(mesh, ts.P()), *at), donate_argnums=(0, 1))
    whole = step.lower(now["params"], now["adam"], rows).compile()
    counted = training.compiled_for({"data": 2, "model": 4}, CUT)
    peaks = [each.memory_analysis().peak_nbytes for each in (whole, counted)]
    sent = [each.cost_analysis().nbytes for each in (whole, counted)]
    assert peaks[0] == pytest.approx(peaks[1], rel=0.02) and sent[0] == pytest.approx(sent[1], rel=0.01)


def test_the_lesson_promises_the_judges_numbers():
    text = "".join(cell["source"] for cell in stored_cells(LESSONS["16"]))
    assert f"at most {MOST_HELD / 2**20:g} MiB at the peak, and at most {MOST_SENT / 2**20:g} MiB sent" in text
    assert f"{MOST_HELD / 2**20:g} MiB" == training.LIMIT


@pytest.mark.parametrize(
    ("killed", "told"),
    [(47, "step 46: 3.00 on eight, 3.00 on four"), (40, "killed right after a checkpoint: no step was lost")],
)
def test_the_cell_that_resumes_runs_wherever_the_worker_was_killed(killed, told, capsys):
    (cell,) = [cell["source"] for cell in stored_cells(LESSONS["16"]) if "twice = sorted(" in cell["source"]]
    curve = loss_curve()

    def train(program, mesh, now, until):
        for step in range(now["step"], until):
            curve.add(step, 3.0)

    train(None, None, {"step": 0}, killed)
    checkpoint = SimpleNamespace(tree=ts.tree, load=lambda folder, places: {"step": 40})
    names = ("row", "CUT", "folder", "prepared", "explain", "begin")
    exec(cell, {**dict.fromkeys(names, lambda *args: {}), "ts": checkpoint, "curve": curve, "train": train})
    assert told in capsys.readouterr().out
    assert max(curve.losses(1)) == 59


def test_a_device_without_a_process_of_its_own_is_not_stopped():
    with pytest.raises(ValueError, match="only a worker process can be slowed"), slowed(ts.devices()[5]):
        pass
