"""What Ctrl-C leaves of the controller's waits: cancelled calls, and the lines that are still to be printed."""

import sys
import threading
from types import SimpleNamespace

import pytest

from tinyshard.runtime.controller.items import Cancel
from tinyshard.runtime.controller.waiting import Waiting


def strike(*args):
    raise KeyboardInterrupt


def test_ctrl_c_while_the_workers_start_cancels_what_was_called():
    posted = []
    started = SimpleNamespace(is_open=False, wait=strike)
    dispatcher = SimpleNamespace(
        check_open=lambda: None, ring=lambda: None, started=started, is_waited_for=False, post=posted.append, printed=[]
    )
    with pytest.raises(KeyboardInterrupt):
        Waiting(dispatcher, "cpu", str).open_dispatcher()
    assert [type(item) for item in posted] == [Cancel]


def test_lines_that_ctrl_c_keeps_from_being_printed_are_printed_by_the_next_wait(monkeypatch, capsys):
    printed = [(1, "b"), (0, "a"), (1, "c")]
    calls = SimpleNamespace(lock=threading.RLock())
    dispatcher = SimpleNamespace(calls=calls, printed=printed)
    waiting = Waiting(dispatcher, "cpu", str)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", SimpleNamespace(write=strike))
        with pytest.raises(KeyboardInterrupt):
            waiting.print_output()
    waiting.print_output()
    waiting.print_output()
    assert capsys.readouterr().err == "[CPU 0] a\n[CPU 1] b\n[CPU 1] c\n"
