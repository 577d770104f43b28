"""What takes long says so below a notebook's cell, after two seconds, in one line that goes away."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace

import pytest
import torch

import tinyshard as ts
from tinyshard.core import activity


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A clock that stands still; each look at it takes `step_s`."""
    made = SimpleNamespace(now_s=100.0, step_s=0.0)

    def monotonic() -> float:
        made.now_s += made.step_s
        return made.now_s

    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=monotonic))
    return made


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """What a front end is told."""
    told: list[str | None] = []
    monkeypatch.setattr(activity, "show", told.append)
    return told


def test_a_line_comes_after_two_seconds_is_renewed_twice_a_second_and_goes_away(
    clock: SimpleNamespace, lines: list[str | None]
) -> None:
    with activity.doing("tracing step"):
        for passed_s in (1.9, 0.2, 0.1, 0.4):
            clock.now_s += passed_s
            activity.still_doing()
    assert lines == ["tracing step: 2 s", "tracing step: 3 s", None]


def test_what_takes_less_says_nothing(clock: SimpleNamespace, lines: list[str | None]) -> None:
    with activity.doing("tracing step"):
        clock.now_s += 1.9
        activity.still_doing()
    clock.now_s += 9
    activity.still_doing()
    assert lines == []


def test_a_part_of_what_takes_long_says_nothing_of_its_own(clock: SimpleNamespace, lines: list[str | None]) -> None:
    with activity.doing("tracing step"):
        with activity.doing("starting the devices"):
            clock.now_s += 3
            activity.still_doing()
        assert lines == ["tracing step: 3 s"]
    assert lines[1:] == [None]


def test_the_line_goes_away_after_an_error_too(clock: SimpleNamespace, lines: list[str | None]) -> None:
    with pytest.raises(KeyboardInterrupt), activity.doing("tracing step"):
        clock.now_s += 3
        activity.still_doing()
        raise KeyboardInterrupt
    assert lines == ["tracing step: 3 s", None]


def test_no_other_thread_shows_anything(clock: SimpleNamespace, lines: list[str | None]) -> None:
    def work() -> None:
        with activity.doing("a thread's work"):
            clock.now_s += 3
            activity.still_doing()

    with activity.doing("tracing step"):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert lines == []
        activity.still_doing()
    assert lines == ["tracing step: 3 s", None]


def test_a_long_first_call_says_that_it_is_traced_and_planned_and_a_later_one_nothing(
    local: None, clock: SimpleNamespace, lines: list[str | None]
) -> None:
    @ts.jit
    def step(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() + 1).cos()

    x = ts.device_put(torch.ones(8), ts.NamedSharding(ts.make_mesh((8,), ("x",)), ts.P("x")))
    clock.step_s = 2.0
    step(x)
    whats = [line and line.partition(":")[0] for line in lines]
    assert list(dict.fromkeys(whats)) == ["tracing step", None, "planning a program for 8 devices"]
    assert whats[-1] is None
    lines.clear()
    step(x)
    assert lines == []


# ---- the front end ------------------------------------------------------------------------------------------------


def in_a_kernel(monkeypatch: pytest.MonkeyPatch, *, page_answers: bool) -> None:
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=page_answers), config={})
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def show_and_end() -> None:
    with activity.doing("tracing step"):
        assert activity._task is not None
        activity._task.next_s = 0.0
        activity.still_doing()


def test_a_notebook_draws_the_line_and_takes_it_away(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tqdm.auto  # noqa: F401  # as a terminal's: the kernel below is not one that displays

    in_a_kernel(monkeypatch, page_answers=True)
    before = threading.active_count()
    show_and_end()
    drawn = capsys.readouterr().err.split("\r")
    assert "tracing step: 0 s" in drawn
    assert drawn[-2].strip() == drawn[-1] == ""
    assert threading.active_count() == before


def test_scripts_and_nbval_draw_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    show_and_end()
    in_a_kernel(monkeypatch, page_answers=False)  # nbval, nbclient
    show_and_end()
    assert capsys.readouterr() == ("", "")
