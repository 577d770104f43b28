"""The example in CONTRIBUTING.md: a collective, added by one file."""

import re
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import tinyshard as ts

PAGE = Path(__file__).parents[2] / "CONTRIBUTING.md"
ROWS = torch.tensor([[1.5, 0.0], [-2.0, 3.0], [0.5, 2.0], [4.0, 1.0], [1.0, 2.0], [2.0, 1.5], [1.0, -1.0], [3.0, 1.0]])


def example() -> str:
    (text,) = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    return text


@pytest.fixture(scope="module")
def pprod():
    module = ModuleType("pprod")
    exec(compile(example(), "pprod.py", "exec"), module.__dict__)
    return module.pprod


def others(x: np.ndarray) -> np.ndarray:
    """For each row the product of the other rows."""
    return np.stack([np.delete(x, i, 0).prod(0) for i in range(len(x))])


def test_the_example_is_short() -> None:
    assert len(example().splitlines()) <= 60


@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("transform", [ts.pmap, ts.vmap])
def test_it_is_the_product_with_its_gradient(pprod, transform, count: int) -> None:
    ts.init(devices=8, runtime="local")
    x = ROWS[:count]
    over = transform(lambda v: pprod(v, "i"), axis_name="i")
    np.testing.assert_allclose(ts.device_get(over(x)), np.broadcast_to(x.numpy().prod(0), x.shape), rtol=1e-6)
    weights = torch.arange(1.0, count + 1)[:, None]
    got = ts.grad(lambda v: (over(v) * weights).sum())(x)
    np.testing.assert_allclose(ts.device_get(got), others(x.numpy()) * weights.sum().numpy(), rtol=1e-6)
    moved = ts.jvp(over, (x,), (torch.ones_like(x),))[1]
    np.testing.assert_allclose(ts.device_get(moved), np.broadcast_to(others(x.numpy()).sum(0), x.shape), rtol=1e-6)


def test_its_program_has_one_all_reduce(pprod) -> None:
    ts.init(devices=8, runtime="local")
    text = ts.pmap(lambda v: pprod(v, "i"), axis_name="i").lower(ROWS).compile().as_text()
    assert text.count("all_reduce") == 1 and "op=product" in text and "all_gather" not in text


def test_over_two_axes_of_which_vmap_binds_one(pprod) -> None:
    ts.init(devices=8, runtime="local")
    x = ROWS.reshape(4, 2, 2)
    both = ts.pmap(ts.vmap(lambda v: pprod(v, ("i", "j")), axis_name="j"), axis_name="i")
    np.testing.assert_allclose(ts.device_get(both(x)), np.broadcast_to(x.numpy().prod((0, 1)), x.shape), rtol=1e-6)
