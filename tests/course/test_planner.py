"""The planner against numbers computed by hand, on a machine with round numbers."""

import pytest
import torch

import tinyshard as ts
from course.planner import GPU_BOXES, LAPTOPS, MACHINES, ROUNDS, Link, Machine, estimate
from tinyshard.core.collectives import COLLECTIVES

# 4 devices a host; 1 s of latency inside and 10 s between; 100 bytes/s inside and 10 between
SLOW = Machine("slow", 4, 1000.0, 10_000, Link(1.0, 100.0), Link(10.0, 10.0))


def compiled(f, *operands, mesh_shape, names):
    """`f` on described operands, each a pair (shape, spec)."""
    mesh = ts.AbstractMesh(mesh_shape, names)
    described = [
        ts.ShapeDtypeStruct(shape, torch.float32, sharding=ts.NamedSharding(mesh, spec)) for shape, spec in operands
    ]
    return ts.jit(f).lower(*described).compile()


def mapped(f, nbytes, mesh_shape, names, spec):
    """`f` under shard_map: each device has a block of so many bytes."""
    mesh = ts.AbstractMesh(mesh_shape, names)
    count = nbytes // 4
    for name in spec:
        count *= mesh.shape[name]
    run = ts.shard_map(f, mesh=mesh, in_specs=ts.P(spec), out_specs=ts.P(spec))
    x = ts.ShapeDtypeStruct((count,), torch.float32, sharding=ts.NamedSharding(mesh, ts.P(spec)))
    return run.lower(x).compile()


def test_compute_time_is_operations_of_one_device_by_its_speed():
    # 8 x 10 by 10 x 5, rows over 4 devices: 2 * 2 * 10 * 5 = 200 operations each
    program = compiled(torch.matmul, ((8, 10), ts.P("d")), ((10, 5), ts.P()), mesh_shape=(4,), names=("d",))
    total = estimate(program, SLOW)
    assert (total.compute_s, total.exchanges, total.step_s) == (0.2, (), 0.2)


def test_the_bounds_of_a_step_are_the_sum_and_the_longer_of_computing_and_communicating():
    # 2 * 10 * 10 * 5 operations each: 1 s; 200 bytes over 4 devices: 6 rounds of 1 s, 300 bytes at 100 bytes/s
    program = compiled(torch.matmul, ((10, 40), ts.P(None, "d")), ((40, 5), ts.P("d")), mesh_shape=(4,), names=("d",))
    total = estimate(program, SLOW)
    assert (total.compute_s, total.communicate_s) == (1.0, 9.0)
    assert (total.overlapped_s, total.step_s) == (9.0, 10.0)


def test_an_all_reduce_on_one_host_is_a_ring_over_its_own_links():
    program = mapped(lambda x: ts.lax.psum(x, "d"), 400, (4,), ("d",), ("d",))
    (exchange,) = estimate(program, SLOW).exchanges
    # 6 rounds of 1 s; 2 * 3/4 * 400 = 600 bytes at 100 bytes/s
    assert (exchange.nbytes, exchange.host_nbytes, exchange.seconds) == (600, 0, 12.0)


def test_one_ring_over_two_hosts_takes_its_bytes_out_of_each_host_once():
    program = mapped(lambda x: ts.lax.psum(x, "d"), 400, (8,), ("d",), ("d",))
    total = estimate(program, SLOW)
    # 14 rounds of 10 s; 2 * 7/8 * 400 = 700 bytes at 10 bytes/s
    assert (total.nbytes, total.host_nbytes, total.between_s, total.inside_s) == (700, 700, 210.0, 0.0)


def test_four_rings_that_leave_a_host_share_its_link():
    program = mapped(lambda x: ts.lax.psum(x, "host"), 400, (2, 4), ("host", "device"), ("host", "device"))
    (exchange,) = estimate(program, SLOW).exchanges
    # each of 4 devices sends 2 * 1/2 * 400 bytes to its partner on the other host; 2 rounds of 10 s
    assert (exchange.nbytes, exchange.host_nbytes, exchange.seconds) == (400, 1600, 20.0 + 160.0)


def test_groups_that_stay_on_their_hosts_do_not_use_the_link_between():
    program = mapped(lambda x: ts.lax.psum(x, "device"), 400, (2, 4), ("host", "device"), ("host", "device"))
    total = estimate(program, SLOW)
    assert (total.host_nbytes, total.between_s, total.inside_s) == (0, 0.0, 12.0)


def test_in_two_stages_a_quarter_of_the_bytes_leaves_the_host():
    def in_stages(x):
        part = ts.lax.psum_scatter(x, "device", tiled=True)
        return ts.lax.all_gather(ts.lax.psum(part, "host"), "device", tiled=True)

    total = estimate(mapped(in_stages, 400, (2, 4), ("host", "device"), ("host", "device")), SLOW)
    # 300 bytes in 3 rounds; 100 bytes of each of 4 devices in 2 rounds; 300 bytes in 3 rounds
    assert [(e.nbytes, e.host_nbytes, e.seconds) for e in total.exchanges] == [
        (300, 0, 6.0),
        (100, 400, 60.0),
        (300, 0, 6.0),
    ]


def test_in_an_all_to_all_each_member_sends_to_each_of_the_other_host():
    program = mapped(lambda x: ts.lax.all_to_all(x, "d", 0, 0, tiled=True), 320, (8,), ("d",), ("d",))
    (exchange,) = estimate(program, SLOW).exchanges
    # 40 bytes for each of 7 others, 4 of them on the other host: 4 * 4 * 40 bytes leave it; 7 rounds
    assert (exchange.nbytes, exchange.host_nbytes, exchange.seconds) == (280, 640, 70.0 + 64.0)


def test_a_permutation_takes_out_of_a_host_what_its_pairs_say():
    right = [(i, (i + 1) % 8) for i in range(8)]
    program = mapped(lambda x: ts.lax.ppermute(x, "d", right), 400, (8,), ("d",), ("d",))
    (exchange,) = estimate(program, SLOW).exchanges
    # only device 3 sends to the other host, and device 7 back
    assert (exchange.nbytes, exchange.host_nbytes, exchange.seconds) == (400, 400, 10.0 + 40.0)


def test_a_permutation_within_the_hosts_crosses_nothing():
    inside = [(i, i ^ 1) for i in range(8)]
    program = mapped(lambda x: ts.lax.ppermute(x, "d", inside), 400, (8,), ("d",), ("d",))
    (exchange,) = estimate(program, SLOW).exchanges
    assert (exchange.host_nbytes, exchange.seconds) == (0, 1.0 + 4.0)


@pytest.mark.parametrize("n, expected", [(2, 2), (8, 6), (9, 8), (4096, 24)])
def test_by_halving_and_doubling_an_all_reduce_takes_two_logarithms_of_rounds(n, expected):
    assert ROUNDS["halving and doubling"]["all_reduce"](n) == expected
    assert ROUNDS["ring"]["all_reduce"](n) == 2 * (n - 1)


def test_by_halving_and_doubling_the_bytes_are_those_of_the_ring():
    program = mapped(lambda x: ts.lax.psum(x, "d"), 400, (8,), ("d",), ("d",))
    assert estimate(program, SLOW, rounds="halving and doubling").step_s == 6 * 10.0 + 70.0


def test_every_collective_that_sends_has_its_rounds():
    sending = {name for name, row in COLLECTIVES.items() if row.communicates}
    assert all(set(table) == sending for table in ROUNDS.values())


def test_another_way_to_take_turns_is_an_error():
    program = compiled(torch.sin, ((8,), ts.P("d")), mesh_shape=(4,), names=("d",))
    with pytest.raises(ValueError, match="'ring', 'halving and doubling'"):
        estimate(program, SLOW, rounds="star")


def test_what_does_not_fit_is_said():
    # x and its sine, 4 bytes each: 8 KB on a device, 16 KB on a device
    small = compiled(torch.sin, ((4000,), ts.P("d")), mesh_shape=(4,), names=("d",))
    large = compiled(torch.sin, ((8000,), ts.P("d")), mesh_shape=(4,), names=("d",))
    assert [(e.memory_nbytes, e.fits) for e in (estimate(small, SLOW), estimate(large, SLOW))] == [
        (8000, True),
        (16000, False),
    ]


def test_four_thousand_devices_are_planned_without_one():
    program = compiled(lambda x: x.sum(0), ((4096, 1000), ts.P("d")), mesh_shape=(4096,), names=("d",))
    total = estimate(program, GPU_BOXES)
    # 4,000 bytes around a ring of 4096: 2 * 4095 rounds of 15 us
    assert total.devices == 4096
    assert total.step_s == pytest.approx(2 * 4095 * 15e-6, rel=1e-3)


def test_the_machines_have_names_of_their_own():
    assert len({m.name for m in MACHINES}) == len(MACHINES)
    assert LAPTOPS in MACHINES
