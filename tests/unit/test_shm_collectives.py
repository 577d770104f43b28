"""Collectives in shared memory that has run out for one device: all of them hear so, and nobody waits for anybody."""

import itertools
import threading

import pytest
import torch

from tests.communicators import communicators_of, of_each
from tests.monitors import held
from tinyshard.core.collectives import COLLECTIVES as TABLE
from tinyshard.core.program import Builder, Value
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives.base import PeerLostError, Request, group_of
from tinyshard.runtime.collectives.eager import GATHERED_NBYTES, fits
from tinyshard.runtime.shm import monitor, segment
from tinyshard.runtime.shm.barrier import exchange_number
from tinyshard.runtime.shm.control_block import EAGER_NBYTES, EAGER_SLOTS, eager_nbytes
from tinyshard.runtime.worker.executor import make_ready, zeros_for

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")

DEVICES = (0, 1)
SHAPE = (800, 400)  # too much for a slot
COLLECTIVES = {
    "all_reduce": {"op": "sum"},
    "all_gather": {"dim": 0},
    "reduce_scatter": {"dim": 0, "op": "sum"},
    "all_to_all": {"split": 0, "join": 1},
    "collective_permute": {"pairs": ((0, 1), (1, 0))},
}
BOTH_WAYS = [(0, 1, (slice(None),), (slice(None),)), (1, 0, (slice(None),), (slice(None),))]
META = ShapedType(SHAPE, torch.float32)


@pytest.fixture
def communicators():
    """Two devices, for two threads of this process."""
    return communicators_of(2)


def fill(member):
    """Leave no room for a block of it."""
    member._region._gaps.clear()


def of_all(communicators, call):
    """What the devices return or raise, when each of them calls at the same time."""
    ended = of_each(range(len(communicators)), lambda device: call(communicators[device]))
    return [ended[device] for device in range(len(communicators))]


def ready(communicator, name, devices, params, meta, made):
    """A collective of one operand, as a function of it."""
    perform = communicator.ready(Request(name, devices, (len(devices),), (0,), params, (meta,), made))
    return lambda x, moment: perform([x], moment)[0]


_calls = itertools.count(1)


def perform(name):
    params = COLLECTIVES.get(name, {"moves": BOTH_WAYS})
    call = next(_calls)
    return lambda communicator: ready(communicator, name, DEVICES, params, META, META)(torch.ones(SHAPE), (call, 0))


def total(communicator, x, devices, call):
    """The sum of what these devices bring to a call."""
    meta = ShapedType(tuple(x.shape), x.dtype)
    return ready(communicator, "all_reduce", devices, {"op": "sum"}, meta, meta)(x, (call, 0))


def summed(communicator, value, devices, call):
    return total(communicator, torch.full((3,), value), devices, call).tolist()


# the first device of a group makes the room for what all of them gather
CASES = [(name, full) for name in (*COLLECTIVES, "transfer") for full in DEVICES if (name, full) != ("all_gather", 1)]


@pytest.mark.parametrize(("name", "full"), CASES)
def test_memory_that_runs_out_on_one_device_ends_the_collective_for_all(communicators, name, full):
    fill(communicators[full]._arena)
    ended = of_all(communicators, perform(name))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])
    for communicator in communicators:
        communicator._arena.collect()
        assert not communicator._arena._region._given.any(), "a block is held by nobody, and never had again"
    call = next(_calls)
    small = of_all(communicators, lambda c: total(c, torch.ones(3), DEVICES, call))
    assert [x.tolist() for x in small] == [[2.0] * 3] * 2


@pytest.mark.parametrize(
    "bring",
    [
        lambda x: x.reshape(2, 64).T,
        lambda x: x[::2],
        lambda x: x.neg().view(64, 2)[:, 0],
        lambda x: torch.view_as_complex(x.view(64, 2)).conj().imag,
        lambda x: x[:1].expand(64),
        lambda x: x.view(2, 1, 64),
    ],
    ids=["transposed", "strided", "negated", "negated when read", "expanded", "three dimensions"],
)
def test_a_small_sum_is_of_values_however_they_lie(communicators, bring):
    xs = [torch.randn(128, generator=torch.Generator().manual_seed(device)) for device in DEVICES]
    results = of_all(communicators, lambda c: total(c, bring(xs[c._device]), DEVICES, 1))
    assert all(torch.equal(result, bring(xs[0]) + bring(xs[1])) for result in results)


def test_sums_of_many_elements_are_those_of_the_rows_whatever_lies_between_them():
    """The operands of four devices at equal and at unequal distances."""
    generator = torch.Generator().manual_seed(0)
    hosts = [torch.randn(30_000, generator=generator) for _ in range(4)]
    wanted = hosts[0] + hosts[1] + hosts[2] + hosts[3]
    for spaces in ((0, 0, 0, 0), (0, 5, 1, 0)):
        communicators = communicators_of(4)
        for communicator, count in zip(communicators, spaces, strict=True):
            for _ in range(count):
                communicator._arena.allocate(100_000, [communicator._device])
        operands = [
            f._arena.hold(f._arena.copied(h, [f._device]), h.shape, h.dtype)
            for f, h in zip(communicators, hosts, strict=True)
        ]
        results = of_all(
            communicators,
            lambda c, x=operands: total(c, x[c._device], (0, 1, 2, 3), 1),
        )
        assert all(torch.equal(result, wanted) for result in results)


def test_members_that_have_had_more_exchanges_than_others_are_added_up_too():
    communicators = communicators_of(3)
    xs = [torch.full((64,), 10.0**device) for device in range(3)]
    for times in range(1, 4):
        calls = range(10 * times, 10 * times + times)
        of_each(
            (0, 2), lambda device, calls=calls: [total(communicators[device], xs[device], (0, 2), c) for c in calls]
        )
        results = of_all(
            communicators,
            lambda c, call=10 * times + 9: total(c, xs[c._device], (0, 1, 2), call),
        )
        assert all(torch.equal(x, torch.full((64,), 111.0)) for x in results)


def test_a_small_sum_is_the_same_whoever_makes_it():
    """To the last bit: four devices on two cores come in every order that threads find."""
    generator = torch.Generator().manual_seed(0)
    hosts = [torch.randn(1024, generator=generator) for _ in range(4)]
    wanted = hosts[0] + hosts[1] + hosts[2] + hosts[3]
    communicators = communicators_of(4)

    def bring(communicator):
        return [total(communicator, hosts[communicator._device], (0, 1, 2, 3), call) for call in range(1, 301)]

    assert all(torch.equal(x, wanted) for results in of_all(communicators, bring) for x in results)


def tripled_and(*names):
    """A program of one input that triples it, and hands that to each of these; it returns all."""
    builder = Builder(DEVICES, (2,))
    (tripled,) = outputs = builder.emit("aten.mul.Tensor", (Value(builder.input(META)), 3.0), {}, [META])
    for name in names:
        meta = TABLE[name].meta(META, 2, COLLECTIVES[name])
        outputs += builder.emit(name, (Value(tripled),), {"axes": (0,), **COLLECTIVES[name]}, [meta])
    return builder.finish(outputs)


def run(program, x):
    """What a device does with it, and what it returns; an op that fails gives zeros, as in `Worker`."""
    call = next(_calls)

    def on(communicator):
        values = [x] + [None] * (len(program.metas) - 1)
        for number, step in enumerate(make_ready(program, communicator=communicator).steps):
            if step.perform is not None:
                (made,) = step.perform([values[n] for n in step.step.operands], (call, number))
            else:
                try:
                    (made,) = step.call(values)
                except MemoryError:
                    made = zeros_for(META)
            values[step.results[0]] = made
        return [values[number] for number in program.outputs]

    return on


def test_what_is_computed_for_several_exchanges_and_kept_stays_as_it_is(communicators):
    program = tripled_and("all_reduce", "collective_permute", "reduce_scatter")
    kept = []
    for number in range(5):
        x = torch.full(SHAPE, float(number))
        kept.append(of_all(communicators, run(program, x)))
    for number, results in enumerate(kept):
        for values in results:
            assert [value.unique().tolist() for value in values] == [
                [3 * number],
                [6 * number],
                [3 * number],
                [6 * number],
            ]


@pytest.mark.parametrize("full", DEVICES)
def test_where_there_is_no_room_for_what_is_computed_for_others_all_of_them_hear_so(communicators, full):
    fill(communicators[full]._arena)
    ended = of_all(communicators, run(tripled_and("reduce_scatter"), torch.ones(SHAPE)))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])


def test_a_small_operand_that_a_device_still_reads_is_not_overwritten(monkeypatch):
    """Device 1 is slow to read what 0 gave it, while 0 exchanges with 2, more often than there are slots."""
    communicators = communicators_of(3)
    may_leave, results = threading.Event(), {}
    leave = communicators[1]._barrier.leave

    def leave_late(number):
        may_leave.wait(20)
        leave(number)

    monkeypatch.setattr(communicators[1]._barrier, "leave", leave_late)
    calls = range(2, 2 + 2 * EAGER_SLOTS)

    def first():
        results[0] = [summed(communicators[0], 1.0, (0, 1), 1)]
        results[0] += [summed(communicators[0], 100.0 + call, (0, 2), call) for call in calls]

    def reader():
        results[1] = [summed(communicators[1], 10.0, (0, 1), 1)]
        communicators[1].settle()

    def other():
        results[2] = [summed(communicators[2], 1000.0, (0, 2), call) for call in calls]

    threads = [threading.Thread(target=each, daemon=True) for each in (first, reader, other)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert threads[0].is_alive(), "it should wait for the reader"
    may_leave.set()
    for thread in threads:
        thread.join(20)
    assert results[1] == [[11.0] * 3]
    assert results[0][1:] == results[2] == [[1100.0 + call] * 3 for call in calls]


@pytest.mark.parametrize("size", [64, 200_000])
def test_whoever_sleeps_in_a_collective_is_woken(communicators, size, monkeypatch):
    monkeypatch.setattr(monitor, "SLICE_S", 1000.0)
    for communicator in communicators:
        communicator._barrier._monitor._crowded_until_s = float("inf")  # it sleeps at once
    x = torch.ones(size)
    for call in range(1, 50):
        ended = of_all(communicators, lambda c, call=call: total(c, x, DEVICES, call))
        assert all(torch.equal(end, 2 * x) for end in ended)


@pytest.mark.parametrize("size", [3, 200_000])
def test_a_device_that_is_gone_ends_the_waiting_of_the_others_now_and_later(communicators, size):
    threading.Timer(0.05, communicators[0].abort).start()
    for call in (1, 2):
        with pytest.raises(PeerLostError):
            total(communicators[0], torch.ones(size), DEVICES, call)


def test_a_result_that_cannot_be_made_is_an_error_for_who_makes_it_and_holds_nobody_up(communicators):
    """torch has no mean of ints."""
    meta = ShapedType((3,), torch.int64)
    asked = Request("all_reduce", DEVICES, (2,), (0,), {"op": "avg"}, (meta,), meta)
    for call in range(1, 4):
        ended = of_all(communicators, lambda c, call=call: c.ready(asked)([torch.ones(3).long()], (call, 0)))
        assert [isinstance(end, RuntimeError) for end in ended].count(True) == 1


def test_a_slot_is_used_again_within_one_call_for_another_group():
    """Two devices that wait for each other to have left: each says so before it waits."""
    three, x = communicators_of(3), torch.ones(3)
    steps = [(0, 2), (0, 1, 2)] * EAGER_SLOTS

    def bring(communicator):
        made = []
        for step, devices in enumerate(steps):
            if communicator._device in devices:
                meta = ShapedType((3,), torch.float32)
                perform = ready(communicator, "all_reduce", devices, {"op": "sum"}, meta, meta)
                made.append(perform(x, (1, step * EAGER_SLOTS)).tolist())
        return made

    sums = of_all(three, bring)
    assert sums[0] == sums[2] == [[float(len(devices))] * 3 for devices in steps]


@pytest.mark.parametrize(
    "name, nbytes, is_sent_in_slots",
    [
        ("all_reduce", EAGER_NBYTES, True),
        ("all_reduce", EAGER_NBYTES + 8, False),
        ("reduce_scatter", EAGER_NBYTES, True),
        ("all_gather", GATHERED_NBYTES // 2, True),
        ("all_gather", GATHERED_NBYTES // 2 + 4, False),  # each device would copy what two have given
    ],
)
def test_operands_are_sent_in_slots_if_they_fit_together(name, nbytes, is_sent_in_slots):
    meta = ShapedType((nbytes // 4,), torch.float32)
    assert fits(name, group_of(DEVICES, 0), [meta], EAGER_NBYTES) is is_sent_in_slots
    larger = [ShapedType((EAGER_NBYTES // 8,), torch.float32)] * 3
    assert not fits(name, group_of(DEVICES, 0), larger, EAGER_NBYTES)


def test_the_slots_of_many_devices_are_smaller_whole_cache_lines():
    assert eager_nbytes(2) == eager_nbytes(8) == EAGER_NBYTES
    for count in (9, 24, 100, 512):
        size = eager_nbytes(count)
        assert size % 64 == 0 and (1 << 15) <= size < EAGER_NBYTES
        assert size == 1 << 15 or count * EAGER_SLOTS * 2 * size <= 1 << 25


def test_exchanges_have_numbers_that_only_grow():
    numbers = [exchange_number(call, step, phase) for call in (1, 2) for step in (0, 1, 99_999_999) for phase in (0, 1)]
    assert numbers == sorted(set(numbers))


def test_a_device_that_could_not_say_that_it_has_left_an_exchange_says_so_later(communicators):
    first, second = communicators
    of_all(communicators, lambda c: total(c, torch.ones(3), DEVICES, 1))
    with held(first._barrier._monitor):  # as one that is stopped with it
        assert not second.settle()
    assert second.settle() and first.settle()
    left = first._barrier._left
    assert left[0] == left[1] == exchange_number(1, 0)
