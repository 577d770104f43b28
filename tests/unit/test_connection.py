"""The controller's end of one connection to a worker."""

import os
import socket

import pytest

from tinyshard.runtime import wire
from tinyshard.runtime.controller.connection import Link, Stream


@pytest.fixture
def line():
    """A link, and the worker's end of its control line, which takes little."""
    sock, other = socket.socketpair()
    control, theirs = socket.socketpair()
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    theirs.setblocking(False)
    output, write_end = os.pipe()
    link = Link(0, Stream(sock), Stream(control), output, 0)
    yield link, theirs
    link.close()
    for end in (other, theirs):
        end.close()
    os.close(write_end)


def test_what_the_control_line_has_no_room_for_is_said_later_whole_and_in_order(line):
    link, theirs = line
    said = [("cancel", number, "x" * 700) for number in range(200)]
    for words in said:
        link.send_control(*words)
    assert link.control.unwritten, "it is longer than the line takes"
    heard, reader = [], wire.Reader(theirs)
    while len(heard) < len(said):
        heard += [head for head, _ in reader.read()]
        link.control.write()
    assert heard == said
    assert not link.control.unwritten


def test_what_is_said_to_a_worker_that_is_gone_is_dropped(line):
    link, theirs = line
    theirs.close()
    link.send_control("look")
    assert not link.control.unwritten
