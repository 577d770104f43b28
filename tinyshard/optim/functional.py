"""torch's own optimizers as functions without a side effect.

    update(params, grads, state)     torch's optimizer is made over clones of the parameters and loads the state; its
                                     `step` changes the clones; they and the new state are the result

In a trace `torch.compiler.is_compiling()` is true and `capturable` is set, so step counters and learning rates stay
tensors, and `step` does not read values. It writes in place, which the trace makes functional.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from tinyshard.arrays.array import Array
from tinyshard.arrays.placement import device_put
from tinyshard.core import tree as trees
from tinyshard.core.errors import DtypeError
from tinyshard.core.thread_state import is_tracing
from tinyshard.optim.bound import Bound
from tinyshard.sharding import NamedSharding, PartitionSpec, PositionalSharding, Sharding
from tinyshard.sharding.contexts import disable_jit
from tinyshard.sharding.prefix import spread
from tinyshard.transforms.jit import jit

Schedule = Callable[[torch.Tensor], Any]
_WITHOUT = {
    "LBFGS": "it evaluates the loss several times in a step",
    "SparseAdam": "it takes sparse gradients, and an Array is dense",
    "Adafactor": "its step reads the value of its counter, as item() does",
}


def functional(
    optimizer: type[torch.optim.Optimizer],
    *,
    groups: Mapping[str, Mapping[str, Any]] | None = None,
    **options: Any,
) -> Optimizer:
    """A torch optimizer as two pure functions, for `ts.jit`, `ts.shard_map` and other transformations.

    The options are those of the class. `lr` may be a function of the number of updates so far, a 0-d int64 tensor, that
    returns a number or a 0-d tensor: a schedule.

    Args:
        optimizer: a class of `torch.optim`: SGD, Adam, AdamW, Adagrad, RMSprop, NAdam, RAdam, Muon and others.
        groups: options of only some parameters, by a pattern of their names, as {"*.bias": {"weight_decay": 0.0}}. A
            name is a parameter's path in the tree, joined by dots; if several patterns match, the first counts.

    Returns:
        An `Optimizer`, with `init(params)` and `update(params, grads, state)`.

    Raises:
        DtypeError: not such a class; LBFGS, SparseAdam or Adafactor; SGD with dampening; an option that it does not
            have.

    Communication: none.

    In JAX: an optax optimizer, whose `update` returns the change of the parameters; here it returns new parameters.

    Example:
        >>> import tinyshard as ts
        >>> sgd = functional(torch.optim.SGD, lr=0.5, momentum=0.9)
        >>> params = {"w": ts.array([1.0, 2.0])}
        >>> state = sgd.init(params)
        >>> params, state = sgd.update(params, {"w": ts.array([1.0, 1.0])}, state)
        >>> params, state = sgd.update(params, {"w": ts.array([1.0, 1.0])}, state)
        >>> params["w"], state["slots"]["w"]["momentum_buffer"], state["count"]
        (Array([-0.45,  0.55], dtype=float32), Array([1.9, 1.9], dtype=float32), Array(2, dtype=int64))

        In bfloat16, with master weights in float32, and the gradients of two micro-batches added up:

        >>> def loss(params, x):
        ...     return (params["w"].bfloat16() * x.bfloat16()).float().square().mean()
        >>> def step(params, state, micro_batches):
        ...     def add(total, x):
        ...         return ts.tree.map(torch.add, total, ts.grad(loss)(params, x)), None
        ...     grads, _ = ts.lax.scan(add, ts.tree.map(torch.zeros_like, params), micro_batches)
        ...     return sgd.update(params, grads, state)
        >>> params, state = ts.jit(step)(params, state, torch.ones(2, 4, 2))
        >>> params["w"].dtype, state["slots"]["w"]["momentum_buffer"].dtype
        (torch.float32, torch.float32)
    """
    result = Optimizer(optimizer, options, dict(groups or {}))
    result.check()
    return result


@dataclass(frozen=True)
class Optimizer:
    """A stateless optimizer: `init(params)` and `update(params, grads, state)`.

    Args:
        kind: a class of torch.optim.
        options: its options.
        groups: options of some parameters, by a pattern of their names.

    Raises:
        DtypeError: by `check`, which `functional` calls.

    Communication: none.

    In JAX: `optax.GradientTransformation`.

    Example:
        >>> functional(torch.optim.SGD, lr=0.1)
        Optimizer(kind=<class 'torch.optim.sgd.SGD'>, options={'lr': 0.1}, groups={})
    """

    kind: type[torch.optim.Optimizer]
    options: Mapping[str, Any]
    groups: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def init(self, params: Any, sharding: Any = None) -> dict[str, Any]:
        """The state before the first update.

        Args:
            params: the tree of parameters: Arrays or tensors; None stays None.
            sharding: of the parts of the state that have the shape of their parameter: a Sharding, with
                `set_mesh` a PartitionSpec, or a tree of these that is a prefix of `params`, as `ts.shardings` returns
                it; None, for all or in place of one: as the parameter. ZeRO-1 is `init(params,
                ts.shardings(params, {"*": P("d")}, mesh))`, of replicated parameters.

        Returns:
            {"count": the number of updates, a 0-d int64; "slots": the tree of `params`, with a dict for each parameter,
            whose names and dtypes are those of torch's `optimizer.state`}. Counters are replicated on all devices.

        Raises:
            DtypeError: a parameter that is not a floating-point or complex tensor.
            ShardingError: `sharding` does not fit the tree of parameters, or a part of the state.

        Communication: the devices make the new values; counters are sent to them.
        """
        leaves, form = _flat(params)
        count = torch.zeros((), dtype=torch.int64)
        bound = Bound(self, params, [x if x is None else x.detach() for x in leaves], count)
        problem = "the shardings of the state do not fit the parameters"
        places = iter(spread(problem, sharding, params))
        wanted = [None if x is None else next(places) for x in leaves]
        slots = [
            slot and {name: _placed(x, like, place) for name, x in slot.items()}
            for slot, like, place in zip(bound.initial(), leaves, wanted, strict=True)
        ]
        like = next((x for x in leaves if x is not None), count)
        return {"count": _placed(count, like, None), "slots": trees.unflatten(slots, form)}

    def update(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """One step.

        Args:
            params: the tree of parameters.
            grads: the tree of their gradients, of the same shapes; None for a parameter that is not changed.
            state: the result of `init`, or of the update before.

        Returns:
            The new parameters and the new state: trees of the same shapes and dtypes. Outside of a trace they have the
            shardings of the old ones; in a trace `out_shardings` of the traced function decides.

        Raises:
            DtypeError: the trees do not fit each other.

        Communication: none if parameters, gradients and state have the same shardings. With ZeRO-1 each device updates
        its part, and the new parameters are gathered.
        """
        if is_tracing():
            return self._update(params, grads, state)
        with disable_jit(False):  # torch's step takes tensors for its counters and rates only in a trace
            updated = self._jitted(params, grads, state)
        return trees.map(_as_before, (params, state), updated)

    @cached_property
    def _jitted(self) -> Callable[..., Any]:
        return jit(self._update)

    def _update(self, params: Any, grads: Any, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not isinstance(state, dict) or set(state) != {"count", "slots"}:
            raise DtypeError(
                "the third argument of update is a state",
                got=f"{type(state).__name__} of {', '.join(map(str, state)) if isinstance(state, dict) else '?'}",
                rule="update(params, grads, state), with what init or the update before returned",
            )
        leaves, form = _flat(params)
        own = [x if x is None else x.detach().clone() for x in leaves]
        bound = Bound(self, params, own, state["count"])
        slots = bound.step(_fitting("gradients", grads, form), _fitting("slots of the state", state["slots"], form))
        return trees.unflatten(own, form), {"count": state["count"] + 1, "slots": trees.unflatten(slots, form)}

    def check(self) -> None:
        """Raise DtypeError for a class or options that are not supported."""
        kind = self.kind
        is_optimizer = isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)
        if not is_optimizer or kind.__name__ in _WITHOUT:
            raise DtypeError(
                "ts.optim.functional takes a class of torch.optim",
                got=repr(kind),
                rule=_WITHOUT.get(kind.__name__, "") if is_optimizer else "the class, not an optimizer made of it",
                try_="ts.optim.functional(torch.optim.AdamW, lr=1e-3)",
            )
        known = set(inspect.signature(kind).parameters)
        unknown = [n for options in (self.options, *self.groups.values()) for n in options if n not in known]
        if unknown:
            raise DtypeError(
                f"torch.optim.{kind.__name__} has no option {unknown[0]!r}",
                got=f"{unknown[0]}=",
                rule=f"its options are {', '.join(sorted(known - {'params'}))}",
            )
        for options in (self.options, *({**self.options, **more} for more in self.groups.values())):
            if options.get("dampening") and options.get("momentum"):
                raise DtypeError(
                    "SGD with dampening has another first step than the later ones",
                    got=f"momentum={options['momentum']}, dampening={options['dampening']}",
                    rule="the state has the same parts before and after an update, and a momentum begins at zero",
                    try_="dampening=0, with lr * (1 - dampening)",
                )


def _flat(tree: Any) -> tuple[list[Any], Any]:
    return trees.flatten(tree, _is_none)


def _is_none(x: Any) -> bool:
    return x is None


def _fitting(what: str, tree: Any, form: Any) -> list[Any]:
    """The entry of a tree for each parameter."""
    try:
        return form.flatten_up_to(tree)
    except ValueError as error:
        raise DtypeError(
            f"the {what} do not fit the parameters",
            got=f"{trees.structure(tree)}",
            rule=f"the same tree as the parameters: {form}",
            try_="grads = ts.grad(loss)(params); state = optimizer.init(params)",
        ) from error


def _placed(x: Any, like: torch.Tensor, sharding: Any) -> Any:
    """A part of the state in its parameter's sharding, or the given one; replicated if its shape differs."""
    if not isinstance(like, Array) or not isinstance(x, torch.Tensor):
        return x
    if x.shape == like.shape and x.dim():
        placed: Any = device_put(x, like.sharding if sharding is None else sharding)
        is_part = isinstance(x, Array) and not placed.sharding.is_equivalent_to(x.sharding, x.dim())
        return placed.clone() if is_part else placed  # a view would keep all of x alive
    return device_put(x, _replicated(like.sharding))


def _replicated(sharding: Sharding) -> Sharding:
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh, PartitionSpec())
    return sharding if sharding.num_devices == 1 else PositionalSharding(sharding.devices).replicate()


def _as_before(old: Any, new: Any) -> Any:
    return device_put(new, old.sharding) if isinstance(old, Array) and isinstance(new, Array) else new
