"""`ts.shardings`: the parameters of a module, placed by patterns of their names."""

import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")
NET = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
MEGATRON = {"0.*": P("b"), "2.weight": P(None, "b")}


def specs(found):
    return {name: sharding.spec for name, sharding in found.items()}


def test_the_first_pattern_that_fits_counts_and_the_rest_is_replicated(mesh):
    found = ts.shardings(NET, {"2.bias": P(), **MEGATRON, "*.bias": P("a")}, mesh)
    assert specs(found) == {"0.weight": P("b"), "0.bias": P("b"), "2.weight": P(None, "b"), "2.bias": P()}
    assert specs(ts.shardings(NET, {}, mesh)) == dict.fromkeys(found, P())


def test_parameters_placed_so_compute_what_the_module_does(mesh):
    params = ts.device_put(dict(NET.named_parameters()), ts.shardings(NET, MEGATRON, mesh))
    assert params["0.weight"].addressable_shards[0].data.shape == (4, 4)
    x = torch.randn(8, 4)
    got = ts.jit(lambda params, x: torch.func.functional_call(NET, params, (x,)))(params, x)
    torch.testing.assert_close(ts.device_get(got), NET(x).detach())


def test_a_tree_has_the_paths_of_its_leaves_as_names():
    tree = {"layers": [{"w": torch.ones(8, 2), "b": None}, {"w": torch.ones(8, 2), "b": torch.ones(2)}]}
    with ts.set_mesh(ts.make_mesh((4, 2), ("a", "b"))):
        found = ts.shardings(tree, {"layers.1.*": P("b"), "*.w": P("a")})
    first, second = found["layers"]
    assert (first["w"].spec, first["b"]) == (P("a"), None)
    assert specs(second) == {"w": P("b"), "b": P("b")}


REFUSED = {
    "no mesh": (lambda mesh: ts.shardings(NET, {}), "no mesh"),
    "a pattern of nothing": (lambda mesh: ts.shardings(NET, {"1.*": P("b")}, mesh), "the names are 0.weight, 0.bias"),
    "a size that is not a multiple": (
        lambda mesh: ts.shardings(NET, {"0.weight": P(None, ("a", "b"))}, mesh),
        "the rule '0.weight' does not fit parameter '0.weight'",
    ),
    "a rank that is too high": (lambda mesh: ts.shardings(NET, {"*": P(None, "b")}, mesh), "parameter '0.bias'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_that_do_not_fit_are_refused_in_words(name, mesh):
    call, word = REFUSED[name]
    assert_refused(lambda: call(mesh), ts.ShardingError, [word])
