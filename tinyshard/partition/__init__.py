"""From one op on whole tensors to steps on shards.

rule             how the dims of operands and results correspond, by factors: its text, and the check as it is made
rules            the rule of each op: tables
layouts          the layouts of an op's operands and results by its rule: one procedure for all ops
plan             the plan of an op: these layouts, its arguments for shards, why an operand is gathered
explicit         how results are cut if no operand is moved: what the types of explicit axes follow
partitioner      an op, written into a program: its plan, the exchanges before it, the op on shards
shape_inference  the shapes and dtypes that an op makes
op_table         properties of ops that neither torch's schemas nor the rules give: tables
decompositions   ops written in other ops that can be partitioned: two tables
foreach          ops on lists of tensors, which are partitioned one by one
deferred         fills, and what is computed from them alone, made in the layout of their first consumer
reshard          from one layout to another over the same devices, cheapest exchanges first
cat_split        cat and split along a sharded dim
rule_text        a rule in words
"""
