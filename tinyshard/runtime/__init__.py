"""The runtime: runs Programs on worker processes, or in this process (`local`).

controller/           in the user's process; it never computes on shards
    pool              worker processes, one per device: `run` returns futures, `fetch` and `wait` block
    dispatcher        one queue of messages to devices, sent in one order
    items             the items of the queue, and the latch that a thread waits for
    delivery          the messages of one item
    waiting           how a thread waits for devices
    reading           how a thread reads values
    watchdog          raises if the devices that a wait depends on make no progress
    receiver          the I/O thread: receives messages from devices
    connection        the sockets to each worker, its printed output, and the calls that it has finished
    cancellation      Ctrl-C: which calls each device skips
    lineage           the calls that a value depends on, and their errors
    refs              which values are in use, and which are released
    remote_errors     one error for all devices that failed
worker/               a device: one process
    main              from its fork to its end
    loop              handles messages in order
    values            the values that the device keeps, and its memory, counted and limited
    steps             the steps of a call: as one function, or one by one
    device_code       that function, generated from a program
    one_by_one        the steps one by one, with what is done between two of them
    flow              loops and branches: programs that a step runs, in rounds
    executor          prepares a Program to run
    recording         the device's records while a trace of ts.profiler is on
    kernels           faster functions for some ops
    products          which library multiplies large matrices
    gpu               functions that GPUs call in place of ops for CPUs alone
    control           the control thread: freeze, cancel, look, lost
processes             which process this is: process_index, process_count, local_device_count
shm/                  memory shared by the processes of one host
    segment           the file that all of them map, and its mapping in one process
    control_block     its first part, of fixed layout
    monitor           a mutex and condition variables between processes
    waking            how processes sleep and wake each other
    log               the log of calls: one broadcast ring that every device reads
    completion        the calls that each device has finished, and the pipe that wakes the controller
    barrier           where devices wait for each other
    allocator         blocks of memory that members lend each other
    region            the blocks of one member
    holders           which members use each block
    system            differences between operating systems, the machine's free memory, and what a process keeps of it
    probe             whether shared memory works here
collectives/          between devices
    base              the base class of all communicators
    shm               through shared memory
    eager             the same for small operands
    several           what each device computes in an exchange of large operands, or of several
    reduction         sums, maxima and other reductions
    gloo              over torch's gloo process groups
    nccl              between GPUs
launch/               starts the workers
    local             on this machine
    forkserver        the process from which they are forked
    children          the processes that it, or an agent, has forked
    hosts             the controller's listener for other machines
    agent             the process on another machine that forks a worker
    remote_workers    a pool on other machines
    connect           connections with mutual authentication
    processors        which core or GPU each device uses
wire                  messages as bytes
failure               a failure on a device, as text
forks                 the descriptors that a child closes which user code forks, and those of the standard streams
local                 all devices in this process: the oracle of the tests
lockstep              one call there, step by step for all devices
options               the arguments of init: checks, and what starts the devices
lifecycle             init, devices, shutdown, and the current runtime

A walk, with shared memory: `v + 1` on eight devices, after its first two calls: the first runs step by step, and the
second makes the program's function.

1. `ProcessPool.run` makes the futures of the results and posts the call (`Dispatcher.post`). `Deliveries.prepare`
   makes its one record, of ints: the call, the program, the numbers of operands and results, and values to free; the 1
   is part of the program. `Deliveries.send` has `CallLog.publish` write it once for all devices. `CallLog.ring` wakes
   those that sleep, by one system call (`waking`), or, soon after another call, the I/O thread does so for several.
2. A device sleeps in `LogReader.take`, and takes the record there. `Worker._call` finds the operands by their numbers,
   calls the program's function, which `device_code` has written, a line for each step, and keeps its results.
3. A line that is a collective waits at `Barrier.wait`. The last device to arrive computes a small sum, by
   `collectives.eager`; for a large one each device computes a part, by `reduction.combine`, between two such waits.
4. The device writes the call's number in `Completion.finish`, and wakes the thread, if one does, that sleeps for this
   number in `Completions.wait`. To print a small result, the controller asks a device for each block:
   `Waiting.ask("fetch", ...)`, `Worker._handle`, and the reply on the socket, which also says which calls are finished.
5. If a step raises, or a collective or a `check()` finds that the call is cancelled or a device lost, the function ends
   with an error. `Steps.go_on` finds the step by the line in the traceback, its operands among the frame's variables,
   has `Worker._fail` send "failed" by the socket, and continues step by step: nothing more is computed, and other
   devices get zeros. The failure is kept in place of the results, and the call is finished.
6. The I/O thread notices a death at the end of the worker's socket (`Receiver._read`). `Receiver._lose` sends
   "lost" to the other devices: their control threads abort the collectives. `watchdog` detects a device that is alive
   and stalls.
7. Ctrl-C ends a wait and posts "cancel": `Interrupts` freezes busy devices, then sends each the calls to skip.
"""
