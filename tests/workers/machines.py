"""Two machines made of this one: network namespaces joined by a wire that can be cut."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.workers.processes import ROOT

CONTROLLER = "10.77.0.1:29400"
ADDRESSES = {"a": "10.77.0.1", "b": "10.77.0.2"}
WORKERS_EACH = 4
# whoever has lost its controller gives up after this; long enough for a wire to be mended
AGENTS_WAIT_S = 200


def why_not() -> str:
    """Why there can be no such machines here; empty if there can."""
    if sys.platform != "linux":
        return "network namespaces are a thing of Linux"
    probe = f"tinyshard-{os.getpid()}-probe"
    try:
        made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True)
        if made.returncode:
            return f"no network namespace can be made here: {made.stderr.strip()}"
        wire = ["ip", "-n", probe, "link", "add", "wire", "type", "veth", "peer", "name", "other"]
        strung = subprocess.run(wire, capture_output=True, text=True)
        subprocess.run(["ip", "netns", "del", probe], check=True)
    except FileNotFoundError:
        return "there is no ip command here (iproute2)"
    return f"no wire between namespaces can be made here: {strung.stderr.strip()}" if strung.returncode else ""


class Machines:
    """Machine "a", where controllers run, and machine "b"; on each of them torchrun with four workers.

    Args:
        folder: for the secret, and for what the launchers write.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._names = {side: f"tinyshard-{os.getpid()}-{side}" for side in ADDRESSES}
        self.secret = folder / "secret"
        self.secret.touch(0o600)
        self.secret.write_text("5ecre7" * 8)
        for name in self._names.values():
            _ip("netns", "add", name)
        a, b = self._names.values()
        _ip("-n", a, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", b)
        for side, address in ADDRESSES.items():
            _ip("-n", self._names[side], "addr", "add", f"{address}/24", "dev", "wire")
            for device in ("lo", "wire"):
                _ip("-n", self._names[side], "link", "set", device, "up")
        self._started: list[subprocess.Popen[bytes]] = []
        self.launchers = {side: self._launch(side) for side in ADDRESSES}

    def _launch(self, side: str) -> psutil.Process:
        job = [f"--nnodes={len(ADDRESSES)}", f"--nproc-per-node={WORKERS_EACH}", "--rdzv-backend=c10d"]
        job += [f"--rdzv-endpoint={ADDRESSES['a']}:29500", f"--local-addr={ADDRESSES[side]}"]
        job += [f"--rdzv-conf=is_host={str(side == 'a').lower()}"]  # names and addresses do not tell it here
        worker = ["-m", "tinyshard.worker", "--controller", CONTROLLER, "--wait", str(AGENTS_WAIT_S)]
        with (self.folder / f"{side}.log").open("w") as log:
            started = subprocess.Popen(
                [*self.on(side), sys.executable, "-m", "torch.distributed.run", *job, *worker],
                env=self.environment(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._started.append(started)
        return psutil.Process(started.pid)

    def environment(self) -> dict[str, str]:
        """What processes on these machines are given."""
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "TINYSHARD_SECRET_FILE": str(self.secret),
            "TINYSHARD_HOSTS": CONTROLLER,
            "TINYSHARD_RUNTIME": "process",
        }

    def on(self, side: str) -> list[str]:
        """What to put before a command to run it on a machine."""
        return ["ip", "netns", "exec", self._names[side]]

    def workers(self, side: str) -> list[psutil.Process]:
        """The processes on a machine beneath those that its launcher has started: those that are devices now."""
        return [worker for agent in self.agents(side) for worker in agent.children()]

    def agents(self, side: str) -> list[psutil.Process]:
        """What its launcher has started."""
        return [child for child in self.launchers[side].children() if "tinyshard.worker" in child.cmdline()]

    def cut(self) -> None:
        """Cut the wire, without a word to either side."""
        _ip("-n", self._names["b"], "link", "set", "wire", "down")

    def mend(self) -> None:
        """Put the wire together again."""
        _ip("-n", self._names["b"], "link", "set", "wire", "up")

    def said(self) -> str:
        """What the launchers and agents have written."""
        return "\n".join(f"--- {side}\n" + (self.folder / f"{side}.log").read_text() for side in ADDRESSES)

    def close(self) -> None:
        """End what still runs there, and the machines."""
        for started in self._started:
            for process in [*_family(started.pid), started]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            started.wait()
        for name in self._names.values():
            _ip("netns", "del", name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def _family(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
