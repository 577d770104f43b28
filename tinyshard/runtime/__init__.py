"""How Programs are run: on worker processes (`pool`, `worker`), or in this process (`local`).

controller                                           device i = one worker process
pool.py ─ switchboard.py ─ link.py ── channel.py ──► worker.py ── execute.py ── fabric.py (gloo)
  runs.py      which call made a value, and what it depends on
  buffers.py   which values nobody holds any more
  failures.py  what went wrong on a device, as text
  gate.py      waiting that Ctrl-C may interrupt
  launch.py    starts the workers, by zygote.py, which forks them; forks.py: when user code forks the controller
"""
