"""checkpoint, custom_vjp and custom_jvp on real workers: inside of pmap, with collectives, and across devices."""

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.on_gloo


def same(got, expected):
    torch.testing.assert_close(torch.as_tensor(got.numpy()), expected)


@pytest.mark.parametrize("policy", [None, ts.checkpoint_policies.dots_saveable])
def test_a_network_under_checkpoint_has_its_gradients_under_jit(pool, policy):
    mesh = ts.make_mesh((4, 2), ("data", "model"))
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(8, 8, generator=generator) / 3 for _ in range(3)]
    x = torch.randn(16, 8, generator=generator)

    def loss(weights, x, layer):
        for w in weights:
            x = layer(x, w)
        return x.square().mean()

    def layer(x, w):
        return torch.tanh(torch.tanh(x @ w) * 2)

    placed = [ts.device_put(w, ts.NamedSharding(mesh, ts.P(None, "model"))) for w in weights]
    batch = ts.device_put(x, ts.NamedSharding(mesh, ts.P("data")))
    kept = ts.checkpoint(layer, policy=policy)
    found = ts.jit(ts.grad(lambda weights, x: loss(weights, x, kept)))(placed, batch)
    leaves = [w.clone().requires_grad_() for w in weights]
    loss(leaves, x, layer).backward()
    for got, leaf in zip(found, leaves, strict=True):
        same(got, leaf.grad)


def test_a_collective_is_performed_again_in_the_gradient(pool):
    x = torch.randn(8, 4, generator=torch.Generator().manual_seed(2))
    f = ts.checkpoint(lambda v: torch.sin(ts.lax.psum(torch.sin(v), "i")).sum())
    expected = 8 * torch.cos(torch.sin(x).sum(0)) * torch.cos(x)
    same(ts.pmap(ts.grad(f), axis_name="i")(x), expected)


def test_given_derivatives_inside_and_around_pmap(pool):
    clipped = ts.custom_vjp(lambda x: torch.sin(x))
    clipped.defvjp(lambda x: (torch.sin(x), x), lambda x, g: (7 * x * g,))
    straight = ts.custom_jvp(torch.round)
    straight.defjvp(lambda primals, tangents: (torch.round(primals[0]), tangents[0]))
    x = torch.arange(8.0) / 3
    same(ts.pmap(ts.grad(clipped))(x), 7 * x)
    same(ts.grad(lambda x: ts.pmap(clipped)(x).sum())(ts.array(x)), 7 * x)
    same(ts.pmap(ts.grad(straight))(x), torch.ones(8))
