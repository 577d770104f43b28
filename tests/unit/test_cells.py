"""Hearing of interrupted cells: before the traceback is shown, and not after the end."""

import sys
from types import SimpleNamespace

import pytest

from tinyshard.runtime.controller.cancellation import after_interrupted_cells


@pytest.fixture
def events():
    """What happens, in order."""
    return []


@pytest.fixture
def shell(monkeypatch, events):
    """What a notebook's shell does for a cell, as far as it matters here."""
    made = SimpleNamespace(showtraceback=lambda: events.append(f"shown: {sys.exc_info()[0].__name__}"))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: made))
    return made


def run_cell(shell, error):
    try:
        raise error
    except BaseException:
        shell.showtraceback()


def test_an_interrupt_is_heard_of_before_its_traceback_is_shown_and_other_errors_are_not(shell, events):
    end = after_interrupted_cells(lambda where: events.append(where.file))
    run_cell(shell, KeyboardInterrupt())
    run_cell(shell, ValueError())
    assert events == [__file__, "shown: KeyboardInterrupt", "shown: ValueError"]
    end()
    run_cell(shell, KeyboardInterrupt())
    assert events[3:] == ["shown: KeyboardInterrupt"]


def test_an_interrupt_between_two_statements_is_one_of_the_cell(shell):
    heard = []
    after_interrupted_cells(heard.append)
    shell.execution_count = 7
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as error:
        error.__traceback__ = None  # what is left of it where no line of the cell runs: nothing of the user's
        shell.showtraceback()
    (where,) = heard
    assert (where.file, where.line) == ("In[7]", 0)


def test_the_end_leaves_in_place_what_others_have_put_around_it(shell, events):
    end = after_interrupted_cells(lambda where: events.append("heard"))
    inner = shell.showtraceback

    def show():
        events.append("another")
        inner()

    shell.showtraceback = show
    end()
    run_cell(shell, KeyboardInterrupt())
    assert events == ["another", "shown: KeyboardInterrupt"]


def test_outside_of_a_notebook_there_are_no_cells_to_watch(monkeypatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    after_interrupted_cells(lambda where: None)()
