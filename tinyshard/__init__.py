"""tinyshard: JAX's style of parallel computing for torch users, on eight devices that are processes of a laptop.

    devices, meshes     init shutdown devices local_devices device_count Device · Mesh make_mesh AbstractMesh set_mesh
    explicit axes       AxisType get_mesh get_abstract_mesh reshard · out_sharding= of lax.dot lax.einsum lax.reshape
    where arrays live   P PartitionSpec NamedSharding SingleDeviceSharding sharding.PositionalSharding shardings
    arrays              Array device_put device_get array block_until_ready live_arrays
                        make_array_from_callback, _single_device_arrays, _process_local_data; x.at[i].set(v)
    files               save load
    programs            jit make_graph make_jaxpr typeof ShapeDtypeStruct collectives_in clear_caches config
                        lax.with_sharding_constraint
    mapped functions    vmap pmap shard_map
    collectives         lax.psum pmean pmax pmin all_gather psum_scatter all_to_all pswapaxes ppermute pshuffle
                        lax.ragged_all_to_all lax.axis_index axis_size
    loops, branches     lax.scan fori_loop while_loop map associative_scan cond switch
    random numbers      random.key random.split random.fold_in random.uniform random.normal ...
    training            random.functional optim.functional optim.clip_by_global_norm
    derivatives         grad value_and_grad vjp jvp linearize linear_transpose jacfwd jacrev jacobian hessian
                        custom_vjp custom_jvp lax.stop_gradient; checkpoint remat checkpoint_name checkpoint_policies
    shapes, settings    eval_shape · threefry_partitionable default_device disable_jit
    processes           process_index process_count local_device_count default_backend
    pictures            debug.visualize_array_sharding debug.visualize_sharding; debug.rule
    what ran            profiler.trace: a timeline, tables, a file for Perfetto · named_scope named_call
    inside a program    debug.print debug.callback debug.inspect_array_sharding debug_nans
    trees               tree.map tree.leaves tree.structure ...
    meshes by shape     mesh_utils.create_device_mesh
    errors              errors.ShardingError errors.MappingError ...

The folders, each importing from those before it; the `__init__` of each is its contents page:

    core        plain data: devices, layouts, programs, collectives, errors
    draw        pictures of layouts
    runtime     runs programs on worker processes, or in this process
    sharding    descriptions of where an array is
    partition   from an op on whole tensors to steps on shards
    arrays      Array, and putting values on devices
    compile     from a function to an executable
    dispatch    ops on Arrays outside of jit
    primitives  collectives, constraints, manual regions, random bits, each as one op with its rules
    transforms  jit, vmap, pmap, shard_map, grad
    lax         the public collectives
    random      keys and distributions
    optim       torch's optimizers as functions
    profiler    what ran, on each device and in the controller

`README.md` beside this file follows three calls through them, file by file.

torch's functions and methods work on Arrays. Your own container is a tree after
`torch.utils._pytree.register_pytree_node`. The error for a missing JAX name says what to use in its place.
"""

import sys as _sys

# workers are forked from a process that has torch loaded; it is started first, so that both load torch in parallel
from tinyshard.runtime.launch import forkserver as _fork_server  # isort: skip

_fork_server.prestart()

from tinyshard.core import collector as _collector  # isort: skip

with _collector.paused_for_imports():
    __import__("torch")

from tinyshard import debug, lax, optim, profiler, random, sharding
from tinyshard.arrays import at as _at
from tinyshard.arrays.abstract import ShapeDtypeStruct, typeof
from tinyshard.arrays.array import Array
from tinyshard.arrays.files import load, save
from tinyshard.arrays.from_parts import (
    make_array_from_callback,
    make_array_from_process_local_data,
    make_array_from_single_device_arrays,
)
from tinyshard.arrays.function_overrides import inside_torch as _inside_torch
from tinyshard.arrays.function_overrides import replaced as _replaced
from tinyshard.arrays.live import live_arrays
from tinyshard.arrays.placement import array, block_until_ready, device_get, device_put
from tinyshard.arrays.placement import saved_array as saved_array  # the name in files of torch.save
from tinyshard.arrays.shard import Shard
from tinyshard.compile import cond as _cond
from tinyshard.compile import intercept as _intercept
from tinyshard.compile.compiled import collectives_in
from tinyshard.core import config, errors, tracebacks, tree
from tinyshard.core.config import debug_nans
from tinyshard.core.devices import Device
from tinyshard.core.errors import (
    AxisNameError,
    CancelledError,
    CollectiveTimeoutError,
    DeviceLostError,
    DtypeError,
    FileError,
    ImmutableError,
    MappingError,
    MeshError,
    NotANumberError,
    OutOfMemoryError,
    RemoteError,
    RuntimeStateError,
    ShardingError,
    StatefulRandomError,
    StaticArgumentError,
    TinyshardError,
)
from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.core.named_scopes import named_call, named_scope
from tinyshard.lax.constraint import reshard
from tinyshard.runtime import lifecycle as platform
from tinyshard.runtime.lifecycle import device_count, devices, init, local_devices, shutdown
from tinyshard.runtime.processes import default_backend, local_device_count, process_count, process_index
from tinyshard.sharding import NamedSharding, P, PartitionSpec, Sharding, SingleDeviceSharding, mesh_utils
from tinyshard.sharding.axis_types import AxisType
from tinyshard.sharding.contexts import default_device, disable_jit, threefry_partitionable
from tinyshard.sharding.current import get_abstract_mesh, get_mesh
from tinyshard.sharding.mesh import AbstractMesh, Mesh, make_mesh, set_mesh
from tinyshard.sharding.of_module import shardings
from tinyshard.transforms import checkpoint as _checkpoint
from tinyshard.transforms import checkpoint_policies
from tinyshard.transforms.autodiff import grad, jvp, value_and_grad, vjp
from tinyshard.transforms.checkpoint import checkpoint, checkpoint_name
from tinyshard.transforms.custom_jvp import custom_jvp
from tinyshard.transforms.custom_vjp import custom_vjp
from tinyshard.transforms.jacobians import hessian, jacfwd, jacobian, jacrev
from tinyshard.transforms.jit import clear_caches, eval_shape, jit, make_graph, make_jaxpr
from tinyshard.transforms.linearize import linear_transpose, linearize
from tinyshard.transforms.pmap import pmap
from tinyshard.transforms.shard_map import shard_map
from tinyshard.transforms.vmap import vmap

_replaced.install(
    [
        *_replaced.REPLACED,
        *_inside_torch.REPLACED,
        *_intercept.REPLACED,
        *_cond.REPLACED,
        *_at.REPLACED,
        *_checkpoint.REPLACED,
    ]
)

remat = checkpoint

# Public modules inside folders can be imported by their public names too: `from tinyshard.tree import map`.
_sys.modules.update(
    {
        "tinyshard.checkpoint_policies": checkpoint_policies,
        "tinyshard.config": config,
        "tinyshard.errors": errors,
        "tinyshard.mesh_utils": mesh_utils,
        "tinyshard.platform": platform,
        "tinyshard.tree": tree,
    }
)

tracebacks.install()

__version__ = "0.1.0"

__all__ = [
    "AbstractMesh",
    "Array",
    "AxisNameError",
    "AxisType",
    "CancelledError",
    "CollectiveTimeoutError",
    "Device",
    "DeviceLostError",
    "DtypeError",
    "FileError",
    "ImmutableError",
    "MappingError",
    "Mesh",
    "MeshError",
    "NamedSharding",
    "NotANumberError",
    "OutOfMemoryError",
    "P",
    "PartitionSpec",
    "RemoteError",
    "RuntimeStateError",
    "ShapeDtypeStruct",
    "Shard",
    "Sharding",
    "ShardingError",
    "SingleDeviceSharding",
    "StatefulRandomError",
    "StaticArgumentError",
    "TinyshardError",
    "array",
    "block_until_ready",
    "checkpoint",
    "checkpoint_name",
    "checkpoint_policies",
    "clear_caches",
    "collectives_in",
    "config",
    "custom_jvp",
    "custom_vjp",
    "debug",
    "debug_nans",
    "default_backend",
    "default_device",
    "device_count",
    "device_get",
    "device_put",
    "devices",
    "disable_jit",
    "eval_shape",
    "get_abstract_mesh",
    "get_mesh",
    "grad",
    "hessian",
    "init",
    "jacfwd",
    "jacobian",
    "jacrev",
    "jit",
    "jvp",
    "lax",
    "linear_transpose",
    "linearize",
    "live_arrays",
    "load",
    "local_device_count",
    "local_devices",
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
    "make_graph",
    "make_jaxpr",
    "make_mesh",
    "mesh_utils",
    "named_call",
    "named_scope",
    "optim",
    "pmap",
    "process_count",
    "process_index",
    "profiler",
    "random",
    "remat",
    "reshard",
    "save",
    "set_mesh",
    "shard_map",
    "sharding",
    "shardings",
    "shutdown",
    "threefry_partitionable",
    "tree",
    "typeof",
    "value_and_grad",
    "vjp",
    "vmap",
]

__getattr__ = _names_of(__name__, __all__)
