"""Experts on eight devices compute what plain torch computes token by token; what finds no room is counted."""

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from course.experts import AXIS, balance, by_experts, examples, load_of, new_params, on_one_device, placed
from course.widgets.experts import look, token_routing
from tinyshard import P

SPECS = {"router": P(), "up": P(AXIS), "down": P(AXIS)}


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


@pytest.mark.parametrize("capacity, count", [(6, 1), (3, 2)])
def test_results_and_gradients_are_those_of_one_device(capacity, count):
    params, (x, _) = new_params(), examples(0, 64)
    mesh = ts.make_mesh((8,), (AXIS,))

    def body(params, x):
        return by_experts(params, x, capacity, count)[0]

    mapped = ts.shard_map(body, mesh=mesh, in_specs=(SPECS, P(AXIS)), out_specs=P(AXIS))
    on_devices, rows = placed(params, mesh), ts.device_put(x, ts.NamedSharding(mesh, P(AXIS)))
    want = {name: p.clone().requires_grad_() for name, p in params.items()}
    out = on_one_device(want, x, capacity, senders=8, count=count)
    out.square().mean().backward()
    torch.testing.assert_close(ts.device_get(mapped(on_devices, rows)), out.detach(), rtol=1e-4, atol=1e-5)
    grads = ts.grad(lambda params: mapped(params, rows).square().mean())(on_devices)
    for name, p in want.items():
        torch.testing.assert_close(ts.device_get(grads[name]), p.grad, rtol=1e-4, atol=1e-5)


def test_the_balancing_loss_is_one_for_a_fair_choice_and_the_number_of_experts_for_a_single_one():
    mesh = ts.make_mesh((8,), (AXIS,))
    mapped = ts.shard_map(balance, mesh=mesh, in_specs=(P(AXIS), P(AXIS)), out_specs=P())
    for chosen, want in ((torch.arange(8), 1.0), (torch.zeros(8, dtype=torch.int64), 8.0)):
        assert float(mapped(torch.eye(8)[chosen], chosen)) == pytest.approx(want)


def test_what_is_sent_and_dropped_adds_up_to_the_tokens():
    chosen = torch.randint(4, (8, 20), generator=torch.Generator().manual_seed(3))
    load = load_of(chosen, 4, capacity=5)
    counts = torch.stack([torch.bincount(row, minlength=4) for row in chosen])
    assert load.sent == counts.clamp(max=5).tolist()
    assert load.dropped == (counts - 5).clamp(min=0).sum(1).tolist()
    assert load.arrived == counts.clamp(max=5).sum(0).tolist()


def test_in_the_picture_the_bytes_depend_on_the_capacity_alone_and_room_for_all_drops_nothing():
    few, many = (look(router, 8) for router in ("all alike", "nearly all to one"))
    assert few.nbytes == many.nbytes == 2 * 3 * 8 * 64
    assert sum(few.load.dropped) == sum(many.load.dropped) == 0
    assert max(many.load.arrived) > max(few.load.arrived)


def test_the_picture_strikes_out_as_many_tokens_as_it_says():
    picture = token_routing().choose(router="one is popular", capacity=2)
    assert "dropped 11 of 32 tokens" in picture.text
    assert picture.svg.count("<path") == picture.text.count("(") == 11
