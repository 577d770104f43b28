"""Messages: a head, which is plain data, and the bytes of one tensor. A frame is a message as bytes.

4 bytes length of the head | 8 bytes length of the payload | head (pickle) | payload (as it lies in memory)

Frames travel over a socket, or as records of the log in shared memory (`shm.log`).
"""

from __future__ import annotations

import pickle
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import torch

_LENGTHS = struct.Struct("<IQ")
_CHUNK_NBYTES = 1 << 16

Message = tuple[tuple[Any, ...], bytearray | None]
# a collective that a device waits in: the call, the place in it, its name, the ids of those that take part
Current = tuple[int, int, str, tuple[int, ...]]


def frame(head: tuple[Any, ...], payload: memoryview | None = None) -> list[memoryview]:
    """The pieces to write for one message, in order."""
    pickled = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    size = payload.nbytes if payload is not None else 0
    first = memoryview(_LENGTHS.pack(len(pickled), size) + pickled)
    return [first] if payload is None or not size else [first, payload]


def parse(record: bytes) -> Message:
    """The message of one whole frame."""
    head_size, payload_size = _LENGTHS.unpack_from(record)
    start = _LENGTHS.size + head_size
    head = pickle.loads(memoryview(record)[_LENGTHS.size : start])
    return head, bytearray(memoryview(record)[start : start + payload_size]) if payload_size else None


class Reader:
    """Puts frames together from a socket, as far as bytes have come.

    Many small messages come with one system call; a long payload is received where it is to stay. One for which there
    is no memory is dropped, and its message comes without it.

    Attributes:
        error: what broke the stream, if it did not simply end.
    """

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._bytes = b""  # received, but not yet a whole head
        self._head: tuple[Any, ...] = ()
        self._payload = bytearray()  # of `_head`, still being filled; empty if none is
        self._filled = 0
        self._is_dropping = False  # there was no memory for the payload of `_head`
        self._to_drop = 0
        self.error: OSError | None = None

    def read(self) -> list[Message] | None:
        """Receive once. A blocking socket waits for at least some bytes.

        Returns:
            The messages completed by it; None at the end of the stream.
        """
        try:
            if self._payload:
                with memoryview(self._payload) as view:
                    count = self._sock.recv_into(view[self._filled :])
                self._filled += count
            elif self._to_drop:
                count = len(self._sock.recv(min(_CHUNK_NBYTES, self._to_drop)))
                self._to_drop -= count
            else:
                received = self._sock.recv(_CHUNK_NBYTES)
                count = len(received)
                self._bytes += received
        except (BlockingIOError, InterruptedError):
            return []
        except OSError as error:  # also that the other machine does not answer any more
            self.error = error
            return None
        return self._take_messages() if count else None

    def _take_messages(self) -> list[Message]:
        done: list[Message] = []
        at = 0
        while not self._to_drop:
            if self._is_dropping:
                done.append((self._head, None))
                self._is_dropping = False
            if self._payload:
                if self._filled < len(self._payload):
                    break
                done.append((self._head, self._payload))
                self._payload = bytearray()
            start = at + _LENGTHS.size
            if start > len(self._bytes):
                break
            head_size, payload_size = _LENGTHS.unpack_from(self._bytes, at)
            if start + head_size > len(self._bytes):
                break
            at = start + head_size
            head = pickle.loads(memoryview(self._bytes)[start:at])
            if not payload_size:
                done.append((head, None))
                if at == len(self._bytes):  # as after most
                    break
                continue
            part = self._bytes[at : at + payload_size]
            at += len(part)
            self._head, self._filled = head, len(part)
            try:
                self._payload = bytearray(payload_size)
            except MemoryError:
                self._is_dropping, self._to_drop = True, payload_size - len(part)
            else:
                self._payload[: len(part)] = part
        self._bytes = self._bytes[at:]
        return done


def messages(sock: socket.socket) -> Iterator[Message]:
    """What comes over a blocking socket, until the other side ends it."""
    reader = Reader(sock)
    while (read := reader.read()) is not None:
        yield from read


def send(sock: socket.socket, head: tuple[Any, ...], payload: memoryview | None = None) -> None:
    """Write one message to a blocking socket."""
    for piece in frame(head, payload):
        sock.sendall(piece)


def receive(sock: socket.socket) -> tuple[Any, ...]:
    """Read one message without a payload from a blocking socket, and not a byte of what follows it.

    Raises:
        ConnectionError: the stream ends first.
    """
    head_size, _ = _LENGTHS.unpack(exactly(sock, _LENGTHS.size))
    head: tuple[Any, ...] = pickle.loads(exactly(sock, head_size))
    return head


def exactly(sock: socket.socket, nbytes: int, end_s: float | None = None) -> bytes:
    """Read so many bytes from a blocking socket.

    Args:
        end_s: when they must all be here, on the monotonic clock: a byte now and then gains no time.

    Raises:
        ConnectionError: the stream ends first.
        TimeoutError: it is too late.
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


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in row-major order, as a flat uint8 tensor; shares memory with a contiguous one."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    if flat.numel() < 2:  # contiguous whatever its stride, but a view of another dtype minds the stride
        flat = flat.as_strided(flat.shape, (1,))
    return flat.view(torch.uint8)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The same, to be written to a socket."""
    return as_bytes(tensor).numpy().data


def tensor_of(payload: bytearray | None, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor whose bytes these are, without a copy."""
    if not payload:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(payload, dtype=dtype).reshape(shape)
