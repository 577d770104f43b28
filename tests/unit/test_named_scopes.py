"""Names of blocks of code, in texts, profiles and errors; and caches that are emptied."""

import gc

import pytest
import torch

import tinyshard as ts
from tests.refusals import assert_refused
from tinyshard.runtime import lifecycle

pytestmark = pytest.mark.usefixtures("local")
X = torch.arange(8.0)


def scopes(text: str) -> list[tuple[str, str]]:
    """The ops of a text, each with its scope."""
    lines = [line.partition(" = ")[2] for line in text.splitlines() if " = " in line]
    ops = [(line.partition("(")[0], line.partition("# ")[2].partition("in ")[2]) for line in lines]
    return [(op, scope) for op, scope in ops if op.startswith(("aten", "all"))]


def mapped(body):
    return ts.shard_map(body, mesh=ts.make_mesh((4,), ("a",)), in_specs=ts.P("a"), out_specs=ts.P("a"))


def test_names_stand_beside_the_ops_of_both_texts_and_of_their_gradient():
    def f(x):
        with ts.named_scope("layer"):
            y = x.sin()
            with ts.named_scope("sum"):
                y = y.sum()
        return y * 2

    lowered = ts.jit(f).lower(ts.device_put(X, ts.NamedSharding(ts.make_mesh((4,), ("a",)), ts.P("a"))))
    named = [("aten.sin.default", "layer"), ("aten.sum.default", "layer/sum")]
    assert scopes(lowered.as_text()) == [*named, ("aten.mul.Tensor", "")]
    assert scopes(lowered.compile().as_text())[:3] == [*named, ("all_reduce", "")]
    slopes = scopes(ts.jit(ts.grad(f)).lower(X).as_text())
    assert ("aten.cos.default", "layer") in slopes, "it belongs to the line whose derivative it is"


def test_a_region_and_the_body_of_a_loop_have_the_names_around_them_at_each_place():
    @ts.named_scope("region")
    def body(v):
        return ts.lax.psum(v.sin(), "a")

    over = mapped(body)

    def f(x):
        with ts.named_scope("first"):
            x = over(x)
        with ts.named_scope("second"):
            x = over(x)
        with ts.named_scope("loop"):
            return ts.lax.fori_loop(0, 3, ts.named_scope("round")(lambda i, v: v.cos()), x)

    found = scopes(ts.jit(f).lower(X).compile().as_text())
    assert [scope for op, scope in found if op == "aten.sin.default"] == ["first/region", "second/region"]
    assert [scope for op, scope in found if op == "all_reduce"] == ["first/region", "second/region"]
    assert ("aten.cos.default", "loop/round") in found


def test_a_kept_trace_has_no_names_of_its_first_call():
    f = ts.jit(lambda x: x.sin())
    with ts.named_scope("first"):
        f(X)
    with ts.named_scope("second"):
        assert scopes(f.lower(X).compile().as_text()) == [("aten.sin.default", "")]


def test_a_profile_and_an_error_name_the_scope():
    @ts.jit
    @ts.named_scope("layer")
    def f(x):
        return x.sin()

    with ts.profiler.trace() as trace:
        ts.block_until_ready(f(X))
        with ts.named_scope("eager"):
            ts.block_until_ready(ts.array(X) + 1)
    lines = {step.op: step.line for step in trace.events.steps}
    assert " in layer: return x.sin()" in lines["aten.sin.default"]
    assert " in eager: " in next(line for op, line in lines.items() if op.startswith("aten.add"))

    @ts.named_call
    def drawn(x):
        return x + torch.rand(8)

    with pytest.raises(ts.StatefulRandomError, match="in drawn: return x"):
        ts.jit(drawn)(X)


def test_names_are_strings_and_what_is_named_is_a_function():
    assert_refused(lambda: ts.named_scope(3), TypeError, ["3 (int)"])
    assert_refused(lambda: ts.named_call(3), TypeError, ["3 (int)"])
    assert_refused(lambda: ts.named_call(torch.sin, name=3), TypeError, ["3 (int)"])


def test_after_clear_caches_functions_are_traced_again_and_devices_drop_their_programs():
    traced = []
    y = ts.device_put(X, ts.NamedSharding(ts.make_mesh((4,), ("a",)), ts.P("a")))

    @ts.jit
    def f(x):
        traced.append("jit")
        return x * 2

    over = mapped(lambda v: traced.append("shard_map") or v * 3)
    for _ in range(2):
        before = f(y), over(y), y + 1
        f(y), over(y)
        assert traced == ["jit", "shard_map"]
        traced.clear()
        assert lifecycle.current()._programs
        ts.clear_caches()
        gc.collect()
        lifecycle.current().held(0)  # devices drop programs with the next that is asked of them
        assert not lifecycle.current()._programs
        assert f._cache_size() == over._cache_size() == 0
        assert [x.tolist() for x in before] == [[2 * x for x in range(8)], [3 * x for x in range(8)], [*range(1, 9)]]
