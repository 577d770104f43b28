"""Functions of torch that ignore subclasses and modes: tinyshard's import replaces them in torch itself.

So it does not matter under which name, and when, a user has imported a function. Each is a row: owner, name, and a
function that makes the replacement from torch's function. This file has those that read the memory of a tensor:

torch.utils.dlpack.to_dlpack(x)     of the values, which are copied to the host
t.set_(x, 0, (8,), (1,))            likewise: t has the memory of a copy
p.data = x                          p, a parameter or another plain tensor, becomes the Array
torch.distributed                   refused: a torch process group sends memory
torch.jit.save(net, file)           refused for a module with Arrays

`inside_torch` has more rows, and so have `compile.intercept` and `compile.cond`, for traces.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed
from torch.utils._pytree import tree_leaves

from tinyshard.arrays.refusals import Immutable
from tinyshard.core.errors import DtypeError, ImmutableError
from tinyshard.core.thread_state import is_tracing

Replacement = tuple[Any, str, Callable[[Any], Any]]


def install(rows: Iterable[Replacement]) -> None:
    """Replace the functions in torch."""
    for owner, name, make in rows:
        setattr(owner, name, make(getattr(owner, name, None)))


# ---- functions that read memory ---------------------------------------------------------------------------------


def _of_values(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called with the values of Arrays. Waits."""

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        args = tuple([x._gather() if isinstance(x, Immutable) else x for x in args])
        named = {name: x._gather() if isinstance(x, Immutable) else x for name, x in kwargs.items()}
        return function(*args, **named)

    return called


def _without_arrays(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of a process group, which refuses Arrays."""

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Immutable) for x in tree_leaves((args, kwargs))):
            raise DtypeError(
                "torch.distributed does not take Arrays",
                got=f"an Array as an operand of {method.__name__} of a process group",
                rule="a process group sends the memory of this process, and an Array has none in it",
                try_="ts.device_get(x) for its values; between devices ts.lax.psum and its like, in ts.shard_map",
            )
        return method(self, *args, **kwargs)

    return called


def _set_of_values(set_: Callable[..., Any]) -> Callable[..., Any]:
    """`Tensor.set_`, which an Array refuses; a plain tensor accepts an Array's values."""
    of_values = _of_values(set_)

    @functools.wraps(set_)
    def called(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        return x.set_(*args, **kwargs) if isinstance(x, Immutable) else of_values(x, *args, **kwargs)

    return called


def _without_parameters(save: Callable[..., Any]) -> Callable[..., Any]:
    """A method that writes a scripted module, which refuses Arrays among its parameters and buffers."""

    @functools.wraps(save)
    def called(module: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, Immutable) for x in (*module.parameters(), *module.buffers())):
            raise DtypeError(
                "a scripted module with Arrays cannot be written to a file",
                got=f"{save.__name__} of a module whose parameters or buffers are Arrays",
                rule="torch writes the memory of its tensors, and an Array has none in this process",
                try_="module.load_state_dict(ts.device_get(module.state_dict())) of a plain module, and then script it",
            )
        return save(module, *args, **kwargs)

    return called


def _data(of_torch: Any) -> property:
    """The property `data` of tensors: a plain tensor to which an Array is assigned becomes an Array."""

    def set_data(x: torch.Tensor, value: Any) -> None:
        if isinstance(x, Immutable):
            type(x).data.fset(x, value)  # type: ignore[attr-defined]
        elif isinstance(value, Immutable) and not is_tracing():
            become(x, value)
        else:
            of_torch.__set__(x, value)

    return property(of_torch.__get__, set_data, doc=of_torch.__doc__)


DATA = _data(torch.Tensor.data)


def become(x: torch.Tensor, value: Immutable) -> None:
    """Make a plain tensor, as a parameter of a module, an Array in place, so under all its names.

    It stays a parameter, with its `requires_grad`, its `grad` and what the user has stored in it.

    Raises:
        ImmutableError: it has a view or a hook, or it is a result: these would keep the old values.
    """
    reason = _why_not(x)
    if reason:
        raise ImmutableError(
            "x.data = array for a tensor that cannot become an Array",
            got=f"x of shape {tuple(x.shape)}, {reason}",
            rule="x itself becomes the Array; what shares its memory or listens to it would keep what was there before",
            try_="x = array; for a parameter module.weight = torch.nn.Parameter(array); for a gradient p.grad = array",
        )
    new: Any = value._new_handle()
    if isinstance(x, torch.nn.Parameter):
        new._is_param = True
    if isinstance(x, torch.nn.Buffer):
        new._is_buffer, new.persistent = True, x.persistent
    new.requires_grad_(x.requires_grad)
    new.grad = x.grad
    vars(new).update(vars(x))
    for name in ("__class__", "__dict__"):
        before = getattr(x, name)
        setattr(x, name, getattr(new, name))
        setattr(new, name, before)
    torch._C._swap_tensor_impl(x, new)


def _why_not(x: Any) -> str:
    if type(x) not in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return f"a {type(x).__name__}"
    if torch._C._functorch.is_functorch_wrapped_tensor(x):
        return "which a transformation wraps"
    if not x.is_leaf or x._is_view():
        return "a view of another tensor" if x.is_leaf else f"a result of {x.grad_fn.name()}"
    if x._backward_hooks or getattr(x, "_post_accumulate_grad_hooks", None):
        return "with hooks"
    if x._use_count() > 1 and not _is_left_to_the_tape(x):
        return "which has a view, or a result that can still be differentiated"
    return ""


def _is_left_to_the_tape(x: Any) -> bool:
    """Whether only torch's tape holds a leaf: then a later `backward` to it is an error."""
    if not x.requires_grad or x._use_count() > 2:
        return False
    node = torch.autograd.graph.get_gradient_edge(x).node
    if x._use_count() > 2:  # it was not the tape that held it
        return False

    def refuse(_: Any) -> None:
        raise ImmutableError(
            "backward() reaches a parameter that has become an Array since",
            got=f"a parameter of shape {tuple(x.shape)}, to which x.data = array was assigned after its use",
            rule="the result was computed from the plain parameter, whose place the Array has taken",
            try_="x.data = array before the forward pass, or after backward()",
        )

    node.register_prehook(refuse)
    return True


_COLLECTIVES = """
_allgather_base _reduce_scatter_base all_gather_single all_gather_single_coalesced all_to_all_single allgather
allgather_coalesced allgather_into_tensor_coalesced allreduce allreduce_coalesced alltoall alltoall_base broadcast
gather recv recv_anysource reduce reduce_scatter reduce_scatter_single reduce_scatter_single_coalesced
reduce_scatter_tensor_coalesced scatter send
"""

_SAVES = "save save_to_buffer _save_for_lite_interpreter _save_to_buffer_for_lite_interpreter"

REPLACED: list[Replacement] = [
    (torch.utils.dlpack, "to_dlpack", _of_values),
    (torch, "to_dlpack", _of_values),
    (torch._C, "_to_dlpack", _of_values),
    (torch._C, "_to_dlpack_versioned", _of_values),
    (torch.Tensor, "set_", _set_of_values),
    (torch.Tensor, "data", lambda _: DATA),
    *(
        (owner, name, _without_parameters)
        for owner in (torch.jit.RecursiveScriptModule, torch.jit.ScriptModule)
        for name in _SAVES.split()
        if hasattr(owner, name)
    ),
]
if torch.distributed.is_available():
    _groups: Any = torch._C._distributed_c10d
    REPLACED += [
        (owner, name, _without_arrays)
        for owner in (_groups.ProcessGroup, _groups.Backend)
        for name in _COLLECTIVES.split()
        if hasattr(owner, name)
    ]
