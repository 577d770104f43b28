"""State of the process that a trace changes."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch._C._dynamo.eval_frame import set_eval_frame

_MISSING = object()


@contextlib.contextmanager
def process_kept() -> Iterator[None]:
    """A block that restores what torch's tracer and a trace replace in the process."""
    import torch._dynamo.eval_frame as eval_frame
    import torch.fx._symbolic_trace as symbolic_trace
    import torch.fx.experimental.proxy_tensor as proxy_tensor
    import torch.fx.traceback as node_meta

    owners: tuple[tuple[Any, tuple[str, ...]], ...] = (
        (torch.nn.Module, ("__call__", "__getattr__")),
        (symbolic_trace, ("CURRENT_PATCHER", "_is_fx_tracing_flag")),
        (proxy_tensor, ("_CURRENT_MAKE_FX_TRACER",)),
        (node_meta, ("should_preserve_node_meta", "current_meta")),
        (torch.compiler, ("_is_compiling_flag",)),
        (eval_frame, ("_stance",)),
        (torch.distributions.Distribution, ("_validate_args",)),
    )
    before = [(owner, name, vars(owner).get(name, _MISSING)) for owner, names in owners for name in names]
    try:
        yield
    finally:
        for owner, name, value in before:
            if value is not _MISSING:
                setattr(owner, name, value)
            elif name in vars(owner):
                delattr(owner, name)


@contextlib.contextmanager
def unlogged() -> Iterator[None]:
    """Without torch's log of an error in the shapes: the error is raised, and its logged stack does not help."""

    def has_no_error(record: logging.LogRecord) -> bool:
        return record.exc_info is None

    log = logging.getLogger("torch._subclasses.fake_tensor")
    log.addFilter(has_no_error)
    try:
        yield
    finally:
        log.removeFilter(has_no_error)


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """`torch.compiler.is_compiling()` is true: libraries then ask for no values. Dynamo itself compiles nothing."""
    before = set_eval_frame(None)  # it may be compiling the function that calls
    try:
        with torch.compiler._compile_session_context(), torch.compiler.set_stance("force_eager"):
            yield
    finally:
        set_eval_frame(before)
