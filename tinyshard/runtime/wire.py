"""Messages: a head, which is plain data, and the bytes of one tensor. A frame is a message as bytes.

4 bytes length of the head | 8 bytes length of the payload | head (pickle) | payload (the tensor's bytes)
4 bytes length of the head | 8 bytes CALL                  | head of a call: its numbers, of 8 bytes each

Frames are sent over a socket, or as records of the log in shared memory (`shm.log`).
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import pickle
import pkgutil
import select
import socket
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

# torch pickles torch.preserve_format as the name "torch.preserve_format" of any module that has imported torch; in a
# notebook that may be the notebook itself, which no other process has
copyreg.pickle(torch.memory_format, lambda layout: (pkgutil.resolve_name, (str(layout),)))

_LENGTHS = struct.Struct("<IQ")
_CHUNK_NBYTES = 1 << 16

# in place of the length of a payload: the frame is a call
CALL = (1 << 64) - 1

Message = tuple[tuple[Any, ...], bytearray | None]
# a collective that a device waits in: the call, the place in it, its name, the ids of its devices
Current = tuple[int, int, str, tuple[int, ...]]


def call_frame(number: int, program: int, inputs: Sequence[int], outputs: Sequence[int], free: Sequence[int]) -> bytes:
    """The frame of a call, which is parsed as the head ("run", number, program, inputs, outputs, free)."""
    numbers = (number, program, len(inputs), len(outputs), *inputs, *outputs, *free)
    return _numbers(len(numbers)).pack(8 * len(numbers), CALL, *numbers)


@functools.lru_cache(maxsize=256)
def _numbers(count: int) -> struct.Struct:
    return struct.Struct(f"<IQ{count}q")


def _call_of(record: bytes | bytearray | memoryview, head_nbytes: int, at: int = 0) -> tuple[Any, ...]:
    _, _, number, program, inputs, outputs, *values = _numbers(head_nbytes >> 3).unpack_from(record, at)
    made = inputs + outputs
    return "run", number, program, values[:inputs], values[inputs:made], values[made:]


def frame(head: tuple[Any, ...], payload: memoryview | None = None) -> list[memoryview]:
    """The pieces to write for one message, in order."""
    pickled = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    size = payload.nbytes if payload is not None else 0
    first = memoryview(_LENGTHS.pack(len(pickled), size) + pickled)
    return [first] if payload is None or not size else [first, payload]


def parse(record: bytes) -> Message:
    """The message of one complete frame."""
    head_size, payload_size = _LENGTHS.unpack_from(record)
    if payload_size == CALL:
        return _call_of(record, head_size), None
    start = _LENGTHS.size + head_size
    head = pickle.loads(memoryview(record)[_LENGTHS.size : start])
    return head, bytearray(memoryview(record)[start : start + payload_size]) if payload_size else None


class Reader:
    """Parses frames from a socket, from as many bytes as have been received.

    One system call receives many small messages; a long payload is received without a copy. A payload for which there
    is no memory is dropped, and its message has none.

    Attributes:
        error: the error that broke the stream; None if it has ended or is open.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = bytearray()  # received, but not a complete head yet
        self._head: tuple[Any, ...] | None = None  # of the message whose payload is being received
        self._payload: bytearray | None = None
        self._missing_nbytes = 0  # of that payload
        self.error: OSError | None = None

    def read(self) -> list[Message] | None:
        """Receive once. A blocking socket blocks until a byte is received.

        Returns:
            The messages that are complete now; None at the end of the stream.
        """
        try:
            if self._missing_nbytes:
                if self._payload is not None:
                    count = self._sock.recv_into(memoryview(self._payload)[-self._missing_nbytes :])
                else:
                    count = len(self._sock.recv(min(_CHUNK_NBYTES, self._missing_nbytes)))
                self._missing_nbytes -= count
            else:
                received = self._sock.recv(_CHUNK_NBYTES)
                count = len(received)
                self._bytes += received
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:  # among them ETIMEDOUT: the other machine does not answer
            self.error = error
            return None
        return self._take_messages() if count else None

    def _take_messages(self) -> list[Message]:
        done: list[Message] = []
        position = 0
        while not self._missing_nbytes:
            if self._head is not None:
                done.append((self._head, self._payload))
                self._head = self._payload = None
            start = position + _LENGTHS.size
            if start > len(self._bytes):
                break
            head_nbytes, payload_nbytes = _LENGTHS.unpack_from(self._bytes, position)
            if start + head_nbytes > len(self._bytes):
                break
            position = start + head_nbytes
            if payload_nbytes == CALL:
                self._head = _call_of(self._bytes, head_nbytes, start - _LENGTHS.size)
                continue
            self._head = pickle.loads(self._bytes[start:position])
            if payload_nbytes:
                part = self._bytes[position : position + payload_nbytes]
                position += len(part)
                self._missing_nbytes = payload_nbytes - len(part)
                with contextlib.suppress(MemoryError):
                    self._payload = bytearray(payload_nbytes)
                    self._payload[: len(part)] = part
        del self._bytes[:position]
        return done


def messages(sock: socket.socket, idle: Callable[[], object], idle_after_s: float) -> Iterator[Message]:
    """The messages from a blocking socket, until the peer closes it.

    Args:
        idle: called whenever nothing has been received for `idle_after_s`.
    """
    reader = Reader(sock)
    received = select.poll()
    received.register(sock, select.POLLIN)
    while True:
        while not received.poll(1e3 * idle_after_s):
            idle()
        read = reader.read()
        if read is None:
            return
        yield from read


def send(sock: socket.socket, head: tuple[Any, ...], payload: memoryview | None = None) -> None:
    """Write one message to a blocking socket."""
    for piece in frame(head, payload):
        sock.sendall(piece)


def receive(sock: socket.socket) -> tuple[Any, ...]:
    """Read one message without a payload from a blocking socket, and no byte beyond it.

    Raises:
        ConnectionError: the stream ends first.
    """
    head_size, _ = _LENGTHS.unpack(exactly(sock, _LENGTHS.size))
    head: tuple[Any, ...] = pickle.loads(exactly(sock, head_size))
    return head


def exactly(sock: socket.socket, nbytes: int, end_s: float | None = None) -> bytes:
    """Read exactly `nbytes` bytes from a blocking socket.

    Args:
        end_s: the deadline for all of them, on the monotonic clock.

    Raises:
        ConnectionError: the stream ends first.
        TimeoutError: the deadline has passed.
    """
    got = b""
    while len(got) < nbytes:
        if end_s is not None:
            sock.settimeout(max(0.001, end_s - time.monotonic()))
        part = sock.recv(nbytes - len(got))
        if not part:
            raise ConnectionError("the other side ended the connection")
        got += part
    return got
