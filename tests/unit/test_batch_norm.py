"""Batch norm in training mode and its running statistics, held against plain torch."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinyshard as ts
from tests.extent import IS_WHOLE, every
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")


def images() -> Tensor:
    """Eight images of four channels, the same in every run."""
    return torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(3)) * 2 + 1


def placed(x: Tensor, spec: P) -> Tensor:
    return ts.device_put(x, ts.NamedSharding(ts.make_mesh((4, 2), ("x", "y")), spec))


LAYOUTS = [P(), P("x"), P(None, "x"), P("y", "x"), P(None, None, "y")]
close = torch.testing.assert_close


@pytest.mark.parametrize("spec", every(2, map(pytest.param, LAYOUTS)), ids=str)
def test_a_module_on_arrays_keeps_its_running_statistics_as_torch_does(spec: P) -> None:
    module = torch.nn.BatchNorm1d(4, momentum=0.3)
    twin = copy.deepcopy(module)
    for step in range(2):
        got = module(placed(images() + step, spec))
        close(ts.device_get(got), twin(images() + step), rtol=1e-4, atol=1e-4)
    close(dict(module.named_buffers()), dict(twin.named_buffers()))
    close(ts.device_get(module.eval()(placed(images(), spec))), twin.eval()(images()), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("function", [F.batch_norm, F.instance_norm])
def test_statistics_in_plain_tensors_get_their_new_values_and_gradients_equal_torchs(function: Any) -> None:
    flag = "training" if function is F.batch_norm else "use_input_stats"

    def run(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, variance = torch.zeros(4), torch.ones(4)
        (slope,) = torch.autograd.grad((function(x, mean, variance, **{flag: True}) ** 3).sum(), x)
        return slope, mean, variance

    wanted = run(images().requires_grad_())
    for spec in LAYOUTS if IS_WHOLE else LAYOUTS[1::2]:
        slope, mean, variance = run(placed(images(), spec).requires_grad_())
        close((ts.device_get(slope), mean, variance), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("transform", [lambda f: f, ts.jit])
def test_statistics_that_are_arrays_stay_as_they_are_and_the_error_names_the_cure(transform: Any) -> None:
    x = placed(images(), P("x"))
    mean, variance = ts.array(torch.zeros(4)), ts.array(torch.ones(4))
    for function, flag in ((F.batch_norm, "training"), (F.instance_norm, "use_input_stats")):
        with pytest.raises(ts.ImmutableError, match=r"running_mean(.|\n)*track_running_stats=False"):
            transform(lambda v, m, s, f=function, k=flag: f(v, m, s, **{k: True}))(x, mean, variance)
    assert ts.device_get(mean).eq(0).all()
    assert ts.device_get(variance).eq(1).all()


@pytest.mark.parametrize("transform", [lambda f: f, ts.jit])
def test_a_module_whose_buffers_are_arrays_or_traced_names_the_cure(transform: Any) -> None:
    module = torch.nn.BatchNorm1d(4)
    x, buffers = placed(images(), P("x")), {k: ts.array(v) for k, v in module.named_buffers()}
    call = transform(lambda v, b: torch.func.functional_call(module, b, (v,)))
    with pytest.raises(ts.ImmutableError, match="track_running_stats=False"):
        call(x, buffers)
    assert ts.device_get(buffers["num_batches_tracked"]) == 0
    close(ts.device_get(transform(torch.nn.BatchNorm1d(4, track_running_stats=False))(x)), module(images()))


def test_a_traced_module_with_buffers_of_its_own_names_the_cure_and_keeps_them() -> None:
    module = torch.nn.BatchNorm1d(4)
    with pytest.raises(ts.ImmutableError, match="track_running_stats=False"):
        ts.jit(lambda v: module(v))(placed(images(), P("x")))
    assert module.num_batches_tracked == 0
    close(ts.device_get(ts.jit(module.eval())(placed(images(), P("x")))), module(images()))


@pytest.mark.parametrize("spec", every(3, map(pytest.param, LAYOUTS)), ids=str)
def test_instance_norm_equals_torchs(spec: P) -> None:
    wanted = torch.func.grad_and_value(lambda v: (F.instance_norm(v) ** 3).sum())(images())[::-1]
    both = ts.value_and_grad(lambda v: (F.instance_norm(v) ** 3).sum())
    for function in (both, ts.jit(both)):
        close(ts.device_get(function(placed(images(), spec))), wanted, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("spec", every(2, map(pytest.param, [P(), P("x"), P(None, "x")])), ids=str)
def test_what_evaluation_does_not_compute_is_as_empty_as_torchs(spec: P) -> None:
    x, mean, variance = images(), torch.zeros(4), torch.ones(4)

    def whole(x: Tensor) -> Any:
        return torch.native_batch_norm(x, None, None, mean, variance, False, 0.1, 1e-5)

    def legit(x: Tensor) -> Any:
        return torch._native_batch_norm_legit_no_training(x, None, None, mean, variance, 0.1, 1e-5)

    for evaluated in (whole, legit, ts.jit(whole), ts.jit(legit)):
        close(list(ts.device_get(evaluated(placed(x, spec)))), list(whole(x)))
