"""From one op on whole tensors to steps on shards.

partitioner      an op, written into a program: its plan, the exchanges before it, the op on shards
strategy         which plan an op gets
plan             the layout that each operand must have, and the layout of each result
batches          a plan for ops that compute each item of a batch alone
on_meta          the shapes and dtypes that an op makes
op_table         what tinyshard itself knows of torch's ops: tables
decompositions   ops written in other ops that can be partitioned: two tables
dtensor          a plan by DTensor's rule; every touch of torch's internal API for it
verified         which of these rules the sweep has found right; written by `python -m tests.sweeps.verify`
deferred         fills, and what is computed from them alone, made in the layout of their first consumer
reshard          from one layout to another over the same devices, cheapest exchanges first
whole_blocks     cat and split along a sharded dim
"""
