"""Messages with payloads that are received together: each payload ends where the next message begins."""

import socket

from tinyshard.runtime import wire


def test_short_payloads_between_messages_come_with_one_read() -> None:
    messages = [(("put", 1), b"abc"), (("run", 2), b""), (("put", 3), b"defgh"), (("free", 4), b"")]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(b"".join(piece for head, body in messages for piece in wire.frame(head, memoryview(body))))
        got = wire.Reader(theirs).read()
    assert got == [(head, bytearray(body) if body else None) for head, body in messages]
