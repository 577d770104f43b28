"""One of torch's optimizers over the tensors of a trace, for one call of `init` or `update`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten_with_path

from tinyshard.core.errors import DtypeError
from tinyshard.core.leaves import dotted, first_fitting

_ANY_RATE = 1e-3  # a placeholder for a computed learning rate, where torch checks it
# foreach computes each op of several parameters in turn, in few steps; it holds a temporary value for each of them
_TOGETHER_NBYTES = 1 << 19


class Bound:
    """A torch optimizer over some tensors, for one call.

    Args:
        optimizer: its constructor.
        params: the tree of parameters, for their names.
        own: the tensors that torch's optimizer changes; None for a parameter that is None.
        count: the number of updates so far.
    """

    def __init__(self, optimizer: Any, params: Any, own: list[Any], count: torch.Tensor) -> None:
        self._own = own
        known, given = inspect.signature(optimizer.kind).parameters, optimizer.options
        is_single = given.get("differentiable") or given.get("fused")
        wanted = ["capturable"] if is_single else ["capturable", "foreach"]
        options = {**dict.fromkeys((name for name in wanted if name in known), True), **given}
        groups: dict[str, list[list[torch.Tensor]]] = {}
        together_nbytes: dict[str, int] = {}  # of the last tensors of each group
        names = _names(params)
        fitting, unused = first_fitting(names, optimizer.groups)
        for name, x in zip(names, own, strict=True):
            if x is not None:
                _check_floating(name, x)
                pattern = fitting[name] or ""
                chunks = groups.setdefault(pattern, [[]])
                together_nbytes[pattern] = together_nbytes.get(pattern, 0) + x.nbytes
                if together_nbytes[pattern] > _TOGETHER_NBYTES:
                    chunks.append([])
                    together_nbytes[pattern] = x.nbytes
                chunks[-1].append(x)
        if unused:
            raise DtypeError(
                "a pattern of groups= fits no parameter",
                got=f"{unused[0]!r}",
                rule=f"the names are {', '.join(names[:8])}",
            )
        every = ((pattern, xs) for pattern, chunks in groups.items() for xs in chunks if xs)
        listed = [{"params": xs, **optimizer.groups.get(pattern, {})} for pattern, xs in every]
        rates = [group.pop("lr", options.get("lr")) for group in listed]
        if callable(options.get("lr")):
            options["lr"] = _ANY_RATE
        self._torch: Any = optimizer.kind(listed, **options) if listed else None
        computed = {rate: rate(count) for rate in rates if callable(rate)}
        for group, rate in zip(getattr(self._torch, "param_groups", ()), rates, strict=True):
            if rate is not None:
                group["lr"] = computed[rate] if callable(rate) else rate

    def initial(self) -> Iterator[dict[str, Any] | None]:
        """The state of each parameter before the first step, one after the other: a whole state may not fit."""
        groups = {x: group for group in getattr(self._torch, "param_groups", ()) for x in group["params"]}
        for x in self._own:
            if x is None:
                yield None
                continue
            group = {**groups[x], "params": [x]}
            x.grad = x.detach()  # only its shape and dtype are read: no memory for gradients
            count = len(inspect.signature(self._torch._init_group).parameters) - 1
            self._torch._init_group(group, *([] for _ in range(count)))
            slot = dict(self._torch.state.pop(x, {}))
            if group.get("momentum"):  # SGD makes it in its first step
                slot.setdefault("momentum_buffer", torch.zeros_like(x))
            x.grad = None
            yield slot

    def step(self, grads: list[Any], slots: list[Any]) -> list[dict[str, Any] | None]:
        """Change the tensors, and return the new state of each parameter."""
        for x, grad, slot in zip(self._own, grads, slots, strict=True):
            if x is not None:
                x.grad = grad
                self._torch.state[x] = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in slot.items()}
        if self._torch:
            step = type(self._torch).step
            while hasattr(step, "__wrapped__"):  # wrapped by torch's profiler, its hooks and no_grad
                step = step.__wrapped__
            with torch.no_grad():
                step(self._torch)
        return self._slots()

    def _slots(self) -> list[dict[str, Any] | None]:
        return [None if x is None else dict(self._torch.state[x]) for x in self._own]


def _names(tree: Any) -> list[str]:
    """The path of each leaf, joined by dots: "layers.0.weight"."""
    return [dotted(path) for path, _ in tree_flatten_with_path(tree, lambda x: x is None)[0]]


def _check_floating(name: str, x: torch.Tensor) -> None:
    if not (x.is_floating_point() or x.is_complex()):
        raise DtypeError(
            "a parameter has a dtype that cannot be trained",
            got=f"parameter {name!r} of dtype {str(x.dtype).removeprefix('torch.')}",
            rule="parameters are floating-point or complex numbers",
            try_="a tree of the parameters alone",
        )
