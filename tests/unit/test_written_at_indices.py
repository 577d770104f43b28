"""`y[:, i] = v` under vmap, as a loop over the examples has it: torch.func's own rule writes to other places."""

import itertools

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, mostly_whole
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


def _number(row):
    return list(INDICES).index(row[0]) + list(WAYS).index(row[1])


@pytest.mark.parametrize(
    "index, way",
    mostly_whole(itertools.product(INDICES, WAYS), lambda row: row[1] != "vmap of jit" or _number(row) % 3 == 0),
)
def test_values_are_written_where_a_loop_writes_them(index, way):
    f = writes(INDICES[index])
    number = _number((index, way))
    for axes in AXES if IS_WHOLE else [AXES[number // 2 % len(AXES)]] * (number % 2):
        operands = [x[0] if axis is None else x for x, axis in zip((X, AT, BESIDE, V), axes, strict=True)]
        assert torch.equal(ts.device_get(WAYS[way](f, axes)(*operands)), loop(f, axes, *operands))
    if IS_WHOLE or number % 2 == 0:
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


LISTS = {
    "lists in a list": [[0, 2], [1, 0]],
    "tensors in a list": [torch.tensor([0, 2]), torch.tensor([1, 0])],
    "a slice in a list": [slice(0, 2), 1],
    "one list": [0, 1],
}


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize("index", LISTS)
def test_a_list_is_the_index_that_torch_takes_it_for(index):
    def written(y):
        y = y.clone()
        y[LISTS[index]] = 5.0
        return y

    y = torch.arange(24.0).reshape(2, 3, 4).permute(1, 0, 2).contiguous()
    stack = torch.stack([y, -y])
    assert torch.equal(ts.device_get(ts.jit(written)(y)), written(y))
    wanted = torch.stack([written(y), written(-y)])
    assert torch.equal(ts.vmap(written)(stack), wanted)
    assert torch.equal(ts.device_get(ts.jit(ts.vmap(written))(stack)), wanted)


@pytest.mark.parametrize("mask", [[True, False, True], np.array([True, False, True])], ids=["a list", "of NumPy's"])
def test_a_mask_that_is_the_same_for_all_examples_is_written_at_in_a_trace(mask):
    def written(y):
        y = y.clone()
        y[mask] = torch.tensor([7.0, 8.0])
        return y

    stack = torch.arange(6.0).reshape(2, 3)
    wanted = torch.stack([written(row) for row in stack])
    assert torch.equal(ts.vmap(written)(stack), wanted)
    assert torch.equal(ts.device_get(ts.jit(ts.vmap(written))(stack)), wanted)


def test_values_of_another_dtype_are_refused_as_torch_refuses_them():
    def written(y, i, v):
        y = y.clone()
        y[:, i] = v
        return y

    y, i, v = torch.zeros(2, 3, 4), torch.tensor([[0, 1], [2, 0]]), torch.ones(2, 3, 2, dtype=torch.int64)
    with pytest.raises(RuntimeError, match="source and destination dtypes match"):
        written(y[0], i[0], v[0])
    with pytest.raises(RuntimeError, match="source and destination dtypes match"):
        ts.vmap(written)(y, i, v)
