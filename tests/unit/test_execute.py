"""A device calls an op by the shortest way there is: what comes out is the op's own result, bit for bit."""

from typing import Any

import pytest
import torch

from tinyshard.program import Builder, Meta, Value
from tinyshard.runtime.execute import find_op, make_ready

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.int64, torch.uint8, torch.bool)


def operands(count: int, dtype: torch.dtype, shape: tuple[int, ...] = (7,)) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(count)
    made = [torch.rand(shape, generator=generator) * 3 for _ in range(count)]
    return [x.to(dtype) for x in made]


def performed(op: str, args: tuple[Any, ...], tensors: list[torch.Tensor], made: Meta | None) -> torch.Tensor:
    builder = Builder((0,), (1,))
    for x in tensors:
        builder.input(Meta(tuple(x.shape), x.dtype))
    ready = make_ready(builder.finish(builder.emit(op, args, made=[made])))
    assert ready.steps[0].call is not None
    (out,) = ready.steps[0].call([*tensors, None])
    return out


def is_same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Also where it is not a number."""
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.view(-1).isnan(), b.view(-1).isnan()) and (
        torch.equal(a.nan_to_num(), b.nan_to_num())
    )  # fmt: skip


def pointwise_ops() -> list[str]:
    """Of torch's own, those that take tensors and nothing else."""
    found = []
    for packet in dir(torch.ops.aten):
        overloads: list[str] = getattr(getattr(torch.ops.aten, packet), "overloads", list)()
        for overload in ("default", "Tensor"):
            op = getattr(getattr(torch.ops.aten, packet), overload) if overload in overloads else None
            if op is not None and torch.Tag.pointwise in op.tags and torch.Tag.nondeterministic_seeded not in op.tags:
                arguments = [a for a in op._schema.arguments if not a.kwarg_only and not a.has_default_value()]
                # memory as it is found is never the same, and clamp wants a bound, of which the schema says nothing
                is_plain = len(op._schema.returns) == 1 and not packet.startswith(("empty", "clamp", "clip"))
                if is_plain and all(str(a.type) == "Tensor" for a in arguments):
                    found.append(f"aten.{packet}.{overload}")
    return found


@pytest.mark.parametrize("op", pointwise_ops())
def test_an_op_on_tensors_gives_what_it_gives_by_its_whole_name(op: str) -> None:
    arguments = [a for a in find_op(op)._schema.arguments if not a.kwarg_only and not a.has_default_value()]
    tried = 0
    for dtype in DTYPES:
        tensors = operands(len(arguments), dtype)
        try:
            wanted = find_op(op)(*[x.clone() for x in tensors])
        except (RuntimeError, ValueError):  # not for this dtype: then it is refused either way
            with pytest.raises((RuntimeError, ValueError)):
                performed(op, tuple(map(Value, range(len(tensors)))), [x.clone() for x in tensors], None)
            continue
        made = Meta(tuple(wanted.shape), wanted.dtype)
        assert is_same(performed(op, tuple(map(Value, range(len(tensors)))), tensors, made), wanted), dtype
        tried += 1
    assert tried


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "number", [2, -3, 0, 0.1, 1e300, -7.5, 2**31 + 1, 2**40 + 1, 2**63, -(2**64), True, float("inf"), float("nan")]
)
@pytest.mark.parametrize("op", ["add", "sub", "mul", "div", "floor_divide", "remainder", "fmod", "bitwise_and"])
@pytest.mark.parametrize("shape", [(7,), ()], ids=["vector", "scalar"])
def test_a_number_beside_a_tensor_counts_as_torch_counts_it(
    op: str, number: Any, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    (x,) = operands(1, dtype, shape)
    name = f"aten.{op}.{'default' if op == 'floor_divide' else 'Tensor'}"
    try:
        wanted = find_op(name)(x, number)
    except (RuntimeError, OverflowError) as error:
        with pytest.raises(type(error)) as caught:
            performed(name, (Value(0), number), [x], None)
        assert str(caught.value) == str(error)
        return
    made = Meta(tuple(wanted.shape), wanted.dtype)
    assert is_same(performed(name, (Value(0), number), [x], made), wanted)
    assert is_same(performed(name, (Value(0), number), [x], None), wanted)


def test_a_call_that_leaves_a_default_out_or_names_an_argument_is_made_in_full() -> None:
    x, y = operands(2, torch.float32)
    builder = Builder((0,), (1,))
    for t in (x, y):
        builder.input(Meta(tuple(t.shape), t.dtype))
    made = builder.emit("aten.add.Tensor", (Value(0), Value(1)), {"alpha": 3}, made=[Meta((7,), torch.float32)])
    call = make_ready(builder.finish(made)).steps[0].call
    assert call is not None
    assert torch.equal(call([x, y, None])[0], torch.add(x, y, alpha=3))
