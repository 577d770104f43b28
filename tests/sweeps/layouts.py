"""Where the sweeps put their operands: meshes of the same eight devices, and the specs that cut a shape evenly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

import tinyshard as ts

# a name for each axis of each mesh: no two meshes share one, so that a spec says which mesh it is for
AXES: dict[tuple[int, ...], tuple[str, ...]] = {
    (4, 2): ("a", "b"),
    (2, 4): ("p", "q"),
    (8,): ("n",),
    (2, 2, 2): ("x", "y", "z"),
}

Choose = Callable[[Sequence[Any]], Any]


def mesh_of(sizes: tuple[int, ...]) -> ts.Mesh:
    """The mesh of these sizes over all eight devices."""
    return ts.make_mesh(sizes, AXES[sizes])


def random_spec(choose: Choose, sizes: tuple[int, ...], shape: Sequence[int]) -> ts.P:
    """A spec that cuts the shape evenly: each axis, in any order, goes to a dim that it can still cut, or to none."""
    cuts: list[list[str]] = [[] for _ in shape]
    parts = [1] * len(shape)
    axes = list(zip(AXES[sizes], sizes, strict=True))
    for name, size in choose(list(itertools.permutations(axes))):
        fitting = [d for d, n in enumerate(shape) if n % (parts[d] * size) == 0]
        chosen = choose([*fitting, None])
        if chosen is not None:
            cuts[chosen].append(name)
            parts[chosen] *= size
    return ts.P(*(tuple(cut) or None for cut in cuts))


def every_spec(sizes: tuple[int, ...], shape: Sequence[int]) -> list[ts.P]:
    """All specs of a mesh that cut the shape evenly: each axis on one dim or on none, those of a dim in any order."""
    size = dict(zip(AXES[sizes], sizes, strict=True))
    names = tuple(size)
    entries = [cut for k in range(len(names) + 1) for cut in itertools.permutations(names, k)]
    found = []
    for cuts in itertools.product(entries, repeat=len(shape)):
        used = [name for cut in cuts for name in cut]
        is_even = all(n % math.prod(size[name] for name in cut) == 0 for n, cut in zip(shape, cuts, strict=True))
        if is_even and len(used) == len(set(used)):
            found.append(ts.P(*(cut or None for cut in cuts)))
    return found


def scattered(choose: Choose, tree: Any) -> Any:
    """The tensors of a tree on all devices, each with a random spec on one random mesh.

    Args:
        choose: picks one of a sequence.
        tree: plain tensors.

    Returns:
        The same tree of Arrays.
    """
    sizes = choose(list(AXES))
    mesh = mesh_of(sizes)

    def put(x: Tensor) -> Tensor:
        return ts.device_put(x, ts.NamedSharding(mesh, random_spec(choose, sizes, x.shape)))

    return tree_map_only(Tensor, put, tree)


def described(tree: Any) -> str:
    """The mesh and the specs of a tree of Arrays, to repeat a failure with."""
    seen: list[str] = []
    mesh: dict[str, int] = {}

    def add(x: ts.Array) -> None:
        sharding = x.sharding
        assert isinstance(sharding, ts.NamedSharding)
        mesh.update(sharding.mesh.shape)
        seen.append(f"{tuple(x.shape)} {sharding.spec!r}")

    tree_map_only(ts.Array, add, tree)
    return f"mesh {mesh}: " + ", ".join(seen)
