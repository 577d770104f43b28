"""The modules whose names users write."""

from types import ModuleType

import tinyshard as ts

MODULES: dict[str, ModuleType] = {
    "ts": ts,
    "ts.checkpoint_policies": ts.checkpoint_policies,
    "ts.config": ts.config,
    "ts.debug": ts.debug,
    "ts.errors": ts.errors,
    "ts.lax": ts.lax,
    "ts.mesh_utils": ts.mesh_utils,
    "ts.optim": ts.optim,
    "ts.profiler": ts.profiler,
    "ts.random": ts.random,
    "ts.sharding": ts.sharding,
    "ts.tree": ts.tree,
}
