"""Jitted functions and methods that are copied, pickled or edited."""

import copy
import functools
import pickle

import pytest
import torch

import tinyshard as ts
from tests.traces import same
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

SCALE = torch.tensor(2.0)


@ts.jit
def decorated(x):
    return x * SCALE


class Scaled(torch.nn.Module):
    def __init__(self, mesh):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))
        rows = ts.NamedSharding(mesh, P(("a", "b")))
        self.ways = [
            ts.jit(self.forward),
            ts.jit(self.forward, out_shardings=rows),
            ts.pmap(self.forward),
            ts.shard_map(self.forward, mesh=mesh, in_specs=P(("a", "b")), out_specs=P(("a", "b"))),
        ]

    def forward(self, x):
        return x * self.weight


def test_a_jitted_function_is_copied_and_pickled_as_a_function_is(mesh, host):
    assert pickle.loads(pickle.dumps(decorated)) is copy.copy(decorated) is decorated
    twin = copy.deepcopy(decorated)
    assert torch.equal(ts.device_get(twin(host)), host * 2)
    with pytest.raises(pickle.PicklingError, match="jit of decorated"):  # another one than its module has
        pickle.dumps(twin)


def test_a_copied_module_calls_its_own_jitted_methods(mesh, host):
    module = Scaled(mesh)
    first = [ts.device_get(way(host)) for way in module.ways]
    twin = copy.deepcopy(module)
    with torch.no_grad():
        twin.weight.mul_(3)
    for way, before, again in zip(twin.ways, first, module.ways, strict=True):
        assert torch.equal(before, host)
        assert torch.equal(ts.device_get(way(host)), host * 3)
        assert torch.equal(ts.device_get(again(host)), host)


class Edited:
    def scaled(self, v):
        return v * 2

    def __call__(self, v):
        return v * 2


class EditedModule(torch.nn.Module):
    def forward(self, v):
        return v * 2


def passed_on(function):
    @functools.wraps(function)
    def call(*args):
        return function(*args)

    return call


def test_a_function_whose_code_is_edited_is_traced_again(host):
    """IPython's autoreload puts the code of an edited module into the functions that there are."""

    def scaled(v):
        return v * 2

    functions = [scaled, Edited().scaled, Edited(), EditedModule(), functools.partial(scaled), passed_on(scaled)]
    functions.append(ts.vmap(passed_on(scaled)))
    x = ts.device_put(host, ts.NamedSharding(ts.make_mesh(8, "i"), P("i")))
    ways = [make(f) for make in (ts.jit, ts.pmap) for f in functions]
    texts = [way.lower(x).as_text() for way in ways]
    for _ in range(2):
        for way in ways:
            same(way(x), host * 2)
    scaled.__code__ = (lambda v: v * 3 + SCALE).__code__
    for method in (Edited.scaled, Edited.__call__, EditedModule.forward):
        method.__code__ = (lambda self, v: v * 3 + SCALE).__code__
    for _ in range(2):
        for way in [*ways, *map(ts.jit, functions), *map(ts.pmap, functions)]:
            same(way(x), host * 3 + 2)
    assert all(way.lower(x).as_text() != before for way, before in zip(ways, texts, strict=True))
