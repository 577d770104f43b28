"""`python -m tests.notebooks.store notebooks/05-*.ipynb`: run a lesson in a fresh kernel, keep its outputs.

What differs without a reason is not stored: widgets and their state, times of execution, Python's version, paths. A
cell whose output is not compared (a timing) keeps the output that it has; with `--all`, on a calm machine, it does not.

With `--style` nothing is run: what is stored gets the rules of today, after a change of STYLE in core/page.py.
"""

import os
import sys
import sysconfig
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tinyshard.core.page import restyled

REPOSITORY = Path(__file__).resolve().parents[2]
WIDGET = "application/vnd.jupyter.widget-view+json"


def is_ignored(cell: nbformat.NotebookNode) -> bool:
    return "nbval-ignore-output" in cell.metadata.get("tags", ())


def store(path: Path, *, everything: bool) -> None:
    notebook = nbformat.read(path, as_version=4)
    kept = {
        cell.id: cell.outputs for cell in notebook.cells if cell.get("outputs") and is_ignored(cell) and not everything
    }
    with tempfile.TemporaryDirectory() as folder:
        there = {"metadata": {"path": folder}}
        client = NotebookClient(notebook, timeout=300, coalesce_streams=True, store_widget_state=False, resources=there)
        client.execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        if cell.id in kept:
            cell.outputs = kept[cell.id]
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            output.get("data", {}).pop(WIDGET, None)
    text = nbformat.writes(notebook).replace(folder, "FOLDER").replace(f"{REPOSITORY}/", "")
    for libraries in {sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")}:
        text = text.replace(libraries.replace(str(Path.home()), "~"), "python").replace(libraries, "python")
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")


def restyle(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    for output in [output for cell in notebook.cells for output in cell.get("outputs", ())]:
        data = output.get("data", {})
        if "text/html" in data:
            data["text/html"] = restyled(data["text/html"])
    text = nbformat.writes(notebook)
    path.write_text(text if text.endswith("\n") else f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])
    for name in sys.argv[1:]:
        if name.startswith("--"):
            continue
        if "--style" in sys.argv:
            restyle(Path(name))
        else:
            store(Path(name), everything="--all" in sys.argv)
        print(name)
