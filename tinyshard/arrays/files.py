"""Trees in files: `save` and `load`. Each device writes and reads its own blocks.

The manifest `tinyshard.json` has the form of the tree, and for each tensor where its blocks are. The files beside it,
one for each device that has written, are safetensors.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_map

from tinyshard.arrays import saved_tree
from tinyshard.arrays.array import Array
from tinyshard.arrays.file_transfer import read, shared_out, write
from tinyshard.arrays.manifest import SavedTensor, is_own, opened, write_manifest
from tinyshard.arrays.placement import as_sharding, as_tensor
from tinyshard.arrays.transfer import check_devices, check_devices_exist
from tinyshard.core.device_dtypes import check_holdable
from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError, ShardingError, TracedValueError
from tinyshard.core.layout import Layout
from tinyshard.core.leaves import is_opaque_leaf
from tinyshard.core.replaced_folder import present, replacing
from tinyshard.core.safetensors import NAMES, REALS
from tinyshard.core.stored_blocks import read_block
from tinyshard.core.thread_state import is_tracing
from tinyshard.runtime import lifecycle
from tinyshard.sharding import Sharding, SingleDeviceSharding
from tinyshard.sharding.axis_types import AxisType
from tinyshard.sharding.mesh import Mesh
from tinyshard.sharding.prefix import map_with


def save(tree: Any, folder: str | os.PathLike[str]) -> None:
    """Write a tree into a folder. Each device writes its blocks; a block on several devices is written by one of them.

    Waits until everything is on disk. The files are written beside the folder, which is then replaced atomically: if
    the controller or a worker is killed in between, the tree that was saved before stays intact.

    Args:
        tree: Arrays, torch tensors, NumPy arrays, keys of `ts.random`, Python numbers, strings, dtypes and None, in
            dicts, lists, tuples, namedtuples, and registered containers, as dataclasses that were passed to
            `torch.utils._pytree.register_dataclass`.
        folder: a new or empty folder, or one that was saved before. Devices on several machines need a shared folder.

    Raises:
        FileError: the folder contains other files; or it cannot be written, as on a full disk.
        DtypeError: the tree has a leaf that cannot be written.
        TracedValueError: inside of a trace or a transformation, where there are no values yet.
        RemoteError, DeviceLostError: a value could not be computed.

    Communication: none between devices, and no values to the controller: from each device to its own file.

    The files are in the safetensors format, as torch.distributed.checkpoint's HuggingFaceStorageWriter writes them: a
    header in JSON that names the blocks, and their bytes. Each device writes its file independently, no file
    is pickled, and Hugging Face's `safetensors` opens each. (The other format of torch.distributed.checkpoint has one
    pickle with the metadata of all ranks.) So torch's HuggingFaceStorageReader reads the folder, and
    `consolidate_safetensors_files` makes one file of whole tensors of it; tensors are named by their path,
    "layers.0.weight". The manifest `tinyshard.json` has what the format lacks: the containers, the shardings, a
    checksum of each MiB. Complex values are stored as pairs of reals, for which the format has names.

    In JAX: `orbax.checkpoint`.

    Example:
        >>> import tempfile
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> x = ts.device_put(torch.arange(8.0), ts.NamedSharding(ts.make_mesh(4, "i"), ts.P("i")))
        >>> folder = os.path.join(tempfile.mkdtemp(), "step-1")
        >>> ts.save({"x": x, "step": 1}, folder)
        >>> sorted(os.listdir(folder))[:2]
        ['device-0.safetensors', 'device-1.safetensors']
        >>> ts.load(folder)
        {'x': Array([0., 1., 2., 3., 4., 5., 6., 7.], dtype=float32), 'step': 1}
    """
    if is_tracing() or torch._C._functorch.maybe_current_level() is not None:
        raise TracedValueError(
            "a tree is saved outside of traces and transformations",
            got="ts.save where values are traced",
            rule="inside there are no values yet",
            try_="ts.save(tree, folder), of what the function returns",
        )
    form, leaves = saved_tree.written(tree)
    tensors = {name: x if isinstance(x, Array) else _host_tensor(x) for name, x in leaves.items()}
    for name, x in tensors.items():
        if x.dtype not in NAMES and x.dtype not in REALS:
            rule = "files in the safetensors format hold " + ", ".join(str(d) for d in [*NAMES, *REALS])
            raise DtypeError("a tensor cannot be saved", got=f"{x.dtype} at {name!r}", rule=rule)
    with replacing(Path(folder), is_own) as new_folder:
        write_manifest(new_folder, form, tensors, write(shared_out(tensors), new_folder))


def _host_tensor(x: Any) -> torch.Tensor:
    """The manifest's entry of a tensor of this process, or of a NumPy array."""
    if not isinstance(x, torch.Tensor):
        return as_tensor(x)
    check_holdable(x)
    return x


def load(folder: str | os.PathLike[str], shardings: Any = None) -> Any:
    """Read a tree from a folder. Each device reads its blocks, whichever devices wrote them.

    Waits until everything is read, so errors are raised here, and the result does not depend on the folder.

    Args:
        folder: a folder that `save` has written. Also a folder, or a file, of safetensors, whole or in blocks, that
            another program has written, as torch.distributed.checkpoint's HuggingFaceStorageWriter, or from Hugging
            Face's hub: then the tree is a dict of Arrays by name.
        shardings: of the tensors: a Sharding, a Device, with `set_mesh` a PartitionSpec, or a tree of these that is a
            prefix of the saved one. None, for all or in place of one: as it was saved, an Array on devices of the same
            numbers, a torch tensor or NumPy array in this process; a tensor of another program's file on the default
            device, uncommitted.

    Returns:
        The tree: the same containers, dtypes and values. Arrays are committed as they were; those with a sharding here
        are committed to it.

    Raises:
        FileError: a file is missing, cut, or damaged; it names the file.
        ShardingError: a sharding does not fit; or a tensor was saved on devices that do not exist, and no sharding is
            passed.

    Communication: none between devices: each reads from mapped memory the bytes of its own blocks, rounded to the MiB
    of a checksum.

    In JAX: `orbax.checkpoint`.

    Example:
        >>> import tempfile
        >>> import tinyshard as ts
        >>> ts.init(devices=4, runtime="local")
        >>> rows = ts.NamedSharding(ts.make_mesh(4, "i"), ts.P("i"))
        >>> folder = os.path.join(tempfile.mkdtemp(), "step-1")
        >>> ts.save({"x": ts.device_put(torch.ones(8, 4), rows), "step": 1}, folder)
        >>> columns = ts.NamedSharding(ts.make_mesh(2, "j"), ts.P(None, "j"))
        >>> ts.load(folder, columns)["x"].addressable_shards[1]
        Shard(device=CPU 1, index=(slice(None, None, None), slice(2, 4, None)), replica_id=0)
    """
    tree, tensors = opened(present(Path(folder)))
    problem = "load's shardings do not fit the saved tree"
    tree = map_with(problem, _placed, tree, shardings, is_opaque_leaf)
    read([t for t in tensors if t.layout is not None])
    for t in tensors:
        if t.layout is None:
            t.value = read_block(t.name, t.parts((slice(None),) * len(t.shape)), t.shape, t.dtype)
    return tree_map(lambda x: _finished(x) if isinstance(x, SavedTensor) else x, tree)


def _placed(leaf: Any, entry: Any) -> Any:
    """Note the placement of a leaf."""
    if is_opaque_leaf(leaf):
        return leaf._placed(_place, entry if entry is None else as_sharding(entry))
    if isinstance(leaf, SavedTensor):
        return _place(leaf, entry if entry is None else as_sharding(entry))
    return leaf


def _place(t: SavedTensor, sharding: Sharding | None) -> SavedTensor:
    runtime = lifecycle.current()
    if sharding is not None:
        check_devices_exist(sharding, runtime)
        t.sharding, t.layout = sharding, sharding.checked_layout(t.shape)
    elif t.about is None:
        t.sharding, t.committed = SingleDeviceSharding(runtime.devices[0]), False
        t.layout = t.sharding.layout(len(t.shape))
    elif "devices" in t.about:
        dims = tuple(map(tuple, t.about["dims"]))
        platform = runtime.devices[0].platform
        t.layout = Layout(tuple(t.about["devices"]), tuple(t.about["axes"]), dims, platform)
        t.committed = t.about["committed"]
        devices = [Device(d, platform) for d in t.layout.devices]
        try:
            check_devices(devices, runtime)
        except ShardingError as error:
            raise ShardingError(
                f"{t.name!r} was saved on devices that are not there",
                got=f"it was on {len(devices)} devices, and {len(runtime.devices)} are there",
                rule="without a sharding a tree is loaded onto the devices that it was saved on",
                try_="ts.load(folder, sharding), or a tree of shardings, for the devices that are there;\n"
                f"ts.init(devices={max(t.layout.devices) + 1})",
            ) from error
        if "mesh" in t.about:
            mesh = t.about["mesh"]
            types = tuple(AxisType[name] for name in mesh["types"])
            t.mesh = Mesh(np.array(devices, dtype=object).reshape(mesh["sizes"]), mesh["names"], types)
    return t


def _finished(t: SavedTensor) -> Any:
    """The leaf of the loaded tree for a saved tensor."""
    about = t.about or {}
    if t.as_array and t.layout is None:
        return t.value.numpy() if t.shape else t.value.numpy()[()]
    if about.get("is_parameter"):
        if t.layout is None:
            return torch.nn.Parameter(t.value, about.get("requires_grad", False))
        t.value._is_param = True
    return t.value.requires_grad_() if about.get("requires_grad") else t.value
