"""A gather is never silent: the text marks it, the costs count it, and a flag makes it say op, line, bytes and why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from tinyshard import P


@pytest.fixture(autouse=True)
def explained() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    ts.config.update("explain_gathers", True)
    yield
    ts.config.update("explain_gathers", False)
    ts.shutdown()


def rows() -> ts.Array:
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.device_put(torch.arange(64.0).reshape(4, 16).sin(), ts.NamedSharding(mesh, P("a", "b")))


def test_the_text_marks_the_gather_of_an_op_that_cannot_keep_its_operand_in_parts() -> None:
    text = ts.jit(lambda x: x.sort(1)[0]).lower(rows()).compile().as_text()
    gathers = [line for line in text.splitlines() if "all_gather" in line]
    why = "b of `a [b] -> a [b], a [b]` must be whole"
    assert [line.split("# ")[1] for line in gathers] == [f"32 bytes, gathered for aten.sort.default: {why}"]


def test_a_gather_that_a_layout_asks_for_is_not_marked() -> None:
    x = rows()
    whole = ts.NamedSharding(ts.make_mesh((4, 2), ("a", "b")), P())
    text = ts.jit(lambda x: x + 1, out_shardings=whole).lower(x).compile().as_text()
    assert "all_gather" in text
    assert "gathered for" not in text


def test_the_costs_count_gathers_by_op_and_say_why() -> None:
    cost = ts.jit(lambda x: (x.sort(1)[0], (x + 1).cumsum(1))).lower(rows()).compile().cost_analysis()
    assert [(g.op, g.why, g.count, g.nbytes) for g in cost.gathers] == [
        ("aten.sort.default", "b of `a [b] -> a [b], a [b]` must be whole", 1, 32),
        ("aten.cumsum.default", "b of `a [b] -> a [b]` must be whole", 1, 32),
    ]
    assert sum(g.nbytes for g in cost.gathers) == cost.nbytes
    assert "gather operands of aten.sort.default: b of `a [b] -> a [b], a [b]` must be whole" in str(cost)


def test_the_flag_says_op_line_bytes_and_why_once_for_each_line(capsys: pytest.CaptureFixture[str]) -> None:
    x = rows()
    for _ in range(3):
        x.sort(1)  # this line
    told = capsys.readouterr().err
    assert told.count("aten.sort.default gathers an operand") == 1
    assert "x.sort(1)  # this line" in told
    assert "all_gather of f32[1, 8] over b, 32 bytes sent by the busiest device" in told
    assert "why:  b of `a [b] -> a [b], a [b]` must be whole" in told


def test_in_a_jitted_function_the_line_is_that_of_the_op(capsys: pytest.CaptureFixture[str]) -> None:
    @ts.jit
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        return y.cumsum(1)  # the line that gathers

    f(rows())
    assert "return y.cumsum(1)  # the line that gathers" in capsys.readouterr().err


@torch.library.custom_op("tinyshard_tests::doubled", mutates_args=())
def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


doubled.register_fake(torch.empty_like)


def test_an_op_without_a_rule_gathers_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    x = rows()
    assert torch.equal(ts.device_get(doubled(x)), 2 * ts.device_get(x))
    assert "why:  there is no rule for it" in capsys.readouterr().err


def test_an_op_whose_shape_depends_on_values_gathers_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    x = rows()
    assert torch.equal(ts.device_get(x[x > 0.5]), ts.device_get(x)[ts.device_get(x) > 0.5])
    assert "the shape of its result depends on values" in capsys.readouterr().err


def test_without_the_flag_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    ts.config.update("explain_gathers", False)
    rows().sort(0)
    assert capsys.readouterr().err == ""
