"""A module, or a parameter, that can be reached by two names, under functional_call and jit."""

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")

X = torch.linspace(-1, 1, 4)


class Shared(torch.nn.Module):
    """One layer by four names, and a weight of another by two."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first = torch.nn.Linear(4, 4)
        self.second = self.first
        self.layers = torch.nn.ModuleList([self.first, torch.nn.Linear(4, 4, bias=False)])
        self.words = torch.nn.Embedding(4, 4)
        self.layers[1].weight = self.words.weight

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).tanh()
        return self.second(self.first(x)) * self.words(torch.tensor([1]))[0]


def loss(net):
    return lambda params, x: functional_call(net, params, (x,)).sum()


WRAPPED = {
    "jit of grad": lambda f: ts.jit(ts.grad(f)),
    "grad of jit": lambda f: ts.grad(ts.jit(f)),
    "grad": lambda f: ts.grad(f),
}


@pytest.mark.parametrize("wrapped", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("name", [None, "second.weight", "layers.0.bias", "layers.1.weight"])
def test_gradients_by_any_of_the_names_are_plain_torchs_and_the_module_is_left_as_it_was(wrapped, name):
    net, twin = Shared(), Shared()
    before = dict(net.named_parameters(remove_duplicate=False))
    params = {k: 2 * x.detach() for k, x in (before.items() if name else net.named_parameters()) if name in (None, k)}
    wanted = torch.func.grad(loss(twin))(params, X)
    got = wrapped(loss(net))({k: ts.array(x) for k, x in params.items()}, ts.array(X))
    assert_close(got, wanted)
    after = dict(net.named_parameters(remove_duplicate=False))
    assert all(after[k] is x for k, x in before.items())
    assert_close(ts.jit(net)(ts.array(X)), Shared()(X).detach())


def test_a_module_that_a_jitted_function_closes_over_by_two_names_may_change():
    net = Shared()
    other = {"net": net}
    f = ts.jit(lambda x: net(x) + other["net"](x))
    assert_close(f(ts.array(X)), 2 * net(X).detach())
    net.second.weight = torch.nn.Parameter(torch.eye(4))
    assert_close(f(ts.array(X)), 2 * net(X).detach())
    net.second = torch.nn.Identity()
    assert_close(f(ts.array(X)), 2 * net(X).detach())
