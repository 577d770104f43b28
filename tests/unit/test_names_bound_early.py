"""Functions of torch that are bound to a name before tinyshard is imported, or before a trace, mean the same in it."""

import numpy as np
import pytest
import torch
from torch import cond
from torch._higher_order_ops import while_loop
from torch.compiler import is_compiling

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


class Rounded(torch.autograd.Function):
    """The straight-through estimator, with a slope of 2 to tell it from the identity."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.round()

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


rounded = Rounded.apply  # as torch's documentation has it


def loss(v):
    return (rounded(v) * v.detach()).sum()


SLOPES = {
    "grad of jit": lambda x: ts.grad(ts.jit(loss))(x),
    "jit of grad": lambda x: ts.jit(ts.grad(loss))(x),
    "jit of jit": lambda x: ts.grad(ts.jit(lambda v: ts.jit(loss)(v)))(x),
    "vmap": lambda x: ts.vmap(ts.grad(ts.jit(loss)))(x[:, None])[:, 0],
    "vjp": lambda x: ts.vjp(ts.jit(loss), x)[1](torch.tensor(1.0))[0],
}


@pytest.mark.parametrize("slope", SLOPES.values(), ids=SLOPES)
def test_a_function_with_its_own_gradient_keeps_it_when_apply_was_bound_before(slope):
    x = torch.tensor([0.4, 1.6, 2.5])
    np.testing.assert_allclose(ts.device_get(slope(x)).numpy(), 2 * x.numpy())


def test_backward_through_jit_takes_the_gradient_of_a_function_bound_before():
    x = ts.array([0.4, 1.6, 2.5]).requires_grad_()
    ts.jit(loss)(x).backward()
    np.testing.assert_allclose(x.grad.numpy(), [0.8, 3.2, 5.0], rtol=1e-6)


MAPPED = {
    "pmap": lambda v: ts.pmap(rounded, axis_name="i")(v),
    "shard_map": lambda v: ts.shard_map(rounded, mesh=ts.make_mesh(8, "i"), in_specs=P("i"), out_specs=P("i"))(v),
}


@pytest.mark.parametrize("mapped", MAPPED.values(), ids=MAPPED)
def test_a_mapped_function_with_its_own_gradient_is_refused_when_apply_was_bound_before(mapped):
    with pytest.raises(ts.DtypeError, match=r"autograd\.Function Rounded"):
        ts.grad(lambda v: mapped(v).sum())(torch.ones(8))


def test_cond_and_is_compiling_are_torchs_own_functions_and_know_arrays_and_traces():
    x = ts.array([1.0, 2.0])
    assert cond.__code__.co_filename.endswith("_higher_order_ops/cond.py")  # a name from before the import is it too

    def f(v):
        assert is_compiling()
        return cond(v.sum() > 0, torch.neg, torch.exp, (v,))

    assert cond(x.sum() > 0, torch.neg, torch.exp, (x,)).tolist() == [-1.0, -2.0]
    assert ts.jit(f)(x).tolist() == [-1.0, -2.0]
    assert ts.pmap(f)(torch.ones(8, 2)).tolist() == [[-1.0, -1.0]] * 8
    assert not is_compiling()
    slope = ts.grad(lambda v: cond(v.sum() > 0, torch.neg, torch.exp, (v,)).sum())(x)
    assert slope.tolist() == [-1.0, -1.0]


def test_other_control_flow_of_torch_is_refused_with_a_python_loop_as_the_cure():
    def counted(x):
        return while_loop(lambda v: v.sum() < 9, lambda v: (v + 1,), (x,))

    for call in (counted, ts.jit(counted)):
        with pytest.raises(ts.DtypeError, match=r"while_loop of Arrays.*\n.*\n.*\n.*a Python loop"):
            call(ts.array([1.0, 2.0]))
