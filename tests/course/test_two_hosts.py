"""The relay between the notebook and host b: what goes in comes out, later, or not while the link is cut."""

import select
import socket
from collections.abc import Iterator

import pytest

from course.two_hosts import Relay

WITHIN_S = 20


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """Where the relay's bytes go."""
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.settimeout(WITHIN_S)
        yield made


@pytest.fixture
def relay(listener: socket.socket) -> Iterator[Relay]:
    made = Relay(f"127.0.0.1:{listener.getsockname()[1]}")
    yield made
    made.close()


def through(relay: Relay, listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection through the relay."""
    host, port = relay.address.split(":")
    near = socket.create_connection((host, int(port)), timeout=WITHIN_S)
    far, _ = listener.accept()
    far.settimeout(WITHIN_S)
    return near, far


def received(sock: socket.socket, nbytes: int) -> bytes:
    data = b""
    while len(data) < nbytes:
        data += sock.recv(nbytes - len(data))
    return data


def test_bytes_go_through_in_order_in_both_directions(relay: Relay, listener: socket.socket) -> None:
    near, far = through(relay, listener)
    with near, far:
        for number in range(100):
            near.sendall(bytes([number]))
        assert received(far, 100) == bytes(range(100))
        far.sendall(b"back")
        assert received(near, 4) == b"back"


def test_every_byte_is_late_by_the_latency(relay: Relay, listener: socket.socket) -> None:
    near, far = through(relay, listener)
    with near, far:
        relay.latency_s = 0.3
        near.sendall(b"late")
        assert not select.select([far], [], [], 0.1)[0]
        assert received(far, 4) == b"late"


def test_what_is_sent_into_a_cut_link_arrives_when_it_is_joined(relay: Relay, listener: socket.socket) -> None:
    near, far = through(relay, listener)
    with near, far:
        relay.cut()
        near.sendall(b"held")
        assert not select.select([far], [], [], 0.1)[0]
        relay.join()
        assert received(far, 4) == b"held"


def test_the_end_of_a_connection_goes_through(relay: Relay, listener: socket.socket) -> None:
    near, far = through(relay, listener)
    with far:
        near.close()
        assert far.recv(1) == b""


def test_where_nothing_listens_yet_the_connection_ends_and_may_be_tried_again() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    relay = Relay(f"127.0.0.1:{port}")
    host, own = relay.address.split(":")
    with socket.create_connection((host, int(own)), timeout=WITHIN_S) as near:
        assert near.recv(1) == b""
    with socket.create_server(("127.0.0.1", port)) as listener:
        listener.settimeout(WITHIN_S)
        near, far = through(relay, listener)
        with near, far:
            near.sendall(b"now")
            assert received(far, 3) == b"now"
    relay.close()
