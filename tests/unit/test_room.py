"""How much memory is left, and that a block larger than that is refused before its pages are touched."""

import os

import pytest
import torch

from tinyshard.runtime import arena, room

pytestmark = pytest.mark.skipif(not arena.is_possible(), reason="memory cannot be shared so on this system")


def test_what_is_available_is_what_the_system_says():
    with open("/proc/meminfo") as file:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    available = room.available_nbytes()
    assert available is not None and 0 < available <= kibibytes["MemTotal"] * 1024


def files(tmp_path, **texts):
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    return tuple(tmp_path / name for name in texts)


def test_a_container_with_less_than_the_machine_counts_and_its_cached_files_give_way(tmp_path, monkeypatch):
    (machine,) = files(tmp_path, machine="MemTotal: 9000 kB\nMemAvailable: 8000 kB\n")
    container = files(tmp_path, limit="5000000\n", used="3000000\n", stat="anon 1\ninactive_file 1000\n")
    monkeypatch.setattr(room, "_MACHINE", machine)
    monkeypatch.setattr(room, "_CONTAINERS", (container,))
    assert room.available_nbytes() == 2_001_000
    container[0].write_text("max\n")
    assert room.available_nbytes() == 8000 * 1024


def test_a_system_that_does_not_tell_is_not_asked_again(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "_MACHINE", tmp_path / "none")
    monkeypatch.setattr(room, "_CONTAINERS", ())
    assert room.available_nbytes() is None


def test_a_block_larger_than_what_is_left_is_refused_and_small_ones_go_on(monkeypatch):
    fd = arena.create(1)
    mine = arena.Arena(fd, 1, 0)
    os.close(fd)
    monkeypatch.setattr(room, "available_nbytes", lambda: 100 << 20)
    with pytest.raises(MemoryError, match=f"this machine has {100 << 20} left"):
        mine.allocate(200 << 20, [0])
    held = mine.hold(mine.allocate(1 << 20, [0]), (1 << 18,), torch.float32)
    assert held.fill_(2).sum().item() == 2 << 18
