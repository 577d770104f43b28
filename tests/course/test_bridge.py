"""The bridge: programs of torch.distributed and their twins here have the same losses, and send the same bytes."""

from __future__ import annotations

import functools
import json
import subprocess
import time

import psutil
import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

import tinyshard as ts
from course import torchrun
from course.bridge import alone, launch
from course.bridge.ours import LAYOUTS, Trained, train
from course.bridge.setting import DEPTH, RATE, STEPS, examples, new_model
from course.exercises.lesson_19 import judge_checkpoint
from course.solutions.lesson_19 import ANSWERS, checkpoint
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


@functools.cache
def run(name: str) -> launch.Result:
    return launch.run(name)


@functools.cache
def ours(name: str) -> Trained:
    return train({"by_hand": "ddp"}.get(name, name))


def sent(trained: Trained) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for each in trained.sent:
        count, nbytes = found.get(each.kind, (0, 0))
        found[each.kind] = count + each.count, nbytes + each.nbytes
    return found


@pytest.mark.parametrize("name", every(3, LAYOUTS))
def test_a_layout_has_the_losses_of_one_process(name):
    assert ours(name).losses == pytest.approx(losses_of_one_process(), rel=1e-5)


@pytest.mark.whole
@pytest.mark.parametrize("name", launch.PROGRAMS)
def test_a_program_of_torch_has_our_losses_and_sends_our_kinds_and_bytes(name):
    assert run(name).losses == pytest.approx(ours(name).losses, rel=1e-5)
    theirs = {kind: nbytes for kind, (_, nbytes) in run(name).sent.items()}
    assert theirs == {kind: nbytes for kind, (_, nbytes) in sent(ours(name)).items()}


UNITS = DEPTH + 1  # of FSDP2: a layer each, and what is in no layer


@pytest.mark.whole
@pytest.mark.parametrize("name", launch.PROGRAMS)
def test_comm_debug_mode_counts_our_collectives_where_both_pack_alike(name):
    counted, theirs = run(name).counted, run(name).sent
    assert counted == {kind: count for kind, (count, _) in theirs.items()}
    alike = {kind: count for kind, (count, _) in sent(ours(name)).items()}
    if name == "by_hand":  # one for each gradient, and one for the loss
        alike["all_reduce"] = len(list(new_model().parameters())) + 1
    # tinyshard packs what does not wait for each other, FSDP2 a unit
    alike |= dict.fromkeys({"all_gather", "reduce_scatter"} & alike.keys(), UNITS)
    assert counted == alike


@pytest.mark.whole
def test_layers_that_are_gathered_twice_send_what_the_exercise_says():
    default = launch.run_text(launch.code("fsdp").replace(", reshard_after_forward=False", ""))
    nbytes = sum(default.sent[kind][1] for kind in ("all_gather", "reduce_scatter"))
    assert nbytes == ANSWERS["19.3"].solution


@pytest.mark.whole
def test_without_a_shared_input_q_k_and_v_are_reduced_one_by_one():
    separate = launch.run_text(launch.code("tensor_parallel").replace(', "before": shared', ""))
    assert separate.sent == {"all_reduce": (12, 786_432)}
    assert run("tensor_parallel").sent == {"all_reduce": (8, 524_288)}


def test_one_process_alone_calls_the_collectives_that_it_calls_among_others():
    """The numbers of the tests above, which run all processes."""
    together = launch.code("tensor_parallel")
    assert alone.run(together).sent == {"all_reduce": (8, 524_288)}
    assert alone.run(together.replace(', "before": shared', "")).sent == {"all_reduce": (12, 786_432)}


def test_a_checkpoint_that_only_one_process_gathers_is_seen_and_what_the_solution_holds():
    def only_first(model, rank):
        return checkpoint(model, rank) if rank == 0 else {}

    assert [len(alone.save(only_first, rank).called) for rank in (0, 1)] == [38, 0]
    first, second = (alone.save(checkpoint, rank) for rank in (0, 1))
    assert first.called == second.called
    assert {kind for kind, _ in first.called} == {"all_gather"}
    assert sum(nbytes for _, nbytes in first.called) == 220_800  # of each parameter the half that a process has
    whole = sum(p.nbytes for p in new_model().parameters())
    assert (first.held_nbytes, len(first.returned)) == (whole, 38)
    # the largest weight, while the bias before it is still held
    assert (second.held_nbytes, second.returned) == (256 * 64 * 4 + 256 * 4, {})


def by_units(model, rank):
    saved = {}
    for unit in (*model.layers, model):
        unit.unshard()
        for name, p in model.named_parameters():
            if rank == 0 and name not in saved and not hasattr(p, "full_tensor"):
                saved[name] = p.detach().clone()
        unit.reshard()
    return saved


def by_gather(model, rank):
    saved = {}
    for name, p in model.named_parameters():
        local = p.to_local().detach()
        parts = [torch.empty_like(local) for _ in range(dist.get_world_size())] if rank == 0 else None
        dist.gather(local, parts, dst=0)
        if rank == 0:
            saved[name] = torch.cat(parts)
    return saved


def by_torch(model, rank):
    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))


@pytest.mark.parametrize("answer, called", [(by_units, "3 all_gathers"), (by_gather, "38 gathers"), (by_torch, "38 ")])
def test_a_checkpoint_that_is_written_otherwise_passes(answer, called):
    assert judge_checkpoint(answer).is_passed
    assert f"process 1: {called}" in str(alone.save(answer, 1))


@pytest.mark.whole
def test_the_solution_gathers_the_whole_model_among_real_processes():
    script = launch.code("fsdp").replace(
        "    train(model, rank, processes)\n",
        """    saved = checkpoint(model, rank)
    expected = dict(new_model().named_parameters()) if rank == 0 else {}
    equal = [name for name, p in expected.items() if torch.equal(saved[name], p)]
    if rank == 0:
        print(result_line(0, float(len(equal)), {}, {}), flush=True)
    assert saved.keys() == expected.keys()
""",
    )
    script = script.replace(
        "import new_model",
        "import new_model, result_line\nfrom course.solutions.lesson_19 import checkpoint\nimport torch",
    )
    assert launch.run_text(script).losses == [38.0]


@pytest.mark.whole
def test_a_script_that_fails_says_why_and_one_that_does_not_train_too():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        launch.run_text("1 / 0")
    with pytest.raises(RuntimeError, match="did not train"):
        launch.run_text("print('nothing')")


@pytest.mark.whole
def test_a_program_that_does_not_end_in_time_is_stopped_with_all_its_processes(tmp_path):
    script = f"import os, pathlib, time\npathlib.Path({str(tmp_path)!r}, str(os.getpid())).touch()\ntime.sleep(60)\n"
    with pytest.raises(TimeoutError, match=r"the script had not ended after 15 s, and was stopped"):
        launch.run_text(script, timeout_s=15)
    started = {int(path.name) for path in tmp_path.iterdir()}
    assert len(started) == 2
    ends_s = time.monotonic() + 5  # killed, a process lives for a moment
    while left := [p for p in psutil.process_iter(["status"]) if p.pid in started and p.info["status"] != "zombie"]:
        assert time.monotonic() < ends_s, left


@pytest.mark.whole
def test_the_command_of_a_program_starts_it_in_processes_that_import_torch_themselves():
    command = run("ddp").command.split()
    with torchrun.start(["--standalone", *command[1:]], subprocess.PIPE, None, {"OMP_NUM_THREADS": "1"}) as started:
        printed, _ = started.communicate(timeout=120)
    assert not started.returncode
    assert [json.loads(line)["loss"] for line in printed.splitlines()] == run("ddp").losses


def test_a_program_that_is_not_there_is_refused_with_those_that_are():
    with pytest.raises(ValueError, match="the programs are by_hand, ddp, fsdp"):
        launch.run("dpp")
    with pytest.raises(ValueError, match="in_jax"):
        launch.code("dpp")
    assert "fully_shard(layer" in launch.code("fsdp")
