"""What can be known of GPUs without one: programs make nothing on the CPU, and staging gives what the inner one does.

torch's "meta" device stands for a GPU: an op that mixes it with the CPU, or makes something there, is found out.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist

import tinyshard as ts
from tinyshard.core.program import Program
from tinyshard.core.types import ShapedType
from tinyshard.runtime.collectives import nccl
from tinyshard.runtime.collectives.base import Communicator, Request
from tinyshard.runtime.collectives.nccl import NcclCommunicator, StagedCommunicator
from tinyshard.runtime.local import LocalRuntime
from tinyshard.runtime.worker.executor import make_ready, zeros_for

ELSEWHERE = torch.device("meta")

WAYS = {
    "eager ops": lambda x: (x + 1).clamp(min=0).softmax(1),
    "made inside jit": ts.jit(lambda x: x + torch.arange(4.0) + torch.zeros(()) + torch.full((8, 1), 2.0)),
    "a constant": ts.jit(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0])),
    "a mask": ts.jit(lambda x: torch.where(torch.ones(4, dtype=torch.bool), x, x.tril())),
    "a change of dtype": ts.jit(lambda x: x.to(torch.float64).long()),
    "a gradient": ts.jit(ts.grad(lambda x: (torch.tanh(x @ x.T) ** 2).sum())),
    "random numbers": ts.jit(lambda x: x + ts.random.normal(ts.random.key(0), (8, 4))),
    "a mapped function": ts.pmap(lambda row: row - ts.lax.pmean(row, "i"), axis_name="i"),
}


@pytest.mark.usefixtures("local")
@pytest.mark.parametrize("way", WAYS)
def test_a_program_on_another_device_makes_nothing_on_the_cpu(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Program] = []
    run = LocalRuntime.run

    def note(self: LocalRuntime, program: Program, *rest: Any, **named: Any) -> Any:
        seen.append(program)
        return run(self, program, *rest, **named)

    monkeypatch.setattr(LocalRuntime, "run", note)
    count = len(ts.devices())
    x = ts.device_put(torch.ones(8, 4), ts.sharding.PositionalSharding(ts.devices()).reshape(count, 1))
    WAYS[way](x).block_until_ready()
    assert seen
    for program in seen:
        ready = make_ready(program, ELSEWHERE)
        inputs = [zeros_for(meta, ELSEWHERE) for meta in program.metas[: program.num_inputs]]
        values: list[Any] = [*inputs, *[None] * (ready.size - program.num_inputs)]
        for step in ready.steps:
            if step.request is not None:
                made = [zeros_for(program.metas[slot], ELSEWHERE) for slot in step.results]
            else:
                assert step.call is not None
                made = list(step.call(values))
            for slot, value in zip(step.results, made, strict=False):
                if slot >= 0:
                    assert value.device == ELSEWHERE, step.describe(values)
                    values[slot] = value


def test_what_is_exchanged_passes_through_the_cpu_and_what_is_not_stays() -> None:
    store = dist.HashStore()
    with ThreadPoolExecutor(2) as threads:
        made = threads.map(lambda n: StagedCommunicator(store, n, 2, "127.0.0.1", ELSEWHERE), range(2))
        devices = list(made)

        def performed(device: StagedCommunicator, name: str, x: torch.Tensor, params: dict[str, Any]) -> Any:
            meta = ShapedType((3,), torch.float32)
            return device.ready(Request(name, (0, 1), (2,), (0,), params, (meta,), meta))([x], (1, 0))[0]

        for name, x, params in (
            ("own_index", torch.ones(3, device=ELSEWHERE), {}),
            ("all_reduce", torch.ones(3), {"op": "sum"}),
            (
                "transfer",
                torch.ones(3),
                {"moves": ((0, 1, (slice(3),), (slice(3),)), (1, 0, (slice(3),), (slice(3),)))},
            ),
        ):
            waiting = [threads.submit(performed, device, name, x, params) for device in devices]
            assert [got.result(60).device for got in waiting] == [ELSEWHERE] * 2


class Unconnected(NcclCommunicator):
    """A device without a GPU, and without the others."""

    def __init__(self, device: int) -> None:
        Communicator.__init__(self, device)


def test_what_a_device_sends_and_receives_in_a_permutation_is_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    batches: list[list[tuple[Any, int]]] = []
    monkeypatch.setattr(nccl.dist, "P2POp", lambda way, block, device, tag: (way, device))
    monkeypatch.setattr(nccl.dist, "batch_isend_irecv", lambda operations: batches.append(operations) or [])
    here = Unconnected(4)
    meta = ShapedType((2,), torch.float32)
    for pairs in (((0, 1), (1, 0)), ((0, 0),)):
        params = {"pairs": pairs}
        here.ready(Request("collective_permute", (4, 6), (2,), (0,), params, (meta,), meta))([torch.ones(2)], (1, 0))
    assert batches == [[(nccl.dist.isend, 6), (nccl.dist.irecv, 6)]], "and nothing where there is nothing to send"
