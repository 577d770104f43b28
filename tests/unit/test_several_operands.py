"""One exchange of several operands gives each the bits that it gets alone; the devices are threads of this process."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.communicators import communicators_of, of_each
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Communicator, Request
from tinyshard.runtime.collectives.gloo import GlooCommunicator
from tinyshard.runtime.collectives.several import pieces
from tinyshard.runtime.shm import segment

DEVICES = (0, 1, 2, 3)
KINDS: dict[str, dict[str, Any]] = {
    "all_reduce": {"op": "sum"},
    "all_gather": {"dim": 0},
    "reduce_scatter": {"dim": 0, "op": "avg"},
    "all_to_all": {"split": 0, "join": 1},
    "collective_permute": {"pairs": ((0, 1), (1, 3), (3, 0))},
}
# some too small for a block and some too large for a slot, of a size that no device's share fits
SHAPES = {"small": [(4, 3), (4, 1), (16, 2)], "mixed": [(4, 3), (400, 800), (4, 1), (604, 37), (8, 1000), (4, 8192)]}


def over_gloo() -> list[GlooCommunicator]:
    store = dist.HashStore()
    ends = of_each(DEVICES, lambda device: GlooCommunicator(store, device, len(DEVICES)))
    return [ends[device] for device in DEVICES]


WAYS: dict[str, Callable[[], Any]] = {"gloo": over_gloo}
if segment.is_possible():
    WAYS["shared memory"] = lambda: communicators_of(len(DEVICES))


def values(device: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Numbers whose sum depends on the order; every second tensor has its columns first in memory."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(device + shape[0])) * 10.0 ** (device - 2)
    return x.to(dtype) if shape[0] % 16 else x.to(dtype).t().contiguous().t()


def taken(device: Communicator, name: str, xs: list[Tensor], call: int) -> list[Tensor]:
    """What the device gets, all in one exchange and then one by one."""
    params = KINDS[name]
    metas = [ShapedType(tuple(x.shape), x.dtype) for x in xs]
    results = [COLLECTIVES[name].meta(meta, len(DEVICES), params) for meta in metas]

    def request(k: int, *which: ShapedType) -> Request:
        return Request(name, DEVICES, (len(DEVICES),), (0,), params, which, results[k])

    device.handed.clear()
    together = device.ready(request(0, *metas))(xs, (call, 0))
    alone = [device.ready(request(k, metas[k]))([x], (call, k + 1))[0] for k, x in enumerate(xs)]
    assert device.handed[0] == (name, len(DEVICES), sum(x.nbytes for x in xs))
    return [*together, *alone]


def exchanged(devices: Any, name: str, given: dict[int, list[Tensor]], call: int, device: int) -> list[Tensor]:
    return taken(devices[device], name, given[device], call)


@pytest.mark.parametrize("way", WAYS)
def test_each_operand_of_an_exchange_of_several_gets_the_bits_that_it_gets_alone(way):
    devices = WAYS[way]()
    try:
        call = 0
        for name in KINDS:
            for dtype in (torch.float32, torch.bfloat16, torch.int64):
                if name == "reduce_scatter" and dtype is torch.int64:
                    continue
                for shapes in SHAPES.values():
                    call += 1
                    given = {d: [values(d, shape, dtype) for shape in shapes] for d in DEVICES}
                    ended = of_each(DEVICES, partial(exchanged, devices, name, given, call))
                    for d in DEVICES:
                        assert isinstance(ended[d], list), ended[d]
                        together, alone = ended[d][: len(shapes)], ended[d][len(shapes) :]
                        for x, y in zip(together, alone, strict=True):
                            assert x.shape == y.shape and x.dtype == y.dtype
                            assert torch.equal(x, y), (name, dtype, x.shape)
    finally:
        for device in devices:
            device.abort()


def test_members_share_the_bytes_of_an_exchange_and_each_byte_is_of_one_member():
    sizes = [100, 1 << 20, 4, 50_000, 300, 1 << 17, 33_000]
    found = sorted(piece for place in range(5) for piece in pieces(sizes, place, 5))
    for k, nbytes in enumerate(sizes):
        ends = [(low, high) for each, low, high in found if each == k]
        assert ends[0][0] == 0 and ends[-1][1] == nbytes
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
    shares = [sum(high - low for _, low, high in pieces(sizes, place, 5)) for place in range(5)]
    assert max(shares) - min(shares) < 1024


@pytest.mark.skipif("shared memory" not in WAYS, reason="this system has no shared memory")
def test_blocks_of_an_exchange_of_several_are_free_again_once_its_results_are_gone():
    devices = WAYS["shared memory"]()
    given = {d: [values(d, shape, torch.float32) for shape in SHAPES["mixed"]] for d in DEVICES}
    for call, name in enumerate(KINDS, 1):
        ended = of_each(DEVICES, partial(exchanged, devices, name, given, call))
        assert all(isinstance(results, list) for results in ended.values()), ended
        del ended
    for device in devices:
        device._arena.let_go()
    for device in devices:
        device._arena.collect()
        assert not device._arena._region._given.any()
