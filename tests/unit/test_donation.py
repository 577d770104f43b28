"""Donated arguments: which are gone, which stay, and what is freed when."""

import gc
import pickle
import warnings

import numpy as np
import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("counted")

DELETED = "Array has been deleted"


@pytest.fixture(scope="module")
def counted():
    ts.init(devices=8, runtime="local", memory_per_device="1 GiB")
    yield
    ts.shutdown()


@pytest.fixture
def rows(mesh):
    return ts.NamedSharding(mesh, ts.P("a"))


def held():
    gc.collect()
    return ts.devices()[0].memory_stats()["bytes_in_use"]


def update(p, g):
    return p - 0.5 * g


def tripled(x):
    return x * 3


USES = {
    "an op": lambda x: x + 1,
    "jit": lambda x: ts.jit(torch.sin)(x),
    "pmap": lambda x: ts.pmap(torch.sin)(x),
    "numpy": lambda x: x.numpy(),
    "np.asarray": np.asarray,
    "repr": repr,
    "item": lambda x: x[0, 0].item(),
    "block_until_ready": lambda x: x.block_until_ready(),
    "is_ready": lambda x: x.is_ready(),
    "device_put": lambda x: ts.device_put(x, ts.devices()[0]),
    "device_get": ts.device_get,
    "a shard": lambda x: x.addressable_shards[0].data.numpy(),
    "pickle": pickle.dumps,
    "grad": lambda x: ts.grad(lambda x: x.sum())(x),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("how", ["donated", "deleted"])
def test_every_use_of_what_is_gone_says_so(rows, host, how, use):
    x = ts.device_put(host, rows)
    if how == "donated":
        ts.jit(update, donate_argnums=0)(x, ts.device_put(host, rows))
    else:
        x.delete()
        x.delete()  # twice is once
    assert x.is_deleted()
    with pytest.raises(RuntimeError, match=DELETED):
        use(x)
    assert x.shape == (8, 4) and x.dtype == torch.float32 and x.sharding == rows


def test_a_donated_argument_is_freed_and_the_result_is_right(rows, host):
    f = ts.jit(update, donate_argnums=0)
    before = held()
    g = ts.device_put(host, rows)
    p = ts.device_put(host, rows)
    for _ in range(3):  # the first traces; the others are found by their key
        old, p = p, f(p, g)
        assert old.is_deleted() and not g.is_deleted()
        assert held() - before == 2 * 2 * 4 * 4  # p and g, though `old` is there
    torch.testing.assert_close(ts.device_get(p), host - 1.5 * host)


def test_delete_frees_at_once_and_takes_all_handles_with_it(rows, host):
    before = held()
    x = ts.device_put(host, rows)
    other = x.detach()
    shard = x.addressable_shards[1].data
    y = x * 2
    assert held() - before == 2 * 32
    x.delete()
    assert held() - before == 32
    assert other.is_deleted() and shard.is_deleted() and not y.is_deleted()
    assert not any(z is x for z in ts.live_arrays())
    torch.testing.assert_close(ts.device_get(y), host * 2)


def test_a_view_on_the_devices_of_what_was_donated_keeps_its_values(rows, host):
    x = ts.device_put(host, rows)
    view = x.T
    before = held()
    result = ts.jit(lambda x: x + 1, donate_argnums=0)(x)
    assert held() - before == 32, "the view looks at the donated block, which stays"
    torch.testing.assert_close(ts.device_get(view), host.T)
    torch.testing.assert_close(ts.device_get(result), host + 1)


def test_what_numpy_gave_before_stays(rows, host):
    x = ts.device_put(host, rows)
    values = x.numpy()
    ts.jit(lambda x: x * 0, donate_argnums=0)(x).block_until_ready()
    assert (values == host.numpy()).all()


NAMED = {
    "by position": ({"donate_argnums": 0}, lambda f, p, g: f(p, g)),
    "by a negative position": ({"donate_argnums": (-2,)}, lambda f, p, g: f(p, g)),
    "a position given by name": ({"donate_argnums": 0}, lambda f, p, g: f(g=g, p=p)),
    "by name": ({"donate_argnames": "p"}, lambda f, p, g: f(g=g, p=p)),
    "a name given by position": ({"donate_argnames": ["p"]}, lambda f, p, g: f(p, g)),
}


@pytest.mark.parametrize("case", NAMED.values(), ids=NAMED)
def test_by_position_is_by_name(rows, host, case):
    options, call = case
    p, g = ts.device_put(host, rows), ts.device_put(host, rows)
    result = call(ts.jit(update, **options), p, g)
    assert p.is_deleted() and not g.is_deleted()
    torch.testing.assert_close(ts.device_get(result), host / 2)


def test_trees_are_donated_leaf_by_leaf_beside_static_arguments(rows, host):
    def f(n, params, grads):
        return {name: p - n * grads[name] for name, p in params.items()}

    params = {name: ts.device_put(host, rows) for name in "vw"}
    grads = {name: ts.device_put(host, rows) for name in "vw"}
    new = ts.jit(f, static_argnums=0, donate_argnums=1)(2, params, grads)
    assert all(p.is_deleted() for p in params.values()) and not any(g.is_deleted() for g in grads.values())
    torch.testing.assert_close(ts.device_get(new["w"]), -host)


def test_pmap_donates_its_rows(host):
    x = ts.device_put(host, ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i")))
    result = ts.pmap(lambda v: v + ts.lax.psum(v, "i"), axis_name="i", donate_argnums=0)(x)
    assert x.is_deleted()
    torch.testing.assert_close(ts.device_get(result), host + host.sum(0))


def test_a_compiled_function_donates_and_counts_it(rows, host):
    p, g = ts.device_put(host, rows), ts.device_put(host, rows)
    plain = ts.jit(update).lower(p, g).compile().memory_analysis()
    compiled = ts.jit(update, donate_argnums=0).lower(p, g).compile()
    memory = compiled.memory_analysis()
    assert (plain.alias_size_in_bytes, memory.alias_size_in_bytes) == (0, 32)
    assert not p.is_deleted()
    compiled(p, g)
    assert p.is_deleted()


def test_the_model_frees_a_donated_argument_after_its_last_use(rows):
    x = ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=rows)

    def f(x):
        return torch.sin(torch.cos(torch.tan(x)))

    plain, donating = (ts.jit(f, donate_argnums=n).lower(x).compile().memory_analysis() for n in ((), 0))
    assert [step.nbytes for step in plain.steps] == [64, 96, 96]
    assert [step.nbytes for step in donating.steps] == [64, 64, 64]


def test_what_no_result_can_replace_stays_with_one_warning(rows, host):
    x = ts.device_put(host, rows)
    f = ts.jit(lambda x: x.sum(), donate_argnums=0)
    with pytest.warns(UserWarning, match=r"Some donated buffers were not usable: f32\[2, 4\]") as caught:
        f(x)
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert f(x).item() == host.sum().item()
    assert not x.is_deleted()


def test_two_arguments_for_one_result_donate_the_first(rows, host):
    p, g = ts.device_put(host, rows), ts.device_put(host, rows)
    with pytest.warns(UserWarning, match="not usable"):
        ts.jit(update, donate_argnums=(0, 1))(p, g)
    assert p.is_deleted() and not g.is_deleted()


@pytest.mark.parametrize("other", [lambda x: x, lambda x: x.detach()], ids=["itself", "another handle"])
def test_a_donated_array_that_is_passed_twice_is_refused(rows, host, other):
    x = ts.device_put(host, rows)
    with pytest.raises(ValueError, match="previously donated in the same call"):
        ts.jit(update, donate_argnums=0)(x, other(x))
    with pytest.raises(ts.errors.DonationError, match="Attempt to donate the same buffer twice"):
        ts.jit(lambda a, b: (a + b, a * b), donate_argnums=(0, 1))(x, other(x))
    assert not x.is_deleted()
    torch.testing.assert_close(ts.device_get(x), host)


def test_a_donated_array_that_the_function_closes_over_is_refused(rows, host):
    x = ts.device_put(host, rows)
    with pytest.raises(ts.errors.DonationError):
        ts.jit(lambda a: a + x, donate_argnums=0)(x)


def test_in_another_trace_nothing_is_donated(rows, host):
    x = ts.device_put(host, rows)
    f = ts.jit(lambda v: v * 3, donate_argnums=0)
    ts.jit(lambda v: f(v) + v)(x)
    assert not x.is_deleted()


TRANSFORMED = {
    "grad": lambda f, x: ts.grad(lambda v: f(v).sum())(x),
    "vmap": lambda f, x: ts.vmap(f)(x),
    "vmap with a name": lambda f, x: ts.vmap(f, axis_name="i")(x),
    "jvp": lambda f, x: ts.jvp(f, (x,), (x,)),
    "backward": lambda f, x: f(x.detach().requires_grad_()).sum().backward(),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_under_a_transformation_nothing_is_donated_and_a_line_is_warned_once(rows, host, name):
    x = ts.device_put(host, rows)
    with pytest.warns(UserWarning, match="The donated arguments of tripled stay") as caught:
        warnings.simplefilter("default")
        for _ in range(2):
            TRANSFORMED[name](ts.jit(tripled, donate_argnums=0), x)
    assert len(caught) == 1 and caught[0].filename == __file__
    assert not x.is_deleted()


def test_plain_tensors_and_what_must_move_first_stay(rows, host):
    f = ts.jit(update, donate_argnums=0)
    x = ts.array(host)  # uncommitted: a copy of it goes where the other one is
    f(x, ts.device_put(host, rows))
    assert not x.is_deleted()
    f(host, ts.device_put(host, rows))
    torch.testing.assert_close(host, torch.arange(32.0).reshape(8, 4))


def test_what_a_failed_call_was_given_is_gone(rows):
    x = ts.device_put(torch.full((8, 4), 9), rows)
    result = ts.jit(lambda i: torch.gather(i, 1, i), donate_argnums=0)(x)
    with pytest.raises(ts.errors.RemoteError):
        result.block_until_ready()
    assert x.is_deleted()


REFUSED = {
    "a position that is not there": {"donate_argnums": 2},
    "a name that is not there": {"donate_argnames": "q"},
    "static and donated": {"donate_argnums": 1, "static_argnames": "g"},
    "no position": {"donate_argnums": "p"},
}


@pytest.mark.parametrize("options", REFUSED.values(), ids=REFUSED)
def test_arguments_that_cannot_be_donated_are_refused(options):
    with pytest.raises(ValueError, match="donate"):
        ts.jit(update, **options)


def test_a_donated_result_that_is_the_argument_itself(rows, host):
    x = ts.device_put(host, rows)
    before = held()
    same = ts.jit(lambda x: x, donate_argnums=0)(x)
    assert x.is_deleted() and held() == before
    torch.testing.assert_close(ts.device_get(same), host)
