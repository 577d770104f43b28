"""What a call that is handed out by who waits for it takes along."""

import gc

import numpy as np
import torch

from tinyshard.program import Builder, Meta
from tinyshard.runtime import board, channel
from tinyshard.runtime.buffers import Buffers
from tinyshard.runtime.errand import plan
from tinyshard.runtime.runs import Run, Where
from tinyshard.runtime.stream import Bell, Streams


class Reachable:
    nbytes = 0


def test_small_values_are_let_go_of_after_the_call_and_others_before():
    buffers, where = Buffers(), Where("here", 1)
    run = Run(1, (0,), False, where)
    metas = [Meta((8,), torch.float32), Meta((1 << 20,), torch.float32), None]
    small, large, unknown = (buffers.make(run, None, meta) for meta in metas)
    numbers = [value.number for value in (small, large, unknown)]
    del small, large, unknown
    gc.collect()
    program = Builder((0,), (1,)).finish([])
    memory = board.Board(np.zeros(board.nbytes(1), np.uint8), 1)
    item = ("run", 0, Run(2, (0,), False, where), program, (), ())
    errand = plan(item, [Reachable()], {0}, buffers.released(), Streams(memory, 1, Bell(memory)))
    sent = channel.frame_of_call(2, program.number, (), (), numbers[1:], numbers[:1])
    assert errand.message == sent
