"""Devices that can be started: each function checks its arguments, and returns a function that starts them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tinyshard.core import config
from tinyshard.runtime.options import COLLECTIVES, check_one_machine_has, check_one_of, collectives_for

if TYPE_CHECKING:
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.local import LocalRuntime


def here(
    kind: str, count: int, collectives: str | None, limit_nbytes: int | None
) -> Callable[[], ProcessPool | LocalRuntime]:
    """A function that starts devices on this machine's CPUs."""
    if kind == "local":
        from tinyshard.runtime.local import LocalRuntime

        check_one_of("collectives", collectives or "gloo", COLLECTIVES[:2])
        return lambda: LocalRuntime(count, "cpu", limit_nbytes)
    from tinyshard.runtime.controller.pool import ProcessPool

    check_one_machine_has(count)
    joined = collectives_for(collectives, count)
    return lambda: ProcessPool(count, "cpu", joined, limit_nbytes=limit_nbytes)


def on_hosts(
    address: str, devices: int | None, platform: str, collectives: str | None, limit_nbytes: int | None
) -> Callable[[], ProcessPool]:
    """As `here`, on the machines whose workers connect to this address."""
    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.launch import forkserver, hosts, processors
    from tinyshard.runtime.launch.remote_workers import RemoteWorkers, gather

    check_one_of("collectives between machines", collectives or "gloo", ("gloo", "nccl")[: 1 + (platform == "gpu")])
    agents = gather(hosts.join(address), devices, config.read("hosts_timeout_s"))
    seats: tuple[int, ...] = ()
    if platform == "gpu":
        machines = [(agent.host, agent.facts["gpus"]) for agent in agents]
        collectives, seats = processors.deal(machines, collectives)
    between = collectives or "gloo"

    def start() -> ProcessPool:
        forkserver.stop()  # no worker is forked here
        hosts.leave(but=address)
        starter = RemoteWorkers(agents, platform, between, seats, limit_nbytes)
        return ProcessPool(len(agents), platform, between, starter)

    return start


def on_gpus(devices: int | None, collectives: str | None, limit_nbytes: int | None) -> Callable[[], ProcessPool]:
    """As `here`, on this machine's GPUs."""
    import torch

    from tinyshard.runtime.controller.pool import ProcessPool
    from tinyshard.runtime.launch import processors

    there = torch.cuda.device_count()
    joined, seats = processors.deal([("this machine", there)] * (devices or there or 1), collectives)
    return lambda: ProcessPool(len(seats), "gpu", joined, gpus=seats, limit_nbytes=limit_nbytes)
