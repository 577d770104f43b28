"""Functions mapped over an axis: over examples (`vmap`), or over devices (`pmap`, `shard_map`).

vectorized      vmap
over_devices    pmap, shard_map: what is cut, and how the results lie
region          the per-device function as one op of the global one
derived         the region's gradient, tangent and vmapped form, each a region again
splice          the region's steps, written into a program
"""
