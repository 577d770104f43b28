"""Values of a trace that is over, and values inside of a transformation that Python asks for numbers or memory."""

import copy
import pickle

import pytest
import torch

import tinyshard as ts
from tinyshard.core.errors import EndedTraceError, TracedValueError

pytestmark = pytest.mark.usefixtures("local")

TRACES = {
    "jit": ts.jit,
    "jit of grad": lambda f: ts.jit(ts.grad(f)),
    "jit of vmap": lambda f: ts.jit(ts.vmap(f)),
    "jit of grad of grad": lambda f: ts.jit(ts.grad(lambda x: ts.grad(f)(x).sum())),
    "jit of vmap of grad": lambda f: ts.jit(ts.vmap(ts.grad(f))),
    "grad of jit of grad": lambda f: ts.grad(lambda x: ts.jit(ts.grad(f))(x).sum()),
}
USES = {
    "tolist": lambda v: v.tolist(),
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "pickle.dumps": pickle.dumps,
    "numpy": lambda v: v.numpy(),
    "item": lambda v: v.sum().item(),
    "bool": lambda v: bool(v.sum()),
    "an op": lambda v: v + 1,
    "an op with another": lambda v: torch.ones(3) + v,
    "a shape": lambda v: v.shape,
    "a use inside of grad": lambda v: ts.grad(lambda x: (x * v).sum())(torch.ones(3)),
    "tolist inside of grad": lambda v: ts.grad(lambda x: (v.tolist(), x.sum())[1])(torch.ones(3)),
    "copy.copy inside of grad": lambda v: ts.grad(lambda x: (copy.copy(v), x.sum())[1])(torch.ones(3)),
    "a use inside of jit": lambda v: ts.jit(lambda x: x * v)(torch.ones(3)),
}


@pytest.mark.parametrize("trace", TRACES)
def test_every_use_of_a_traced_value_after_its_trace_names_the_function(trace):
    kept = []

    def leaks(x):
        made = x * 2
        kept.extend([x, made, made.sin()])
        return (made * x).sum()

    TRACES[trace](leaks)(torch.ones(2, 3))
    for value in kept:
        for name, use in USES.items():
            with pytest.raises(EndedTraceError, match=r"a value made while \S+ was traced"):
                use(value)
                pytest.fail(name)
        assert "whose trace is over" in repr(value)


@pytest.mark.parametrize("put", [lambda x: x, ts.array], ids=["host", "default"])
def test_inside_of_grad_a_value_has_a_list_and_no_memory(put):
    lists = []

    def listed(x):
        lists.append((x * 2).tolist())
        return x.sum()

    def copied(x):
        return (copy.copy(x) * 2).sum()

    x = put(torch.ones(3))
    ts.grad(listed)(x)
    ts.grad(lambda x: ts.grad(listed)(x).sum())(x)
    assert lists == [[2.0] * 3] * 2
    for call in (ts.grad(copied), ts.jit(ts.grad(copied)), ts.grad(lambda x: (pickle.dumps(x), x.sum())[1])):
        with pytest.raises(ts.DtypeError, match=r"has no memory of its own(?s:.*)try:  x\.clone\(\)"):
            call(x)


@pytest.mark.parametrize("ask", [lambda x: x.tolist(), lambda x: x.numpy(), lambda x: x.numpy(force=True)])
def test_a_traced_value_inside_of_a_transformation_has_no_number_yet(ask):
    def asks(x):
        ask(x)
        return x.sum()

    for call in (ts.jit(asks), ts.jit(ts.grad(asks)), ts.jit(ts.vmap(asks))):
        with pytest.raises(TracedValueError, match="Python asks for the value of a traced tensor"):
            call(torch.ones(2, 3))
    closed = torch.ones(3)
    assert ts.jit(lambda x: x + len(closed.tolist()))(torch.ones(1)).tolist() == [4]
