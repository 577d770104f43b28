"""The manifest of a saved tree: the tree's form, and for each tensor its type and where its blocks are.

A folder written by another program does not have one: then the headers of its files say where the blocks are.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from tinyshard.arrays import saved_tree
from tinyshard.arrays.array import Array
from tinyshard.arrays.transfer import overlap
from tinyshard.core.errors import FileError
from tinyshard.core.layout import Layout
from tinyshard.core.replaced_folder import sync
from tinyshard.core.safetensors import REALS, SUFFIX, Stored, read_head
from tinyshard.core.stored_blocks import Part
from tinyshard.sharding import Sharding
from tinyshard.sharding.mesh import Mesh

MANIFEST = "tinyshard.json"
_FORMAT = 1


@dataclass(slots=True, eq=False)
class SavedTensor:
    """A tensor in files: a leaf of the tree, from which the value will be made.

    Attributes:
        name: its name.
        shape, dtype: of the whole.
        blocks: each with its file and its checksums.
        about: its entry in the manifest; None without a manifest.
        as_array: whether it should become a NumPy array.
        sharding, layout, mesh, committed: its placement; a layout of None means this process.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: Sequence[tuple[str, Stored, tuple[int, ...] | None]]
    about: dict[str, Any] | None = None
    as_array: bool = False
    sharding: Sharding | None = None
    layout: Layout | None = None
    mesh: Mesh | None = None
    committed: bool = True
    value: Any = field(default=None)

    def parts(self, index: tuple[slice, ...]) -> list[Part]:
        """The reads for these slices of the whole."""
        found = []
        for path, stored, checksums in self.blocks:
            at = zip(stored.offsets, stored.shape, self.shape, strict=False)  # pairs of reals have one more dim
            cut, place = overlap(tuple(slice(o, o + n) for o, n, _ in at), index, self.shape)
            if cut is not None:
                found.append(Part(path, stored, checksums, cut, place))
        return found


def is_own(path: Path) -> bool:
    """Whether a file belongs to a saved tree."""
    return path.name == MANIFEST or path.suffix == SUFFIX


def _checksum(contents: Any) -> int:
    return zlib.crc32(json.dumps(contents, sort_keys=True).encode())


def _about(x: torch.Tensor) -> dict[str, Any]:
    """The manifest's entry of a tensor: the kind and placement of the value to restore."""
    about: dict[str, Any] = {"dtype": str(x.dtype).removeprefix("torch."), "shape": list(x.shape)}
    if x.requires_grad:
        about["requires_grad"] = True
    if isinstance(x, torch.nn.Parameter) or getattr(x, "_is_param", False):
        about["is_parameter"] = True
    if isinstance(x, Array):
        layout, mesh = x.layout_of_shards, x._mesh
        about["devices"], about["axes"], about["dims"] = layout.devices, layout.axes, layout.dims
        about["committed"] = x.committed
        if mesh is not None and mesh.device_ids == layout.devices:
            types = [each.name for each in mesh.axis_types]
            about["mesh"] = {"sizes": mesh.axis_sizes, "names": mesh.axis_names, "types": types}
    return about


def write_manifest(
    folder: Path, form: Any, tensors: dict[str, torch.Tensor], blocks: dict[str, list[dict[str, Any]]]
) -> None:
    """Write the manifest, and flush it to disk.

    Args:
        folder: of the files.
        form: of the tree, from `saved_tree.written`.
        tensors: by name.
        blocks: by name, from `file_transfer.write`.
    """
    described = {name: {**_about(x), "blocks": blocks.get(name, [])} for name, x in tensors.items()}
    contents = {"format": _FORMAT, "tree": form, "tensors": described}
    with open(folder / MANIFEST, "w", encoding="utf-8") as file:
        json.dump({"checksum": _checksum(contents), "contents": contents}, file)
        file.flush()
        os.fsync(file.fileno())
    sync(folder)


def opened(folder: Path) -> tuple[Any, list[SavedTensor]]:
    """The tree, with a `SavedTensor` for each tensor; and all of these."""
    path = folder / MANIFEST
    if not path.exists():
        return _of_others(folder)
    try:
        manifest = json.loads(path.read_text("utf-8"))
        contents = manifest["contents"]
        if _checksum(contents) != manifest["checksum"]:
            raise ValueError("its checksum is another")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            "the manifest of a saved tree is damaged",
            got=f"{path}: {error}",
            rule="nothing of the tree is used: it says where everything is",
            try_="another copy of it, or a tree that was saved before;\n"
            f"without {MANIFEST} the folder is read as a dict of tensors by name, without checks",
        ) from error
    if contents["format"] != _FORMAT:
        got = f"{path}: format {contents['format']}"
        raise FileError("a newer tinyshard has saved this tree", got=got, rule=f"this one reads {_FORMAT}")
    tensors = {}
    for name, about in contents["tensors"].items():
        dtype = getattr(torch, about["dtype"])
        blocks = [
            (
                str(folder / b["file"]),
                Stored(b["start"], REALS.get(dtype, dtype), tuple(b["shape"]), tuple(b["offsets"])),
                tuple(b["checksums"]),
            )
            for b in about["blocks"]
        ]
        tensors[name] = SavedTensor(name, tuple(about["shape"]), dtype, blocks, about)
    _check_there(
        {path: max(s.stop for p, s, _ in t.blocks if p == path) for t in tensors.values() for path, _, _ in t.blocks}
    )

    def as_array(name: str) -> SavedTensor:
        tensors[name].as_array = True
        return tensors[name]

    return saved_tree.read(contents["tree"], tensors.__getitem__, as_array), list(tensors.values())


def _check_there(ends: dict[str, int]) -> None:
    """Raise FileError for a file that is missing, or shorter than its blocks; takes the end of the last one by path."""
    for path, end in ends.items():
        nbytes = os.path.getsize(path) if os.path.exists(path) else None
        if nbytes is None or nbytes < end:
            raise FileError(
                f"a file of a saved tree is {'missing' if nbytes is None else 'cut'}",
                got=path if nbytes is None else f"{path}: {nbytes} bytes of {end}",
                rule="a tree is read from all files of its folder",
                try_="the whole folder, or another copy of it",
            )


def _of_others(folder: Path) -> tuple[dict[str, SavedTensor], list[SavedTensor]]:
    """The tensors of another program's files, whole or in blocks."""
    files = [folder] if folder.is_file() else sorted(folder.glob(f"*{SUFFIX}"))
    if not files:
        problem = "there is no such folder" if not folder.exists() else "the folder holds no saved tree"
        got = f"{folder}" + ("" if not folder.exists() else f", without {MANIFEST} and {SUFFIX} files")
        raise FileError(problem, got=got, try_="the folder that ts.save was given")
    blocks: dict[str, list[tuple[str, Stored, None]]] = {}
    for path in files:
        for name, stored in read_head(str(path)).items():
            blocks.setdefault(name, []).append((str(path), stored, None))
    tensors = {}
    for name, own in blocks.items():
        ends = [tuple(o + n for o, n in zip(s.offsets, s.shape, strict=True)) for _, s, _ in own]
        shape = tuple(max(sizes) for sizes in zip(*ends, strict=True))
        there = sum(torch.Size(s.shape).numel() for _, s, _ in own)
        if there != torch.Size(shape).numel():
            raise FileError(
                "files of a saved tree are missing, or some are there twice",
                got=f"{there} elements of {name!r}, whose shape is {shape}, in {', '.join(p for p, _, _ in own[:4])}",
                try_="the whole folder, and nothing else in it",
            )
        tensors[name] = SavedTensor(name, shape, own[0][1].dtype, list(own))
    return tensors, list(tensors.values())
