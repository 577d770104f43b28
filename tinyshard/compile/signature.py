"""A call's signature: the structure of the arguments, shapes, dtypes, static values. Equal signatures share a trace.

f(x, {"w": w}, n)  with n static  ->  tree (*, {"w": *}, static), f32[8, 4], f32[4], n = 3
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.array import Array, shaped_type_of
from tinyshard.arrays.placement import as_tensor
from tinyshard.compile.python_numbers import is_number
from tinyshard.core import config
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.errors import DtypeError, StaticArgumentError
from tinyshard.core.ints import one_or_more
from tinyshard.core.leaves import named_leaves
from tinyshard.core.types import ShapedType

_PYTHON_NUMBERS = (bool, int, float, complex)
_ROUNDED = frozenset((float, complex))  # to single precision, as torch converts them


@dataclass(frozen=True, slots=True)
class Signature:
    """The key of a trace: calls with equal signatures share it.

    Attributes:
        tree: the structure of the arguments.
        metas: shapes and dtypes of the tensor leaves.
        static: (position or name, the types in it, value) of each static argument.
        nones: which leaves are None.
        numbers: which tensor leaves are Python numbers.
        flags: configuration that changes programs, and the mesh that is set.
        around: for a function mapped over devices, the mesh, and the names and sizes of the mapped axes around it.
        types: how the tensor leaves are cut along explicit axes; None without such axes.
    """

    tree: TreeSpec
    metas: tuple[ShapedType, ...]
    static: tuple[tuple[int | str, Any, Any], ...]
    nones: tuple[bool, ...]
    numbers: tuple[bool, ...]
    flags: tuple[Any, ...]
    around: tuple[Any, ...] = ()
    types: tuple[Any, ...] | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """One call, flattened.

    Attributes:
        signature: the key of the trace.
        operands: the tensor leaves, in order; a ShapeDtypeStruct may be among them.
        names: what a learner would call each operand, as "params[0]['w']".
        call: calls the function with other tensors in place of the operands.
        split: how the operands are distributed over the devices, for a function mapped over devices.
    """

    signature: Signature
    operands: list[Any]
    names: Callable[[], list[str]]
    call: Callable[[Sequence[torch.Tensor]], Any]
    split: Any = None

    @property
    def arguments(self) -> Any:
        """The traced arguments, with operands in their places: (args, kwargs)."""
        given = iter(self.operands)
        return tree_unflatten([None if none else next(given) for none in self.signature.nones], self.signature.tree)

    @property
    def statics(self) -> tuple[Any, ...]:
        """The static values."""
        return tuple(value for _, _, value in self.signature.static)


def bind(
    function: Callable[..., Any],
    static_numbers: Sequence[int],
    static_names: Sequence[str],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    what: str = "jit",
) -> Bound:
    """Split a call into its traced and its static arguments.

    Args:
        function: the user's.
        static_numbers, static_names: its static arguments.
        args, kwargs: the call.
        what: the transformation, for errors.

    Raises:
        DtypeError: an argument is not a tensor, or one that no device can hold.
        StaticArgumentError: a static one cannot be hashed.

    Communication: none.
    """
    count = len(args)
    numbers = {n % count for n in static_numbers if -count <= n < count}
    fixed = {k: v for k, v in kwargs.items() if k in static_names}
    traced = [x for i, x in enumerate(args) if i not in numbers]
    named = {k: v for k, v in kwargs.items() if k not in static_names}
    static: list[tuple[int | str, Any]] = [*((i, args[i]) for i in sorted(numbers)), *sorted(fixed.items())]
    for key, value in static:
        _check_hashable(function, key, value)
    if not named and all(isinstance(x, torch.Tensor) for x in traced):
        leaves, tree = list(traced), _tree_of_tensors(len(traced))
    else:
        leaves, tree = tree_flatten((traced, named))

    def names() -> list[str]:
        return [n for n, x in zip(leaf_names(function, args, named, numbers), leaves, strict=True) if x is not None]

    operands = as_operands(leaves, names, what, getattr(function, "__name__", "the function"))

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        given = iter(tensors)
        some, by_name = tree_unflatten([None if x is None else next(given) for x in leaves], tree)
        rest = iter(some)
        return function(*(args[i] if i in numbers else next(rest) for i in range(count)), **by_name, **fixed)

    signature = Signature(
        tree,
        tuple(map(shaped_type_of, operands)),
        tuple((key, types_in(value), value) for key, value in static),
        tuple(x is None for x in leaves),
        tuple(is_number(x) for x in leaves if x is not None),
        config.key(),
    )
    return Bound(signature, operands, names, call)


def types_in(value: Any, depth: int = 8) -> Any:
    """The type of a value and of its elements: 1, 1.0 and True are equal, and so are containers of them.

    Args:
        value: the elements of tuples, lists, dicts, frozensets and the fields of dataclasses count too.
        depth: of nesting that counts.

    Returns:
        What can be hashed and compared.

    Example:
        >>> types_in((1, "a")) == types_in((2, "b")), types_in((1,)) == types_in((1.0,))
        (True, False)
    """
    kind = type(value)
    inner: Any
    if not depth:
        return kind
    if isinstance(value, tuple | list):
        inner = tuple([types_in(x, depth - 1) for x in value])
    elif isinstance(value, dict):  # those that are equal may be in another order
        inner = frozenset((k, types_in(k, depth - 1), types_in(x, depth - 1)) for k, x in value.items())
    elif isinstance(value, frozenset):
        inner = frozenset((x, types_in(x, depth - 1)) for x in value)
    elif is_dataclass(value):
        inner = tuple([types_in(getattr(value, f.name, None), depth - 1) for f in fields(value) if f.compare])
    else:
        return kind
    return kind, inner


class _Star:
    def __repr__(self) -> str:
        return "*"


def starred(tree: TreeSpec, nones: Sequence[bool] = ()) -> Any:
    """The containers of a tree with a `*` for each leaf, and None where it has None."""
    return tree_unflatten([None if none else _Star() for none in nones or (False,) * tree.num_leaves], tree)


def spelled_call(tree: TreeSpec, nones: Sequence[bool]) -> str:
    """The arguments of a call as Python would write them, a `*` for each tensor.

    Example:
        >>> spelled_call(tree_flatten(([1, (2, None)], {"n": 3}))[1], (False, False, True, False))
        '(*, (*, None), n=*)'
    """
    args, kwargs = starred(tree, nones)
    return f"({', '.join([*map(repr, args), *(f'{k}={v!r}' for k, v in kwargs.items())])})"


@functools.cache
def _tree_of_tensors(count: int) -> TreeSpec:
    """The tree of arguments that are this many positional tensors."""
    return tree_flatten(([0] * count, {}))[1]


def checked_numbers(argnums: Any, what: str) -> tuple[int, ...]:
    """Positions of static arguments as a tuple; raises StaticArgumentError for anything but ints."""
    try_ = "static_argnames for arguments by name" if what == "static_argnums" else ""
    numbers = () if argnums is None else one_or_more(argnums, what, StaticArgumentError, try_)
    return (numbers,) if isinstance(numbers, int) else numbers


def static_both_ways(
    function: Any, numbers: Sequence[int], names: Sequence[str], what: str = "jit", role: str = "static"
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Static or donated arguments, both by position and by name: an argument may be passed either way.

    Raises:
        StaticArgumentError: a name or position that the function does not have.
    """
    known = _parameters(function)
    plain, every = _positional(known), [p.name for p in known or ()]
    kinds = {p.kind for p in known or ()}
    if known is not None and inspect.Parameter.VAR_POSITIONAL not in kinds:
        for number in numbers:
            if not -len(plain) <= number < len(plain):
                raise StaticArgumentError(
                    f"a {role} argument has a position that the function does not have",
                    got=f"{number} among the {role} positions {tuple(numbers)}",
                    rule=f"{getattr(function, '__name__', 'it')} takes {len(plain)} arguments by position",
                    try_=f"{role}_argnames for an argument that is given by name" if what == "jit" else "",
                )
    if known is not None and inspect.Parameter.VAR_KEYWORD not in kinds:
        for name in names:
            if name not in every:
                raise StaticArgumentError(
                    f"{role}_argnames names an argument that the function does not have",
                    got=repr(name),
                    rule=f"its arguments are {', '.join(map(repr, every))}",
                )
    by_number = {plain[n] for n in numbers if -len(plain) <= n < len(plain)}
    by_name = {plain.index(n) for n in names if n in plain}
    return (*numbers, *sorted(by_name - set(numbers))), (*names, *sorted(by_number - set(names)))


def _parameters(function: Any) -> list[inspect.Parameter] | None:
    """The parameters of a function; None if it has no signature."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None


def _positional(parameters: Sequence[inspect.Parameter] | None) -> list[str]:
    """The names of the parameters that can be passed by position."""
    return [p.name for p in parameters or () if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]


def argument_names(function: Any, count: int, static: Collection[int] = ()) -> list[str]:
    """The names of the first positional arguments, without static ones: "args[3]" among *args."""
    plain = _positional(_parameters(function))
    return [plain[i] if i < len(plain) else f"args[{i}]" for i in range(count) if i not in static]


def leaf_names(
    function: Any,
    args: Sequence[Any],
    named: dict[str, Any],
    static: Collection[int] = (),
    is_leaf: Callable[[Any], bool] | None = None,
) -> list[str]:
    """A name for each leaf of the arguments of a call, without static ones."""
    places = zip(
        argument_names(function, len(args), static), (x for i, x in enumerate(args) if i not in static), strict=True
    )
    return [base + path for base, tree in [*places, *named.items()] for path, _ in named_leaves(tree, is_leaf)]


# how a Python value is passed to a function under each transformation
_STATIC = {
    "jit": "static_argnums or static_argnames for a Python value;\n"
    "for a method ts.jit(obj.method), or static_argnums=0 for self",
    "pmap": "static_broadcasted_argnums for a Python value",
    "shard_map": "None among in_specs for a Python value",
}
_REGISTERED = "torch.utils._pytree.register_pytree_node for a class that holds tensors"


def as_operands(leaves: Sequence[Any], names: Callable[[], Sequence[str]], what: str, function: str) -> list[Any]:
    """The leaves of the arguments except None, as tensors or ShapeDtypeStructs.

    Args:
        leaves: of a call of a function under a transformation.
        names: the user's name of each leaf except None.
        what: the transformation, as "jit"; "" for a compiled program.
        function: the user's name of the function.

    A Python float is a 0-d tensor of the default dtype, but of float64 if another argument has double precision:
    then eager ops do not round it either. A complex number likewise.

    Raises:
        DtypeError: a leaf is not a tensor, array or number.
    """
    given = [leaf for leaf in leaves if leaf is not None]
    operands = [_as_operand(leaf) for leaf in given]
    for i, (leaf, x) in enumerate(zip(given, operands, strict=True)):
        if x is None:
            raise DtypeError(
                f"an argument of a function under {what} is not a tensor" if what else "an argument is not a tensor",
                got=f"argument {names()[i]!r} of {function}: {leaf!r} ({type(leaf).__name__})",
                rule="arguments are trees of tensors, arrays and numbers",
                try_="\n".join(filter(None, (_STATIC.get(what), _REGISTERED))),
            )
    has_number = not _ROUNDED.isdisjoint(map(type, given))
    if has_number and any(x.dtype in (torch.float64, torch.complex128) for x in operands):
        wide = {float: torch.float64, complex: torch.complex128}
        return [
            torch.tensor(leaf, dtype=wide[type(leaf)]) if type(leaf) in _ROUNDED else x
            for leaf, x in zip(given, operands, strict=True)
        ]
    return operands


def _as_operand(leaf: Any) -> Any:
    """A leaf of the arguments as a tensor or a ShapeDtypeStruct; None for one that is neither of these nor a number."""
    if isinstance(leaf, torch.Tensor | ShapeDtypeStruct):
        if isinstance(leaf, torch.Tensor) and not isinstance(leaf, Array):
            check_holdable(leaf)
        return leaf
    if isinstance(leaf, str | bytes) or callable(leaf) or not _is_numeric(leaf):
        return None
    return as_tensor(leaf)


def _is_numeric(leaf: Any) -> bool:
    return isinstance(leaf, _PYTHON_NUMBERS) or hasattr(leaf, "__array__") or hasattr(leaf, "__dlpack__")


def _check_hashable(function: Any, key: int | str, value: Any) -> None:
    try:
        hash(value)
    except TypeError as error:
        plain = _positional(_parameters(function))
        name = key if isinstance(key, str) else plain[key] if key < len(plain) else f"args[{key}]"
        raise StaticArgumentError(
            "a static argument cannot be hashed",
            got=f"argument {name!r}: {type(value).__name__}",
            rule="each value of a static argument has a trace of its own, found by its hash",
            try_="a tuple in place of a list; or let it be traced",
        ) from error
