"""Keys and draws on one device: published vectors, keys as values, what is refused, numba against torch."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.extent import examples
from tinyshard.core.errors import TracedValueError
from tinyshard.primitives import random_bits
from tinyshard.primitives.legacy_threefry import hashed_pairs
from tinyshard.primitives.random_bits import DRAW, Counters, counters_of
from tinyshard.primitives.threefry import words
from tinyshard.runtime import lifecycle

pytestmark = pytest.mark.usefixtures("local")

R = ts.random
KEY = ts.random.key(42)


# ---- the hash -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "expected"),
    [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_words_are_those_that_the_authors_of_threefry_published(key, counter, expected):
    given_words = (torch.tensor([w], dtype=torch.uint32).view(torch.int32) for w in (*key, *counter))
    assert tuple(int(w) & 0xFFFFFFFF for w in words(*given_words)) == expected


def numpy_words(key, counters):
    """Threefry in NumPy's uint32, straight from its definition."""
    k = [np.uint32(key[0]), np.uint32(key[1])]
    k.append(np.uint32(0x1BD11BDA) ^ k[0] ^ k[1])
    x = [(counters >> np.uint64(32)).astype(np.uint32) + k[0], counters.astype(np.uint32) + k[1]]
    turns = (13, 15, 26, 6), (17, 29, 16, 24)
    for group in range(5):
        for r in turns[group % 2]:
            x[0] = x[0] + x[1]
            x[1] = ((x[1] << np.uint32(r)) | (x[1] >> np.uint32(32 - r))) ^ x[0]
        x[0] = x[0] + k[(group + 1) % 3]
        x[1] = x[1] + k[(group + 2) % 3] + np.uint32(group + 1)
    return x


@settings(max_examples=examples(40, 100))
@given(
    key=st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
    first=st.integers(0, 2**40),
    count=st.integers(1, 40),
)
def test_words_of_64_bit_counters_are_those_of_numpy(key, first, count):
    data = torch.tensor(key, dtype=torch.int64).to(torch.int32)
    block = Counters(torch.tensor([first]), count)
    made = torch.empty(count, 2, dtype=torch.int32)
    random_bits.fill(made, data, block, "words", 0.0, 1.0)
    expected = numpy_words(key, np.arange(first, first + count, dtype=np.uint64))
    np.testing.assert_array_equal(made.numpy().view(np.uint32).T, expected)


@settings(max_examples=examples(40, 100))
@given(
    sizes=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), max_size=3),
    data=st.data(),
)
def test_the_counters_of_a_block_are_the_row_major_numbers_of_its_elements(sizes, data):
    shape, parts = [n * p for n, p in sizes], [p for _, p in sizes]
    at = [data.draw(st.integers(0, p - 1)) for p in parts]
    block = counters_of(shape, parts, at)
    whole = np.arange(int(np.prod(shape))).reshape(shape)
    own = whole[tuple(slice(a * n, (a + 1) * n) for a, (n, _) in zip(at, sizes, strict=True))]
    np.testing.assert_array_equal(block.between(0, block.size).numpy(), own.reshape(-1))


def test_an_odd_number_of_original_words_is_filled_up_with_a_zero():
    first, second = hashed_pairs(KEY.data, 5, 0, 3)
    expected = numpy_words((0, 42), np.array([(0 << 32) + 3, (1 << 32) + 4, 2 << 32], np.uint64))
    np.testing.assert_array_equal(first.numpy().view(np.uint32), expected[0])
    np.testing.assert_array_equal(second.numpy().view(np.uint32), expected[1])


# ---- numba and torch ------------------------------------------------------------------------------------------------


def by_torch(monkeypatch, *args):
    with monkeypatch.context() as patched:
        patched.setattr(random_bits, "is_compiled", lambda kind, dtype: False)
        return DRAW(*args)


@pytest.mark.parametrize(
    ("kind", "dtype", "low", "high"),
    [
        ("bits", torch.int32, 0.0, 1.0),
        ("uniform", torch.float32, 0.0, 1.0),
        ("uniform", torch.float32, -1.5, 0.1),
        ("normal", torch.float32, 0.0, 1.0),
    ],
)
def test_numba_and_torch_make_the_same_bits(kind, dtype, low, high, monkeypatch):
    monkeypatch.setattr(random_bits, "LOAD_FROM", 1)
    monkeypatch.setattr(random_bits, "COMPILED_FROM", 1)
    assert random_bits.is_compiled(kind, dtype), "numba comes with the extra `course`"
    cases = [
        ([200_003], [1], []),
        ([6, 50, 700], [2, 1, 7], [torch.tensor([1]), torch.tensor([3])]),
        ([5, 9], [1, 3], [torch.tensor([2])]),
    ]
    for shape, parts, at in cases:
        args = (ts.random.key(-9).data, shape, parts, at, kind, dtype, low, high)
        compiled, plain = DRAW(*args), by_torch(monkeypatch, *args)
        assert torch.equal(compiled.view(torch.int32), plain.view(torch.int32))


def test_numba_and_torch_agree_on_counters_above_32_bits(monkeypatch):
    block = Counters(torch.tensor([2**32 - 700]), 1500)
    made = [torch.empty(1500, dtype=torch.int32) for _ in range(2)]
    monkeypatch.setattr(random_bits, "LOAD_FROM", 1)
    monkeypatch.setattr(random_bits, "COMPILED_FROM", 1)
    random_bits.fill(made[0], KEY.data, block, "bits", 0.0, 1.0)
    monkeypatch.setattr(random_bits, "is_compiled", lambda kind, dtype: False)
    random_bits.fill(made[1], KEY.data, block, "bits", 0.0, 1.0)
    assert torch.equal(*made)


@pytest.mark.whole
def test_without_numba_large_draws_are_made_by_torch():
    code = """
import sys
sys.modules["numba"] = None
import torch, tinyshard as ts
ts.init(devices=1, runtime="local")
print(ts.random.bits(ts.random.key(42), (2_000_000,))[-1].item())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) == int(np.bitwise_xor(*numpy_words((0, 42), np.array([1_999_999], np.uint64)))[0])


# ---- keys are values ------------------------------------------------------------------------------------------------


def test_a_key_says_what_it_is_and_starts_no_device():
    ts.shutdown()
    key = ts.random.key(42)
    assert repr(key) == "Key() overlaying:\n[ 0 42]"
    assert repr(ts.random.split(key)).startswith("Key(2) overlaying:\n[[")
    assert lifecycle.running() is None
    ts.init(devices=8, runtime="local")


def test_keys_are_unpacked_indexed_and_reshaped_like_an_array_of_their_shape():
    keys = ts.random.split(KEY, (2, 3))
    assert (keys.shape, keys.ndim, keys.size, len(keys)) == ((2, 3), 2, 6, 2)
    assert keys[1].shape == (3,) and keys[1, 2].shape == () and keys[..., 0].shape == (2,)
    assert bool((keys.reshape(6)[4] == keys[1, 1]).all())
    first, second, third = keys[0]
    assert bool((third == keys[0, 2]).all()) and first.shape == second.shape == ()
    assert bool(ts.random.wrap_key_data(ts.random.key_data(keys))[1, 0] == keys[1, 0])
    assert ts.random.wrap_key_data(keys) is keys


def test_keys_cannot_be_changed_and_survive_pickling():
    with pytest.raises(AttributeError, match="fold_in"):
        KEY.data = KEY.data + 1
    assert bool(pickle.loads(pickle.dumps(KEY)) == KEY)


def test_keys_are_leaves_of_ts_tree_and_containers_of_torchs():
    tree = {"a": KEY, "b": [1, ts.random.split(KEY)]}
    assert [getattr(x, "shape", x) for x in ts.tree.leaves(tree)] == [(), 1, (2,)]
    assert ts.tree.map(lambda x: getattr(x, "shape", x), tree) == {"a": (), "b": [1, (2,)]}
    assert [type(x) for x in torch.utils._pytree.tree_leaves(tree)] == [torch.Tensor, int, torch.Tensor]


def test_keys_live_in_arrays_under_shardings_of_their_own_shape():
    keys = ts.random.split(KEY, 8)
    named = ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), ts.P("a"))
    by_place = ts.sharding.PositionalSharding(ts.devices())
    for sharding in (named, by_place):
        placed = ts.device_put(keys, sharding)
        assert placed.sharding.is_equivalent_to(sharding, 1) and placed.shape == (8,)
        assert bool((placed == keys).all())
        assert placed.data.addressable_shards[0].data.shape[1] == 2
        np.testing.assert_array_equal(
            ts.random.uniform(placed[5], (3,)).numpy(), ts.random.uniform(keys[5], (3,)).numpy()
        )


@pytest.mark.parametrize("runtime_key", [False, True], ids=["host", "device"])
def test_split_and_fold_in_under_vmap_are_those_of_each_key(runtime_key):
    keys = ts.random.split(KEY, 4)
    given_keys = ts.device_put(keys, ts.devices()[0]) if runtime_key else keys
    split = torch.func.vmap(lambda k: ts.random.split(k, 3))(given_keys)
    assert split.shape == (4, 3)
    assert all(bool((split[i] == ts.random.split(keys[i], 3)).all()) for i in range(4))
    folded = torch.func.vmap(ts.random.fold_in)(given_keys, torch.arange(4))
    assert all(bool((folded[i] == ts.random.fold_in(keys[i], i)).all()) for i in range(4))


def test_vmap_of_plain_keys_is_plain_and_a_draw_alone_is_an_uncommitted_array():
    keys = ts.random.split(KEY, 3)
    made = torch.func.vmap(lambda k: ts.random.normal(k, (2,)))(keys)
    assert type(made) is torch.Tensor
    alone = ts.random.normal(keys[1], (2,))
    assert isinstance(alone, ts.Array) and not alone.committed and alone.devices() == {ts.devices()[0]}
    np.testing.assert_array_equal(made[1].numpy(), alone.numpy())


def test_keys_go_through_jit_as_arguments_results_and_closed_over_values():
    draw_and_split = ts.jit(lambda k: (ts.random.uniform(k, (3,)), ts.random.split(k)))
    numbers, keys = draw_and_split(KEY)
    np.testing.assert_array_equal(numbers.numpy(), ts.random.uniform(KEY, (3,)).numpy())
    assert keys.shape == (2,) and bool((keys == ts.random.split(KEY)).all())
    held = {"key": ts.random.key(1)}
    closed = ts.jit(lambda x: x + ts.random.uniform(held["key"], (3,)))
    first = closed(torch.zeros(3)).numpy()
    held["key"] = ts.random.key(2)
    assert not np.array_equal(closed(torch.zeros(3)).numpy(), first)
    np.testing.assert_array_equal(ts.jit(lambda s: ts.random.uniform(ts.random.key(s), (3,)))(1).numpy(), first)


def test_a_printed_key_in_a_trace_shows_no_values():
    seen = []
    ts.jit(lambda k: seen.append(repr(k)) or ts.random.uniform(k))(KEY)
    assert seen == ["Key()"]


def test_draws_have_derivatives_in_their_parameters():
    low, high = torch.tensor(-1.0), torch.tensor([1.0, 2.0, 5.0])
    unit = ts.device_get(ts.random.uniform(KEY, (3,)))
    f = lambda low, high: ts.random.uniform(KEY, (3,), minval=low, maxval=high).sum()  # noqa: E731
    by_low, by_high = torch.func.grad(f, argnums=(0, 1))(low, high)
    np.testing.assert_allclose(ts.device_get(by_low), (1 - unit).sum(), rtol=1e-6)
    np.testing.assert_allclose(ts.device_get(by_high), unit, rtol=1e-6)
    loss = ts.jit(ts.grad(lambda w, k: (w * ts.random.normal(k, (3,))).sum()))
    np.testing.assert_array_equal(loss(torch.ones(3), KEY).numpy(), ts.random.normal(KEY, (3,)).numpy())


def test_truncated_normal_has_finite_derivatives():
    f = lambda a: ts.random.truncated_normal(KEY, a, torch.tensor(2.0), (50,)).sum()  # noqa: E731
    assert bool(torch.isfinite(ts.device_get(torch.func.grad(f)(torch.tensor(-2.0)))))


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    x = ts.random.normal(ts.random.key(7), (200_000,)).numpy()
    assert (
        abs(x.mean()) < 0.01 and abs(x.std() - 1) < 0.01 and abs((x**3).mean()) < 0.03 and abs((x**4).mean() - 3) < 0.1
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_uniform_of_other_dtypes_lies_in_its_range_and_has_its_mean(dtype):
    x = ts.device_get(ts.random.uniform(KEY, (20_000,), dtype, -2.0, 3.0))
    assert x.dtype == dtype and bool((x >= -2).all()) and abs(x.double().mean() - 0.5) < 0.03
    z = ts.device_get(ts.random.normal(KEY, (20_000,), dtype)).double()
    assert abs(z.mean()) < 0.03 and abs(z.std() - 1) < 0.03


@settings(max_examples=examples(8, 20))
@given(n=st.integers(0, 50), seed=st.integers(0, 1000))
def test_a_permutation_holds_each_number_once(n, seed):
    assert sorted(ts.random.permutation(ts.random.key(seed), n).tolist()) == list(range(n))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_are_shuffled_and_chosen_as_signed_ones(dtype):
    x = torch.arange(12)
    for draw in (
        lambda x: R.permutation(KEY, x),
        lambda x: R.permutation(KEY, x.reshape(4, 3)),
        lambda x: R.permutation(KEY, x.reshape(4, 3), axis=1, independent=True),
        lambda x: R.choice(KEY, x, (5,)),
        lambda x: R.choice(KEY, x, (5,), replace=False),
        lambda x: R.choice(KEY, x.reshape(4, 3), (2,), replace=False),
        lambda x: R.choice(KEY, x, (5,), p=torch.ones(12)),
    ):
        for put in (ts.array, lambda x: x):
            made = ts.device_get(draw(put(x.to(dtype))))
            assert made.dtype is dtype
            torch.testing.assert_close(made.long(), ts.device_get(draw(put(x))))


@pytest.mark.parametrize("low, high", [(-math.inf, 1.0), (-1.0, math.inf), (-math.inf, math.inf)])
def test_a_normal_number_may_be_truncated_on_one_side(low, high):
    """The number of u is the quantile of the normal distribution at erf(low) + u (erf(high) - erf(low))."""
    u = ts.device_get(R.uniform(KEY, (1000,))).double()
    first, last = (math.erf(x / math.sqrt(2)) for x in (low, high))
    expected = torch.erfinv(first + u * (last - first)) * math.sqrt(2)
    made = ts.device_get(R.truncated_normal(KEY, low, high, (1000,)))
    assert bool((made > low).all()) and bool((made < high).all())
    torch.testing.assert_close(made.double(), expected, atol=1e-3, rtol=1e-3)


def test_a_bound_of_ints_may_be_as_large_as_it_likes():
    np.testing.assert_array_equal(
        np.asarray(R.randint(KEY, (9,), 5, 10**400)), np.asarray(R.randint(KEY, (9,), 5, 2**31))
    )


# ---- what is refused ------------------------------------------------------------------------------------------------

REFUSED = {
    "a number as a key": (lambda: R.uniform(0, (3,)), TypeError, r"takes a key.*ts\.random\.key\(0\)"),
    "a float as a key": (lambda: R.normal(0.5), TypeError, "takes a key"),
    "a shape as a key": (lambda: R.normal((3, 4)), TypeError, "the key comes first"),
    "words as a key": (lambda: R.normal(torch.zeros(2, dtype=torch.uint32)), TypeError, "wrap_key_data"),
    "several keys": (lambda: R.uniform(R.split(KEY), (3,)), ValueError, "takes one key.*vmap"),
    "several keys to split": (lambda: R.split(R.split(KEY)), ValueError, "takes one key"),
    "a negative size": (lambda: R.normal(KEY, (-1,)), ValueError, "negative size"),
    "a size that is not an int": (lambda: R.normal(KEY, (1.5,)), TypeError, "shape of normal is an int or a tuple"),
    "an int dtype of floats": (lambda: R.uniform(KEY, (3,), torch.int32), TypeError, "makes floats.*float32"),
    "a signed dtype of bits": (lambda: R.bits(KEY, (3,), torch.int32), TypeError, "unsigned"),
    "ints of 64 bits": (lambda: R.randint(KEY, (3,), 0, 9, torch.int64), TypeError, r"\.long\(\)"),
    "a float bound of ints": (lambda: R.randint(KEY, (3,), 0, 1.5), TypeError, "maxval of randint is an int"),
    "an empty range": (lambda: R.uniform(KEY, (3,), minval=2.0, maxval=1.0), ValueError, "minval=2.0, maxval=1.0"),
    "an empty range of ints": (lambda: R.randint(KEY, (3,), 5, 2), ValueError, "minval=5, maxval=2"),
    "a range of floats without end": (lambda: R.uniform(KEY, (3,), maxval=float("inf")), ValueError, "wider than its"),
    "a range of 16 bits too wide": (
        lambda: R.uniform(KEY, (3,), torch.float16, -6e4, 6e4),
        ValueError,
        "at most 6.55e",
    ),
    "a range of 32 bits too wide": (lambda: R.uniform(KEY, (3,), minval=-3e38, maxval=3e38), ValueError, "maxval=3e"),
    "a -1 of unsigned ints": (lambda: R.rademacher(KEY, (3,), torch.uint8), TypeError, "uint8.*has a -1"),
    "a -1 of bools": (lambda: R.rademacher(KEY, (3,), torch.bool), TypeError, "bool.*has a -1"),
    "a dtype that is none": (lambda: R.rademacher(KEY, (3,), "int32"), TypeError, "int32.*has a -1"),
    "one distribution for different draws": (
        lambda: R.categorical(KEY, torch.zeros(1, 4), shape=(2, 3), replace=False),
        ValueError,
        r"it ends in \(1,\)",
    ),
    "bounds of another shape": (lambda: R.uniform(KEY, (3,), minval=torch.zeros(2)), ValueError, "do not fit"),
    "an int as a probability": (lambda: R.bernoulli(KEY, 1, (3,)), TypeError, "is a float"),
    "a probability above one": (lambda: R.bernoulli(KEY, 1.5, (3,)), ValueError, "0 <= p <= 1"),
    "a mode": (lambda: R.gumbel(KEY, (3,), mode="higher"), ValueError, "no such mode"),
    "more draws than elements": (lambda: R.choice(KEY, 3, (4,), replace=False), ValueError, "4 of 3"),
    "weights of another size": (lambda: R.choice(KEY, 3, (4,), p=torch.ones(2)), ValueError, r"\(2,\), 3"),
    "a dim that is not there": (lambda: R.permutation(KEY, torch.zeros(3), axis=1), ValueError, "no such dim"),
    "a shape that ends otherwise": (lambda: R.categorical(KEY, torch.zeros(3, 4), shape=(2,)), ValueError, "ends in"),
    "a float seed": (lambda: R.key(1.5), TypeError, "a seed is an int"),
    "a key as a seed": (lambda: R.key(KEY), TypeError, "fold_in"),
    "several seeds": (lambda: R.key(torch.arange(3)), ValueError, "vmap"),
    "a seed of 65 bits": (lambda: R.key(2**64), ValueError, "64 bits"),
    "a negative number to fold in": (lambda: R.fold_in(KEY, -1), ValueError, "32 bits"),
    "a float to fold in": (lambda: R.fold_in(KEY, 1.0), TypeError, "an int"),
    "words of another size": (lambda: R.wrap_key_data([1, 2, 3]), ValueError, "two words"),
    "words of another dtype": (lambda: R.wrap_key_data(torch.zeros(2)), TypeError, "uint32"),
    "an index of one key": (lambda: KEY[0], ValueError, "split"),
    "unpacking one key": (lambda: tuple(KEY), ValueError, "split"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_is_refused_with_a_way_out(what):
    call, kind, words_of_it = REFUSED[what]
    with pytest.raises(ts.TinyshardError, match=f"(?s){words_of_it}") as caught:
        call()
    assert isinstance(caught.value, kind)


def test_one_int_is_a_shape_for_every_function_and_numpys_ints_are_bounds():
    draws = {
        "uniform": lambda shape: R.uniform(KEY, shape),
        "uniform of a tensor": lambda shape: R.uniform(KEY, shape, minval=torch.tensor(0.5)),
        "truncated_normal": lambda shape: R.truncated_normal(KEY, -1.0, 1.0, shape),
        "randint": lambda shape: R.randint(KEY, shape, np.int64(-3), np.uint8(9)),
        "bernoulli": lambda shape: R.bernoulli(KEY, 0.5, shape),
        "choice": lambda shape: R.choice(KEY, 7, shape),
        "categorical": lambda shape: R.categorical(KEY, torch.zeros(4), shape=shape),
    }
    for name, call in draws.items():
        np.testing.assert_array_equal(np.asarray(call(5)), np.asarray(call((5,))), err_msg=name)
    np.testing.assert_array_equal(np.asarray(draws["randint"](5)), np.asarray(R.randint(KEY, (5,), -3, 9)))


def test_a_traced_key_cannot_decide_an_if():
    with pytest.raises(TracedValueError):
        ts.jit(lambda k: 1 if ts.random.bernoulli(k) else 0)(KEY)


# ---- a key that is used twice ---------------------------------------------------------------------------------------


@pytest.fixture
def watched():
    ts.config.update("debug_key_reuse", True)
    yield
    ts.config.update("debug_key_reuse", False)


def test_drawing_twice_from_one_key_is_an_error_that_names_both_lines(watched):
    key = ts.random.key(0)
    ts.random.normal(key)
    with pytest.raises(ts.random.KeyReuseError, match=r"(?s)normal in .*test_random\.py.*then uniform in .*split"):
        ts.random.uniform(key)


def test_a_key_that_was_split_is_used_up_and_its_new_keys_are_not(watched):
    key = ts.random.key(0)
    first, second = ts.random.split(key)
    ts.random.normal(first)
    ts.random.normal(second)
    with pytest.raises(ts.random.KeyReuseError):
        ts.random.normal(key)


def test_folding_in_does_not_use_a_key_up_and_a_key_made_again_is_new(watched):
    for _ in range(2):
        key = ts.random.key(0)
        for step in range(3):
            ts.random.normal(ts.random.fold_in(key, step))
        ts.random.normal(key)


def test_a_refused_draw_uses_no_key_up(watched):
    key = ts.random.key(0)
    with pytest.raises(ValueError, match="negative"):
        ts.random.normal(key, (-1,))
    ts.random.normal(key)


def test_without_the_flag_a_key_may_be_used_twice():
    key = ts.random.key(0)
    assert ts.random.normal(key).item() == ts.random.normal(key).item()


def test_a_key_of_eval_shape_can_be_shown():
    assert repr(ts.eval_shape(lambda key: ts.random.split(key, 4), ts.random.key(0))) == "Key(4)"
