"""Collectives over named axes, the same under vmap, pmap and shard_map; loops; sharding constraints.

reduce      psum pmean pmax pmin
gather      all_gather psum_scatter
exchange    all_to_all pswapaxes
ragged      ragged_all_to_all
permute     ppermute pshuffle
index       axis_index axis_size pcast
scan        scan
loops       fori_loop map
while_loop  while_loop
branches    cond switch
associative_scan  associative_scan
constraint  with_sharding_constraint; ts.reshard
out_sharding  dot einsum reshape: torch ops with an argument for the sharding of their result
dynamic_slice  dynamic_slice dynamic_slice_in_dim dynamic_index_in_dim dynamic_update_slice ...
stop_gradient  stop_gradient
operands    the arguments of collectives: axis names, groups, dims, trees

To gather or reduce to one device: `ts.device_put(x, ts.devices()[0])`.
"""

from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.lax.associative_scan import associative_scan
from tinyshard.lax.branches import cond, switch
from tinyshard.lax.constraint import with_sharding_constraint
from tinyshard.lax.dynamic_slice import (
    dynamic_index_in_dim,
    dynamic_slice,
    dynamic_slice_in_dim,
    dynamic_update_index_in_dim,
    dynamic_update_slice,
    dynamic_update_slice_in_dim,
)
from tinyshard.lax.exchange import all_to_all, pswapaxes
from tinyshard.lax.gather import all_gather, psum_scatter
from tinyshard.lax.index import axis_index, axis_size, pcast
from tinyshard.lax.loops import fori_loop, map
from tinyshard.lax.out_sharding import dot, einsum, reshape
from tinyshard.lax.permute import ppermute, pshuffle
from tinyshard.lax.ragged import ragged_all_to_all
from tinyshard.lax.reduce import pmax, pmean, pmin, psum
from tinyshard.lax.scan import scan
from tinyshard.lax.stop_gradient import stop_gradient
from tinyshard.lax.while_loop import while_loop

__all__ = [
    "all_gather",
    "all_to_all",
    "associative_scan",
    "axis_index",
    "axis_size",
    "cond",
    "dot",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "einsum",
    "fori_loop",
    "map",
    "pcast",
    "pmax",
    "pmean",
    "pmin",
    "ppermute",
    "pshuffle",
    "psum",
    "psum_scatter",
    "pswapaxes",
    "ragged_all_to_all",
    "reshape",
    "scan",
    "stop_gradient",
    "switch",
    "while_loop",
    "with_sharding_constraint",
]

__getattr__ = _names_of(__name__, __all__)
