"""Trees in files, by real processes: who writes what, kills in the middle, and torch's own processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from tests.extent import every
from tests.workers.limits import outcome
from tests.workers.processes import stop, wait_until
from tinyshard.core.safetensors import read_head
from tinyshard.runtime import lifecycle

VICTIM = 5
BEFORE, AFTER = torch.zeros(64, 8), torch.ones(64, 8)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "trees" / "saved"


def files_in_the_making(folder: Path) -> list[str]:
    return [file.name for file in folder.parent.glob(".saved.saving-*/device-*.safetensors")]


def wait_until_others_have_written(folder: Path) -> None:
    wait_until(lambda: len(files_in_the_making(folder)) == 7, "seven of eight devices have begun their files")


@pytest.mark.on_gloo
def test_devices_write_their_blocks_and_read_those_of_another_mesh_and_exchange_nothing(rows, folder, monkeypatch):
    host = torch.randn(1 << 10, 1 << 10)  # 4 MiB, more than a piece
    mesh = ts.make_mesh((2, 4), ("a", "b"))
    tree = {"rows": ts.device_put(host, rows), "whole": ts.device_put(host, ts.NamedSharding(mesh, ts.P()))}
    ts.block_until_ready(tree)
    lifecycle.current().handed()
    fetched = []
    fetch = lifecycle.current().fetch
    monkeypatch.setattr(lifecycle.current(), "gather", None)  # whole values come to the controller by it
    monkeypatch.setattr(lifecycle.current(), "fetch", lambda *a: [fetched.append(r := fetch(*a)), r][1])
    ts.save(tree, folder)
    assert sum(x.numel() for blocks in fetched for x in blocks.values()) == 8 + 4  # checksums: 8 blocks, and 4 MiB
    found = {path.name: read_head(str(path)) for path in folder.glob("*.safetensors")}
    assert {name for name, head in found.items() if "rows" in head} == {f"device-{d}.safetensors" for d in range(8)}
    assert [head["whole"].shape for head in found.values() if "whole" in head] == [(1 << 10, 1 << 10)]
    tiles = ts.NamedSharding(mesh, ts.P("b", "a"))
    back = ts.load(folder, tiles)
    assert not any(lifecycle.current().handed().values())
    monkeypatch.undo()
    for x in back.values():
        assert x.sharding == tiles
        assert torch.equal(ts.device_get(x), host)


@pytest.mark.on_gloo
def test_damage_that_a_device_finds_names_the_file_and_the_device(rows, folder):
    ts.save({"x": ts.device_put(BEFORE, rows)}, folder)
    path = folder / "device-3.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(ts.FileError, match=r"is damaged[^$]*device-3\.safetensors[^$]*'x'[^$]*CPU 3"):
        ts.load(folder)
    assert ts.device_put(BEFORE, rows).sum().item() == 0  # the devices go on


@pytest.mark.on_gloo
def test_a_worker_that_is_killed_while_it_writes_leaves_the_old_tree(rows, folder):
    ts.save({"x": ts.device_put(BEFORE, rows)}, folder)
    x = ts.device_put(AFTER, rows).block_until_ready()
    pid = ts.devices()[VICTIM].pid
    stop(pid)
    end = outcome(lambda: ts.save({"x": x}, folder))
    wait_until_others_have_written(folder)
    os.kill(pid, signal.SIGKILL)
    assert f"CPU {VICTIM} is gone" in str(end())
    ts.init(devices=8, runtime="process")
    assert torch.equal(ts.device_get(ts.load(folder)["x"]), BEFORE)
    ts.save({"x": ts.device_put(AFTER, ts.devices()[0])}, folder)
    assert torch.equal(ts.device_get(ts.load(folder)["x"]), AFTER)
    assert os.listdir(folder.parent) == ["saved"]


SAVES = """
    from pathlib import Path
    ts.init(devices=8)
    rows = ts.sharding.PositionalSharding(ts.devices()).reshape(8, 1)
    folder = Path("trees/saved")
    ts.save({"x": ts.device_put(torch.zeros(64, 8), rows)}, folder)
    x = ts.device_put(torch.ones(64, 8), rows).block_until_ready()
"""


def test_a_controller_that_is_killed_while_devices_write_leaves_the_old_tree(pool, controller, folder):
    saver = controller(
        SAVES
        + f"""
    os.kill(ts.devices()[{VICTIM}].pid, signal.SIGSTOP)
    tell("saving")
    ts.save({{"x": x}}, folder)
    """
    )
    assert saver.line() == "saving"
    wait_until_others_have_written(folder)
    family = saver.family()
    saver.process.kill()
    saver.process.wait()
    for process in family:  # the stopped one too, which cannot see that its controller is gone
        process.kill()
    assert torch.equal(ts.device_get(ts.load(folder)["x"]), BEFORE)
    ts.save({"x": AFTER}, folder)
    assert os.listdir(folder.parent) == ["saved"]  # what the killed one had begun is gone


@pytest.mark.whole
@pytest.mark.parametrize("moment, expected", every(2, [("before", BEFORE), ("after", AFTER)]))
def test_a_controller_that_is_killed_around_the_exchange_leaves_one_of_the_two(
    pool, controller, folder, moment, expected
):
    saver = controller(
        SAVES
        + f"""
    from tinyshard.core import replaced_folder
    exchange = replaced_folder.take_place
    def killed(*names):
        if {moment == "after"}:
            exchange(*names)
        os.kill(os.getpid(), signal.SIGKILL)
    replaced_folder.take_place = killed
    ts.save({{"x": x}}, folder)
    """
    )
    saver.finish()
    assert saver.process.returncode == -signal.SIGKILL
    assert torch.equal(ts.device_get(ts.load(folder)["x"]), expected)
    ts.save({"x": AFTER}, folder)
    assert os.listdir(folder.parent) == ["saved"]


# ---- torch's processes ----------------------------------------------------------------------------------------------

TORCHS = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh, zeros

def main(rank, store, ours, theirs):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {"w": zeros(8, 6, device_mesh=mesh, placements=[Shard(1)])}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(ours))
    assert torch.equal(state["w"].full_tensor(), torch.arange(48.0).reshape(8, 6)), state
    state = {"w": distribute_tensor(torch.arange(48.0).reshape(8, 6) * 2, mesh, [Shard(0)])}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(theirs, save_distributed=True))
    dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.spawn(main, sys.argv[1:], nprocs=2)
"""


@pytest.mark.whole
def test_torchs_processes_read_our_blocks_onto_their_mesh_and_we_read_theirs(rows, folder, tmp_path):
    ts.save({"w": ts.device_put(torch.arange(48.0).reshape(8, 6), rows)}, folder)
    script = tmp_path / "torchs.py"
    script.write_text(TORCHS)
    arguments = [str(tmp_path / "store"), str(folder), str(tmp_path / "theirs")]
    subprocess.run([sys.executable, str(script), *arguments], check=True, timeout=300)
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) == 2
    back = ts.load(tmp_path / "theirs", rows)["w"]
    assert back.sharding == rows
    assert torch.equal(ts.device_get(back), torch.arange(48.0).reshape(8, 6) * 2)
