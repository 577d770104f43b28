"""What a package keeps by lesson, in modules `lesson_NN.py` that are found by their names alone."""

import importlib
import pkgutil
from collections.abc import Iterable
from typing import Any

__all__ = ["lessons_in", "module_of", "number_in"]


def lessons_in(path: Iterable[str]) -> list[str]:
    """The lessons for which a package has a module, such as "04", in order.

    Args:
        path: the package's `__path__`.
    """
    names = [module.name for module in pkgutil.iter_modules(path)]
    return sorted(name.removeprefix("lesson_") for name in names if name.startswith("lesson_"))


def module_of(package: str, lesson: str) -> Any:
    """The module of one lesson, which `lessons_in` has named."""
    return importlib.import_module(f"{package}.lesson_{lesson}")


def number_in(word: str) -> str:
    """A lesson's number as its files have it: "5" and "05" are "05", "a" is "A".

    Example:
        >>> number_in("5"), number_in("a")
        ('05', 'A')
    """
    return word.zfill(2) if word.isdigit() else word.upper()
