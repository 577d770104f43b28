"""What a traced value becomes when its trace is over: an error to use, that names the function.

kept.append(x * 2)      in a function that jit traces
kept[0] + 1             EndedTraceError: a traced value is used after its trace
"""

from __future__ import annotations

import functools
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_leaves

from tinyshard.core.errors import EndedTraceError, message
from tinyshard.runtime.controller.lineage import users_line


def end_value(x: torch.Tensor, name: str) -> None:
    """Make a value of a trace an error to use.

    Args:
        x: a stand-in, or what a transformation inside of the trace wrapped around one; a plain tensor, as a constant
            that autograd makes, stays one.
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
    """The classes of ended stand-ins, and of what is wrapped around them."""
    from torch._subclasses.functional_tensor import FunctionalTensor

    return type("EndedStandIn", (_Ended, FunctionalTensor), {}), type("EndedWrapper", (_Ended, torch.Tensor), {})


class _Ended:
    """What both refuse."""

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
        message(
            "a traced value is used after its trace",
            got=f"a value made while {name} was traced, in {users_line()}",
            rule="a traced function runs once, on stand-ins without values; they mean nothing outside of it",
            try_="return it from the function, in place of storing it in a list, a global or an attribute",
        )
    )
