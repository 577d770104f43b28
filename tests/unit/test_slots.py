"""Which device a launched process is, which GPU a device gets, and the board on which workers meet: plain data."""

from typing import Any

import pytest

from tinyshard.errors import RuntimeStateError
from tinyshard.runtime.launch import connect, gpus, rendezvous, slots


def test_torchrun_and_srun_name_the_slot() -> None:
    torchrun = {"RANK": "6", "WORLD_SIZE": "8", "LOCAL_RANK": "2", "LOCAL_WORLD_SIZE": "4"}
    srun = {"SLURM_PROCID": "6", "SLURM_NTASKS": "8", "SLURM_LOCALID": "2"}
    assert slots.slot_of(torchrun) == slots.slot_of(srun) == slots.Slot(6, 8, 2)
    assert slots.slot_of({**srun, **torchrun, "RANK": "1"}).rank == 1


@pytest.mark.parametrize("environment", [{}, {"RANK": "1", "WORLD_SIZE": "2"}, {"RANK": "x"}])
def test_without_a_launcher_the_error_shows_one(environment: dict[str, str]) -> None:
    with pytest.raises(RuntimeStateError, match="torchrun --nproc-per-node"):
        slots.slot_of(environment)


def test_ids_are_told_in_runs() -> None:
    assert slots.ids_text([]) == ""
    assert slots.ids_text([4]) == "4"
    assert slots.ids_text([7, 5, 4, 6, 0]) == "0, 4-7"


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:", ":29400", "host:port", "host:0", "host:70000", ""])
def test_an_address_without_host_or_port_is_refused(address: str) -> None:
    with pytest.raises(RuntimeStateError, match="host and a port"):
        connect.parse(address)


def test_addresses_of_both_families_are_read() -> None:
    assert connect.parse("alpha:1") == ("alpha", 1)
    assert connect.parse("[fd00::1]:29400") == ("fd00::1", 29400)


def test_each_device_has_a_gpu_of_its_own_where_there_are_enough_and_nccl_joins_them() -> None:
    machines = [("a", 4)] * 4 + [("b", 4)] * 4
    assert gpus.seats(machines) == (0, 1, 2, 3) * 2
    assert gpus.collectives(machines) == "nccl"
    assert gpus.collectives(machines, "gloo") == "gloo"


def test_devices_of_one_machine_share_its_gpus_in_turn_and_gloo_joins_them() -> None:
    machines = [("a", 2)] * 5
    assert gpus.seats(machines) == (0, 1, 0, 1, 0)
    assert gpus.collectives(machines) == "gloo"
    with pytest.raises(RuntimeStateError, match="5 devices on 2 GPUs"):
        gpus.collectives(machines, "nccl")


def test_one_shared_gpu_anywhere_keeps_nccl_from_all() -> None:
    assert gpus.collectives([("a", 2), ("a", 2), ("b", 1), ("b", 1)]) == "gloo"


def test_a_machine_without_a_gpu_is_named() -> None:
    with pytest.raises(RuntimeStateError, match="on b, for GPU 1"):
        gpus.seats([("a", 1), ("b", 0)])


def test_gpus_share_no_memory() -> None:
    with pytest.raises(RuntimeStateError, match="cannot be joined by 'shared'"):
        gpus.collectives([("a", 1)], "shared")


def test_a_board_answers_when_somebody_has_set_what_is_asked() -> None:
    board, answers = rendezvous.KeyValueStore(), []

    def note(who: str) -> Any:
        return lambda value: answers.append((who, value))

    board.take(("get", "x"), note("get"))
    board.take(("wait", ["x", "y"]), note("wait"))
    board.take(("check", ["x"]), note("check"))
    assert answers == [("check", False)]
    board.take(("set", "x", b"1"), note("set"))
    assert answers[1:] == [("get", b"1")]
    board.take(("set", "y", b"2"), note("set"))
    assert answers[2:] == [("wait", None)]
    board.take(("add", "n", 2), note("add"))
    board.take(("add", "n", 3), note("add"))
    board.take(("get", "n"), note("n"))
    assert answers[3:] == [("add", 2), ("add", 5), ("n", b"5")]
