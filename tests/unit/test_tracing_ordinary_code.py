"""Ordinary torch code in a traced function: indices, prints and copies of values that only the devices know."""

import copy
import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.extent import IS_WHOLE
from tinyshard import P
from tinyshard.core.errors import EndedTraceError, TracedValueError

pytestmark = pytest.mark.usefixtures("local")


def table():
    return torch.arange(24.0).reshape(4, 3, 2)


INDICES = {
    "one": lambda i, j: i,
    "negative": lambda i, j: i - 4,
    "computed": lambda i, j: (i + 1) % 4,
    "two": lambda i, j: (i, j),
    "beside a slice": lambda i, j: (slice(1, 3), j),
    "beside numbers": lambda i, j: (i, 1, j - 2),
    "after an ellipsis": lambda i, j: (..., j),
    "with new dims": lambda i, j: (None, i, None, slice(None), j),
    "beside a list": lambda i, j: (i, [0, 2, 0]),
}


LAYOUTS = [P(), P("a"), P(None, None, "b")]
INDEXED = [
    pytest.param(name, spec, marks=() if (i + j) % 3 == 0 else pytest.mark.whole, id=f"{name}-{spec}")
    for (i, name), (j, spec) in itertools.product(enumerate(INDICES), enumerate(LAYOUTS))
]


@pytest.mark.parametrize("name, spec", INDEXED)
def test_a_traced_number_is_an_index(name, spec):
    of, mesh = INDICES[name], ts.make_mesh((4, 2), ("a", "b"))
    x, i, j = table(), torch.tensor(2), torch.tensor(1)
    placed = ts.device_put(x, ts.NamedSharding(mesh, spec))
    wanted = x[of(2, 1)]
    torch.testing.assert_close(ts.device_get(ts.jit(lambda x, i, j: x[of(i, j)])(placed, i, j)), wanted)
    gradient = ts.jit(ts.grad(lambda x, i, j: (x[of(i, j)] ** 2).sum()))(placed, i, j)
    torch.testing.assert_close(ts.device_get(gradient), torch.func.grad(lambda x: (x[of(2, 1)] ** 2).sum())(x))


def test_a_traced_index_out_of_range_is_an_error():
    got = ts.jit(lambda x, i: x[i])(table(), torch.tensor(9))
    with pytest.raises(ts.RemoteError, match="out of range"):
        got.block_until_ready()


def test_each_example_of_vmap_may_have_an_index_of_its_own():
    x, i = table(), torch.tensor([3, 0, -1])
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    for placed in (x, ts.array(x), ts.device_put(x, ts.NamedSharding(mesh, P("a", None, "b")))):
        for wrap in (lambda f: f, ts.jit):
            got = wrap(ts.vmap(lambda x, i: x[i], in_axes=(None, 0)))(placed, i)
            torch.testing.assert_close(ts.device_get(got), x[[3, 0, 3]])
            own = wrap(ts.vmap(lambda x, i: x[1:, i % 2] + x.narrow(0, i, 1)[0, i % 2], in_axes=(2, 0)))(placed, i[:2])
            wanted = torch.stack([x[1:, 1, 0] + x[3, 1, 0], x[1:, 0, 1] + x[0, 0, 1]])
            torch.testing.assert_close(ts.device_get(own), wanted)
            slope = wrap(ts.vmap(ts.grad(lambda x, i: (x[i] ** 2).sum()), in_axes=(None, 0)))(placed, i)
            wanted = torch.stack([torch.func.grad(lambda x: (x[k] ** 2).sum())(x) for k in (3, 0, 3)])  # noqa: B023
            torch.testing.assert_close(ts.device_get(slope), wanted)


def test_narrow_and_select_take_a_traced_start():
    x, i = table(), torch.tensor(1)
    for function in (
        lambda x, i: x.narrow(0, i, 2),
        lambda x, i: torch.narrow(x, dim=0, start=i, length=2),
        lambda x, i: torch.narrow(x, 0, i - 4, 2),
    ):
        torch.testing.assert_close(ts.device_get(ts.jit(function)(x, i)), x[1:3])
    for function in (lambda x, i: x.select(1, i), lambda x, i: torch.select(x, dim=1, index=i)):
        torch.testing.assert_close(ts.device_get(ts.jit(function)(x, i)), x[:, 1])


def test_a_slice_with_traced_bounds_names_narrow():
    with pytest.raises(TracedValueError, match=r"x\.narrow\(dim, i, length\)"):
        ts.jit(lambda x, i: x[i : i + 2])(table(), torch.tensor(1))
    with pytest.raises(TracedValueError, match="Python asks for the value"):
        ts.jit(lambda i: [1, 2, 3][i])(torch.tensor(1))


def test_a_ring_is_written_as_in_python():
    mesh = ts.make_mesh((8,), ("ring",))

    def body(whole):
        index = ts.lax.axis_index("ring")
        return (whole[(index + 1) % 8] * 10 + whole.narrow(0, index, 1).squeeze(0)).unsqueeze(0)

    x = torch.arange(8.0)
    wanted = torch.roll(x, -1) * 10 + x
    mapped = ts.shard_map(body, mesh=mesh, in_specs=P(), out_specs=P("ring"))
    torch.testing.assert_close(ts.device_get(mapped(x)), wanted)
    by_row = ts.pmap(lambda whole, _: body(whole)[0], axis_name="ring", in_axes=(None, 0))
    torch.testing.assert_close(ts.device_get(by_row(x, x)), wanted)


def write_whole(y, x, i):
    y = y * 2
    y[i] = x[None, None, 0]
    y[i, 1] = 3.0
    y[..., 0, i - 1] = x[:, 1, 1]
    return y


def test_fresh_tensors_are_written_at_static_and_traced_places():
    def write(y, x, i, j):
        y = y.clone()
        y[1] = 5
        y[i] = x[0]
        y[:, j] = 7.0
        y[i - 4, 1:, j] = x[1, 1:, 0]
        y[..., i - 2] += 1
        y.narrow(0, 0, 1)[0, j] = -1.0
        return y

    x = table()
    wanted = write(x, x, torch.tensor(2), torch.tensor(1))
    got = ts.jit(write)(x, x, torch.tensor(2), torch.tensor(1))
    torch.testing.assert_close(ts.device_get(got), wanted)
    shaped = lambda y, x, i: write_whole(y, x, i).sum(0)  # noqa: E731
    got = ts.jit(shaped)(x, x, torch.tensor(2))
    torch.testing.assert_close(ts.device_get(got), shaped(x, x, 2))
    slope = ts.jit(ts.grad(lambda y, x, i: (write_whole(y, x, i) ** 2).sum(), (0, 1)))(x, x + 1, torch.tensor(2))
    wanted = torch.func.grad(lambda y, x: (write_whole(y, x, 2) ** 2).sum(), (0, 1))(x, x + 1)
    torch.testing.assert_close(ts.device_get(slope), wanted)
    mixed = ts.jit(lambda x, i: torch.zeros(4, 3, 2).__setitem__(([0, 1], i), x[0]))
    with pytest.raises(TracedValueError, match="beside a list"):
        mixed(x, torch.tensor(1))


WRITES = {
    "all": lambda y: y.add_(1),
    "a place": lambda y: y[1].fill_(3),
    "a slice": lambda y: y[1:3].add_(1),
    "a sum": lambda y: y[1].copy_((y + 1).sum()),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_what_is_made_and_written_without_an_argument_is_a_result(write):
    def made(x):
        y = torch.zeros(4)
        write(y)
        return y, x

    wanted = made(None)[0]
    assert torch.equal(ts.device_get(ts.jit(made)(torch.ones(8)))[0], wanted)
    assert torch.equal(ts.device_get(ts.pmap(made)(torch.ones(8)))[0], wanted.expand(8, 4))
    mapped = ts.shard_map(made, mesh=ts.make_mesh((8,), "a"), in_specs=P("a"), out_specs=(P(), P("a")))
    assert torch.equal(ts.device_get(mapped(torch.ones(8)))[0], wanted)


def test_what_a_traced_function_makes_has_no_memory():
    def f(x):
        table = torch.ones(1 << 24, 1 << 24)  # a petabyte
        return x + (table @ table.T)[0, :4]

    assert ts.jit(f).lower(torch.ones(4)).as_text()


def test_writing_into_an_argument_at_a_traced_place_names_the_cure():
    def write(x, i):
        x[i] = 3.0
        return x

    with pytest.raises(ts.ImmutableError, match=r"(?s)argument x.*x\.clone\(\) first"):
        ts.jit(write)(table(), torch.tensor(1))


def test_traced_numbers_are_stacked_and_torch_tensor_of_them_is_refused():
    x = table()
    got = ts.jit(lambda x: ts.array([[x.sum(), x.mean()], [1.0, x.max()]], dtype=torch.float64))(x)
    torch.testing.assert_close(ts.device_get(got), torch.tensor([[276.0, 11.5], [1.0, 23.0]], dtype=torch.float64))
    torch.testing.assert_close(
        ts.device_get(ts.jit(lambda x: x + ts.array([1.0, 2.0]))(x)), x + torch.tensor([1.0, 2.0])
    )
    with pytest.raises(TracedValueError, match=r"torch\.stack"):
        ts.jit(lambda x: torch.tensor([x.sum(), 1.0]))(x)


def test_one_hot_needs_num_classes_in_a_trace():
    labels, logits = torch.tensor([0, 2, 1]), torch.arange(9.0).reshape(3, 3)
    loss = lambda w, y: -(F.one_hot(y, 3) * torch.log_softmax(w, -1)).sum()  # noqa: E731
    wanted = torch.func.grad(loss)(logits, labels)
    torch.testing.assert_close(ts.device_get(ts.jit(ts.grad(loss))(logits, labels)), wanted)
    assert torch.equal(ts.device_get(ts.jit(lambda y: F.one_hot(y, num_classes=4))(labels)), F.one_hot(labels, 4))
    with pytest.raises(ts.DtypeError, match=r"one_hot\(x, num_classes=n\)"):
        ts.jit(lambda y: F.one_hot(y))(labels)


def test_a_traced_value_prints_its_type_and_shape(capsys):
    def function(x):
        print(x)
        print(f"{x.sum()} {x.sum(0)!r}")
        return x

    ts.jit(function)(torch.ones(8, 4))
    ts.jit(ts.vmap(ts.grad(lambda v: function(v).sum())))(torch.ones(8, 4))
    assert capsys.readouterr().out.splitlines() == [
        "Traced f32[8, 4]", "Traced f32[] Traced f32[4]", "Traced f32[4]", "Traced f32[] Traced f32[]",
    ]  # fmt: skip
    with pytest.raises(TracedValueError):
        ts.jit(lambda x: f"{x.sum():.2f}")(torch.ones(2))


def test_a_copy_of_a_traced_value_is_one_of_its_own():
    def function(x):
        tree = {"a": x * 1, "b": x}
        tree["c"] = tree["a"]
        other = copy.deepcopy(tree)
        assert other["a"] is other["c"]
        other["a"][0] = 100.0
        return tree["a"], other["a"], copy.copy(x)

    x = torch.arange(3.0)
    kept, written, same = (ts.device_get(v) for v in ts.jit(function)(x))
    assert (kept.tolist(), written.tolist(), same.tolist()) == ([0, 1, 2], [100, 1, 2], [0, 1, 2])


@pytest.mark.parametrize("place", [lambda x: x, ts.array], ids=["plain", "Array"])
def test_a_deep_copy_within_a_transformation_is_a_clone(place):
    x = torch.arange(6.0).reshape(2, 3)

    def f(x):
        tree = copy.deepcopy({"x": x, "again": x})
        assert tree["x"] is tree["again"]
        return torch.sin(tree["x"]) * x

    def by_clone(x):
        return torch.sin(x.clone()) * x

    for transformed in (
        lambda f: ts.grad(lambda v: f(v).sum()),
        ts.vmap,
        ts.jacfwd,
        lambda f: lambda v: ts.jvp(f, (v,), (v,)),
        lambda f: ts.vmap(ts.grad(lambda v: f(v).sum())),
        lambda f: ts.jit(ts.grad(lambda v: f(v).sum())),
    ):
        want = transformed(by_clone)(x)
        torch.testing.assert_close(ts.device_get(transformed(f)(place(x))), ts.device_get(want))


def test_a_traced_value_used_after_its_trace_names_the_function():
    kept = []

    def leaks(x):
        kept.extend([x * 2, x])
        return x

    ts.jit(leaks)(torch.ones(3))
    for use in (lambda v: v + 1, lambda v: v.shape, lambda v: torch.ones(3) + v, lambda v: ts.jit(torch.sin)(v), float):
        for value in kept:
            with pytest.raises(EndedTraceError, match="a value made while leaks was traced"):
                use(value)
    assert "leaks" in repr(kept[0])
    with pytest.raises(EndedTraceError, match="leaks"):
        ts.jit(lambda y: y + kept[0])(torch.ones(3))


def test_what_a_gradient_cannot_do_in_a_program_names_the_line_whose_gradient_it_is():
    twice = torch.tensor([0, 0, 1])

    def product(x):
        y = x * 2
        y = y.scatter_reduce(0, twice, torch.ones(3), "prod")  # the line
        return (y + 1).sum()

    def filled(x):
        y = x * 2
        y = y.index_fill(0, twice, y[0])  # the line
        return (y + 1).sum()

    for function in (product, filled):
        for call in (ts.jit(ts.grad(function)), ts.jit(ts.grad(ts.jit(function)))):
            with pytest.raises(TypeError, match=r"test_tracing_ordinary_code\.py:\d+: y = .*# the line"):
                call(torch.ones(3))
    with pytest.raises(TypeError, match=r"test_tracing_ordinary_code\.py"):
        ts.grad(ts.jit(filled))(torch.ones(3))


def test_a_block_that_torchs_profiler_is_to_see_changes_nothing():
    x = ts.array(table())

    def marked(x):
        with torch.profiler.record_function("a block"), torch.autograd.profiler.record_function("inside", "its words"):
            return x.sin()

    for transform in (ts.jit, lambda f: ts.jit(ts.vmap(f)), lambda f: ts.jit(ts.grad(lambda x: f(x).sum()))):
        plain = transform(torch.sin)
        assert torch.equal(ts.device_get(transform(marked)(x)), ts.device_get(plain(x)))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW, torch.optim.Rprop])
def test_an_optimizer_of_torchs_says_that_new_parameters_are_a_result(kind):
    x = ts.array(table())
    weight = torch.nn.Parameter(x)
    weight.grad = x.detach()
    eager = kind([weight])
    with pytest.raises(ts.ImmutableError, match=r"changes(?s:.*)in torch\.optim(?s:.*)ts\.optim\.functional"):
        eager.step()
    plain = kind([torch.nn.Parameter(torch.ones(3))])
    for call in (plain.step, plain.zero_grad):
        with pytest.raises(ts.ImmutableError, match=rf"{kind.__name__}\.{call.__name__} in (?s:.*)ts\.grad"):
            ts.jit(lambda x, call=call: (call(), x)[1])(x)
    assert torch.equal(ts.device_get(weight), ts.device_get(x))


MASKS = {
    "of uint8": torch.tensor([[1, 0, 1], [0, 0, 1], [1, 1, 0]], dtype=torch.uint8),
    "of bools": torch.tensor([[True, False, True], [False, False, True], [True, True, False]]),
    "as lists": [[True, False, True], [False, False, True], [True, True, False]],
    "of NumPy's": np.array([[True, False, True], [False, False, True], [True, True, False]]),
}


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@pytest.mark.parametrize("mask", MASKS)
def test_a_mask_beside_a_number_that_differs_between_examples_is_for_as_many_dims_as_it_has(mask):
    x = torch.arange(27.0).reshape(3, 3, 3)
    wanted = torch.stack([x[MASKS[mask], k] for k in range(3)])
    assert torch.equal(ts.vmap(lambda k: x[MASKS[mask], k])(torch.arange(3)), wanted)


_ROWS = np.array([True, False, True])
KNOWN_MASKS = {
    "of a dim": _ROWS,
    "a list": [True, False, True],
    "a list of NumPy's": list(_ROWS),
    "a tuple beside a slice": (slice(None), (True, False, True)),
    "of two dims": np.eye(3, dtype=bool),
    "beside a slice": (_ROWS, slice(1, 3)),
    "beside indices": (_ROWS, torch.tensor([2, 0])),
    "beside a new dim": (_ROWS, None),
    "of the last dim": (..., _ROWS),
    "that chooses nothing": np.zeros(3, dtype=bool),
}


@pytest.mark.parametrize("index", KNOWN_MASKS.values(), ids=KNOWN_MASKS)
def test_a_mask_whose_values_python_has_is_an_index_in_a_trace(index):
    def chosen(x):
        y = x * 1
        y[index] += x.sum()
        return (x[index] ** 2).sum() + (y**3).sum()

    x = torch.linspace(-1, 1, 9, dtype=torch.float64).reshape(3, 3)
    assert torch.equal(ts.device_get(ts.jit(lambda x: x[index])(x)), x[index])
    wanted = torch.func.grad(chosen)(x)
    torch.testing.assert_close(ts.device_get(ts.jit(ts.grad(chosen))(x)), wanted)
    if IS_WHOLE:
        torch.testing.assert_close(ts.device_get(ts.jit(ts.vmap(ts.grad(chosen)))(x[None])), wanted[None])


@pytest.mark.parametrize("asked", [torch.allclose, torch.equal], ids=lambda asked: asked.__name__)
def test_whether_traced_tensors_are_alike_is_a_question_for_values(asked):
    for function in (lambda x: asked(x, x), lambda x: asked(torch.ones(2), torch.ones(2))):
        with pytest.raises(TracedValueError, match="Python asks for the value"):
            ts.jit(function)(torch.ones(3))


def test_a_mask_of_another_size_is_refused_in_a_trace_as_torch_refuses_it():
    def written(x):
        y = x * 1
        y[[True, False]] = 0.0
        return y

    for function in (written, lambda x: x[np.array([True, False])], ts.vmap(written)):
        with pytest.raises(IndexError, match=r"The shape of the mask \[2\]"):
            ts.jit(function)(torch.ones(3, 3))


def test_a_value_of_a_trace_that_failed_says_that_its_trace_is_over():
    kept = []

    def fails(x):
        kept.extend([x, x * 2])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ts.jit(fails)(torch.ones(3))
    for x in kept:
        with pytest.raises(EndedTraceError, match="a value made while fails was traced"):
            x + 1
        assert repr(x) == "<a traced value of fails, whose trace is over>"


BY_NAME = [
    lambda x: torch.select(input=x, dim=0, index=1),
    lambda x: torch.narrow(input=x, dim=0, start=1, length=2),
    lambda x: torch.detach(input=x),
    lambda x: torch.nn.functional.one_hot(input=x.long(), num_classes=9),
]


@pytest.mark.parametrize("function", BY_NAME)
def test_functions_that_a_trace_replaces_take_their_operand_by_name(function):
    x = torch.arange(4.0)
    assert torch.equal(ts.device_get(ts.jit(function)(x)), function(x))


def test_a_view_by_a_traced_number_is_one_where_its_operand_is_named():
    def written(x, i):
        y = x.clone()
        torch.select(input=y, dim=0, index=i).add_(1.0)
        torch.narrow(input=y, dim=0, start=i, length=2).mul_(10.0)
        return y

    assert ts.jit(written)(torch.zeros(4), 1).tolist() == [0.0, 10.0, 0.0, 0.0]
