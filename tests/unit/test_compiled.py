"""A compiled function takes what it was compiled for and nothing else; jit keeps what its function has."""

import functools

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import NamedSharding, P

pytestmark = pytest.mark.usefixtures("local")


def mesh():
    return ts.make_mesh((4, 2), ("a", "b"))


def put(values, *spec):
    return ts.device_put(values, NamedSharding(mesh(), P(*spec)))


def counted(function):
    """The function, and a list that grows each time Python runs it: when it is traced."""
    runs = []

    @functools.wraps(function)
    def counting(*args, **kwargs):
        runs.append(1)
        return function(*args, **kwargs)

    return counting, runs


def test_a_compiled_function_gives_the_values_of_the_function_and_is_not_traced_again():
    f, runs = counted(lambda params, x, *, scale: {"y": params["w"] * x * scale, "n": 3})
    x = torch.arange(8.0)
    compiled = ts.jit(f).lower({"w": x}, put(x, "a"), scale=2.0).compile()
    for factor in (2.0, 5.0):
        made = compiled({"w": x + 1}, put(x, "a"), scale=factor)
        assert (made["y"].numpy() == ((x + 1) * x * factor).numpy()).all()
        assert made["n"] == 3
    assert len(runs) == 1


def test_a_compiled_function_without_arguments_and_with_none():
    assert ts.jit(lambda: torch.ones(3)).lower().compile()().tolist() == [1.0, 1.0, 1.0]
    compiled = ts.jit(lambda x, y: x + 1 if y is None else x + y).lower(torch.zeros(2), None).compile()
    assert compiled(torch.ones(2), None).tolist() == [2.0, 2.0]
    with pytest.raises(ts.DtypeError, match="compiled for"):
        compiled(torch.ones(2), torch.ones(2))


def test_a_compiled_function_is_not_called_on_what_requires_a_gradient():
    w = put(torch.arange(8.0), "a").requires_grad_()
    compiled = ts.jit(lambda x: x * x).lower(w).compile()
    with pytest.raises(ts.DtypeError, match="requires a gradient"):
        compiled(w)
    with torch.no_grad():
        assert torch.equal(ts.device_get(compiled(w)), torch.arange(8.0) ** 2)


WRONG = {
    "shape": (lambda x: ((x[:4], x), {}), "f32[4], compiled for f32[8]"),
    "dtype": (lambda x: ((x.double(), x), {}), "f64[8], compiled for f32[8]"),
    "too few": (lambda x: ((x,), {}), "(*), compiled for (*, *)"),
    "too many": (lambda x: ((x, x, x), {}), "(*, *, *), compiled for (*, *)"),
    "tuple": (lambda x: ((x, (x,)), {}), "(*, (*,)), compiled for (*, *)"),
    "by name": (lambda x: ((x,), {"y": x}), "(*, y=*), compiled for (*, *)"),
    "none": (lambda x: ((x, None), {}), "(*, None), compiled for (*, *)"),
    "a number": (lambda x: ((x, 2.0), {}), "f32[], compiled for f32[8]"),
    "a described value": (lambda x: ((x, ts.ShapeDtypeStruct((8,), torch.float32)), {}), "ShapeDtypeStruct"),
}


@pytest.mark.parametrize(("call", "words"), WRONG.values(), ids=WRONG)
def test_another_tree_shape_or_dtype_is_an_error(call, words):
    f, runs = counted(lambda x, y: x + y)
    x = torch.ones(8)
    compiled = ts.jit(f).lower(x, x).compile()
    args, kwargs = call(x)
    with pytest.raises(ts.DtypeError) as caught:
        compiled(*args, **kwargs)
    assert words in str(caught.value)
    assert len(runs) == 1


def test_the_error_names_the_leaf():
    compiled = ts.jit(lambda params: params["w"][0] + 1).lower({"w": [torch.ones(3)]}).compile()
    with pytest.raises(ts.DtypeError, match=r"params\['w'\]\[0\]: f32\[4\], compiled for f32\[3\]"):
        compiled({"w": [torch.ones(4)]})


def test_a_committed_array_that_lies_otherwise_is_an_error():
    x = torch.arange(8.0)
    compiled = ts.jit(lambda x: x * 2).lower(put(x, "a")).compile()
    assert compiled(put(x, "a")).tolist() == (2 * x).tolist()
    assert compiled(x).tolist() == compiled(ts.array(x)).tolist() == (2 * x).tolist()
    assert compiled(x).sharding == NamedSharding(mesh(), P("a"))
    reverse = ts.make_mesh((4, 2), ("a", "b"), ts.devices()[::-1])
    one = ts.devices()[0]
    for wrong in (put(x), put(x, "b"), ts.device_put(x, one), ts.device_put(x, NamedSharding(reverse, P("a")))):
        with pytest.raises(ts.ShardingError, match=r"(?s)other shardings.*got:  x with"):
            compiled(wrong)


def test_words_for_one_layout_may_differ():
    x = torch.arange(8.0).reshape(8, 1)
    compiled = ts.jit(lambda x: x * 2).lower(put(x, "a")).compile()
    assert compiled(put(x, "a", None)).tolist() == (2 * x).tolist()


def test_results_are_committed_where_an_argument_is():
    compiled = ts.jit(lambda x: x * 2).lower(torch.ones(2)).compile()
    assert not compiled(torch.ones(2)).committed
    assert compiled(ts.device_put(torch.ones(2), ts.devices()[0])).committed
    with pytest.raises(ts.ShardingError, match="other shardings"):
        compiled(ts.device_put(torch.ones(2), ts.devices()[1]))


def test_static_arguments_are_not_given_again():
    f, runs = counted(lambda x, n, *, flip: -x * n if flip else x * n)
    x = torch.ones(2)
    compiled = ts.jit(f, static_argnums=1, static_argnames="flip").lower(x, 3, flip=True).compile()
    assert compiled(x).tolist() == [-3.0, -3.0]
    for args, kwargs in (((x, 3), {}), ((x,), {"flip": True})):
        with pytest.raises(ts.DtypeError, match="static ones left out"):
            compiled(*args, **kwargs)
    assert len(runs) == 1


def test_arguments_by_name_in_another_order_fit():
    compiled = ts.jit(lambda *, a, b: a - b).lower(a=torch.ones(2), b=torch.zeros(2)).compile()
    assert compiled(b=torch.ones(2), a=torch.zeros(2)).tolist() == [-1.0, -1.0]


class Holder:
    weight = torch.ones(3)


def test_what_it_closes_over_is_looked_up_and_must_fit():
    holder = Holder()
    holder.weight = torch.ones(3)
    compiled = ts.jit(lambda x: x * holder.weight).lower(torch.ones(3)).compile()
    holder.weight = torch.full((3,), 5.0)
    assert compiled(torch.ones(3)).tolist() == [5.0, 5.0, 5.0]
    holder.weight = torch.ones(1)
    with pytest.raises(ts.DtypeError, match=r"(?s)weight.*f32\[3\], now f32\[1\]"):
        compiled(torch.ones(3))


def test_a_compiled_function_is_not_for_transformations():
    compiled = ts.jit(lambda x: (x**2).sum()).lower(torch.ones(3)).compile()
    for transformed in (ts.grad(compiled), ts.vmap(compiled), ts.jit(compiled)):
        with pytest.raises(ts.DtypeError, match="inside jit or a transformation"):
            transformed(torch.ones(3))


def test_a_program_lowered_on_an_abstract_mesh_runs_on_arrays_of_a_mesh_and_not_alone():
    abstract = ts.AbstractMesh((4, 2), ("a", "b"))
    described = ts.ShapeDtypeStruct((8,), torch.float32, sharding=NamedSharding(abstract, P("a")))
    compiled = ts.jit(lambda x: x + 1).lower(described).compile()
    made = compiled(put(torch.zeros(8), "a"))
    assert made.tolist() == [1.0] * 8 and made.sharding == NamedSharding(mesh(), P("a"))
    with pytest.raises(ts.ShardingError, match="abstract mesh"):
        compiled(torch.zeros(8))


def test_input_and_output_shardings_are_trees():
    x = torch.zeros(8, 8)
    rows, columns, whole = (NamedSharding(mesh(), P(*s)) for s in (("a", None), (None, "b"), ()))
    f = ts.jit(
        lambda p, n, y: {"sum": p["w"] + y, "rest": (y, 3, None)},
        static_argnums=1,
        out_shardings={"sum": rows, "rest": None},
    )
    compiled = f.lower({"w": put(x, "a", None)}, 3, y=put(x, None, "b")).compile()
    assert compiled.input_shardings == (({"w": rows},), {"y": columns})
    assert compiled.output_shardings == {"sum": rows, "rest": (columns, None, None)}
    assert ts.jit(lambda x: x.sum()).lower(put(x, "a")).compile().output_shardings == whole


def test_shard_map_and_pmap_compile_too():
    f = ts.shard_map(lambda v: ts.lax.psum(v, "a"), mesh=mesh(), in_specs=P("a", None), out_specs=P(None, None))
    x = torch.arange(8.0).reshape(4, 2)
    compiled = f.lower(x).compile()
    assert compiled(x).tolist() == [[12.0, 16.0]]
    assert compiled.output_shardings == NamedSharding(mesh(), P(None, None))
    with pytest.raises(ts.DtypeError, match="compiled for"):
        compiled(torch.zeros(8, 2))
    rows = ts.pmap(lambda v: v * 2).lower(x).compile()
    assert rows(x).tolist() == (2 * x).tolist()


# ---- jit itself -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numbers", [2, -3, (0, 5)])
def test_a_static_position_that_the_function_does_not_have_is_an_error(numbers):
    with pytest.raises(ts.StaticArgumentError, match="takes 2 arguments by position"):
        ts.jit(lambda x, n: x, static_argnums=numbers)
    with pytest.raises(ts.StaticArgumentError, match="takes 2 arguments by position"):
        ts.pmap(lambda x, n: x, static_broadcasted_argnums=numbers)


def test_static_positions_of_args_and_of_defaults_are_free():
    assert ts.jit(lambda *xs: xs[0] * xs[2], static_argnums=2)(torch.ones(2), 1, 3).tolist() == [3.0, 3.0]
    assert ts.jit(lambda x, n=4: x * n, static_argnums=1)(torch.ones(2)).tolist() == [4.0, 4.0]
    assert ts.jit(torch.sin, static_argnums=())(torch.zeros(1)).tolist() == [0.0]


def test_a_static_name_that_the_function_does_not_have_is_an_error():
    with pytest.raises(ts.StaticArgumentError, match="'m'"):
        ts.jit(lambda x, n: x, static_argnames="m")


@pytest.mark.parametrize("wrap", [ts.jit, ts.pmap, lambda f: ts.shard_map(f, in_specs=P(), out_specs=P())])
def test_a_jitted_function_keeps_what_its_function_has(wrap):
    def doubled(x: torch.Tensor) -> torch.Tensor:
        """Twice x."""
        return 2 * x

    doubled.some_value = 4
    made = wrap(doubled)
    assert (made.__name__, made.__doc__, made.__module__) == ("doubled", "Twice x.", __name__)
    assert made.__qualname__ == doubled.__qualname__ and made.__annotations__ == doubled.__annotations__
    assert made.__wrapped__ is doubled
    assert made.some_value == 4
    doubled.some_value = 5
    assert made.some_value == 5
    with pytest.raises(AttributeError, match="other_value"):
        made.other_value  # noqa: B018


def test_a_jitted_module_keeps_its_attributes():
    module = torch.nn.Linear(2, 3)
    jitted = ts.jit(module)
    assert jitted.training and jitted.in_features == 2
    module.eval()
    assert not jitted.training
    x = torch.ones(2)
    assert np.allclose(jitted(x).detach().numpy(), module(x).detach().numpy())
