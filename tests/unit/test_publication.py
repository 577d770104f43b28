"""What a call that is handed out by who waits for it takes along."""

import gc

import numpy as np
import pytest
import torch

from tinyshard.program import Builder, Meta
from tinyshard.runtime import wire
from tinyshard.runtime.controller.lineage import Run, Where
from tinyshard.runtime.controller.refs import Buffers
from tinyshard.runtime.publication import plan
from tinyshard.runtime.shm import control_block
from tinyshard.runtime.stream import Bell, Streams


class Reachable:
    nbytes = 0


@pytest.mark.parametrize("size", [8, 1 << 20])
def test_small_values_are_let_go_of_after_a_small_call_and_others_before(size):
    """A large one may need the memory, of which a small value may hold more than its own, as a slice does."""
    buffers, where = Buffers(), Where("here", 1)
    run = Run(1, (0,), False, where)
    metas = [Meta((8,), torch.float32), Meta((1 << 20,), torch.float32), None]
    small, large, unknown = (buffers.make(run, None, meta) for meta in metas)
    numbers = [value.number for value in (small, large, unknown)]
    del small, large, unknown
    gc.collect()
    builder = Builder((0,), (1,))
    builder.input(Meta((size,), torch.float32))
    program = builder.finish([])
    memory = control_block.ControlBlock(np.zeros(control_block.nbytes(1), np.uint8), 1)
    item = ("run", 0, Run(2, (0,), False, where), program, (), ())
    publication = plan(item, [Reachable()], {0}, buffers.released(), Streams(memory, 1, Bell(memory)))
    late = numbers[: size == 8]
    sent = wire.frame_of_call(2, program.number, (), (), numbers[len(late) :], late)
    assert publication.message == sent
