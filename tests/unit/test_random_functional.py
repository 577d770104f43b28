"""torch's stateful draws from a key: in modules, in training, under every transformation."""

import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.refusals import assert_refused
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")
KEY = 7
ROWS = 4096

DROPOUTS = {
    "dropout": (lambda x: F.dropout(x, 0.25), (ROWS,), 0.75),
    "torch.dropout": (lambda x: torch.dropout(x, 0.25, True), (ROWS,), 0.75),
    "dropout1d": (lambda x: F.dropout1d(x, 0.5), (ROWS, 2, 3), 0.5),
    "dropout1d, no batch": (lambda x: F.dropout1d(x, 0.5), (ROWS, 3), 0.5),
    "dropout2d": (lambda x: F.dropout2d(x, 0.5), (ROWS, 2, 3, 1), 0.5),
    "dropout3d": (lambda x: F.dropout3d(x, 0.5), (ROWS, 2, 1, 3, 1), 0.5),
    "a module": (torch.nn.Dropout(0.25), (ROWS,), 0.75),
}


def key():
    return ts.random.key(KEY)


@pytest.mark.parametrize("name", DROPOUTS)
def test_a_dropout_zeroes_its_share_and_scales_the_rest(name):
    fn, shape, share = DROPOUTS[name]
    x = torch.ones(shape)
    got = ts.device_get(ts.random.functional(fn, key())(ts.array(x)))
    kept = got != 0
    torch.testing.assert_close(got[kept], (x / share)[kept])
    drawn = kept.reshape(ROWS, -1)[:, :1] if len(shape) < 3 else kept.reshape(ROWS, 2, -1)
    assert abs(float(drawn.float().mean()) - share) < 0.03
    if len(shape) > 1:  # a channel as a whole
        assert torch.equal(kept, kept.reshape(*shape[:-1], shape[-1])[..., :1].expand(shape))


def test_alpha_dropout_keeps_mean_and_variance():
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    got = ts.device_get(ts.random.functional(lambda x: F.alpha_dropout(x, 0.3, True), key())(ts.array(x)))
    assert abs(float(got.mean())) < 0.02
    assert abs(float(got.var()) - 1) < 0.02


def test_attention_with_dropout_is_attention_with_that_mask():
    q, k, v = torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0))

    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.5, is_causal=True)

    got = ts.random.functional(attend, key())(*map(ts.array, (q, k, v)))
    mask = ts.device_get(ts.random.bernoulli(ts.random.fold_in(key(), 0), 0.5, (2, 4, 6, 6)))
    scores = (q @ k.mT / 8**0.5).masked_fill(torch.ones(6, 6).triu(1).bool(), float("-inf"))
    torch.testing.assert_close(ts.device_get(got), (scores.softmax(-1) * mask / 0.5) @ v)


DRAWS = {
    "rand": (lambda: torch.rand(ROWS), 0.5, 1 / 12),
    "rand of a tuple": (lambda: torch.rand((ROWS, 1), dtype=torch.float64), 0.5, 1 / 12),
    "randn": (lambda: torch.randn(ROWS, 1), 0, 1),
    "rand_like": (lambda: torch.rand_like(torch.empty(ROWS)), 0.5, 1 / 12),
    "randn_like": (lambda: torch.randn_like(torch.empty(ROWS), dtype=torch.float64), 0, 1),
    "randint": (lambda: torch.randint(4, (ROWS,)), 1.5, 1.25),
    "randint from": (lambda: torch.randint(1, 5, (ROWS,)), 2.5, 1.25),
    "randint_like": (lambda: torch.randint_like(torch.empty(ROWS), 4), 1.5, 1.25),
    "bernoulli": (lambda: torch.bernoulli(torch.full((ROWS,), 0.25)), 0.25, 3 / 16),
    "normal": (lambda: torch.normal(2.0, 3.0, (ROWS,)), 2, 9),
    "normal of tensors": (lambda: torch.normal(torch.full((ROWS,), 2.0), torch.tensor(3.0)), 2, 9),
    "bernoulli_": (lambda: torch.empty(ROWS).bernoulli_(0.25), 0.25, 3 / 16),
    "uniform_": (lambda: torch.empty(ROWS).uniform_(1, 3), 2, 1 / 3),
    "normal_": (lambda: torch.empty(ROWS).normal_(2, 3), 2, 9),
    "exponential_": (lambda: torch.empty(ROWS).exponential_(2), 0.5, 0.25),
    "init.normal_": (lambda: torch.nn.init.normal_(torch.empty(ROWS), std=2.0), 0, 4),
    "init.uniform_": (lambda: torch.nn.init.uniform_(torch.empty(ROWS), 1, 3), 2, 1 / 3),
    "init.xavier_normal_": (lambda: torch.nn.init.xavier_normal_(torch.empty(64, 64)), 0, 1 / 64),
    "a new layer": (lambda: torch.nn.Linear(64, 64).weight.detach(), 0, 1 / 192),
    "gumbel_softmax": (lambda: F.gumbel_softmax(torch.zeros(ROWS // 2, 2), tau=1e-6), 0.5, 0.25),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_have_torchs_moments_shapes_and_dtypes(name):
    fn, mean, variance = DRAWS[name]
    plain = fn()
    draw = ts.random.functional(fn, key())
    got = ts.device_get(draw())
    assert (got.shape, got.dtype) == (plain.shape, plain.dtype)
    assert abs(float(got.double().mean()) - mean) < 5 * (variance / ROWS) ** 0.5
    assert abs(float(got.double().var()) / variance - 1) < 0.15
    assert torch.equal(ts.device_get(draw()), got)
    assert torch.equal(ts.device_get(ts.jit(lambda: ts.random.functional(fn, key())())()), got)


def test_a_layer_of_a_transformer_draws_its_masks_from_the_key():
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    x = ts.array(torch.randn(4, 6, 8))
    params = ts.device_put({name: p.detach() for name, p in layer.named_parameters()})
    f = ts.jit(lambda key, x: ts.random.functional(lambda x: torch.func.functional_call(layer, params, (x,)), key)(x))
    first, again, other = (ts.device_get(f(ts.random.key(seed), x)) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.allclose(first, other)
    quiet = layer.eval()(ts.device_get(x)).detach()
    mean = torch.stack([ts.device_get(f(ts.random.key(seed), x)) for seed in range(2, 40)]).mean(0)
    assert float(torch.corrcoef(torch.stack([mean.flatten(), quiet.flatten()]))[0, 1]) > 0.9


def test_randperm_is_a_permutation():
    got = ts.device_get(ts.random.functional(lambda: torch.randperm(50), key())())
    assert sorted(got.tolist()) == list(range(50)) != got.tolist()


NET = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.GELU(), torch.nn.Dropout(0.5))


def loss(params, x, key):
    def forward(x):
        return torch.func.functional_call(NET, params, (x,))

    return ts.random.functional(forward, key)(x).square().sum()


def test_a_training_step_with_dropout_is_the_same_on_every_mesh_and_eager():
    params = {name: p.detach() for name, p in NET.named_parameters()}
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    eager = ts.value_and_grad(loss)(ts.device_put(params), ts.array(x), key())
    for shape in ((8,), (2, 4)):
        mesh = ts.make_mesh(shape, ("a", "b")[: len(shape)])
        rows = ts.device_put(x, ts.NamedSharding(mesh, P("a")))
        got = ts.jit(ts.value_and_grad(loss))(params, rows, key())
        for a, b in zip(ts.tree.leaves(ts.device_get(got)), ts.tree.leaves(ts.device_get(eager)), strict=True):
            torch.testing.assert_close(a, b)
    other = ts.value_and_grad(loss)(params, x, ts.random.key(8))[0]
    assert float(other) != float(eager[0])


def test_two_dropouts_of_one_call_draw_apart():
    x = ts.array(torch.ones(64))
    first, second = ts.random.functional(lambda x: (F.dropout(x), F.dropout(x)), key())(x)
    assert not torch.equal(ts.device_get(first), ts.device_get(second))


def test_under_vmap_each_example_may_have_a_key_of_its_own():
    x = torch.ones(3, 64)
    got = ts.vmap(lambda key, row: ts.random.functional(F.dropout, key)(row))(ts.random.split(key(), 3), ts.array(x))
    rows = [ts.random.functional(F.dropout, each)(ts.array(x[0])) for each in ts.random.split(key(), 3)]
    for a, b in zip(ts.device_get(got), ts.device_get(rows), strict=True):
        assert torch.equal(a, b)


def test_without_training_nothing_is_drawn():
    x = torch.ones(8)
    assert ts.random.functional(lambda x: F.dropout(x, training=False), key())(x) is x


def test_arguments_of_torchs_draws_are_followed():
    def drawn(fn):
        return ts.device_get(ts.random.functional(fn, key())())

    assert drawn(lambda: torch.rand(size=(2, 3))).shape == (2, 3)
    assert drawn(lambda: torch.normal(0.0, 1.0, (4,), dtype=torch.float64)).dtype is torch.float64
    assert drawn(lambda: torch.randperm(4)).dtype is torch.int64
    assert drawn(lambda: torch.randperm(4, dtype=torch.int32)).dtype is torch.int32
    assert drawn(lambda: torch.randint(size=(3,), high=5)).shape == (3,)


REFUSED = {
    "not a key": (lambda: ts.random.functional(F.dropout, 0), ts.DtypeError, "the function comes first"),
    "arguments swapped": (lambda: ts.random.functional(key(), F.dropout), ts.DtypeError, "the function comes first"),
    "several keys": (
        lambda: ts.random.functional(F.dropout, ts.random.split(key())),
        ts.errors.DrawError,
        "(2,)",
    ),
    "out": (lambda: called(lambda: torch.rand(3, out=torch.empty(3))), ts.StatefulRandomError, "without out="),
    "a generator": (
        lambda: called(lambda: torch.rand(3, generator=torch.Generator())),
        ts.StatefulRandomError,
        "without generator=",
    ),
    "a range of 64 bits": (lambda: called(lambda: torch.randint(0, 1 << 40, (3,))), ts.errors.DrawError, "int32"),
    "a probability": (lambda: called(lambda: F.dropout(torch.ones(3), 1.5)), ts.errors.DrawError, "p=1.5"),
}


def called(fn):
    return ts.random.functional(fn, key())()


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_drawn_is_refused_in_words(name):
    call, kind, word = REFUSED[name]
    assert_refused(call, kind, [word])
