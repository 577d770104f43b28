"""Layouts in, layout and bytes out, of lesson 04: counts worked out by hand; every control changes the picture."""

import pytest

from course.widgets import layout_table
from tinyshard import P


def first_line(**choices):
    return layout_table().choose(**choices).text.splitlines()[0]


def test_rows_by_columns_need_no_communication_and_share_the_work_by_eight():
    # 2 · 64³ = 524,288 operations in all
    assert layout_table().text == (
        "P('a') @ P(None, 'b') -> P('a', 'b'): 0 bytes sent, 65,536 flops by each device; no collectives\n"
        "program on 8 devices, axes a=4 x b=2\n"
        "  %0: f32[16, 64] = input\n"
        "  %1: f32[64, 32] = input\n"
        "  %2: f32[16, 32] = aten.mm.default(%0, %1)\n"
        "  return %2"
    )


def test_a_cut_contracted_dim_costs_an_all_reduce_of_the_result():
    # 64 · 64 · 4 bytes, of which a device of two sends 2 · 1/2
    expected = "P(None, 'b') @ P('b') -> P(): 16,384 bytes sent, 262,144 flops by each device; all_reduce over b"
    assert first_line(left=P(None, "b"), right=P("b")) == expected


def test_a_result_that_is_wanted_in_parts_costs_half_of_that():
    line = first_line(left=P(None, "b"), right=P("b"), result=P("b"))
    assert line.endswith("-> P('b'): 8,192 bytes sent, 262,144 flops by each device; reduce_scatter over b")


def test_large_operands_cost_more():
    # 4096 · 4096 · 4 bytes · 2 · 1/2
    assert "67,108,864 bytes sent" in first_line(left=P(None, "b"), right=P("b"), size=4096)


def test_the_picture_has_the_three_layouts_the_cost_and_the_program():
    svg = layout_table().choose(left=P(None, "b"), right=P("b")).svg
    for words in ("left: P(None, 'b')", "right: P('b')", "result: P()", "16,384 bytes sent", "all_reduce over b"):
        assert words in svg
    assert "%3: f32[64, 64] = all_reduce(%2, over=b, op=sum)" in svg


@pytest.mark.parametrize(
    "choice",
    [{"function": "left + right"}, {"left": P()}, {"right": P("b")}, {"result": P()}, {"size": 4096}],
)
def test_every_control_changes_picture_and_words(choice):
    before = layout_table()
    after = layout_table().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text
