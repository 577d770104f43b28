"""A traced function returns a tree of tensors; an object of another class that holds traced values is refused."""

from dataclasses import dataclass

import pytest
import torch
from torch.utils import _pytree

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@dataclass
class State:
    weight: torch.Tensor
    step: int = 0


class Held:
    def __init__(self, inner):
        self.inner = inner


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner):
        self.inner = inner


RESULTS = {
    "a dataclass": (State, "a State", "register_pytree_node(State"),
    "an object": (lambda v: Held([v]), "a Held", "register_pytree_node(Held"),
    "slots": (Slotted, "a Slotted", "register_pytree_node(Slotted"),
    "nested": (lambda v: {"out": (1, State([Held(v)]))}, "a State, at result['out'][1]", "register_pytree_node(State"),
    "a set": (lambda v: {v}, "a set", "a list, a tuple or a dict"),
    "a view of a dict": (lambda v: {"w": v}.values(), "a dict_values", "a list, a tuple or a dict"),
    "a generator": (lambda v: (x for x in [v]), "a generator", "a list, a tuple or a dict"),
    "an iterator": (lambda v: zip([v], [v], strict=True), "a zip", "a list, a tuple or a dict"),
    "a closure": (lambda v: lambda: v, "a function", "a list, a tuple or a dict"),
    "a gradient's value": (lambda v: ts.grad(lambda w: (w.sum(), Held(w)), has_aux=True)(v), "a Held", "Held"),
}


@pytest.mark.parametrize(("make", "got", "cure"), RESULTS.values(), ids=RESULTS)
def test_an_object_that_holds_a_traced_value_is_refused_at_the_return_by_name(make, got, cure):
    with pytest.raises(ts.DtypeError) as raised:
        ts.jit(lambda v: make(v * 2))(torch.ones(2))
    assert f"returns {got}" in str(raised.value) and cure in str(raised.value)


@pytest.mark.parametrize("make", [lambda v: {v.sum(): 1}, lambda v: [v, {"at": {(v,): 1}}]])
def test_a_dict_with_a_traced_value_as_a_key_is_refused(make):
    with pytest.raises(ts.DtypeError, match="a dict with a traced value as a key"):
        ts.jit(make)(torch.ones(2))


def test_pmap_and_shard_map_refuse_such_an_object_too():
    mesh, spec = ts.make_mesh(8, "i"), ts.P("i")
    for mapped in (ts.pmap(State), ts.shard_map(State, mesh=mesh, in_specs=spec, out_specs=spec)):
        with pytest.raises(ts.DtypeError, match="returns a State"):
            mapped(torch.ones(8))


def test_objects_without_traced_values_come_back_as_they_are():
    constant, held = torch.ones(2), Held("plain")
    back = ts.jit(lambda v: (v, held, Held(constant), torch.nn.functional.relu, range(3)))(torch.ones(2))
    assert back[1] is held and back[2].inner is constant and back[3] is torch.nn.functional.relu


def test_a_registered_class_is_a_tree():
    @dataclass
    class Registered:
        weight: torch.Tensor

    _pytree.register_pytree_node(Registered, lambda r: ([r.weight], None), lambda leaves, _: Registered(*leaves))
    back = ts.jit(lambda v: Registered(v * 2))(torch.ones(2))
    assert isinstance(back, Registered) and back.weight.tolist() == [2.0, 2.0]
