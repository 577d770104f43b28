"""The ops that tinyshard defines, each with its rules (`tinyshard.core.primitive`).

collective           a collective over a named axis
manual_region        code that every device runs on its own shard: its graph, its shapes, its place in a program
scan                 a loop with one traced body: its graph, and the number of rounds
branching            a while loop, and branches: control flow that depends on a value
call                 a function whose gradient is not that of its ops: checkpoint, custom_vjp, custom_jvp
name                 a value under a name, for a policy of checkpoint
effects              a function that the controller calls with values while the program runs, as to print them
varying              whether its results are the same along the axes that out_specs leave out
random_bits          the op that draws: it takes a key and a shape, and makes each element from its own counter
sharded_draws        draws on many devices: each makes its own block, in the layout of the first consumer
threefry             Threefry-2x32: a key and a counter give two random words
floats               uniform and normal floats from random bits
compiled_draws       the same in numba
legacy_threefry      JAX's original counters, `threefry_partitionable` False
"""
