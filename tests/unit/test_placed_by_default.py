"""What is placed nowhere may move to where it is needed; what is made where it is wanted has its own size there."""

import numpy as np
import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


def test_device_put_without_a_device_commits_nothing() -> None:
    tree = ts.device_put({"tensor": torch.ones(8), "array": np.ones(8), "number": 1.0, "again": ts.array([1.0])})
    assert [x.committed for x in tree.values()] == [False] * 4
    there = ts.device_put(torch.ones(8), ts.devices()[3])
    assert all((x + there).devices() == {ts.devices()[3]} for x in tree.values())


def test_a_draw_that_is_repeated_along_a_cut_dim_is_made_whole_on_each_device() -> None:
    rows = ts.NamedSharding(ts.make_mesh((8,), "a"), ts.P("a"))
    first, second = ts.random.split(ts.random.key(5))
    f = ts.jit(lambda a, b: ts.random.uniform(a, (1, 6)) * ts.random.normal(b, (8, 6)), out_shardings=rows)
    expected = ts.random.uniform(first, (1, 6)).numpy() * ts.random.normal(second, (8, 6)).numpy()
    np.testing.assert_allclose(f(first, second).numpy(), expected, rtol=1e-6)
    assert not f.lower(first, second).compile().program.communicates
