"""Hints for names and arguments that JAX or torch has and tinyshard does not: what does the same here.

ts.pjit             AttributeError: JAX's pjit is jit here
ts.shardmap         AttributeError: did you mean shard_map?
ts.jit(f, backend="cpu")    DtypeError: ts.init(platform=...) says on what programs run
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any, NoReturn

import torch

from tinyshard.core.errors import DtypeError, message

# names of torch.distributed.tensor -> what does that here
_OF_DTENSOR = {
    "DTensor": "ts.Array",
    "DeviceMesh": "ts.make_mesh((4, 2), ('a', 'b'))",
    "init_device_mesh": "ts.make_mesh((4, 2), ('a', 'b'))",
    "distribute_tensor": "ts.device_put(x, sharding)",
    "distribute_module": "ts.device_put(dict(module.named_parameters()), ts.shardings(module, rules))",
    "Replicate": "ts.P(), which names no axis for a dim that is whole on every device",
    "Partial": "ts.lax.psum, at once: no Array is a sum that is still to be made",
    "local_map": "ts.shard_map",
}

# module -> a name of JAX or torch -> what does that here
NAMES: dict[str, dict[str, str]] = {
    "tinyshard": {
        "numpy": "torch: its functions work on Arrays",
        "nn": "torch.nn",
        "tree_util": "ts.tree; torch.utils._pytree.register_pytree_node registers a container",
        "tree_map": "ts.tree.map",
        "experimental": "ts.shard_map and ts.mesh_utils, which need no experimental here",
        "device_put_sharded": "ts.device_put(torch.stack(shards), sharding)",
        "device_put_replicated": "ts.device_put(x, ts.NamedSharding(mesh, ts.P()))",
        "xmap": "ts.shard_map",
        "pjit": "ts.jit(f, in_shardings=..., out_shardings=...)",
        "distributed": "ts.init(hosts=...)",
        "pure_callback": "a function of its own on ts.device_get(x), between two calls of jit",
        "ensure_compile_time_eval": "the value itself, computed before the traced function",
        "custom_gradient": "ts.custom_vjp",
        "scipy": "torch.special and torch.linalg",
        "use_mesh": "with ts.set_mesh(mesh):",
        "no_grad": "x.detach(), for a value of which no gradient is taken",
        "enable_grad": "ts.grad(f), which needs no mode",
        "manual_seed": "ts.random.key(seed)",
        "Generator": "ts.random.key(seed)",
        "rand": "ts.random.uniform(key, shape)",
        "randn": "ts.random.normal(key, shape)",
        "randperm": "ts.random.permutation(key, n)",
        "tensor": "ts.array([1.0, 2.0])",
        "as_tensor": "ts.array(values)",
        "asarray": "ts.array(values)",
        "from_numpy": "ts.array(values)",
        "Tensor": "ts.Array",
        "device": "ts.Device; ts.devices() lists those that are there",
        "set_default_device": "ts.device_put(x, device)",
        "cuda": "ts.init(platform='gpu')",
        **_OF_DTENSOR,
    },
    "tinyshard.debug": {
        "breakpoint": "breakpoint(); inside of jit it stops once for each trace, and values have a shape and a dtype",
    },
    "tinyshard.lax": {
        "select": "torch.where",
        "dot_general": "torch.einsum",
        "conv_general_dilated": "torch.nn.functional.conv2d",
        "top_k": "torch.topk",
        "psum_invariant": "ts.lax.psum",
        "pbroadcast": "ts.lax.psum(torch.where(ts.lax.axis_index(name) == source, x, 0), name)",
        "pvary": "ts.lax.pcast(x, name, to='varying')",
        "all_reduce": "ts.lax.psum, ts.lax.pmax or ts.lax.pmin",
        "reduce_scatter": "ts.lax.psum_scatter",
        "broadcast": "torch.broadcast_to; of the value of one device ts.lax.all_gather(x, name)[i]",
    },
    "tinyshard.optim": {
        "sgd": "ts.optim.functional(torch.optim.SGD, lr=...)",
        "adam": "ts.optim.functional(torch.optim.Adam, lr=...)",
        "adamw": "ts.optim.functional(torch.optim.AdamW, lr=...)",
        "apply_updates": "params, state = optimizer.update(params, grads, state)",
        "chain": "ts.optim.clip_by_global_norm(grads, max_norm), and then optimizer.update",
        "clip_grad_norm_": "grads, norm = ts.optim.clip_by_global_norm(grads, max_norm)",
        "lr_scheduler": "ts.optim.functional(..., lr=schedule), a function of the number of updates",
    },
    "tinyshard.random": {
        "PRNGKeyArray": "ts.random.Key",
        "default_prng_impl": "threefry2x32, the only one",
        "rand": "ts.random.uniform(key, shape)",
        "randn": "ts.random.normal(key, shape)",
        "randperm": "ts.random.permutation(key, n)",
        "manual_seed": "ts.random.key(seed)",
    },
    "tinyshard.sharding": {
        "reshard": "ts.reshard(x, ts.P('a'))",
        "auto_axes": "out_sharding= of ts.lax.dot and its like, or ts.reshard: all axes of a mesh are of one type",
        "explicit_axes": "a mesh of Explicit axes: all axes of a mesh are of one type",
        "use_abstract_mesh": "with ts.set_mesh(mesh):",
        "use_mesh": "with ts.set_mesh(mesh):",
        "Shard": "ts.P('a'), which cuts dim 0 over axis 'a'",
        **_OF_DTENSOR,
    },
    "tinyshard.tree": {
        "leaves_with_paths": "ts.tree.leaves_with_path",
        "broadcast": "ts.tree.map(lambda x, part: ts.tree.map(lambda _: x, part), prefix, tree)",
    },
}

# an attribute of jax.Array or DTensor -> what does that here
OF_ARRAYS: dict[str, str] = {
    "astype": "x.to(dtype)",
    "copy": "x.clone()",
    "to_device": "ts.device_put(x, device)",
    "on_device_size_in_bytes": "x.nbytes, of the whole array",
    "aval": "ts.typeof(x)",
    "weak_type": "nothing: no dtype is weak",
    "full_tensor": "ts.device_get(x)",
    "to_local": "x.addressable_shards[i].data",
    "redistribute": "ts.device_put(x, sharding)",
    "placements": "x.sharding",
    "device_mesh": "x.sharding.mesh, of a NamedSharding",
}

# function -> an argument in JAX that does not change values -> why it has no effect here
WITHOUT_EFFECT: dict[str, dict[str, str]] = {
    "jit": {
        "keep_unused": "an argument that is not used costs nothing",
        "inline": "a jitted function is always inlined into another",
    },
    "device_put": {
        "donate": "memory is used again as soon as the last Array of it is gone",
        "may_alias": "a host value is always copied",
    },
}

# an argument in JAX -> its default there, with which a call means the same here
_DEFAULTS = {"impl": "threefry2x32", "concrete": False}

_OF_MATMUL = "x.to(dtype) of the operands or of the result"

# function -> an argument in JAX -> what to do here
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
    **{
        sharding: {"memory_kind": "ts.device_get(x) for values in the host's memory; a sharding names devices alone"}
        for sharding in ("NamedSharding", "SingleDeviceSharding", "PositionalSharding")
    },
    "vmap": {
        "in_dims": "in_axes=",
        "out_dims": "out_axes=",
        "randomness": "ts.random: one key for all, or one for each from ts.random.split(key, n)",
        "chunk_size": "torch.cat([ts.vmap(f)(part) for part in x.split(n)])",
    },
    "hessian": {"chunk_size": "ts.jacfwd(ts.jacrev(f), chunk_size=n)"},
    "checkpoint": {"concrete": "static_argnums= for arguments that are Python values"},
    "key": {"impl": "ts.random.key(seed): its hash is threefry2x32, the only one"},
    "wrap_key_data": {"impl": "ts.random.wrap_key_data(data): the hash is threefry2x32, the only one"},
    "shard_map": {
        "check_rep": "check_vma=, its name today",
        "auto": "axis_names={...}, the other axes of the mesh",
    },
    "choice": {"out_sharding": "ts.reshard(draw, sharding); inside of jit each device makes its own block"},
    "multinomial": {
        "out_sharding": "ts.reshard(draw, sharding); inside of jit each device makes its own block",
        "unroll": "nothing: the loop over the outcomes is one step of the program",
    },
    "dot": dict.fromkeys(("precision", "preferred_element_type"), _OF_MATMUL),
    "einsum": dict.fromkeys(("precision", "preferred_element_type", "optimize"), _OF_MATMUL),
}


def no_attribute(x: Any, name: str) -> NoReturn:
    """The `__getattr__` of arrays: raises AttributeError with a replacement for an attribute of `jax.Array`.

    Example:
        >>> no_attribute(torch.zeros(1), "astype")
        Traceback (most recent call last):
        AttributeError: 'Tensor' object has no attribute 'astype'
          try:  x.to(dtype)
    """
    instead = OF_ARRAYS.get(name, "")
    raise AttributeError(
        message(f"{type(x).__name__!r} object has no attribute {name!r}", try_=instead),
        name=None if instead else name,  # with a name Python suggests a similar one, in addition to the hint
        obj=None if instead else x,
    )


def names_of(module: str, known: Iterable[str]) -> Callable[[str], NoReturn]:
    """The `__getattr__` of a module: raises AttributeError with a replacement for a missing name."""

    def missing(name: str) -> NoReturn:
        short = module.replace("tinyshard", "ts")
        instead = NAMES[module].get(name) or (NAMES["tinyshard.lax"].get(name) if module == "tinyshard" else None)
        close = difflib.get_close_matches(name, list(known), n=3, cutoff=0.7)
        if name.startswith("__"):
            try_ = ""
        else:
            alike = " or ".join(f"{short}.{n}" for n in close)
            try_ = instead or _of_torch(name) or alike or f"dir({short}) for what is there"
        raise AttributeError(message(f"module {module!r} has no attribute {name!r}", try_=try_))

    return missing


def _of_torch(name: str) -> str:
    """The replacement of a name of torch; "" for any other name.

    Example:
        >>> _of_torch("einsum"), _of_torch("zeros"), _of_torch("float32"), _of_torch("result_type")
        ('torch.einsum, which works on Arrays', 'ts.array(torch.zeros(...))', 'torch.float32', 'torch.result_type')
    """
    own = name.rstrip("_")  # abs_ changes its argument, and abs does not
    if not hasattr(torch, own):
        return ""
    function, packet = getattr(torch, own), getattr(torch.ops.aten, own, None)
    if packet is None or isinstance(function, type | ModuleType):
        return f"torch.{own}"
    if any(torch.Tag.nondeterministic_seeded in getattr(packet, overload).tags for overload in packet.overloads()):
        return "a draw from a key: dir(ts.random)"
    if function in torch.overrides.get_overridable_functions()[torch]:
        return f"torch.{own}, which works on Arrays"
    results = [result for overload in packet.overloads() for result in getattr(packet, overload)._schema.returns]
    if any(str(result.type) != "Tensor" for result in results):
        return f"torch.{own}"
    return f"ts.array(torch.{own}(...))"


def check_others(function: Callable[..., Any], others: Mapping[str, Any]) -> None:
    """Raise DtypeError for arguments that a function or class does not take, except those without an effect.

    Args:
        function: the function that collects them as `others`.
        others: the arguments.
    """
    what = function.__name__
    for name, value in others.items():
        default = _DEFAULTS.get(name)
        is_default = value is None or (type(value) is type(default) and value == default)
        if name in WITHOUT_EFFECT.get(what, {}) or (is_default and name in ARGUMENTS.get(what, {})):
            continue
        known = [each for each in inspect.signature(function).parameters if each != "others"]
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.7)
        try_ = ARGUMENTS.get(what, {}).get(name) or (f"{close[0]}=" if close else "")
        rule = f"its arguments are {', '.join(known)}"
        raise DtypeError(f"{what} has no argument {name!r}", got=f"{name}={value!r}", rule=rule, try_=try_)
