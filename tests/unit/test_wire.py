"""Messages arrive whole and in order, however the bytes come."""

import socket
import sys
import threading
from types import ModuleType

import pytest
import torch

from tinyshard.core.types import tensor_bytes, tensor_of
from tinyshard.runtime import wire


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def read_all(reader, count):
    got = []
    while len(got) < count:
        got.extend(reader.read())
    return got


def test_many_messages_come_with_one_read(ends):
    ours, theirs = ends
    for i in range(5):
        wire.send(ours, ("run", i))
    assert wire.Reader(theirs).read() == [(("run", i), None) for i in range(5)]


@pytest.mark.parametrize("payload", [None, b"", b"\1" * 70_000], ids=["none", "empty", "some"])
def test_a_frame_in_one_piece_is_parsed(payload):
    pieces = wire.frame(("put", 3, (2,)), None if payload is None else memoryview(payload))
    assert wire.parse(b"".join(pieces)) == (("put", 3, (2,)), bytearray(payload) if payload else None)


@pytest.mark.parametrize("layout", [torch.preserve_format, torch.contiguous_format, torch.channels_last])
def test_a_memory_format_comes_from_a_notebook_that_has_imported_torch(monkeypatch, layout):
    notebook = ModuleType("__mp_main__")
    notebook.torch = torch
    modules = {"__mp_main__": notebook} | sys.modules | {"__mp_main__": notebook}
    monkeypatch.setattr(sys, "modules", modules)
    frame = b"".join(wire.frame(("program", {"memory_format": layout})))
    assert b"main" not in frame
    assert wire.parse(frame) == (("program", {"memory_format": layout}), None)


def test_messages_are_put_together_from_single_bytes(ends):
    ours, theirs = ends
    payload = memoryview(b"abcdefgh")
    sent = b"".join(bytes(p) for m in (("put", 1), ("put", 2)) for p in wire.frame(m, payload))
    reader, got = wire.Reader(theirs), []
    for i in range(len(sent)):
        ours.send(sent[i : i + 1])
        got.extend(reader.read())
    assert got == [(("put", 1), bytearray(b"abcdefgh")), (("put", 2), bytearray(b"abcdefgh"))]


def test_a_long_payload_and_a_long_head_arrive_between_short_messages(ends):
    ours, theirs = ends
    theirs.setblocking(False)
    payload = bytes(range(256)) * 4096
    messages = [(("a",), None), (("b", "x" * 300_000), payload), (("c",), None)]
    pieces = [p for head, body in messages for p in wire.frame(head, memoryview(body) if body else None)]
    ours.setblocking(False)
    reader, got = wire.Reader(theirs), []
    for piece in pieces:
        while piece:
            try:
                piece = piece[ours.send(piece) :]
            except BlockingIOError:
                got.extend(reader.read())
    got.extend(read_all(reader, 3 - len(got)))
    assert [(head, None if body is None else bytes(body)) for head, body in got] == messages


def test_what_was_said_before_the_end_is_read_before_the_end(ends):
    ours, theirs = ends
    wire.send(ours, ("failed", 1))
    ours.close()
    reader = wire.Reader(theirs)
    assert reader.read() == [(("failed", 1), None)]
    assert reader.read() is None


def test_nothing_to_read_is_not_the_end(ends):
    _, theirs = ends
    theirs.setblocking(False)
    assert wire.Reader(theirs).read() == []


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(4.0).reshape(1, 4)[:, 1],  # one element, stride 4
        torch.arange(4.0)[::2],
        torch.tensor(3),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([True, False]),
        torch.ones(3, dtype=torch.bfloat16),
        torch.empty(0, 3),
    ],
)
def test_a_tensor_comes_back_from_its_bytes(tensor):
    nbytes = bytearray(tensor_bytes(tensor))
    assert len(nbytes) == tensor.nbytes
    assert torch.equal(tensor_of(nbytes or None, tuple(tensor.shape), tensor.dtype), tensor)


def test_a_payload_for_which_there_is_no_memory_is_dropped_and_the_next_messages_come(ends, monkeypatch):
    ours, theirs = ends
    reader = wire.Reader(theirs)
    big = torch.ones(100_000)

    class Full(bytearray):
        def __new__(cls, size=0):
            if size == big.nbytes:
                raise MemoryError
            return bytearray.__new__(cls)

    monkeypatch.setattr(wire, "bytearray", Full, raising=False)
    got = []
    sender = threading.Thread(
        target=lambda: [
            wire.send(ours, ("put", 1), tensor_bytes(big)),
            wire.send(ours, ("put", 2), tensor_bytes(torch.arange(3))),
            wire.send(ours, ("run", 3)),
        ]
    )
    sender.start()
    while len(got) < 3:
        got += reader.read()
    sender.join()
    assert [(head, payload is None) for head, payload in got] == [
        (("put", 1), True),
        (("put", 2), False),
        (("run", 3), True),
    ]
