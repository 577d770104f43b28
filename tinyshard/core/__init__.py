"""Plain frozen data and arithmetic on it, which everything else uses. No processes, no torch.distributed.

errors       every error that tinyshard raises, and the four-part form of their texts
config       flags that change what programs do
devices      Device: a slot for shards
layout       Layout: where each block of a tensor is; every sharding reduces to one
types        shape and dtype of a value, and its bytes
program      Program, Eqn, Value, Builder: the steps that every device runs on its own shard
collectives  the meaning of each collective, as a function of the shards of a group; one row each
axis_names   the names of mapped axes in scope
trace_thread  traces and plans in their own thread, and Ctrl-C during them
thread_state  the trace in progress in this thread; torch's modes, levels and keys; what a trace changes elsewhere
frames       the frames of a thread: which functions call
users_code   which lines are the user's, and the IPython shell that runs them
users_line   the user's line that calls, or that an error was raised in
page         what a notebook shows: HTML with its style, and what is drawn there and printed elsewhere
activity     what the controller does: a line below a notebook's cell if it takes long, a span of a profile
tracebacks   what of an uncaught error is shown: the user's own lines
primitive    an op of tinyshard's own with all its rules: the base of `tinyshard/primitives/`
evaluate     the one walk over a traced graph, and what interprets it
leaves       where trees differ from torch's: a key is a leaf, and None an empty tree
ints         ints as users write them
cache        a cache of the most recently used entries, and its keys; devices drop the programs of dropped entries
tree         `ts.tree`: torch's pytrees under JAX's names
safetensors  a format of files: a JSON header, and the bytes of tensors
stored_blocks  blocks of tensors in such files, with a checksum for each piece
replaced_folder  a folder that is replaced atomically
registration  the user's classes as trees
device_dtypes which tensors a device can hold
effects      what a program asks the controller to do while it runs, as to print
named_scopes names of blocks of code, which the user's lines say
jax_hints    what to use in place of a name that JAX has and tinyshard has not
collector    Python's garbage collector, paused while much is imported, and while a function is traced
"""
