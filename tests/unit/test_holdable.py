"""What no device can hold is refused: on the local runtime, and without a runtime at all."""

import operator

import pytest
import torch

import tinyshard as ts
from tests import unholdable
from tests.extent import in_turn
from tinyshard.core.device_dtypes import NARROW, QUANTIZED, check_holdable

pytestmark = pytest.mark.usefixtures("local")


@pytest.mark.parametrize("kind, way", in_turn(unholdable.TENSORS, unholdable.WAYS))
def test_a_tensor_that_no_device_can_hold_is_refused(kind, way):
    unholdable.check_kind(kind, way)


@pytest.mark.parametrize("maker, jitted", in_turn(unholdable.MAKERS, (False, True)))
def test_an_op_that_makes_such_a_tensor_is_refused(maker, jitted):
    unholdable.check_maker(maker, jitted)


@pytest.mark.parametrize("compare", [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge])
@pytest.mark.parametrize("kind", [torch.Tensor.to_sparse, lambda x: x.to("meta")], ids=["sparse", "meta"])
def test_a_comparison_with_such_a_tensor_is_refused_and_not_false(compare, kind):
    x = ts.array([1.0, 0.0, 2.0])
    other = kind(torch.tensor([1.0, 0.0, 2.0]))
    for left, right in ((x, other), (other, x)):
        with pytest.raises(ts.DtypeError, match="only dense CPU tensors"):
            compare(left, right)
    assert ts.device_get(compare(x, 1.0)).tolist() == compare(torch.tensor([1.0, 0.0, 2.0]), 1.0).tolist()
    assert (x == [1]) is False and (x != None) is True and len({x, x}) == 1  # noqa: E711


@pytest.mark.parametrize("size", [3, 20_000])
def test_conjugate_and_negative_views_arrive_as_what_they_stand_for(size):
    unholdable.check_views(size)


def test_every_dtype_that_torch_can_copy_is_held():
    dtypes = {dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}
    assert dtypes >= NARROW | QUANTIZED
    for dtype in dtypes - QUANTIZED:
        x = torch.zeros(16, dtype=torch.uint8).view(dtype)
        if dtype in NARROW:
            with pytest.raises(NotImplementedError):
                x.clone()
        else:
            check_holdable(x)
