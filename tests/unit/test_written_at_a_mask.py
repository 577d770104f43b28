"""Values written at a mask in a traced function, and masks of no dim."""

import itertools

import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, every
from tinyshard import P
from tinyshard.core.errors import TracedValueError

pytestmark = pytest.mark.usefixtures("local")


def _written_at(mask, value):
    def write(x):
        y = x.clone()
        y[mask(x)] = value(x)
        return y

    return write


WRITES = [
    _written_at(lambda x: x > 0, lambda x: 0.5),
    _written_at(lambda x: x[:, :, 0] > 0, lambda x: 0.5),
    _written_at(lambda x: x[:, 0, 0] > 0, lambda x: x.detach().sum()),
    _written_at(lambda x: x[:, :, 0] > 0, lambda x: x.detach()[0, 0]),
    _written_at(lambda x: (slice(None), x[0, :, 0] > 0), lambda x: x.detach()[0, 0]),
    _written_at(lambda x: (slice(None), x[0] > 0), lambda x: 2.0),
    lambda x: x.index_put((x[..., 0] > 0,), x.detach().mean(), accumulate=True),
]
LAYOUTS = [P("x"), P("y", "x"), P(None, "x"), P(None, "x", "y"), P("x", None, "y")]


@pytest.mark.parametrize("write, spec", every(2, itertools.product(WRITES, LAYOUTS)))
def test_a_write_at_a_mask_is_torchs_in_every_layout(write, spec):
    torch.manual_seed(0)
    value = torch.randn(8, 4, 2)
    x = ts.device_put(value, ts.NamedSharding(ts.make_mesh((4, 2), ("x", "y")), spec))
    torch.testing.assert_close(ts.device_get(ts.jit(write)(x)), write(value))
    of_sum = torch.func.grad(lambda v: (write(v) ** 2).sum())(value)
    torch.testing.assert_close(ts.device_get(ts.jit(ts.grad(lambda v: (write(v) ** 2).sum()))(x)), of_sum)


def test_a_scalar_at_a_mask_is_written_where_the_mask_lies():
    mesh = ts.make_mesh((4, 2), ("x", "y"))
    x = ts.device_put(torch.randn(8, 4), ts.NamedSharding(mesh, P("x", "y")))
    compiled = ts.jit(_written_at(lambda v: v > 0, lambda v: 0.0)).lower(x).compile()
    assert "gather" not in compiled.as_text()


VALUES = {
    "a number": ((8, 4), lambda y: y > 0, ()),
    "one": ((8, 4), lambda y: y > 0, (1,)),
    "a number for rows": ((8, 4), lambda y: y[:, 0] > 0, ()),
    "a row": ((8, 4), lambda y: y[:, 0] > 0, (4,)),
    "a row with dims of one": ((8, 4), lambda y: y[:, 0] > 0, (1, 1, 4)),
    "one for each row": ((8, 4, 2), lambda y: y[:, 0, 0] > 0, (4, 1)),
    "a mask of no dim": ((8, 4), lambda y: y.sum() > 0, (8, 4)),
    "a mask in a tuple": ((8, 4), lambda y: (y > 0,), ()),
}


@pytest.mark.parametrize("case", VALUES)
def test_the_gradient_of_a_value_written_at_a_mask_is_torchs(case):
    shape, mask, of_value = VALUES[case]
    torch.manual_seed(0)
    y, value = torch.randn(shape), torch.randn(of_value)
    y = y if y.sum() > 0 else -y

    def loss(y, value):
        z = y * 2
        z[mask(y)] = value
        return (z * z.sin()).sum()

    wanted = torch.func.grad(loss, argnums=(0, 1))(y, value)
    placed = ts.device_put(y, ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P("a", "b")))
    inside, outside = ts.jit(ts.grad(loss, argnums=(0, 1))), ts.grad(ts.jit(loss), argnums=(0, 1))
    for call, operand in [(inside, placed), (outside, y), *[(inside, y), (outside, placed)] * IS_WHOLE]:
        torch.testing.assert_close(ts.device_get(call(operand, value)), wanted)


def test_a_value_of_another_dtype_or_shape_than_torch_takes_at_a_mask_is_refused_still():
    def write(y, value):
        y = y.clone()
        y[y > 0] = value
        return y

    for value in (torch.ones(2, dtype=torch.int64), torch.ones(3)):
        for call in (write, ts.jit(write)):
            with pytest.raises(RuntimeError, match=r"dtypes match|shape mismatch"):
                ts.device_get(call(torch.ones(2), value))


@pytest.mark.parametrize("flag", [torch.tensor(1, dtype=torch.uint8), torch.tensor(True)], ids=lambda x: str(x.dtype))
def test_a_traced_number_that_torch_takes_for_a_mask_says_what_to_write(flag):
    x = torch.arange(6.0).reshape(3, 2)
    for read in (lambda x, i: x[i], lambda x, i: x[0, i], lambda x, i: x[i, 0]):
        for call in (ts.jit(read), ts.jit(ts.grad(lambda x, i, read=read: read(x, i).sum()))):
            with pytest.raises(TracedValueError, match=r"to torch it is a mask(?s:.*)x\[i\.long\(\)\]"):
                call(x, flag)
        with pytest.raises(TracedValueError, match="to torch it is a mask"):
            ts.vmap(read, in_axes=(None, 0))(x, torch.stack([flag, flag]))
        assert ts.jit(read)(x, flag.long()).tolist() == read(x, flag.long()).tolist()
