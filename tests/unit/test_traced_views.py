"""A view by a traced number is a view, as in torch: what is written to it is written to what it views. And its like."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.extent import every
from tinyshard.arrays.array import origin
from tinyshard.core.errors import TracedValueError


@pytest.fixture(scope="module", autouse=True)
def local_devices():
    ts.init(devices=4, runtime="local")
    yield
    ts.shutdown()


def add_to_an_element(y, i):
    y[i].add_(1.0)
    return y


def copy_into_a_part(y, i):
    y.narrow(0, i, 1).copy_(torch.ones(1))
    return y


def fill_an_element(y, i):
    y.select(0, i).fill_(3.0)
    return y


def add_by_a_name(y, i):
    z = y[i]
    z += 1
    return y * 2


def add_at_an_index(y, i):
    y[i] += 1
    return y


def write_into_a_part(y, i):
    z = y.narrow(0, i, 2)
    z[0] = 1.0
    return y


def write_to_a_view_of_a_part(y, i):
    y.narrow(0, i, 2).view(2, 1).add_(2.0)
    return y


def write_to_a_part_of_a_part(y, i):
    z = y.narrow(0, i, 2)
    z[i - 1] += 4.0
    return y + z.sum()


def read_after_a_write(y, i):
    z = y[i]
    y[i] = 5.0
    return z + 1


def read_a_view_of_a_part_after_a_write(y, i):
    w = y.narrow(0, i, 2).view(2, 1)
    y[i] = 7.0
    return w * 1


def read_a_part_of_a_part_after_a_write(y, i):
    z = y.narrow(0, i, 2)
    w = z[i - 1]
    y[i] = 7.0
    return w * 1


WRITES = [
    add_to_an_element, copy_into_a_part, fill_an_element, add_by_a_name, add_at_an_index, write_into_a_part,
    write_to_a_view_of_a_part, write_to_a_part_of_a_part, read_after_a_write, read_a_view_of_a_part_after_a_write,
    read_a_part_of_a_part_after_a_write,
]  # fmt: skip
X, AT = torch.tensor([0.5, 1.0, 2.0]), torch.tensor(1)


def loss(write):
    return lambda x, i: (write(x * 1, i) ** 2).sum()


@pytest.mark.parametrize("write", WRITES)
def test_what_is_written_to_a_view_is_written_to_what_it_views(write):
    def called(x, i):
        return write(x.clone(), i)

    wanted = called(X, 1)
    assert torch.equal(ts.device_get(ts.jit(called)(X, AT)), wanted)
    assert torch.equal(ts.vmap(called)(X[None], AT[None])[0], wanted)
    assert torch.equal(ts.device_get(ts.jit(ts.vmap(called))(X[None], AT[None]))[0], wanted)


@pytest.mark.parametrize("write", every(2, WRITES))
def test_its_gradient_is_torchs(write):
    wanted = torch.func.grad(lambda x: loss(write)(x, 1))(X)
    assert torch.equal(ts.device_get(ts.jit(ts.grad(loss(write)))(X, AT)), wanted)
    assert torch.equal(ts.device_get(ts.grad(ts.jit(loss(write)))(X, AT)), wanted)


def test_what_is_written_to_several_views_at_once_is_written_to_what_they_view():
    def written(x, i):
        y = x.clone()
        torch._foreach_mul_([y[i], y[i - 1]], 3.0)
        torch._foreach_add_([y.narrow(0, i, 2)], 1.0)
        return y

    wanted = written(X, 1)
    assert torch.equal(ts.device_get(ts.jit(written)(X, AT)), wanted)
    gradient = torch.func.grad(lambda x: loss(written)(x, 1))(X)
    assert torch.equal(ts.device_get(ts.jit(ts.grad(loss(written)))(X, AT)), gradient)
    assert torch.equal(ts.device_get(ts.grad(ts.jit(loss(written)))(X, AT)), gradient)


def test_it_is_so_on_every_device_of_a_mesh():
    mesh = ts.make_mesh((4,), ("i",))

    def body(v):
        y = v.clone()
        y[ts.lax.axis_index("i") % 2].add_(1.0)
        return y

    made = ts.shard_map(body, mesh=mesh, in_specs=ts.P("i"), out_specs=ts.P("i"))(torch.zeros(8))
    assert made.tolist() == [1, 0, 0, 1, 1, 0, 0, 1]


@pytest.mark.parametrize("view", [lambda y, i: y[i], lambda y, i: y.narrow(0, i, 2)[i - 1]], ids=["one", "of a view"])
def test_a_view_that_would_be_returned_as_it_was_before_a_write_is_refused(view):
    def stale(x, i):
        y = x.clone()
        z = view(y, i)
        y[i] = 5.0
        return z

    with pytest.raises(TracedValueError, match="returned after what it views was written to"):
        ts.jit(stale)(X, AT)


def test_a_refusal_at_the_end_of_a_transformation_leaves_nothing_of_it_behind():
    kept = []

    def stale(x, i):
        y = x.clone()
        kept.append(y[i])
        y[0] = 5.0
        return y.sum()

    before = origin(), torch._C._is_view_replay_enabled()
    with pytest.raises(TracedValueError, match="returned after what it views was written to"):
        ts.vmap(stale)(torch.ones(3, 4), torch.tensor([0, 1, 2]))
    assert (origin(), torch._C._is_view_replay_enabled()) == before


DIMS, OFFSETS = [(-1, -2), (-2, -1), (0, -1), (-3, 1), (-1, 0), (1, -3)], [0, 1, -1]


@pytest.mark.parametrize("dims, offset", every(4, itertools.product(DIMS, OFFSETS)))
def test_diag_embed_counts_negative_dims_from_the_end_of_its_result(dims, offset):
    mesh = ts.make_mesh((2, 2), ("a", "b"))
    x = torch.arange(8.0).reshape(4, 2)
    for spec in (ts.P(), ts.P("a"), ts.P("a", "b"), ts.P(None, "b")):
        here = ts.device_put(x, ts.NamedSharding(mesh, spec))
        assert torch.equal(ts.device_get(torch.diag_embed(here, offset, *dims)), torch.diag_embed(x, offset, *dims))
        gradient = ts.grad(lambda v: (torch.diag_embed(v, offset, *dims) ** 2).sum())(here)
        assert torch.equal(ts.device_get(gradient), 2 * x)


def test_the_gradient_of_a_compiled_circular_pad_is_torchs():
    def padded(x):
        return F.pad(x, (1, 1), mode="circular").pow(2).sum()

    x = torch.arange(8.0).reshape(1, 2, 4)
    assert torch.equal(ts.device_get(ts.grad(ts.jit(padded))(x)), torch.func.grad(padded)(x))


@pytest.mark.parametrize("classes", [[0, 3, 1, 2], [0, -1, 1, 1]])
def test_a_class_that_is_not_below_the_number_of_classes_is_an_error_in_a_program(classes):
    with pytest.raises(ts.RemoteError, match="out of range"):
        ts.jit(lambda x: F.one_hot(x, 2))(torch.tensor(classes)).tolist()


@pytest.mark.parametrize("classes", [[0, 3, 1, 2], [0, -1, 1, 1]])
def test_a_class_that_is_not_below_the_number_of_classes_is_an_error_in_an_op_and_under_vmap(classes):
    mesh = ts.make_mesh((4,), ("a",), devices=ts.devices()[:4])
    x = ts.device_put(torch.tensor(classes), ts.NamedSharding(mesh, ts.P("a")))
    for call in (lambda v: F.one_hot(v, 2), ts.vmap(lambda v: F.one_hot(v, 2)), ts.vmap(lambda v: F.one_hot(v, 2) * v)):
        with pytest.raises(ts.RemoteError, match="out of range"):
            call(x).tolist()
        with pytest.raises((RuntimeError, IndexError), match=r"out of range|[Cc]lass"):
            call(torch.tensor(classes))
    with pytest.raises(ts.RemoteError, match="out of range"):
        F.one_hot(x - 1).tolist()


def test_one_hot_of_classes_in_range_is_torchs():
    x = torch.tensor([[0, 3], [1, 2]])
    assert torch.equal(ts.device_get(F.one_hot(ts.array(x))), F.one_hot(x))
    assert torch.equal(ts.device_get(F.one_hot(ts.array(x), num_classes=5)), F.one_hot(x, 5))
    assert torch.equal(ts.vmap(lambda v: F.one_hot(v, 4))(x), F.one_hot(x, 4))
    with pytest.raises(ts.DtypeError, match=r"x\.long\(\)"):
        F.one_hot(ts.array(x.int()), 4)
