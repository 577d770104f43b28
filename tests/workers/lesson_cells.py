"""Runs the code cells of lessons, each lesson in its own process, and compares what they show with what is stored.

    python tests/workers/lesson_cells.py notebooks/03*.ipynb notebooks/04*.ipynb

The devices are what the environment says (TINYSHARD_HOSTS), so the same cells run on whatever machines there are. For
each lesson one line tells how many cells ran and how many texts were equal; the first difference ends the program.
"""

import contextlib
import io
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

import tinyshard  # noqa: F401

SANITIZE = Path(__file__).parents[1] / "notebooks" / "sanitize.cfg"


class Shown(DisplayHook):
    """Keeps what a cell ends on as text, in place of printing it."""

    texts: list[str]

    def __call__(self, result: Any = None) -> None:
        if result is not None and not self.quiet():
            self.texts.append(self.compute_format_data(result)[0]["text/plain"])
            self.update_user_ns(result)


def sanitized(text: str) -> str:
    """Without what always differs, as nbval leaves it out."""
    config = SANITIZE.read_text().splitlines()
    rules = [line.partition(": ")[2] for line in config if line.startswith(("regex: ", "replace: "))]
    for regex, replace in zip(rules[::2], rules[1::2], strict=True):
        text = re.sub(regex, replace, text)
    return text.strip()


def stored(cell: dict[str, Any]) -> tuple[str, str, str]:
    """What a cell printed, what it ended on, and the name of its error."""
    printed, shown, error = "", "", ""
    for output in cell["outputs"]:
        if output["output_type"] == "stream" and output["name"] == "stdout":
            printed += "".join(output["text"])
        elif output["output_type"] == "execute_result":
            shown += "".join(output["data"].get("text/plain", ""))
        elif output["output_type"] == "error":
            error = output["ename"]
    return sanitized(printed), sanitized(shown), error


def run(shell: InteractiveShell, shown: Shown, source: str) -> tuple[str, str, str]:
    """The same of a run."""
    shown.texts = []
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        result = shell.run_cell(source, store_history=True, silent=False)
    error = result.error_in_exec or result.error_before_exec
    traceback = printed.getvalue()
    said = traceback[: traceback.index("-" * 70)] if error and "-" * 70 in traceback else traceback
    return sanitized(said), sanitized("".join(shown.texts)), type(error).__name__ if error else ""


def is_compared(cell: dict[str, Any]) -> bool:
    """Whether its outputs are the same in every run."""
    return "ignored because" not in cell["metadata"].get("tinyshard", {})


def run_lesson(path: Path) -> tuple[int, int]:
    """Run one lesson; how many cells, and how many texts were equal."""
    shell = InteractiveShell.instance()
    shown = Shown(shell=shell)
    shell.displayhook = shown
    shell.display_trap.hook = shown
    shell.display_pub = CapturingDisplayPublisher(shell=shell)  # pictures and buttons, which stdout would show as text
    shell.kernel = object()  # as in a notebook, where pictures are displayed, not printed
    shell.colors = "nocolor"
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]
    n_equal = 0
    if (
        "".join(cells[-1]["source"]) == "ts.shutdown()"
    ):  # it ends the workers on all machines; the next lesson needs them
        del cells[-1]
    for cell in cells:
        wanted, got = stored(cell), run(shell, shown, "".join(cell["source"]))
        if not is_compared(cell):
            wanted, got = ("", "", wanted[2]), ("", "", got[2])
        if wanted != got:
            sys.exit(
                f"{path.name}, cell {cell.get('id')}:\n" + "".join(cell["source"]) + f"\nwant {wanted}\ngot  {got}"
            )
        n_equal += sum(map(bool, wanted))
    return len(cells), n_equal


if __name__ == "__main__":
    for name in sys.argv[1:]:
        if (lesson := os.fork()) == 0:  # a fresh process, which need not load torch again
            began_s = time.monotonic()
            n_cells, n_equal = run_lesson(Path(name))
            took_s = time.monotonic() - began_s
            print(f"{Path(name).name}: {n_cells} cells, {n_equal} texts equal, {took_s:.1f} s", flush=True)
            sys.exit()
        if status := os.waitpid(lesson, 0)[1]:
            sys.exit(os.waitstatus_to_exitcode(status))
