"""What NCCL's devices send and receive as one batch: the function itself, in processes that gloo joins."""

import subprocess
import sys

import pytest

from tests.workers.processes import PATIENCE_S, ROOT

COUNT = 3
MEMBER = """
import sys
import torch
import torch.distributed as dist
from tinyshard.runtime.collectives.nccl import exchange

store, case, rank, count = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
dist.init_process_group("gloo", store=dist.FileStore(store, count), rank=rank, world_size=count)
mine = torch.full((1 << 22,), rank, dtype=torch.uint8)  # more than a socket takes before the other side reads
into = {r: torch.full_like(mine, 99) for r in range(count)}
after, before = (rank + 1) % count, (rank - 1) % count
others = [r for r in range(count) if r != rank]
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
print({r: x.unique().item() for r, x in into.items() if x[0] != 99})
"""
CASES = {
    "ring": lambda rank: {(rank - 1) % COUNT: (rank - 1) % COUNT},
    "all to all, the greatest first": lambda rank: {r: r for r in range(COUNT) if r != rank},
    "two blocks each way": lambda rank: {1 - rank: 1 - rank} if rank < 2 else {},
}


@pytest.mark.parametrize("case", CASES)
def test_devices_that_all_send_and_receive_at_once_get_what_was_sent_to_them(case, tmp_path):
    command = [sys.executable, "-c", MEMBER, str(tmp_path / "store"), case]
    members = [
        subprocess.Popen(
            [*command, str(rank), str(COUNT)], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(COUNT)
    ]
    try:
        for rank, member in enumerate(members):
            told, errors = member.communicate(timeout=PATIENCE_S)
            assert told == f"{CASES[case](rank)}\n", errors
    finally:
        for member in members:
            member.kill()
            member.wait()
