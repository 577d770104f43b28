"""The text of a rule, what it is for tensors of given shapes, and the rules that are refused as they are made."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tinyshard as ts
from tinyshard.core.types import ShapedType
from tinyshard.partition.rule import RuleError, letters, parsed
from tinyshard.partition.rule_text import in_words
from tinyshard.partition.rules import RULES, Call, rule_of

aten = torch.ops.aten
Shapes = list[tuple[int, ...]]

TEXTS: dict[str, tuple[str, Shapes, Shapes, str]] = {
    "a product": ("i k, k j -> i j +k", [(2, 3), (3, 4)], [(2, 4)], "i k, k j -> i j +k"),
    "further dims": ("... [d] -> ... [d]", [(2, 3, 4)], [(2, 3, 4)], "a b [d] -> a b [d]"),
    "no further dims": ("... [d] -> ... [d]", [(4,)], [(4,)], "[d] -> [d]"),
    "further dims are counted from the last": ("..., ... -> ...", [(2, 3), (3,)], [(2, 3)], "a b, b -> a b"),
    "letters that the text has are not taken again": ("[v] b, ... -> ... b", [(9, 2), (4, 3)], [(4, 3, 2)],
                                                     "[v] b, a c -> a c b"),
    "a dim of size 1 is repeated": ("i j, i j -> i j", [(2, 3), (1, 3)], [(2, 3)], "i j, _ j -> i j"),
    "dims of one factor and two sizes are whole": ("i j -> i j", [(4, 3)], [(2, 3)], "[i] j -> [i] j"),
    "whole dims": ("n _ * -> n _ *", [(2, 3, 4, 5)], [(2, 3, 4, 5)], "n _ _ _ -> n _ _ _"),
    "a sum over further dims": ("... e -> e +...", [(2, 3, 4)], [(4,)], "a b e -> e +a +b"),
    "the same on each device": ("n c -> n +c, =n =c", [(2, 3)], [(2,), ()], "n c -> n +c, =n =c"),
    "a part of a maximum": ("k -> max:k", [(3,)], [()], "k -> max:k"),
}  # fmt: skip


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_becomes_the_rule_of_a_call(name: str) -> None:
    text, shapes, results, want = TEXTS[name]
    assert str(parsed(text, shapes, results)) == want


def test_a_dim_of_several_factors_is_written_in_brackets() -> None:
    rule = parsed("a (b c) -> (a b) c", [(2, 12)], [(6, 4)], sizes={"a": 2, "b": 3, "c": 4})
    assert rule.operands == ((("a",), ("b", "c")),)
    assert str(rule) == "a (b c) -> (a b) c"


def test_a_tensor_that_is_not_given_has_no_place() -> None:
    assert str(parsed("n, n -> n", [(2,), None], [(2,)])) == "n -> n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("i k, k j -> i j", "result 0 says nothing of the factor k"),
        ("i j -> i +j, i", "result 1 says nothing of the factor j"),
        ("i i -> i", "a tensor has the factor i twice"),
        ("i -> i j", "a rule does not fit a tensor"),
    ],
)
def test_a_rule_whose_result_says_nothing_of_a_factor_is_refused(text: str, says: str) -> None:
    left, right = text.split("->")
    shapes = [(4,) * len(t.split()) for t in left.split(",")]
    results = [(4,) * sum(t[0] != "+" for t in r.split()) for r in right.split(",")]
    if "fit" in says:
        results = [(4,)]
    with pytest.raises(RuleError, match=says):
        parsed(text, shapes, results)


def test_names_of_factors_do_not_end() -> None:
    names = letters(60, without="a")
    assert len(set(names)) == 60
    assert "a" not in names


def rule_for(op: Any, *args: Any, **kwargs: Any) -> str:
    made = op(*args, **kwargs)
    results = [made] if isinstance(made, torch.Tensor) else made
    types = [ShapedType(tuple(x.shape), x.dtype) for x in results]
    return str(rule_of(Call.of(op, args, kwargs, types)))


X = torch.zeros(8, 4, 16)
OF_CALLS = {
    "view": (lambda: rule_for(aten.view.default, X, [32, 4, 4]), "a b (c d) -> (a b) c d"),
    "view with a common factor": (lambda: rule_for(aten.view.default, torch.zeros(6, 4), [4, 6]), "a _ -> a _"),
    "sum": (lambda: rule_for(aten.sum.dim_IntList, X, [-1]), "a b c -> a b +c"),
    "sum of bools": (lambda: rule_for(aten.sum.dim_IntList, X, [0], dtype=torch.bool), "a b c -> b c max:a"),
    "sum of all": (lambda: rule_for(aten.sum.dim_IntList, X, []), "a b c -> +a +b +c"),
    "kept dims": (lambda: rule_for(aten.amax.default, X, [1], True), "a b c -> a _ c max:b"),
    "index": (lambda: rule_for(aten.index.Tensor, X, [None, torch.arange(3)]), "a [b] c, n0 -> a n0 c"),
    "mask": (lambda: rule_for(aten.index.Tensor, X, [X[:, 0, 0] > 0]), "None"),
    "embedding": (lambda: rule_for(aten.embedding.default, X[0], torch.zeros(2, 3, dtype=torch.long)),
                  "[v] e, a b -> a b e"),
    "pixel_shuffle": (lambda: rule_for(aten.pixel_shuffle.default, torch.zeros(2, 12, 3, 5), 2),
                      "a (c [i] [j]) h w -> a c (h [i]) (w [j])"),
    "layer_norm": (lambda: rule_for(aten.native_layer_norm.default, X, [16], None, None, 1e-5),
                   "a b _ -> a b _, a b _, a b _"),
}  # fmt: skip


@pytest.mark.parametrize("name", OF_CALLS)
def test_a_rule_depends_on_the_arguments_of_the_call(name: str) -> None:
    made, want = OF_CALLS[name]
    assert made() == want


def test_heads_of_keys_for_groups_of_queries_get_a_sum_as_their_gradient() -> None:
    attend = aten._scaled_dot_product_flash_attention_for_cpu.default
    q, k = torch.zeros(2, 6, 8, 4), torch.zeros(2, 3, 8, 4)
    out, lse = attend(q, k, k)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    args = (q, q, k, k, out, lse, 0.0, False)
    types = [ShapedType(tuple(x.shape), x.dtype) for x in (q, k, k)]
    assert str(rule_of(Call.of(backward, args, {}, types))).endswith("-> b (h r) _ _, b h _ _ +r, b h _ _ +r")


def test_each_row_is_of_an_op_of_torch_or_of_our_own() -> None:
    for name in RULES:
        namespace, packet, overload = name.split(".")
        assert overload in getattr(getattr(torch.ops, namespace), packet).overloads(), name


def test_a_line_says_what_a_factor_means() -> None:
    rule = parsed("a (b c) [d] _ -> (a b) c, =a =b =c", [(2, 12, 5, 5)], [(6, 4), ()], sizes={"a": 2, "b": 3, "c": 4})
    has = "each device has its block of result 0 and the whole result 1"
    assert in_words(rule) == [
        f"a: cut along an axis, {has}",
        f"b: cut along an axis, where a is cut into single elements, {has}",
        f"c: cut along an axis, where b is cut into single elements, {has}",
        "d: must be whole",
        "_: must be whole",
    ]


def test_the_rules_of_a_function_are_those_of_its_ops_in_order() -> None:
    rules = ts.debug.rule(
        lambda x, w, b: torch.nn.functional.linear(x, w, b).relu(), X, torch.zeros(3, 16), torch.zeros(3)
    )
    assert [r.op for r in rules if r.op in ("aten.mm.default", "aten.relu.default")] == [
        "aten.mm.default",
        "aten.relu.default",
    ]
    assert "k: cut along an axis, each device has a part of the sum" in repr(rules)


def test_an_op_without_a_rule_says_so() -> None:
    assert repr(ts.debug.rule(torch.histc, torch.zeros(8))) == "aten.histc.default: no rule, its operands are gathered"


def test_an_array_and_a_shape_will_do_as_operands() -> None:
    ts.init(devices=2, runtime="local")
    try:
        x = ts.device_put(torch.zeros(4, 6), ts.devices()[1])
        spec = ts.ShapeDtypeStruct((6, 2), torch.float32)
        assert str(ts.debug.rule(torch.mm, x, spec)[0].rule) == "i k, k j -> i j +k"
    finally:
        ts.shutdown()
