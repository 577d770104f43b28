"""Every public name says in its docstring what goes in, what comes out, what it raises and sends, and shows a use."""

import builtins
import inspect
import re
from types import ModuleType
from typing import Any

import tinyshard as ts
from tests.public_names import MODULES
from tests.rows import for_every_row

PARTS = ("Args", "Returns", "Raises", "Communication", "Example")

# (name, part) -> why the docstring has no such part
WITHOUT: dict[tuple[str, str], str] = {
    ("ts.Array", "Args"): "its constructor is the runtime's: users call device_put, array and ops",
    ("ts.AxisType", "Args"): "a choice among its members",
    ("ts.AxisType", "Raises"): "a choice among its members",
    ("ts.Device", "Raises"): "a plain record, which checks nothing",
    ("ts.Shard", "Args"): "x.addressable_shards makes it",
    ("ts.Shard", "Raises"): "x.addressable_shards makes it of a position that is there",
    ("ts.Sharding", "Raises"): "an abstract class: its subclasses say what they refuse",
    ("ts.errors.message", "Raises"): "it puts strings together",
    ("ts.get_abstract_mesh", "Raises"): "without a mesh it returns None",
    ("ts.get_mesh", "Raises"): "without a mesh it returns None",
    ("ts.lax.stop_gradient", "Raises"): "every value is a tree",
    ("ts.process_count", "Raises"): "there is one controller",
    ("ts.process_index", "Raises"): "there is one controller",
    ("ts.random.Key", "Raises"): "it takes its words as they are: wrap_key_data checks them",
    ("ts.shutdown", "Raises"): "it ends what there is, which may be nothing",
    ("ts.clear_caches", "Raises"): "it drops what is kept, which may be nothing",
    ("ts.tree.flatten", "Raises"): "every value is a tree",
    ("ts.tree.leaves", "Raises"): "every value is a tree",
    ("ts.tree.structure", "Raises"): "every value is a tree",
    **{
        (f"ts.checkpoint_policies.{name}", "Raises"): "it says yes or no of any op"
        for name in ts.checkpoint_policies.__all__
        if name not in ("dots_saveable", "dots_with_no_batch_dims_saveable")  # known by their first names
    },
}


def public_names() -> dict[str, Any]:
    """Name -> what can be called under it, once each; errors are raised, not called."""
    found: dict[int, tuple[str, Any]] = {}
    for module, contents in MODULES.items():
        for name in contents.__all__:
            value = getattr(contents, name)
            is_error = isinstance(value, type) and issubclass(value, Exception)
            if callable(value) and not isinstance(value, ModuleType) and not is_error:
                found.setdefault(id(value), (f"{module}.{name}", value))
    return dict(found.values())


PUBLIC = public_names()


def names_below(error: type[Exception]) -> set[str]:
    """The names of an error and of all that are kinds of it."""
    return {error.__name__}.union(*map(names_below, error.__subclasses__()))


ERRORS = names_below(ts.TinyshardError)


def parts_of(value: Any) -> dict[str, str]:
    """Part -> its text: `Args:` and the like, each at the start of a line."""
    pieces = re.split(r"^([A-Z]\w+):", inspect.getdoc(value) or "", flags=re.MULTILINE)
    return dict(zip(pieces[1::2], pieces[2::2], strict=True))


def arguments_of(value: Any) -> list[str]:
    """The names of its arguments, but for `**others`, which takes JAX's arguments to say what does that here."""
    parameters = inspect.signature(value).parameters.values()
    return [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]


def entries_of(part: str) -> list[str]:
    """The names that stand before a colon: `a, b: numbers` gives a and b."""
    lines = re.findall(r"^ {4}(\w[\w, ]*):", part, flags=re.MULTILINE)
    return [name for line in lines for name in line.split(", ")]


def expected(name: str) -> list[str]:
    """The parts that a docstring has: no Args without arguments, no Returns of None or of a class."""
    value = PUBLIC[name]
    returns = inspect.signature(value).return_annotation not in ("None", None)
    has = {"Args": bool(arguments_of(value)), "Returns": returns and not isinstance(value, type)}
    return [part for part in PARTS if has.get(part, True) and (name, part) not in WITHOUT]


def test_every_public_module_is_looked_at() -> None:
    modules = {f"ts.{name}" for name in ts.__all__ if isinstance(getattr(ts, name), ModuleType)}
    assert modules - set(MODULES) == set()


@for_every_row(PUBLIC)
def test_a_docstring_has_every_part(name: str) -> None:
    parts = parts_of(PUBLIC[name])
    assert [part for part in expected(name) if not parts.get(part, "").strip()] == []


@for_every_row(WITHOUT)
def test_an_exception_is_for_a_part_that_is_not_there(name: str, part: str) -> None:
    assert part not in parts_of(PUBLIC[name])


@for_every_row([name for name in PUBLIC if "Args" in expected(name)])
def test_the_args_of_a_docstring_are_those_of_the_signature(name: str) -> None:
    told = entries_of(parts_of(PUBLIC[name])["Args"])
    assert [argument for argument in told if argument != "others"] == arguments_of(PUBLIC[name])


@for_every_row([name for name in PUBLIC if "Raises" in expected(name)])
def test_what_a_docstring_says_is_raised_is_an_error(name: str) -> None:
    errors = entries_of(parts_of(PUBLIC[name])["Raises"])
    assert errors, "none is named"
    assert [error for error in errors if error not in ERRORS and not hasattr(builtins, error)] == []


@for_every_row(PUBLIC)
def test_the_example_of_a_docstring_is_code_that_doctest_runs(name: str) -> None:
    assert ">>> " in parts_of(PUBLIC[name])["Example"]
