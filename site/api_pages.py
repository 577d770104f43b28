"""Write the pages of the reference: one for each row of the contents in tinyshard's docstring."""

import re
from pathlib import Path
from types import ModuleType
from typing import Any

import tinyshard

__all__ = ["pages", "public_names", "write"]

STEM = "make_array_from"  # the contents write `make_array_from_callback, _process_local_data`
# names that the contents count in with "...", by the module that they are in: the row
OTHERS = {
    "checkpoint_policies": "derivatives",
    "config": "shapes, settings",
    "errors": "errors",
    "lax": "loops, branches",
    "optim": "training",
    "profiler": "what ran",
    "random": "random numbers",
    "tree": "trees",
}
ALONE = {"Shard": "arrays", "Sharding": "where arrays live"}


def public_names() -> dict[str, Any]:
    """Name → value, such as "lax.psum"; what a module has from the package or from another is named there alone."""
    found = {name: getattr(tinyshard, name) for name in tinyshard.__all__}
    modules = {name: value for name, value in found.items() if isinstance(value, ModuleType)}
    found = {name: value for name, value in found.items() if name not in modules}
    for module, contents in {"errors": tinyshard.errors, **modules}.items():
        known = {id(value) for value in found.values()}
        inner = {name: getattr(contents, name) for name in contents.__all__}
        found.update({f"{module}.{name}": value for name, value in inner.items() if id(value) not in known})
    return found


def pages() -> dict[str, list[str]]:
    """Row of the contents → its public names, in the order in which the contents have them."""
    names = public_names()
    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    for title, words in _contents():
        found[title] = []
        prefix = ""
        for word in re.findall(r"[\w.]+", words):
            word = STEM + word if word.startswith("_") else word
            prefix = word.rpartition(".")[0] or prefix
            name = next((each for each in (word, f"{prefix}.{word}") if each in names and each not in taken), None)
            if name is not None:
                found[title].append(name)
                taken.add(name)
    for name, value in names.items():
        if name not in taken:
            is_error = isinstance(value, type) and issubclass(value, Exception)
            found["errors" if is_error else ALONE.get(name) or OTHERS[name.partition(".")[0]]].append(name)
    return {title: each for title, each in found.items() if each}


def _contents() -> list[tuple[str, str]]:
    """("collectives", "lax.psum pmean …"), a pair for each row."""
    rows: list[tuple[str, str]] = []
    for line in (tinyshard.__doc__ or "").partition("The folders")[0].splitlines()[1:]:
        title, _, words = line.strip().partition("  ")
        if re.match(r" {4}\S", line):
            rows.append((title, words))
        elif line.strip():
            rows[-1] = (rows[-1][0], f"{rows[-1][1]} {line}")
    return rows


def write(folder: Path) -> None:
    """Write a page for each row into the folder, and one that lists them; what has not changed stays untouched."""
    folder.mkdir(exist_ok=True)
    names = public_names()
    rows = pages()
    texts = {_file(title): _page(title, rows[title], names) for title in rows}
    texts["index"] = _heading("Reference") + "\nEvery public name, by what it is for.\n\n" + _table(rows) + _tree(rows)
    for path in folder.glob("*.rst"):
        if path.stem not in texts:
            path.unlink()
    for name, text in texts.items():
        path = folder / f"{name}.rst"
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")


def _table(rows: dict[str, list[str]]) -> str:
    lines = [".. list-table::", "   :widths: 22 78", ""]
    for title, names in rows.items():
        links = " ".join(f":py:obj:`{name} <{_full(name)}>`" for name in names)
        lines += [f"   * - :doc:`{title} <{_file(title)}>`", f"     - {links}"]
    return "\n".join(lines) + "\n\n"


def _tree(rows: dict[str, list[str]]) -> str:
    return "\n".join([".. toctree::", "   :hidden:", "", *(f"   {title} <{_file(title)}>" for title in rows)]) + "\n"


def _file(title: str) -> str:
    return re.sub(r"\W+", "-", title)


def _full(name: str) -> str:
    return f"tinyshard.{name}"


def _heading(words: str) -> str:
    return f"{words}\n{'=' * len(words)}\n"


def _page(title: str, listed: list[str], names: dict[str, Any]) -> str:
    return _heading(title.capitalize()) + "\n" + "\n".join(_entry(_full(name), names[name]) for name in listed)


def _entry(full: str, value: Any) -> str:
    if not callable(value):  # the flags of `config`
        return f".. py:data:: {full}\n\n" + "".join(f"   - ``{key}``: {flag.meaning}\n" for key, flag in value.items())
    if not isinstance(value, type):
        return f".. autofunction:: {full}\n"
    kind = "exception" if issubclass(value, Exception) else "class"
    return f".. auto{kind}:: {full}\n   :members:\n"
