"""Collectives in shared memory that has run out for one device: all of them hear so, and nobody waits for anybody."""

import threading
import time

import pytest
import torch

from tests.fabrics import fabrics_of, of_each
from tinyshard.collectives import COLLECTIVES as TABLE
from tinyshard.program import Builder, Meta, Value
from tinyshard.runtime import adding, futex, signals
from tinyshard.runtime.shm import allocator
from tinyshard.runtime.shm.control_block import NOTES
from tinyshard.runtime.signals import PeerLostError
from tinyshard.runtime.worker.executor import make_ready, zeros_for

pytestmark = pytest.mark.skipif(not allocator.is_possible(), reason="shared memory needs Linux on x86-64")

DEVICES = (0, 1)
SHAPE = (200, 100)  # too much for a note
COLLECTIVES = {
    "all_reduce": {"op": "sum"},
    "all_gather": {"dim": 0},
    "reduce_scatter": {"dim": 0, "op": "sum"},
    "all_to_all": {"split": 0, "join": 1},
    "collective_permute": {"pairs": ((0, 1), (1, 0))},
}
BOTH_WAYS = [(0, 1, (slice(None),), (slice(None),)), (1, 0, (slice(None),), (slice(None),))]
META = Meta(SHAPE, torch.float32)


@pytest.fixture(params=[(), (5, 5)], ids=["cores of their own", "one core"])
def fabrics(request):
    """Two devices, for two threads of this process."""
    return fabrics_of(2, request.param)


def fill(member):
    """Leave no room for a block of it."""
    member._end = member._start


def of_all(fabrics, call):
    """What the devices return or raise, when each of them calls at the same time."""
    ended = of_each(range(len(fabrics)), lambda device: call(fabrics[device]))
    return [ended[device] for device in range(len(fabrics))]


def nobody(*_):
    """Whom to tell that a part is done."""


def perform(name, x=None):
    x = torch.ones(SHAPE) if x is None else x
    params = COLLECTIVES.get(name, {"moves": BOTH_WAYS})
    return lambda fabric: fabric.ready(name, DEVICES, (2,), (0,), params, META, META)(x, nobody)


def total(fabric, x, devices, done=nobody):
    """The sum of what these devices bring."""
    meta = Meta(tuple(x.shape), x.dtype)
    return fabric.ready("all_reduce", devices, (len(devices),), (0,), {"op": "sum"}, meta, meta)(x, done)


# the first device of a group makes the room for what all of them gather
CASES = [(name, full) for name in (*COLLECTIVES, "transfer") for full in DEVICES if (name, full) != ("all_gather", 1)]


@pytest.mark.parametrize(("name", "full"), CASES)
def test_memory_that_runs_out_on_one_device_ends_the_collective_for_all_and_the_next_is_right(fabrics, name, full):
    fill(fabrics[full]._arena)
    ended = of_all(fabrics, perform(name))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])
    for fabric in fabrics:
        fabric._arena.collect()
        assert not fabric._arena._given.any(), "a block is held by nobody, and never had again"
    small = of_all(fabrics, lambda fabric: total(fabric, torch.ones(3), DEVICES))
    assert [x.tolist() for x in small] == [[2.0] * 3] * 2


def summed(fabric, value, devices):
    return total(fabric, torch.full((3,), value), devices).tolist()


def test_a_note_that_somebody_still_reads_is_not_written_anew(monkeypatch):
    """Device 1 is slow to read what 0 gave it, while 0 exchanges with 2, more often than there are notes."""
    fabrics = fabrics_of(3)
    may_read, results = threading.Event(), {}
    note_readers = fabrics[1]._readers.note

    def slowly(*args):
        may_read.wait(20)
        note_readers(*args)

    monkeypatch.setattr(fabrics[1]._readers, "note", slowly)

    def first():
        summed(fabrics[0], 1.0, (0, 1))
        results[0] = [summed(fabrics[0], 100.0 + k, (0, 2)) for k in range(2 * NOTES)]

    def reader():
        results[1] = summed(fabrics[1], 10.0, (0, 1))

    def other():
        results[2] = [summed(fabrics[2], 1000.0, (0, 2)) for k in range(2 * NOTES)]

    threads = [threading.Thread(target=each, daemon=True) for each in (first, reader, other)]
    for thread in threads:
        thread.start()
    threads[0].join(0.2)
    assert threads[0].is_alive(), "it should wait for the reader"
    may_read.set()
    for thread in threads:
        thread.join(20)
    assert results[1] == [11.0] * 3
    assert results[0] == results[2] == [[1100.0 + k] * 3 for k in range(2 * NOTES)]


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
def test_a_small_sum_is_of_values_however_they_lie(fabrics, bring):
    xs = [torch.randn(128, generator=torch.Generator().manual_seed(device)) for device in DEVICES]
    results = of_all(fabrics, lambda fabric: total(fabric, bring(xs[fabric._device]), DEVICES))
    assert all(torch.equal(result, bring(xs[0]) + bring(xs[1])) for result in results)


def test_sums_of_many_elements_are_those_of_the_rows_whatever_lies_between_them():
    """The operands of four devices at equal and at unequal distances."""
    generator = torch.Generator().manual_seed(0)
    hosts = [torch.randn(30_000, generator=generator) for _ in range(4)]
    wanted = hosts[0] + hosts[1] + hosts[2] + hosts[3]
    for spaces in ((0, 0, 0, 0), (0, 5, 1, 0)):
        fabrics = fabrics_of(4)
        for fabric, count in zip(fabrics, spaces, strict=True):
            for _ in range(count):
                fabric._arena.allocate(100_000, [fabric._device])
        operands = [
            f._arena.hold(f._arena.copied(h, [f._device]), h.shape, h.dtype)
            for f, h in zip(fabrics, hosts, strict=True)
        ]
        results = of_all(fabrics, lambda fabric, x=operands: total(fabric, x[fabric._device], (0, 1, 2, 3)))
        assert all(torch.equal(result, wanted) for result in results)


@pytest.mark.parametrize(("size", "by"), [(3, "nap"), (64, "nap"), (100_000, "give_way")])
def test_who_has_done_its_part_of_a_sum_leaves_the_core_to_its_mates_at_once(size, by):
    fabrics = fabrics_of(2, (5, 5))
    has_given_way = threading.Event()
    setattr(fabrics[0]._signals, by, lambda *_: has_given_way.set())
    ended = []
    first = threading.Thread(target=lambda: ended.append(total(fabrics[0], torch.ones(size), DEVICES)), daemon=True)
    first.start()
    assert has_given_way.wait(20)
    assert torch.equal(total(fabrics[1], torch.ones(size), DEVICES), torch.full((size,), 2.0))
    first.join(20)
    assert torch.equal(ended[0], torch.full((size,), 2.0))


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "all_to_all", "collective_permute", "max"])
def test_who_sleeps_in_a_small_collective_is_woken_by_the_last(fabrics, name, monkeypatch):
    monkeypatch.setattr(signals, "_LOOK_AGAIN", futex.timespec(1000.0))
    for fabric in fabrics:
        fabric._signals._yielding.until = lambda is_there, is_missed: False
    sleeps = threading.Event()
    for by in ("_sleep", "nap"):
        sleep = getattr(fabrics[0]._signals, by)
        monkeypatch.setattr(fabrics[0]._signals, by, lambda *args, sleep=sleep: (sleeps.set(), sleep(*args)))
    meta = Meta((4, 4), torch.float32)
    made = Meta((8, 4) if name == "all_gather" else (4, 4), torch.float32)
    params = COLLECTIVES.get(name, {"op": "max"})
    op = name if name in COLLECTIVES else "all_reduce"

    def bring(fabric):
        if fabric._device:
            assert sleeps.wait(20)
            time.sleep(0.05)  # until it does
        return fabric.ready(op, DEVICES, (2,), (0,), params, meta, made)(torch.ones(4, 4), nobody)

    assert all(isinstance(result, torch.Tensor) for result in of_all(fabrics, bring))


def until_it_is_there(is_there, is_missed):
    """Yields on a busy machine too."""
    end_s = time.monotonic() + 20
    while not is_there() and time.monotonic() < end_s:
        time.sleep(1e-4)
    return is_there()


def come_one_after_the_other(fabrics):
    """A sum of two, to which device 0 comes first; in what order they said that their part is done, and what else."""
    said, has_come = [], threading.Event()
    come = fabrics[0]._signals.come

    def come_first(group):
        come(group)
        has_come.set()

    fabrics[0]._signals.come = come_first

    def bring(fabric):
        device = fabric._device
        assert device == 0 or has_come.wait(20)
        return total(fabric, torch.full((64,), 1.0 + device), DEVICES, done=lambda *more: said.append((device, *more)))

    assert all(torch.equal(x, torch.full((64,), 3.0)) for x in of_all(fabrics, bring))
    return said


@pytest.mark.parametrize("kept", [(), (5, 6)], ids=["cores of their own", "two cores"])
def test_who_waits_alone_on_its_core_adds_up_and_the_last_need_not(kept):
    fabrics = fabrics_of(2, kept)
    fabrics[0]._signals._yielding.until = until_it_is_there
    assert come_one_after_the_other(fabrics) == [(1, True), (0,)]  # the controller waits for who adds up, a moment
    assert fabrics[0]._arena.board.made.tolist() == [1, 0, 0]
    assert not fabrics[0]._arena.board.adding.any()


def test_who_sleeps_for_its_core_is_woken_by_who_adds_up(monkeypatch):
    monkeypatch.setattr(signals, "_LOOK_AGAIN", futex.timespec(1000.0))
    fabrics = fabrics_of(3, (5, 5, 6))
    fabrics[1]._signals._yielding.until = until_it_is_there
    steps = [threading.Event(), threading.Event()]
    nap, soon = fabrics[0]._signals.nap, fabrics[1]._signals.comes_soon
    fabrics[0]._signals.nap = lambda *args: (steps[0].set(), nap(*args))
    fabrics[1]._signals.comes_soon = lambda is_there: (steps[1].set(), soon(is_there))[1]

    def bring(fabric):
        if fabric._device:
            assert steps[fabric._device - 1].wait(20)
            time.sleep(0.05)  # until it sleeps
        return total(fabric, torch.full((64,), 10.0**fabric._device), (0, 1, 2))

    assert all(torch.equal(x, torch.full((64,), 111.0)) for x in of_all(fabrics, bring))
    assert fabrics[0]._arena.board.made.tolist() == [0, 1, 0, 0]


def test_who_adds_up_and_has_no_memory_for_it_leaves_it_to_the_last(monkeypatch):
    add_rows, fails = adding.add_rows, []

    def add_rows_later(rows, out):
        if not fails:
            fails.append(True)
            raise MemoryError
        add_rows(rows, out)

    monkeypatch.setattr(adding, "add_rows", add_rows_later)
    fabrics = fabrics_of(2)
    assert sorted(device for device, *_ in come_one_after_the_other(fabrics)) == [0, 1]
    assert fails
    assert not fabrics[0]._arena.board.adding.any()


def test_who_would_add_up_but_comes_to_sleep_leaves_it_to_the_last():
    fabrics = fabrics_of(2)
    slept = threading.Event()
    sleep = fabrics[0]._signals._sleep
    fabrics[0]._signals._yielding.until = lambda is_there, is_missed: False
    fabrics[0]._signals._sleep = lambda *args: (slept.set(), sleep(*args))
    come = fabrics[1]._signals.come
    fabrics[1]._signals.come = lambda group: (slept.wait(20), come(group))
    assert come_one_after_the_other(fabrics) == [(0,), (1,)]
    assert fabrics[0]._arena.board.made.tolist() == [0, 1, 0]


def test_who_takes_back_that_it_adds_up_when_all_have_come_does_it_all_the_same():
    """The last of all may have relied on it."""
    fabrics = fabrics_of(2)
    relies = threading.Event()
    waited = fabrics[1]._notes._result_of
    fabrics[1]._notes._result_of = lambda *args: (relies.set(), waited(*args))[1]
    fabrics[0]._signals.comes_soon = lambda is_there: not relies.wait(20)
    assert come_one_after_the_other(fabrics) == [(1, True), (0,)]
    assert fabrics[0]._arena.board.made.tolist() == [1, 0, 0]


def test_members_that_have_had_more_exchanges_than_others_are_added_up_too():
    fabrics = fabrics_of(3)
    xs = [torch.full((64,), 10.0**device) for device in range(3)]
    for times in range(1, 4):
        of_each((0, 2), lambda device, times=times: [total(fabrics[device], xs[device], (0, 2)) for _ in range(times)])
        results = of_all(fabrics, lambda fabric: total(fabric, xs[fabric._device], (0, 1, 2)))
        assert all(torch.equal(x, torch.full((64,), 111.0)) for x in results)


def test_a_small_sum_is_the_same_whoever_makes_it():
    """To the last bit: four devices on two cores come in every order that threads find."""
    generator = torch.Generator().manual_seed(0)
    hosts = [torch.randn(1024, generator=generator) for _ in range(4)]
    wanted = hosts[0] + hosts[1] + hosts[2] + hosts[3]
    fabrics = fabrics_of(4, (5, 6, 6, 5))

    def bring(fabric):
        return [total(fabric, hosts[fabric._device], (0, 1, 2, 3)) for _ in range(300)]

    assert all(torch.equal(x, wanted) for results in of_all(fabrics, bring) for x in results)
    assert fabrics[0]._arena.board.made.max() == 300


def test_who_makes_a_part_has_its_pages_mapped_at_once(fabrics):
    """With cores of their own each makes half, in whole vectors; on one core one of them makes it all."""
    asked = []
    for fabric in fabrics:
        fabric._arena.map_at_once = lambda offset, nbytes: asked.append((offset, nbytes))
    results = of_all(fabrics, lambda fabric: total(fabric, torch.ones(100_000), DEVICES))
    start = results[0].data_ptr() - fabrics[0]._arena.address
    asked.sort()
    assert asked[0][0] == start
    assert sum(nbytes for _, nbytes in asked) == 400_000
    assert len({offset + nbytes for offset, nbytes in asked} - {offset for offset, _ in asked}) == 1


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

    def on(fabric):
        values = [x] + [None] * (len(program.metas) - 1)
        for step in make_ready(program, fabric=fabric).steps:
            if step.perform is not None:
                made = step.perform(values[step.operand], nobody)
            else:
                try:
                    (made,) = step.call(values)
                except MemoryError:
                    made = zeros_for(META)
            values[step.results[0]] = made
        return [values[number] for number in program.outputs]

    return on


@pytest.mark.parametrize("name", COLLECTIVES)
def test_what_is_computed_for_others_need_not_be_copied(fabrics, name, monkeypatch):
    copied = []
    for fabric in fabrics:
        monkeypatch.setattr(
            fabric._arena, "copied", lambda x, holders, by=fabric._arena.copied: copied.append(name) or by(x, holders)
        )
    x = torch.arange(float(SHAPE[0] * SHAPE[1])).view(SHAPE)
    made = of_all(fabrics, perform(name, x))
    assert bool(copied) == (name != "all_gather")  # there each copies its own into what all of them hold
    copied.clear()
    results = of_all(fabrics, run(tripled_and(name), x))
    assert all(torch.equal(result[1], 3 * each) for result, each in zip(results, made, strict=True))
    assert not copied


def test_what_is_computed_for_several_exchanges_and_kept_stays_as_it_is(fabrics):
    program = tripled_and("all_reduce", "collective_permute", "reduce_scatter")
    kept = []
    for number in range(5):
        x = torch.full(SHAPE, float(number))
        kept.append(of_all(fabrics, run(program, x)))
    for number, results in enumerate(kept):
        for values in results:
            assert [value.unique().tolist() for value in values] == [
                [3 * number],
                [6 * number],
                [3 * number],
                [6 * number],
            ]


@pytest.mark.parametrize("full", DEVICES)
def test_where_there_is_no_room_for_what_is_computed_for_others_all_of_them_hear_so(fabrics, full):
    fill(fabrics[full]._arena)
    ended = of_all(fabrics, run(tripled_and("reduce_scatter"), torch.ones(SHAPE)))
    assert isinstance(ended[full], MemoryError) and "no room for" in str(ended[full])
    assert isinstance(ended[1 - full], MemoryError) and f"device {full} had no room" in str(ended[1 - full])


@pytest.mark.parametrize("size", [3, 100_000])
def test_each_has_done_its_part_before_the_last_has_and_then_the_result_is_there(fabrics, size):
    """Device 0 comes first: with a small operand that is all of its part, with a large one it then adds up a part."""
    said = []
    come = [threading.Event(), threading.Event()]

    def tell(device):
        said.append((device, fabrics[device]._arena.board.made.max() > 0))
        come[device].set()

    def bring(fabric):
        device = fabric._device
        if device == 1 and size == 3:
            assert come[0].wait(20), "device 0 waits with its part for 1"
        return total(fabric, torch.full((size,), 1.0 + device), DEVICES, done=lambda *_: tell(device))

    results = of_all(fabrics, bring)
    assert all(torch.equal(x, torch.full((size,), 3.0)) for x in results)
    assert sorted(device for device, _ in said) == [0, 1]
    if size == 3:
        assert said == [(0, False), (1, True)]


def test_who_could_not_do_its_part_does_not_say_that_it_has(fabrics):
    said = []
    fill(fabrics[0]._arena)
    x = torch.ones(SHAPE)
    ended = of_all(fabrics, lambda fabric: total(fabric, x, DEVICES, done=lambda *_: said.append(fabric._device)))
    assert all(isinstance(end, MemoryError) for end in ended)
    assert not said


def test_what_all_have_come_to_is_had_though_one_is_lost_then(fabrics):
    """They had done their part, so the controller counts the call as over."""

    def let_the_other_come_and_be_lost(*_):
        assert total(fabrics[1], torch.full((3,), 2.0), DEVICES).tolist() == [3.0] * 3
        fabrics[0].abort()

    first = total(fabrics[0], torch.full((3,), 1.0), DEVICES, done=let_the_other_come_and_be_lost)
    assert first.tolist() == [3.0] * 3
    with pytest.raises(PeerLostError):
        total(fabrics[0], torch.ones(3), DEVICES)


def test_who_has_given_up_an_exchange_takes_no_earlier_word_for_a_later_one(fabrics):
    fabrics[0].abort()
    with pytest.raises(PeerLostError):
        total(fabrics[0], torch.full((3,), 1.0), DEVICES)
    assert total(fabrics[1], torch.full((3,), 10.0), DEVICES).tolist() == [11.0] * 3
    for value in (2.0, 3.0):
        with pytest.raises(PeerLostError):
            total(fabrics[0], torch.full((3,), value), DEVICES, done=lambda: pytest.fail("it has done no part"))


def test_a_result_that_cannot_be_made_is_not_slept_for(fabrics):
    """torch has no mean of ints; each of them hears so itself."""
    meta = Meta((3,), torch.int64)
    begun_s = time.monotonic()

    def average(fabric):
        return fabric.ready("all_reduce", DEVICES, (2,), (0,), {"op": "avg"}, meta, meta)(torch.ones(3).long(), nobody)

    for fabric in fabrics:
        fabric._signals._yielding.until = lambda is_there, is_missed: False
    ended = of_all(fabrics, average)
    assert all(isinstance(end, RuntimeError) and "mean" in str(end) for end in ended)
    assert time.monotonic() - begun_s < 0.5 * signals.LOOK_AGAIN_S
