"""Each collective between processes, through shared memory and through gloo: the same as on the local runtime."""

import itertools
import os
import signal

import numpy as np
import pytest
import torch

import tinyshard as ts
from tests.extent import IS_WHOLE, examples, mostly_whole
from tests.workers.processes import JOINED, stopped
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime import lifecycle
from tinyshard.runtime.local import LocalRuntime

# name, parameters, and the shape of a device's operand for a group of n and a size k
CALLS = {
    "sum": ("all_reduce", {"op": "sum"}, lambda n, k: (k, 3)),
    "avg": ("all_reduce", {"op": "avg"}, lambda n, k: (k, 3)),
    "max": ("all_reduce", {"op": "max"}, lambda n, k: (k, 3)),
    "min": ("all_reduce", {"op": "min"}, lambda n, k: (k, 3)),
    "product": ("all_reduce", {"op": "product"}, lambda n, k: (k, 3)),
    "gather rows": ("all_gather", {"dim": 0}, lambda n, k: (k, 3)),
    "gather columns": ("all_gather", {"dim": 1}, lambda n, k: (3, k)),
    "scatter rows": ("reduce_scatter", {"dim": 0, "op": "sum"}, lambda n, k: (n * k, 3)),
    "scatter columns": ("reduce_scatter", {"dim": 1, "op": "sum"}, lambda n, k: (3, n * k)),
    "exchange": ("all_to_all", {"split": 1, "join": 0}, lambda n, k: (k, n)),
    "exchange back": ("all_to_all", {"split": 0, "join": 1}, lambda n, k: (n, k)),
}
# over one axis, the other, both, both in the other order
GROUPS = [(0,), (1,), (0, 1), (1, 0)]
SMALL, LARGE = 5, 30_011
DTYPES = [
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.complex64,
    torch.int64,
    torch.int16,
    torch.uint8,
    torch.bool,
]


def mostly_one_size(values):
    """Values, each with both sizes; in `make test` one is small and the next is large."""
    part = {(value, SMALL if i % 2 else LARGE) for i, value in enumerate(values)}
    return mostly_whole(itertools.product(values, (SMALL, LARGE)), part.__contains__)


@pytest.fixture(scope="module", params=JOINED)
def joined(request):
    """Eight processes, and the same in this one."""
    ts.init(devices=8, runtime="process", collectives=request.param)
    yield lifecycle.current()
    ts.init(devices=8, runtime="local")


def operands(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {d: torch.randint(0, 3, shape, generator=generator).to(dtype) for d in range(8)}


def program_of(name, params, shape, dtype, named, axes=(4, 2), devices=tuple(range(8)), times=1):
    builder = Builder(devices, axes)
    meta = ShapedType(shape, dtype)
    builder.input(meta)
    size = int(np.prod([axes[a] for a in named]))
    made = [COLLECTIVES[name].meta(meta, size, params)]
    for _ in range(times):
        (number,) = builder.emit(name, (Value(0),), {"axes": named, **params}, made)
    return builder.finish([number])


def results(runtime, program, blocks):
    (y,) = runtime.run(program, [runtime.put(blocks)])
    return runtime.fetch(y, sorted(program.devices))


def check(pool, program, blocks):
    got, wanted = results(pool, program, blocks), results(LocalRuntime(8), program, blocks)
    for device in wanted:
        torch.testing.assert_close(got[device], wanted[device])


@pytest.mark.parametrize("call, k", mostly_one_size(CALLS))
def test_it_is_what_the_local_runtime_computes_over_any_axes(joined, call, k):
    name, params, shape_of = CALLS[call]
    for named in GROUPS if IS_WHOLE or k == SMALL else GROUPS[1:3]:
        n = int(np.prod([(4, 2)[a] for a in named]))
        shape = shape_of(n, k)
        check(joined, program_of(name, params, shape, torch.float32, named), operands(shape, torch.float32))


@pytest.mark.parametrize("dtype, k", mostly_one_size(DTYPES))
def test_every_dtype_is_added_and_moved(joined, dtype, k):
    for name, params, shape in [
        ("all_reduce", {"op": "sum"}, (k,)),
        ("all_gather", {"dim": 0}, (k,)),
        ("reduce_scatter", {"dim": 0, "op": "sum"}, (8 * k,)),
        ("collective_permute", {"pairs": ((0, 1), (1, 0))}, (k,)),
    ]:
        check(joined, program_of(name, params, shape, dtype, (0, 1)), operands(shape, dtype))


@pytest.mark.parametrize("shape", [(), (0, 3), (1,)])
def test_scalars_and_nothing_at_all_take_part_too(joined, shape):
    check(joined, program_of("all_reduce", {"op": "sum"}, shape, torch.float32, (0,)), operands(shape, torch.float32))


@pytest.mark.parametrize(
    "pairs, k", mostly_one_size([((0, 1), (1, 2), (2, 0)), ((3, 3),), ((0, 7), (7, 0), (2, 2)), ()])
)
def test_a_permutation_gives_zeros_to_who_is_no_target(joined, pairs, k):
    program = program_of("collective_permute", {"pairs": pairs}, (k, 3), torch.float32, (0,), axes=(8,))
    check(joined, program, operands((k, 3), torch.float32))


def test_a_strided_operand_in_any_order_of_devices_is_read_as_it_is_meant(joined):
    builder = Builder((5, 2, 7, 0), (4,))
    builder.input(ShapedType((300, 400), torch.float32))
    turned = builder.emit("aten.t.default", (Value(0),), {}, [ShapedType((400, 300), torch.float32)])
    params = {"op": "sum"}
    made = builder.emit(
        "all_reduce", (Value(turned[0]),), {"axes": (0,), **params}, [ShapedType((400, 300), torch.float32)]
    )
    blocks = {d: x for d, x in operands((300, 400), torch.float32).items() if d in (5, 2, 7, 0)}
    check(joined, builder.finish(made), blocks)


def test_many_exchanges_over_changing_groups_do_not_mix(joined):
    blocks = operands((7,), torch.int64)
    builder = Builder(tuple(range(8)), (2, 2, 2))
    builder.input(ShapedType((7,), torch.int64))
    value = 0
    for named in itertools.islice(itertools.cycle([(0,), (0, 1, 2), (2,), (1, 2), (0, 2)]), examples(300, 1500)):
        (value,) = builder.emit(
            "all_reduce", (Value(value),), {"axes": named, "op": "max"}, [ShapedType((7,), torch.int64)]
        )
        (value,) = builder.emit("aten.add.Tensor", (Value(value), 1), {}, [ShapedType((7,), torch.int64)])
    check(joined, builder.finish([value]), blocks)


def test_results_that_all_share_outlive_the_operands_and_each_other(joined):
    program = program_of("all_reduce", {"op": "sum"}, (LARGE,), torch.float32, (0, 1))
    local = LocalRuntime(8)
    kept = []
    for seed in range(examples(9, 30)):
        blocks = operands((LARGE,), torch.float32, seed)
        (y,) = joined.run(program, [joined.put(blocks)])
        kept.append((y, results(local, program, blocks)[0]))
        if seed % 3 == 2:
            del kept[-2]  # its block is free for the next
    for y, wanted in kept:
        assert all(torch.equal(got, wanted) for got in joined.fetch(y, range(8)).values())


def test_a_block_that_was_passed_on_outlives_where_it_came_from(joined):
    pairs = tuple((i, (i + 1) % 8) for i in range(8))
    program = program_of("collective_permute", {"pairs": pairs}, (LARGE,), torch.float32, (0,), axes=(8,))
    blocks = operands((LARGE,), torch.float32)
    x = joined.put(blocks)
    for _ in range(8):  # all the way round
        (x,) = joined.run(program, [x])
    for _ in range(20):
        joined.put(operands((LARGE,), torch.float32, seed=1))
    got = joined.fetch(x, range(8))
    assert all(torch.equal(got[d], blocks[d]) for d in range(8))


def test_a_host_array_comes_back_as_a_copy_of_its_own(joined):
    host = torch.randn(512, 512)
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    x = ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", "b")))
    first = ts.device_get(x)
    wanted = host.clone()
    host.zero_()
    assert torch.equal(first, wanted)
    first.zero_()
    assert torch.equal(ts.device_get(x), wanted)
    whole = ts.device_put(wanted, ts.NamedSharding(mesh, ts.P()))
    assert all(torch.equal(ts.device_get(s.data), wanted) for s in whole.addressable_shards)


def test_a_device_that_stands_still_holds_up_the_others_and_no_more(joined):
    mesh = ts.make_mesh((8,), ("i",))
    x = ts.device_put(torch.ones(8, 1000), ts.NamedSharding(mesh, ts.P("i")))
    with stopped(ts.devices()[6].pid):
        total = x.sum()
        assert not total.is_ready()
    assert total.item() == 8000


def test_an_exchange_with_a_device_that_is_gone_ends(joined):
    mesh = ts.make_mesh((8,), ("i",))
    x = ts.device_put(torch.ones(8, 100_000), ts.NamedSharding(mesh, ts.P("i"))).block_until_ready()
    os.kill(ts.devices()[3].pid, signal.SIGKILL)
    with pytest.raises(ts.DeviceLostError, match="CPU 3 is gone"):
        x.sum(0).sum().item()
