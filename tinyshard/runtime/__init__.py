"""How Programs are run: on worker processes, or in this process (`local`).

controller/   the notebook's kernel. pool: calls that return at once, and waiting: for what they make
              dispatcher: gives calls their order and hands them out; delivery: what is sent for each; receiver: the
              thread that takes what devices send; calls: what is out; back_pressure: holds a fast loop back;
              connection: to one device. lineage: which call made a value, and what it depends on; refs: which values
              nobody holds any more; cancellation: what Ctrl-C leaves out; watchdog: whether any device gets on;
              remote_errors: the one error that the cell sees
worker/       a device is one process. main: from its fork to its end; loop: does what it is told, in order;
              executor: runs Programs; control: which calls may start; kernels: shorter ways to what an op gives
shm/          memory that the processes of one host share. segment: maps it; allocator: blocks that are lent and
              recycled; control_block: its first part, of known layout; monitor: a mutex and conditions in it;
              log: how calls reach the devices; completion: how far these are; barrier: where devices wait for each
              other; memory_limit: how much the machine has left
collectives/  shm (large operands) and eager (small ones), gloo, nccl; reduction: where sums are made
launch/       forkserver and local: the workers of this machine; hosts, remote_workers, agent: of others; connect: the
              connections between machines, and what is proved there; gpus, cores: which GPU and which core is whose
lifecycle     which devices there are: init, devices, shutdown, the runtime in use
cache         what was used last; programs that nothing refers to any more, for the devices to drop
wire          messages, and tensors as bytes; failure: what went wrong on a device, as text
forks         what happens when user code forks the controller
"""
