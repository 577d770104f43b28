"""`y[:, i] = v` under vmap, as a loop over the examples has it: torch.func's own rule writes to other places."""

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

COUNT, SIZE = 8, 4  # sizes that are all the same: a wrong order of dims is no error then
_random = torch.Generator().manual_seed(0)
X, V = torch.randn(2, COUNT, SIZE, SIZE, SIZE, generator=_random)
AT, BESIDE = (torch.stack([torch.randperm(SIZE, generator=_random) for _ in range(COUNT)]) for _ in range(2))
INDICES = {
    "i": lambda i, j: i,
    ":, i": lambda i, j: (slice(None), i),
    ":, i, None": lambda i, j: (slice(None), i, None),
    "..., i": lambda i, j: (..., i),
    "None, i": lambda i, j: (None, i),
    ":, i, j": lambda i, j: (slice(None), i, j),
    "i, :, j": lambda i, j: (i, slice(None), j),
    "i, 1, j": lambda i, j: (i, 1, j),
    "1, :, i": lambda i, j: (1, slice(None), i),
    "1:3, i": lambda i, j: (slice(1, 3), i),
    "i[:, None], :, j": lambda i, j: (i[:, None], slice(None), j),
    ":, negative i": lambda i, j: (slice(None), i - SIZE),
    ":, i of int32": lambda i, j: (slice(None), i.int()),
    ":, a list and i": lambda i, j: (slice(None), [2, 0, 3, 1], i),
}
MASKS = {
    ":, a mask": lambda i, j: (slice(None), torch.tensor([True, False, True, True])),
    "i, :, a mask": lambda i, j: (i[:3], slice(None), torch.tensor([True, False, True, True])),
    "a mask of two dims, i": lambda i, j: (torch.eye(SIZE, dtype=torch.bool), i),
}
AXES = [(0, 0, 0, 0), (0, None, 0, None), (0, None, None, 0), (0, 0, 0, None)]
WAYS = {
    "vmap": lambda f, axes: ts.vmap(f, in_axes=axes),
    "jit of vmap": lambda f, axes: ts.jit(ts.vmap(f, in_axes=axes)),
    "vmap of jit": lambda f, axes: ts.vmap(ts.jit(f), in_axes=axes),
}


def writes(index):
    """A function that writes values at an index, and adds to what it has written."""
    shape = X[0][index(AT[0], BESIDE[0])].shape

    def f(x, i, j, v):
        y = x.clone()
        y[index(i, j)] = v.flatten()[: shape.numel()].reshape(shape)
        y[index(i, j)] += 1.0
        return y

    return f


def loop(f, axes, *operands):
    rows = ([x if axis is None else x[k] for x, axis in zip(operands, axes, strict=True)] for k in range(COUNT))
    return torch.stack([f(*row) for row in rows])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("index", INDICES)
def test_values_are_written_where_a_loop_writes_them(index, way):
    f = writes(INDICES[index])
    for axes in AXES:
        operands = [x[0] if axis is None else x for x, axis in zip((X, AT, BESIDE, V), axes, strict=True)]
        assert torch.equal(ts.device_get(WAYS[way](f, axes)(*operands)), loop(f, axes, *operands))
    placed = ts.device_put((X, AT, BESIDE, V), ts.NamedSharding(ts.make_mesh((8,), "a"), P("a")))
    assert torch.equal(ts.device_get(WAYS[way](f, 0)(*placed)), loop(f, (0, 0, 0, 0), X, AT, BESIDE, V))


@pytest.mark.parametrize("index", MASKS)
def test_a_mask_that_examples_share_is_as_a_loop_has_it(index):
    f = writes(MASKS[index])
    assert torch.equal(ts.vmap(f)(X, AT, BESIDE, V), loop(f, (0, 0, 0, 0), X, AT, BESIDE, V))


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
@pytest.mark.parametrize("way", [ts.vmap, lambda f: ts.jit(ts.vmap(f))], ids=["vmap", "jit of vmap"])
def test_a_mask_that_differs_between_examples_is_a_clear_error(way, dtype):
    masks = torch.tensor([True, False, True, True]).expand(COUNT, SIZE).to(dtype)
    with pytest.raises(ts.DtypeError, match="depends on values, and differs between examples"):
        way(lambda x, mask: x.clone().__setitem__((slice(None), mask), 1.0))(X, masks)


def test_the_gradient_of_what_is_written_is_that_of_a_loop():
    def loss(x, i, v):
        y = x * 2
        y[:, i] = v * x
        return (y * V[0]).sum()

    of_v = torch.func.grad(loss, argnums=2)
    wanted = loop(of_v, (0, 0, 0), X, AT, V)
    placed = ts.device_put((X, AT, V), ts.NamedSharding(ts.make_mesh((8,), "a"), P("a")))
    for f in (ts.vmap(ts.grad(loss, argnums=2)), ts.jit(ts.vmap(ts.grad(loss, argnums=2)))):
        torch.testing.assert_close(ts.device_get(f(*placed)), wanted)
