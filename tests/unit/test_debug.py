"""Prints, callbacks and checks from inside of programs: what is called, with what, how often and in which order."""

import gc
from typing import Any

import pytest
import torch

import tinyshard as ts

pytestmark = pytest.mark.usefixtures("local")


@pytest.fixture
def rows(mesh: ts.Mesh) -> ts.Array:
    return ts.device_put(torch.arange(8.0), ts.NamedSharding(mesh, ts.P("a")))


def shown(x: torch.Tensor) -> torch.Tensor:
    ts.debug.print("x {}", x)
    return x * 2


def body(carry: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    ts.debug.print("{} {r}", carry, r=row)
    return carry + row, carry


def looped(x: torch.Tensor) -> torch.Tensor:
    return ts.lax.scan(body, torch.zeros(()), x)[0]


def nested(x: torch.Tensor) -> torch.Tensor:
    return ts.lax.scan(lambda carry, _: (carry + looped(x) ** 2, None), torch.zeros(()), torch.zeros(2))[0]


@ts.custom_jvp
def ruled(x: torch.Tensor) -> torch.Tensor:
    return x.sin()


@ruled.defjvp
def _(primals: tuple[torch.Tensor], tangents: tuple[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, along = shown(primals[0]) / 2, tangents[0]
    return x.sin(), x.cos() * along


WHOLE = ["x [0. 1. 2. 3. 4. 5. 6. 7.]"]
EACH = [f"x {i}.0" for i in range(8)]
ROUNDS = ["0.0 0.0", "0.0 1.0", "1.0 2.0"]

# what is called, on which values, what is printed
PRINTS = {
    "eager": (shown, torch.arange(8.0), WHOLE),
    "jit": (ts.jit(shown), torch.arange(8.0), WHOLE),
    "pmap": (ts.pmap(shown), torch.arange(8.0), EACH),
    "vmap": (ts.vmap(shown), torch.arange(8.0), EACH),
    "jit of vmap": (ts.jit(ts.vmap(shown)), torch.arange(8.0), EACH),
    "vmap of vmap": (ts.jit(ts.vmap(ts.vmap(shown))), torch.arange(8.0).reshape(2, 4), EACH),
    "vmap of jit": (ts.vmap(ts.jit(shown)), torch.arange(8.0), EACH),
    "grad of jit": (ts.grad(lambda x: ts.jit(shown)(x).sum()), torch.arange(8.0), WHOLE),
    "jit of grad": (ts.jit(ts.grad(lambda x: shown(x).sum())), torch.arange(8.0), WHOLE),
    "grad of pmap": (ts.grad(lambda x: ts.pmap(shown)(x).sum()), torch.arange(8.0), EACH),
    "jit of grad of pmap": (ts.jit(ts.grad(lambda x: ts.pmap(shown)(x).sum())), torch.arange(8.0), EACH),
    "jvp of jit": (lambda x: ts.jvp(ts.jit(shown), (x,), (x,)), torch.arange(8.0), WHOLE),
    "scan": (ts.jit(looped), torch.arange(3.0), ROUNDS),
    "grad of scan": (ts.jit(ts.grad(looped)), torch.arange(3.0), ROUNDS),
    "grad of jit of scan": (ts.grad(ts.jit(looped)), torch.arange(3.0), ROUNDS),
    "jvp of scan": (ts.jit(lambda x: ts.jvp(looped, (x,), (x,))), torch.arange(3.0), ROUNDS),
    "grad of scan of scan": (ts.jit(ts.grad(lambda x: nested(x))), torch.arange(3.0), ROUNDS * 2),
    "linearize": (lambda x: ts.linearize(shown, x)[1](x), torch.arange(8.0), WHOLE),
    "linearize of scan": (ts.jit(lambda x: ts.linearize(looped, x)[1](x)), torch.arange(3.0), ROUNDS),
    "checkpoint": (ts.grad(ts.checkpoint(lambda x: shown(x).sin().sum())), torch.arange(8.0), WHOLE),
    "checkpoint, all saved": (
        ts.grad(ts.checkpoint(lambda x: shown(x).sin().sum(), policy=ts.checkpoint_policies.everything_saveable)),
        torch.arange(8.0),
        WHOLE,
    ),
    "checkpoint of scan": (ts.jit(ts.grad(ts.checkpoint(looped))), torch.arange(3.0), ROUNDS),
    "checkpoint in shard_map": (
        lambda x: ts.grad(lambda x: ts.pmap(ts.checkpoint(lambda x: shown(x).sin()))(x).sum())(x),
        torch.arange(8.0),
        EACH,
    ),
    "vmap of grad of checkpoint of scan": (
        ts.jit(ts.vmap(ts.grad(ts.checkpoint(looped)))),
        torch.arange(3.0).reshape(1, 3),
        ROUNDS,
    ),
    "a rule's gradient": (ts.grad(lambda x: ruled(x).sum()), torch.arange(8.0), WHOLE),
    "cond": (ts.jit(lambda x: ts.lax.cond(x.sum() > 0, shown, torch.neg, x)), torch.arange(8.0), WHOLE),
    "cond, the other": (ts.jit(lambda x: ts.lax.cond(x.sum() < 0, shown, torch.neg, x)), torch.arange(8.0), []),
}


@pytest.mark.parametrize("name", PRINTS)
def test_a_print_comes_once_for_each_value(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    function, x, expected = PRINTS[name]
    function(x)
    assert capsys.readouterr().out.splitlines() == expected


def test_jit_prints_whole_values_of_what_is_cut_or_a_partial_sum(
    rows: ts.Array, capsys: pytest.CaptureFixture[str]
) -> None:
    ts.jit(lambda x: ts.debug.print("{} {s:.1f}", x, s=x.sum()))(rows)
    assert capsys.readouterr().out == "[0. 1. 2. 3. 4. 5. 6. 7.] 28.0\n"


@pytest.mark.parametrize("transformed", [ts.jit, lambda f: ts.jit(ts.grad(lambda x: f(x).sum()))])
def test_along_explicit_axes_whole_values_are_printed(transformed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    mesh = ts.make_mesh((8,), ("a",), axis_types=(ts.AxisType.Explicit,))
    x = ts.device_put(torch.arange(8.0), ts.NamedSharding(mesh, ts.P("a")))
    assert transformed(shown)(x).sharding.spec == ts.P("a")
    assert capsys.readouterr().out.splitlines() == WHOLE


def test_shard_map_prints_by_device(rows: ts.Array, mesh: ts.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    ts.shard_map(shown, mesh=mesh, in_specs=ts.P("a"), out_specs=ts.P("a"))(rows)
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"x [{a}. {a + 1}.]" for a in range(0, 8, 2) for _ in range(2)]


def test_a_branch_that_some_devices_take_prints_for_these(capsys: pytest.CaptureFixture[str]) -> None:
    ts.pmap(lambda v: ts.lax.cond(v > 5, shown, torch.neg, v))(torch.arange(8.0))
    assert capsys.readouterr().out.splitlines() == ["x 6.0", "x 7.0"]


def test_a_program_prints_at_each_call_and_without_operands(capsys: pytest.CaptureFixture[str]) -> None:
    step = ts.jit(lambda: ts.debug.print("here"))
    step()
    step()
    ts.debug.print("{}", 3)
    assert capsys.readouterr().out == "here\nhere\n3\n"


@pytest.mark.parametrize("fmt, args, kind", [("{}", (1, 2), ValueError), ("{} {}", (1,), IndexError)])
def test_a_format_that_does_not_fit_is_refused_when_it_is_traced(
    fmt: str, args: tuple[int, ...], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        ts.jit(lambda x: ts.debug.print(fmt, *args))(torch.ones(2))


def test_a_callback_gets_trees_of_plain_tensors(rows: ts.Array) -> None:
    seen: list[object] = []
    ts.jit(lambda x: ts.debug.callback(lambda tree, word: seen.append((tree, word)), {"x": [x, 1]}, word="w"))(rows)
    [(tree, word)] = seen
    assert word == "w" and tree["x"][1] == 1 and type(tree["x"][0]) is torch.Tensor
    assert tree["x"][0].tolist() == list(range(8))


def test_what_a_callback_raises_is_raised_by_the_call(rows: ts.Array) -> None:
    def fail(x: torch.Tensor) -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ts.jit(lambda x: ts.debug.callback(fail, x))(rows)
    assert float(rows.sum()) == 28


def test_a_callback_may_use_arrays_itself(rows: ts.Array) -> None:
    seen: list[float] = []
    ts.jit(lambda x: ts.debug.callback(lambda y: seen.append(float(ts.array(y).sum())), x))(rows)
    assert seen == [28]


def test_a_callback_keeps_no_value_of_the_trace(rows: ts.Array) -> None:
    ts.jit(lambda x: ts.debug.callback(lambda y: None, x + 1))(rows)  # what outlives a trace is made an error to use
    gc.collect()


def test_what_is_not_a_function_is_refused() -> None:
    with pytest.raises(ts.DtypeError, match="not a function"):
        ts.debug.callback("print", torch.ones(2))  # type: ignore[arg-type]


def test_a_print_costs_nothing_in_the_models(rows: ts.Array) -> None:
    compiled = ts.jit(shown).lower(rows).compile()
    assert compiled.cost_analysis().nbytes == 0
    assert compiled.memory_analysis().peak_nbytes > 0
    assert "effect(" in compiled.as_text()


# ---- shardings ------------------------------------------------------------------------------------------------------


def test_a_sharding_is_inspected_when_the_program_is_planned(rows: ts.Array, mesh: ts.Mesh) -> None:
    seen: list[ts.Sharding] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        ts.debug.inspect_array_sharding(x.sin(), callback=seen.append)
        return x

    step = ts.jit(f)
    step(rows)
    step(rows)
    assert seen == [ts.NamedSharding(mesh, ts.P("a"))]
    ts.debug.inspect_array_sharding(rows, callback=seen.append)
    assert seen[1] == rows.sharding


def test_inside_of_a_mapped_function_there_is_no_sharding() -> None:
    with pytest.raises(ts.MappingError, match="has no sharding"):
        ts.pmap(lambda v: ts.debug.inspect_array_sharding(v, callback=print) or v)(torch.ones(8))


# ---- NaN ------------------------------------------------------------------------------------------------------------


def logarithm(x: torch.Tensor) -> torch.Tensor:
    y = torch.log(x - 1)
    return y + 1


def in_a_loop(x: torch.Tensor) -> torch.Tensor:
    return ts.lax.fori_loop(0, 2, lambda i, y: torch.log(y), x)


MAKES_NAN = {
    "eager": lambda x: logarithm(ts.array(x)),
    "jit": ts.jit(logarithm),
    "pmap": ts.pmap(logarithm),
    "vmap": ts.jit(ts.vmap(logarithm)),
    "grad": ts.jit(ts.grad(lambda x: logarithm(x).sum())),
    "loop": ts.jit(in_a_loop),
}


@pytest.mark.parametrize("name", MAKES_NAN)
def test_an_op_that_makes_a_nan_is_named_with_its_line_and_device(name: str) -> None:
    x = torch.tensor([0.5, *range(2, 9)])  # of eight devices the first
    MAKES_NAN[name](x)  # without the flag it is a value as any other
    with ts.debug_nans(), pytest.raises(FloatingPointError, match=r"aten\.log\.default failed on CPU 0") as caught:
        MAKES_NAN[name](x)
    assert "log" in next(line for line in str(caught.value).splitlines() if "called in" in line or "dispatched" in line)
    MAKES_NAN[name](x)


def test_a_sum_that_becomes_nan_is_an_error_of_the_exchange() -> None:
    x = torch.tensor([torch.inf, -torch.inf, *[0.0] * 6])
    with ts.debug_nans(), pytest.raises(ts.NotANumberError, match=r"all_reduce failed on CPU 0,1"):
        ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")(x)


def test_memory_that_is_not_written_yet_is_not_looked_at() -> None:
    def fresh(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(1 << 16).copy_(x)

    with ts.debug_nans():
        assert float(ts.jit(fresh)(torch.ones(1 << 16)).sum()) == 1 << 16


def test_the_flag_is_a_block_and_a_setting() -> None:
    with ts.debug_nans():
        with ts.debug_nans(False):
            assert torch.isnan(ts.array([-1.0]).log()).all()
        with pytest.raises(FloatingPointError):
            ts.array([-1.0]).log()
    assert not ts.config.read("debug_nans")
