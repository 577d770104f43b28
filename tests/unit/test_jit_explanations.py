"""Why a jitted function is traced again, in words."""

import functools
import types

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def explained(capsys):
    """Calls a function; what it says about being traced."""
    ts.config.update("explain_cache_misses", True)
    capsys.readouterr()

    def call(function, *args, **kwargs):
        function(*args, **kwargs)
        return capsys.readouterr().err

    yield call
    ts.config.update("explain_cache_misses", False)


def test_explanations_name_the_argument_and_show_old_and_new(explained):
    @functools.partial(ts.jit, static_argnames="n")
    def f(params, x, n=1):
        return params["w"] + x * n

    w = {"w": torch.ones(2)}
    assert explained(f, w, torch.ones(2)).startswith("f is traced: it was not called before\n  at ")
    assert explained(f, w, torch.zeros(2)) == ""
    assert "\n  x: f32[2], now f32[1]\n" in explained(f, w, torch.zeros(1))
    assert "\n  params['w']: f32[2], now f64[2]\n" in explained(f, {"w": torch.ones(2).double()}, torch.ones(2))
    assert "\n  static argument 'n': not given, now 3\n" in explained(f, w, torch.ones(2), n=3)
    assert "\n  static argument 'n': 3, now 4\n" in explained(f, w, torch.ones(2), n=4)
    text = explained(f, {"w": torch.ones(2), "b": torch.ones(2)}, torch.ones(2))
    assert "put together otherwise: ({'w': *}, *), now ({'w': *, 'b': *}, *)" in text
    assert "test_jit_explanations.py:" in text


def test_explanations_compare_with_a_call_of_the_same_containers_where_there_was_one(explained):
    f = ts.jit(lambda pair: pair[0] + pair[1])
    explained(f, [torch.ones(2), torch.ones(2)])
    assert "put together otherwise: ([*, *]), now ((*, *))" in explained(f, (torch.ones(2), torch.ones(2)))
    told = explained(f, [torch.ones(2), torch.ones(2).double()])
    assert "\n  pair[1]: f32[2], now f64[2]\n" in told
    assert "otherwise" not in told


def test_explanations_tell_of_closed_over_tensors(explained):
    w = torch.ones(2)
    f = ts.jit(lambda x: x + w)
    explained(f, torch.ones(2))
    w = torch.ones(1)
    assert "closes over" in explained(f, torch.ones(2))


def test_flags_have_names_and_types():
    with pytest.raises(AttributeError, match="explain_cache_misses"):
        ts.config.update("explain", True)
    with pytest.raises(ts.TinyshardError, match="takes a bool"):
        ts.config.update("explain_cache_misses", 1)


def test_a_retrace_for_a_closed_over_tensor_names_it_old_against_new(explained):
    holder = types.SimpleNamespace(own=torch.tensor(1.0))
    f = ts.jit(lambda x: (x * holder.own).sum())
    explained(f, torch.ones(2))
    holder.own = torch.ones(2, dtype=torch.float64)
    assert "holder.own, which it closes over: f32[], now f64[2]" in explained(f, torch.ones(2))
