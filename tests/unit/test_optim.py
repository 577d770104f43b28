"""torch's optimizers as functions: torch's own numbers, under any sharding, with a state that keeps its form."""

import pytest
import torch

import tinyshard as ts
from tests.extent import mostly_whole
from tests.refusals import assert_refused
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

OPTIMIZERS = {
    "SGD": (torch.optim.SGD, {"lr": 0.1}),
    "SGD with momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    "Adam": (torch.optim.Adam, {"amsgrad": True}),
    "AdamW": (torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.9)}),
    "Adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.1}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "ASGD": (torch.optim.ASGD, {}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.1}),
    "Rprop": (torch.optim.Rprop, {}),
    "NAdam": (torch.optim.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "RAdam": (torch.optim.RAdam, {}),
    "Muon": (torch.optim.Muon, {"lr": 0.1}),
}
STEPS = 7  # RAdam takes another formula from the sixth on
TOLERANCE = {"Muon": {"rtol": 0, "atol": 0.02}}  # it multiplies matrices of bfloat16


@pytest.fixture
def params():
    torch.manual_seed(0)
    return {"w": torch.randn(8, 8), "layers": [torch.randn(8, 4), torch.randn(4, 8)]}


def gradients(params, step):
    return ts.tree.map(lambda x: x.sin() * (step - 2.5), params)


def by_torch(kind, options, params, steps=STEPS, rate=None, groups=lambda leaves: [{"params": leaves}]):
    leaves = [x.clone() for x in ts.tree.leaves(params)]
    optimizer = kind(groups(leaves), **options)
    for step in range(steps):
        for x, grad in zip(leaves, ts.tree.leaves(gradients(params, step)), strict=True):
            x.grad = grad
        if rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = rate(step)
        optimizer.step()
    return leaves


def assert_equal(got, wanted, **tolerance):
    for a, b in zip(ts.tree.leaves(ts.device_get(got)), wanted, strict=True):
        torch.testing.assert_close(a, b, **tolerance)


def forms(tree):
    return ts.tree.map(lambda x: (x.shape, x.dtype, x.sharding), tree)


@pytest.mark.parametrize("name", mostly_whole(OPTIMIZERS, lambda name: name in ("SGD with momentum", "AdamW", "Muon")))
def test_each_optimizer_gives_torchs_numbers_under_jit_and_outside(name, params, mesh):
    kind, options = OPTIMIZERS[name]
    optimizer = ts.optim.functional(kind, **options)
    wanted = by_torch(kind, options, params)
    traced = []

    @ts.jit
    def step(values, grads, state):
        traced.append(1)
        return optimizer.update(values, grads, state)

    shardings = {"w": ts.NamedSharding(mesh, P("a", "b")), "layers": ts.NamedSharding(mesh, P(None, "b"))}
    for update in (step, optimizer.update):
        values = ts.device_put(params, shardings)
        state = optimizer.init(values)
        before = forms((values, state))
        for count in range(STEPS):
            values, state = update(values, ts.device_put(gradients(params, count), shardings), state)
        assert_equal(values, wanted, **TOLERANCE.get(name, {}))
        assert forms((values, state)) == before
        assert int(state["count"]) == STEPS
    assert len(traced) == 1


def test_the_state_is_that_of_torch_by_name(params):
    state = ts.optim.functional(torch.optim.AdamW).init(params)
    assert set(state["slots"]["w"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert state["slots"]["layers"][1]["exp_avg"].shape == (4, 8)


def rising(step):
    return 0.1 * ((step + 1) / 4).clamp(max=1.0)


@pytest.mark.parametrize("name", ["SGD", "AdamW", "Adagrad", "Muon"])
def test_a_schedule_is_a_function_of_the_number_of_updates(name, params):
    kind = OPTIMIZERS[name][0]
    optimizer = ts.optim.functional(kind, lr=rising)
    values, state = ts.array(params["w"]), optimizer.init(ts.array(params["w"]))
    for step in range(STEPS):
        values, state = optimizer.update(values, gradients(params["w"], step), state)
    wanted = by_torch(kind, {"lr": 0.1}, params["w"], rate=lambda step: float(rising(torch.tensor(step))))
    assert_equal(values, wanted, **TOLERANCE.get(name, {"rtol": 1e-5, "atol": 1e-6}))


def test_a_pattern_of_names_gives_some_parameters_options_of_their_own(params):
    optimizer = ts.optim.functional(
        torch.optim.AdamW, lr=0.1, groups={"layers.*": {"weight_decay": 0.5, "lr": 0.01}, "w": {}}
    )
    values, state = params, optimizer.init(params)
    for step in range(STEPS):
        values, state = optimizer.update(values, gradients(params, step), state)
    own = {"weight_decay": 0.5, "lr": 0.01}
    wanted = by_torch(
        torch.optim.AdamW, {"lr": 0.1}, params, groups=lambda xs: [{"params": xs[:1]}, {"params": xs[1:], **own}]
    )
    assert_equal(values, wanted)


def test_a_parameter_without_a_gradient_stays(params):
    optimizer = ts.optim.functional(torch.optim.Adam, lr=0.1)
    values = {**ts.device_put(params), "bias": None}
    state = optimizer.init(values)
    new, state = optimizer.update(values, {**gradients(params, 0), "w": None, "bias": None}, state)
    assert torch.equal(ts.device_get(new["w"]), params["w"])
    assert float(state["slots"]["w"]["step"]) == 0
    assert float(state["slots"]["layers"][0]["step"]) == 1
    assert new["bias"] is None


def test_zero_1_is_a_sharding_of_the_state(params):
    mesh = ts.make_mesh(8, "d")
    copies, parts = ts.NamedSharding(mesh, P()), ts.NamedSharding(mesh, P("d"))
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=0.1)
    values = ts.device_put(params["w"], copies)
    state = optimizer.init(values, parts)
    assert state["slots"]["exp_avg"].addressable_shards[0].data.shape == (1, 8)
    step = ts.jit(optimizer.update, out_shardings=(copies, ts.tree.map(lambda x: x.sharding, state)))
    for count in range(STEPS):
        values, state = step(values, ts.device_put(gradients(params["w"], count), copies), state)
    assert state["slots"]["exp_avg"].addressable_shards[0].data.shape == (1, 8)
    assert_equal(values, by_torch(torch.optim.AdamW, {"lr": 0.1}, params["w"]))
    sent = step.lower(values, values, state).compile().cost_analysis().traffic
    assert {each.kind for each in sent} == {"all_gather"}, "of the new parameters, and of nothing else"


def test_a_state_in_parts_is_made_where_the_whole_state_does_not_fit():
    ts.init(devices=8, runtime="local", memory_per_device="8 MiB")
    try:
        mesh = ts.make_mesh(8, "d")
        copies = ts.NamedSharding(mesh, P())
        params = ts.device_put({str(i): torch.ones(2**17) for i in range(8)}, copies)  # 4 MiB, as are both means
        state = ts.optim.functional(torch.optim.AdamW).init(params, ts.NamedSharding(mesh, P("d")))
        ts.block_until_ready(state)
        assert ts.devices()[0].memory_stats()["bytes_in_use"] < 5.1 * 2**20
    finally:
        ts.init(devices=8, runtime="local")


def test_a_tree_of_shardings_places_each_part_of_the_state_beside_its_entry(params):
    mesh = ts.make_mesh(8, "d")
    copies, parts = ts.NamedSharding(mesh, P()), ts.NamedSharding(mesh, P("d"))
    values = {"a": ts.device_put(torch.ones(16, 8), copies), "b": ts.device_put(torch.ones(8), copies)}
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=0.1)
    slots = optimizer.init(values, ts.shardings(values, {"a": P("d")}, mesh))["slots"]
    assert slots["a"]["exp_avg"].sharding == parts and slots["a"]["step"].sharding == copies
    assert slots["b"]["exp_avg"].sharding == copies
    slots = optimizer.init(values, {"a": None, "b": parts})["slots"]
    assert slots["a"]["exp_avg"].sharding == copies and slots["b"]["exp_avg_sq"].sharding == parts
    with pytest.raises(ts.ShardingError, match="shardings of the state do not fit the parameters"):
        optimizer.init(values, {"a": parts})


def test_a_training_step_in_one_program_follows_torch(mesh):
    torch.manual_seed(0)
    x, y = torch.randn(16, 8), torch.randn(16, 4)
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
    values = {name: ts.device_put(p.detach(), ts.NamedSharding(mesh, P())) for name, p in net.named_parameters()}
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=0.05)
    state = optimizer.init(values)

    def loss_of(values, x, y):
        return torch.nn.functional.mse_loss(torch.func.functional_call(net, values, (x,)), y)

    @ts.jit
    def step(values, state, x, y):
        loss, grads = ts.value_and_grad(loss_of)(values, x, y)
        grads, norm = ts.optim.clip_by_global_norm(grads, 0.5)
        values, state = optimizer.update(values, grads, state)
        return values, state, loss, norm

    plain = torch.optim.AdamW(net.parameters(), lr=0.05)
    rows = ts.NamedSharding(mesh, P("a"))
    reference = {name: p.detach().clone() for name, p in net.named_parameters()}
    for _ in range(5):
        values, state, loss, norm = step(values, state, ts.device_put(x, rows), ts.device_put(y, rows))
        plain.zero_grad()
        wanted = torch.nn.functional.mse_loss(net(x), y)
        wanted.backward()
        wanted_norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        plain.step()
        assert_equal((loss, norm), (wanted.detach(), wanted_norm))
    assert any(not torch.equal(p, reference[name]) for name, p in net.named_parameters())
    for name, p in net.named_parameters():
        torch.testing.assert_close(ts.device_get(values[name]), p.detach())


@pytest.mark.parametrize(
    "tree", [{"a": torch.tensor([3.0, -4.0]), "b": None}, [torch.tensor([1 + 2j, 2 - 4j])], [], [torch.zeros(3)]]
)
def test_the_global_norm_is_that_of_one_vector(tree):
    flat = [x.reshape(-1) for x in ts.tree.leaves(tree)]
    wanted = torch.linalg.vector_norm(torch.cat(flat)) if flat else torch.tensor(0.0)
    torch.testing.assert_close(ts.optim.global_norm(tree), wanted)
    clipped, norm = ts.optim.clip_by_global_norm(tree, 2.0)
    torch.testing.assert_close(norm, wanted)
    assert float(ts.optim.global_norm(clipped)) <= 2.0 + 1e-5
    same, _ = ts.optim.clip_by_global_norm(tree, 100.0)
    for x, y in zip(ts.tree.leaves(same), ts.tree.leaves(tree), strict=True):
        torch.testing.assert_close(x, y)


def test_a_norm_of_halves_is_summed_in_float32():
    assert float(ts.optim.global_norm([torch.ones(4096, dtype=torch.bfloat16)])) == 64


def updated(params, grads, others=None):
    optimizer = ts.optim.functional(torch.optim.SGD, lr=0.1)
    return optimizer.update(params, grads, optimizer.init(params if others is None else others))


W = {"w": torch.ones(2)}
REFUSED = {
    "an optimizer, not its class": (lambda: ts.optim.functional(torch.optim.SGD([W["w"]], lr=0.1)), "the class"),
    "a function": (lambda: ts.optim.functional(torch.nn.functional.relu), "the class"),
    "LBFGS": (lambda: ts.optim.functional(torch.optim.LBFGS), "several times"),
    "SparseAdam": (lambda: ts.optim.functional(torch.optim.SparseAdam), "sparse"),
    "Adafactor": (lambda: ts.optim.functional(torch.optim.Adafactor), "counter"),
    "dampening": (lambda: ts.optim.functional(torch.optim.SGD, momentum=0.9, dampening=0.5), "dampening=0.5"),
    "integers": (lambda: ts.optim.functional(torch.optim.SGD).init({"w": torch.arange(3)}), "'w' of dtype int64"),
    "an option of another name": (lambda: ts.optim.functional(torch.optim.Adam, learning_rate=0.1), "its options are"),
    "a pattern of nothing": (
        lambda: ts.optim.functional(torch.optim.Adam, groups={"b": {"lr": 1.0}}).init(W),
        "'b'",
    ),
    "a state in the place of gradients": (
        lambda: ts.optim.functional(torch.optim.Adam).update(W, ts.optim.functional(torch.optim.Adam).init(W), W),
        "update(params, grads, state)",
    ),
    "gradients of another tree": (lambda: updated(W, [W["w"]]), "the gradients do not fit"),
    "a state of another tree": (lambda: updated(W, W, {"v": torch.ones(2)}), "the slots of the state do not fit"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_trained_is_refused_in_words(name):
    call, word = REFUSED[name]
    assert_refused(call, ts.DtypeError, [word])


def test_adamw_updates_where_jit_is_disabled():
    x = torch.arange(8.0) - 3
    optimizer = ts.optim.functional(torch.optim.AdamW, lr=0.1)
    params = {"w": ts.array(x)}
    with ts.disable_jit():
        updated, _ = ts.jit(optimizer.update)(params, params, optimizer.init(params))
    leaf = torch.nn.Parameter(x.clone())
    leaf.grad = x.clone()
    torch.optim.AdamW([leaf], lr=0.1).step()
    torch.testing.assert_close(ts.device_get(updated["w"]), leaf.detach())


def test_the_state_is_made_without_memory_for_gradients():
    ts.init(devices=2, runtime="local", memory_per_device="16 MiB")
    params = {"w": ts.device_put(torch.zeros(1 << 20), ts.devices()[1])}  # 4 MiB
    state = ts.optim.functional(torch.optim.AdamW, lr=0.1).init(params)
    assert set(state["slots"]["w"]) == {"step", "exp_avg", "exp_avg_sq"}
    assert ts.devices()[1].memory_stats()["peak_bytes_in_use"] < 13 * 2**20
    ts.init(devices=8, runtime="local")
