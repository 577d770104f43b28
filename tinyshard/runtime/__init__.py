"""How Programs are run: on worker processes (`pool`, `worker`), or in this process (`local`).

controller                                           device i = one worker process
pool.py ─ switchboard.py ─ link.py ── channel.py ──► worker.py ── execute.py ── shared.py, or fabric.py (gloo)
  arena.py     memory that all of them map (mapping.py): blocks that are lent and recycled; its first part is board.py
  signals.py   waiting for another process by counters in it (futex.py); progress.py: how far devices are, read from it
  room.py      how much memory the machine has left
  stream.py    what the controller writes to a device: a ring of bytes in that memory, and a bell
  notes.py     small collectives in that memory, shared.py large ones; combining.py adds up; group.py: who takes part
  runs.py      which call made a value, and what it depends on
  buffers.py   which values nobody holds any more
  failures.py  what went wrong on a device, as text
  gate.py      waiting that Ctrl-C may interrupt; cells.py hears of it, interrupts.py and cancelling.py tell the devices
  shortcuts.py shorter ways to what an op of torch's gives, for execute.py
  turnstile.py which calls a device may start; watching.py: who gets on; stalls.py: the error if nobody does
  memory.py    what is alive, for errors about memory; printed.py: what the workers print
  launch.py    starts the workers, by zygote.py, which forks them; forks.py: when user code forks the controller
  cores.py     on which core a device stays, where they share them
  on_gpu.py    a device that is a GPU; gpus.py: which one, and what joins them

controller                                           another machine: torchrun ─► agent.py ─► worker.py
hosts.py ─ party.py ── lines.py, handshake.py ─────►     slots.py: which device it is; meeting.py: how workers meet
"""
