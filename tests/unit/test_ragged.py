"""ragged_all_to_all: JAX's example, drawn slices against a loop in plain torch, gradients, errors."""

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused

pytestmark = pytest.mark.usefixtures("local")
ragged = ts.lax.ragged_all_to_all
P = ts.P


def by_vmap(f, n):
    return ts.vmap(f, axis_name="i")


def by_pmap(f, n):
    return ts.pmap(f, axis_name="i")


def by_shard_map(f, n):
    def blocks(*xs):
        return f(*(x[0] for x in xs))[None]

    return ts.shard_map(blocks, mesh=ts.make_mesh((n,), ("i",)), in_specs=P("i"), out_specs=P("i"))


MAPS = pytest.mark.parametrize("mapped", [by_vmap, by_pmap, by_shard_map])


def by_hand(operand, output, start, sizes, place, size, groups=None):
    """The exchange in a loop; differentiable, as all of it is indexing."""
    result = [list(rows) for rows in output]
    groups = groups or [list(range(size))]
    for group in groups:
        for sender in group:
            for i in range(start.shape[1]):
                receiver = group[i // (start.shape[1] // len(group))]
                for k in range(int(sizes[sender, i])):
                    result[receiver][int(place[sender, i]) + k] = operand[sender][int(start[sender, i]) + k]
    return torch.stack([torch.stack(rows) for rows in result])


def drawn(size, slices, seed):
    """Slices of random length; those of one receiver lie one after the other, a row apart."""
    random = np.random.default_rng(seed)
    sizes = torch.from_numpy(random.integers(0, 4, (size, slices)))
    start = torch.from_numpy(random.integers(0, 3, (size, slices)))
    place, heads = torch.zeros_like(sizes), [1] * size
    for sender in range(size):
        for i in range(slices):
            receiver = i // (slices // size)
            place[sender, i] = heads[receiver]
            heads[receiver] += int(sizes[sender, i]) + 1
    received = sizes.reshape(size, size, -1).transpose(0, 1).reshape(size, slices)
    return start, sizes, place, received, max(heads)


@MAPS
def test_the_example_of_jaxs_documentation(mapped):
    values = [[1, 2, 2], [3, 4, 0]], [[0] * 4] * 2, [[0, 1]] * 2, [[1, 2], [1, 1]], [[0, 0], [1, 2]], [[1, 1], [2, 1]]
    got = mapped(lambda *xs: ragged(*xs, axis_name="i"), 2)(*map(torch.tensor, values))
    np.testing.assert_array_equal(np.asarray(got), [[1, 3, 0, 0], [2, 2, 4, 0]])


@MAPS
@pytest.mark.parametrize(("size", "slices"), [(3, 3), (2, 6)])
def test_rows_and_gradients_are_those_of_a_loop(mapped, size, slices):
    *numbers, received, rows = drawn(size, slices, seed=slices)
    x, y = torch.randn(size, 6, 2, dtype=torch.float64), torch.randn(size, rows, 2, dtype=torch.float64)
    weight = torch.randn(size, rows, 2, dtype=torch.float64)
    f = mapped(lambda *xs: ragged(*xs, axis_name="i"), size)
    expected = by_hand(x, y, *numbers, size)
    np.testing.assert_array_equal(np.asarray(ts.device_get(f(x, y, *numbers, received))), expected)
    got = ts.grad(lambda x, y: (f(x, y, *numbers, received) * weight).sum(), argnums=(0, 1))(x, y)
    slopes = torch.func.grad(lambda x, y: (by_hand(x, y, *numbers, size) * weight).sum(), argnums=(0, 1))(x, y)
    for mine, theirs in zip(got, slopes, strict=True):
        np.testing.assert_allclose(np.asarray(ts.device_get(mine)), theirs, rtol=1e-12)


def test_groups_exchange_each_for_itself():
    groups = [[0, 3], [2, 1]]
    *numbers, received, rows = drawn(4, 4, seed=1)
    numbers = [x[:, :2] for x in numbers]
    x, y = torch.arange(24).reshape(4, 6), torch.zeros(4, rows, dtype=torch.int64)
    f = ts.pmap(lambda *xs: ragged(*xs, axis_name="i", axis_index_groups=groups), axis_name="i")
    expected = by_hand(x, y, *numbers, 4, groups)
    np.testing.assert_array_equal(np.asarray(f(x, y, *numbers, received[:, :2])), expected)


def test_rows_beyond_operand_and_result_are_not_sent():
    x, one = torch.arange(1, 7).reshape(2, 3), torch.ones(2, 2, dtype=torch.int64)
    f = ts.pmap(lambda *xs: ragged(*xs, axis_name="i"), axis_name="i")
    got = f(x, torch.zeros(2, 3, dtype=torch.int64), one, one * 9, torch.tensor([[0, 2], [2, 0]]), one)
    np.testing.assert_array_equal(np.asarray(got), [[2, 3, 5], [5, 6, 2]])


def test_a_program_gathers_the_operand_and_a_gradient_scatters_it():
    n = torch.zeros(2, 2, dtype=torch.int64)
    f = by_shard_map(lambda x, n: ragged(x, x, n, n, n, n, axis_name="i"), 2)
    text = f.lower(torch.ones(2, 3), n).compile().as_text()
    assert (text.count(" all_gather("), text.count(" all_to_all(")) == (1, 1)
    slope = ts.jit(ts.grad(lambda x: f(x, n).sum())).lower(torch.ones(2, 3)).compile().as_text()
    assert slope.count(" reduce_scatter(") == 1


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({0: torch.ones(2, 3, 1)}, ValueError, "an operand of shape (3, 1), an output of shape (4,)"),
        ({1: torch.ones(2, 4, dtype=torch.int32)}, TypeError, "torch.float32, torch.int32"),
        ({2: torch.ones(2, 2)}, TypeError, "input_offsets are integers"),
        ({3: torch.ones(2, 3, dtype=torch.int64)}, ValueError, "send_sizes (3,)"),
        (
            dict.fromkeys((2, 3, 4, 5), torch.ones(2, 3, dtype=torch.int64)),
            ValueError,
            "a multiple of the size of the axis",
        ),
    ],
)
def test_a_wrong_use_says_what_it_got_and_the_rule(change, kind, words):
    n = torch.zeros(2, 2, dtype=torch.int64)
    args = [change.get(i, x) for i, x in enumerate([torch.ones(2, 3), torch.ones(2, 4), n, n, n, n])]
    assert_refused(lambda: ts.pmap(lambda *xs: ragged(*xs, axis_name="i"), axis_name="i")(*args), kind, [words])
