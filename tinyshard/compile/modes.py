"""What of a module decides on the graph of a function that calls it, beside its tensors: whether it is training, and
its hooks."""

from __future__ import annotations

import weakref
from typing import Any, NamedTuple

import torch

_NONE = ((),) * 4
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


class Mode(NamedTuple):
    """A module that a trace met, and how it was then: the graph may be another one where it is otherwise.

    Attributes:
        module: the module.
        training: whether it was training.
        hooks: the numbers of its hooks, each of which torch gives once.
    """

    module: weakref.ref[torch.nn.Module]
    training: bool
    hooks: tuple[tuple[int, ...], ...]

    @property
    def is_as_then(self) -> bool:
        """Whether the module is still there, in the same mode, with the same hooks."""
        module = self.module()
        return module is not None and module.training is self.training and _hooks(module) == self.hooks

    def changes(self) -> list[str]:
        """What has become of it, for a learner."""
        module: Any = self.module()
        if module is None:
            return ["a module that it calls is gone"]
        said = []
        if module.training is not self.training:
            said.append(f"training was {self.training}, now {module.training}")
        if _hooks(module) != self.hooks:
            said.append("it has other hooks than before")
        return [f"{type(module).__name__}, which it calls: {words}" for words in said]


def mode_of(module: torch.nn.Module) -> Mode:
    """How a module is now."""
    return Mode(weakref.ref(module), module.training, _hooks(module))


def _hooks(module: torch.nn.Module) -> tuple[tuple[int, ...], ...]:
    held = module.__dict__  # asked at each call, of each module
    pre, post, back_pre, back = _HOOKS
    if not (held.get(post) or held.get(pre) or held.get(back) or held.get(back_pre)):
        return _NONE
    return tuple([tuple(held.get(name, ())) for name in _HOOKS])
