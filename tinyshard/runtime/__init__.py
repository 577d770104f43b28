"""How Programs are run: on worker processes (`pool`, `worker`), or in this process (`local`).

controller                                   device i = one worker process
pool.py ──── channel.py ── messages ───────► worker.py ── execute.py ── fabric.py (gloo)
  runs.py  which call made a value, what failed          store.py
  zygote.py starts the workers
"""
