"""`where` of many elements: a zero with a sign is put where the mask says so, with its sign."""

import torch

from tinyshard.core.program import Eqn, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime.worker.kernels import kernel_for


def test_where_of_many_elements_keeps_the_sign_of_the_zero_that_it_puts() -> None:
    x = torch.arange(1.0, 40_001).reshape(200, 200)
    mask = x % 3 == 0
    for other in (0.0, -0.0):
        operands = [mask, x, torch.tensor(other)]
        metas = [ShapedType(tuple(t.shape), t.dtype) for t in operands]
        step = Eqn("aten.where.self", tuple(map(Value, range(3))), {}, (3,))
        kernel = kernel_for(step, [*metas, metas[1]], torch.where)
        assert kernel is not torch.where, "this is for the kernel"
        made = kernel(*operands)
        assert torch.equal(made, x * mask)
        assert torch.equal(torch.signbit(made), ~mask & (torch.tensor(other).signbit()))
