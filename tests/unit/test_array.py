import copy
import operator
import pickle

import numpy as np
import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def host():
    return torch.arange(32.0).reshape(4, 8)


@pytest.fixture
def x(mesh, host):
    return ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", "b")))


def test_an_array_prints_as_jax_prints_it(x):
    assert repr(ts.array([11.0, 20.0, 29.0])) == "Array([11., 20., 29.], dtype=float32)"
    assert str(ts.array([11.0, 20.0, 29.0])) == "[11. 20. 29.]"
    assert repr(x.sum()) == "Array(496., dtype=float32)"
    assert repr(x[:2, :2]) == "Array([[0., 1.],\n       [8., 9.]], dtype=float32)"
    assert repr(ts.array(torch.ones(2, dtype=torch.bfloat16))) == "Array([1., 1.], dtype=bfloat16)"
    assert repr(ts.array(torch.empty(0, 3))) == "Array([], shape=(0, 3), dtype=float32)"
    assert f"{x.sum():.2f} and {x.max()}" == "496.00 and 31.0"


def test_python_numbers_come_out(x):
    assert float(x.sum()) == 496.0
    assert int(x.max()) == 31
    assert bool(x.sum() > 0) is True
    assert x[1, 2].item() == 10.0
    assert x[0].tolist() == list(map(float, range(8)))
    assert len(x) == 4
    assert [float(row.sum()) for row in x] == [28.0, 92.0, 156.0, 220.0]
    assert float(round(x.sum() / 7, 2)) == pytest.approx(70.86)


def test_numpy_takes_it_as_an_array(x, host):
    assert (np.asarray(x) == host.numpy()).all()
    assert np.allclose(np.sin(x), np.sin(host.numpy()))
    assert np.allclose(x, host)
    assert np.asarray(x, dtype=np.int64).dtype == np.int64


def test_numpy_gives_values_of_its_own(x, host):
    x.numpy()[:] = -1
    assert torch.equal(ts.device_get(x), host)


def test_numpy_cannot_write_into_it_or_have_it_without_a_copy(x, host):
    with pytest.raises(ts.ImmutableError, match=r"np\.add\.at"):
        np.add.at(x, 0, 1.0)
    with pytest.raises(ValueError, match="a copy"):
        np.asarray(x, copy=False)
    assert torch.equal(ts.device_get(x), host)


def test_what_numpy_cannot_hold_is_a_clear_error(x):
    with pytest.raises(ts.DtypeError, match="bfloat16"):
        x.bfloat16().numpy()


def test_pickle_carries_the_values_and_copies_have_them_without_moving_any(x, host):
    assert torch.equal(ts.device_get(pickle.loads(pickle.dumps(x))), host)
    before = ts.live_arrays().nbytes
    twins = copy.deepcopy(x), copy.copy(x)
    for twin in twins:
        assert twin is not x
        assert torch.equal(ts.device_get(twin), host)
        assert twin.sharding == x.sharding
    assert ts.live_arrays().nbytes == before  # which counts what several share once
    first, second = copy.deepcopy([x, x])
    assert first is second


def test_a_copy_of_a_parameter_is_asked_for_a_gradient_of_its_own(x, host):
    module = torch.nn.Linear(8, 4, bias=False)
    module.weight = torch.nn.Parameter(x)
    module.weight.sum().backward()
    twin = copy.deepcopy(module)
    assert isinstance(twin.weight, torch.nn.Parameter)
    assert torch.equal(ts.device_get(twin.weight.grad), torch.ones(4, 8))
    twin.requires_grad_(False)
    twin.weight.grad = None
    assert module.weight.requires_grad
    assert module.weight.grad is not None
    assert torch.equal(ts.device_get(twin.weight), host)


def test_a_copy_of_what_the_tape_made_passes_the_gradient(x):
    w = copy.copy(x).requires_grad_()
    copy.deepcopy(w * 3).sum().backward()
    assert torch.equal(ts.device_get(w.grad), torch.full((4, 8), 3.0))


def test_a_pickled_parameter_is_one_when_it_comes_back(x):
    module = torch.nn.Linear(8, 4, bias=False)
    module.weight = torch.nn.Parameter(x)
    twin = pickle.loads(pickle.dumps(module))
    assert isinstance(twin.weight, torch.nn.Parameter)
    assert twin.weight.requires_grad
    assert not pickle.loads(pickle.dumps(x)).requires_grad


def test_dlpack_takes_a_copy_and_a_pointer_is_refused(x, host):
    assert torch.equal(torch.from_dlpack(x), host)
    assert torch.equal(torch.from_dlpack(torch.utils.dlpack.to_dlpack(x)), host)
    assert torch.equal(torch.from_dlpack(torch.to_dlpack(host)), host)
    with pytest.raises(ts.DtypeError, match="no memory in this process"):
        x.data_ptr()


@pytest.mark.parametrize("ask", ["share_memory_", "untyped_storage"])
def test_what_needs_memory_in_this_process_is_refused(x, ask):
    with pytest.raises(ts.DtypeError, match="no memory in this process"):
        getattr(x, ask)()


def test_data_cannot_be_assigned(x, host):
    with pytest.raises(ts.ImmutableError, match=r"x\.data"):
        x.data = torch.ones(2)
    assert torch.equal(ts.device_get(x.data), host)


def test_no_gradient_passes_by_data(x, host):
    w = copy.copy(x).requires_grad_()
    (w.data * w).sum().backward()
    assert torch.equal(ts.device_get(w.grad), host)
    assert not w.data.requires_grad


def test_copying_into_a_plain_tensor_brings_the_values_here(x, host):
    plain = torch.zeros(4, 8)
    plain.copy_(x)
    assert torch.equal(plain, host)
    row = x[:, 0] / 31
    torch.testing.assert_close(ts.device_get(torch.vander(row)), torch.vander(host[:, 0] / 31))


def test_shards_tell_device_index_replica_and_data(mesh, host):
    y = ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", None)))
    shards = y.addressable_shards
    assert [s.device.id for s in shards] == list(range(8))
    assert [s.replica_id for s in shards] == [0, 1] * 4
    for shard in shards:
        assert torch.equal(ts.device_get(shard.data), host[shard.index])
        assert shard.data.devices() == {shard.device}


def test_the_result_speaks_the_words_of_its_operands(x, mesh):
    assert (x + 1).sharding == ts.NamedSharding(mesh, ts.P("a", "b"))
    assert x.T.sharding == ts.NamedSharding(mesh, ts.P("b", "a"))
    assert x.sum(1).sharding == ts.NamedSharding(mesh, ts.P("a"))
    positional = ts.device_put(x, ts.sharding.PositionalSharding(ts.devices()).reshape(2, 4))
    assert isinstance((positional + 1).sharding, ts.sharding.PositionalSharding)
    assert isinstance(ts.array(1.0).sharding, ts.SingleDeviceSharding)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda x, t: x.__setitem__(0, 5), ["x[index] = value", "torch.where"]),
        (lambda x, t: x.__iadd__(1), ["x += ...", "y = x + ..."]),
        (lambda x, t: operator.imatmul(x, t), ["x @= ..."]),
        (lambda x, t: x.zero_(), ["x.zero_"]),
        (lambda x, t: torch.add(x, 1, out=x), ["out=", "torch.add"]),
        (lambda x, t: np.add(x.numpy(), 1, out=(x,)), ["out="]),
        (lambda x, t: x.apply_(lambda v: v + 1), ["x.apply_(f)", "device_get"]),
        (lambda x, t: torch.func.vmap(lambda v: v.add_(1))(x), ["x.add_"]),
    ],
)
def test_changing_an_array_in_place_names_what_to_do_instead(x, host, change, words):
    with pytest.raises(ts.ImmutableError) as caught:
        change(x, torch.zeros(4, 8))
    assert isinstance(caught.value, TypeError)
    for word in words:
        assert word in str(caught.value)
    assert torch.equal(ts.device_get(x), host)


@pytest.mark.parametrize(
    "draw",
    [torch.rand_like, torch.nn.functional.dropout, torch.bernoulli, lambda x: x.new_zeros(3).uniform_()],
)
def test_stateful_randomness_is_refused_and_names_ts_random(x, draw):
    with pytest.raises(ts.StatefulRandomError, match=r"ts\.random"):
        draw(x / 32)


def test_autograd_works_on_arrays_and_keeps_the_layout(x, host):
    def f(v):
        return (v * torch.maximum(v, v.new_zeros(()))).sum()

    gradient = torch.func.grad(f)(x)
    assert gradient.sharding == x.sharding
    torch.testing.assert_close(ts.device_get(gradient), torch.func.grad(f)(host))


def test_vmap_works_on_arrays(x, host):
    rows = torch.func.vmap(lambda v: v @ v)(x)
    torch.testing.assert_close(ts.device_get(rows), (host * host).sum(1))


def test_modules_work_through_functional_call(x, host):
    layer = torch.nn.Linear(8, 3)
    got = torch.func.functional_call(layer, {k: v.detach() for k, v in layer.named_parameters()}, (x,))
    torch.testing.assert_close(ts.device_get(got), layer(host).detach())


def test_the_html_picture_tells_shape_and_sharding(x):
    html = x._repr_html_()
    assert "<svg" in html
    assert "float32" in html


def test_a_deep_copy_has_copies_of_what_the_user_has_put_on_an_array():
    x = ts.array([1.0, 2.0])
    x.info = {"seen": [1]}
    twin = copy.deepcopy(x)
    assert twin.info == {"seen": [1]} and twin.info is not x.info and twin.info["seen"] is not x.info["seen"]
    assert copy.copy(x).info is x.info
