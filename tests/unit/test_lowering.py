import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tinyshard as ts
from tests import counting
from tests.programs import CASES, GOLDEN, texts
from tinyshard import P
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.runtime import lifecycle

ROOT = Path(__file__).parents[2]
WORDS = [name for name, row in COLLECTIVES.items() if row.communicates]
F32 = torch.float32


@pytest.fixture
def mesh():
    return ts.AbstractMesh((4, 2), ("a", "b"))


def described(mesh, shape, *spec):
    return ts.ShapeDtypeStruct(shape, F32, sharding=ts.NamedSharding(mesh, P(*spec)))


def collectives_in(text):
    return re.findall(rf"\b({'|'.join(WORDS)})\(", text)


# ---- texts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_the_texts_are_those_of_the_golden_files(mesh, name):
    assert texts(CASES[name], mesh) == (GOLDEN / f"{name}.txt").read_text(), "see tests/programs.py to write them anew"


def test_there_is_a_golden_file_for_each_program_and_none_besides():
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(CASES)


@pytest.mark.whole
def test_the_texts_are_the_same_in_another_process_in_another_order(mesh):
    code = (
        "import tinyshard as ts; from tests.programs import CASES, texts\n"
        "mesh = ts.AbstractMesh((4, 2), ('a', 'b'))\n"
        "made = {name: texts(CASES[name], mesh) for name in reversed(CASES)}\n"
        "print(''.join(made[name] for name in CASES), end='')"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "12345"}
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "".join((GOLDEN / f"{name}.txt").read_text() for name in CASES)


def test_a_dot_of_rows_by_columns_has_no_collective_word(mesh):
    text = ts.jit(torch.matmul).lower(described(mesh, (8, 8), "a"), described(mesh, (8, 8), None, "b")).compile()
    assert not any(word in text.as_text() for word in WORDS)
    assert not text.program.communicates
    assert text.cost_analysis().nbytes == 0


@pytest.mark.parametrize("result", [None, P(), P("a"), P(None, "a")])
def test_a_contraction_over_a_sharded_dim_has_exactly_one_reduction(mesh, result):
    place = None if result is None else ts.NamedSharding(mesh, result)
    f = ts.jit(torch.matmul, out_shardings=place)
    text = f.lower(described(mesh, (8, 8), None, "a"), described(mesh, (8, 8), "a")).compile().as_text()
    assert collectives_in(text) == ["reduce_scatter" if result in (P("a"), P(None, "a")) else "all_reduce"]


def test_the_words_of_collectives_stand_in_no_text_without_one(mesh):
    text = ts.jit(torch.sin).lower(described(mesh, (8, 8), "a", "b"))
    for words in (text.as_text(), text.compile().as_text()):
        assert not any(word in words for word in WORDS)


def test_an_op_without_a_rule_says_in_the_text_that_it_gathers(mesh):
    text = ts.jit(torch.linalg.inv).lower(described(mesh, (8, 8), "a")).compile().as_text()
    assert "all_gather" in collectives_in(text)


def test_a_graph_names_inputs_as_the_function_does():
    w = torch.ones(3)
    text = ts.make_graph(lambda params, x: params["b"][0] + x * w)({"b": [torch.ones(3)]}, torch.ones(3))
    assert repr(text) == str(text)
    assert [line.split(" = ")[1] for line in text.splitlines()[1:4]] == ["params['b'][0]", "x", "w"]
    assert "aten.mul.Tensor(%1, %2)" in text
    assert "aten.sum" in ts.make_graph(lambda x, n: x.sum() * n, static_argnums=1)(torch.ones(2), 3)


def test_lowering_follows_in_and_out_shardings(mesh):
    rows, columns = (ts.NamedSharding(mesh, s) for s in (P("a"), P(None, "a")))
    compiled = ts.jit(lambda x: x + 1, in_shardings=rows, out_shardings=columns)
    compiled = compiled.lower(ts.ShapeDtypeStruct((8, 8), F32)).compile()
    assert collectives_in(compiled.as_text()) == ["all_to_all"]
    assert compiled.input_shardings == ((rows,), {})
    assert compiled.output_shardings == columns


def test_a_constraint_means_the_mesh_that_is_set(mesh):
    f = ts.jit(lambda x: ts.lax.with_sharding_constraint(x, P("a")))
    other = ts.AbstractMesh((8,), ("a",))
    for m, parts in ((mesh, 4), (other, 8)):
        with ts.set_mesh(m):
            compiled = f.lower(ts.ShapeDtypeStruct((8, 8), F32, sharding=ts.NamedSharding(m, P()))).compile()
        assert compiled.output_shardings.shard_shape((8, 8)) == (8 // parts, 8)


# ---- costs ----------------------------------------------------------------------------------------------------------


def test_costs_are_counted_by_collective_and_axes(mesh):
    f = ts.jit(lambda x, y: (x @ y).sum())
    cost = f.lower(described(mesh, (16, 8), "a", "b"), described(mesh, (8, 32), "b")).compile().cost_analysis()
    assert cost.flops == 2 * 4 * 4 * 32
    assert cost.count("all_reduce") == sum(t.count for t in cost.traffic)
    assert cost.nbytes == sum(t.nbytes for t in cost.traffic)
    assert f"{cost.flops:,} flops" in str(cost)


def test_a_gather_costs_what_the_others_hold(mesh):
    whole = ts.NamedSharding(mesh, P())
    f = ts.jit(lambda x: x, out_shardings=whole)
    (traffic,) = f.lower(described(mesh, (64, 2), "a")).compile().cost_analysis().traffic
    assert (traffic.kind, traffic.axes, traffic.count, traffic.nbytes) == ("all_gather", ("a",), 1, 3 * 16 * 2 * 4)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", CASES)
def test_the_collectives_and_bytes_in_the_text_are_those_performed(name):
    counting.check(CASES[name])


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("name", CASES)
def test_the_values_are_those_of_one_device(name):
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    case = CASES[name]
    with ts.set_mesh(mesh):
        got = ts.device_get(ts.jit(case.function)(*case.placed(mesh)))
        on_one = ts.device_get(ts.jit(_without_constraints(case.function))(*case.values()))
    torch.testing.assert_close(got, on_one)


def _without_constraints(function):
    def plain(*args):
        before, ts.lax.with_sharding_constraint = ts.lax.with_sharding_constraint, lambda x, _: x
        try:
            return function(*args)
        finally:
            ts.lax.with_sharding_constraint = before

    return plain


# ---- described values -----------------------------------------------------------------------------------------------


def test_typeof_tells_dtype_sizes_and_cuts(local, mesh):
    real = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(real, P("a", "b")))
    assert ts.typeof(x) == "f32[8@a, 4@b]"
    assert ts.typeof(x.T.to(torch.bfloat16)) == "bf16[4@b, 8@a]"
    assert ts.typeof(ts.device_put(x, ts.NamedSharding(real, P(("a", "b"))))) == "f32[8@(a,b), 4]"
    assert ts.typeof(ts.device_put(x, ts.sharding.PositionalSharding(ts.devices()).reshape(4, 2))) == "f32[8/4, 4/2]"
    assert ts.typeof(torch.ones(3, dtype=torch.int64)) == "i64[3]"
    assert ts.typeof(2.5) == "f32[]"
    assert repr(described(mesh, (8, 4), None, "b")) == "f32[8, 4@b]"


def test_a_described_value_must_fit_its_sharding(mesh):
    with pytest.raises(ts.ShardingError, match="multiple of 4"):
        described(mesh, (6, 4), "a")


# ---- thousands of devices -------------------------------------------------------------------------------------------


def lower_for_4096_devices():
    """The gradient of a network's loss, compiled for a mesh of 64 by 64."""
    mesh = ts.AbstractMesh((64, 64), ("data", "model"))

    def predict(params, inputs):
        for W, b in params:
            outputs = inputs @ W + b
            inputs = outputs.clamp(min=0)
        return outputs

    def loss(params, batch):
        inputs, targets = batch
        return ((predict(params, inputs) - targets) ** 2).sum(-1).mean()

    def at(shape, *spec):
        return described(mesh, shape, *spec)

    n = 8192
    params = [
        (at((784, n)), at((n,))),
        (at((n, n), None, "model"), at((n,), "model")),
        (at((n, n), "model"), at((n,))),
        (at((n, 10)), at((10,))),
    ]
    batch = (at((n, 784), "data"), at((n, 10), "data"))
    compiled = ts.jit(ts.grad(loss)).lower(params, batch).compile()
    text, cost = compiled.as_text(), compiled.cost_analysis()
    assert "program on 4096 devices" in text and "f32[8192, 128]" in text
    assert cost.flops > 0 and cost.nbytes > 0
    assert compiled.output_shardings[1][0].spec == P(None, "model")


def test_the_network_is_lowered_for_4096_devices_without_a_runtime():
    before = lifecycle.running()
    lower_for_4096_devices()
    assert lifecycle.running() is before


@pytest.mark.whole
def test_lowering_for_4096_devices_starts_no_process():
    code = """
import psutil, tinyshard
from tinyshard.runtime import lifecycle
before = {p.pid for p in psutil.Process().children(recursive=True)}  # the helper that the import starts
from tests.unit.test_lowering import lower_for_4096_devices
lower_for_4096_devices()
assert lifecycle.running() is None
assert {p.pid for p in psutil.Process().children(recursive=True)} == before
print("done")
"""
    env = {k: v for k, v in os.environ.items() if k != "TINYSHARD_RUNTIME"} | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env=env, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("done\n", "")


def test_lowering_here_starts_no_runtime(mesh):
    before = lifecycle.running()
    ts.jit(torch.sin).lower(described(mesh, (8, 8), "a")).compile()
    assert lifecycle.running() is before


def test_the_collectives_of_a_compiled_layer_are_listed_by_kind_axes_count_and_bytes(mesh):
    def layer(x, up, down):
        return torch.relu(x @ up) @ down

    shapes = described(mesh, (16, 8)), described(mesh, (8, 32), None, "a"), described(mesh, (32, 8), "a")
    found = ts.collectives_in(ts.jit(layer, out_shardings=ts.NamedSharding(mesh, P())).lower(*shapes).compile())
    # a ring of four over f32[16, 8]: 2 * 3/4 of 512 bytes
    assert [(each.kind, each.axes, each.count, each.nbytes) for each in found] == [("all_reduce", ("a",), 1, 768)]
    assert repr(found) == "all_reduce over a: once, 768 bytes"


def test_axes_that_a_plan_has_as_one_are_listed_by_the_names_that_the_mesh_has():
    mesh = ts.AbstractMesh((2, 4), ("host", "device"))
    rows, whole = (ts.NamedSharding(mesh, P(*spec)) for spec in ([("host", "device")], []))
    x = ts.ShapeDtypeStruct((16, 4), F32, sharding=rows)
    made = ts.jit(lambda x: x * 2, out_shardings=whole).lower(x).compile()
    (gather,) = ts.collectives_in(made)
    assert (gather.kind, gather.axes) == ("all_gather", ("host", "device"))
    assert str(gather) == "all_gather over host*device: once, 224 bytes"
    assert "over=host*device" in made.as_text()


def test_collectives_are_not_counted_in_a_function(mesh):
    with pytest.raises(ts.DtypeError, match=r"try:  ts\.collectives_in\(ts\.jit\(f\)\.lower\(x\)\.compile\(\)\)"):
        ts.collectives_in(torch.sin)


def test_a_program_without_collectives_says_so(mesh):
    assert repr(ts.collectives_in(ts.jit(torch.sin).lower(described(mesh, (4,))).compile())) == "no collectives"
