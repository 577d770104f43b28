"""Blocks of shared memory: who holds them, and when they are used again. Two members of one process map it twice."""

import os

import numpy as np
import pytest
import torch

from tinyshard.runtime.shm import allocator, memory_limit
from tinyshard.runtime.shm.allocator import Arena

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")


@pytest.fixture
def members():
    """Both devices of two and the controller."""
    fd = allocator.create(2)
    made = [Arena(fd, 2, member) for member in range(3)]
    os.close(fd)
    return made


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
    fd = allocator.create(1)
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


def test_pages_of_many_free_blocks_are_given_back_and_the_blocks_still_serve(members, monkeypatch):
    member = members[0]
    monkeypatch.setattr(member, "_most_kept_nbytes", 1 << 20)
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


def test_more_is_kept_for_the_next_value_than_when_nothing_happens(members, monkeypatch):
    member = members[0]
    monkeypatch.setattr(member, "_most_kept_idle_nbytes", 3 << 20)
    monkeypatch.setattr(member, "_most_kept_nbytes", 6 << 20)
    blocks = freed(member)
    member.collect()
    assert kept_pages(member, blocks) == 6
    member.trim()
    assert kept_pages(member, blocks) == 3


def test_what_is_kept_is_given_back_before_anything_is_refused(members, monkeypatch):
    member = members[0]
    blocks = freed(member)
    member.collect()
    available = iter([0, 1 << 40])
    monkeypatch.setattr(memory_limit, "available_nbytes", lambda: next(available))
    assert member.allocate(1 << 30, [0]).offset
    assert kept_pages(member, blocks) == 0


def test_a_full_region_says_so(members, monkeypatch):
    monkeypatch.setattr(memory_limit, "available_nbytes", lambda: None)
    with pytest.raises(MemoryError, match="no room for"):
        members[0].allocate(allocator.REGION_NBYTES, [0])


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


@pytest.mark.parametrize("look", ["_take_back", "collect"])
def test_a_block_that_goes_from_hand_to_hand_while_the_owner_looks_is_not_used_again(members, monkeypatch, look):
    """As a permute hands it on: the new holder adopts it, then the old one lets go."""
    owner, giver, taker = members[2], members[1], members[0]
    block = owner.copied(torch.ones(10_000), [1])
    held = [giver.hold(block, (10_000,), torch.float32)]

    def hand_on():
        if held:
            taken.append(taker.adopt(block, (10_000,), torch.float32))
            held.clear()
            giver.let_go()

    taken = []
    tables = list(owner._tables)
    tables[2] = ReadInSteps(tables[2], owner._stride, hand_on)
    monkeypatch.setattr(owner, "_tables", tables)
    monkeypatch.setattr(owner, "_own", ReadInSteps(owner._own, owner._stride, hand_on))
    if look == "collect":
        monkeypatch.setattr(owner, "_take_back", lambda size: False)
    new = owner._allocate(40_000, [])
    assert taken and new.offset != block.offset
    assert taken[0].eq(1).all()
