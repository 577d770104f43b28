"""Trees: nested lists, tuples, dicts and dataclasses of leaves. These are torch's pytrees under JAX's names."""

from torch.utils._pytree import tree_flatten as flatten
from torch.utils._pytree import tree_leaves as leaves
from torch.utils._pytree import tree_map as map
from torch.utils._pytree import tree_structure as structure
from torch.utils._pytree import tree_unflatten as unflatten

__all__ = ["flatten", "leaves", "map", "structure", "unflatten"]
