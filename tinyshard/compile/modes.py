"""The state of a module that a graph depends on, beside its tensors: whether it is training, its hooks, its parts."""

from __future__ import annotations

import weakref
from collections.abc import Container
from typing import Any, NamedTuple

import torch

_NONE = ((),) * 4
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Mode(NamedTuple):
    """A module that a trace used, and its state then: if that changes, the graph may change.

    Attributes:
        module: the module.
        training: whether it was training.
        hooks: the numbers of its hooks; torch never reuses a number.
        parts: the names of its own tensors and modules, and which modules these are.
    """

    module: weakref.ref[torch.nn.Module]
    training: bool
    hooks: tuple[tuple[int, ...], ...]
    parts: tuple[Any, ...]

    @property
    def is_unchanged(self) -> bool:
        """Whether the module is still there, in the same mode, with the same hooks and parts."""
        module = self.module()
        return (
            module is not None
            and module.training is self.training
            and _hooks(module) == self.hooks
            and _parts(module) == self.parts
        )

    def changes(self) -> list[str]:
        """The changes since then, in words."""
        module: Any = self.module()
        if module is None:
            return ["a module that it uses is gone"]
        changes = []
        if module.training is not self.training:
            changes.append(f"training was {self.training}, now {module.training}")
        if _hooks(module) != self.hooks:
            changes.append("it has other hooks than before")
        if _parts(module) != self.parts:
            changes.append("it has other parameters, buffers or modules than before")
        return [f"{type(module).__name__}, which it uses: {words}" for words in changes]


def mode_of(module: torch.nn.Module) -> Mode:
    """The present state of a module."""
    return Mode(weakref.ref(module), module.training, _hooks(module), _parts(module))


def uses_module(module: torch.nn.Module, met: Container[int]) -> bool:
    """Whether a module has no tensors, or if one of them, or of the modules in it, is among these, by their ids."""
    held = [*module.parameters(), *module.buffers()]
    return not held or any(id(x) in met for x in (*held, *module.modules()))


def _hooks(module: torch.nn.Module) -> tuple[tuple[int, ...], ...]:
    held = module.__dict__  # asked at each call, of each module
    pre, post, back_pre, back = _HOOKS
    if not (held.get(post) or held.get(pre) or held.get(back) or held.get(back_pre)):
        return _NONE
    return tuple([tuple(held.get(name, ())) for name in _HOOKS])


def _parts(module: torch.nn.Module) -> tuple[Any, ...]:
    inner, tensors, buffers = module._modules, module._parameters, module._buffers
    # the entry of a module that is gone stays: no new module with the same id is taken for it
    return (
        *inner,
        *map(id, inner.values()),
        tuple([k for k, x in tensors.items() if x is not None]),
        tuple([k for k, x in buffers.items() if x is not None]),
    )
