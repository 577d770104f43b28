"""Plants each fault of the table in a copy of the repository, and checks that the tests it names fail there.

    python -m tests.mutants            all of them, in less than eight minutes on two cores
    python -m tests.mutants ring       those with "ring" in their name or their file

A fault is caught if pytest ends with failures, and a test that the table names is among them. An error of collection,
of a fixture or of pytest does not count, nor does a test that hangs: the fault is then printed as not caught, with what
happened.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.faults import FAULTS, Fault

ROOT = Path(__file__).parents[2]
LANES = 2
LIMIT_S = 120.0
UNCHANGED_LIMIT_S = 600.0
# an import then starts no process to fork workers from, which would load torch once more; and no row runs of the whole
ENVIRONMENT = {"TINYSHARD_RUNTIME": "local", "TINYSHARD_TESTS": ""}
PYTEST = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--color=no", "-rfEp", "--tb=short")


@dataclass(frozen=True)
class Ended:
    """How a run of pytest ended.

    Attributes:
        code: its exit status; None if it hung.
        failed, passed: the ids of tests, those of parameter rows with their brackets.
        output: what it printed.
    """

    code: int | None
    failed: frozenset[str]
    passed: frozenset[str]
    output: str


def copied(folder: Path) -> Path:
    """A copy of what git knows of the working tree, and of new files that it does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for name in listed.stdout.split("\0"):
        source, target = ROOT / name, folder / name
        if name and source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    return folder


def run(folder: Path, tests: Sequence[str], limit_s: float, *more: str) -> Ended:
    """Run tests of a copy, which imports the copy's own packages."""
    doctests = [] if all(test.startswith("tests/") for test in tests) else ["--doctest-modules"]
    process = subprocess.Popen(
        [sys.executable, *PYTEST, *doctests, *more, *tests],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PYTHONPATH": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit_s)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, code = process.communicate()[0], None
    found = {word: frozenset(re.findall(rf"^{word} (.+?)(?: - .*)?$", output, re.M)) for word in ("FAILED", "PASSED")}
    return Ended(code, found["FAILED"], found["PASSED"], output)


def among(test: str, ids: Iterable[str]) -> bool:
    """Whether a test, or a row of its parameters, is among these ids."""
    return any(each == test or each.startswith(f"{test}[") for each in ids)


def planted(folder: Path, fault: Fault) -> Ended:
    """Run a fault's tests on a copy with the fault in it; the copy is then as it was."""
    path = folder / fault.file
    before = path.read_text("utf-8")
    if before.count(fault.old) != 1:
        raise ValueError(f"{fault.name}: its old text occurs {before.count(fault.old)} times in {fault.file}, not once")
    try:
        _write(path, before.replace(fault.old, fault.new))
        return run(folder, fault.caught_by, LIMIT_S, "-x")
    finally:
        _write(path, before)


def _write(path: Path, text: str) -> None:
    """Write a file, and remove what Python compiled of it, which it knows by a size and a time in whole seconds."""
    path.write_text(text, "utf-8")
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def said_of(fault: Fault, ended: Ended) -> tuple[bool, str]:
    """Whether the fault was caught, and the line that says so."""
    by = [test for test in fault.caught_by if among(test, ended.failed)]
    if ended.code == 1 and by:
        return True, f"caught      {fault.name}  by {by[0]}"
    if ended.code is None:
        happened = f"hung: stopped after {LIMIT_S:g} s"
    else:
        last = (ended.output.strip().splitlines() or ["it printed nothing"])[-1]
        happened = f"pytest ended with {ended.code}: {last}"
    return False, f"NOT CAUGHT  {fault.name}  ({fault.file}; {happened})"


def main(words: Sequence[str]) -> int:
    """Plant the faults; the exit status is 1 if one was not caught."""
    chosen = [fault for fault in FAULTS if all(word in f"{fault.name} {fault.file}" for word in words)]
    if not chosen:
        print(f"no fault has {' and '.join(words)} in its name or its file")
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as temporary:
        lanes: SimpleQueue[Path] = SimpleQueue()
        folders = [copied(Path(temporary) / f"lane-{lane}") for lane in range(LANES)]
        tests = sorted({test for fault in chosen for test in fault.caught_by})
        unchanged = run(folders[0], tests, UNCHANGED_LIMIT_S)
        missing = [test for test in tests if not among(test, unchanged.passed)]
        if unchanged.code != 0 or missing:
            print(unchanged.output, *(f"did not pass without a fault: {test}" for test in missing), sep="\n")
            return 1
        print(f"tests that pass without a fault: {len(tests)}", flush=True)
        for folder in folders:
            lanes.put(folder)

        def plant(fault: Fault) -> bool:
            folder = lanes.get()
            try:
                is_caught, line = said_of(fault, planted(folder, fault))
            finally:
                lanes.put(folder)
            print(line, flush=True)
            return is_caught

        with ThreadPoolExecutor(LANES) as pool:
            caught = sum(pool.map(plant, chosen))
    print(f"{caught} of {len(chosen)} caught")
    return int(caught < len(chosen))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
