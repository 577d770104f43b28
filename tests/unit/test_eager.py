"""Wrong uses of ops on Arrays: each a clear error at once; and in-place ops of torch's own, which are none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tinyshard as ts
from tests.expressions import check_same


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


VALUES = torch.arange(8.0)


@pytest.fixture
def x() -> Tensor:
    return ts.device_put(VALUES, ts.sharding.PositionalSharding(ts.devices()))


IN_PLACE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "add_": (lambda x: x.add_(1), r"torch\.add\(x"),
    "mul_": (lambda x: x.mul_(2), r"torch\.mul\(x"),
    "zero_": (lambda x: x.zero_(), r"torch\.zeros_like"),
    "clamp_": (lambda x: x.clamp_(min=0), r"torch\.clamp\(x"),
    "squeeze_": (lambda x: x.squeeze_(), r"torch\.squeeze\(x"),
    "relu": (lambda x: F.relu(x, inplace=True), r"torch\.relu\(x"),
    "a view": (lambda x: x[2:4].add_(1), r"torch\.add\(x"),
    "out=": (lambda x: torch.sin(torch.ones(8), out=x), r"y = torch\.sin"),
    "an index": (lambda x: x.__setitem__(0, 5), "x.at\\[index].set\\(value\\)"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_change_in_place_is_refused_and_names_the_other_op(name: str, x: Tensor) -> None:
    change, instead = IN_PLACE[name]
    with pytest.raises(ts.ImmutableError, match=instead):
        change(x)
    assert torch.equal(ts.device_get(x), VALUES)


def test_an_augmented_assignment_is_refused(x: Tensor) -> None:
    with pytest.raises(ts.ImmutableError, match="in place"):
        x += 1
    assert torch.equal(ts.device_get(x), VALUES)


OWN: dict[str, Callable[[Tensor], Tensor]] = {
    "a vector times a matrix": lambda x: x @ torch.ones(8, 3),
    "linear of a vector": lambda x: F.linear(x, torch.ones(2, 8), torch.ones(2)),
    "isclose": lambda x: torch.isclose(x, x + 1),
    "quantile": lambda x: torch.quantile(x, 0.3),
    "rms_norm": lambda x: F.rms_norm(x, [8]),
    "gradient of maximum": lambda x: torch.func.grad(lambda v: torch.maximum(v, torch.tensor(3.0)).sum())(x),
}


@pytest.mark.parametrize("name", OWN)
def test_what_torch_changes_of_its_own_is_no_error(name: str, x: Tensor) -> None:
    check_same(OWN[name](x), OWN[name](VALUES), name)
    assert torch.equal(ts.device_get(x), VALUES)


RANDOM: dict[str, Callable[[Tensor], Tensor]] = {
    "dropout": lambda x: F.dropout(x, 0.5),
    "rand_like": torch.rand_like,
    "bernoulli": lambda x: torch.bernoulli(x / 8),
    "multinomial": lambda x: torch.multinomial(x, 2),
    "normal_": lambda x: x.normal_(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_stateful_randomness_is_refused_and_names_ts_random(name: str, x: Tensor) -> None:
    with pytest.raises(ts.StatefulRandomError, match=r"ts\.random"):
        RANDOM[name](x)


def test_dropout_that_drops_nothing_is_no_randomness(x: Tensor) -> None:
    check_same(F.dropout(x, 0.5, training=False), VALUES, "dropout in evaluation")


def test_committed_operands_on_different_devices_print_both_lists(x: Tensor) -> None:
    few = ts.device_put(VALUES, ts.sharding.PositionalSharding(ts.devices()[:4]))
    with pytest.raises(ts.ShardingError) as caught:
        x + few
    said = str(caught.value)
    assert "Devices of all `Array` inputs and outputs should be the same." in said
    assert "array device ids [0, 1, 2, 3, 4, 5, 6, 7] on platform CPU" in said
    assert "another array's device ids [0, 1, 2, 3] on platform CPU" in said


def test_committed_operands_in_different_orders_print_both_lists(x: Tensor) -> None:
    turned = ts.device_put(VALUES, ts.sharding.PositionalSharding(ts.devices()[::-1]))
    with pytest.raises(ValueError, match=r"\[7, 6, 5, 4, 3, 2, 1, 0\]"):
        x + turned


def test_uncommitted_operands_meet_committed_ones_anywhere(x: Tensor) -> None:
    check_same(ts.array(VALUES) + x, VALUES + VALUES, "uncommitted with committed")
    assert (ts.array(VALUES) + x).sharding.is_equivalent_to(x.sharding, 1)
    one = ts.device_put(VALUES, ts.devices()[3])
    assert (ts.array(VALUES) * one).devices() == {ts.devices()[3]}


SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "add": lambda x: x + torch.ones(3),
    "mm": lambda x: x.reshape(2, 4) @ torch.ones(3, 2),
    "reshape": lambda x: x.reshape(3, 3),
    "index": lambda x: x[9],
    "dim": lambda x: x.sum(4),
    "cat": lambda x: torch.cat([x, torch.ones(2, 2)]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_that_does_not_fit_is_torchs_own_error_at_once(name: str, x: Tensor) -> None:
    with pytest.raises((RuntimeError, IndexError)) as want:
        SHAPES[name](VALUES)
    with pytest.raises(want.type) as caught:
        SHAPES[name](x)
    assert not isinstance(caught.value, ts.TinyshardError)


def test_item_and_equal_give_python_values(x: Tensor) -> None:
    assert x.sum().item() == 28.0
    assert torch.equal(x, ts.device_get(x))
    assert bool((x < 8).all())
    assert float(x.max()) == 7.0
    assert VALUES[x[3].long()] == 3.0


def test_another_torch_device_is_refused(x: Tensor) -> None:
    with pytest.raises(ts.DtypeError, match="device_put"):
        torch.ops.aten._to_copy.default(x, device=torch.device("cuda"))


def test_a_committed_operand_commits_the_result(x: Tensor) -> None:
    assert (x + 1).committed
    assert not (ts.array(VALUES) + 1).committed


def test_the_operand_is_as_it_was_when_the_op_was_called(x: Tensor) -> None:
    host = torch.ones(8)
    y = x + host
    host.zero_()
    assert torch.equal(ts.device_get(y), VALUES + 1)


def test_one_op_on_two_platforms_does_not_share_what_says_where_its_results_are():
    from tinyshard.compile.executable import DeviceAssignment
    from tinyshard.dispatch import eager

    x = torch.ones(4)
    for name in ("cpu", "gpu"):
        executable = eager._executable(
            torch.ops.aten.sin.default, (x,), {}, [x], DeviceAssignment((0,), name, None, False)
        )
        assert [layout.platform for layout, _ in executable.results] == [name]
