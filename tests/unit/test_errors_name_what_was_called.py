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


@pytest.mark.parametrize("what", CALLS)
def test_an_error_names_what_was_called_and_what_it_takes(what):
    call, said, unsaid = CALLS[what]
    with pytest.raises(ts.TinyshardError, match=said) as caught:
        call()
    assert not re.search(unsaid, str(caught.value))


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
