"""Imports go one way: notebooks → course → tinyshard, and within tinyshard from each folder to those before it."""

import ast
import functools
import importlib
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinyshard as ts
from tests.rows import for_every_row

ROOT = Path(__file__).parents[2]

NOTEBOOK_TOOLS = ("IPython", "ipywidgets", "matplotlib")

# What may not be imported: (the importer, the imported ones). A module stands for all that is beneath it.
FORBIDDEN = [
    ("tinyshard", (*NOTEBOOK_TOOLS, "torch.distributed.tensor", "course", "notebooks", "tests")),
    ("tinyshard.core", ("torch.distributed",)),
    ("tinyshard.draw", ("torch.distributed",)),
    ("course", ("notebooks", "tests")),
]

# The folders of the package: each imports from those before it, and from itself.
FOLDERS = (
    "core",
    "draw",
    "runtime",
    "sharding",
    "partition",
    "arrays",
    "compile",
    "dispatch",
    "primitives",
    "transforms",
    "lax",
    "random",
    "optim",
    "profiler",
)
MOST_ENTRIES = 18
MOST_LINES = (350, 300)  # of a file; of one in runtime/

# Layouts are drawn, and programs run, by what knows plain data alone.
KNOWS_ONLY = {"draw": ("core",), "runtime": ("core",)}

# Imports inside of functions, all of them for what it costs to load the module: no circle needs one.
LATE = {
    "tinyshard.core.errors": {"tinyshard.core.page"},  # torch
    "tinyshard.primitives.random_bits": {"tinyshard.primitives.compiled_draws"},  # numba
    "tinyshard.runtime.launch.forkserver": {"tinyshard.runtime.wire", "tinyshard.runtime.worker.main"},  # torch
    "tinyshard.runtime.options": {
        "tinyshard.runtime.controller.pool",
        "tinyshard.runtime.launch.hosts",
        "tinyshard.runtime.launch.local",
        "tinyshard.runtime.launch.remote_workers",
        "tinyshard.runtime.local",
        "tinyshard.runtime.shm.probe",
    },
    "tinyshard.runtime.worker.main": {"tinyshard.runtime.collectives.nccl"},
    "tinyshard.worker": {
        "tinyshard.runtime.launch.agent",
        "tinyshard.runtime.launch.connect",
    },
}


def is_within(module: str, package: str) -> bool:
    """tinyshard.runtime.controller.pool is within tinyshard.runtime; tinyshard.layouts is not in tinyshard.layout."""
    return module == package or module.startswith(package + ".")


def module_name(path: Path) -> str:
    """tinyshard/draw/text.py → tinyshard.draw.text; tinyshard/draw/__init__.py → tinyshard.draw"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, package: str, *, late: bool = False) -> Iterator[str]:
    """All that `source`, a module directly in `package`, imports; also in functions, also for types alone.

    `from a import b` counts as a.b: whether b is a module or a name, a.b is within a.

    Args:
        late: only what functions import when they are called.
    """
    for node, is_late in _import_statements(source):
        if late and not is_late:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


@functools.cache
def _import_statements(source: str) -> list[tuple[ast.stmt, bool]]:
    """Each import in a source, and whether it is inside of a function."""
    found, left = [], [(node, False) for node in ast.parse(source).body]
    while left:
        node, is_late = left.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append((node, is_late))
        is_late = is_late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        left += [(inner, is_late) for inner in ast.iter_child_nodes(node) if not isinstance(inner, ast.expr)]
    return found


@functools.cache
def imports_by_module(*, late: bool = False) -> dict[str, set[str]]:
    """Module → what it imports, for each module of tinyshard and course."""
    found = {}
    for path in sorted([*ROOT.glob("tinyshard/**/*.py"), *ROOT.glob("course/**/*.py")]):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        found[module_name(path)] = set(imports_of(path.read_text("utf-8"), package, late=late))
    return found


@functools.cache
def modules_imported(*, late: bool = False) -> dict[str, set[str]]:
    """Module of tinyshard → the other modules of tinyshard that it imports."""
    imports = {m: names for m, names in imports_by_module(late=late).items() if is_within(m, "tinyshard")}

    def module_of(name: str) -> str:
        return name if name in imports or not name else module_of(name.rpartition(".")[0])

    return {m: {module_of(name) for name in names} - {m, ""} for m, names in imports.items()}


def folder_of(module: str) -> str:
    """tinyshard.runtime.controller.pool → runtime"""
    return [*module.split("."), ""][1]


def wrong_imports(importer: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in imports_by_module().items()
        for name in sorted(names)
        if is_within(module, importer) and any(is_within(name, package) for package in forbidden)
    ]


@for_every_row(FORBIDDEN)
def test_nothing_imports_from_above(importer: str, forbidden: tuple[str, ...]) -> None:
    assert wrong_imports(importer, forbidden) == []


def test_the_package_has_few_entries_each_folder_a_part_of_the_house() -> None:
    entries = [path for path in (ROOT / "tinyshard").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES
    assert {path.name for path in entries if path.is_dir()} == set(FOLDERS)


def test_a_file_is_short() -> None:
    lines = {path: len(path.read_text("utf-8").splitlines()) for path in (ROOT / "tinyshard").rglob("*.py")}
    most = {path: MOST_LINES["runtime" in path.parts] for path in lines}
    assert [str(path) for path in lines if lines[path] > most[path]] == []


@for_every_row([name for name in FOLDERS if name != "runtime"])
def test_the_docstring_of_a_folder_names_each_of_its_files(folder: str) -> None:
    package = ROOT / "tinyshard" / folder
    page = ast.get_docstring(ast.parse((package / "__init__.py").read_text("utf-8"))) or ""
    names = set(re.findall(r"\w+", page))
    assert [path.stem for path in sorted(package.glob("*.py")) if path.stem not in {*names, "__init__"}] == []


def test_a_folder_imports_from_those_before_it() -> None:
    against: dict[str, set[str]] = {}
    for module, others in modules_imported().items():
        later = FOLDERS[FOLDERS.index(folder_of(module)) + 1 :] if folder_of(module) in FOLDERS else ()
        for other in others:
            if folder_of(other) in later or (later and other == "tinyshard"):
                against.setdefault(module, set()).add(other)
    assert against == {}


@for_every_row(KNOWS_ONLY)
def test_what_draws_and_what_runs_knows_only_plain_data(folder: str) -> None:
    known = (folder, *KNOWS_ONLY[folder])
    assert [
        f"{module} imports {other}"
        for module, others in modules_imported().items()
        for other in sorted(others)
        if folder_of(module) == folder and folder_of(other) not in known
    ] == []


def test_only_what_is_costly_to_load_is_imported_inside_of_a_function() -> None:
    assert {module: others for module, others in modules_imported(late=True).items() if others} == LATE


def test_there_is_no_circle_of_imports() -> None:
    left = dict(modules_imported())
    while left:
        free = [module for module, others in left.items() if not others & left.keys()]
        assert free, f"a circle among {sorted(left)}"
        for module in free:
            del left[module]


@pytest.mark.parametrize(
    "source, expected",
    [
        ("import torch.distributed as dist, numpy", {"torch.distributed", "numpy"}),
        ("from torch import distributed", {"torch.distributed"}),
        ("from . import wire", {"tinyshard.runtime.wire"}),
        ("from .. import errors", {"tinyshard.errors"}),
        ("from ..layout import Layout", {"tinyshard.layout.Layout"}),
        ("def later():\n    import IPython.display", {"IPython.display"}),
    ],
)
def test_every_way_to_import_is_read(source: str, expected: set[str]) -> None:
    assert set(imports_of(source, "tinyshard.runtime")) == expected


def test_controller_and_worker_import_nothing_of_each_other() -> None:
    assert wrong_imports("tinyshard.runtime.worker", ("tinyshard.runtime.controller",)) == []
    assert wrong_imports("tinyshard.runtime.controller", ("tinyshard.runtime.worker",)) == []


@for_every_row(["config", "debug", "errors", "mesh_utils", "platform", "tree"])
def test_a_public_module_has_its_public_name_whatever_folder_it_stands_in(name: str) -> None:
    assert importlib.import_module(f"tinyshard.{name}") is getattr(ts, name)


def test_an_error_is_shown_and_pickled_under_its_public_name() -> None:
    assert all(getattr(ts.errors, name).__module__ == "tinyshard.errors" for name in ts.errors.__all__)
    assert type(pickle.loads(pickle.dumps(ts.ShardingError("no")))) is ts.ShardingError
