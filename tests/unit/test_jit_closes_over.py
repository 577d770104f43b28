"""What a jitted function closes over is looked up at each call, and cannot be written to."""

import types

import pytest
import torch

import tinyshard as ts
from tests.traces import Counted, same
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

SCALE = torch.tensor(2.0)
PARTS = types.ModuleType("parts")
PARTS.weight = torch.tensor([1.0, 2.0])


def test_a_global_is_looked_up_at_each_call():
    global SCALE
    f = Counted(lambda x: x * SCALE)
    before = SCALE
    try:
        assert float(f(torch.tensor(3.0))) == 6
        SCALE = torch.tensor(5.0)
        assert float(f(torch.tensor(3.0))) == 15
        SCALE.fill_(7.0)
        assert float(f(torch.tensor(3.0))) == 21
        assert f.traces == 1
        SCALE = torch.tensor([1.0, 2.0])
        assert f(torch.tensor(3.0)).tolist() == [3, 6]
        SCALE = 10.0
        assert float(f(torch.tensor(3.0))) == 30
    finally:
        SCALE = before


def test_an_attribute_of_a_module_is_looked_up_at_each_call():
    f = ts.jit(lambda x: x * PARTS.weight)
    before = PARTS.weight
    try:
        assert f(torch.tensor(1.0)).tolist() == [1, 2]
        PARTS.weight = torch.tensor([3.0, 4.0])
        assert f(torch.tensor(1.0)).tolist() == [3, 4]
    finally:
        PARTS.weight = before


def test_cells_and_nested_functions_are_looked_up_at_each_call(mesh, host):
    w = ts.device_put(host, ts.NamedSharding(mesh, P("a")))

    def inner(x):
        return x + w

    f = Counted(lambda x: inner(x) * 2)
    same(f(host), host * 4)
    w = ts.device_put(host + 1, ts.NamedSharding(mesh, P(None, "b")))
    same(f(host), host * 4 + 2)
    assert f.traces == 1
    w = w.double()
    assert f(host).dtype == torch.float64
    assert f.traces == 2


def test_trees_of_tensors_are_looked_up_at_each_call(host):
    params = {"w": [host, host + 1]}
    f = Counted(lambda x: x * params["w"][0] + params["w"][1])
    same(f(host), host * host + host + 1)
    params["w"][1] = host
    same(f(host), host * host + host)
    params = {"w": (host + 1, host)}
    same(f(host), host * (host + 1) + host)
    assert f.traces == 1


def test_two_names_of_one_tensor_may_come_apart():
    left = right = torch.tensor(2.0)
    f = ts.jit(lambda x: x * left + right)
    assert float(f(torch.tensor(1.0))) == 4
    right = torch.tensor(10.0)
    assert float(f(torch.tensor(1.0))) == 12
    left = torch.tensor(3.0)
    assert float(f(torch.tensor(1.0))) == 13


def test_parameters_of_modules_are_inputs_and_may_change_in_place(host):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))
    f = Counted(lambda x: model(x))
    same(f(host), model(host).detach())
    with torch.no_grad():
        model[0].weight.add_(1.0)
    model[2].bias = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    same(f(host), model(host).detach())
    assert f.traces == 1
    same(ts.jit(model)(host), model(host).detach())
    assert "model.0.weight" in f.jitted.lower(host).as_text()


def test_buffers_of_modules_are_read_in_evaluation(host):
    model = torch.nn.BatchNorm1d(4).eval()
    f = ts.jit(lambda x: model(x))
    same(f(host), model(host).detach())
    model.running_mean.add_(3.0)
    same(f(host), model(host).detach())


class Holder:
    shared = torch.tensor(1.0)

    def __init__(self):
        self.own = torch.tensor(1.0)

    def by_class(self, x):
        return x * Holder.shared

    @property
    def doubled(self):
        return self.own * 2


class Slotted:
    __slots__ = ("own",)


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.tensor(1.0)
        self.parts = [torch.tensor(1.0)]

    def forward(self, x):
        return x * self.scale * self.parts[0]


def test_rebinding_what_classes_modules_slots_and_containers_hold_is_seen(monkeypatch):
    monkeypatch.setattr(Holder, "shared", torch.tensor(1.0))
    holder, slotted, layer, keyed = Holder(), Slotted(), Layer(), {(0, 1): torch.tensor(1.0)}
    slotted.own = torch.tensor(1.0)
    functions = [
        ts.jit(lambda x: x * Holder.shared),
        ts.jit(lambda x: holder.by_class(x)),
        ts.jit(lambda x: x * holder.doubled / 2),
        ts.jit(lambda x: x * slotted.own),
        ts.jit(lambda x: layer(x)),
        ts.jit(lambda x: x * keyed[0, 1]),
    ]
    assert [float(f(torch.tensor(1.0))) for f in functions] == [1.0] * 6
    Holder.shared, holder.own, slotted.own = torch.tensor(5.0), torch.tensor(5.0), torch.tensor(5.0)
    layer.scale, keyed[0, 1] = torch.tensor(5.0), torch.tensor(5.0)
    assert [float(f(torch.tensor(1.0))) for f in functions] == [5.0] * 6
    layer.parts[0] = torch.tensor(2.0)
    assert float(functions[4](torch.tensor(1.0))) == 10.0


def test_closed_over_values_may_be_the_result():
    w = ts.array([1.0, 2.0])
    assert ts.jit(lambda x: w)(torch.ones(1)).tolist() == [1, 2]
    plain = torch.ones(2)
    assert isinstance(ts.jit(lambda: plain)(), ts.Array)


def test_writing_into_a_closed_over_tensor_is_refused():
    for w in (torch.ones(2), ts.array([1.0, 1.0]), torch.nn.Parameter(torch.ones(2))):
        with pytest.raises(ts.ImmutableError, match="closes over"):
            ts.jit(lambda x: w.add_(x))(torch.ones(2))  # noqa: B023 (called at once)
        assert w.tolist() == [1, 1]


def _sets_an_element(x, w):
    w[0] = 5.0
    return x + w


def _writes_through_a_view(x, w):
    w.view(-1).mul_(3.0)
    return x + w


@pytest.mark.parametrize(
    "change",
    [
        _sets_an_element,
        _writes_through_a_view,
        lambda x, w: torch.add(x, 1, out=w),
        lambda x, w: torch._foreach_add_([w], 1.0) or x,
    ],
)
def test_every_way_of_writing_into_a_closed_over_tensor_is_refused(change):
    w = torch.ones(8, 2)
    with pytest.raises(ts.ImmutableError, match="closes over"):
        ts.jit(lambda x: change(x, w))(torch.ones(8, 2))
    assert torch.equal(w, torch.ones(8, 2))


def test_training_mode_of_batch_norm_is_refused_because_it_writes_its_buffers(host):
    model = torch.nn.BatchNorm1d(4)
    with pytest.raises(ts.ImmutableError):
        ts.jit(lambda x: model(x))(host)
    assert model.running_mean.tolist() == [0] * 4
