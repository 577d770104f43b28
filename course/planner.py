"""The planner: how long a step would take on a machine that you do not have.

    without overlap    = time of the matrix products + time of the collectives: a device computes or communicates
    perfect overlap    = the longer one of the two: all communication is hidden behind computing, or the reverse
    matrix products    = operations of one device / operations that it does in a second
    a collective       = rounds x latency + bytes / bandwidth

The first two are bounds: a real step is between them, as far as the model holds. Operations, bytes and memory are
counted from the program that `lower(...).compile()` makes. Latency, bandwidth and speed are the machine's, three
numbers that can be measured. What is left out: everything but matrix products, disks, and other traffic on the links.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from course.rates import ETHERNET, INFINIBAND, NVLINK
from tinyshard.compile.cost import Cost, bytes_sent
from tinyshard.compile.memory import memory_of
from tinyshard.core.collectives import COLLECTIVES, group_size
from tinyshard.core.program import Eqn, Program

__all__ = ["GPU_BOXES", "LAPTOPS", "MACHINES", "ROUNDS", "Estimate", "Exchange", "Link", "Machine", "estimate"]


@dataclass(frozen=True, slots=True)
class Link:
    """A link.

    Attributes:
        latency_s: seconds until the first byte is there.
        bytes_per_s: bandwidth, one way.
    """

    latency_s: float
    bytes_per_s: float


@dataclass(frozen=True, slots=True)
class Machine:
    """Hosts of equal devices, the first devices of a mesh on the first host, and so on.

    Attributes:
        name: in a picture's words.
        devices_per_host: how many devices one host has.
        flops_per_s: what one device reaches in matrix products (not what its maker prints).
        memory_nbytes: of one device.
        inside: from a device to others of its host; each device has its own.
        between: from a host to other hosts; all its devices share it.
    """

    name: str
    devices_per_host: int
    flops_per_s: float
    memory_nbytes: int
    inside: Link
    between: Link


# Two cores shared by eight workers; between the laptops a cable of 1 Gbit/s.
LAPTOPS = Machine("laptops", 8, 8e9, 2 * 10**9, Link(100e-6, 500e6), Link(500e-6, ETHERNET.bytes_per_s))
# Near the data sheet of eight H100 in a box: 40 % of the 495 Tflop/s of TF32, 450 GB/s, 8 x 400 Gbit/s to the others.
GPU_BOXES = Machine(
    "GPU boxes", 8, 200e12, 80 * 10**9, Link(5e-6, NVLINK.bytes_per_s), Link(15e-6, 8 * INFINIBAND.bytes_per_s)
)
MACHINES = (LAPTOPS, GPU_BOXES)


def _doublings(n: int) -> int:
    return (n - 1).bit_length()


# In how many rounds n devices do it: around a ring, or with partners at distance 1, 2, 4, … that exchange half as much
# in each round, and then the other way round. The bytes are the same.
ROUNDS = {
    "ring": {
        "all_reduce": lambda n: 2 * (n - 1),
        "all_gather": lambda n: n - 1,
        "reduce_scatter": lambda n: n - 1,
        "all_to_all": lambda n: n - 1,
        "collective_permute": lambda n: 1,
    },
    "halving and doubling": {
        "all_reduce": lambda n: 2 * _doublings(n),
        "all_gather": _doublings,
        "reduce_scatter": _doublings,
        "all_to_all": lambda n: n - 1,
        "collective_permute": lambda n: 1,
    },
}


@dataclass(frozen=True, slots=True)
class Exchange:
    """One collective on a machine.

    Attributes:
        op: as in the program's text.
        devices: how many take part in a group.
        nbytes: what the busiest device sends, by the model of `cost_analysis`.
        host_nbytes: what leaves the busiest host; 0 where nothing does.
        seconds: how long it takes.
    """

    op: str
    devices: int
    nbytes: int
    host_nbytes: int
    seconds: float

    @property
    def crosses(self) -> bool:
        """Whether bytes go from host to host."""
        return self.host_nbytes > 0


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a call of a program costs on a machine.

    Attributes:
        devices: how many run it.
        compute_s: seconds of the matrix products of one device.
        exchanges: its collectives, in order.
        memory_nbytes: the most that a device holds at once.
        fits: whether a device has as much.
    """

    devices: int
    compute_s: float
    exchanges: tuple[Exchange, ...]
    memory_nbytes: int
    fits: bool

    @property
    def inside_s(self) -> float:
        """Seconds of the collectives that stay on one host."""
        return sum(e.seconds for e in self.exchanges if not e.crosses)

    @property
    def between_s(self) -> float:
        """Seconds of the collectives that go from host to host."""
        return sum(e.seconds for e in self.exchanges if e.crosses)

    @property
    def communicate_s(self) -> float:
        """Seconds of all collectives, one after the other."""
        return self.inside_s + self.between_s

    @property
    def step_s(self) -> float:
        """Seconds of the whole step without overlap, a sum: the upper bound."""
        return self.compute_s + self.communicate_s

    @property
    def overlapped_s(self) -> float:
        """Seconds of the whole step with perfect overlap, a maximum: the lower bound."""
        return max(self.compute_s, self.communicate_s)

    @property
    def nbytes(self) -> int:
        """Bytes that the busiest device sends, by the model of `cost_analysis`."""
        return sum(e.nbytes for e in self.exchanges)

    @property
    def host_nbytes(self) -> int:
        """Bytes that leave the busiest host."""
        return sum(e.host_nbytes for e in self.exchanges)


class _Compiled(Protocol):
    @property
    def program(self) -> Program: ...

    def cost_analysis(self) -> Cost: ...


def estimate(compiled: _Compiled, machine: Machine, *, rounds: str = "ring") -> Estimate:
    """Say what a program would cost on a machine, from its text and the machine's numbers.

    Args:
        compiled: `ts.jit(f).lower(...).compile()`, also for an AbstractMesh.
        machine: the machine.
        rounds: "ring" or "halving and doubling": how devices take turns in a collective.

    Returns:
        Seconds, bytes and memory of one call.

    Raises:
        ValueError: no such `rounds`.

    Communication: none.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> mesh = ts.AbstractMesh((16,), "d")
        >>> x = ts.ShapeDtypeStruct((16, 1000), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))
        >>> total = estimate(ts.jit(lambda x: x.sum(0)).lower(x).compile(), LAPTOPS)
        >>> total.nbytes, total.host_nbytes, round(total.between_s * 1000)
        (7500, 7500, 15)
    """
    if rounds not in ROUNDS:
        raise ValueError(f"there is no way {rounds!r} to take turns; try one of {', '.join(map(repr, ROUNDS))}")
    program = compiled.program
    exchanges = tuple(
        _exchange(program, step, machine, rounds)
        for step in program.steps
        if step.op in COLLECTIVES and COLLECTIVES[step.op].communicates
    )
    memory_nbytes = memory_of(program).peak_nbytes
    return Estimate(
        devices=len(program.devices),
        compute_s=compiled.cost_analysis().flops / machine.flops_per_s,
        exchanges=exchanges,
        memory_nbytes=memory_nbytes,
        fits=memory_nbytes <= machine.memory_nbytes,
    )


def _exchange(program: Program, step: Eqn, machine: Machine, rounds: str) -> Exchange:
    n = group_size(program.axes, step.kwargs)
    sent = bytes_sent(program, step)
    hosts = _hosts_of_groups(program.axes, step.kwargs, machine.devices_per_host)
    out = _leaving(step.op, hosts, sent, step.kwargs)
    link = machine.between if out else machine.inside
    carried_s = max(sent / machine.inside.bytes_per_s, out / machine.between.bytes_per_s)
    return Exchange(step.op, n, sent, out, ROUNDS[rounds][step.op](n) * link.latency_s + carried_s)


def _hosts_of_groups(axes: Sequence[int], params: dict[str, Any], devices_per_host: int) -> np.ndarray:
    """The host of each member of each group, int[groups, members]."""
    named = list(params["axes"])
    places = np.arange(math.prod(axes)).reshape(tuple(axes))
    others = [a for a in range(len(axes)) if a not in named]
    whole = places.transpose(*others, *named).reshape(-1, math.prod(axes[a] for a in named))
    smaller = params.get("groups")
    groups = whole if not smaller else np.concatenate([whole[:, list(group)] for group in smaller])
    return groups // devices_per_host


def _leaving(op: str, hosts: np.ndarray, sent: int, params: dict[str, Any]) -> int:
    """Bytes that leave the busiest host in one collective.

    A ring visits a host's members one after the other, so only one of them sends to the next host: each group that
    has members on several hosts takes `sent` bytes out of each of them. In an all_to_all each member sends an equal
    part to every other member; a permutation lists senders and receivers.
    """
    n = hosts.shape[1]
    leaves = np.zeros(int(hosts.max()) + 1)
    if op == "collective_permute":
        for source, target in params["pairs"]:
            crossing = hosts[:, source][hosts[:, source] != hosts[:, target]]
            np.add.at(leaves, crossing, sent)
    elif op == "all_to_all":
        for group in hosts:
            found, members = np.unique(group, return_counts=True)
            leaves[found] += members * (n - members) * sent / max(n - 1, 1)
    else:
        for group in hosts:
            found = np.unique(group)
            if len(found) > 1:
                leaves[found] += sent
    return round(float(np.max(leaves)))
