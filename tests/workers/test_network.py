"""Seed 003's network on worker processes: the losses of NumPy, the pictures, the collectives of each step."""

import numpy as np
import pytest

from tests import network


@pytest.mark.on_gloo
def test_losses_on_workers_are_those_of_numpy_and_layouts_stay(pool, capsys):
    np.testing.assert_allclose(network.run(capsys), network.by_hand(*network.init_model()), rtol=0, atol=1e-4)
