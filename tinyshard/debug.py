"""Inspect where values are, and why, and values inside a running program: pictures, rules, prints."""

from __future__ import annotations

import builtins
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from tinyshard.arrays.array import printable
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import names_of
from tinyshard.core.layout import Layout
from tinyshard.core.page import show
from tinyshard.draw.html import sharding_drawing
from tinyshard.partition.rule_text import OpRules, rules_in
from tinyshard.primitives.effects import CALLBACK, INSPECTED, Call
from tinyshard.runtime import lifecycle
from tinyshard.sharding import Sharding, SingleDeviceSharding
from tinyshard.sharding.base import checked_shape
from tinyshard.transforms.jit import jit

__all__ = ["callback", "inspect_array_sharding", "print", "rule", "visualize_array_sharding", "visualize_sharding"]


__getattr__ = names_of("tinyshard.debug", __all__)


def visualize_array_sharding(x: Any) -> None:
    """Show which device holds which block of an array: a terminal prints boxes, a notebook draws them.

    Args:
        x: an Array of any rank and dtype. A plain torch.Tensor is shown on device 0, where an uncommitted
            value is.

    Raises:
        DtypeError: `x` is neither, or a traced value, which does not have a placement.

    Communication: none; it does not wait for the values.

    In JAX: rank 1 and 2 only, as text in a notebook too; colours where the terminal has them. Inside jit it draws when
    the program runs.

    Example:
        >>> visualize_array_sharding(torch.zeros(8))
        ┌───────┐
        │ CPU 0 │
        └───────┘
    """
    from torch._subclasses.functional_tensor import FunctionalTensor

    sharding = getattr(x, "sharding", None)
    if isinstance(sharding, Sharding):
        visualize_sharding(tuple(x.shape), sharding)
    elif isinstance(x, torch.Tensor):
        if isinstance(x, FunctionalTensor) or torch._C._functorch.is_functorch_wrapped_tensor(x):
            raise DtypeError(
                "a traced value has no place yet",
                got=f"a value of shape {tuple(x.shape)} inside jit, vmap, grad or a mapped function",
                rule="where it lives is decided when the traced function is compiled",
                try_="return it, and draw the result; or jit(f).lower(...).compile().output_shardings",
            )
        show(sharding_drawing(Layout((0,), (1,), ((),) * x.ndim), tuple(x.shape)))
    else:
        raise DtypeError(
            "only an array can be shown",
            got=f"{_short(x)}, a {type(x).__name__}",
            rule="visualize_array_sharding takes an Array or a torch.Tensor",
            try_="ts.debug.visualize_array_sharding(ts.array(x)), or one leaf at a time of a tree",
        )


def visualize_sharding(shape: Sequence[int], sharding: Any) -> None:
    """Show which device would hold which block of an array of this shape: printed, or in a notebook drawn.

    Args:
        shape: the global shape, of any rank; each dim a multiple of the number of its parts.
        sharding: any Sharding.

    Raises:
        DtypeError: `sharding` is not a Sharding, or `shape` is not a sequence of ints.
        ShardingError: the sharding does not fit the shape.

    Communication: none; works on abstract meshes.

    In JAX: rank 1 and 2 only; more arguments for colours and sizes.

    Example:
        >>> from tinyshard.sharding.mesh import AbstractMesh
        >>> from tinyshard.sharding import NamedSharding, P
        >>> visualize_sharding((8,), NamedSharding(AbstractMesh(2, "i"), P("i")))
        ┌───────┬───────┐
        │ CPU 0 │ CPU 1 │
        └───────┴───────┘
    """
    if not isinstance(sharding, Sharding):
        raise DtypeError(
            "not a sharding",
            got=f"{_short(sharding)}, a {type(sharding).__name__}",
            rule="visualize_sharding takes a shape and a Sharding",
            try_="NamedSharding(mesh, P('x')), or ts.debug.visualize_array_sharding(x) for an array",
        )
    global_shape = checked_shape(shape)
    show(sharding_drawing(sharding.checked_layout(global_shape), global_shape))


def _short(value: Any) -> str:
    words = repr(value)
    return words if len(words) <= 60 else words[:57] + "..."


def rule(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> OpRules:
    """The rule by which an op is partitioned: which dims correspond, which may be cut, and the result on each device.

    Each dim of an operand is named by a factor, as in an einsum. An axis of the mesh cuts one factor of an op, or none.

        i k, k j -> i j +k      +k: each device has a part of the sum over k
        a [b] -> a [b]          [b]: must be whole
        a (b c) -> (a b) c      (b c): a dim of two factors, the most significant first
        _                       a dim that must be whole

    Args:
        fun: an op, or a function of several.
        args: its arguments, named ones too: Arrays, tensors or ShapeDtypeStructs; their placement does not matter.

    Returns:
        A tuple of the rules of the ops that `fun` calls, in order, each with `op` and `rule`; printed, it has a line
        for each factor.

    Raises:
        TracedValueError, ImmutableError, DtypeError, StaticArgumentError: as `jit`, for a function.

    Communication: none; nothing runs.

    In JAX: has no counterpart; a `sharding_rule` of `jax.experimental.custom_partitioning` has a similar notation.

    Example:
        >>> x, y = torch.zeros(4, 6), torch.zeros(6, 8)
        >>> rule(torch.mm, x, y)
        aten.mm.default    i k, k j -> i j +k
          i: cut along an axis, each device has its block of the result
          k: cut along an axis, each device has a part of the sum
          j: cut along an axis, each device has its block of the result
        >>> rule(torch.cumsum, x, 1)
        aten.cumsum.default    a [b] -> a [b]
          a: cut along an axis, each device has its block of the result
          b: must be whole
    """
    operands = [x for x in args if hasattr(x, "shape")]

    def called(*tensors: Any) -> Any:
        given = iter(tensors)
        return fun(*(next(given) if hasattr(x, "shape") else x for x in args), **kwargs)

    return rules_in(jit(called).lower(*operands).graph)


def callback(fn: Callable[..., Any], *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Call a Python function with values of a running program, for its side effect: to print, record or plot them.

    In jit it gets whole values, in pmap and shard_map it is called for each device with that device's values, by
    device, in vmap for each example, in grad and jvp in the forward pass, in a loop in each round.

    Args:
        fn: is called in this process, in the thread that called the program, which also gets its errors; its result is
            dropped.
        args: trees, named ones too; tensors of any shape and dtype are passed as plain torch.Tensors, other leaves
            unchanged.
        ordered: has no effect: calls are always in the order of the program.

    Raises:
        DtypeError: `fn` cannot be called.

    Communication: each device sends its blocks to this process. A call of the program then waits for its end instead
        of returning at once.

    In JAX: values are Arrays; calls may come in any order unless `ordered`, and after the program's call has returned.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> seen = []
        >>> def f(x):
        ...     callback(seen.append, x.sum())
        ...     return x + 1
        >>> ts.jit(f)(torch.ones(3)), seen
        (Array([2., 2., 2.], dtype=float32), [tensor(3.)])
    """
    if not callable(fn):
        raise DtypeError("not a function", got=f"{_short(fn)}, a {type(fn).__name__}", try_="ts.debug.callback(fn, x)")
    leaves, form = tree_flatten((args, kwargs))
    at = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]

    def function(values: Sequence[torch.Tensor]) -> None:
        given = list(leaves)
        for i, x in zip(at, values, strict=False):  # without operands there is a dummy one
            given[i] = x
        positional, named = tree_unflatten(given, form)
        fn(*positional, **named)

    operands = [leaves[i] for i in at]
    for i in at:
        leaves[i] = None  # a traced value must not outlive its trace
    CALLBACK.bind(Call(function), *(operands or [torch.zeros(())]))


class _Checked(string.Formatter):
    """Checks that a format fits its arguments, without formatting them."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return ""

    def convert_field(self, value: Any, conversion: Any) -> Any:
        return value

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        first = field_name.partition(".")[0].partition("[")[0]
        key: Any = int(first) if first.isdigit() else first
        return self.get_value(key, args, kwargs), key

    def check_unused_args(self, used_args: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        unused = [key for key in [*range(len(args)), *kwargs] if key not in used_args]
        if unused:
            raise ValueError(f"debug.print does not print its arguments {', '.join(map(repr, unused))}")


def print(fmt: str, *args: Any, ordered: bool = False, **kwargs: Any) -> None:
    """Print values of a running program.

    In jit whole values, in pmap and shard_map those of each device, by device, in vmap each example, in grad and jvp in
    the forward pass, in a loop in each round.

    Args:
        fmt: as for `str.format`: "loss {}", "x = {x}", "{:.3f}".
        args: the values, named ones too; tensors are printed as NumPy arrays are.
        ordered: has no effect: prints are always in the order of the program.

    Raises:
        ValueError: an argument that `fmt` does not name. IndexError, KeyError: it names one that is not passed.

    Communication: each device sends its blocks to this process. A call of the program then waits for its end, where
        without it would return at once.

    In JAX: prints may come in any order unless `ordered`, and after the program's call has returned.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> def f(x):
        ...     ts.debug.print("on a device: {}", x)
        ...     return ts.lax.psum(x, "i")
        >>> y = ts.pmap(f, axis_name="i")(torch.arange(2.0))
        on a device: 0.0
        on a device: 1.0
    """
    _Checked().vformat(fmt, args, kwargs)

    def show(*values: Any, **named: Any) -> None:
        shown = tree_map_only(torch.Tensor, printable, (values, named))
        builtins.print(fmt.format(*shown[0], **shown[1]))

    callback(show, *args, ordered=ordered, **kwargs)


def inspect_array_sharding(value: torch.Tensor, *, callback: Callable[[Sharding], None]) -> None:
    """Call a function with the sharding of a value: of an Array now, in jit when the program is planned.

    Args:
        value: an Array or a tensor of any shape and dtype, traced or not.
        callback: takes the Sharding. Inside of jit it is called once for each program, before that runs; in the body
            of a loop once for each layout that is tried.

    Raises:
        MappingError: inside of pmap or shard_map, where a value is one device's block.

    Communication: none.

    In JAX: the same, with the sharding that XLA has chosen.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> mesh = ts.make_mesh((2,), ("x",))
        >>> def f(x):
        ...     inspect_array_sharding(x.sin(), callback=lambda sharding: builtins.print(sharding.spec))
        ...     return x
        >>> y = ts.jit(f)(ts.device_put(torch.zeros(4), ts.NamedSharding(mesh, ts.P("x"))))
        P('x')
    """

    def function(values: Sequence[Any]) -> None:
        x = values[0]
        if isinstance(x, Sharding):
            callback(x)
        else:
            here = getattr(x, "sharding", None)
            callback(here if isinstance(here, Sharding) else SingleDeviceSharding(lifecycle.devices()[0]))

    INSPECTED.bind(Call(function), value)
