"""What to say of a name, or of an argument, that JAX has and tinyshard has not: what does the same here.

ts.make_jaxpr       AttributeError: JAX's make_jaxpr is make_graph here
ts.shardmap         AttributeError: did you mean shard_map?
ts.jit(f, backend="cpu")    DtypeError: ts.init(platform=...) says on what programs run
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

import torch

from tinyshard.core.errors import DtypeError, message

# module -> a name of JAX's -> what does that here
NAMES: dict[str, dict[str, str]] = {
    "tinyshard": {
        "make_jaxpr": "ts.make_graph",
        "numpy": "torch: its functions work on Arrays",
        "nn": "torch.nn",
        "tree_util": "ts.tree; torch.utils._pytree.register_pytree_node registers a container",
        "tree_map": "ts.tree.map",
        "experimental": "ts.shard_map and ts.mesh_utils, which need no experimental here",
        "jacobian": "ts.jacrev",
        "custom_vjp": "torch.autograd.Function, with setup_context",
        "custom_jvp": "torch.autograd.Function, with setup_context and jvp",
        "device_put_sharded": "ts.device_put(torch.stack(shards), sharding)",
        "device_put_replicated": "ts.device_put(x, ts.NamedSharding(mesh, ts.P()))",
        "xmap": "ts.shard_map",
        "pjit": "ts.jit(f, in_shardings=..., out_shardings=...)",
        "distributed": "ts.init(hosts=...)",
        "process_index": "the controller is one process: 0; a device has its own, device.process_index",
        "process_count": "len({device.host for device in ts.devices()}) machines; a process for each device",
        "default_device": "ts.device_put(x, device)",
        "eval_shape": "ts.jit(f).lower(*args).compile().as_text(), which shows every shape",
        "pure_callback": "a function of its own on ts.device_get(x), between two calls of jit",
        "checkpoint": "torch.utils.checkpoint.checkpoint inside of a function that jit compiles",
        "reshard": "ts.device_put(x, sharding); inside of jit ts.lax.with_sharding_constraint(x, sharding) too",
        "get_mesh": "the mesh that ts.set_mesh was given, or x.sharding.mesh",
        "debug_nans": "torch.isfinite(x).all(), of what a function returns",
    },
    "tinyshard.lax": {
        "cond": "torch.cond(condition, if_true, if_false, operands)",
        "scan": "a Python loop, which a trace unrolls",
        "fori_loop": "a Python loop, which a trace unrolls",
        "while_loop": "a Python loop, outside of jit if it asks for values",
        "select": "torch.where",
        "stop_gradient": "x.detach()",
        "dynamic_slice": "x.narrow(dim, start, length), once for each dim",
        "dynamic_slice_in_dim": "x.narrow(dim, start, length)",
        "dynamic_index_in_dim": "x[i], or x.select(dim, i)",
        "dynamic_update_slice": "y = x.clone(), and then y.narrow(...) or y[i] = value",
        "dot_general": "torch.einsum",
        "conv_general_dilated": "torch.nn.functional.conv2d",
        "top_k": "torch.topk",
        "psum_invariant": "ts.lax.psum",
    },
    "tinyshard.random": {
        "PRNGKeyArray": "ts.random.Key",
        "default_prng_impl": "threefry2x32, the only one",
    },
    "tinyshard.sharding": {
        "reshard": "ts.device_put(x, sharding); inside of jit ts.lax.with_sharding_constraint(x, sharding) too",
        "set_mesh": "ts.set_mesh(mesh)",
        "get_mesh": "the mesh that ts.set_mesh was given, or x.sharding.mesh",
        "get_abstract_mesh": "the mesh that ts.set_mesh was given, or x.sharding.mesh",
        "AxisType": "nothing: every axis is automatic in jit, and manual in shard_map",
    },
    "tinyshard.tree": {
        "transpose": "ts.tree.map(lambda *leaves: list(leaves), *trees): of a list of trees a tree of lists",
        "reduce": "functools.reduce(function, ts.tree.leaves(tree))",
        "all": "all(ts.tree.leaves(tree))",
        "map_with_path": "torch.utils._pytree.tree_map_with_path",
        "leaves_with_path": "torch.utils._pytree.tree_leaves_with_path",
        "flatten_with_path": "torch.utils._pytree.tree_flatten_with_path",
    },
}

# function -> an argument of JAX's that changes no value -> why it has no effect here
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "jit": {
        "donate_argnums": "memory is used again as soon as the last Array of it is gone",
        "donate_argnames": "memory is used again as soon as the last Array of it is gone",
        "keep_unused": "an argument that is not used costs nothing",
        "inline": "a jitted function is always inlined into another",
    },
    "pmap": {"donate_argnums": "memory is used again as soon as the last Array of it is gone"},
}

_DISTRIBUTIONS = """
bits uniform normal truncated_normal exponential gumbel laplace cauchy logistic randint bernoulli rademacher
permutation choice categorical
"""

# function -> an argument of JAX's -> what to do here
ARGUMENTS: dict[str, dict[str, str]] = {
    "jit": {
        "backend": "ts.init(platform=...) says on what programs run",
        "device": "in_shardings=ts.SingleDeviceSharding(device), or ts.device_put the arguments",
        "abstracted_axes": "one trace for each shape",
    },
    "pmap": {
        "backend": "ts.init(platform=...) says on what programs run",
        "global_arg_shapes": "shapes are those of the arguments",
    },
    "make_mesh": {"axis_types": "every axis is automatic in jit, and manual in shard_map"},
    **{
        distribution: {"out_sharding": "ts.device_put(draw, sharding); inside of jit each device makes its own block"}
        for distribution in _DISTRIBUTIONS.split()
    },
}


def names_of(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module: raises AttributeError that says what to use in place of a missing name."""

    def missing(name: str) -> NoReturn:
        short = module.replace("tinyshard", "ts")
        instead = NAMES[module].get(name)
        close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
        if name.startswith("__"):
            try_ = ""
        elif instead is not None:
            try_ = instead
        elif close:
            try_ = " or ".join(f"{short}.{n}" for n in close)
        else:
            try_ = f"torch.{name}, which works on Arrays" if hasattr(torch, name) else f"dir({short}) for what is there"
        raise AttributeError(message(f"module {module!r} has no attribute {name!r}", try_=try_))

    return missing


def check_arguments(what: str, others: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise DtypeError for arguments that a function does not take, but for those that would have no effect."""
    for name, value in others.items():
        if name in WITHOUT_EFFECT.get(what, {}) or (value is None and name in ARGUMENTS.get(what, {})):
            continue
        close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)
        try_ = ARGUMENTS.get(what, {}).get(name) or (f"{close[0]}=" if close else "")
        rule = f"its arguments are {', '.join(known)}"
        raise DtypeError(message(f"{what} has no argument {name!r}", got=f"{name}={value!r}", rule=rule, try_=try_))
