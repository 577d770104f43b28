"""Ops in place on a plain tensor with an Array as operand: the target gets the values, as in torch."""

import operator

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.rows import for_every_row

AUGMENTED = [
    operator.iadd,
    operator.isub,
    operator.imul,
    operator.itruediv,
    operator.ifloordiv,
    operator.imod,
    operator.ipow,
]
OF_INTEGERS = [operator.iand, operator.ior, operator.ixor, operator.ilshift, operator.irshift]
CALLS = {
    "add_": lambda t, x: t.add_(x, alpha=2),
    "addcmul_": lambda t, x: t.addcmul_(x, x),
    "lerp_": lambda t, x: t.lerp_(x, 0.5),
    "copy_": lambda t, x: t.copy_(x),
    "set_": lambda t, x: t.set_(x),
    "set_ with strides": lambda t, x: t.set_(x, 1, (8,), (0,)),
    "masked_fill_": lambda t, x: t.masked_fill_(x > 3, 5),
    "an index": lambda t, x: t.__setitem__(slice(None), x),
    "a mask": lambda t, x: t.__setitem__(x > 3, x[x > 3]),
    "index_add_": lambda t, x: t.index_add_(0, x.long() - 1, x),
    "foreach": lambda t, x: torch._foreach_add_([t], [x]),
    "out=": lambda t, x: torch.add(x, 1, out=t),
    "a ufunc's out=": lambda t, x: np.add(x, 1, out=t.numpy()),
    "copysign_": lambda t, x: t.copysign_(-x),
    "clamp_": lambda t, x: t.clamp_(max=x),
    "fill_": lambda t, x: t.fill_(x[1]),
    "scatter_add_": lambda t, x: t.scatter_add_(0, x.long() - 1, x),
    "index_put_": lambda t, x: t.index_put_((x.long() - 1,), x, accumulate=True),
    "an element": lambda t, x: t.__setitem__(2, x[3]),
    "ops.aten": lambda t, x: torch.ops.aten.add_.Tensor(t, x),
    "data": lambda t, x: t.data.sub_(x),
    "detach": lambda t, x: t.detach().copy_(x),
    "mean of momentum": lambda t, x: t.mul_(0.9).add_(x, alpha=0.1),
    "a view": lambda t, x: t[2:4].mul_(0).add_(x[:2]),
    "no_grad": lambda t, x: torch.no_grad()(operator.isub)(t, 0.1 * x),
    "inference_mode": lambda t, x: torch.inference_mode()(operator.isub)(t, 0.1 * x),
}


@pytest.fixture(autouse=True)
def _devices():
    ts.init(devices=2, runtime="local")


def values(dtype=torch.float32):
    return torch.arange(1, 9).to(dtype)


def cut(x):
    return ts.device_put(x, ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i")))


@pytest.mark.parametrize("change", [*AUGMENTED, *OF_INTEGERS], ids=lambda f: f.__name__)
def test_an_augmented_operator_writes_an_arrays_values_into_the_tensor(change):
    dtype = torch.int64 if change in OF_INTEGERS else torch.float32
    want, target = torch.full((8,), 3, dtype=dtype), torch.full((8,), 3, dtype=dtype)
    change(want, values(dtype))
    alias = target
    target = change(target, cut(values(dtype)))
    assert target is alias
    assert torch.equal(alias, want)


@for_every_row(CALLS)
def test_an_op_in_place_writes_an_arrays_values_into_the_tensor(name):
    want, target = torch.full((8,), 3.0), torch.full((8,), 3.0)
    CALLS[name](want, values())
    CALLS[name](target, cut(values()))
    assert type(target) is torch.Tensor
    assert torch.equal(target, want)


@pytest.mark.parametrize("change", [operator.iadd, operator.isub, operator.imul, operator.itruediv])
def test_an_augmented_operator_writes_an_arrays_values_into_an_array_of_numpys(change):
    want = change(np.ones(8), values().numpy())
    target = alias = np.ones(8)
    assert change(target, cut(values())) is alias
    assert np.array_equal(alias, want)


def test_a_loop_may_add_arrays_to_a_tensor():
    total = torch.zeros(8)
    for _ in range(3):
        total += cut(values())
    assert torch.equal(total, 3 * values())


def test_a_plain_parameter_is_updated_by_a_gradient_that_is_an_array():
    p, x = torch.nn.Parameter(torch.ones(8)), cut(values())
    (p * x).sum().backward()
    p.grad = cut(p.grad)
    before = p
    with torch.no_grad():
        p -= 0.1 * p.grad
    assert p is before
    assert torch.allclose(p, 1 - 0.1 * values())


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop])
def test_an_optimizer_updates_plain_parameters_by_gradients_that_are_arrays(kind):
    stepped = []
    for gradient in (values(), cut(values())):
        p = torch.nn.Parameter(torch.ones(8))
        p.grad = gradient
        kind([p], 0.1).step()
        stepped.append(p.detach())
    assert torch.equal(*stepped)


def test_a_gradient_passes_what_is_added_to_a_tensor():
    w = cut(values()).requires_grad_()
    total = torch.zeros(8)
    total += w * w
    total.sum().backward()
    assert torch.equal(ts.device_get(w.grad), 2 * values())


@pytest.mark.parametrize("change", [*AUGMENTED, lambda t, x: operator.isub(t, 1)])
def test_a_traced_function_that_changes_a_tensor_it_closes_over_by_an_operator_raises(change):
    closed = torch.ones(8)
    with pytest.raises(ts.ImmutableError, match="closes over"):
        ts.jit(lambda x: change(closed, x) + x)(cut(values()))
    assert torch.equal(closed, torch.ones(8))


def test_a_traced_function_may_still_change_its_own_tensor_by_an_operator():
    def f(x):
        total = torch.zeros(8)
        total += x
        return total

    assert torch.equal(ts.device_get(ts.jit(f)(cut(values()))), values())


def test_an_operator_between_what_does_not_fit_is_not_an_error_of_ours():
    with pytest.raises(TypeError, match="unsupported operand"):
        ts.jit(lambda x: operator.iadd(x * 1, "a"))(cut(values()))
