"""Whatever is called with an Array, C++ reads no memory of it: `tests/memory_reads.py`, in a process of its own."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.whole)])
def test_no_program_reads_the_memory_of_an_array(every):
    run = subprocess.run(
        [sys.executable, "-m", "tests.memory_reads", f"--every={every}"], capture_output=True, text=True, timeout=280
    )
    assert (run.stdout, run.returncode) == ("", 0), run.stderr
