"""What a device hands to the library that joins devices; a group of one's own notes it here."""

import socket

import pytest
import torch

from tinyshard.program import Meta
from tinyshard.runtime.collectives import gloo


class Group:
    """Notes what it is asked for, in order; as a member of NCCL's or gloo's."""

    def __init__(self, name):
        self.calls = []
        self.name = lambda: name

    def _note(self, *words):
        self.calls.append(words)
        return self

    def _start_coalescing(self, place):
        self._note("group")

    def _end_coalescing(self, place):
        return self._note("end of group")

    def send(self, blocks, member, tag):
        return self._note("send", member, blocks[0].tolist())

    def recv(self, blocks, member, tag):
        blocks[0].fill_(member)
        return self._note("receive", member)

    def wait(self):
        self._note("wait")


SWAP = [("send", 1, [7, 7]), ("receive", 1)]
GROUPED = [("group",), *SWAP, ("end of group",), ("wait",)]


@pytest.mark.parametrize("name, calls", [("nccl", GROUPED), ("gloo", [*SWAP, ("wait",), ("wait",)])])
def test_two_devices_that_swap_begin_to_send_and_to_receive_before_they_wait_and_on_nccl_in_one_group(name, calls):
    group, x = Group(name), torch.tensor([7, 7], dtype=torch.uint8)
    out = gloo._collective_permute(gloo._Counting(group, 2, []), 0, 2, x, pairs=((0, 1), (1, 0)))
    assert out.tolist() == [1, 1]
    assert group.calls == calls


@pytest.mark.parametrize("name, calls", [("nccl", GROUPED), ("gloo", [*SWAP, ("wait",), ("wait",)])])
def test_a_transfer_both_ways_is_one_group_on_nccl(name, calls):
    group, x = Group(name), torch.tensor([7, 7], dtype=torch.uint8)
    here = gloo.GlooCommunicator.__new__(gloo.GlooCommunicator)
    here._device, here._place, here._groups = 0, None, {(0, 1): gloo._Counting(group, 2, [])}
    whole = (slice(0, 2),)
    meta = Meta((2,), torch.uint8)
    out = here.transfer(x, meta, (0, 1), meta, moves=((0, 1, whole, whole), (1, 0, whole, whole)))
    assert out.tolist() == [1, 1]
    assert group.calls == calls


def test_a_device_that_takes_no_part_hands_nothing_over():
    group, x = Group("nccl"), torch.tensor([7, 7], dtype=torch.uint8)
    assert gloo._collective_permute(group, 2, 3, x, pairs=((0, 1), (1, 0))).tolist() == [0, 0]
    assert group.calls == []


def test_an_abort_leaves_the_connections_of_others_alone(tmp_path):
    listener = socket.create_server(("127.0.0.1", 0))
    with listener, socket.create_connection(listener.getsockname()) as mine, listener.accept()[0] as theirs:
        here = gloo.GlooCommunicator(str(tmp_path / "store"), 0, 1)
        here.abort()
        mine.sendall(b"still there")
        assert theirs.recv(64) == b"still there"
