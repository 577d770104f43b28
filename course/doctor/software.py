"""The software: Python and torch, eight devices that answer, a kernel, and widgets on both of their sides."""

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from course.doctor.finding import Finding, State

__all__ = [
    "judge_widgets",
    "look_at_devices",
    "look_at_kernel",
    "look_at_torch",
    "look_at_widgets",
    "widget_manager",
]

INSTALL = "pip install 'tinyshard[course]', or make lab in a clone"
# a requirement of torch, and not of a package whose name begins so
NAMES_TORCH = re.compile(r"torch(?![\w.-])")
# A machine that is busy with its first start needs a while; the lessons' own patience is longer.
PATIENCE_S = 120
# The half of ipywidgets 8 that runs in the browser has this major version, and ipywidgets 7's a lower one.
MANAGER_MAJOR = 5
MANAGER = Path("@jupyter-widgets/jupyterlab-manager/package.json")

# In a process of its own: one that hangs or dies is a finding, and this one needs no torch.
START_DEVICES = """
import time
start = time.perf_counter()
import torch, tinyshard as ts
ts.init(devices=2, runtime="process")
ones = ts.device_put(torch.ones(2), ts.sharding.PositionalSharding(ts.devices()))
assert (ones + ones).sum().item() == 4
print(f"{time.perf_counter() - start:.1f}")
ts.shutdown()
"""
ASK_KERNEL = "import sys, tinyshard; print(sys.executable)"


def look_at_torch() -> Finding:
    """Whether torch is there, in a version that tinyshard is made for."""
    python = f"Python {sys.version.split()[0]}"
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return Finding("torch", State.FATAL, f"{python}; torch is not installed", INSTALL)
    bounds: list[str] = []
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):  # run from its folder, without an installation
        bounds = [each for each in importlib.metadata.requires("tinyshard") or [] if NAMES_TORCH.match(each)]
    if not all(_is_met(bound) for bound in bounds):
        return Finding("torch", State.FATAL, f"{python}, torch {version}; needed: {', '.join(bounds)}", INSTALL)
    return Finding("torch", State.GOOD, f"{version} on {python}")


def look_at_devices() -> Finding:
    """Start two devices, let them add numbers of each other, and end them."""
    try:
        done = _run([sys.executable, "-c", START_DEVICES])
    except subprocess.TimeoutExpired:
        return Finding(
            "devices",
            State.FATAL,
            f"two worker processes did not answer within {PATIENCE_S} s",
            "free some memory and try again; TINYSHARD_RUNTIME=local runs the lessons in one process meanwhile",
        )
    if done.returncode:
        reason = (done.stderr.strip() or f"ended with {done.returncode}").splitlines()[-1]
        return Finding(
            "devices",
            State.FATAL,
            f"two worker processes could not be started: {reason}",
            "fix the lines above first; TINYSHARD_RUNTIME=local runs the lessons in one process meanwhile",
        )
    return Finding(
        "devices", State.GOOD, f"two worker processes added numbers, {done.stdout.strip()} s after the start"
    )


def look_at_kernel() -> Finding:
    """Start the kernel that JupyterLab would start for a lesson, and ask it for tinyshard."""
    if importlib.util.find_spec("jupyterlab") is None:
        return Finding("kernel", State.FATAL, "JupyterLab is not installed", INSTALL)
    try:
        python = _python_of_kernel()
    except Exception as error:  # whatever stops a kernel stops a lesson
        reason = str(error).strip().splitlines()
        return Finding(
            "kernel",
            State.FATAL,
            f"the kernel python3 could not import tinyshard: {reason[-1] if reason else type(error).__name__}",
            "run `jupyter kernelspec list`: a python3 of another Python may hide this one's; remove it",
        )
    version = importlib.metadata.version("jupyterlab")
    return Finding("kernel", State.GOOD, f"python3 of JupyterLab {version} runs {python}")


def look_at_widgets() -> Finding:
    """Whether the two halves of ipywidgets, in the kernel and in the browser, fit each other."""
    try:
        version = importlib.metadata.version("ipywidgets")
    except importlib.metadata.PackageNotFoundError:
        return Finding("widgets", State.FATAL, "ipywidgets is not installed", INSTALL)
    from jupyter_core.paths import jupyter_path

    unmet = [
        bound
        for bound in importlib.metadata.requires("ipywidgets") or []
        if bound.startswith(("jupyterlab_widgets", "widgetsnbextension")) and not _is_met(bound)
    ]
    return judge_widgets(version, unmet, widget_manager([Path(each) for each in jupyter_path("labextensions")]))


def judge_widgets(version: str, unmet: Sequence[str], manager: Mapping[str, str] | None) -> Finding:
    """What the versions on both sides mean.

    Args:
        version: That of ipywidgets, the kernel's side.
        unmet: What ipywidgets asks of the packages that bring the browser's side, and does not get.
        manager: `version` and `folder` of the extension that JupyterLab would load; None where it finds none.
    """
    both = f"ipywidgets {version} in the kernel"
    if manager is None:
        return Finding(
            "widgets", State.FATAL, f"{both}, nothing in JupyterLab", "pip install --upgrade jupyterlab_widgets"
        )
    both += f", jupyterlab-manager {manager['version']} in JupyterLab"
    is_old = int(manager["version"].split(".")[0]) < MANAGER_MAJOR
    if is_old and int(version.split(".")[0]) >= 8:
        return Finding(
            "widgets",
            State.FATAL,
            f"{both}: the latter is older, and hides the right one",
            f"remove {manager['folder']}, then: pip install --upgrade jupyterlab_widgets",
        )
    if unmet:
        return Finding(
            "widgets", State.WEAK, f"{both}; missing: {', '.join(unmet)}", "pip install --upgrade ipywidgets"
        )
    return Finding("widgets", State.GOOD, both)


def widget_manager(folders: Sequence[Path]) -> dict[str, str] | None:
    """The widget extension that JupyterLab loads: the one in the first of its `folders` that holds one."""
    for folder in folders:
        if (folder / MANAGER).is_file():
            return {"version": json.loads((folder / MANAGER).read_text("utf-8"))["version"], "folder": str(folder)}
    return None


def _is_met(requirement: str) -> bool:
    """Whether what is installed satisfies a line such as `torch<2.14,>=2.13`."""
    from packaging.requirements import Requirement

    wanted = Requirement(requirement)
    try:
        return wanted.specifier.contains(importlib.metadata.version(wanted.name), prereleases=True)
    except importlib.metadata.PackageNotFoundError:
        return False


def _python_of_kernel() -> str:
    from jupyter_client.manager import start_new_kernel

    printed: list[str] = []

    def hear(reply: Mapping[str, Mapping[str, str]]) -> None:
        printed.append(reply["content"].get("text", ""))

    manager, client = start_new_kernel(PATIENCE_S, "python3", stderr=subprocess.DEVNULL)
    try:
        reply = client.execute_interactive(ASK_KERNEL, timeout=PATIENCE_S, output_hook=hear, allow_stdin=False)
        if reply["content"]["status"] != "ok":
            raise RuntimeError(reply["content"].get("evalue", "no answer"))
        return "".join(printed).strip()
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    few = {**os.environ, "TINYSHARD_DEVICES": "2"}
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=few)
