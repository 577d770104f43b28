"""Which device a launched process is, and which GPU a device gets."""

import pytest

from tinyshard.core.errors import RuntimeStateError
from tinyshard.runtime.launch import agent, connect, processors
from tinyshard.runtime.launch.remote_workers import ids_text


def test_torchrun_and_srun_name_the_slot() -> None:
    torchrun = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    srun = {"SLURM_PROCID": "6", "SLURM_NTASKS": "8", "SLURM_LOCALID": "2"}
    assert agent.slot_of(torchrun) == agent.slot_of(srun) == (6, 8)
    assert agent.slot_of({**srun, **torchrun, "RANK": "1"}) == (1, 8)


@pytest.mark.parametrize("environment", [{}, {"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "x"}])
def test_without_a_launcher_the_error_shows_one(environment: dict[str, str]) -> None:
    with pytest.raises(RuntimeStateError, match="torchrun --nproc-per-node"):
        agent.slot_of(environment)


def test_ids_are_told_in_runs() -> None:
    assert ids_text([]) == ""
    assert ids_text([4]) == "4"
    assert ids_text([7, 5, 4, 6, 0]) == "0, 4-7"


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:", ":29400", "host:port", "host:0", "host:70000", ""])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(RuntimeStateError, match="host and a port"):
        connect.parse(address)


def test_addresses_of_both_families_are_read() -> None:
    assert connect.parse("alpha:1") == ("alpha", 1)
    assert connect.parse("[fd00::1]:29400") == ("fd00::1", 29400)


def test_each_device_has_a_gpu_of_its_own_where_there_are_enough_and_nccl_joins_them() -> None:
    machines = [("a", 4)] * 4 + [("b", 4)] * 4
    assert processors.deal(machines) == ("nccl", (0, 1, 2, 3) * 2)
    assert processors.deal(machines, "gloo") == ("gloo", (0, 1, 2, 3) * 2)


def test_devices_of_one_machine_share_its_gpus_in_turn_and_gloo_joins_them() -> None:
    machines = [("a", 2)] * 5
    assert processors.deal(machines) == ("gloo", (0, 1, 0, 1, 0))
    with pytest.raises(RuntimeStateError, match="5 devices on 2 GPUs"):
        processors.deal(machines, "nccl")


def test_one_shared_gpu_anywhere_keeps_nccl_from_all() -> None:
    assert processors.deal([("a", 2), ("a", 2), ("b", 1), ("b", 1)]) == ("gloo", (0, 1, 0, 0))


def test_a_machine_without_a_gpu_is_named() -> None:
    with pytest.raises(RuntimeStateError, match="on b, for GPU 1"):
        processors.deal([("a", 1), ("b", 0)])


def test_gpus_share_no_memory() -> None:
    with pytest.raises(RuntimeStateError, match="cannot be joined by 'shared'"):
        processors.deal([("a", 1)], "shared")
