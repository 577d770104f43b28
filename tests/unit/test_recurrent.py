"""Recurrent layers and cells of torch.nn on Arrays, whose state they make themselves: torch's values and gradients."""

import itertools

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils import rnn
from torch.utils._pytree import tree_leaves

import tinyshard as ts
from tests.extent import mostly_whole
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

MAKERS = {
    "gru": lambda: torch.nn.GRU(3, 6, bidirectional=True),
    "rnn": lambda: torch.nn.RNN(3, 6),
    "relu": lambda: torch.nn.RNN(3, 6, nonlinearity="relu"),
    "lstm": lambda: torch.nn.LSTM(3, 6),
    "projected": lambda: torch.nn.LSTM(3, 6, proj_size=2),
    "gru cell": lambda: torch.nn.GRUCell(3, 6),
    "rnn cell": lambda: torch.nn.RNNCell(3, 6),
    "lstm cell": lambda: torch.nn.LSTMCell(3, 6),
}


def loss(module, x, parameters=None):
    made = module(x) if parameters is None else functional_call(module, parameters, (x,))
    return sum(y.square().sum() for y in tree_leaves(made))


@pytest.mark.filterwarnings("ignore:LSTM with projections")  # torch says that oneDNN has none
@pytest.mark.parametrize("name", mostly_whole(MAKERS, lambda name: name not in ("rnn", "gru cell", "rnn cell")))
def test_values_and_gradients_are_torchs(name):
    torch.manual_seed(0)
    module = MAKERS[name]()
    host = torch.randn(4, 3) if "cell" in name else torch.randn(2, 4, 3)
    mesh = ts.make_mesh((4,), ("i",), devices=ts.devices()[:4])
    x = ts.device_put(host, ts.NamedSharding(mesh, P(*(None,) * (host.dim() - 2), "i")))
    with torch.no_grad():
        for y, expected in zip(tree_leaves(module(x)), tree_leaves(module(host)), strict=True):
            torch.testing.assert_close(ts.device_get(y), expected)
    loss(module, host).backward()
    expected = {key: p.grad for key, p in module.named_parameters()}
    module.zero_grad()
    loss(module, x).backward()
    eager = {key: p.grad for key, p in module.named_parameters()}
    by_grad = ts.grad(lambda p: loss(module, x, p))(dict(module.named_parameters()))
    for made in (eager, by_grad):
        for key, value in expected.items():
            torch.testing.assert_close(torch.as_tensor(ts.device_get(made[key])), value)


def test_a_packed_sequence_and_a_state_of_the_users():
    torch.manual_seed(0)
    module = torch.nn.GRU(3, 6)
    host, state = torch.randn(5, 2, 3), torch.randn(1, 2, 6)
    x = ts.array(host)
    torch.testing.assert_close(ts.device_get(module(x, ts.array(state))[0]).detach(), module(host, state)[0].detach())
    packed = torch.nn.utils.rnn.pack_padded_sequence(host, torch.tensor([5, 3]))
    made, last = module(torch.nn.utils.rnn.PackedSequence(ts.array(packed.data), packed.batch_sizes))
    expected, last_expected = module(packed)
    torch.testing.assert_close(ts.device_get(made.data).detach(), expected.data.detach())
    torch.testing.assert_close(ts.device_get(last).detach(), last_expected.detach())


@pytest.mark.parametrize(
    "lengths, batch_first",
    mostly_whole(
        itertools.product([[6, 5, 2, 1], [2, 6, 1, 5]], [False, True]), lambda row: row[1] == (row[0][0] == 2)
    ),
)
def test_padded_sequences_are_packed_and_padded_again(batch_first, lengths):
    torch.manual_seed(0)
    module, host = torch.nn.LSTM(3, 4, batch_first=batch_first), torch.randn(6, 4, 3)
    host = host.transpose(0, 1).contiguous() if batch_first else host
    mesh = ts.make_mesh((2, 2), ("a", "b"))

    def through(x):
        packed = rnn.pack_padded_sequence(x, lengths, batch_first, enforce_sorted=False)
        made, sizes = rnn.pad_packed_sequence(module(packed)[0], batch_first, padding_value=-2.0, total_length=7)
        return made, sizes, packed

    x = ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", "b"))).requires_grad_()
    host.requires_grad_()
    (made, sizes, packed), (expected, expected_sizes, expected_packed) = through(x), through(host)
    assert isinstance(made, ts.Array)
    assert torch.equal(sizes, expected_sizes)
    assert torch.equal(packed.batch_sizes, expected_packed.batch_sizes)
    assert torch.equal(ts.device_get(packed.data.detach()), expected_packed.data.detach())
    torch.testing.assert_close(ts.device_get(made.detach()), expected.detach())
    weights = list(module.parameters())
    gradients = torch.autograd.grad(made.pow(2).sum(), [x, *weights])
    for made, wanted in zip(gradients, torch.autograd.grad(expected.pow(2).sum(), [host, *weights]), strict=True):
        torch.testing.assert_close(ts.device_get(made), wanted)


def test_lengths_that_cannot_be_packed_are_refused_as_by_torch():
    for lengths, words in (([3, 5], "sorted"), ([5, 0], "greater than 0"), ([5], "batch_size")):
        for x in (torch.ones(5, 2, 3), ts.array(torch.ones(5, 2, 3))):
            with pytest.raises(RuntimeError, match=words):
                rnn.pack_padded_sequence(x, lengths)


def test_packed_steps_without_features_and_of_integers():
    host = torch.tensor([[4, 5, 6], [7, 8, 0]])
    packed = rnn.pack_padded_sequence(ts.array(host), [3, 2], batch_first=True)
    assert ts.device_get(packed.data).tolist() == [4, 7, 5, 8, 6]
    made, lengths = rnn.pad_packed_sequence(packed, batch_first=True, padding_value=-1.0)
    assert made.dtype == torch.int64
    assert ts.device_get(made).tolist() == [[4, 5, 6], [7, 8, -1]]
    assert lengths.tolist() == [3, 2]
