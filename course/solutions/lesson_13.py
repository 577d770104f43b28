"""Lesson 13: answers."""

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

P = ts.P


def train(w, steps):  # type: ignore[no-untyped-def]
    """13.1: keeps the losses on the device, and fetches one array of them."""
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w, ts.device_get(torch.stack(losses))


def train_fetching_one_by_one(w, steps):  # type: ignore[no-untyped-def]
    """After the loop, but each loss for itself."""
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w, [float(loss) for loss in losses]


def train_without_looking(w, steps):  # type: ignore[no-untyped-def]
    """Leaves the looking to the caller."""
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w, losses


def train_here(w, steps):  # type: ignore[no-untyped-def]
    """Fetches w, and trains in the controller."""
    w = ts.device_get(w)
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w, losses


def train_waiting_too(w, steps):  # type: ignore[no-untyped-def]
    """One fetch of the losses, and a wait for w."""
    losses = []
    for _ in range(steps):
        w = w - 0.1 * w
        losses.append((w * w).sum())
    return w.block_until_ready(), ts.device_get(torch.stack(losses))


def in_stages(row):  # type: ignore[no-untyped-def]
    """13.3: add up within the host, then a quarter each between the hosts, then tell the host."""
    part = ts.lax.psum_scatter(row, "device", tiled=True)
    return ts.lax.all_gather(ts.lax.psum(part, "host"), "device", tiled=True)


def in_one_ring(row):  # type: ignore[no-untyped-def]
    """One ring through all eight devices, in another order."""
    return ts.lax.psum(row, ("device", "host"))


def whole_rows_between(row):  # type: ignore[no-untyped-def]
    """Two stages, but each device carries the whole sum to the other host."""
    return ts.lax.psum(ts.lax.psum(row, "device"), "host")


def quarters_left(row):  # type: ignore[no-untyped-def]
    """Two stages, without the last one."""
    return ts.lax.psum(ts.lax.psum_scatter(row, "device", tiled=True), "host")


def one_host_alone(row):  # type: ignore[no-untyped-def]
    """Adds up within the host, and leaves it at that."""
    return ts.lax.psum(row, "device")


ANSWERS = {
    "13.1": Answers(
        solution=train,
        wrong=(
            Wrong(train_fetching_one_by_one, "What makes one array of them"),
            Wrong(train_without_looking, "still on the device"),
            Wrong(train_here, "w stays where it is"),
            Wrong(train_waiting_too, "nothing else may be looked at"),
        ),
    ),
    "13.2": Answers(
        solution=(P("host"), P(None, "device"), P("device")),
        wrong=(
            Wrong((P(), P(None, ("host", "device")), P(("host", "device"))), "Which axis may that be"),
            Wrong((P(), P(None, "device"), P("device")), "do the same work"),
            Wrong((P("host"), P(), P()), "can share each matrix"),
            Wrong((P(None, "host"), P(None, "device"), P("device")), "do the products not sum"),
        ),
    ),
    "13.3": Answers(
        solution=in_stages,
        wrong=(
            Wrong(in_one_ring, "nearly twice the bytes of a row"),
            Wrong(whole_rows_between, "psum_scatter first"),
            Wrong(one_host_alone, "add up among themselves first"),
            Wrong(quarters_left, "What joins quarters again"),
        ),
    ),
}
