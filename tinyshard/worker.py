"""The command for a launcher on every machine whose processes should be devices of a notebook on another machine.

    controller, in the notebook         ts.init(hosts="10.0.0.1:29400")        (or TINYSHARD_HOSTS=10.0.0.1:29400)
    on each of two machines, 4 CPUs     torchrun --nnodes=2 --nproc-per-node=4 --rdzv-backend=c10d \\
                                            --rdzv-endpoint=10.0.0.2:29500 \\
                                            -m tinyshard.worker --controller 10.0.0.1:29400
    or, under Slurm                     srun --ntasks=8 python -m tinyshard.worker --controller 10.0.0.1:29400

The order does not matter: controller and workers wait for each other. Rank n becomes device n. The address is the
controller's, as the other machines reach it; it listens only there. The workers listen for each other, with
gloo's sockets and the first one's TCPStore, on the interfaces that route to it.

Controller and workers share a secret, which is not on a command line: the file ~/.tinyshard/secret (mode 600,
made by the controller; copy it to machines that do not share the home folder), or the file that TINYSHARD_SECRET_FILE
names, or the value of TINYSHARD_SECRET. A process that does not prove that it knows the secret is refused. Later
messages are neither encrypted nor signed, and the connections between workers (TCPStore, gloo) and torchrun's
rendezvous are not authenticated: use a network whose users you trust, or a tunnel.

A worker ends with its controller. The process that torchrun started then waits --wait seconds for the next one, so a
restarted kernel finds its machines again by the same ts.init; after ts.shutdown() it ends at once, and so does
torchrun.
"""

from __future__ import annotations

import argparse
import os
import sys

from tinyshard.core.errors import RuntimeStateError

WAIT_S = 60.0


def main(arguments: list[str] | None = None) -> int:
    """Serve controllers until one ends the service, or none connects in time.

    Args:
        arguments: of the command line; by default this process's.

    Returns:
        The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tinyshard.worker", description="a device of a tinyshard controller on another machine"
    )
    parser.add_argument("--controller", required=True, metavar="HOST:PORT", help="what ts.init(hosts=...) was given")
    parser.add_argument("--secret-file", metavar="PATH", help="default: TINYSHARD_SECRET_FILE or ~/.tinyshard/secret")
    parser.add_argument(
        "--wait",
        type=_seconds,
        default=WAIT_S,
        metavar="SECONDS",
        help="how long to be without a controller (%(default)s)",
    )
    given = parser.parse_args(arguments)

    import torch

    from tinyshard.runtime.launch import agent, connect

    torch.set_num_threads(1)  # a fork must not find threads that compute
    try:
        slot = agent.slot_of(os.environ)
        address = connect.parse(given.controller)
        secret = connect.read_secret(given.secret_file)
    except RuntimeStateError as error:
        print(error, file=sys.stderr)
        return 2
    try:
        return agent.serve(address, secret, slot, given.wait)
    except KeyboardInterrupt:
        return 130


def _seconds(word: str) -> float:
    try:
        seconds = float(word)
    except ValueError:
        seconds = -1.0
    if not seconds >= 0:  # also refuses nan, with which the wait would never end
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of seconds to wait")
    return seconds


if __name__ == "__main__":
    code = main()
    if sys.stderr is not None:  # closed from the start
        sys.stderr.flush()
    os._exit(code)  # at once: nothing is left to clean up, and unloading torch in many processes is slow
