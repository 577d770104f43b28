"""Framed messages over a socket: a pickled head, and raw bytes of one tensor behind it.

4 bytes length of the head | 8 bytes length of the payload | head (pickle) | payload (as the tensor lies in memory)
"""

from __future__ import annotations

import pickle
import socket
import struct
from typing import Any

import torch

_LENGTHS = struct.Struct("<IQ")


def frame(head: tuple[Any, ...], payload: memoryview | None = None) -> list[memoryview]:
    """The pieces to write for one message, in order."""
    pickled = pickle.dumps(head, protocol=pickle.HIGHEST_PROTOCOL)
    size = payload.nbytes if payload is not None else 0
    first = memoryview(_LENGTHS.pack(len(pickled), size) + pickled)
    return [first] if payload is None or not size else [first, payload]


class Reader:
    """Puts frames together from a socket, as far as bytes have come."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._head = bytearray(_LENGTHS.size)
        self._start(_LENGTHS.size)
        self._state = 0  # 0: lengths, 1: head, 2: payload

    def _start(self, size: int) -> None:
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._filled = 0

    def read(self) -> list[tuple[tuple[Any, ...], bytearray | None]] | None:
        """Read what is there (or, on a blocking socket, at least some bytes).

        Returns:
            The messages completed by it; None at the end of the stream.
        """
        done: list[tuple[tuple[Any, ...], bytearray | None]] = []
        while True:
            try:
                got = self._sock.recv_into(self._view[self._filled :])
            except (BlockingIOError, InterruptedError):
                return done
            except ConnectionError:
                return None
            if got == 0:
                return None
            self._filled += got
            if self._filled == len(self._buffer):
                done.extend(self._advance())
                if done and self._sock.getblocking():
                    return done

    def _advance(self) -> list[tuple[tuple[Any, ...], bytearray | None]]:
        if self._state == 0:
            head_size, self._payload_size = _LENGTHS.unpack(self._buffer)
            self._state = 1
            self._start(head_size)
            return []
        if self._state == 1:
            self._message = pickle.loads(bytes(self._buffer))
            if self._payload_size:
                self._state = 2
                self._start(self._payload_size)
                return []
            payload = None
        else:
            payload = self._buffer
        self._state = 0
        self._start(_LENGTHS.size)
        return [(self._message, payload)]


def send(sock: socket.socket, head: tuple[Any, ...], payload: memoryview | None = None) -> None:
    """Write one message to a blocking socket."""
    for piece in frame(head, payload):
        sock.sendall(piece)


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The bytes of a CPU tensor in row-major order; shares memory with a contiguous one."""
    flat = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def tensor_of(payload: bytearray | None, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The tensor whose bytes these are, without a copy."""
    if not payload:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(payload, dtype=dtype).reshape(shape)
