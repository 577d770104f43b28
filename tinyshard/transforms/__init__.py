"""Functions of functions.

jit           traced once for each signature, partitioned once for each layout of the operands, then called; make_graph
jitted        Jitted: from a call of the function to the call of its program
jit_autodiff  a jitted function as one op of a transformation: its gradient, tangent and vmapped form
vmap          a function of one example becomes a function of many
mapped_function the base of pmap and shard_map: a function of one shard that every device runs on its own shard
pmap          one row of the arguments for each device
shard_map     one block of the arguments for each device of a mesh
manual_region_rules  such a function as one op on whole tensors, with its rules
bodies        functions that become the body of a loop, traced once
part_of_mesh  such a function for a part of its mesh's axes: along the others its graph is partitioned
scan_rules    a scan as one op, with its rules
while_rules   a while loop as one op, with its rules
branch_rules  branches as one op, with its rules
partitioned_bodies  the layouts of a carry, and a body as a program
axes          in_axes and out_axes, checked against the arguments
autodiff      grad value_and_grad vjp jvp
jacobians     jacfwd jacrev hessian
called        the base of the next three: a function that becomes one op wherever it is called
checkpoint    checkpoint checkpoint_name; checkpoint_policies says which values are saved even so
custom_vjp    a function whose gradient the user defines
custom_jvp    a function whose tangent the user defines; custom has their common part
linearize     linearize linear_transpose
call_rules    such a function as one op, with its rules
recomputed    derivatives that compute a function again
cutting       a function cut in two: a part that saves values, and a part that takes them
tangents      numbers and NumPy arrays as tensors, and tangents that fit their values
"""
