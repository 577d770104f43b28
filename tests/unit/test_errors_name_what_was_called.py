"""An error names the function that the user called, its arguments, and a way out that this function has."""

import re

import pytest
import torch

import tinyshard as ts
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

X = torch.ones(8, 3)
INTS = torch.ones(3, dtype=torch.int64)


def over_i(f):
    return lambda: ts.vmap(f, axis_name="i")(X)


# what the user called -> the call, what its error says, and what it must not speak of
CALLS = {
    "pswapaxes of a dim that is not there": (over_i(lambda v: ts.lax.pswapaxes(v, "i", 5)), "axis=5", "split_axis"),
    "pswapaxes of a dim of another size": (
        over_i(lambda v: ts.lax.pswapaxes(v, "i", 0)),
        r"pswapaxes cannot cut dim 0(?s:.*)ts\.lax\.all_to_all\(x, axis_name, dim, dim, tiled=True\)",
        "tiled=False",
    ),
    "all_to_all of a dim of another size": (over_i(lambda v: ts.lax.all_to_all(v, "i", 0, 0)), "tiled=True", "tiled=F"),
    "all_gather over a name that is not a string": (over_i(lambda v: ts.lax.all_gather(v, 3)), "axis_name='i'", "psum"),
    "value_and_grad of ints": (lambda: ts.value_and_grad(torch.sum)(INTS), "value_and_grad needs real", "^grad"),
    "jacrev of ints": (lambda: ts.jacrev(torch.sin)(INTS), "jacrev needs real floating-point", "grad needs"),
    "jacfwd of an argument that is not there": (lambda: ts.jacfwd(torch.sin, 3)(X), "jacfwd is asked", "grad is asked"),
    "hessian of complex results": (
        lambda: ts.hessian(lambda v: v + 1j)(X[0]),
        "hessian needs a function with real results",
        "jacrev needs",
    ),
    "grad of a tree with a string": (
        lambda: ts.grad(lambda p: p["w"].sum())({"w": X, "name": "a"}),
        r"str at \['name'\]\n  try:  let the function close over",
        r"x\.float",
    ),
    "a static position of pmap that is not there": (
        lambda: ts.pmap(lambda v: v, static_broadcasted_argnums=4),
        "a position that the function does not have",
        "static_argnames",
    ),
    "make_mesh of too many names": (
        lambda: ts.make_mesh((8,), ("a", "b")),
        "1 names, or a grid of 2 dims",
        r"Mesh\(dev",
    ),
    "a described value under pmap": (
        lambda: ts.pmap(lambda v: v)(ts.ShapeDtypeStruct((8,), torch.float32)),
        r"ts\.pmap\(<lambda>\)\.lower",
        r"jit\(",
    ),
    "a compiled pmap of another shape": (
        lambda: ts.pmap(lambda v: v).lower(X).compile()(X[:, :2]),
        r"ts\.pmap\(<lambda>\), which compiles again",
        r"ts\.jit",
    ),
    "a list for a place that is not one": (lambda: ts.device_put([1.0, 2.0], "cpu"), "not a place", "a list is a tree"),
}


def over_rows(function, *, jitted=True):
    """The call on an Array that is cut along its rows over an explicit axis."""

    def call():
        mesh = ts.make_mesh((8,), ("x",), axis_types=(ts.AxisType.Explicit,))
        x = ts.device_put(X, ts.NamedSharding(mesh, P("x")))
        return (ts.jit(function) if jitted else function)(x)

    return call


KEY = ts.random.key(0)
CALLS |= {
    f"{name.strip('.')} of rows that an explicit axis cuts": (
        over_rows(function, jitted=jitted),
        f"^{re.escape(name)}: a dim is sharded that the op needs whole",
        "^(index_select|slice|select|flip|cat|gather)",
    )
    for name, function, jitted in [
        ("dynamic_slice", lambda x: ts.lax.dynamic_slice(x, (INTS[0], 0), (2, 3)), True),
        ("dynamic_index_in_dim", lambda x: ts.lax.dynamic_index_in_dim(x, 1), False),
        ("dynamic_update_slice", lambda x: ts.lax.dynamic_update_slice(X.repeat(2, 1), x, (INTS[0], 0)), True),
        ("x.at[...].get", lambda x: x.at[1].get(), False),
        ("x.at[...].subtract", lambda x: x.at[INTS].subtract(1), True),
        ("x.at[...].divide", lambda x: x.at[1:3].divide(2), True),
        ("x.at[...].apply", lambda x: x.at[INTS].apply(torch.sin), False),
        ("associative_scan", lambda x: ts.lax.associative_scan(torch.add, x, reverse=True), True),
        ("permutation", lambda x: ts.random.permutation(KEY, x), True),
        ("choice", lambda x: ts.random.choice(KEY, x, (2,)), True),
        ("multinomial", lambda x: ts.random.multinomial(KEY, 3, x.T), True),
    ]
}


@pytest.mark.parametrize("what", CALLS)
def test_an_error_names_what_was_called_and_what_it_takes(what):
    call, said, unsaid = CALLS[what]
    with pytest.raises(ts.TinyshardError, match=said) as caught:
        call()
    assert not re.search(unsaid, str(caught.value))


def test_within_a_function_of_the_users_own_an_op_has_its_name():
    with pytest.raises(ts.ShardingError, match=r"^flip: a dim is sharded"):
        over_rows(lambda x: x.at[:, 0].apply(lambda v: v.flip(0)))()


def test_the_line_of_a_call_is_the_users():
    mesh = ts.make_mesh((8,), ("x",))
    x = ts.device_put(torch.arange(8), ts.NamedSharding(mesh, P("x")))
    with pytest.raises(ts.errors.RemoteError, match=rf"dispatched by {re.escape(__file__)}"):
        x.at[torch.tensor([9])].get(mode="promise_in_bounds").numpy()


def test_a_file_of_arrays_is_told_by_a_public_name_to_a_process_without_tinyshard(tmp_path):
    file = tmp_path / "weights.pt"
    torch.save({"w": ts.array([1.0, 2.0])}, file)
    known = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()  # as where nobody has imported tinyshard
    try:
        assert torch.serialization.get_unsafe_globals_in_checkpoint(file) == ["tinyshard.saved_array"]
    finally:
        torch.serialization.add_safe_globals(known)
    assert torch.load(file)["w"].tolist() == [1, 2]
    placed = ts.device_put(torch.load(file), ts.NamedSharding(ts.make_mesh(2, "d"), P("d")))
    assert placed["w"].sharding.spec == P("d")
