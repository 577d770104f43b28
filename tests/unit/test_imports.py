"""Imports go one way: notebooks → course → tinyshard.draw → tinyshard → tinyshard.runtime."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

NOTEBOOK_TOOLS = ("IPython", "ipywidgets", "matplotlib")

# What may not be imported: (the importer, the imported ones). A module stands for all that lies beneath it.
FORBIDDEN = [
    ("tinyshard", (*NOTEBOOK_TOOLS, "course", "notebooks", "tests")),
    ("tinyshard.layout", ("torch.distributed", "tinyshard.runtime")),
    ("tinyshard.draw", ("torch.distributed", "tinyshard.runtime")),
    ("course", ("notebooks", "tests")),
]

# The runtime runs Programs; of tinyshard it knows the plain data that it is given.
RUNTIME_MAY_IMPORT = (
    "tinyshard.runtime",
    "tinyshard.errors",
    "tinyshard.program",
    "tinyshard.layout",
    "tinyshard.collectives",
    "tinyshard.config",
    "tinyshard.devices",
)


def is_within(module: str, package: str) -> bool:
    """tinyshard.runtime.controller.pool is within tinyshard.runtime; tinyshard.layouts is not in tinyshard.layout."""
    return module == package or module.startswith(package + ".")


def module_name(path: Path) -> str:
    """tinyshard/draw/text.py → tinyshard.draw.text; tinyshard/draw/__init__.py → tinyshard.draw"""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(source: str, package: str) -> Iterator[str]:
    """All that `source`, a module directly in `package`, imports; also in functions, also for types alone.

    `from a import b` counts as a.b: whether b is a module or a name, a.b lies within a.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def imports_by_module() -> dict[str, set[str]]:
    """Module → what it imports, for each module of tinyshard and course."""
    found = {}
    for path in sorted([*ROOT.glob("tinyshard/**/*.py"), *ROOT.glob("course/**/*.py")]):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        found[module_name(path)] = set(imports_of(path.read_text("utf-8"), package))
    return found


def wrong_imports(importer: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{module} imports {name}"
        for module, names in imports_by_module().items()
        for name in sorted(names)
        if is_within(module, importer) and any(is_within(name, package) for package in forbidden)
    ]


@pytest.mark.parametrize("importer, forbidden", FORBIDDEN)
def test_nothing_imports_from_above(importer: str, forbidden: tuple[str, ...]) -> None:
    assert wrong_imports(importer, forbidden) == []


def test_the_runtime_knows_of_tinyshard_only_plain_data() -> None:
    assert [
        f"{module} imports {name}"
        for module, names in imports_by_module().items()
        for name in sorted(names)
        if is_within(module, "tinyshard.runtime")
        and is_within(name, "tinyshard")
        and not any(is_within(name, package) for package in RUNTIME_MAY_IMPORT)
    ] == []


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


def test_the_runtime_has_no_circle_of_imports() -> None:
    known = {module: names for module, names in imports_by_module().items() if is_within(module, "tinyshard.runtime")}
    above = {
        m: {k for k in known if k != m and any(is_within(n, k) and n != k for n in names)} for m, names in known.items()
    }
    while above:
        free = [module for module, others in above.items() if not others & above.keys()]
        assert free, f"a circle among {sorted(above)}"
        for module in free:
            del above[module]
