"""What a forked child closes: its copies of the pool's descriptors, and nothing of the user's."""

import os
import socket

import numpy as np
import pytest

from tinyshard.runtime.controller.connection import Link, Stream
from tinyshard.runtime.shm import control_block, segment, system
from tinyshard.runtime.shm.completion import Completions

pytestmark = pytest.mark.skipif(not segment.is_possible(), reason="this system has no shared memory")


def stream():
    ours, theirs = socket.socketpair()
    theirs.close()
    return Stream(ours)


def link():
    output, write_end = os.pipe()
    os.close(write_end)
    return Link(0, stream(), stream(), output, 0)


def completions():
    memory = np.zeros(control_block.nbytes(1), np.uint8)
    control_block.initialise(memory, 1)
    return Completions(control_block.ControlBlock(memory, 1))


def mapping():
    fd = system.memory_file()
    os.ftruncate(fd, 4096)
    owner = segment.Mapping(fd, 4096)
    os.close(fd)
    return owner


@pytest.mark.parametrize("made", [link, completions, mapping])
def test_a_child_forked_as_the_pool_closes_a_descriptor_keeps_the_file_that_has_its_number(made, monkeypatch):
    owner = made()
    abandon = getattr(owner, "abandon", owner.close)
    close_for_good, null, opened = os.close, os.open(os.devnull, os.O_RDONLY), []

    def closes_while_another_thread_opens_and_forks(fd):
        close_for_good(fd)
        monkeypatch.setattr(os, "close", close_for_good)
        opened.append(os.dup2(null, fd))
        abandon()  # what the child does

    monkeypatch.setattr(os, "close", closes_while_another_thread_opens_and_forks)
    owner.close()
    os.close(*opened)  # an OSError if the child has closed it
    os.close(null)
