"""The glossary and the dictionary: every word is in the lesson that it names, every name of tinyshard exists."""

import functools
import re
from pathlib import Path
from types import ModuleType

import tinyshard as ts
from tests.course.lesson_cells import LESSONS, stored_cells
from tests.public_names import MODULES
from tests.rows import for_every_row
from tinyshard.core.jax_hints import NAMES, OF_ARRAYS

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


def rows(name):
    """The cells of each line of each table of a file, headings left out."""
    lines = (NOTEBOOKS / name).read_text("utf-8").splitlines()
    table = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    return [cells for cells, after in zip(table, [*table[1:], [""]], strict=True) if "---" not in cells[0] + after[0]]


@functools.cache
def text_of(number):
    """All that a reader of a lesson sees, in small letters, without marks; code too."""
    return re.sub(r"[*`\s]+", " ", " ".join(cell["source"] for cell in stored_cells(LESSONS[number]))).lower()


GLOSSARY = [(words, number) for words, _, lessons in rows("GLOSSARY.md") for number in lessons.split(", ")]


@for_every_row(GLOSSARY)
def test_a_word_of_the_glossary_is_used_in_each_lesson_that_it_names(words, number):
    text = text_of(number).replace("-", " ")
    assert any(word.replace("-", " ") in text for word in re.sub("`", "", words).lower().split(", ")), "it is not there"


def test_the_glossary_is_in_alphabetical_order():
    words = [cells[0].lower().replace("-", " ") for cells in rows("GLOSSARY.md")]
    assert words == sorted(words)


def test_every_name_of_tinyshard_in_the_dictionary_exists():
    text = (NOTEBOOKS / "DICTIONARY.md").read_text("utf-8")
    names = set(re.findall(r"`ts\.([A-Za-z_.]+[a-zA-Z])", text)) | {
        f"lax.{name}" for name in re.findall(r"^\| `lax\.(\w+)", text, flags=re.MULTILINE)
    }
    assert len(names) > 20
    missing = [name for name in sorted(names) if not exists(name)]
    assert not missing, ", ".join(missing)


def exists(name):
    """Whether tinyshard has a name such as lax.psum."""
    found = ts
    for part in name.split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


@functools.cache
def names_in_first_cells():
    """The public names that begin a piece of code in a first cell: after `ts.lax.dot`, `reshape` is of ts.lax too."""
    found = set()
    for cell, *_ in rows("DICTIONARY.md"):
        module = None
        for code in re.findall(r"`(?:with )?([^`]*)`", cell):
            path, name = re.match(r"((?:\w+\.)*)(\w*)", code).groups()
            if path:
                module = "ts." + path.removeprefix("ts.")
                found.add(module.rstrip("."))
            found.add(f"{module}{name}")
    return found


def public_names():
    """For each public value the names under which it can be found."""
    found = {}
    for module, contents in MODULES.items():
        for name in contents.__all__:
            value = getattr(contents, name)
            if not isinstance(value, ModuleType):
                found.setdefault(id(value), []).append(f"{module}.{name}")
    return list(found.values())


@for_every_row([(names,) for names in public_names()])
def test_every_public_name_has_a_row_in_the_dictionary(names):
    assert names_in_first_cells().intersection(names)


def test_the_dictionary_lists_every_name_of_jaxs_that_is_absent_and_what_the_error_says_of_it():
    text = (NOTEBOOKS / "DICTIONARY.md").read_text("utf-8")
    _, _, section = text.partition("## What JAX has and tinyshard has not\n")
    table = [line for line in section.splitlines() if line.startswith(("| `jax.", "| `optax."))]
    assert table == [
        f"| `{module.replace('tinyshard.optim', 'optax').replace('tinyshard', 'jax')}.{name}` | {instead} |"
        for module, names in {**NAMES, "tinyshard.Array": OF_ARRAYS}.items()
        for name, instead in names.items()
    ]
