"""How much memory is left, and that a block larger than that is refused before its pages are touched."""

import os
import sys

import pytest
import torch

from tinyshard.runtime.shm import allocator, segment, system

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="memory cannot be shared so on this system")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells it in /proc")
def test_what_is_available_is_what_the_system_says():
    with open("/proc/meminfo") as file:
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in file}
    available = system.available_nbytes()
    assert available is not None and 0 < available <= kibibytes["MemTotal"] * 1024


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Writes what the system says: files by their path."""
    monkeypatch.setattr(system, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(system, "_MINE", tmp_path / "mine")
    monkeypatch.setattr(system, "_GROUPS", tmp_path / "groups")

    def write(texts):
        for path, text in texts.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)

    return write


def machine_nbytes():
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


MACHINE = {"meminfo": "MemTotal: 9000 kB\nMemAvailable: 8000 kB\n"}
VERSIONS = {
    "version 2": ("0::{path}\n", "groups{path}/", "memory.max", "memory.current", "inactive_file"),
    "version 1": (
        "5:cpu:/\n4:memory:{path}\n", "groups/memory{path}/",
        "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_a_container_with_less_than_the_machine_counts_and_its_cached_files_give_way(files, version):
    mine, folder, limit, used, cached = VERSIONS[version]
    at = folder.format(path="/")
    files({**MACHINE, "mine": mine.format(path="/unseen/from/within")})
    files({at + limit: "5000000\n", at + used: "3000000\n", at + "memory.stat": f"anon 1\n{cached} 1000\n"})
    assert system.available_nbytes() == 2_001_000
    assert system.limit_nbytes() == 5_000_000
    files({at + limit: "max\n"})
    assert system.available_nbytes() == 8000 * 1024
    assert system.limit_nbytes() == machine_nbytes()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("narrow", ["/", "/jobs", "/jobs/mine"])
def test_the_narrowest_of_the_groups_around_a_process_counts(files, version, narrow):
    mine, folder, limit, used, _ = VERSIONS[version]
    files({**MACHINE, "mine": mine.format(path="/jobs/mine")})
    for path in ("/", "/jobs", "/jobs/mine", "/jobs/another"):
        at = folder.format(path=path)
        left = {narrow: 2_000_000, "/jobs/another": 1}.get(path, 4_000_000)
        files({at + limit: f"{left + 500}\n", at + used: "500\n", at + "memory.stat": "anon 1\n"})
    assert system.available_nbytes() == 2_000_000


def test_a_system_that_does_not_tell_is_not_believed_to_be_full(files):
    assert system.available_nbytes() is None


def test_a_block_larger_than_what_is_left_is_refused_and_small_ones_go_on(monkeypatch):
    fd = segment.create(1)
    mine = allocator.Arena(fd, 1, 0)
    os.close(fd)
    monkeypatch.setattr(system, "available_nbytes", lambda: 100 << 20)
    with pytest.raises(MemoryError, match=f"this machine has {100 << 20} left"):
        mine.allocate(200 << 20, [0])
    held = mine.hold(mine.allocate(1 << 20, [0]), (1 << 18,), torch.float32)
    assert held.fill_(2).sum().item() == 2 << 18
