"""Arrays: tensors whose shards live on devices, and how values get there and back.

array          Array: shape, dtype and sharding are known at once, values are a future
shard          Shard: what one device holds of an Array
placement      device_put, device_get, array, block_until_ready
gathering      the values of Arrays as plain tensors
constraint     where a value is to be placed, as one op with its rules
transfer       a tensor to devices, an Array from one layout to another
abstract       ShapeDtypeStruct, typeof: values that are only described
live           live_arrays: which Arrays are alive, and the memory that they take
refusals       what an Array cannot do that a tensor can: be changed, show its memory
views          which handles share memory in torch
strided        as_strided, which reads memory, on values
hidden_effects functions of torch that change an argument, or draw on the host, though their names do not say so
instead        functions of torch of which an Array needs another form
within_torch   functions inside of torch that its public ones call on Arrays
unchecked      functions of torch that read a value only to check it
"""
