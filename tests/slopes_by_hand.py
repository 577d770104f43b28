"""Derivatives of collectives, by central differences of the same loss in NumPy."""

import numpy as np
import torch

import tinyshard as ts
from tests.collectives_by_hand import LINEAR

DIFFERENTIABLE = (*LINEAR, "pmax", "pmin")


def weights(shape):
    return np.random.default_rng(5).normal(size=shape)


def sum_of_sines(case, mapped):
    """A loss that is not linear in the collective: each entry of everyone's result has its own weight."""
    w = torch.from_numpy(weights(case.by_hand(case.stack).shape))
    return lambda x: (mapped(lambda v, c: (c * case.call(v, "i").sin()).sum(), axis_name="i")(x, w)).sum()


def slope_by_differences(case, direction):
    """The same loss in NumPy, and its central difference."""
    w = weights(case.by_hand(case.stack).shape)

    def loss(stack):
        return (w * np.sin(case.by_hand(stack))).sum()

    step = 1e-6
    return (loss(case.stack + step * direction) - loss(case.stack - step * direction)) / (2 * step)


def gradient_by_differences(case):
    found = np.zeros_like(case.stack)
    for at in np.ndindex(case.stack.shape):
        unit = np.zeros_like(case.stack)
        unit[at] = 1
        found[at] = slope_by_differences(case, unit)
    return found


def close(got, expected):
    np.testing.assert_allclose(np.asarray(got), np.asarray(expected), rtol=1e-6, atol=2e-7)


def gradients_agree(case):
    """vmap's, pmap's and the differences' gradients of one case, with the derivative outside and inside of the map."""
    expected = gradient_by_differences(case)
    x = case.operand
    close(ts.grad(sum_of_sines(case, ts.vmap))(x), expected)
    close(ts.grad(sum_of_sines(case, ts.pmap))(x), expected)
    # inside, everyone's loss is differentiated by its own value only: the transposed collective adds the others' up
    w = torch.from_numpy(weights(case.by_hand(case.stack).shape))
    own = ts.grad(lambda v, c: (c * case.call(v, "i").sin()).sum())
    close(ts.pmap(own, axis_name="i")(x, w), expected)
    close(ts.vmap(own, axis_name="i")(x, w), expected)
