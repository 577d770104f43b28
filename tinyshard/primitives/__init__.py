"""The ops of tinyshard's own, each with its rules: what it computes, its shapes, its gradient, its vmapped form.

collective           a collective over a named axis
constraint           where a value is to be placed
manual_region        code that every device runs on its own shard, as one op on whole tensors
manual_region_rules  its gradient, its tangent and its vmapped form, each a manual region again
inlining             its graph, written into a program
varying              whether its results are the same along the axes that out_specs leave out
random_bits          the op that draws: a key and a shape go in, each element is made of its own counter
threefry             Threefry-2x32: a key and a counter give two random words
floats               random bits made into uniform and normal floats
compiled_draws       the same in numba
original_counting    JAX's original way of counting, `threefry_partitionable` False
deferred             fills and random draws, made in the layout of their first consumer
"""
