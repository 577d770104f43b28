"""What a function closes over: the tensors that it can reach without being passed them, and how to find them again.

A traced function must not bake such values in: they may be rebound or changed later. So every tensor that the trace
uses is looked for here, and where it is found (a global, a cell of the closure, an attribute, an element, a module's
parameter) the path to it is kept and followed again at each call.
"""

from __future__ import annotations

import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

MOST_STEPS = 20_000  # objects looked at before giving up: then the tensor itself is kept
DEEPEST = 8
_NO_STATE = {"torch", "numpy", "tinyshard", *sys.stdlib_module_names}  # modules that hold none of the learner's tensors
_PLAIN_KEYS = (str, int, float, tuple, type(None))

PathStep = tuple[str, Any]


def reachable(roots: Sequence[Any]) -> tuple[dict[int, list[tuple[PathStep, ...]]], list[torch.nn.Module]]:
    """The paths to all tensors that can be reached from a function and its static arguments.

    Returns:
        id of a tensor -> the paths to it, several where it has several names; the first step says from which root.
        And the modules on the paths, without traced graphs.
    """
    found: dict[int, list[tuple[PathStep, ...]]] = {}
    modules: dict[torch.nn.Module, None] = {}
    seen: set[int] = set()
    queue: deque[tuple[Any, tuple[PathStep, ...]]] = deque((root, (("root", i),)) for i, root in enumerate(roots))
    looked = 0
    while queue and looked < MOST_STEPS:
        value, path = queue.popleft()
        looked += 1
        if isinstance(value, torch.Tensor):
            found.setdefault(id(value), []).append(path)
            continue
        if id(value) in seen or len(path) > DEEPEST:
            continue
        seen.add(id(value))
        if isinstance(value, torch.nn.Module) and not isinstance(value, torch.fx.GraphModule):
            modules.update(dict.fromkeys(value.modules()))
        queue.extend((child, (*path, step)) for step, child in _children(value))
    return found, list(modules)


def follow(roots: Sequence[Any], path: tuple[PathStep, ...]) -> Any:
    """Follow a path again. Raises LookupError, AttributeError, TypeError or ValueError where a step is gone."""
    value: Any = roots
    for kind, key in path:
        value = _STEPS[kind](value, key)
    return value


def spelled(path: tuple[PathStep, ...]) -> str:
    """The path as a learner would write it."""
    text = ""
    for kind, key in path:
        if kind in ("global", "cell"):
            text = str(key)
        elif kind == "module":
            text = ".".join(key)
        elif kind == "attribute":
            text = f"{text}.{key}" if text else str(key)
        elif kind in ("item", "dotted"):
            text = f"{text}[{key!r}]" if kind == "item" else f"{text}.{key}"
    return text or "a static argument"


def _cell(function: Any, name: str) -> Any:
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def _dotted(module: torch.nn.Module, name: str) -> Any:
    """ "0.weight": the parameter or buffer of a submodule."""
    return functools.reduce(getattr, name.split("."), module)


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "root": lambda roots, number: roots[number],
    "module": lambda function, names: getattr(function.__globals__[names[0]], names[1]),
    "global": lambda function, name: function.__globals__[name],
    "cell": _cell,
    "default": lambda function, number: function.__defaults__[number],
    "keyword": lambda function, name: function.__kwdefaults__[name],
    "attribute": getattr,
    "class": lambda at, number: type(at).__mro__[number],
    "item": lambda container, key: container[key],
    "dotted": _dotted,
}


def _children(value: Any) -> Iterator[tuple[PathStep, Any]]:
    if isinstance(value, types.FunctionType):
        module = (value.__module__ or "").partition(".")[0]
        if module not in _NO_STATE or module in ("tinyshard", "__main__"):
            yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield ("attribute", "__func__"), value.__func__
        yield ("attribute", "__self__"), value.__self__
    elif isinstance(value, functools.partial):
        for name in ("func", "args", "keywords"):
            yield ("attribute", name), getattr(value, name)
    elif isinstance(value, torch.nn.Module):
        for named in (value.named_parameters, value.named_buffers):
            yield from ((("dotted", n), x) for n, x in named(remove_duplicate=False))
        yield ("attribute", "forward"), value.forward
        yield from ((("attribute", k), v) for k, v in list(vars(value).items()) if not k.startswith("_"))
        yield from _of_class(value)
    elif isinstance(value, dict):
        yield from ((("item", k), v) for k, v in list(value.items()) if isinstance(k, _PLAIN_KEYS))
    elif isinstance(value, list | tuple | deque):
        yield from ((("item", i), v) for i, v in enumerate(value))
    elif isinstance(value, property):
        yield ("attribute", "fget"), value.fget
    elif isinstance(value, type):
        if _has_state(value):
            yield from ((("attribute", k), getattr(value, k)) for k in vars(value) if k == "__call__" or k[:2] != "__")
    elif "__wrapped__" in getattr(value, "__dict__", {}) and type(value).__module__.startswith("tinyshard."):
        yield ("attribute", "__wrapped__"), value.__wrapped__  # jitted or mapped: its caches hold tensors of old traces
    elif not isinstance(value, types.ModuleType | torch.fx.Graph):
        yield from ((("attribute", k), v) for k, v in list(getattr(value, "__dict__", {}).items()))
        slots = (k for kind in type(value).__mro__ for k in (vars(kind).get("__slots__") or ()))
        yield from ((("attribute", k), getattr(value, k)) for k in slots if isinstance(k, str) and hasattr(value, k))
        yield from _of_class(value)


def _has_state(kind: type) -> bool:
    """Whether a class may hold or use tensors of the learner's: one of theirs, not of a library that never does."""
    module = kind.__module__.partition(".")[0]
    return module == "__main__" or module not in _NO_STATE


def _of_class(value: Any) -> Iterator[tuple[PathStep, Any]]:
    """An object's methods and class attributes: they are in its class and in those that it inherits from."""
    for i, kind in enumerate(type(value).__mro__):
        if _has_state(kind):
            yield ("class", i), kind


def _of_function(function: types.FunctionType) -> Iterator[tuple[PathStep, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield ("cell", name), cell.cell_contents
        except ValueError:  # the cell is still empty
            continue
    names = list(dict.fromkeys(_names(function.__code__)))
    for name in names:
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] not in _NO_STATE:
                yield from ((("module", (name, n)), vars(value)[n]) for n in names if n in vars(value))
        elif name in function.__globals__:
            yield ("global", name), value
    yield from ((("default", i), v) for i, v in enumerate(function.__defaults__ or ()))
    yield from ((("keyword", k), v) for k, v in (function.__kwdefaults__ or {}).items())
    if hasattr(function, "__wrapped__"):
        yield ("attribute", "__wrapped__"), function.__wrapped__


def _names(code: types.CodeType) -> Iterator[str]:
    """Global names that the code, or a function defined in it, may use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
