"""ts.random against JAX 0.10: values recorded by tests/parity/record.py."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

import tinyshard as ts

_FOLDER = Path(__file__).parent.parent / "parity"
_spec = importlib.util.spec_from_file_location("parity_cases", _FOLDER / "cases.py")
cases = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(cases)

EXACT = {"bits", "split", "fold_in", "uniform", "randint", "bernoulli", "rademacher", "permutation", "choice"}
EXACT |= {"categorical", "geometric", "poisson", "binomial", "multinomial"}


def recorded():
    """(mode, case as text) -> the values that JAX gave."""
    with np.load(_FOLDER / "jax_0_10.npz") as file:
        described, values = json.loads(file["described"].tobytes()), file["values"].tobytes()
    found, at = {}, 0
    for mode, case, dtype, shape in described:
        count = int(np.prod(shape))
        found[mode, case] = np.frombuffer(values, dtype, count, at).reshape(shape)
        at += count * np.dtype(dtype).itemsize
    assert at == len(values)
    return found


def drawn(function, spec, arguments):
    key = ts.random.key(spec[0])
    for number in spec[1]:
        key = ts.random.fold_in(key, number)
    given = {}
    for name, value in arguments:
        value = getattr(torch, value) if name == "dtype" else torch.tensor(value) if isinstance(value, list) else value
        if isinstance(value, torch.Tensor) and value.dtype == torch.int64:
            value = value.int()
        given[name] = value
    made = getattr(ts.random, function)(key, **given)
    return ts.random.key_data(made) if isinstance(made, ts.random.Key) else ts.device_get(made)


@pytest.fixture(scope="module")
def jax_values():
    return recorded()


@pytest.fixture
def mode(request):
    ts.config.update("threefry_partitionable", request.param)
    yield request.param
    ts.config.update("threefry_partitionable", True)


def test_every_case_was_recorded_in_both_modes(jax_values):
    assert set(jax_values) == {(mode, repr(case)) for mode in cases.MODES for case in cases.CASES}


@pytest.mark.parametrize("mode", cases.MODES, ids=["partitionable", "original"], indirect=True)
@pytest.mark.parametrize("function", sorted({case[0] for case in cases.CASES}))
def test_values_are_those_of_jax(function, mode, jax_values):
    ts.init(devices=1, runtime="local")
    for case in cases.CASES:
        if case[0] != function:
            continue
        ours, theirs = drawn(*case), jax_values[mode, repr(case)]
        assert tuple(ours.shape) == theirs.shape, case
        if ours.dtype == torch.bfloat16:
            ours, theirs = ours.double(), torch.from_numpy(theirs.astype(np.int16)).view(torch.bfloat16).double()
            ours, theirs = ours.numpy(), theirs.numpy()
        else:
            assert ours.numpy().dtype == theirs.dtype, case
            ours = ours.numpy()
        if function in EXACT:
            np.testing.assert_array_equal(ours, theirs, err_msg=repr(case))
        else:
            # 16-bit formulas round after each of several operations: two steps of float16, one of bfloat16
            step = {"float16": 2.0**-9, "bfloat16": 2.0**-7}.get(dict(case[2]).get("dtype"), 2e-6)
            np.testing.assert_allclose(ours, theirs, rtol=step, atol=step, err_msg=repr(case))
