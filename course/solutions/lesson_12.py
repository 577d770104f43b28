"""Lesson 12: answers."""

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def all_reduce_seconds(nbytes, devices, link):  # type: ignore[no-untyped-def]
    """Waiting in each step of the ring, and carrying the bytes."""
    rounds = 2 * (devices - 1)
    return rounds * link.latency_s + rounds * nbytes / devices / link.bytes_per_s


def one_wait(nbytes, devices, link):  # type: ignore[no-untyped-def]
    """Waits once, as if the steps could all be taken at the same time."""
    return link.latency_s + 2 * nbytes * (devices - 1) / devices / link.bytes_per_s


def one_load(nbytes, devices, link):  # type: ignore[no-untyped-def]
    """Sends the block once, as to one neighbour."""
    return 2 * (devices - 1) * link.latency_s + nbytes / link.bytes_per_s


def bytes_alone(nbytes, devices, link):  # type: ignore[no-untyped-def]
    """Forgets that there is anything to wait for."""
    return 2 * (devices - 1) * nbytes / devices / link.bytes_per_s


def in_stages(row):  # type: ignore[no-untyped-def]
    """Add up within the host, then a quarter each between the hosts, then tell the host."""
    part = ts.lax.psum_scatter(row, "device", tiled=True)
    return ts.lax.all_gather(ts.lax.psum(part, "host"), "device", tiled=True)


def in_one_ring(row):  # type: ignore[no-untyped-def]
    """One ring through all eight devices, in another order."""
    return ts.lax.psum(row, ("device", "host"))


def whole_rows_between(row):  # type: ignore[no-untyped-def]
    """Two stages, but each device carries the whole sum to the other host."""
    return ts.lax.psum(ts.lax.psum(row, "device"), "host")


def one_host_alone(row):  # type: ignore[no-untyped-def]
    """Adds up within the host, and leaves it at that."""
    return ts.lax.psum(row, "device")


ANSWERS = {
    "12.1": Answers(
        solution=all_reduce_seconds,
        wrong=(
            Wrong(one_wait, "How many steps are there?"),
            Wrong(one_load, "A little less than twice as much"),
            Wrong(bytes_alone, "what waiting costs"),
        ),
    ),
    "12.2": Answers(
        solution=2048,
        wrong=(
            Wrong(4096, "the ring gets longer"),
            Wrong(8, "how long the products take"),
            Wrong(1024, "Where do they meet"),
        ),
    ),
    "12.3": Answers(
        solution=in_stages,
        wrong=(
            Wrong(in_one_ring, "nearly twice the bytes of a row"),
            Wrong(whole_rows_between, "psum_scatter first"),
            Wrong(one_host_alone, "add up among themselves first"),
        ),
    ),
    "12.4": Answers(
        solution=ts.AbstractMesh((8, 8), ("data", "model")),
        wrong=(
            Wrong(ts.AbstractMesh((16, 4), ("data", "model")), "Only the order"),
            Wrong(ts.AbstractMesh((4, 16), ("model", "data")), "Only the order"),
            Wrong(ts.AbstractMesh((64,), ("data",)), "which device ids stand in one row"),
        ),
    ),
}
