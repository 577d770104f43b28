"""The collective stepper of lesson 07: what is held and sent, against tables by hand and the Program's own count."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

import tinyshard as ts
from course.widgets import collective_stepper
from course.widgets.moves import MOVES
from course.widgets.stepper import PATTERNS
from course.widgets.traffic import record


@pytest.fixture(autouse=True)
def four_devices():
    ts.init(devices=4, runtime="local")


def words_of(recording, which="result"):
    return [[held.words for held in row] for row in getattr(recording, which)]


def test_an_all_to_all_in_words():
    assert collective_stepper().choose(pattern="all-to-all").text == (
        'ts.pmap(lambda row: all_to_all(row, "i", split_axis=0, concat_axis=0), axis_name="i")(table)\n'
        "exchange 1 of 1: all_to_all; piece j goes to device j\n"
        "\n"
        "CPU 0: 0 1 2 3 → 0 4 8 12\n"
        "CPU 1: 4 5 6 7 → 1 5 9 13\n"
        "CPU 2: 8 9 10 11 → 2 6 10 14\n"
        "CPU 3: 12 13 14 15 → 3 7 11 15\n"
        "\n"
        "CPU 0 sends 4 bytes to 1, 2, 3: 12 bytes; it gets from 1, 2, 3\n"
        "the whole call: 12 bytes sent by the busiest device"
    )


def test_an_all_reduce_is_two_exchanges_and_every_sum_has_numbers_of_all():
    recording = record(lambda row: ts.lax.psum(row, "i"), count=4)
    first, second = recording.moments
    assert [[held.words for held in row] for row in first.after] == [["24"], ["28"], ["32"], ["36"]]
    assert second.before == first.after
    assert words_of(recording) == [["24", "28", "32", "36"]] * 4
    assert {held.origins for row in recording.result for held in row} == {(0, 1, 2, 3)}


def test_a_reduction_of_one_number_cannot_be_halved():
    recording = record(lambda row: ts.lax.psum(row.sum(), "i"), count=4)
    (moment,) = recording.moments
    assert words_of(recording) == [["120"]] * 4
    assert sum(message.nbytes for message in moment.messages if message.source == 0) == 6 == recording.nbytes


def test_who_is_no_target_gets_zeros_of_nobody():
    recording = record(lambda row: ts.lax.ppermute(row, "i", [(3, 0)]), count=4)
    assert [(message.source, message.target) for message in recording.moments[0].messages] == [(3, 0)]
    assert [[held.origins for held in row] for row in recording.result] == [[(3,)] * 4, *[[()] * 4] * 3]


def test_a_table_is_told_by_its_rows():
    recording = record(lambda row: ts.lax.all_gather(row, "i"), count=4)
    assert words_of(recording) == [["0 … 3", "4 … 7", "8 … 11", "12 … 15"]] * 4
    assert [held.origins for held in recording.result[2]] == [(0,), (1,), (2,), (3,)]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_messages_add_up_to_what_the_program_counts(pattern):
    recording = record(PATTERNS[pattern][1], count=4)
    sent = [0.0] * 4
    for moment in recording.moments:
        for message in moment.messages:
            sent[message.source] += message.nbytes
    assert max(sent) == recording.nbytes


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_recorded_is_what_pmap_returns(pattern):
    table = torch.arange(16.0).reshape(4, 4)
    real = ts.device_get(ts.pmap(PATTERNS[pattern][1], axis_name="i")(table)).reshape(4, -1)
    drawn = [" ".join(held.words for held in row) for row in record(PATTERNS[pattern][1], count=4).result]
    if pattern == "all-gather":
        drawn = [words.replace(" … ", " ") for words in drawn]
        real = real.reshape(4, 4, 4)[:, :, [0, 3]].reshape(4, -1)
    assert drawn == [" ".join(f"{value:g}" for value in row) for row in real.tolist()]


def test_a_scatter_in_words():
    assert collective_stepper().choose(pattern="scatter").text == (
        'ts.device_put(table_on_cpu_0, NamedSharding(mesh, P("i")))\n'
        "exchange 1 of 1: transfer; each block goes to the device that is to hold it\n"
        "\n"
        "CPU 0: 0 … 3, 4 … 7, 8 … 11, 12 … 15 → 0 1 2 3\n"
        "CPU 1: nothing → 4 5 6 7\n"
        "CPU 2: nothing → 8 9 10 11\n"
        "CPU 3: nothing → 12 13 14 15\n"
        "\n"
        "CPU 0 sends 16 bytes to 1, 2, 3: 48 bytes; it gets from no device\n"
        "the whole call: 48 bytes sent by the busiest device (another one 0)"
    )


def test_a_broadcast_leaves_the_row_of_one_device_on_all():
    recording = MOVES["broadcast"][1](4)
    assert [[held.words for held in row] for row in recording.moments[0].before] == [["0", "1", "2", "3"], [], [], []]
    assert words_of(recording) == [["0", "1", "2", "3"]] * 4
    assert {held.origins for row in recording.result for held in row} == {(0,)}
    assert recording.sent() == [48, 0, 0, 0]


def test_a_gather_leaves_the_rows_of_all_on_one_device_which_sends_nothing():
    recording = MOVES["gather"][1](4)
    assert words_of(recording) == [["0 … 3", "4 … 7", "8 … 11", "12 … 15"], [], [], []]
    assert [held.origins for held in recording.result[0]] == [(0,), (1,), (2,), (3,)]
    assert recording.sent() == [0, 16, 16, 16]


@pytest.mark.parametrize("pattern", MOVES)
def test_alone_one_device_has_nobody_to_send_to(pattern):
    ts.init(devices=1, runtime="local")
    assert MOVES[pattern][1](1).moments == ()
    assert "the result" in collective_stepper().choose(pattern=pattern).text


def test_what_a_move_records_is_what_device_put_does():
    mesh = ts.make_mesh((4,), "i")
    rows, one = ts.NamedSharding(mesh, ts.P("i")), ts.devices()[0]
    table = torch.arange(16.0).reshape(4, 4)
    scattered = ts.device_put(ts.device_put(table, one), rows)
    drawn = [[float(held.words) for held in row] for row in MOVES["scatter"][1](4).result]
    assert drawn == [shard.data.flatten().tolist() for shard in scattered.addressable_shards]
    gathered = ts.device_put(scattered, one)
    assert torch.equal(ts.device_get(gathered), table)
    assert [len(row) > 0 for row in MOVES["gather"][1](4).result] == [d in gathered.devices() for d in ts.devices()]


def test_a_ring_by_hand_is_as_many_exchanges_as_it_has_steps_and_the_origins_grow():
    ring = [(i, (i + 1) % 4) for i in range(4)]

    def ring_of_rows(row):
        total = row
        for _ in range(3):
            row = ts.lax.ppermute(row, "i", ring)
            total = total + row
        return total

    found = collective_stepper(ring_of_rows=ring_of_rows)
    assert found.choices == {"pattern": "ring_of_rows", "step": 0, "follow": 0, "measured": 0}
    assert found.choose(step=2, follow=1).text.splitlines()[1:5] == [
        "exchange 3 of 3: collective_permute; each sender has one receiver",
        "",
        "CPU 0: 8 9 10 11 → 4 5 6 7",
        "CPU 1: 12 13 14 15 → 8 9 10 11",
    ]
    assert found.choose(step=3).text.splitlines()[1] == "after 3 of 3 exchanges: the result"
    assert "CPU 3: 24 28 32 36" in found.text


def test_the_picture_has_an_arrow_for_each_message_that_is_followed():
    def arrows(svg):
        return [
            title.text
            for title in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}title")
            if title.text.startswith("CPU") and " sends " in title.text
        ]

    found = collective_stepper().choose(pattern="all-gather", follow=2)
    assert arrows(found.svg) == [f"CPU 2 sends 16 bytes to CPU {target}" for target in (0, 1, 3)]
    assert len(arrows(found.choose(follow=None).svg)) == 12


@pytest.mark.parametrize("choice", [{"pattern": "swapaxes"}, {"step": 1}, {"follow": 3}, {"follow": None}])
def test_every_control_changes_picture_and_words(choice):
    before = collective_stepper()
    after = collective_stepper().choose(**choice)
    assert after.svg != before.svg
    assert after.text != before.text
