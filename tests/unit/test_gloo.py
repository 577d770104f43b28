"""What a device hands to gloo, in a group of one's own."""

from collections import deque
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import PeerLostError, Request
from tinyshard.runtime.collectives.gloo import GlooCommunicator


class World:
    """A process group that notes what it is asked for, in order. What it receives is full of the sender's id."""

    def __init__(self):
        self.calls = []

    def send(self, blocks, member, tag):
        return self._note("send", member, blocks[0].tolist())

    def recv(self, blocks, member, tag):
        blocks[0].fill_(member)
        return self._note("receive", member)

    def wait(self):
        self._note("wait")

    def _note(self, *words):
        self.calls.append(words)
        return self


@pytest.fixture
def device():
    """A device whose exchanges with others go to a `World`."""

    def make(number):
        made = GlooCommunicator.__new__(GlooCommunicator)
        made._device, made._place, made._world, made.handed = number, None, World(), deque()
        made._thread, made._is_aborted = ThreadPoolExecutor(1), False
        return made

    return make


class Broken(World):
    """A process group whose connections have ended."""

    def wait(self):
        raise RuntimeError("[pair.cc:534] Connection closed by peer")


META = ShapedType((2,), torch.uint8)
WHOLE = (slice(0, 2),)
SWAP = [("send", 1, [7, 7]), ("receive", 1), ("wait",), ("wait",)]


def ready(device, name, devices, **params):
    return device.ready(Request(name, devices, (len(devices),), (0,), params, META, META, 0))


@pytest.mark.parametrize(
    "name, params",
    [
        ("collective_permute", {"pairs": ((0, 1), (1, 0))}),
        ("transfer", {"moves": ((0, 1, WHOLE, WHOLE), (1, 0, WHOLE, WHOLE))}),
    ],
)
def test_two_devices_that_swap_begin_to_send_and_to_receive_before_they_wait(device, name, params):
    here = device(0)
    out = ready(here, name, (0, 1), **params)(torch.tensor([7, 7], dtype=torch.uint8), 1)
    assert out.tolist() == [1, 1]
    assert here._world.calls == SWAP


def test_what_a_process_group_raises_is_the_loss_of_a_peer(device):
    here = device(0)
    here._world = Broken()
    perform = ready(here, "collective_permute", (0, 1), pairs=((0, 1), (1, 0)))
    with pytest.raises(PeerLostError, match="closed by peer"):
        perform(torch.tensor([7, 7], dtype=torch.uint8), 1)


def test_a_device_that_takes_no_part_in_a_permutation_exchanges_nothing_and_gets_zeros(device):
    here = device(2)
    perform = ready(here, "collective_permute", (0, 1, 2), pairs=((0, 1), (1, 0)))
    assert perform(torch.tensor([7, 7], dtype=torch.uint8), 1).tolist() == [0, 0]
    assert here._world.calls == []


def test_a_collective_of_one_device_is_the_operand_itself(device):
    x = torch.tensor([7, 7], dtype=torch.uint8)
    for name in ("all_reduce", "all_gather", "collective_permute"):
        assert COLLECTIVES[name].communicates
        assert ready(device(0), name, (0,))(x, 1) is x
