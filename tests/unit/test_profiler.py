"""A trace: what it records of a program, how times add up, and the file, the tables and the picture that come of it."""

import itertools
import json
import re
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tinyshard as ts
from tinyshard.core.activity import Log, Span, current_log
from tinyshard.profiler.events import Call, Events, Step, own_times, shares_of
from tinyshard.profiler.joining import joined
from tinyshard.profiler.perfetto import trace_events
from tinyshard.profiler.summary import held_up, summary_of
from tinyshard.profiler.timeline import bars_of, timeline_html
from tinyshard.runtime.worker.recording import FIELDS, NO_EXCHANGE, Recording

pytestmark = pytest.mark.usefixtures("local")

MS = 1_000_000


def new_layer() -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        return y.sum(0)

    return layer  # which no trace knows


@pytest.fixture
def traced(mesh: ts.Mesh) -> ts.profiler.Trace:
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, ts.P("a")))
    w = ts.device_put(torch.ones(4, 6), ts.NamedSharding(mesh, ts.P()))
    with ts.profiler.trace() as found:
        ts.block_until_ready(ts.jit(new_layer())(x, w))
    return found


def test_each_device_has_each_step_with_its_line_and_its_cost(traced: ts.profiler.Trace) -> None:
    steps = traced.events.steps
    assert {s.device for s in steps} == set(range(8))
    mine = [s for s in steps if s.device == 3]
    assert [s.op for s in mine] == ["aten.mm.default", "aten.sum.dim_IntList", "all_reduce"]
    assert [s.is_exchange for s in mine] == [False, False, True]
    assert mine[0].flops == 2 * 2 * 4 * 6, "two rows of four on a device"
    assert mine[0].nbytes == 4 * (2 * 4 + 4 * 6 + 2 * 6)
    assert mine[2].nbytes == 2 * 3 * 4 * 6 // 4, "a ring of four devices"
    assert mine[0].line.endswith("y = x @ w") and mine[1].line.endswith("return y.sum(0)")
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(mine))


def test_the_controller_traces_plans_and_dispatches(traced: ts.profiler.Trace) -> None:
    kinds = [span.kind for span in traced.events.spans]
    assert [kind for kind in kinds if kind != "wait"] == ["trace", "plan", "dispatch"]
    assert traced.events.spans[0].name == "layer"
    assert all(0 <= s.start_ns <= s.end_ns <= traced.events.wall_ns for s in traced.events.spans)
    assert all(type(s.where) is str and not isinstance(s.call, tuple) for s in traced.events.spans), "nothing is held"


def test_without_a_trace_nothing_is_recorded(traced: ts.profiler.Trace) -> None:
    before = len(traced.events.steps)
    ts.array([1.0]).sin()
    assert len(traced.events.steps) == before
    with ts.profiler.trace() as second:
        pass
    assert second.events.steps == () and second.events.spans == ()
    assert str(second.summary()).startswith(second.summary().heading)


def test_the_rounds_of_a_loop_are_recorded_one_by_one() -> None:
    f = ts.jit(lambda x: ts.lax.fori_loop(0, 5, lambda i, y: y.sin(), x))
    with ts.profiler.trace() as found:
        ts.block_until_ready(f(ts.array([1.0])))
    assert sum(s.op == "aten.sin.default" for s in found.events.steps if s.device == 0) == 5


def test_exchanges_in_a_loop_are_matched_round_by_round() -> None:
    def rounds(v: torch.Tensor) -> torch.Tensor:
        return ts.lax.fori_loop(0, 3, lambda i, y: ts.lax.psum(y, "i") / 8, v)

    f = ts.pmap(rounds, axis_name="i")
    with ts.profiler.trace() as found:
        ts.block_until_ready(f(torch.ones(8)))
    exchanges = [s for s in found.events.steps if s.op == "all_reduce"]
    assert len(exchanges) == 3 * 8
    assert sum(s.held_up_ns > 0 for s in exchanges) <= 3, "one device of each exchange comes last"


def test_a_trace_within_a_trace_is_refused_and_the_outer_goes_on() -> None:
    with ts.profiler.trace() as outer:
        with pytest.raises(ts.RuntimeStateError, match="another trace is on"), ts.profiler.trace():
            pass
        with pytest.raises(ts.RuntimeStateError, match="not over"):
            outer.summary()
        assert repr(outer) == "<a trace that is not over>" and outer._repr_html_() is None
        ts.array([1.0]).sin()
    assert [s.op for s in outer.events.steps] == ["aten.sin.default"]


def test_an_error_in_the_block_leaves_what_there_is() -> None:
    with pytest.raises(KeyError), ts.profiler.trace() as found:
        ts.array([1.0]).sin()
        raise KeyError
    assert [s.op for s in found.events.steps] == ["aten.sin.default"]


def test_devices_that_are_ended_in_the_block_leave_a_note() -> None:
    with ts.profiler.trace() as found:
        ts.init(devices=8, runtime="local")
    assert found.events.steps == ()


# ---- times ----------------------------------------------------------------------------------------------------------


def step(device: int, start: int, end: int, *, wait: int = 0, late: int = 0, exchange: bool = False) -> Step:
    op = "all_reduce" if exchange else "aten.mm.default"
    return Step(device, 1, op, start * MS, end * MS, exchange, wait * MS, late * MS, 100, 1000, "f.py:1: x @ y")


STRAGGLER = Events(
    (0, 1),
    "cpu",
    100 * MS,
    (
        step(0, 10, 20),
        step(0, 20, 80, wait=50, exchange=True),
        step(1, 10, 70),
        step(1, 70, 80, late=50, exchange=True),
    ),
    (Call(0, 1, "2 steps", 10 * MS, 80 * MS, "f.py:1"), Call(1, 1, "2 steps", 10 * MS, 80 * MS, "f.py:1")),
    (Span("dispatch", "2 steps", 2 * MS, 4 * MS, "f.py:1", 1), Span("wait", "", 4 * MS, 90 * MS, "f.py:2")),
    ("a note </script>",),
)


def test_the_shares_of_a_device_add_up_to_the_wall_time() -> None:
    ms = [x // MS for s in [shares_of(STRAGGLER, 0)] for x in (s.compute, s.exchange, s.wait, s.idle, s.total)]
    assert ms == [10, 10, 50, 30, 100]
    assert shares_of(STRAGGLER, 1).total == STRAGGLER.wall_ns


def test_the_device_that_held_the_others_up_is_named() -> None:
    assert held_up(STRAGGLER) == ["CPU 1 was waited for 50.0 ms, in 1 exchange that it came to last"]
    assert held_up(STRAGGLER)[0] in str(summary_of(STRAGGLER))


def test_a_span_counts_without_those_inside() -> None:
    spans = [Span("wait", "", 0, 100, ""), Span("plan", "", 10, 40, ""), Span("plan", "", 20, 30, "")]
    assert own_times(spans) == [70, 20, 10]


def recorded(rows: list[tuple[int, ...]]) -> bytes:
    return array("q", [x for row in rows for x in row]).tobytes()


def test_an_exchange_waits_until_the_last_device_has_started_it_whatever_the_clocks_say() -> None:
    f = ts.pmap(lambda v: ts.lax.psum(v, "i"), axis_name="i")
    with ts.profiler.trace():
        f(torch.ones(2))
        now = current_log()
        assert now is not None
        log = Log(lambda: "", [s for s in now.spans if s.call is not None])
    run, program = log.spans[0].call
    number = next(k for k, s in enumerate(program.steps) if s.op == "all_reduce")
    rows = {
        0: recorded([(run.number, program.number, number, 0, 1_000, 9_000)]),
        1: recorded([(run.number, program.number, number, 0, 56_000, 59_000)]),  # its clock is ahead by 50,000
    }
    events = joined(log, rows, {0: 0, 1: 50_000}, 0, 10_000, (0, 1), "cpu", ())
    assert [(s.wait_ns, s.held_up_ns, s.busy_ns) for s in events.steps] == [(5_000, 0, 3_000), (0, 5_000, 3_000)]


def test_a_full_buffer_drops_the_older_half_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tinyshard.runtime.worker.recording.MOST_RECORDS", 10)
    recording = Recording()
    recording.begin(7)
    for k in range(25):
        recording.note(1, k, NO_EXCHANGE, 0)
    taken, dropped = recording.taken()
    kept = array("q")
    kept.frombytes(taken)
    assert len(kept) // FIELDS + dropped == 25 and len(kept) <= 10 * FIELDS
    assert kept[2] == dropped and kept[-4] == 24, "the first that is kept, and the last"


# ---- what comes of it -----------------------------------------------------------------------------------------------

# Chrome's trace event format: for each phase what an event must have, and of what type
NUMBER = (int, float)
ALWAYS = {"ph": str, "name": str, "pid": int, "tid": int}
PHASES: dict[str, dict[str, Any]] = {
    "X": {"cat": str, "ts": NUMBER, "dur": NUMBER, "args": dict},
    "M": {"args": dict},
    "s": {"cat": str, "ts": NUMBER, "id": int},
    "f": {"cat": str, "ts": NUMBER, "id": int, "bp": str},
}
METADATA = {"process_name": str, "thread_name": str, "process_sort_index": int, "thread_sort_index": int}


def check_trace_events(data: dict[str, Any]) -> None:
    """Strictly: no key that the format does not know, slices of a thread nested, each arrow with both ends."""
    assert set(data) <= {"traceEvents", "displayTimeUnit", "otherData"} and data["displayTimeUnit"] in ("ms", "ns")
    arrows: dict[int, set[str]] = {}
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in data["traceEvents"]:
        keys = {**ALWAYS, **PHASES[event["ph"]]}
        assert set(event) == set(keys), event
        assert all(isinstance(event[key], kind) and not isinstance(event[key], bool) for key, kind in keys.items())
        if event["ph"] == "M":
            [value] = event["args"].values()
            assert isinstance(value, METADATA[event["name"]])
        else:
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] in "sf":
            arrows.setdefault(event["id"], set()).add(event["ph"])
            assert event["ph"] == "s" or event["bp"] == "e"
    for slices in threads.values():
        around: list[float] = []
        for start, end in sorted(slices, key=lambda s: (s[0], -s[1])):
            while around and around[-1] <= start + 1e-3:
                around.pop()
            assert not around or end <= around[-1] + 1e-3, "slices of a thread lie one in the other, or apart"
            around.append(end)
    assert all(ends == {"s", "f"} for ends in arrows.values())


def test_the_file_keeps_to_the_trace_event_format(traced: ts.profiler.Trace, tmp_path: Path) -> None:
    traced.to_perfetto(tmp_path / "trace.json")
    data = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    check_trace_events(data)
    named = [e for e in data["traceEvents"] if e["ph"] == "X" and e["name"] == "all_reduce"]
    assert {e["tid"] for e in named} == set(range(8))
    assert named[0]["args"]["bytes"] == 36 and named[0]["args"]["line"].endswith("return y.sum(0)")


def test_waits_and_calls_are_slices_and_dispatches_arrows() -> None:
    data = trace_events(STRAGGLER)
    check_trace_events(data)
    assert [(e["ts"], e["dur"]) for e in data["traceEvents"] if e["name"] == "wait" and e["pid"] == 2] == [(2e4, 5e4)]
    assert sorted(e["ph"] for e in data["traceEvents"] if e["ph"] in "sf") == ["f", "f", "s"]


def test_the_check_of_the_format_finds_what_is_wrong() -> None:
    for break_it in (
        lambda e: e.pop("ts"),
        lambda e: e.update(dur=-1.0),
        lambda e: e.update(tid="0"),
        lambda e: e.update(ts=e["ts"] + 5e3),
    ):
        data = trace_events(STRAGGLER)
        break_it(next(e for e in data["traceEvents"] if e["name"] == "all_reduce"))
        with pytest.raises(AssertionError):
            check_trace_events(data)


def test_the_tables_have_measured_beside_modelled(traced: ts.profiler.Trace) -> None:
    summary = traced.summary()
    tables = {table.title: table for table in summary.tables}
    assert list(tables) == ["by device", "controller", "by op", "by collective", "by line"]
    row = dict(zip(tables["by op"].head, next(r for r in tables["by op"].rows if "mm" in r[0]), strict=True))
    assert row["times"] == "1" and row["flops a device"] == "96" and float(row["GFLOP/s"]) >= 0
    assert tables["by collective"].rows[0][0] == "all_reduce"
    assert any("y = x @ w" in row[0] for row in tables["by line"].rows)
    lines = str(summary).splitlines()
    assert lines[0] == summary.heading and "aten.mm.default" in str(summary)
    html = summary._repr_html_()
    assert html.count("<table") == 5 and "aten.mm.default" in html


def test_the_sums_of_a_table_are_of_one_device_on_average() -> None:
    [table] = [t for t in summary_of(STRAGGLER).tables if t.title == "by op"]
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert row["times"] == "1" and row["time a device"] == "35.0 ms" and row["share"] == "35.0 %"


def test_the_picture_needs_no_network_and_holds_no_foreign_html() -> None:
    html = timeline_html(STRAGGLER)
    assert html == timeline_html(STRAGGLER)
    assert not re.search(r"https?://(?!www\.w3\.org)|<link|<img|src=", html)
    assert html.count("</script>") == 2 and "a note &lt;/script&gt;" in html
    assert "CPU 1" in html and "controller" in html
    assert "prefers-color-scheme" not in html and "currentColor" in html, "it takes the page's own colours"


def test_bars_show_the_wait_of_an_exchange_before_it() -> None:
    bars = [(b.kind, b.start_ns // MS, b.end_ns // MS) for b in bars_of(STRAGGLER) if b.row == 1]
    assert bars == [("call", 10, 80), ("compute", 10, 20), ("wait", 20, 70), ("exchange", 70, 80)]


def test_a_picture_of_very_many_steps_is_of_the_longest() -> None:
    many = tuple(step(0, k, k + (2 if k % 2 else 1)) for k in range(0, 100_000, 2))
    html = timeline_html(Events((0,), "cpu", 100_000 * MS, many, (), ()))
    assert len(html) < 3_000_000
