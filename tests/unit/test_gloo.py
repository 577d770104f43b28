"""Collectives of devices that gloo joins; here the devices are threads of this process."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import PeerLostError, Request
from tinyshard.runtime.collectives.gloo import GlooCommunicator

PATIENCE_S = 60
LARGE = 1 << 22  # more bytes than a socket takes before the other side reads
Joined = Callable[[int], list[GlooCommunicator]]


@pytest.fixture
def joined() -> Iterator[Joined]:
    """So many devices, each of which is connected to the others."""
    made: list[GlooCommunicator] = []

    def make(count: int) -> list[GlooCommunicator]:
        store = dist.HashStore()
        with ThreadPoolExecutor(count) as threads:
            made.extend(threads.map(lambda device: GlooCommunicator(store, device, count), range(count)))
        return made

    yield make
    for device in made:
        device.abort()


def performed(device: GlooCommunicator, x: Tensor, name: str, devices: tuple[int, ...], **params: Any) -> Any:
    """What the device gets from a collective of these devices."""
    meta = ShapedType(tuple(x.shape), x.dtype)
    return device.ready(Request(name, devices, (len(devices),), (0,), params, (meta,), meta))([x], (1, 0))[0]


WHOLE = (slice(0, LARGE),)
SWAPS: dict[str, dict[str, Any]] = {
    "collective_permute": {"pairs": ((0, 1), (1, 0))},
    "transfer": {"moves": ((0, 1, WHOLE, WHOLE), (1, 0, WHOLE, WHOLE))},
}


@pytest.mark.parametrize("name", SWAPS)
def test_two_devices_that_swap_begin_to_send_and_to_receive_before_they_wait(name: str, joined: Joined) -> None:
    devices = joined(2)
    with ThreadPoolExecutor(2) as threads:
        given = [torch.full((LARGE,), place, dtype=torch.uint8) for place in (0, 1)]
        waiting = [
            threads.submit(performed, device, x, name, (0, 1), **SWAPS[name])
            for device, x in zip(devices, given, strict=True)
        ]
        try:
            assert [got.result(PATIENCE_S).unique().tolist() for got in waiting] == [[1], [0]]
        finally:
            for device in devices:
                device.abort()


def test_the_end_of_a_device_is_the_loss_of_a_peer(joined: Joined) -> None:
    devices = joined(2)
    del devices[1]
    with pytest.raises(PeerLostError, match="closed"):
        performed(devices[0], torch.ones(2), "collective_permute", (0, 1), pairs=((0, 1), (1, 0)))


def test_a_device_that_takes_no_part_in_a_permutation_exchanges_nothing_and_gets_zeros(joined: Joined) -> None:
    device = joined(3)[2]
    assert performed(device, torch.ones(2), "collective_permute", (0, 1, 2), pairs=((0, 1), (1, 0))).tolist() == [0, 0]


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "collective_permute"])
def test_a_collective_of_one_device_is_the_operand_itself(name: str, joined: Joined) -> None:
    x = torch.ones(2)
    assert COLLECTIVES[name].communicates
    assert performed(joined(2)[0], x, name, (0,)) is x
