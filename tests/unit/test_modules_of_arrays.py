"""Modules whose parameters become Arrays, and what torch does to the parameters and gradients of a module."""

import pytest
import torch
from torch import nn

import tinyshard as ts


@pytest.fixture(autouse=True)
def _devices():
    ts.init(devices=2, runtime="local")


def sharding():
    return ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i"))


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def cut(net):
    for p in net.parameters():
        p.data = ts.device_put(p.data, sharding())
    return net


def both():
    """A network, and one of the same weights cut over devices; each has gradients."""
    pair = network(), cut(network())
    for net in pair:
        net(torch.ones(3, 4)).square().sum().backward()
    return pair


def check_equal(got, want):
    got, want = list(got), list(want)
    assert len(got) == len(want) > 0
    for mine, torchs in zip(got, want, strict=True):
        assert isinstance(mine, ts.Array)
        assert mine.sharding == sharding()
        assert torch.allclose(ts.device_get(mine.detach()), torchs)


def test_data_of_a_parameter_may_be_an_array_and_cuts_the_parameter():
    net = network()
    weight, optimizer = net[0].weight, torch.optim.SGD(net.parameters(), 0.1)
    weight.note = "kept"
    weight.grad = torch.ones(8, 4)
    cut(net)
    assert net[0].weight is weight
    assert isinstance(weight, nn.Parameter)
    assert isinstance(weight, ts.Array)
    assert weight.requires_grad
    assert weight.note == "kept"
    assert torch.equal(weight.grad, torch.ones(8, 4))
    assert optimizer.param_groups[0]["params"][0] is weight
    check_equal(net.parameters(), network().parameters())


def test_a_network_cut_by_data_has_torchs_output_and_gradients():
    plain, mine = both()
    assert torch.allclose(ts.device_get(mine(torch.ones(3, 4))), plain(torch.ones(3, 4)))
    for p, q in zip(plain.parameters(), mine.parameters(), strict=True):
        assert torch.allclose(ts.device_get(q.grad), p.grad, atol=1e-6)


def test_a_network_cut_after_it_was_jitted_is_looked_up_again():
    net = network()
    f = ts.jit(lambda x: net(x))
    before = ts.device_get(f(torch.ones(4)))
    cut(net)
    assert torch.allclose(ts.device_get(f(torch.ones(4))), before)


def test_data_of_another_tensor_may_be_an_array():
    t = alias = torch.zeros(8)
    t.data = ts.device_put(torch.arange(8.0), sharding())
    assert isinstance(alias, ts.Array)
    assert torch.equal(ts.device_get(alias + 1), torch.arange(1.0, 9.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 8)[0],
        lambda: nn.Parameter(torch.zeros(8)) * 2,
        lambda: held_by_a_view(torch.zeros(8)),
        lambda: hooked(nn.Parameter(torch.zeros(8))),
    ],
)
def test_a_tensor_that_something_else_depends_on_does_not_become_an_array(make):
    t = make()
    with pytest.raises(ts.ImmutableError, match=r"x\.data = array"):
        t.data = ts.device_put(torch.arange(8.0), sharding())
    assert torch.equal(t, torch.zeros(8))


HELD = []


def held_by_a_view(t):
    HELD.append(t[2:])
    return t


def hooked(p):
    p.register_hook(lambda g: g)
    return p


def test_backward_through_what_a_parameter_was_before_it_became_an_array_says_so():
    p = nn.Parameter(torch.ones(8))
    loss = (p * 2).sum()
    p.data = ts.device_put(torch.arange(8.0), sharding())
    with pytest.raises(ts.ImmutableError, match="has become an Array"):
        loss.backward()
    (p * p).sum().backward()
    assert torch.equal(ts.device_get(p.grad), 2 * torch.arange(8.0))


def test_a_traced_function_does_not_set_data_to_an_array():
    t, x = torch.zeros(8), ts.device_put(torch.arange(8.0), sharding())

    def f(v):
        t.data = x
        return v

    with pytest.raises(ts.ImmutableError, match="assigns to `data`"):
        ts.jit(f)(x)
    assert torch.equal(t, torch.zeros(8))


@pytest.mark.parametrize(
    "convert",
    [
        lambda net: net.to("cpu"),
        lambda net: net.cpu(),
        lambda net: net.double(),
        lambda net: net.to(torch.float64),
        lambda net: net.half().float(),
        lambda net: net.bfloat16(),
        lambda net: net.type(torch.float64),
    ],
)
def test_a_module_of_arrays_is_converted_as_torchs(convert):
    plain, mine = both()
    plain, mine = convert(plain), convert(mine)
    check_equal(mine.parameters(), plain.parameters())
    assert [p.grad.dtype for p in mine.parameters()] == [p.grad.dtype for p in plain.parameters()]
    assert all(isinstance(p, nn.Parameter) and p.requires_grad for p in mine.parameters())


def double_the_state(net):
    net.load_state_dict({name: 2 * value for name, value in net.state_dict().items()})


def clip_values(net):
    nn.utils.clip_grad_value_(net.parameters(), 0.01)


@pytest.mark.parametrize(
    "change",
    [
        double_the_state,
        lambda net: net.load_state_dict(network().double().state_dict()),
        lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1),
        lambda net: nn.utils.clip_grad_norm_(net.parameters(), 0.1, foreach=False),
        clip_values,
        lambda net: net.zero_grad(set_to_none=False),
        lambda net: torch.optim.SGD(net.parameters(), 0.1).zero_grad(set_to_none=False),
        lambda net: nn.utils.vector_to_parameters(torch.arange(58.0), net.parameters()),
        lambda net: [nn.init.constant_(p, 0.5) for p in net.parameters()],
    ],
)
def test_torch_writes_to_the_parameters_and_gradients_of_a_module_of_arrays(change):
    plain, mine = both()
    kept = [p.detach() for p in mine.parameters()]
    before = [ts.device_get(x) for x in kept]
    for net in (plain, mine):
        change(net)
    check_equal(mine.parameters(), plain.parameters())
    for p, q in zip(plain.parameters(), mine.parameters(), strict=True):
        assert torch.allclose(ts.device_get(q.grad), p.grad, atol=1e-6)
    assert all(map(torch.equal, map(ts.device_get, kept), before)), "another handle keeps the values of before"


def test_a_vector_that_is_an_array_cuts_plain_parameters():
    net = network()
    nn.utils.vector_to_parameters(ts.array(torch.arange(58.0)), net.parameters())
    assert all(isinstance(p, ts.Array) for p in net.parameters())
    assert torch.equal(ts.device_get(nn.utils.parameters_to_vector(net.parameters()).detach()), torch.arange(58.0))
