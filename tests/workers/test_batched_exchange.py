"""What NCCL's devices send and receive as one batch: the function itself, in processes that gloo joins."""

import os
import subprocess
import sys

import pytest

from tests.workers.processes import PATIENCE_S, ROOT

COUNT = 3
MEMBERS = """
import os
import sys
import torch
import torch.distributed as dist
from tinyshard.runtime.collectives.nccl import exchange

store, count, cases = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
rank = next((rank for rank in range(1, count) if not os.fork()), 0)  # torch is loaded once
torch.set_num_threads(1)  # threads of OpenMP are not in a child
dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
mine = torch.full((1 << 22,), rank, dtype=torch.uint8)  # more than a socket takes before the other side reads
after, before = (rank + 1) % count, (rank - 1) % count
others = [r for r in range(count) if r != rank]
for case in cases:
    into = {r: torch.full_like(mine, 99) for r in range(count)}
    if case == "ring":
        exchange([(mine, after, 0)], [(into[before], before, 0)])
    elif case == "all to all, the greatest first":
        exchange([(mine, r, 0) for r in others[::-1]], [(into[r], r, 0) for r in others])
    elif case == "two blocks each way" and rank < 2:
        again = torch.empty_like(mine)
        exchange([(mine, 1 - rank, 0), (mine + 10, 1 - rank, 1)], [(into[1 - rank], 1 - rank, 0), (again, 1 - rank, 1)])
        assert again.unique().tolist() == [11 - rank]
    else:
        exchange([], [])
    got = {r: x.unique().item() for r, x in into.items() if x[0] != 99}
    os.write(1, f"{case}, {rank}: {got}\\n".encode())
dist.destroy_process_group()
if rank:
    os._exit(0)
for _ in range(1, count):
    assert os.wait()[1] == 0
"""
CASES = {
    "ring": lambda rank: {(rank - 1) % COUNT: (rank - 1) % COUNT},
    "all to all, the greatest first": lambda rank: {r: r for r in range(COUNT) if r != rank},
    "two blocks each way": lambda rank: {1 - rank: 1 - rank} if rank < 2 else {},
}


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What each process got in each case, a line each, and what went wrong."""
    store = tmp_path_factory.mktemp("exchange") / "store"
    command = [sys.executable, "-c", MEMBERS, str(store), str(COUNT), *CASES]
    as_worker = {**os.environ, "TINYSHARD_ROLE": "worker"}  # it starts no process to fork devices from
    ran = subprocess.run(command, cwd=ROOT, env=as_worker, text=True, capture_output=True, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.whole
@pytest.mark.parametrize("case", CASES)
def test_devices_that_all_send_and_receive_at_once_get_what_was_sent_to_them(case, told):
    lines = sorted(line for line in told if line.startswith(case))
    assert lines == [f"{case}, {rank}: {CASES[case](rank)}" for rank in range(COUNT)]
