"""The runtime: runs Programs on worker processes, or in this process (`local`).

controller/           in the user's process; it never computes on shards
    pool              worker processes, one a device: `run` returns futures, `fetch` and `wait` block
    dispatcher        one queue of messages to devices, sent in one order
    items             the items of the queue, and the latch that a thread waits for
    delivery          the messages of one item
    waiting           how a thread waits for devices
    reading           how a thread reads values
    watchdog          raises if the devices that a wait depends on make no progress
    receiver          the I/O thread: receives what devices send
    connection        the sockets to each worker, what it prints, and which calls it has finished
    cancellation      what Ctrl-C cancels
    lineage           which calls a value depends on, and whose error it has
    refs              which values are in use, and which are released
    remote_errors     one error for all devices that failed
worker/               a device: one process
    main              from its fork to its end
    loop              handles messages in order
    steps             the steps of a call, and of the programs within it
    flow              loops and branches: programs that a step runs, in rounds
    executor          prepares a Program to run
    memory            what the device holds, counted and limited
    recording         what a device records while a trace of ts.profiler is on
    nans              what the flag debug_nans adds to a step
    kernels           faster functions for some ops
    files             steps that write a device's blocks to a file and read them
    gpu               what is done otherwise on a GPU
    control           the control thread: freeze, cancel, look, lost
processes             which process this is: process_index, process_count, local_device_count
shm/                  memory shared by the processes of one host
    segment           the file that all of them map, and its mapping in one process
    control_block     its first part, of fixed layout
    monitor           a mutex and condition variables between processes
    log               the log of calls: one broadcast ring that every device reads; `ring` wakes devices
    completion        what each device has finished, and the pipe that wakes the controller
    barrier           where devices wait for each other
    allocator         blocks of memory that members lend each other
    region            the blocks of one member
    holders           which members use them
    views             bytes as tensors and arrays
    system            what differs between systems, and how much memory the machine has left
    probe             whether shared memory works here
collectives/          between devices
    base              what all communicators share
    shm               through shared memory
    eager             the same for small operands
    gloo              over torch's gloo process groups
    nccl              between GPUs
    reduction         sums, maxima and other reductions
launch/               starts the workers
    local             on this machine
    forkserver        the process from which they are forked
    children          what it, or an agent, has forked
    hosts             the controller's listener for other machines
    agent             the process on another machine that forks a worker
    remote_workers    a pool on other machines
    connect           connections with mutual authentication
    processors        which core or GPU each device uses
wire                  messages and tensors as bytes
failure               a failure on a device, as text
forks                 what a child closes that user code forks from the controller
standard_descriptors  0, 1 and 2 are open before the runtime opens others
local                 all devices in this process: the oracle of the tests
lockstep              one call there, step by step for all devices
options               what init may be told, checked
prepared              devices that can be started
lifecycle             which devices there are: init, devices, shutdown, the runtime in use
cache                 what was used last; programs of what it drops are dropped by the devices

A walk, with shared memory:

1. `ProcessPool.run` publishes a call: `Dispatcher.post`, `Deliveries.send`, `CallLog.publish`; `CallLog.ring` wakes
   sleeping devices.
2. A device waits for the call in `LogReader.take`, and runs it in `Worker._run`.
3. A small sum is made by the last device to arrive at `Barrier.wait`, which calls `collectives.eager`; of a large one
   each device makes a part in `SharedMemoryCommunicator.all_reduce`, by `reduction.combine`, between two such waits.
4. A completion is noted by the device in `Completion.finish`, and noticed by a waiting thread in `Completions.wait`.
5. A death is noticed by the I/O thread at the end of the worker's socket (`Receiver._read`). `Receiver._lose` sends
   "lost" to the other devices: their control threads abort the collectives. A device that lives and stalls is left to
   `watchdog`.
6. Ctrl-C ends the wait and posts "cancel": `Interrupts` freezes busy devices, then sends each the calls to skip.
"""
