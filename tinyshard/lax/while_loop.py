"""while_loop: a loop that continues as long as a function of its values is true."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_unflatten

from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.explicit import types_within
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.leaves import named_leaves
from tinyshard.core.thread_state import is_tracing
from tinyshard.lax.scan import Tensors, check_carry, flat, has_array
from tinyshard.primitives.branching import While
from tinyshard.transforms import bodies
from tinyshard.transforms.jitted import Jitted
from tinyshard.transforms.while_rules import apply_while


def while_loop(cond_fun: Callable[[Any], Any], body_fun: Callable[[Any], Any], init_val: Any, **others: Any) -> Any:
    """Loop as long as a function of the value is true: `while cond_fun(val): val = body_fun(val)`.

    In a trace (jit, pmap, shard_map) both functions are traced once, and the loop is one step of the program: the
    devices read the outcome, and no value is sent to the user's process. On Arrays outside of a trace it is jitted;
    on plain tensors it is a Python loop. It has tangents (`jvp`), but no reverse-mode gradient.

    Args:
        cond_fun: takes the value, and returns whether there is another round, a bool[].
        body_fun: a round: takes the value and returns the next one, with the same tree, shapes and dtypes.
        init_val: the first value, a tree of tensors and numbers.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The first value for which cond_fun is false.

    Raises:
        DtypeError: cond_fun does not return a bool[], body_fun returns a value of another tree, shape or dtype; or a
            reverse-mode gradient is taken.
        ShardingError: inside pmap or shard_map, the outcome may differ between devices, and a collective is inside.

    Communication: that of both functions, in each round; and, if there is any, an all_reduce of 4 bytes by which the
    devices agree to continue.

    In JAX: devices of a mesh may run different numbers of rounds if they do not communicate along the axis over
    which they differ; here, if they do not communicate at all.

    Example:
        >>> while_loop(lambda v: v < 100, lambda v: v * 2, torch.tensor(3))
        tensor(192)
    """
    check_others(while_loop, others)
    if is_tracing():
        return _in_program(cond_fun, body_fun, init_val)
    return (_jitted if has_array(init_val) else _in_python)(cond_fun, body_fun, init_val)


def _on_arrays(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    if is_tracing():
        return _in_program(cond_fun, body_fun, init_val)
    # a function with a custom derivative, which is differentiated op by op
    return _in_python(cond_fun, body_fun, init_val)


_on_arrays.__name__ = "while_loop"
_jitted = Jitted(_on_arrays, static_argnums=(0, 1))


def _in_program(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    carry, form = flat(init_val)
    if not carry:
        raise DtypeError("the value of a while_loop has no tensor", got=repr(init_val))
    names = [f"val{way}" for way, x in named_leaves(init_val) if x is not None]

    def test(*values: torch.Tensor) -> Tensors:
        return [_outcome(cond_fun(tree_unflatten(values, form)))]

    def body(*values: torch.Tensor) -> Tensors:
        return _following(body_fun, values, form)

    metas = [shaped_type_of(x) for x in carry]
    tested, of_test = bodies.used_now(bodies.traced_body(test, metas, lambda: names, types=types_within(carry)))
    traced, of_body = bodies.used_now(bodies.traced_body(body, metas, lambda: names, types=types_within(carry)))
    outputs = apply_while(While(tested, traced, len(carry)), [*carry, *of_test, *of_body])
    return tree_unflatten(outputs, form)


def _in_python(cond_fun: Any, body_fun: Any, init_val: Any) -> Any:
    carry, form = flat(init_val)
    while bool(_outcome(cond_fun(tree_unflatten(carry, form)))):
        carry = _following(body_fun, carry, form)
    return tree_unflatten(carry, form)


def _following(body_fun: Any, carry: Any, form: TreeSpec) -> Tensors:
    following, of_made = flat(body_fun(tree_unflatten(carry, form)))
    check_carry(carry, form, following, of_made)
    return following


def _outcome(value: Any) -> torch.Tensor:
    """The result of cond_fun. Raises DtypeError."""
    x = torch.as_tensor(value) if isinstance(value, bool) else value
    if not isinstance(x, torch.Tensor) or x.dtype != torch.bool or x.dim():
        got = shaped_type_of(x) if isinstance(x, torch.Tensor) else type(value).__name__
        raise DtypeError(
            "the test of a while_loop returns a bool[]",
            got=str(got),
            rule="it says whether there is another round",
            try_="a comparison, as (x > 0).any()",
        )
    return x
