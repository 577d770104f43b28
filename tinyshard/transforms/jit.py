"""jit: a function is traced once for each signature, partitioned once for each layout of its operands, then called.

f = ts.jit(f)
f(x)                                  one message to each device
f.lower(x).as_text()                  ops on whole tensors, before partitioning
f.lower(x).compile().as_text()        the program of each device, with its collectives
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tinyshard.compile.donation import checked_donation
from tinyshard.compile.signature import checked_numbers, static_both_ways
from tinyshard.compile.text import GraphText
from tinyshard.core.cache import clear_all
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import check_others
from tinyshard.partition.plan import clear_plans
from tinyshard.transforms.jitted import Jitted


def jit(
    fun: Callable[..., Any] | None = None,
    *,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Sequence[int] | None = None,
    static_argnames: str | Sequence[str] | None = None,
    donate_argnums: int | Sequence[int] | None = None,
    donate_argnames: str | Sequence[str] | None = None,
    **others: Any,
) -> Any:
    """Compile a function of tensors into one program for the devices.

    It is traced once for each signature (shapes, dtypes, static values) and partitioned once for each layout of its
    operands; after that a call is one message to each device. Also a decorator, with or without arguments. Another
    `jit` of the same function shares its traces.

    A trace runs the function in its own thread, while the caller waits. The thread has the caller's context variables,
    and its changes to them are copied back when it ends; `breakpoint()`, `input()` and `print` reach the user.
    Ctrl-C ends it at its line or at its next op. Where it reaches neither, as in a long call of C code, a second Ctrl-C
    abandons it: it ends in the background.

    grad, jvp, vmap and `.backward()` of it run programs too: one for the function, and one for its derivative, made
    from the trace (which recomputes the function's values); so results require a gradient where an operand or a
    closed-over tensor does. Inside the function of another jit it becomes a part of the outer program, and its
    shardings are constraints. A function with a custom derivative (`torch.no_grad`, a `torch.autograd.Function`) runs
    op by op where it is differentiated from outside.

    Args:
        fun: a function of trees of tensors and numbers that returns a tree of tensors. A Python float is a 0-d tensor
            of torch's default dtype, or of float64 with an argument of doubles. Tensors that it closes over (Arrays,
            tensors, module parameters) are looked up at each call. If one cannot be found again (in a set, in the
            cache of a function), each call traces the function. With modules in another mode (`train()`, `eval()`)
            or when its code has been edited (IPython's autoreload) it is traced again; other Python values, and the
            functions that it calls, are used as they were when it was traced.
        in_shardings: a Sharding for every positional argument, or a tree of them that is a prefix of the arguments;
            None leaves an argument where it is, and so do arguments by name.
        out_shardings: likewise for the results.
        static_argnums: positions of arguments that are Python values; each value has its own trace.
        static_argnames: names of such arguments.
        donate_argnums: positions of arguments whose memory the call may use again: the devices free their blocks at
            their last use, for the results that come after. Array handles on them are deleted, also where the call
            fails or Ctrl-C ends it: `x.is_deleted()`, and to use one raises RuntimeStateError. Donated are Arrays that
            are in place, and whose blocks have the shape and dtype of a result's; for others a warning names them, and
            they stay. Within another trace nothing is donated; nor under a transformation, of which a warning tells.
        donate_argnames: names of such arguments.
        others: JAX's keep_unused and inline are accepted, and have no effect.

    Returns:
        A function of the same arguments that returns Arrays; it has `lower`, and the attributes of `fun`.

    Raises:
        TracedValueError: when called, if the function branches in Python on a traced value.
        ImmutableError: if it changes an argument or a closed-over tensor in place.
        ShardingError: if committed operands have different devices, or an argument contradicts in_shardings.
        DtypeError: an argument is not a tensor, jit has no argument of that name, or the shape of a result depends on
            values, as with `nonzero`, a mask as an index, and `torch.linalg.lstsq`.
        StaticArgumentError: if a static argument cannot be hashed, or the function has no static or donated argument of
            that position or name, or one is both.
        DonationError: when called, if a donated Array is among the arguments twice.
        RuntimeStateError: when called, if an argument was donated before.

    Communication: the collectives in the program's text.

    In JAX: a result is written into the donated memory itself; here it may be written while the donated block is there.
    Under a transformation JAX donates what is given to the jitted function.
    backend does not exist here.
    Arrays that the function closes over are constants of the trace there; here tensors that it closes over are looked
    up at each call. A function of tensors that is not jitted stays plain torch, and its results have no `.sharding` and
    no `.block_until_ready()`: `ts.array` and `ts.device_put` make Arrays.

    Example:
        >>> import tinyshard as ts
        >>> import torch
        >>> ts.init(devices=2, runtime="local")
        >>> f = ts.jit(lambda x, n: x * n, static_argnums=1)
        >>> f(torch.arange(3), 2)
        Array([0, 2, 4], dtype=int64)
    """
    check_others(jit, others)
    if fun is None:
        return functools.partial(
            jit,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donate_argnums,
            donate_argnames=donate_argnames,
            **others,
        )
    if not callable(fun):
        raise DtypeError("jit takes a function", got=f"{fun!r} ({type(fun).__name__})", try_="ts.jit(f)")
    numbers = checked_numbers(static_argnums, "static_argnums")
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames or ())
    numbers, names = static_both_ways(fun, numbers, names)
    donated = checked_donation(fun, donate_argnums, donate_argnames, numbers)
    return Jitted(
        fun, in_shardings, out_shardings, numbers, names, donate_argnums=donated[0], donate_argnames=donated[1]
    )


def make_graph(fun: Callable[..., Any], static_argnums: int | Sequence[int] | None = None) -> Callable[..., GraphText]:
    """A function that returns the graph of `fun`: its ops on whole tensors.

    Args:
        fun: a function as jit takes it.
        static_argnums: positions of arguments that are Python values.

    Returns:
        A function of the same arguments (or of ShapeDtypeStructs) that returns the text of the graph.

    Raises:
        TracedValueError, ImmutableError, DtypeError, StaticArgumentError: as `jit`, when called.

    Communication: none.

    In JAX: `jax.make_jaxpr`, which is another name for it here.

    Example:
        >>> import torch
        >>> make_graph(lambda x: torch.sin(x) + 1)(torch.zeros(3))
        <lambda> on whole tensors
          %0: f32[3] = x
          %1: f32[3] = aten.sin.default(%0)
          %2: f32[3] = aten.add.Tensor(%1, 1)
          return %2
    """
    jitted = jit(fun, static_argnums=static_argnums)

    def graph_of(*args: Any, **kwargs: Any) -> GraphText:
        lowered = jitted.lower(*args, **kwargs)
        text = GraphText(lowered.as_text())
        text.html = lowered._repr_html_()
        return text

    return graph_of


make_jaxpr = make_graph


def eval_shape(fun: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Shapes and dtypes of a function's results, without computing them.

    Args:
        fun: a function as jit takes it.
        args: as for a call, by name too; a ShapeDtypeStruct may replace a tensor.

    Returns:
        The tree that it returns, with a ShapeDtypeStruct for each tensor.

    Raises:
        TracedValueError, ImmutableError, DtypeError: as `jit`, when called.

    Communication: none; no device is started.

    Example:
        >>> import tinyshard as ts
        >>> import torch
        >>> b = ts.ShapeDtypeStruct((4, 5), torch.float32)
        >>> eval_shape(lambda a, b: {"product": a @ b}, torch.ones(3, 4), b)
        {'product': f32[3, 5]}
    """
    return jit(fun).lower(*args, **kwargs).out_info


def clear_caches() -> None:
    """Drop every trace, plan and program that is kept, here and on the devices: the next call makes them again.

    Programs that still run, and results, stay valid.

    Communication: none.

    Example:
        >>> import tinyshard as ts
        >>> import torch
        >>> ts.init(devices=2, runtime="local")
        >>> @ts.jit
        ... def f(x):
        ...     print("traced")
        ...     return x + 1
        >>> x = torch.ones(2)
        >>> f(x), f(x)
        traced
        (Array([2., 2.], dtype=float32), Array([2., 2.], dtype=float32))
        >>> clear_caches()
        >>> f(x)
        traced
        Array([2., 2.], dtype=float32)
    """
    clear_all()
    clear_plans()
