"""The form of a tree as JSON: its containers, and its Python values. Tensors are left out, each under a name.

{"w": w, "n": 3}    {"type": "builtins.dict", "context": ["w", "n"], "parts": [{"tensor": "w"}, {"value": 3}]}

A container is written by its type's name, and restored from a type of this name that is registered with torch's trees:
reading does not import modules, and calls only registered functions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils import _pytree

from tinyshard.core.errors import DtypeError, FileError
from tinyshard.core.leaves import dotted

_PLAIN = (bool, int, float, str, type(None))  # types that JSON has
_WHOLE = "value"  # the name of a tree that is one tensor


def written(tree: Any) -> tuple[Any, dict[str, Any]]:
    """The form of a tree, and its tensors by name.

    Raises:
        DtypeError: it has a leaf that cannot be written, or a container that cannot be restored.

    Example:
        >>> form, tensors = written({"w": torch.ones(2), "n": 3})
        >>> form["parts"], list(tensors)
        ([{'tensor': 'w'}, {'value': 3}], ['w'])
    """
    tensors: dict[str, Any] = {}
    return _written(tree, (), tensors), tensors


def _written(x: Any, path: tuple[Any, ...], tensors: dict[str, Any]) -> Any:
    if isinstance(x, torch.Tensor | np.ndarray | np.generic):
        wanted = name = dotted(path) or _WHOLE
        number = 1
        while name in tensors:  # {"a": {"b": x}, "a.b": y}
            number += 1
            name = f"{wanted}~{number}"
        tensors[name] = x
        return {"tensor": name} if isinstance(x, torch.Tensor) else {"array": name}
    kind = _pytree._get_node_type(x)
    node = _pytree.SUPPORTED_NODES.get(kind)
    if node is None:
        return {"value": _plain(x, path)}
    parts, context = node.flatten_fn(x)
    keys: list[Any] = [_pytree.SequenceKey(i) for i in range(len(parts))]
    if node.flatten_with_keys_fn is not None:
        keys = [key for key, _ in node.flatten_with_keys_fn(x)[0]]
    inner = [_written(part, (*path, key), tensors) for key, part in zip(keys, parts, strict=True)]
    return {"type": _name_of(kind), "context": _plain(context, path), "parts": inner}


def _plain(x: Any, path: tuple[Any, ...]) -> Any:
    """A Python value as JSON; a type that JSON does not have is an object with one entry that names the type."""
    if type(x) in _PLAIN and x == x and x not in (float("inf"), float("-inf")):
        return x
    if type(x) is float:
        return {"float": repr(x)}
    if type(x) is complex:
        return {"complex": [_plain(x.real, path), _plain(x.imag, path)]}
    if type(x) is list:
        return [_plain(each, path) for each in x]
    if type(x) is tuple:
        return {"tuple": [_plain(each, path) for each in x]}
    if type(x) is dict:
        return {"dict": [[_plain(key, path), _plain(value, path)] for key, value in x.items()]}
    if isinstance(x, torch.dtype):
        return {"dtype": str(x).removeprefix("torch.")}
    if isinstance(x, type) and _type_of(_name_of(x)) is x:
        return {"class": _name_of(x)}
    raise DtypeError(
        "a tree holds what cannot be saved",
        got=f"{type(x).__name__} at {_at(path)}: {str(x)[:60]}",
        rule="Arrays, tensors, NumPy arrays, numbers, strings, dtypes and None, in containers that torch's trees know",
        try_="torch.utils._pytree.register_dataclass(cls) for a dataclass that holds tensors; else leave it out",
    )


def read(form: Any, tensor: Callable[[str], Any], array: Callable[[str], Any]) -> Any:
    """The tree of a form.

    Args:
        form: the result of `written`.
        tensor: the leaf for the tensor of a name.
        array: the leaf for the NumPy array of a name.

    Raises:
        FileError: the type of a container is not imported in this process, or not registered with torch's trees.
    """
    if "tensor" in form:
        return tensor(form["tensor"])
    if "array" in form:
        return array(form["array"])
    if "value" in form:
        return _value(form["value"])
    parts = [read(part, tensor, array) for part in form["parts"]]
    known = {_name_of(kind): node for kind, node in _pytree.SUPPORTED_NODES.items()}
    node = known.get(form["type"])
    if node is None:
        raise _unknown(form["type"], "torch's trees know no container of this name")
    return node.unflatten_fn(parts, _value(form["context"]))


def _value(x: Any) -> Any:
    if isinstance(x, list):
        return [_value(each) for each in x]
    if not isinstance(x, dict):
        return x
    ((kind, inner),) = x.items()
    return _OF[kind](inner)


_OF: dict[str, Callable[[Any], Any]] = {
    "float": float,
    "complex": lambda parts: complex(*map(_value, parts)),
    "tuple": lambda items: tuple(map(_value, items)),
    "dict": lambda items: {_value(key): _value(value) for key, value in items},
    "dtype": lambda name: getattr(torch, name),
    "class": lambda name: _class(name),
}


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _type_of(name: str) -> Any:
    """The type of a name, in a module that this process has imported; None if there is none."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _class(name: str) -> Any:
    found = _type_of(name)
    if found is None:
        raise _unknown(name, "reading imports no module: the class is looked up in those that are imported")
    return found


def _unknown(name: str, rule: str) -> FileError:
    module, _, path = name.partition(":")
    return FileError(
        "a saved tree has a container that is not known here",
        got=path,
        rule=rule,
        try_=f"import {module}, and register the class with torch's trees, before ts.load",
    )


def _at(path: tuple[Any, ...]) -> str:
    return _pytree.keystr(path) or "the top"
