"""torch.distributions in traced and mapped functions: the checks of their parameters would read values there."""

import threading

import pytest
import torch
import torch.distributions as D

import tinyshard as ts
from tests.extent import every

MAKERS = {
    "normal": lambda x: D.Normal(x, x.exp()).log_prob(x * 2).sum(),
    "gamma": lambda x: D.Gamma(x.exp(), 2.0).log_prob(x.square() + 1).sum(),
    "categorical": lambda x: D.Categorical(logits=x).log_prob(torch.tensor(1)),
    "dirichlet": lambda x: D.Dirichlet(x.exp()).log_prob(torch.softmax(x, 0)),
    "multivariate": lambda x: D.MultivariateNormal(x, torch.diag(x.exp())).log_prob(x + 1),
    "kl": lambda x: D.kl_divergence(D.Normal(x, 1.0), D.Normal(0.0, x.exp())).sum(),
    "independent": lambda x: D.Independent(D.Laplace(x, 1.0), 1).log_prob(x.sin()),
}


@pytest.mark.parametrize("name", every(3, MAKERS))
def test_densities_and_their_gradients_are_torchs(name):
    function, x = MAKERS[name], torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4)
    values = torch.stack([function(row) for row in x])
    slopes = torch.stack([torch.func.grad(function)(row) for row in x])
    for put in (ts.array, lambda x: x):
        torch.testing.assert_close(ts.device_get(ts.jit(function)(put(x[0]))), values[0])
        torch.testing.assert_close(ts.device_get(ts.vmap(function)(put(x))), values)
        torch.testing.assert_close(ts.device_get(ts.jit(ts.vmap(ts.grad(function)))(put(x))), slopes)


def test_outside_they_check_as_before_and_where_they_are_told_to():
    with pytest.raises(ValueError, match="scale"):
        D.Normal(0.0, torch.tensor(-1.0))
    ts.jit(lambda x: D.Normal(x, 1.0).log_prob(x))(torch.zeros(2))
    with pytest.raises(ZeroDivisionError):
        ts.jit(lambda x: x / 0 if x.shape else 1 / 0)(torch.tensor(1.0))
    with pytest.raises(ValueError, match="scale"):
        D.Normal(0.0, torch.tensor(-1.0))
    with pytest.raises(ts.errors.TracedValueError):
        ts.jit(lambda x: D.Normal(x, x, validate_args=True).log_prob(x))(torch.ones(2))


def test_distributions_are_checked_again_when_the_last_of_several_threads_has_traced():
    """Whichever of two overlapping transformations ends first."""
    inside, ended = threading.Event(), threading.Event()

    def outlasting(x):
        inside.set()
        assert ended.wait(60)
        return x

    def first(x):
        other.start()
        assert inside.wait(60)
        return x

    other = threading.Thread(target=lambda: ts.vmap(outlasting)(torch.ones(2)))
    ts.vmap(first)(torch.ones(2))
    ended.set()
    other.join()
    with pytest.raises(ValueError, match="scale"):
        D.Normal(0.0, torch.tensor(-1.0))
