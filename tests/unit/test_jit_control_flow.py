"""Python's control flow, torch's tape and shapes that only values tell, in a jitted function."""

import itertools

import pytest
import torch

import tinyshard as ts
from tests.extent import every, in_words
from tests.traces import same
from tinyshard import P
from tinyshard.core.errors import TracedValueError

pytestmark = pytest.mark.usefixtures("local")


def _by_backward(w, x):
    w = w.detach().requires_grad_()
    ((x @ w) ** 2).sum().backward()
    return w.grad


def _by_autograd(w, x):
    w = w.detach().requires_grad_()
    return torch.autograd.grad(((x @ w) ** 2).sum(), w)[0]


@pytest.mark.parametrize("slope", [_by_backward, _by_autograd])
@pytest.mark.parametrize("over_devices", [False, True])
def test_torchs_tape_in_a_traced_function_is_refused_with_a_pointer_to_grad(mesh, slope, over_devices):
    mapped = ts.shard_map(slope, mesh=mesh, in_specs=P(), out_specs=P())
    with pytest.raises(
        TracedValueError, match=r"test_jit_control_flow\.py:\d+: .*(backward\(\)|autograd\.grad)"
    ) as caught:
        (mapped if over_devices else ts.jit(slope))(torch.ones(4), torch.ones(8, 4))
    assert "a traced function runs without torch's tape" in str(caught.value)
    assert "ts.grad(loss)(w), or ts.value_and_grad" in str(caught.value)


def test_branching_on_a_traced_value_names_the_line_and_what_to_write():
    def clip(x):
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(TypeError, match=r"value of a traced tensor") as caught:
        ts.jit(clip)(torch.ones(3))
    text = str(caught.value)
    assert f"test_jit_control_flow.py:{clip.__code__.co_firstlineno + 1}" in text
    for word in ("torch.where", "ts.lax.cond", "a static argument"):
        assert word in text


@pytest.mark.parametrize("ask", [float, int, bool, lambda x: x.item(), lambda x: x.tolist(), lambda x: x.numpy()])
def test_asking_a_traced_value_for_its_number_is_an_error(ask):
    with pytest.raises((TypeError, RuntimeError)) as caught:
        ts.jit(lambda x: ask(x.sum()))(torch.ones(3))
    assert isinstance(caught.value, ts.TinyshardError)


def test_cond_chooses_a_branch_by_value():
    f = ts.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x - 1, (x,)))
    assert f(torch.ones(2)).tolist() == [2, 2]
    assert f(-torch.ones(2)).tolist() == [-2, -2]


def test_cond_may_be_nested_have_several_results_and_close_over_tensors(mesh):
    w = torch.tensor([1.0, 10.0])

    def inner(x):
        return torch.cond(x.max() > 5, lambda x: (x * w, x + 1), lambda x: (x - w, x.clone()), (x,))

    f = ts.jit(lambda x: torch.cond(x.sum() > 0, inner, lambda x: (x * 0.5, x + w), (x,)))
    for values in ([1.0, 9.0], [1.0, 2.0], [-1.0, -2.0]):
        x = torch.tensor(values)
        wanted = ((x * w, x + 1) if x.max() > 5 else (x - w, x)) if x.sum() > 0 else (x * 0.5, x + w)
        for got, want in zip(f(ts.device_put(x, ts.NamedSharding(mesh, P("b")))), wanted, strict=True):
            same(got, want)


def test_a_shape_that_depends_on_values_is_a_clear_error():
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(lambda x: x[x > 0])(torch.ones(3))
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(torch.nonzero)(torch.ones(3))
    with pytest.raises(TypeError, match=r"shape of a result depends on values"):
        ts.jit(lambda x, i: x[i])(torch.ones(3), torch.tensor([1, 0, 1], dtype=torch.uint8))


@pytest.mark.parametrize(
    "wrap, spec", every(3, itertools.product((lambda f: f, ts.jit), (P("a"), P(None, "b"), P()))), ids=in_words
)
def test_repeat_interleave_that_is_told_the_size_of_its_result_has_a_shape(mesh, wrap, spec):
    x, times = torch.arange(32.0).reshape(8, 4), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    cut = ts.device_put(x, ts.NamedSharding(mesh, spec))

    def f(x, times, size):
        return x.repeat_interleave(times, 0, output_size=size)

    assert torch.equal(ts.device_get(wrap(lambda x, times: f(x, times, 7))(cut, times)), f(x, times, 7))
    gradient = wrap(ts.grad(lambda x: (f(x, times, 7) ** 2).sum()))(cut)
    assert torch.equal(ts.device_get(gradient), 2 * x * times[:, None])
    with pytest.raises(RuntimeError, match="allocated size does not match required size"):
        ts.device_get(wrap(lambda x, times: f(x, times, 9))(cut, times))
