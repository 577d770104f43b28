"""The user's classes as trees: dataclasses whose fields are children or static, and classes without leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

from torch.utils._pytree import GetAttrKey, register_pytree_node

from tinyshard.core.errors import DtypeError

T = TypeVar("T")


def register_dataclass(
    nodetype: type[T],
    data_fields: Sequence[str] | None = None,
    meta_fields: Sequence[str] | None = None,
    drop_fields: Sequence[str] = (),
) -> type[T]:
    """Register a class whose instances are trees; also a decorator of a dataclass.

    Args:
        nodetype: a class whose constructor takes its fields by name.
        data_fields: the fields that are children. By default those of a dataclass whose metadata do not say
            `static=True`.
        meta_fields: the fields that are static: part of the tree's structure, and in jit of the signature.
        drop_fields: fields that are left out.

    Returns:
        The class.

    Raises:
        DtypeError: not a class; no fields are passed and it is not a dataclass; a field that it does not have.
        ValueError: the class is registered already.

    Communication: none.

    Example:
        >>> @register_dataclass
        ... @dataclasses.dataclass
        ... class Layer:
        ...     weight: float
        ...     name: str = dataclasses.field(metadata={"static": True})
        >>> from tinyshard.core import tree
        >>> tree.map(lambda w: 2 * w, Layer(3.0, "first")).weight
        6.0
    """
    if not isinstance(nodetype, type):
        raise DtypeError("register_dataclass takes a class", got=f"{nodetype!r} ({type(nodetype).__name__})")
    if (data_fields is None) != (meta_fields is None):
        raise DtypeError("register_dataclass takes both data_fields and meta_fields, or neither")
    if data_fields is None or meta_fields is None:
        if not dataclasses.is_dataclass(nodetype):
            try_ = "@dataclasses.dataclass, or data_fields= and meta_fields="
            raise DtypeError("register_dataclass without fields takes a dataclass", got=repr(nodetype), try_=try_)
        known = [field for field in dataclasses.fields(nodetype) if field.init and field.name not in drop_fields]
        meta_fields = [field.name for field in known if field.metadata.get("static", False)]
        data_fields = [field.name for field in known if field.name not in meta_fields]
    children, static = tuple(data_fields), tuple(meta_fields)
    _check_fields(nodetype, children, static, tuple(drop_fields))

    def flatten(x: Any) -> tuple[list[Any], Any]:
        return [getattr(x, name) for name in children], tuple(getattr(x, name) for name in static)

    def flatten_with_keys(x: Any) -> tuple[list[Any], Any]:
        values, context = flatten(x)
        return [(GetAttrKey(name), value) for name, value in zip(children, values, strict=True)], context

    def unflatten(values: Any, context: Any) -> Any:
        fields = dict(zip(children, values, strict=True)) | dict(zip(static, context, strict=True))
        return nodetype(**fields)

    register_pytree_node(nodetype, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)
    return nodetype


def register_static(cls: type[T]) -> type[T]:
    """Register a class whose instances are trees without leaves: part of the structure, and in jit static.

    Args:
        cls: a class whose instances can be hashed and compared.

    Returns:
        The class; so it is a decorator, too.

    Raises:
        DtypeError: not a class.
        ValueError: the class is registered already.

    Communication: none.

    Example:
        >>> @register_static
        ... @dataclasses.dataclass(frozen=True)
        ... class Sizes:
        ...     width: int
        >>> from tinyshard.core import tree
        >>> tree.leaves({"x": 1.0, "sizes": Sizes(3)})
        [1.0]
    """
    if not isinstance(cls, type):
        raise DtypeError("register_static takes a class", got=f"{cls!r} ({type(cls).__name__})")
    register_pytree_node(cls, lambda x: ([], x), lambda _, x: x, flatten_with_keys_fn=lambda x: ([], x))
    return cls


def _check_fields(cls: type, children: Sequence[str], static: Sequence[str], dropped: Sequence[str]) -> None:
    given = (*children, *static, *dropped)
    twice = {name for name in given if given.count(name) > 1}
    if twice:
        raise DtypeError("a field is given twice", got=", ".join(sorted(twice)))
    if dataclasses.is_dataclass(cls):
        own = {field.name for field in dataclasses.fields(cls) if field.init}
        if not own <= set(given) <= {field.name for field in dataclasses.fields(cls)}:
            raise DtypeError(
                f"these are not the fields of {cls.__name__}",
                got=", ".join(given),
                rule=f"each of {', '.join(sorted(own))} is among data_fields, meta_fields or drop_fields",
            )
