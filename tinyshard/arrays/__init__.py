"""Arrays: tensors whose shards live on devices, and how values get there and back.

array          Array: shape, dtype and sharding are known at once, values are a future
shard          Shard: one device's block of an Array
placement      device_put, device_get, array, block_until_ready
gathering      the values of Arrays as plain tensors
constraint     where a value should be placed, as one op with its rules
at             x.at[index].set(values): a new array with some elements changed
index_place    the views and rows that the index of x.at selects
files          save, load: each device writes and reads its own blocks
manifest       which tensors a saved tree has, and where their blocks are
file_transfer  blocks between devices and files
saved_tree     the form of a tree as JSON
from_parts     one Array from values of single devices
transfer       moves a tensor to devices, an Array from one layout to another
abstract       ShapeDtypeStruct, typeof: values that are only described
explicit       how values are cut along explicit axes, as a part of their types
varying_types  along which axes the values of a shard_map may differ between devices
live           live_arrays: which Arrays are alive, and the memory that they take
refusals       what an Array cannot do that a tensor can: change in place, give access to its memory
views          which handles share memory in torch
function_overrides/   the replacements of torch functions and methods on Arrays: one table
"""
