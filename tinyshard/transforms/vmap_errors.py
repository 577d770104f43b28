"""What torch.func.vmap refuses, said as elsewhere here: torch's own words name neither the line nor a way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tinyshard.compile.capture import TracedValueError
from tinyshard.core.errors import DtypeError, StatefulRandomError, TinyshardError
from tinyshard.runtime.controller.lineage import users_line, users_line_of

_A_VALUE = (
    "Python asks for a value that differs between examples",
    "under vmap if, while, float(), item() see no example of their own",
    "torch.where(condition, a, b), torch.cond, or in_axes=None for an argument that all share",
    TracedValueError,
)
_A_SHAPE = (
    "the shape of a result depends on values, and differs between examples",
    "all examples have results of one shape",
    "torch.where(mask, x, 0); torch.sort or torch.topk for a fixed number of them",
    DtypeError,
)
_IN_PLACE = (
    "a value is changed in place, and has no room for what is written",
    "under vmap an argument with in_axes=None is one value for all examples; it cannot hold one result for each",
    "a new value in place of a changed one: s = s + x, not s += x",
    DtypeError,
)
_REFUSALS: dict[str, tuple[str, str, str, type[TinyshardError]]] = {
    "data-dependent control flow": _A_VALUE,
    "calling .item()": _A_VALUE,
    "output dynamic shape": _A_SHAPE,
    "can support dynamic shape": _A_SHAPE,
    "doesn't match the broadcast shape": _IN_PLACE,
    "inplace arithmetic": _IN_PLACE,
    "called random operation": (
        "a stateful random op under vmap",
        "whether examples draw the same numbers or different ones is for the caller to say",
        "draw with ts.random, from one key for all or from ts.random.split(key, n)",
        StatefulRandomError,
    ),
}


@contextlib.contextmanager
def told_as_ours() -> Iterator[None]:
    """Raise torch's refusals as errors with the user's line, the rule and what to try."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, TinyshardError):
            raise
        for words, (problem, rule, try_, kind) in _REFUSALS.items():
            if words in str(error):
                raise kind(problem, got=str(users_line_of(error) or users_line()), rule=rule, try_=try_) from None
        raise
