"""Traced values that outlive their trace: in a returned object they are an error at once; elsewhere their use is an
error that names the function.

return {"w": w}             a tree: the computed value takes the place of the traced one
return State(w)             refused, unless State is registered with torch's trees
return (v * 2 for v in xs)  refused, as other iterators, sets and dict views are
log.append(w)               when the trace is over, w raises EndedTraceError
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from collections import deque
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_flatten, tree_leaves

from tinyshard.core.errors import DtypeError, EndedTraceError
from tinyshard.core.leaves import named_leaves
from tinyshard.core.thread_state import innermost
from tinyshard.core.users_line import users_line

_MOST = 10_000  # objects looked at in a result
_PLAIN = (str, bytes, int, float, complex, type(None))
_HOLD_NONE = (*_PLAIN, type, types.ModuleType, types.CodeType, types.BuiltinFunctionType)


def refuse_holders(result: Any, name: str) -> None:
    """Raise DtypeError for a result that is neither a tensor nor a container of a tree, and holds a traced value.

    Args:
        result: what a traced function returned.
        name: of the function.
    """
    leaves, structure = tree_flatten(result)
    if _holds_traced(structure):
        raise DtypeError(
            "a traced function returns a dict with a traced value as a key",
            got=name,
            rule="the keys of a result are fixed by the trace, and a traced value means nothing afterwards",
            try_="strings or ints as keys, and the value beside them",
        )
    for number, leaf in enumerate(leaves):
        if isinstance(leaf, (torch.Tensor, *_PLAIN)) or not _holds_traced(leaf):
            continue
        kind, path = type(leaf), named_leaves(result)[number][0]
        cure = "return the values in a list, a tuple or a dict"
        if kind.__module__ not in sys.stdlib_module_names:  # `builtins` is one
            cure += f";\nor torch.utils._pytree.register_pytree_node({kind.__name__}, flatten, unflatten), once"
        raise DtypeError(
            "a traced function returns an object that holds traced values",
            got=f"{name} returns {_with_article(kind.__name__)}{f', at result{path}' if path else ''}",
            rule="results are tensors and Python values in lists, tuples, dicts and classes that torch's trees know:\n"
            "only there the computed values can take the places of the traced ones",
            try_=cure,
        )


def _with_article(word: str) -> str:
    return f"{'an' if word[:1].lower() in tuple('aeiou') else 'a'} {word}"


def _holds_traced(leaf: Any) -> bool:
    """Whether an object has a traced value in its attributes, elements or closure; not what its code may reach."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    seen: dict[int, Any] = {}
    queue: deque[Any] = deque([leaf])
    while queue and len(seen) < _MOST:
        value = queue.popleft()
        if id(value) in seen or isinstance(value, _HOLD_NONE):
            continue
        seen[id(value)] = value
        if isinstance(value, torch.Tensor):
            if type(innermost(value)) is FunctionalTensor:
                return True
        elif isinstance(value, types.FunctionType):
            queue.extend((value.__closure__, value.__defaults__, value.__kwdefaults__))
        else:
            queue.extend(gc.get_referents(value))
    return False


def end_value(x: torch.Tensor, name: str) -> None:
    """Make a value of a trace an error to use.

    Args:
        x: a stand-in, or a transformation's wrapper around one; a plain tensor, as a constant that autograd makes,
            stays usable.
        name: of the function that was traced.
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    value: Any = x
    if type(x) is FunctionalTensor:
        value.__class__ = _kinds()[0]
    elif type(x) is torch.Tensor and torch._C._functorch.is_functorch_wrapped_tensor(x):
        value.__class__ = _kinds()[1]
    else:
        return
    object.__setattr__(x, "_traced_by", name)


@functools.cache
def _kinds() -> tuple[type, type]:
    """The classes of ended stand-ins, and of wrappers around them."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return type("EndedStandIn", (_Ended, FunctionalTensor), {}), type("EndedWrapper", (_Ended, torch.Tensor), {})


class _Ended:
    """The base of both: any use raises EndedTraceError."""

    def __repr__(self, **_: Any) -> str:
        return f"<a traced value of {object.__getattribute__(self, '_traced_by')}, whose trace is over>"

    def tolist(self) -> NoReturn:
        _refuse(self)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        _refuse(self)

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        _refuse(next((x for x in tree_leaves((args, kwargs)) if isinstance(x, _Ended)), None))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
        _refuse(next((x for x in tree_leaves((args, kwargs)) if isinstance(x, _Ended)), None))


def _refuse(ended: Any) -> NoReturn:
    name = "a function" if ended is None else object.__getattribute__(ended, "_traced_by")
    raise EndedTraceError(
        "a traced value is used after its trace",
        got=f"a value made while {name} was traced, in {users_line()}",
        rule="a traced function runs once, on stand-ins without values; they mean nothing outside of it",
        try_="return it from the function, in place of storing it in a list, a global or an attribute",
    )
