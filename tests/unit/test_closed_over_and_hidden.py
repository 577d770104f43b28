"""Tensors that a jitted function closes over where they cannot be found again; and caches that end."""

import copy
import functools
import gc
import itertools

import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole
from tinyshard import P
from tinyshard.compile import trace_cache
from tinyshard.core.cache import Recent
from tinyshard.core.primitive import Handles
from tinyshard.core.program import Program
from tinyshard.runtime import lifecycle
from tinyshard.transforms import jitted

pytestmark = pytest.mark.usefixtures("local")


def in_a_set():
    held = {torch.tensor(2.0)}

    def change(value):
        held.clear()
        held.add(value)

    return (lambda: next(iter(held))), change


def under_an_odd_key():
    held = {}
    key = object()
    held[key] = torch.tensor(2.0)
    return (lambda: next(iter(held.values()))), functools.partial(held.__setitem__, key)


def deep_down():
    place = [torch.tensor(2.0)]
    held = place
    for _ in range(12):
        held = [held]

    def find():
        at = held
        while isinstance(at, list):
            at = at[0]
        return at

    # `place` itself is reached by `change` alone, which the function does not see
    return find, functools.partial(place.__setitem__, 0)


def behind_many_others():
    held = [*(object() for _ in range(30_000)), torch.tensor(2.0)]
    return (lambda: held[-1]), functools.partial(held.__setitem__, -1)


def in_another_functions_cache():
    value = [torch.tensor(2.0)]
    build = functools.lru_cache(functools.partial(value.__getitem__, 0))

    def change(other):
        value[0] = other
        build.cache_clear()

    return build, change


HIDDEN = [in_a_set, under_an_odd_key, deep_down, behind_many_others, in_another_functions_cache]
TRANSFORMS = {
    "jit": ts.jit,
    "pmap": ts.pmap,
    "shard_map": lambda f: ts.shard_map(f, mesh=ts.make_mesh((8,), ("i",)), in_specs=P("i"), out_specs=P("i")),
    "jit of pmap": lambda f: ts.jit(ts.pmap(f)),
    "grad of jit": lambda f: ts.grad(ts.jit(lambda x: f(x).sum())),
}


@pytest.mark.parametrize(
    ("hide", "transform"),
    mostly_whole(itertools.product(HIDDEN, TRANSFORMS), lambda row: row[0] is in_a_set or row[1] == "jit"),
)
def test_a_tensor_that_cannot_be_found_again_is_used_as_it_is_now(hide, transform):
    find, change = hide()
    function = TRANSFORMS[transform](lambda x: x * find())
    for value in (2.0, 5.0, 7.0):
        change(torch.tensor(value))
        assert function(torch.ones(8)).tolist() == [value] * 8


def test_a_program_is_made_once_though_the_function_is_traced_at_each_call():
    find, change = in_a_set()
    f = ts.jit(lambda x: x * find())
    for value in range(4):
        change(torch.tensor(float(value)))
        f(torch.ones(3))
    assert f._cache_size() == 1


def test_an_explanation_names_the_tensor_that_hides(capsys):
    find, _ = in_a_set()
    f = ts.jit(lambda x: x * find())
    f(torch.ones(3))
    ts.config.update("explain_cache_misses", True)
    try:
        f(torch.ones(3))
    finally:
        ts.config.update("explain_cache_misses", False)
    assert "a tensor of f32[] which it closes over, cannot be found again" in capsys.readouterr().err


def test_a_cache_drops_what_was_used_longest_ago():
    kept = Recent(3)
    for number in range(3):
        kept.put(number, str(number))
    assert kept.get(0) == "0"
    kept.put(3, "3")
    assert [kept.get(n) for n in range(4)] == ["0", None, "2", "3"]
    assert kept.put(3, "other") == "3"


def programs() -> int:
    """How many programs there are: of the controller, and the devices' copies of those that they were sent."""
    gc.collect()
    lifecycle.current().held(0)  # devices drop programs with the next that is asked of them
    return sum(type(x) is Program for x in gc.get_objects())


def test_programs_of_layouts_and_functions_that_are_gone_are_dropped_by_the_devices(monkeypatch):
    monkeypatch.setattr(trace_cache, "MOST_PROGRAMS", 2)
    monkeypatch.setattr(jitted, "MOST_PROGRAMS", 2)
    mesh = ts.make_mesh((2, 2, 2), ("a", "b", "c"))

    def use():
        f = ts.jit(lambda x: x * 3 + 1)
        for spec in (P(), P("a"), P("b"), P("c"), P(("a", "b"))):
            f(ts.device_put(torch.ones(8), ts.NamedSharding(mesh, spec)))
        return programs()

    use()  # it fills what is kept for all functions, as the programs of device_put
    before = programs()
    assert use() == before + 2 * 2
    assert programs() == before


def test_a_number_stands_for_an_object_as_long_as_its_handle_is_kept():
    table = Handles()
    first = table.handle(("a", 1))
    assert table.handle(("a", 1)) is first
    assert table.value(first.number) == ("a", 1)
    number = first.number
    del first
    gc.collect()
    with pytest.raises(KeyError):
        table.value(number)


class Twice(torch.nn.Module):
    """What it does depends on its mode, as batch norm and dropout do."""

    def forward(self, x):
        return x * 2 if self.training else x * 3


def _over(make):
    mesh = ts.make_mesh((4,), ("i",))
    return lambda f: make(f, mesh=mesh, in_specs=ts.P("i"), out_specs=ts.P("i"))


@pytest.mark.parametrize(
    "transform",
    [
        ts.jit,
        ts.pmap,
        _over(ts.shard_map),
        lambda f: ts.jit(_over(ts.shard_map)(f)),
        lambda f: ts.jit(ts.grad(lambda x: f(x).sum())),
    ],
)
@pytest.mark.parametrize("call", [lambda m, x: m(x), lambda m, x: torch.func.functional_call(m, {}, (x,))])
def test_a_module_that_changes_its_mode_is_traced_again(transform, call):
    module = torch.nn.Sequential(Twice())
    f = transform(lambda x: call(module, x))
    x = torch.ones(4)
    for training in (True, False, True, False):
        module.train(training)
        assert f(x).tolist() == [2.0 if training else 3.0] * 4


@pytest.mark.parametrize(
    "make",
    [
        lambda module: module[0].forward,
        lambda module: lambda x: module[0].forward(x),
        lambda module: lambda x: x * (2 if module[0].training else 3),
    ],
)
def test_a_module_whose_mode_is_read_without_a_call_is_traced_again(make):
    module = torch.nn.Sequential(Twice())
    f = ts.jit(make(module))
    for training in (True, False, True, False):
        module.train(training)
        assert f(torch.ones(4)).tolist() == [2.0 if training else 3.0] * 4
    assert f._cache_size() == 2


def test_a_module_that_gets_or_loses_a_hook_is_traced_again():
    module = Twice()
    f = ts.jit(module)
    assert f(torch.ones(4)).tolist() == [2.0] * 4
    hook = module.register_forward_hook(lambda module, args, made: made * 10)
    assert f(torch.ones(4)).tolist() == [20.0] * 4
    hook.remove()
    assert f(torch.ones(4)).tolist() == [2.0] * 4
    assert f._cache_size() == 2


def test_a_module_that_gets_another_part_is_traced_again():
    class Scaled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scales = torch.nn.ParameterList([torch.full((4,), 2.0)])

        def forward(self, x):
            for scale in self.scales:
                x = x * scale
            return x

    scaled, layers, x = Scaled(), torch.nn.Sequential(torch.nn.ReLU()), torch.ones(4)
    relu = layers[0]
    f, g = ts.jit(scaled), ts.jit(layers)
    assert f(x).tolist() == [2.0] * 4
    assert g(-x).tolist() == [0.0] * 4
    scaled.scales.append(torch.full((4,), 5.0))
    layers[0] = torch.nn.Hardtanh()
    layers.append(torch.nn.Softsign())
    assert f(x).tolist() == [10.0] * 4
    assert g(-x).tolist() == [-0.5] * 4
    layers[0] = relu
    assert g(-x).tolist() == [0.0] * 4


def test_a_module_that_takes_its_own_hook_away_is_traced_once_for_each_mode():
    module, x = Twice(), torch.ones(4)
    hook = module.register_forward_pre_hook(lambda module, args: hook.remove())
    f = ts.jit(module)
    for training in (True, False, True):
        module.train(training)
        assert f(x).tolist() == [2.0 if training else 3.0] * 4
    assert f._cache_size() == 2


def test_a_module_that_stays_in_its_mode_or_is_made_inside_is_traced_once():
    module = torch.nn.Sequential(Twice())
    f = ts.jit(lambda x: torch.nn.Sequential(torch.nn.ReLU())(module(x)))
    for _ in range(3):
        assert f(torch.ones(4)).tolist() == [2.0] * 4
    assert f._cache_size() == 1


def test_a_compiled_program_refuses_a_module_in_another_mode():
    module = Twice()
    compiled = ts.jit(lambda x: module(x)).lower(torch.ones(4)).compile()
    assert compiled(torch.ones(4)).tolist() == [2.0] * 4
    module.eval()
    with pytest.raises(ts.DtypeError, match="Twice, which it uses: training was True, now False"):
        compiled(torch.ones(4))


def test_a_graph_with_another_derivative_is_not_taken_for_the_same_where_a_tensor_is_hidden():
    hidden, stops = frozenset([torch.ones(4)]), [False]

    def loss(w):
        (factor,) = hidden
        with torch.set_grad_enabled(not stops[0]):
            y = w * factor
        return (y * 2.0).sum()

    f, w = ts.jit(loss), ts.device_put(torch.ones(4)).requires_grad_()
    assert f(w).requires_grad
    stops[0] = True
    assert not f(w).requires_grad


def test_a_module_that_is_only_within_reach_changes_no_trace():
    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(3, 3).requires_grad_(False)
            self.best = copy.deepcopy(self.model)

        def step(self, x):
            traces.append(1)
            return self.model(x)

    traces, trainer, x = [], Trainer(), torch.ones(2, 3)
    step = ts.jit(trainer.step)
    compiled = step.lower(x).compile()
    wanted = trainer.model(x)
    for _ in range(3):
        torch.testing.assert_close(ts.device_get(step(x)), wanted)
        torch.testing.assert_close(ts.device_get(compiled(x)), wanted)
        trainer.best = copy.deepcopy(trainer.model).eval()
    assert len(traces) == 1


@pytest.mark.parametrize("other", [lambda w: w.data, copy.copy, copy.deepcopy], ids=["data", "copy", "deepcopy"])
def test_another_handle_on_a_closed_over_array_is_found_again(other):
    weight, traces = ts.array([1.0, 2.0]), []

    def scaled(x):
        traces.append(1)
        return x * other(weight)

    jitted = ts.jit(scaled)
    for _ in range(3):
        assert jitted(torch.ones(2)).tolist() == [1, 2]
    assert len(traces) == 1
