"""Blocks of shared memory: who holds them, and when they are used again. Two members of one process map it twice."""

import os
import stat
import tempfile
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.monitors import held
from tinyshard.runtime.shm import region, segment, system
from tinyshard.runtime.shm.allocator import Arena
from tinyshard.runtime.shm.holders import table_nbytes
from tinyshard.runtime.shm.segment import Mapping

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")

gives_pages_back = pytest.mark.skipif(system.MADV_REMOVE is None, reason="this system keeps pages that were touched")


def arenas():
    """Both devices of two and the controller."""
    fd = segment.create(2)
    made = [Arena(fd, 2, member) for member in range(3)]
    os.close(fd)
    return made


@pytest.fixture
def members():
    return arenas()


def with_regions_of(pages, monkeypatch):
    """The members, each with addresses for the blocks of so many pages of 4 KiB."""
    monkeypatch.setattr(segment, "REGIONS_NBYTES", (region.rounded(table_nbytes(2)) + pages * 4096,))
    return arenas()


def on_a_machine_of(nbytes, monkeypatch):
    """The members, where there is so much memory: each keeps pages of a twelfth of it, when idle of a 192nd."""
    monkeypatch.setattr(system, "limit_nbytes", lambda: nbytes)
    return arenas()


def test_what_one_member_writes_another_reads(members):
    block = members[0].copied(torch.arange(12).reshape(3, 4).T, [0, 1])
    assert torch.equal(members[1].hold(block, (4, 3), torch.int64), torch.arange(12).reshape(3, 4).T)


@pytest.mark.parametrize("dtype", [torch.bool, torch.bfloat16, torch.complex128, torch.uint16, torch.int8])
def test_every_dtype_keeps_its_bits(members, dtype):
    x = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    block = members[0].copied(x, [1])
    got = members[1].hold(block, (5,), dtype)
    assert got.dtype == dtype and torch.equal(got, x)


def test_a_block_is_used_again_only_when_its_last_holder_has_let_go(members):
    first = members[0].allocate(100_000, [0, 1])
    here = members[0].hold(first, (25_000,), torch.float32)
    there = members[1].hold(first, (25_000,), torch.float32)
    del here
    assert members[0].allocate(100_000, [0]).offset != first.offset
    view = there[5:10]
    del there  # a view of it still stands
    members[1].let_go()
    assert members[0].allocate(100_000, [0]).offset != first.offset
    del view
    assert members[0].allocate(100_000, [0]).offset != first.offset
    members[1].let_go()
    assert members[0].allocate(100_000, [0]).offset == first.offset


def test_a_block_held_twice_by_one_member_stays_until_both_are_gone(members):
    block = members[0].allocate(8000, [0, 1])
    one = members[1].hold(block, (1000,), torch.float64)
    two = members[1].adopt(block._replace(offset=block.offset + 80), (10,), torch.float64)
    members[0].release(block)
    del one
    members[1].let_go()
    assert members[0].allocate(8000, [0]).offset != block.offset
    del two
    members[1].let_go()
    assert members[0].allocate(8000, [0]).offset == block.offset


def test_a_tensor_knows_the_block_that_it_lies_in(members):
    block = members[0].copied(torch.arange(20.0), [0])
    x = members[0].hold(block, (20,), torch.float32)
    assert members[0].block_of(x) == block
    assert members[0].block_of(x[5:]) == block._replace(offset=block.offset + 20)
    assert members[0].block_of(x[::2]) is None
    assert members[0].block_of(torch.zeros(3)) is None


def test_a_large_block_is_let_go_of_at_once(members):
    block = members[0].allocate(4 << 20, [1])
    x = members[1].hold(block, (1 << 20,), torch.float32)
    del x
    assert members[0].allocate(4 << 20, [0]).offset == block.offset


def test_the_controller_lets_go_of_nothing_in_a_finalizer():
    fd = segment.create(1)
    controller = Arena(fd, 1, 1, is_controller=True)
    os.close(fd)
    x = controller.hold(controller.allocate(4 << 20, [1]), (1 << 20,), torch.float32)
    del x
    assert len(controller.freed) == 1


def test_a_member_lets_go_of_its_own_blocks_when_it_needs_one(members):
    first = members[2].allocate(4096, [2])
    x = members[2].hold(first, (4096,), torch.uint8)
    del x
    assert members[2].allocate(4096, [2]).offset == first.offset


def test_thousands_of_blocks_live_and_all_come_back(members):
    blocks = [members[0].allocate(4096, [1]) for _ in range(3000)]
    assert len({block.offset for block in blocks}) == 3000
    for block in blocks:
        members[1].release(block)
    again = {members[0].allocate(4096, [1]).offset for _ in range(3000)}
    assert again == {block.offset for block in blocks}


def test_free_blocks_are_cut_anew_when_all_slots_are_taken(monkeypatch):
    """Hours with values of many sizes: none of them is there any more."""
    monkeypatch.setattr(region, "SLOTS", 16)
    owner, other, _ = arenas()
    for nbytes in (100_000, 200_000, 500_000, 50_000, 1_000_000, 100_000):
        blocks = [owner.copied(torch.full((nbytes,), i, dtype=torch.uint8), [1]) for i in range(12)]
        held = [other.hold(block, (nbytes,), torch.uint8) for block in blocks]
        assert all(x.eq(i).all() for i, x in enumerate(held))
        del held
        other.let_go()


def test_free_blocks_are_cut_anew_when_all_addresses_are_taken_and_held_ones_stay(monkeypatch):
    owner, other, _ = with_regions_of(64, monkeypatch)
    kept = []
    for pages in (1, 2, 4, 8, 3, 5, 1):
        blocks = [owner.copied(torch.full((pages * 4096,), i, dtype=torch.uint8), [1]) for i in range(20 // pages)]
        held = [other.hold(block, (pages * 4096,), torch.uint8) for block in blocks]
        assert all(x.eq(i).all() for i, x in enumerate(held))
        kept.append((held[-1], len(held) - 1))
        del held
        other.let_go()
    assert all(x.eq(i).all() for x, i in kept)
    with pytest.raises(MemoryError, match="no room for"):
        owner.allocate(60 * 4096, [0])


def test_free_blocks_at_the_end_join_the_addresses_of_none(monkeypatch):
    monkeypatch.setattr(region, "SLOTS", 16)
    owner, other, _ = with_regions_of(576, monkeypatch)

    def use(pages, count):
        blocks = [owner.allocate(pages * 4096, [1]) for _ in range(count)]
        held = [other.hold(block, (pages * 4096,), torch.uint8) for block in blocks]
        del held
        other.let_go()
        return blocks

    small = use(10, 16)
    assert use(512, 1)[0].offset == small[0].offset  # larger than all that is free, and no slot was left
    assert use(576, 1)[0].offset == small[0].offset
    with pytest.raises(MemoryError, match="beside 0 blocks"):
        use(640, 1)


@gives_pages_back
def test_pages_of_many_free_blocks_are_given_back_and_the_blocks_still_serve(monkeypatch):
    member, *_ = on_a_machine_of(12 << 20, monkeypatch)
    blocks = [member.copied(torch.ones(1 << 18), [0]) for _ in range(8)]
    for block in blocks:
        member.release(block)
    member.collect()
    assert sum(member.view(b.offset, (1 << 18,), torch.float32).sum().item() == 0 for b in blocks) == 7
    assert {member.allocate(1 << 20, [0]).offset for _ in range(8)} == {b.offset for b in blocks}


def kept_pages(member, blocks):
    """How many of these freed blocks of ones still have their pages."""
    return sum(member.view(b.offset, (1 << 18,), torch.float32).sum().item() != 0 for b in blocks)


def freed(member):
    """Eight blocks of 1 MiB of ones that nobody holds any more."""
    blocks = [member.copied(torch.ones(1 << 18), [0]) for _ in range(8)]
    for block in blocks:
        member.release(block)
    return blocks


@gives_pages_back
@pytest.mark.parametrize(("memory", "busy", "idle"), [(72 << 20, 6, 0), (96 << 20, 8, 0), (576 << 20, 8, 3)])
def test_more_is_kept_for_the_next_value_than_when_nothing_happens(monkeypatch, memory, busy, idle):
    member, *_ = on_a_machine_of(memory, monkeypatch)
    blocks = freed(member)
    member.collect()
    assert kept_pages(member, blocks) == busy
    member.trim()
    assert kept_pages(member, blocks) == idle


@gives_pages_back
def test_what_is_kept_is_given_back_before_anything_is_refused(members, monkeypatch):
    member = members[0]
    blocks = freed(member)
    member.collect()
    available = iter([0, 1 << 40])
    monkeypatch.setattr(system, "available_nbytes", lambda: next(available))
    assert member.allocate(1 << 30, [0]).offset
    assert kept_pages(member, blocks) == 0


def test_a_full_region_says_so(members, monkeypatch):
    monkeypatch.setattr(system, "available_nbytes", lambda: None)
    with pytest.raises(MemoryError, match="no room for"):
        members[0].allocate(segment.REGIONS_NBYTES[0], [0])


class ReadInSteps:
    """A table of holders in which the first member's bytes are read before, all others after something happens."""

    def __init__(self, table, stride, happen):
        self._table, self._stride, self._happen = table, stride, happen

    def __getitem__(self, where):
        early = np.array(self._table[where])
        self._happen()
        late = np.array(self._table[where])
        late.view(np.uint8).reshape(-1, self._stride)[:, 0] = early.view(np.uint8).reshape(-1, self._stride)[:, 0]
        return late if late.ndim > 1 else late.data

    def __setitem__(self, where, what):
        self._table[where] = what


def test_a_block_that_goes_from_hand_to_hand_while_the_owner_looks_is_not_used_again(members, monkeypatch):
    """As a permute hands it on: the new holder takes it, then the old one drops it."""
    owner, giver, taker = members[2], members[1], members[0]
    block = owner.copied(torch.ones(10_000), [1])
    held, taken = [giver.hold(block, (10_000,), torch.float32)], []

    def hand_on():
        taken.append(taker.adopt(block, (10_000,), torch.float32))
        held.clear()
        giver.let_go()

    thread = threading.Thread(target=hand_on)

    def begin_to_hand_on():
        if thread.ident is None:
            thread.start()
        thread.join(0.2)  # it is over by then, unless the owner's look keeps it

    holders = owner._holders
    tables = list(holders._tables)
    tables[2] = ReadInSteps(tables[2], holders._stride, begin_to_hand_on)
    monkeypatch.setattr(holders, "_tables", tables)
    monkeypatch.setattr(holders, "_own", ReadInSteps(holders._own, holders._stride, begin_to_hand_on))
    new = owner.allocate(40_000, [])
    thread.join(20)
    assert new.offset != block.offset
    assert taken[0].eq(1).all()


def test_a_member_that_is_stopped_with_a_tables_monitor_keeps_nobody(members):
    """The owner takes fresh memory, and what others drop is dropped later."""
    owner, other = members[0], members[1]
    block = owner.allocate(100_000, [1])
    idle = owner.allocate(50_000, [])
    with held(members[2].control.holders_monitors[0]):
        other.release(block)
        assert owner.allocate(50_000, [0]).offset not in (block.offset, idle.offset)
    assert owner.allocate(50_000, [0]).offset == idle.offset
    assert owner.allocate(100_000, [0]).offset != block.offset
    other.let_go()
    assert owner.allocate(100_000, [0]).offset == block.offset


# ---- other systems ---------------------------------------------------------------------------------------------------


@gives_pages_back
@pytest.mark.parametrize("page_nbytes", [n << 10 for n in (16, 64) if (n << 10) % system.PAGE_NBYTES == 0])
def test_all_that_is_mapped_or_given_back_is_whole_pages_of_any_size(monkeypatch, page_nbytes):
    places = {"make_private": [], "give_back": []}

    def note(name):
        act = getattr(Mapping, name)

        def noting(self, offset, nbytes, **options):
            places[name].append((offset, nbytes))
            return act(self, offset, nbytes, **options)

        monkeypatch.setattr(Mapping, name, noting)

    for name in places:
        note(name)
    monkeypatch.setattr(system, "PAGE_NBYTES", page_nbytes)
    monkeypatch.setattr(system, "limit_nbytes", lambda: 0)  # no pages are kept
    fd = segment.create(2)
    assert os.fstat(fd).st_size % page_nbytes == 0
    device, _, controller = [Arena(fd, 2, member, is_controller=member == 2) for member in range(3)]
    os.close(fd)
    x = controller.new((40_000,), torch.float32).fill_(1)
    controller.settle(controller.block_of(x))
    controller.prepare_for_fork()
    block = device.copied(torch.ones(40_000), [0])
    assert block.offset % page_nbytes == 0
    device.release(block)
    device.collect()
    controller.leave()
    assert x.eq(1).all()
    assert all(places.values())
    for offset, nbytes in [place for found in places.values() for place in found]:
        assert offset % page_nbytes == nbytes % page_nbytes == 0


@pytest.fixture
def without_memory_files(monkeypatch, tmp_path):
    """As on a system that has none: temporary files, in the only folder that may be written, one of the test's."""
    monkeypatch.setattr(system, "HAS_MEMORY_FILES", False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda folder, mode: folder == str(tmp_path))
    return tmp_path


def test_a_temporary_file_serves_as_well_and_has_no_name(without_memory_files):
    fd = segment.create(2)
    members = [Arena(fd, 2, member) for member in range(3)]
    assert list(without_memory_files.iterdir()) == []
    assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o600
    os.close(fd)
    block = members[0].copied(torch.ones(1 << 18), [1])
    assert members[1].hold(block, (1 << 18,), torch.float32).eq(1).all()
    members[1].let_go()
    assert members[0].allocate(1 << 20, [0]).offset == block.offset


def test_a_folder_without_room_is_left_alone_and_one_that_fills_up_refuses(without_memory_files, monkeypatch):
    with monkeypatch.context() as full:
        full.setattr(os, "statvfs", lambda folder: SimpleNamespace(f_bavail=(1 << 18) - 1, f_frsize=4096))
        assert not segment.is_possible()
    fd = segment.create(1)
    member = Arena(fd, 1, 0)
    os.close(fd)
    monkeypatch.setattr(system, "room_nbytes", lambda fd: 100 << 20)
    with pytest.raises(MemoryError, match=f"has {100 << 20} left"):
        member.allocate(200 << 20, [0])


def test_where_large_regions_are_refused_smaller_ones_serve(monkeypatch):
    truncate = os.ftruncate

    def refuse(fd, nbytes):
        if nbytes > 1 << 37:
            raise OSError("no room for such a file")
        truncate(fd, nbytes)

    monkeypatch.setattr(os, "ftruncate", refuse)
    members = arenas()
    block = members[1].copied(torch.arange(9.0), [2])
    assert members[2].hold(block, (9,), torch.float32).tolist() == list(range(9))
    with pytest.raises(MemoryError, match="no room for"):
        members[0].allocate(segment.REGIONS_NBYTES[1], [0])


@pytest.mark.parametrize("refusal", ["no such advice", "no holes"])
def test_where_pages_cannot_be_given_back_they_are_kept_and_blocks_still_serve(monkeypatch, refusal):
    if refusal == "no such advice":
        monkeypatch.setattr(system, "MADV_REMOVE", None)
    else:
        monkeypatch.setattr(system, "MADV_REMOVE", 1 << 20)  # which the system knows not
    member, *_ = on_a_machine_of(0, monkeypatch)
    blocks = freed(member)
    member.collect()
    assert kept_pages(member, blocks) == 8
    assert {member.allocate(1 << 20, [0]).offset for _ in range(8)} == {b.offset for b in blocks}


@pytest.mark.parametrize("advice", [system.MADV_POPULATE_WRITE, None, 1 << 20], ids=["copied", "no advice", "refused"])
def test_a_private_copy_is_whole_before_the_block_is_used_again(monkeypatch, advice):
    monkeypatch.setattr(system, "MADV_POPULATE_WRITE", advice)
    fd = segment.create(1)
    controller, device = Arena(fd, 1, 1, is_controller=True), Arena(fd, 1, 0)
    os.close(fd)
    x = controller.new((100_000,), torch.float32).fill_(1)
    block = controller.block_of(x)
    controller.settle(block)
    controller.prepare_for_fork()
    device.view(block.offset, (100_000,), torch.float32).fill_(2)
    assert x.eq(1).all()


def test_a_block_that_is_handed_over_again_before_it_could_be_let_go_of_stays_held(members):
    x = torch.arange(25_000.0)
    block = members[0].copied(x, [0])
    here = members[0].hold(block, x.shape, x.dtype)
    there = members[1].adopt(block, x.shape, x.dtype)
    with held(members[0].control.holders_monitors[0]):  # another member has it, and the system runs that one no more
        del there
        members[1].let_go()
    there = members[1].adopt(block, x.shape, x.dtype)
    members[1].let_go()
    del here
    assert members[0].allocate(x.nbytes, [0]).offset != block.offset, "the other member holds it"
    assert torch.equal(there, x)
    del there
    members[1].let_go()
    assert members[0].allocate(x.nbytes, [0]).offset == block.offset
