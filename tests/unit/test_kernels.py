"""A device performs an op by the fastest way there is: what comes out is what the op itself gives."""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tinyshard as ts
from benchmarks.kernels import rows
from tests.extent import in_turn, pairwise
from tinyshard.core.program import Builder, Eqn, Value, find_op
from tinyshard.core.types import ShapedType
from tinyshard.runtime.worker.executor import make_ready
from tinyshard.runtime.worker.kernels import FUNCTIONS, KERNELS, kernel_for

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool)
SHAPES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "a single number": lambda x: x[1, 2],
}
NUMBERS = [2, -3, 0, 0.1, -0.0, 1e300, -7.5, 2**31 + 1, 2**40 + 1, 2**63, -(2**64), True, float("inf"), float("nan")]


class AWay:
    """To other devices, of which these programs have none."""


def operands(count: int, dtype: torch.dtype, shape: str = "rows") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    made = [torch.rand((3, 4), generator=generator) * 3 for _ in range(count)]
    return [SHAPES[shape](x.to(dtype)) for x in made]


def call_of(
    op: str,
    args: tuple[Any, ...],
    tensors: list[torch.Tensor],
    made: ShapedType | None,
    communicator: Any,
    **kwargs: Any,
) -> Any:
    builder = Builder((0,), (1,))
    for x in tensors:
        builder.input(ShapedType(tuple(x.shape), x.dtype))
    return make_ready(builder.finish(builder.emit(op, args, kwargs, [made])), communicator=communicator).steps[0].call


def performed(op: str, args: tuple[Any, ...], tensors: list[torch.Tensor], made: ShapedType | None) -> torch.Tensor:
    call = call_of(op, args, tensors, made, AWay())
    out: torch.Tensor = call([*tensors, None])[0]
    return out


def check_same(a: torch.Tensor, b: torch.Tensor) -> None:
    assert (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
    if a.is_floating_point():
        assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def pointwise_ops() -> list[str]:
    """Of torch's own, those that take tensors and nothing else."""
    found = []
    for packet in dir(torch.ops.aten):
        overloads: list[str] = getattr(getattr(torch.ops.aten, packet), "overloads", list)()
        for overload in ("default", "Tensor"):
            op = getattr(getattr(torch.ops.aten, packet), overload) if overload in overloads else None
            if op is not None and torch.Tag.pointwise in op.tags and torch.Tag.nondeterministic_seeded not in op.tags:
                arguments = [a for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
                # memory as it is found is own the same, and clamp wants a bound, of which the schema says nothing
                makes_one = [str(a.type) for a in op._schema.returns] == ["Tensor"]
                is_plain = makes_one and not packet.startswith(("empty", "clamp", "clip"))
                if is_plain and all(str(a.type) == "Tensor" for a in arguments):
                    found.append(f"aten.{packet}.{overload}")
    return found


@pytest.mark.parametrize("op, shape", in_turn([*pointwise_ops(), "aten.clamp.Tensor"], SHAPES))
def test_an_op_on_tensors_gives_what_it_gives_by_its_whole_name(op: str, shape: str) -> None:
    arguments = [a for a in find_op(op)._schema.arguments if not a.kwarg_only and not a.has_default_value()]
    values = tuple(map(Value, range(3 if "clamp" in op else len(arguments))))
    tried = 0
    for dtype in DTYPES:
        tensors = operands(len(values), dtype, shape)
        try:
            wanted = find_op(op)(*[x.clone() for x in tensors])
        except (RuntimeError, ValueError):  # not for this dtype: then it is refused either way
            with pytest.raises((RuntimeError, ValueError)):
                performed(op, values, [x.clone() for x in tensors], None)
            continue
        made = ShapedType(tuple(wanted.shape), wanted.dtype)
        check_same(performed(op, values, [x.clone() for x in tensors], made), wanted)
        tried += 1
    assert tried


BESIDE = ("add", "sub", "mul", "div", "add_", "mul_", "remainder", "maximum", "bitwise_and", "eq")


@pytest.mark.parametrize("number, op, shape", pairwise(NUMBERS, BESIDE, list(SHAPES)))
def test_a_number_beside_a_tensor_counts_as_torch_counts_it(number: Any, op: str, shape: str) -> None:
    name = f"aten.{op}.{'default' if op == 'maximum' else 'Tensor'}"
    for dtype in DTYPES:
        (x,) = operands(1, dtype, shape)
        try:
            wanted = find_op(name)(x.clone(), number)
        except (RuntimeError, OverflowError) as error:
            with pytest.raises(type(error)) as caught:
                performed(name, (Value(0), number), [x], ShapedType(tuple(x.shape), x.dtype))
            assert str(caught.value) == str(error)
            continue
        for made in (ShapedType(tuple(wanted.shape), wanted.dtype), None):
            check_same(performed(name, (Value(0), number), [x.clone()], made), wanted)


def test_a_number_is_converted_once_and_an_op_on_tensors_is_torchs_own_function(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (x,) = operands(1, torch.float32)
    meta = ShapedType((3, 4), torch.float32)
    seen: list[Any] = []

    def add(*args: Any) -> torch.Tensor:
        seen.append(args)
        return x

    monkeypatch.setattr(torch, "add", add)
    call = call_of("aten.add.Tensor", (Value(0), 2), [x], meta, AWay())
    call([x, None])
    call([x, None])
    (_, first), (_, second) = seen
    assert isinstance(first, torch.Tensor) and first is second and first.dtype == torch.float32 and first == 2
    call_of("aten.add.Tensor", (Value(0), 2), [x], meta, None)([x, None])
    assert len(seen) == 2, "in the user's process the op is called as it is named"


# by op, what follows its first operand in a call, and what is named
BY_FUNCTION: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    *((f"aten.{op}.default", ([4, 3],), {}) for op in ("reshape", "view")),
    *((f"aten.{op}.default", ([],), {}) for op in ("reshape", "view", "expand", "permute")),
    *((f"aten.{op}.default", (), {}) for op in ("clone", "contiguous", "sum", "t", "zeros_like", "_to_copy")),
    *((f"aten.{op}.default", (), {"dtype": to}) for op in ("sum", "zeros_like", "_to_copy") for to in DTYPES[:3]),
    ("aten.sum.dim_IntList", ([0],), {}),
    ("aten.sum.dim_IntList", (None, True), {}),
    ("aten.sum.dim_IntList", ([],), {"dtype": torch.float64}),
    ("aten.sum.dim_IntList", ([-1], True), {"dtype": torch.int64}),
    ("aten.bmm.default", (Value(1),), {}),
    ("aten.cat.default", (-1,), {}),
    ("aten.expand.default", ([2, -1, 4],), {}),
    ("aten.gelu.default", (), {}),
    ("aten.mm.default", (Value(1),), {}),
    ("aten.native_layer_norm.default", ([4], None, None, 1e-5), {}),
    ("aten.permute.default", ([-1, 0],), {}),
    ("aten.split_with_sizes.default", ([1, 3], -1), {}),
    ("aten.transpose.int", (-1, 0), {}),
    ("aten.unsqueeze.default", (-1,), {}),
]


@pytest.mark.parametrize("op, rest, named", BY_FUNCTION)
@pytest.mark.parametrize("shape", SHAPES)
def test_torchs_function_for_an_op_gives_what_the_op_gives(
    op: str, rest: tuple[Any, ...], named: dict[str, Any], shape: str
) -> None:
    x = operands(1, torch.bfloat16, shape)[0]
    if "mm" in op and x.dim() == 0:
        x = x[None, None]
    tensors = [x[None], x.t()[None]] if "bmm" in op else [x, x.t()]
    is_of_a_list = "cat" in op
    first: Any = [Value(0), Value(0)] if is_of_a_list else Value(0)
    try:
        given = [x, x] if is_of_a_list else tensors[0]
        wanted = find_op(op)(given, *(tensors[1] if isinstance(a, Value) else a for a in rest), **named)
    except RuntimeError:  # not of this shape: then it is refused either way
        with pytest.raises(RuntimeError):
            call_of(op, (first, *rest), tensors, None, AWay(), **named)([*tensors, None])
        return
    made = call_of(op, (first, *rest), tensors, None, AWay(), **named)([*tensors, None])[0]
    wanted = wanted[0] if isinstance(wanted, tuple | list) else wanted
    check_same(made, wanted)
    assert (made.data_ptr() == x.data_ptr()) == (wanted.data_ptr() == x.data_ptr()), "a copy is one, a view is one"


@pytest.mark.parametrize("rest", [([Value(1), Value(0)],), (2.5,)], ids=["List", "Scalar"])
@pytest.mark.parametrize("op", ["add", "mul", "div"])
def test_torchs_function_for_an_op_on_lists_gives_what_the_op_gives(op: str, rest: tuple[Any, ...]) -> None:
    tensors = operands(2, torch.bfloat16)
    name = f"aten._foreach_{op}.{'Scalar' if rest == (2.5,) else 'List'}"
    others = [[tensors[1], tensors[0]]] if isinstance(rest[0], list) else rest
    made = call_of(name, ([Value(0), Value(1)], *rest), tensors, None, AWay())([*tensors, None])
    for x, y in zip(made, find_op(name)(tensors, *others), strict=True):
        check_same(x, y)


def test_every_function_that_stands_for_an_op_is_tried() -> None:
    assert {op for op, *_ in BY_FUNCTION} == set(FUNCTIONS)


def test_a_call_that_names_an_argument_is_made_in_full() -> None:
    x, y = operands(2, torch.float32)
    meta = ShapedType((3, 4), torch.float32)
    call = call_of("aten.add.Tensor", (Value(0), Value(1)), [x, y], meta, AWay(), alpha=3)
    assert torch.equal(call([x, y, None])[0], torch.add(x, y, alpha=3))


@pytest.mark.usefixtures("local")
def test_a_program_that_was_first_called_under_another_default_device_works_there_and_afterwards() -> None:
    x = ts.device_put(torch.ones(8), ts.NamedSharding(ts.make_mesh((len(ts.devices()),), ("i",)), ts.P("i")))
    f = ts.jit(lambda x: x * 5.0 - 1)
    with torch.device("meta"):
        y = f(x)
    assert y.tolist() == f(x).tolist() == [4.0] * 8


MANY = 1 << 15
FLOATS = [0.0, -0.0, 1e-45, -1e-45, 0.1, -2.5, float("inf"), float("-inf"), float("nan"), float("-nan")]


@functools.cache
def many(dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(MANY, generator=generator, dtype=torch.float64)
    x[: 100 * len(FLOATS)] = torch.tensor(FLOATS, dtype=torch.float64).repeat(100)
    return x[torch.randperm(MANY, generator=generator)].to(dtype).view(128, -1)


# as MANY elements may lie
LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.T,
    "one row, turned": lambda x: x.reshape(1, -1).T,
    "one channel, last": lambda x: x.reshape(8, 64, 64, 1).permute(0, 3, 1, 2),
    "one pixel, channels last": lambda x: x.reshape(128, 1, 1, 256).permute(0, 3, 1, 2),
    "every other row": lambda x: x.repeat(2, 1).reshape(128, 2, 256)[:, 0],
}


def check_picked(mask: torch.Tensor, x: torch.Tensor, other: torch.Tensor) -> None:
    wanted = torch.where(mask, x, other)
    meta = ShapedType(tuple(wanted.shape), wanted.dtype)
    made = performed("aten.where.self", tuple(map(Value, range(3))), [mask, x, other], meta)
    check_same(made, wanted)
    assert torch.equal(made.flatten().view(torch.uint8), wanted.flatten().view(torch.uint8))


@pytest.mark.parametrize(
    "dtype, other, layout",
    pairwise([torch.float32, torch.float64, torch.int32], [0.0, -0.0, 1.0, float("nan")], list(LAYOUTS)),
)
def test_many_elements_are_picked_as_where_picks_them(dtype: torch.dtype, other: float, layout: str) -> None:
    if not dtype.is_floating_point and other != other:
        other = 7.0
    x = (many(torch.float32).nan_to_num(0, 9, -9) if dtype == torch.int32 else many(dtype)).to(dtype)
    mask = many(torch.float64).roll(1, 1) >= 0
    check_picked(LAYOUTS[layout](mask), LAYOUTS[layout](x), torch.tensor(other, dtype=dtype))


@pytest.mark.filterwarnings("ignore:where received a uint8 condition")
def test_a_mask_that_lies_or_is_otherwise_picks_as_where_does() -> None:
    x, zero = many(torch.float32), torch.tensor(0.0)
    mask = x.roll(1, 1) >= 0
    check_picked(mask.T.contiguous().T, x, zero)
    check_picked(mask, x.T.contiguous().T, zero)
    check_picked(mask[:, :1], x, zero)
    check_picked(mask, x[0], zero)
    check_picked(mask, x, zero.expand(1))
    check_picked(mask, x, x.roll(3, 0) * (x.roll(2, 0) > 0))
    check_picked(mask.to(torch.uint8) * 2, x, zero)
    check_picked(mask, x, torch._neg_view(zero))
    check_picked(mask, torch._neg_view(x), zero)


COMPARED = [0, 0.0, -0.0, 0.1, 1e-45, 1e300, 2**40, True, float("inf"), float("nan")]


@pytest.mark.parametrize(
    "op, number, layout, dtype",
    pairwise(["ge", "gt", "le", "lt"], COMPARED, list(LAYOUTS), [torch.float32, torch.float64, torch.float16]),
)
def test_many_elements_are_compared_as_torch_compares_them(
    op: str, number: float, layout: str, dtype: torch.dtype
) -> None:
    for x in (LAYOUTS[layout](many(dtype)), torch._neg_view(LAYOUTS[layout](many(dtype)))):
        wanted = find_op(f"aten.{op}.Scalar")(x, number)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made = performed(f"aten.{op}.Scalar", (Value(0), number), [x], ShapedType(tuple(x.shape), torch.bool))
        check_same(made, wanted)


def test_every_kernel_has_a_row_in_the_benchmark() -> None:
    assert set(KERNELS) <= {row.op for row in rows()}


def own(*args: Any) -> torch.Tensor:
    """In place of torch's own."""
    raise AssertionError("torch's own way")


def test_the_derivative_of_clamp_takes_the_kernels() -> None:
    x, mask = many(torch.float32), many(torch.float32) > 0
    metas = [ShapedType(tuple(t.shape), t.dtype) for t in (mask, x, x.sum())]
    picked = kernel_for(Eqn("aten.where.self", tuple(map(Value, range(3))), {}, (3,)), metas, own)
    assert picked(mask, x, torch.tensor(0.0)).shape == x.shape
    with pytest.raises(AssertionError, match="own way"):
        picked(mask, x, torch.tensor(-0.0))
    compared = kernel_for(Eqn("aten.ge.Scalar", (Value(1), 0), {}, (3,)), metas, own)
    assert compared(x, 0).dtype == torch.bool


@pytest.mark.parametrize("shape", [(0, 4), (128,), (1, MANY), (MANY, 1)])
def test_few_elements_none_and_dims_of_one_are_left_to_torch(shape: tuple[int, ...]) -> None:
    x, mask, zero = ShapedType(shape, torch.float32), ShapedType(shape, torch.bool), ShapedType((), torch.float32)
    values = tuple(map(Value, range(3)))
    assert kernel_for(Eqn("aten.ge.Scalar", (Value(0), 0), {}, (1,)), [x, mask], own) is own
    assert kernel_for(Eqn("aten.where.self", values, {}, (3,)), [mask, x, zero, x], own) is own
    if len(shape) == 2:
        metas = [x, ShapedType((shape[1], 10), torch.float32), ShapedType((shape[0], 10), torch.float32)]
        assert kernel_for(Eqn("aten.mm.default", values[:2], {}, (2,)), metas, own) is own


def test_what_a_kernel_gives_is_no_view_of_its_operands_and_leaves_them_as_they_are() -> None:
    x, mask = many(torch.float32).nan_to_num(0, 9, -9), many(torch.float32) > 0
    factor, zero = torch.randn(256, 10), torch.tensor(0.0)
    for op, tensors, rest in [
        ("aten.ge.Scalar", [x], [0]), ("aten.where.self", [mask, x, zero], []), ("aten.mm.default", [x, factor], []),
    ]:  # fmt: skip
        kept = [t.clone() for t in tensors]
        values = tuple(map(Value, range(len(tensors))))
        metas = [ShapedType(tuple(t.shape), t.dtype) for t in tensors]
        made = kernel_for(Eqn(op, (*values, *rest), {}, (len(tensors),)), metas, own)(*tensors, *rest)
        made.copy_(made.logical_not())
        assert all(map(torch.equal, tensors, kept)), op


NARROW = {"rows": lambda x: x, "columns": lambda x: x.T.contiguous().T}


@pytest.mark.parametrize("columns", [2, 10, 11])
@pytest.mark.parametrize("layout", NARROW)
def test_many_rows_times_a_few_columns_are_the_same_but_for_roundings(layout: str, columns: int) -> None:
    generator = torch.Generator().manual_seed(columns)
    x = NARROW[layout](torch.randn(512, 128, generator=generator))
    y = torch.randn(128, columns, generator=generator)
    made = ShapedType((512, columns), torch.float32)
    for factor in (y, NARROW["columns"](y), torch._neg_view(y)):
        got = performed("aten.mm.default", (Value(0), Value(1)), [x, factor], made)
        assert got.is_contiguous() and got.dtype == torch.float32
        torch.testing.assert_close(got.double(), x.double() @ factor.double(), rtol=1e-5, atol=1e-4)


def test_only_products_by_a_few_columns_of_singles_are_turned() -> None:
    def way_of(rows: int, columns: int, dtype: torch.dtype) -> Callable[..., Any]:
        metas = [ShapedType((rows, 128), dtype), ShapedType((128, columns), dtype), ShapedType((rows, columns), dtype)]
        return kernel_for(Eqn("aten.mm.default", (Value(0), Value(1)), {}, (2,)), metas, own)

    assert way_of(512, 10, torch.float32)(torch.ones(512, 128), torch.ones(128, 10)).unique().tolist() == [128.0]
    for count, columns, dtype in [
        (512, 1, torch.float32), (512, 12, torch.float32), (255, 10, torch.float32), (512, 10, torch.float64),
    ]:  # fmt: skip
        assert way_of(count, columns, dtype) is own
    unknown = [ShapedType((512, 128), torch.float32), None, None]
    assert kernel_for(Eqn("aten.mm.default", (Value(0), Value(1)), {}, (2,)), unknown, own) is own


@pytest.mark.parametrize("mode", ["dispatch", "function"])
def test_in_the_users_process_a_mode_sees_the_op_under_its_name(mode: str) -> None:
    seen: list[str] = []

    class Dispatch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    class Function(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(func))
            return func(*args, **kwargs or {})

    x = many(torch.float32)
    call = call_of("aten.ge.Scalar", (Value(0), 0), [x], ShapedType(tuple(x.shape), torch.bool), None)
    assert call([x, None])[0].dtype == torch.bool
    with Dispatch() if mode == "dispatch" else Function():
        call([x, None])
    assert seen == ["aten.ge.Scalar"]
