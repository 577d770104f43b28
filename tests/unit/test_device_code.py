"""A program's generated function does what its steps do one by one, also where something goes wrong."""

import gc
import random
import re
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tinyshard as ts
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.effects import EFFECT
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import Communicator, Group, PeerLostError, Perform
from tinyshard.runtime.failure import Failure
from tinyshard.runtime.worker.control import CallControl
from tinyshard.runtime.worker.device_code import CHECK_STEPS, code_of, device_code
from tinyshard.runtime.worker.executor import make_ready
from tinyshard.runtime.worker.flow import Scan
from tinyshard.runtime.worker.steps import Steps
from tinyshard.runtime.worker.values import Memory

MESH = ts.AbstractMesh((2,), "d")
NUMBER = 7
Act = Callable[[CallControl], object]


class Mirror(Communicator):
    """Device 0 of a group whose other members hold what it holds.

    Attributes:
        exchanges: (collective, moment, operands) of each exchange.
    """

    def __init__(self, control: CallControl, acts: dict[int, Act]) -> None:
        super().__init__(0)
        self.exchanges: list[tuple[str, Any, list[Any]]] = []
        self._control = control
        self._acts = acts

    def _ready_exchange(self, name: str, group: Group, metas: Any, params: dict[str, Any]) -> Perform:
        form = COLLECTIVES[name].form
        assert form is not None

        def perform(xs: Any, moment: Any) -> list[Tensor]:
            count = len(self.exchanges)
            self.exchanges.append((name, moment, [x.tolist() for x in xs]))
            self._acts.get(count, lambda control: None)(self._control)
            return [form(torch.stack([x] * group.count), **params)[group.place] for x in xs]

        return perform


class Ran:
    """What became of a call: its results, its failures, and its exchanges."""

    def __init__(self, program: Program, operands: list[Tensor], *, joined: bool, acts: dict[int, Act]) -> None:
        control, self.failures = CallControl(), list[Failure]()
        communicator = Mirror(control, acts)

        def fail(number: int, failure: Failure) -> None:
            self.failures.append(failure)

        steps = Steps(0, control, fail, None, has_arena=True)
        ready = make_ready(program, communicator=communicator, send=lambda site, blocks: None)
        if joined:
            ready = steps.joined(ready)
            assert ready.function is not None
        values = [*operands, *[None] * (ready.size - len(operands))]
        operands.clear()
        control.enter(NUMBER)
        steps.begin(NUMBER, None)
        steps.run(ready, [values], [0])
        failed = steps.failure
        assert control.current is None and self.failures == ([failed] if failed else [])
        self.results = None if failed else [values[slot] for slot in program.outputs]
        self.exchanges = communicator.exchanges
        self.said = [(f.call, f.error, f.lost, f.interrupt, f.line) for f in self.failures]


def both(program: Program, operands: list[Tensor], acts: dict[int, Act] | None = None) -> Ran:
    """The call by the generated function, after a comparison with its steps one by one."""
    slow, fast = (Ran(program, list(operands), joined=joined, acts=acts or {}) for joined in (False, True))
    assert fast.said == slow.said and fast.exchanges == slow.exchanges
    if slow.results is not None:
        assert fast.results is not None
        for x, y in zip(fast.results, slow.results, strict=True):
            assert x is None is y or (torch.equal(x, y) and x.dtype == y.dtype)
    return fast


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> ts.ShapeDtypeStruct:
    return ts.ShapeDtypeStruct(shape, dtype, sharding=ts.NamedSharding(MESH, ts.P("d")))


def program_of(f: Callable[..., Any], *args: Any) -> tuple[Program, list[Tensor]]:
    """The program of a function, and operands for one device."""
    program = ts.jit(f).lower(*args).compile().program
    generator = torch.Generator().manual_seed(0)
    metas = [meta for meta in program.metas[: program.num_inputs] if meta]
    return program, [torch.randn(m.shape, generator=generator).abs().mul(3).to(m.dtype) for m in metas]


def loop(x: Tensor) -> Tensor:
    return ts.lax.fori_loop(0, 3, lambda k, v: v * 0.5 + v.sum(0) + k, x)


def branch(x: Tensor) -> Tensor:
    return ts.lax.cond(x.sum() > 0, lambda v: v - v.mean(0), lambda v: v * 2, x)


def steps_of_sgd(x: Tensor, w: Tensor, b: Tensor) -> tuple[Tensor, ...]:
    gradients = ts.grad(lambda p: torch.tanh(x @ p[0] + p[1]).square().sum())((w, b))
    return tuple(p - 0.1 * g for p, g in zip((w, b), gradients, strict=True))


SQUARE, SMALL = ts.ShapeDtypeStruct((4, 4), torch.float32), ts.ShapeDtypeStruct((4,), torch.float32)
INDICES = ts.ShapeDtypeStruct((5, 4, 4), torch.int64)
FUNCTIONS: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "products": (lambda x, w: torch.tanh(x @ w).sum(0) * 2 + 1, [rows(8, 4), SQUARE]),
    "several results": (lambda x: (*x.topk(2, 1), *torch.var_mean(x, 1)), [rows(8, 4)]),
    "lists": (lambda x: torch.cat([x, x * 2, *x.split(1, 1)], 1).roll([1, 2], [0, 1]), [rows(8, 4)]),
    "keywords": (lambda x: torch.nn.functional.gelu(x, approximate="tanh").double().clamp(min=0.1), [rows(8, 4)]),
    "numbers": (lambda x: (x * float("inf"), x - float("nan") > 2, x.to(torch.int64) + (1 << 40)), [rows(8, 4)]),
    "a reduction twice": (lambda x: x / x.sum(0) + x.amax(0), [rows(8, 4)]),
    "combined": (steps_of_sgd, [rows(8, 4), SQUARE, SMALL]),
    "a check that returns None": (lambda x: torch.linalg.cholesky(x.t() @ x + 5 * torch.eye(4)), [rows(8, 4)]),
    "loop": (loop, [rows(8, 4)]),
    "branch": (branch, [rows(8, 4)]),
    "scan": (lambda x: ts.lax.scan(lambda c, v: (c + v.sum(), v * c), torch.zeros(()), x.t()), [rows(8, 4)]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_function_computes_and_exchanges_what_the_steps_do(name: str) -> None:
    f, args = FUNCTIONS[name]
    program, operands = program_of(f, *args)
    assert both(program, operands).results is not None


LARGE = [rows(1024, 64), ts.ShapeDtypeStruct((64, 64), torch.float32)]
# a function, and into which operands it writes: the numbers after `out=v` in its code
REUSED: dict[str, tuple[Callable[..., Any], list[Any], list[str]]] = {
    "a product, and a row": (lambda x, w: x @ w + w[0], LARGE, ["2"]),
    "one after the other": (lambda x, w: (x * 2 + 1) / 3, LARGE, ["2", "3"]),
    "the second operand, whose layout may be another": (lambda x, w: x - x / 3, LARGE, []),
    "an input": (lambda x, w: x + 1, LARGE, []),
    "a result of the program": (lambda x, w: (y := x * 2, y + 1), LARGE, []),
    "a value that is used again": (lambda x, w: (y := x * 2) + 1 - y, LARGE, ["3"]),
    "a view": (lambda x, w: (x * 2).view(-1) + 1, LARGE, []),
    "a view is used again": (lambda x, w: ((y := x * 2) + 1, y.t()), LARGE, []),
    "another dtype": (lambda x, w: (x * 2) + x.double(), LARGE, []),
    "a number in 16 bits": (lambda x, w: (x * 2) + 1, [rows(1024, 64, dtype=torch.bfloat16), LARGE[1]], []),
    "a larger result": (lambda x, w: (x * 2) + x.view(16, 64, 64).unsqueeze(1).sum(-1).sum(-1)[..., None], LARGE, []),
    "the result of a collective": (lambda x, w: x.sum(0) + 1, [rows(8, 1 << 16), LARGE[1]], []),
    "few elements": (lambda x, w: (x * 2) + 1, [rows(8, 4), LARGE[1]], []),
    "a keyword": (lambda x, w: torch.add(x * 2, x, alpha=3), LARGE, []),
    "an op that gives back its operand": (lambda x, w: x.conj_physical() + 1, LARGE, []),
}  # fmt: skip


@pytest.mark.parametrize("name", REUSED)
def test_a_large_result_is_written_into_an_operand_that_nothing_else_uses(name: str) -> None:
    f, args, written = REUSED[name]
    program, operands = program_of(f, *args)
    before = [x.clone() for x in operands]
    assert both(program, operands).results is not None
    assert all(map(torch.equal, operands, before))
    assert re.findall(r"out=v(\d+)", device_code(program)) == written


def random_arithmetic(seed: int) -> Program:
    """30 ops, each of what came shortly before; three of what they make are results, as they are and summed up."""
    draw, meta, builder = random.Random(seed), ShapedType((64, 64), torch.float32), Builder((0, 1), (2,))
    values = [Value(builder.input(meta)) for _ in range(2)]
    for _ in range(30):
        op = draw.choice(["add.Tensor", "sub.Tensor", "mul.Tensor", "mm.default", "t.default", "tanh.default"])
        operands: list[Any] = draw.choices(values[-6:], k=1 if op in ("t.default", "tanh.default") else 2)
        if op == "mul.Tensor" and draw.random() < 0.5:
            operands[1] = 0.5
        values += map(Value, builder.emit(f"aten.{op}", operands, {}, [meta]))
    chosen, row = draw.sample(values, 3), ShapedType((64,), torch.float32)
    sums = [builder.emit("aten.sum.dim_IntList", [x, [draw.randrange(2)]], {}, [row])[0] for x in chosen]
    return builder.finish([*sums, *(x.number for x in chosen)])


def test_random_arithmetic_that_reuses_memory_gives_what_its_steps_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyshard.runtime.worker.device_code._REUSED_NBYTES", 0)
    reused, generator = 0, torch.Generator().manual_seed(0)
    operands = [torch.eye(64) + 0.02 * torch.randn(64, 64, generator=generator) for _ in range(2)]
    before = [x.clone() for x in operands]
    for program in map(random_arithmetic, range(100)):
        assert both(program, operands).results is not None
        assert all(map(torch.equal, operands, before))
        reused += device_code(program).count("out=v")
    assert reused > 150


def chain(*, fails_at: int = -1) -> Program:
    """x -> three times: an exchange of two operands, an exchange of one, and an op, which may be out of range."""
    meta, index = ShapedType((4,), torch.float32), ShapedType((4,), torch.int64)
    builder = Builder((0, 1), (2,))
    x, at, beyond = (Value(builder.input(m)) for m in (meta, index, index))
    for k in range(3):
        y, z = map(Value, builder.emit("all_reduce", [x, x], {"axes": (0,), "op": "sum"}, [meta, meta]))
        (w,) = map(Value, builder.emit("all_reduce", [z], {"axes": (0,), "op": "max"}, [meta]))
        (v,) = map(Value, builder.emit("aten.add.Tensor", [y, w], {}, [meta]))
        (x,) = map(Value, builder.emit("aten.gather.default", [v, 0, beyond if k == fails_at else at], {}, [meta]))
    return builder.finish([x.number])


X = [torch.arange(4.0), torch.tensor([1, 2, 3, 0]), torch.tensor([1, 2, 9, 0])]
ZERO, MOMENTS = [0.0] * 4, [(NUMBER, k) for k in range(6)]


def test_after_an_error_the_exchanges_get_zeros_and_the_failure_names_op_and_line() -> None:
    program = chain(fails_at=1)
    object.__setattr__(program, "lines", tuple(f"line {k}" for k in range(len(program.steps))))
    ran = both(program, X)
    ((call, error, lost, interrupt, line),) = ran.said
    assert call == "aten.gather.default(f32[4], 0, i64[4])" and error.startswith("RuntimeError: index 9 is out of")
    assert (lost, interrupt, line) == ("", "", "line 7")
    assert [moment for _, moment, _ in ran.exchanges] == MOMENTS
    assert [operands for _, _, operands in ran.exchanges[4:]] == [[ZERO, ZERO], [ZERO]]
    assert ran.exchanges[3][2] != [ZERO]


@pytest.mark.parametrize("at", range(5))
def test_a_call_that_is_cancelled_in_an_exchange_gives_zeros_in_all_that_follow(at: int) -> None:
    ran = both(chain(), X, {at: lambda control: control.cancel(NUMBER, frozenset(), "line 3")})
    assert [interrupt for _, _, _, interrupt, _ in ran.said] == ["line 3"]
    assert [moment for _, moment, _ in ran.exchanges] == MOMENTS
    assert all(x == ZERO for _, _, operands in ran.exchanges[at + 1 :] for x in operands)
    assert all(x != ZERO for _, _, operands in ran.exchanges[: at + 1] for x in operands)


def test_a_call_before_the_cancelled_one_is_not_touched() -> None:
    ran = both(chain(), X, {1: lambda control: control.cancel(NUMBER - 1, frozenset(), "")})
    assert ran.results is not None and not ran.said


def lose_and_raise(control: CallControl) -> None:
    control.lose(Failure(1, lost="killed"))
    raise PeerLostError("a device of the exchange is lost")


@pytest.mark.parametrize(
    ("at", "act", "begun"), [(2, lose_and_raise, 3), (1, lambda c: c.lose(Failure(1, lost="killed")), 2)]
)
def test_after_a_peer_is_lost_no_exchange_begins(at: int, act: Act, begun: int) -> None:
    ran = both(chain(), X, {at: act})
    assert [lost for _, _, lost, _, _ in ran.said] == ["killed"] and len(ran.exchanges) == begun


@pytest.mark.parametrize("at", [0, 2])
def test_an_exchange_that_raises_is_the_failure_and_the_others_go_on(at: int) -> None:
    def raises(control: CallControl) -> None:
        raise MemoryError("device 1 had no room for its part")

    ran = both(chain(), X, {at: raises})
    ((call, error, *_),) = ran.said
    assert call == "all_reduce(f32[4], f32[4], axes=[0], op='sum')"
    assert error == "MemoryError: device 1 had no room for its part"
    assert [moment for _, moment, _ in ran.exchanges] == MOMENTS


@pytest.mark.parametrize("k", range(3))
def test_a_loop_that_fails_or_is_cancelled_in_a_round_exchanges_zeros_in_the_others(k: int) -> None:
    program, operands = program_of(loop, rows(8, 4))

    def raises(control: CallControl) -> None:
        raise ValueError("in a round")

    # after its last exchange a call may end before it looks whether it is cancelled
    for act in (raises, lambda control: control.cancel(NUMBER, frozenset(), "line 3"))[: 1 if k == 2 else 2]:
        ran = both(program, operands, {k: act})
        assert len(ran.exchanges) == 3 and all(x == [ZERO] for _, _, x in ran.exchanges[k + 1 :])


def test_a_loop_without_exchanges_ends_when_a_round_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds, begin_round = [], Scan.next
    monkeypatch.setattr(Scan, "next", lambda flow, failed: rounds.append(failed) or begin_round(flow, failed))
    program, operands = program_of(lambda x, k: ts.lax.scan(lambda c, i: (c.gather(0, i), c), x, k)[0], SQUARE, INDICES)
    operands[1] = torch.full((5, 4, 4), 9)
    ((call, error, *_),) = both(program, operands).said
    assert call.startswith("aten.gather") and "out of bounds" in error and rounds == [False, True] * 2


def test_an_op_that_no_worker_has_is_the_error_of_each_call() -> None:
    builder, meta = Builder((0, 1), (2,)), ShapedType((4,), torch.float32)
    made = builder.emit("tests_of_tinyshard.nowhere.default", [Value(builder.input(meta)), 2.0], {}, [meta])
    ((call, error, *_),) = both(builder.finish(made), X[:1]).said
    assert call == "tests_of_tinyshard.nowhere.default(f32[4], 2.0)" and "nowhere" in error


def test_a_value_is_dropped_after_its_last_use_also_after_an_error() -> None:
    dropped: list[bool] = []

    def look(control: CallControl) -> None:
        gc.collect()
        dropped.append(operand() is None)

    for program in (chain(), chain(fails_at=1)):
        operands = [x.clone() for x in X]
        operand = weakref.ref(operands[0])
        Ran(program, operands, joined=True, acts={0: look, 2: look, 5: look})
    assert dropped == [False, True, True] * 2


TEXT = """\
def program(operands):
    v0, v1, v2, = operands
    operands.clear()
    v3, v4 = all_reduce(v0, v0)  # f32[4], f32[4], axes=(0,), op='sum'
    v0 = None
    v5 = all_reduce_2(v4)  # f32[4], axes=(0,), op='max'
    v4 = None
    v6 = aten_add(v3, v5)  # f32[4]
    v3 = v5 = None
    v7 = aten_gather(v6, 0, v1)  # f32[4]
    v6 = None
"""


def test_the_text_has_a_line_for_each_step_and_one_for_each_last_use() -> None:
    text = device_code(chain())
    assert text.startswith(TEXT) and text.endswith("\n    return v17,")
    assert code_of(chain()).steps[:10] == (-1, -1, -1, -1, 0, 0, 1, 1, 2, 2)


def test_the_text_of_a_loop_is_one_line_and_then_the_functions_of_its_rounds() -> None:
    program, _ = program_of(loop, rows(8, 4))
    head, body = device_code(program).split("\n\nc0 = torch.tensor(0.5, dtype=torch.float32)\n\n")
    assert "    v2 = scan(v0, v1)  # f32[4, 4]\n" in head and body.startswith("def scan_2_0(operands):\n")
    assert body.count(" = all_reduce(v3)  # f32[4], axes=(0,), op='sum'\n") == 1 and " = aten_mul(v0, c0)" in body


def test_the_text_says_what_a_name_is_that_stands_for_a_value_python_cannot_write() -> None:
    program, operands = program_of(lambda x: x * complex(-0.0, 2.0), rows(8, 4))
    text = device_code(program)
    assert text.startswith("# k0 is (-0+2j)\n\ndef program(operands):\n") and " = aten_mul(v0, k0)" in text
    assert both(program, operands).results is not None


def test_steps_between_which_something_is_to_be_done_have_no_function() -> None:
    control = CallControl()
    limited = Steps(0, control, lambda number, failure: failure, None, has_arena=True, memory=Memory(1 << 20))
    assert limited.joined(make_ready(chain(), communicator=Mirror(control, {}))).function is None
    steps = Steps(0, control, lambda number, failure: failure, None, has_arena=True)
    with ts.debug_nans():
        assert steps.joined(make_ready(chain(), communicator=Mirror(control, {}))).function is None


def test_there_is_a_check_before_much_work_and_before_many_steps() -> None:
    def checks(meta: ShapedType, count: int) -> list[int]:
        builder = Builder((0, 1), (2,))
        x = Value(builder.input(meta))
        for _ in range(count):
            (x,) = map(Value, builder.emit("aten.neg.default", [x], {}, [meta]))
        code = code_of(builder.finish([x.number]))
        lines = code.text.splitlines()
        return [code.steps[k + 1] for k, line in enumerate(lines) if line.strip() == "check()"]

    assert checks(ShapedType((4,), torch.float32), 3 * CHECK_STEPS - 1) == [CHECK_STEPS - 1, 2 * CHECK_STEPS - 1]
    assert checks(ShapedType((1 << 18,), torch.float32), 3) == [0, 1, 2]


def test_steps_that_do_not_check_by_themselves_count_for_the_next_check() -> None:
    meta, builder = ShapedType((4,), torch.float32), Builder((0, 1), (2,))
    x = Value(builder.input(meta))
    for _ in range(CHECK_STEPS // 2):
        builder.emit(EFFECT, [[x], 0], {}, [])
        (x,) = map(Value, builder.emit("aten.neg.default", [x], {}, [meta]))
    before, _, after = code_of(builder.finish([x.number])).text.partition("    check()\n")
    counts = [text.count("    effect") + text.count(" = aten_neg(") for text in (before, after)]
    assert counts == [CHECK_STEPS - 1, 1]
