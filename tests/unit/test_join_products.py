"""Small products of 16 bits that share an operand become one."""

import random

import pytest
import torch

import tinyshard as ts
from tests.extent import examples

P = ts.P
WHOLE = P()
LINE = ts.AbstractMesh((8,), "d")
GRID = ts.AbstractMesh((2, 4), ("d", "m"))


def described(*shape, spec=WHOLE, mesh=LINE, dtype=torch.bfloat16):
    return ts.ShapeDtypeStruct(shape, dtype, sharding=ts.NamedSharding(mesh, spec))


def compiled(function, *args, joins=True):
    with pytest.MonkeyPatch.context() as patch:
        if not joins:
            patch.setitem(ts.config.values, "combine_nbytes", 0)
        return ts.jit(function).lower(*args).compile()


def products(program):
    """The shapes of each product's result, those of bodies too."""
    found = [program.metas[step.results[0]].shape for step in program.steps if step.op == "aten.mm.default"]
    return found + [each for step in program.steps for body in step.bodies for each in products(body)]


def three(y, weights):
    return torch.tanh(sum(torch.relu(y @ w.t()) * k for k, w in enumerate(weights, 1)))


def gradients(y, weights):
    return ts.grad(lambda y, weights: three(y, weights).float().sum(), argnums=(0, 1))(y, weights)


WEIGHTS = [described(32, 64)] * 3
X = described(16, 64)


def test_products_of_one_operand_are_one_forwards_and_in_both_gradients():
    assert products(compiled(three, X, WEIGHTS).program) == [(16, 96)]
    program = compiled(gradients, X, WEIGHTS)
    weights = [(32, 64)] * 3  # results of the program: each has memory of its own
    assert sorted(products(program.program)) == sorted([(16, 96), (16, 64), *weights])
    apart = compiled(gradients, X, WEIGHTS, joins=False)
    assert sorted(products(apart.program)) == sorted([*[(16, 32)] * 3, *[(16, 64)] * 3, *weights])
    assert program.cost_analysis().flops == apart.cost_analysis().flops

    def used(y, weights):
        dy, dw = gradients(y, weights)
        return dy, [torch.relu(d) for d in dw]

    assert sorted(products(compiled(used, X, WEIGHTS).program)) == sorted([(16, 96), (16, 64), (96, 64)])


def test_each_device_joins_its_shards_and_exchanges_what_it_did():
    weights = [described(32, 64, spec=P("m"), mesh=GRID)] * 3
    x = described(16, 64, spec=P("d"), mesh=GRID)
    joined, apart = (compiled(gradients, x, weights, joins=joins) for joins in (True, False))
    assert {(8, 24), (8, 64)} <= set(products(joined.program))
    assert len(products(apart.program)) == 9
    sent = [{(c.kind, c.axes): c.nbytes for c in ts.collectives_in(each)} for each in (joined, apart)]
    assert sent[0] == sent[1] != {}


def test_weights_are_joined_once_before_a_loop():
    def loop(x, weights):
        def again(y, _):
            return torch.nn.functional.pad(three(y, weights), (0, 32)), None

        return ts.lax.scan(again, x, None, length=5)[0]

    program = compiled(loop, X, WEIGHTS).program
    (scan,) = (step for step in program.steps if step.bodies)
    assert "aten.cat.default" in {step.op for step in program.steps}
    assert "aten.cat.default" not in {step.op for step in scan.bodies[0].steps}
    assert products(program) == [(16, 96)]


@pytest.mark.parametrize(
    ("what", "x", "weights"),
    [
        ("single precision", described(16, 64, dtype=torch.float32), [described(32, 64, dtype=torch.float32)] * 3),
        ("a large operand", described(16, 1024), [described(1024, 1024)] * 2),
        ("another operand each", described(16, 64), [described(32, 64)]),
    ],
)
def test_other_products_stay_as_they_are(what, x, weights):
    assert len(products(compiled(three, x, weights).program)) == len(weights), what


SQUARE = described(16, 16)


def test_a_product_that_needs_the_other_and_one_whose_nans_are_looked_for_stay_alone(monkeypatch):
    def chain(x, a):
        y = x @ a
        return torch.relu(y) + torch.relu(x @ torch.relu(y))

    assert products(compiled(chain, SQUARE, SQUARE).program) == [(16, 16)] * 2
    monkeypatch.setitem(ts.config.values, "debug_nans", True)
    assert len(products(compiled(three, X, WEIGHTS).program)) == 3


def partly(then):
    def function(a, b):
        part = a @ b + b @ a
        return torch.relu(part + b @ b), then(part)

    return function


@pytest.mark.parametrize(
    ("function", "wanted"),
    [
        (lambda a, b: torch.relu(a @ b + b @ a + a), [(16, 16)]),
        (lambda a, b: torch.relu(a @ b + 3 + b @ a), [(16, 16)] * 2),
        (lambda a, b: torch.relu(torch.add(a @ b, b @ a, alpha=2)), [(16, 16)] * 2),
        (lambda a, b: torch.relu((a @ b).reshape(2, 128) + b[:2] @ torch.cat([a] * 8, 1)), [(2, 128), (16, 16)]),
        (partly(torch.tanh), [(16, 16)] * 2),
        (partly(lambda part: part), [(16, 16)] * 2),
    ],
    ids=["another term", "a number", "a factor", "products of other shapes", "a part is used", "a part is a result"],
)
def test_sums_with_something_else_in_them_stay_sums(function, wanted):
    joined, apart = (compiled(function, SQUARE, SQUARE, joins=joins) for joins in (True, False))
    assert sorted(products(joined.program)) == sorted(wanted)
    assert any(step.op == "aten.add.Tensor" for step in joined.program.steps)
    assert len(joined.program.outputs) == len(apart.program.outputs)


def mixed(x, a, b):
    y = torch.relu(x @ a)
    return torch.relu(x @ b.t()) + y


def both_sides(x, a, b):
    return torch.relu(x @ a) + torch.relu(x @ b) + torch.relu(a @ x) + torch.relu(b @ x)


def a_chain(x, a, y):
    d = a @ x
    b = torch.relu(y @ a)  # `y @ d` joins it, so `d` is needed here, and does not wait for `b @ x`
    return torch.relu(b @ x) + torch.relu(y @ d)


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("function", [mixed, both_sides, a_chain])
def test_operands_are_there_where_products_are_joined(function):
    given = [torch.randint(-1, 2, (4, 4), generator=torch.Generator().manual_seed(k)).bfloat16() for k in range(3)]
    program = compiled(function, *given)
    assert torch.equal(ts.device_get(program(*given)), function(*given))


def test_a_layer_that_is_computed_again_holds_no_more_for_it():
    def layer(x, w, v):
        return torch.tanh(torch.relu(x @ w) * torch.sigmoid(x @ v))

    def peak(remembers, joins):
        def net(x, weights):
            for w, v in weights:
                x = (layer if remembers else ts.checkpoint(layer))(x, w, v)
            return x.float().sum()

        weights = [(described(64, 64), described(64, 64))] * 8
        program = compiled(ts.grad(net, argnums=1), described(128, 64), weights, joins=joins)
        return program.memory_analysis().peak_nbytes

    copies = 8 * 2 * 64 * 64 * 2
    assert peak(False, True) <= peak(False, False) + copies < peak(True, True)


def test_results_of_a_program_and_views_of_them_have_memory_of_their_own():
    def function(x, a, b, c):
        return x @ a, (x @ b).t(), (x @ c).reshape(4, -1), torch.relu(x @ b) + torch.relu(x @ c)

    program = compiled(function, SQUARE, SQUARE, SQUARE, SQUARE).program
    assert sorted(products(program)) == [(16, 16)] * 3 + [(16, 32)]
    split = {n for step in program.steps if "split" in step.op for n in step.results}
    assert len(split) == 2 and split.isdisjoint(program.outputs)


def test_a_long_chain_of_additions_is_not_searched_again_and_again():
    def function(x, a, b, z):
        total = z
        for _ in range(1500):
            total = total + z
        return total, torch.relu(x @ a) + torch.relu(x @ b)

    program = compiled(function, X, described(64, 8), described(64, 8), described(3, dtype=torch.float32)).program
    assert products(program) == [(16, 16)]


# by op: how many operands; the bound of what it makes, by those of its operands; what it computes
OPS = {
    "mm": (2, lambda a, b: 3 * a * b, lambda x, y: x @ y),
    "add": (2, lambda a, b: a + b, lambda x, y: x + y),
    "twice": (2, lambda a, b: a + 2 * b, lambda x, y: torch.add(x, y, alpha=2)),
    "more": (1, lambda a: a + 3, lambda x: x + 3),
    "t": (1, lambda a: a, lambda x: x.t()),
    "fold": (1, lambda a: a, lambda x: x.reshape(x.shape[1], x.shape[0])),
    "clip": (1, lambda a: 1, lambda x: x.clamp(-1, 1)),
}
SIDES = ((2, 3), (3, 2), (2, 2), (3, 2))


def a_program(seed):
    """A function of four small matrices of whole numbers, whose results bfloat16 has."""
    draw = random.Random(seed)
    known = [(shape, 1) for shape in SIDES]  # of each value its shape, and a bound
    ops = []
    while len(known) < 28:
        kind = draw.choice(["mm"] * 8 + ["add"] * 4 + [*OPS])
        count, bound, _ = OPS[kind]
        # few operands on one side, so that many products share one
        operands = tuple(draw.sample([draw.randrange(6) % len(known), draw.randrange(len(known))], 2))[:count]
        first, last = known[operands[0]][0], known[operands[-1]][0]
        limit = bound(*(known[k][1] for k in operands))
        if count == 2 and (first[1] != last[0] if kind == "mm" else first != last):
            continue
        if limit > 100:
            kind, operands, limit, last = "clip", operands[:1], 1, first
        known.append(({"mm": (first[0], last[1]), "t": first[::-1], "fold": first[::-1]}.get(kind, first), limit))
        ops.append((kind, operands))
    used = {k for _, operands in ops for k in operands}
    returned = [(k, k in used or draw.random() < 0.3) for k in range(4, 28) if k not in used or draw.random() < 0.1]

    def function(*given):
        values = list(given)
        for kind, operands in ops:
            values.append(OPS[kind][2](*(values[k] for k in operands)))
        return [values[k] if is_as_it_is else -values[k] for k, is_as_it_is in returned]

    return function


@pytest.mark.usefixtures("local")
def test_random_programs_have_the_values_that_they_have_without_it():
    fewer = 0
    for seed in range(examples(60, 600)):
        generator = torch.Generator().manual_seed(seed)
        given = [torch.randint(-1, 2, shape, generator=generator).to(torch.bfloat16) for shape in SIDES]
        together, apart = (compiled(a_program(seed), *given, joins=joins) for joins in (True, False))
        fewer += len(products(together.program)) < len(products(apart.program))
        for x, y in zip(together(*given), apart(*given), strict=True):
            torch.testing.assert_close(ts.device_get(x), ts.device_get(y), rtol=0, atol=0, msg=f"seed {seed}")
    assert fewer > examples(60, 600) // 4
