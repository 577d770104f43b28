"""Collectives, and ops on small tensors, that do not wait for each other are one step of several operands."""

import itertools

import pytest
import torch

import tinyshard as ts
from tests import transformer
from tests.extent import mostly_whole

P = ts.P
WHOLE = P()
LINE = ts.AbstractMesh((8,), "d")
GRID = ts.AbstractMesh((4, 2), ("a", "b"))


@pytest.fixture(autouse=True)
def _flag_as_it_was():
    yield
    ts.config.update("combine_nbytes", ts.config.FLAGS["combine_nbytes"].default)


def described(*shape, spec=WHOLE, mesh=LINE):
    return ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec))


def compiled(function, *args, nbytes=None):
    if nbytes is not None:
        ts.config.update("combine_nbytes", nbytes)
    return ts.jit(function).lower(*args).compile()


def exchanges(program):
    """(collective, how many operands) of each exchange, those of bodies too."""
    found = [(s.op, len(s.args)) for s in program.steps if s.op != "local_slice" and s.communicates and not s.bodies]
    return found + [each for step in program.steps for body in step.bodies for each in exchanges(body)]


def sgd(params, x):
    def loss(params):
        y = x
        for w, b in params:
            y = torch.relu(y @ w + b)
        return y.square().mean()

    gradients = ts.grad(loss)(params)
    return [(w - 0.1 * dw, b - 0.1 * db) for (w, b), (dw, db) in zip(params, gradients, strict=True)]


WIDTHS = (6, 16, 32, 8)
NETWORK = [(described(m, n), described(n)) for m, n in itertools.pairwise(WIDTHS)]
BATCH = described(16, 6, spec=P("d"))


def test_gradients_are_summed_in_one_exchange_that_sends_as_many_bytes():
    apart, together = (compiled(sgd, NETWORK, BATCH, nbytes=n) for n in (0, 4 << 20))
    assert exchanges(apart.program) == [("all_reduce", 1)] * 6
    assert exchanges(together.program) == [("all_reduce", 6)]
    counted = [ts.collectives_in(each) for each in (apart, together)]
    assert [(c.kind, c.axes, c.count) for (c,) in counted] == [("all_reduce", ("d",), 6), ("all_reduce", ("d",), 1)]
    nbytes = 4 * sum(m * n + n for m, n in itertools.pairwise(WIDTHS))
    assert counted[0][0].nbytes == counted[1][0].nbytes == 2 * nbytes * 7 // 8
    assert together.cost_analysis().flops == apart.cost_analysis().flops
    assert together.memory_analysis().peak_nbytes <= apart.memory_analysis().peak_nbytes + nbytes
    text = together.as_text()
    assert text.count("all_reduce(") == 1 and "_foreach_sub" in text


def test_an_exchange_is_no_larger_than_the_flag_says_and_the_last_layer_is_summed_first():
    program = compiled(sgd, NETWORK, BATCH, nbytes=2500).program
    assert exchanges(program) == [("all_reduce", 3)] * 2
    shapes = [[program.metas[x.number].shape for x in s.args] for s in program.steps if s.op == "all_reduce"]
    assert [sorted(each) for each in shapes] == [[(8,), (32,), (32, 8)], [(6, 16), (16,), (16, 32)]]
    at = [k for k, step in enumerate(program.steps) if step.op == "all_reduce"]
    assert any(step.op == "aten.mm.default" for step in program.steps[at[0] : at[1]]), "the backward pass goes on"


def test_what_waits_for_a_collective_and_another_kind_are_exchanges_of_their_own():
    def chain(x):
        total = x.sum(0)
        return total, ((x - total) ** 2).sum(0)

    assert exchanges(compiled(chain, BATCH).program) == [("all_reduce", 1)] * 2

    def kinds(x):
        return x.sum(0), x.amax(0), x.sum(1), x.double().sum(0), x.prod(0)

    grid = described(16, 6, spec=P("a", "b"), mesh=GRID)
    assert sorted(exchanges(compiled(kinds, grid).program)) == [("all_reduce", 1)] * 5


STEPS = list(itertools.product(["fsdp", "dp", "dp x tp"], [transformer.step, transformer.adam]))


@pytest.mark.parametrize(("layout", "optimizer"), mostly_whole(STEPS, lambda case: False))
def test_a_training_step_holds_no_more_than_one_exchange_beside(layout, optimizer):
    mesh = ts.AbstractMesh((4, 2), ("d", "m"))
    model = []
    for nbytes in (0, 1 << 20):
        ts.config.update("combine_nbytes", nbytes)
        model.append(transformer.compiled(layout, mesh, optimizer))
    apart, together = model
    assert together.memory_analysis().peak_nbytes <= apart.memory_analysis().peak_nbytes + (1 << 20)
    assert together.cost_analysis().nbytes == apart.cost_analysis().nbytes
    assert together.cost_analysis().flops == apart.cost_analysis().flops
    assert len(exchanges(together.program)) < len(exchanges(apart.program)) * 0.95


def test_data_parallel_sums_the_gradients_of_a_transformer_in_at_most_four_exchanges():
    program = transformer.compiled("dp", ts.AbstractMesh((8, 1), ("d", "m"))).program
    assert len(exchanges(program)) <= 4
    assert len(program.steps) <= 600


def test_gathers_are_one_exchange_where_the_peak_of_memory_stays_what_it_is():
    def narrow(x, w, v):
        return (x @ w) @ v

    def wide(x, w, v):
        return narrow(x, w, v) + x

    # the most is held in the second product, with its wide result, or in the first, which a second weight would add to
    for function, width, wanted in ((wide, 16, [("all_gather", 2)]), (narrow, 2, [("all_gather", 1)] * 2)):
        given = described(512, 16, spec=P("d")), described(16, 16, spec=P("d")), described(16, width, spec=P("d"))
        together, apart = (compiled(function, *given, nbytes=n) for n in (4 << 20, 0))
        assert exchanges(apart.program) == [("all_gather", 1)] * 2
        assert exchanges(together.program) == wanted
        assert together.memory_analysis().peak_nbytes == apart.memory_analysis().peak_nbytes


def test_collectives_of_pmap_and_shard_map_are_combined_and_those_in_loops():
    whole = described(8, 4, spec=P("d"))

    def sums(x, y):
        return ts.lax.psum(x, "d") + ts.lax.psum(y * 2, "d")

    region = ts.shard_map(sums, mesh=LINE, in_specs=P("d"), out_specs=P())
    assert exchanges(compiled(region, whole, whole).program) == [("all_reduce", 2)]

    def loop(x, y):
        def body(carry, _):
            a, b = carry
            return (a + ts.lax.psum(b, "d"), b + ts.lax.psum(a, "d")), None

        return ts.lax.scan(body, (x, y), None, length=3)[0]

    spread = ts.shard_map(loop, mesh=LINE, in_specs=P("d"), out_specs=P("d"))
    program = compiled(spread, whole, whole).program
    assert exchanges(program) == [("all_reduce", 2)]
    assert compiled(spread, whole, whole).cost_analysis().count("all_reduce") == 3


def test_the_flag_is_zero_or_more():
    with pytest.raises(ts.config.UnknownFlagError, match="0 or more"):
        ts.config.update("combine_nbytes", -1)


def test_ops_of_different_lines_stay_apart_so_that_an_error_names_the_line():
    def lines(x, y):
        a = x * 2.0
        b = y * 2.0
        return [a, b, *[v * 3.0 for v in (x, y)]]

    program = compiled(lines, BATCH, BATCH).program
    assert [step.op for step in program.steps] == ["aten.mul.Tensor", "aten.mul.Tensor", "aten._foreach_mul.Scalar"]


@pytest.mark.usefixtures("local")
def test_psums_of_a_pmapped_function_are_one_exchange_with_the_values_of_two():
    def sums(v, w):
        return ts.lax.psum(v, "i"), ts.lax.psum(w * w, "i"), ts.lax.pmax(v, "i")

    v, w = torch.arange(24.0).reshape(8, 3), torch.linspace(-1, 1, 8)
    mapped = ts.pmap(sums, axis_name="i")
    assert sorted(exchanges(mapped.lower(v, w).compile().program)) == [("all_reduce", 1), ("all_reduce", 2)]
    added, squared, greatest = mapped(v, w)
    assert torch.equal(ts.device_get(added), v.sum(0).expand(8, 3))
    assert torch.equal(ts.device_get(greatest), v.amax(0).expand(8, 3))
    torch.testing.assert_close(ts.device_get(squared), (w * w).sum().expand(8))


@pytest.mark.usefixtures("local")
def test_a_device_that_fails_takes_part_with_zeros_in_every_operand():
    mesh = ts.make_mesh((8,), ("d",))
    rows = ts.NamedSharding(mesh, P("d"))
    table = torch.arange(4.0)

    def look_up(at, x):
        found = table[at]
        return ts.lax.psum(found, "d"), ts.lax.psum(x, "d")

    at = ts.device_put(torch.tensor([0, 1, 7, 3, 0, 1, 2, 3]), rows)
    x = ts.device_put(torch.ones(8), rows)
    mapped = ts.jit(ts.shard_map(look_up, mesh=mesh, in_specs=P("d"), out_specs=P()))
    assert exchanges(mapped.lower(at, x).compile().program) == [("all_reduce", 2)]
    for result in mapped(at, x):
        with pytest.raises(ts.RemoteError, match="index 7 is out of bounds"):
            result.numpy()
    good = ts.device_put(torch.tensor([0, 1, 2, 3, 0, 1, 2, 3]), rows)
    assert [float(y[0]) for y in mapped(good, x)] == [12.0, 8.0]
