"""checkpoint: the gradient of a function recomputes the values inside of it, so they are not saved."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.utils.checkpoint
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from tinyshard.arrays.function_overrides.replaced import Replacement
from tinyshard.compile.signature import Signature, checked_numbers
from tinyshard.compile.trace_cache import TraceCacheEntry
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.core.thread_state import is_tracing
from tinyshard.primitives.call import Derivation
from tinyshard.primitives.name import NAME
from tinyshard.transforms.autodiff import check_function
from tinyshard.transforms.called import Called
from tinyshard.transforms.recomputed import Policy, Recomputed

_TORCHS: Any = inspect.unwrap(torch.utils.checkpoint.checkpoint)

# arguments of torch.utils.checkpoint that choose its implementation
_OF_TORCH = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug", "early_stop")


class Checkpointed(Called):
    """A function under checkpoint. Made by `checkpoint`."""

    what = "checkpoint"

    def __init__(
        self, function: Callable[..., Any], static_numbers: Sequence[int], is_apart: bool, policy: Policy | None
    ) -> None:
        super().__init__(function, static_numbers)
        self._recomputed = Recomputed("checkpoint", is_apart, policy)

    def _derivation(self, signature: Signature) -> Derivation:
        return self._recomputed

    def _is_plain(self, entry: TraceCacheEntry) -> bool:
        return entry.traced.custom_derivative is not None


def checkpoint(
    fun: Callable[..., Any] | None = None,
    *,
    prevent_cse: bool = True,
    policy: Policy | None = None,
    static_argnums: int | Sequence[int] = (),
    **others: Any,
) -> Any:
    """A function whose gradient recomputes the values inside of it instead of saving them.

    A deep network then keeps the inputs of its layers in memory, and the values inside of one. A program has the
    function's ops twice, in the forward pass and in the gradient. Wherever it is called (on plain tensors, on Arrays,
    in a trace, under vmap) it is traced once for each signature, and the tensors that it closes over are
    differentiated, too. Also a decorator. `remat` is another name for it.

    `torch.utils.checkpoint.checkpoint` in a traced function is this; a context_fn of it has no effect there.

    A function with a custom derivative (`torch.no_grad`, a `torch.autograd.Function`) is called unchanged: its
    gradient is right, and nothing is recomputed.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors, as for `jit`.
        prevent_cse: whether recomputed steps are kept apart from those of the forward pass. Inside pmap and
            shard_map equal steps are merged; with False these are, too, and their values are saved.
        policy: which values are saved even so: one of `checkpoint_policies`, or your own function
            `policy(op, *types, **params)` of the op's name as graphs show it ("aten.mm.default"), the shapes and
            dtypes of its operands, and for `checkpoint_name` the name; it returns whether the op's results are saved.
            None saves no value.
        static_argnums: positions of arguments that are Python values.
        others: none; an argument that JAX has is refused with what to write in its place.

    Returns:
        The function, with the same results and derivatives.

    Raises:
        DtypeError, StaticArgumentError, TracedValueError: as `jit`, when called.

    Communication: that of the function; its gradient repeats it.

    In JAX: `jax.checkpoint`. A policy there is passed a primitive in place of a name.

    Example:
        >>> from tinyshard import grad
        >>> grad(checkpoint(lambda x: torch.sin(torch.sin(x)).sum()))(torch.tensor([0.0, 1.0]))
        tensor([1.0000, 0.3600])
    """
    check_others(checkpoint, others)
    numbers = checked_numbers(static_argnums, "static_argnums")
    if fun is None:
        return functools.partial(checkpoint, prevent_cse=prevent_cse, policy=policy, static_argnums=numbers)
    check_function(fun, "checkpoint")
    if policy is not None and not callable(policy):
        raise DtypeError(
            "a policy of checkpoint is a function",
            got=f"policy={policy!r}",
            rule="policy(op, *types, **params) says whether the results of an op are saved",
            try_="policy=ts.checkpoint_policies.dots_saveable",
        )
    return Checkpointed(fun, numbers, bool(prevent_cse), policy)


def checkpoint_name(x: Any, name: str) -> Any:
    """Give a value a name, by which a policy of `checkpoint` finds it.

    Args:
        x: a tree of tensors of any shape and dtype.
        name: the name, for `checkpoint_policies.save_only_these_names` and its like.

    Returns:
        The same values.

    Raises:
        DtypeError: the name is not a str.

    Communication: none.

    In JAX: `jax.ad_checkpoint.checkpoint_name`.

    Example:
        >>> checkpoint_name(torch.tensor(2.0), "logits")
        tensor(2.)
    """
    if not isinstance(name, str):
        got = f"{name!r} ({type(name).__name__})"
        raise DtypeError("checkpoint_name takes a name", got=got, try_="ts.checkpoint_name(x, 'logits')")
    return tree_map_only(torch.Tensor, lambda leaf: NAME.bind(name, leaf)[0], x)


def _in_traces(disabled: Callable[..., Any] | None) -> Callable[..., Any]:
    """The replacement of `torch.utils.checkpoint.checkpoint`: in a trace or a transformation `checkpoint`."""

    def called(fun: Any, *args: Any, **kwargs: Any) -> Any:
        if not is_tracing() and torch._C._functorch.maybe_current_level() is None:
            return (disabled or torch._dynamo.disable(_TORCHS, wrapping=False))(fun, *args, **kwargs)
        named = {name: x for name, x in kwargs.items() if name not in _OF_TORCH}
        leaves, form = tree_flatten((args, named))
        is_tensor = [isinstance(x, torch.Tensor) for x in leaves]

        @functools.wraps(fun, assigned=("__name__",), updated=())
        def of_tensors(*xs: torch.Tensor) -> Any:  # other arguments are passed unchanged, as in torch
            given = iter(xs)
            some, by_name = tree_unflatten(
                [next(given) if one else x for x, one in zip(leaves, is_tensor, strict=True)], form
            )
            return fun(*some, **by_name)

        return checkpoint(of_tensors)(*(x for x, one in zip(leaves, is_tensor, strict=True) if one))

    return called


# replaced inside torch's module, so that code that imported `checkpoint` earlier calls it too
REPLACED: list[Replacement] = [(_TORCHS, "__dynamo_disable", _in_traces)]
