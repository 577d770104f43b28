"""How loops are partitioned: the layouts of a carry that every round keeps, and the body as a program.

A carry starts in the layout of its first value. If the body returns it in another layout, that one is tried for the
first value, a few times; a carry that still differs is resharded at the end of the body. A value that has no layout yet
(zeros, a tensor of the host) gets the one that the body needs.

A scan adds up parts where it can, and what it returns is combined once, not in each round. The gradient of a weight
over the micro-batches of a step, each cut over 8 devices:

    total = zeros                    f32[64, 128] on each device, all together the sum
    4 rounds: total = total + g      g: f32[64, 128] on each device, the part of its examples
    all_reduce(total)

So it goes for what starts as zeros, and is added to and nothing else; and where a part is not larger than the carry
would be otherwise: gradients of parameters that are sharded (FSDP) are combined in each round, by a reduce_scatter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch.fx.node import Node

from tinyshard.core.evaluate import evaluate
from tinyshard.core.program import Builder, Program, Value
from tinyshard.core.types import ShapedType
from tinyshard.partition.deferred import Deferred
from tinyshard.partition.reshard import Dims, Partial, ShardedVar, noted, reduce_partial
from tinyshard.primitives.branching import Branches, While, agreed, types_of, uneven_error
from tinyshard.primitives.scan import Scan

aten = torch.ops.aten

_ZEROS = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default}
_ROUNDS = 3  # layouts that are tried for a carry


@dataclass(frozen=True)
class Whole:
    """A body on whole tensors: what is partitioned.

    Attributes:
        graph: of one round, or of one branch.
        taken: shape and dtype of each input.
        carried: the number of inputs that are the carry; they come first.
        sums: the nodes that add to a carry which may hold parts of a sum -> the carry's node.
        wanted: the positions of the results that are used; None for all.
    """

    graph: torch.fx.GraphModule
    taken: Sequence[ShapedType]
    carried: int = 0
    sums: Mapping[Node, Node] = field(default_factory=dict)
    wanted: Sequence[int] | None = None


@dataclass(frozen=True)
class Body:
    """A body, partitioned.

    Attributes:
        program: of one round.
        ins: the layout of each input.
        outs: the layout of each result.
        partial: for each tensor of the carry, the axes along which the devices hold parts of it.
        carry: the layout in which the body returns its carry, before it is resharded: the next one to try.
    """

    program: Program
    ins: tuple[Dims, ...]
    outs: tuple[Dims, ...]
    partial: tuple[Partial, ...]
    carry: tuple[Dims, ...]


def scan(partitioner: Any, node: Node, params: Scan, operands: Sequence[Any]) -> list[ShardedVar | None]:
    """Write a scan into a program.

    Args:
        partitioner: the walk over the graph around it.
        node: of that graph.
        params: of the node.
        operands: their values.

    Returns:
        Its results; None for a row that no node uses.
    """
    values = [partitioner.value(x) for x in operands]
    is_row = [params.carried <= i < params.carried + params.rows for i in range(len(values))]
    ins = [_dims(partitioner.builder, x) for x in values]
    ins = [dims[1:] if row and dims is not None else dims for dims, row in zip(ins, is_row, strict=True)]
    starts: Any = node.args[0]
    used = params.used(node)
    sums = _sums(params, used, [start.target in _ZEROS for start in starts[: params.carried]])
    body = _settled(partitioner, Whole(params.body.graph, params.taken, params.carried, sums, used), ins)
    placed = [
        partitioner.reshard_to(x, ((), *dims) if row else dims)
        for x, row, dims in zip(values, is_row, body.ins, strict=True)
    ]
    outs = [dims if i < params.carried else ((), *dims) for i, dims in enumerate(body.outs)]
    types = [params.outputs[i] for i in used]
    at = zip_longest(outs, body.partial, fillvalue=())
    results = [ShardedVar(0, m.shape, m.dtype, *where) for m, where in zip(types, at, strict=True)]
    builder = partitioner.builder
    args = tuple([Value(x.number) for x in part] for part in params.parts(placed))
    named = {"length": params.length, "reverse": params.reverse}
    numbers = builder.emit("scan", args, named, [x.local(builder.axes) for x in results], (body.program,))
    numbered = [replace(x, number=number) for x, number in zip(results, numbers, strict=True)]
    return params.with_gaps(used, numbered)


def _sums(params: Scan, used: Sequence[int], zeros: Sequence[bool]) -> dict[Node, Node]:
    """The nodes that add to a tensor of the carry, each with the node of that; one that is used for nothing else.

    Args:
        params: of the scan.
        used: the positions of the results that are used.
        zeros: whether each tensor of the carry starts as zeros.
    """
    all_results = params.body.results
    results = [all_results[i] for i in used]

    def users(node: Node) -> list[Node]:
        return [user for user in node.users if user.op != "output" or node in results]

    found: dict[Node, Node] = {}
    for carry, result, is_zero in zip(params.body.inputs, results, zeros, strict=False):
        adds, reached = dict[Node, Node](), carry
        may_be = is_zero and params.length > 1 and _adds_up_parts(carry.meta["val"].dtype)
        while may_be and reached is not result and len(users(reached)) == 1:
            (user,) = users(reached)
            is_sum = user.target is aten.add.Tensor and not user.kwargs and len(user.all_input_nodes) == 2
            if not is_sum or any(_type(x) != _type(carry) for x in (user, *user.all_input_nodes)):
                break
            adds[user] = carry
            reached = user
        if reached is result and len(users(result)) == results.count(result) == 1:
            found.update(adds)
    return found


def _type(node: Node) -> Any:
    return node.meta["val"].shape, node.meta["val"].dtype


def _adds_up_parts(dtype: torch.dtype) -> bool:
    """Whether tensors of a dtype may be added up in parts.

    An op adds integers whole, see `layouts`. In float16 parts that cancel, as 40000 and -40000, would overflow after a
    few rounds.
    """
    return (dtype.is_floating_point or dtype.is_complex) and dtype not in (torch.float16, torch.complex32)


def while_loop(partitioner: Any, params: While, operands: Sequence[Any]) -> list[ShardedVar]:
    """Write a while loop into a program."""
    builder, count, end = partitioner.builder, params.carried, len(params.test.inputs)
    values = [partitioner.value(x) for x in operands]
    ins = [_dims(builder, x) for x in values]
    whole_body = Whole(params.body.graph, types_of(params.body.inputs), count)
    whole_test = Whole(params.test.graph, types_of(params.test.inputs))
    body = _settled(partitioner, whole_body, ins[:count] + ins[end:])
    of_test = [*body.ins[:count], *ins[count:end]]
    test = _partitioned(partitioner, whole_test, of_test)
    if body.program.communicates or test.program.communicates:
        _check_even(partitioner, "while_loop", params.body.graph)
        test = _partitioned(partitioner, whole_test, of_test, agrees=True)
    wanted = [*body.ins[:count], *test.ins[count:], *body.ins[count:]]
    placed = [partitioner.reshard_to(x, dims) for x, dims in zip(values, wanted, strict=True)]
    results = [ShardedVar(0, m.shape, m.dtype, dims) for m, dims in zip(params.outputs, body.outs, strict=True)]
    args = tuple([Value(x.number) for x in part] for part in params.parts(placed))
    numbers = builder.emit("while", args, {}, [x.local(builder.axes) for x in results], (test.program, body.program))
    return [replace(x, number=number) for x, number in zip(results, numbers, strict=True)]


def branches(partitioner: Any, params: Branches, operands: Sequence[Any]) -> list[ShardedVar]:
    """Write branches into a program: a result has the layout of most parts that a branch gives it."""
    builder = partitioner.builder
    index, *values = (partitioner.value(x) for x in operands)
    taken = types_of(params.branches[0].inputs)
    first, *others = (Whole(branch.graph, taken) for branch in params.branches)
    programs = [_partitioned(partitioner, first, [_dims(builder, x) for x in values])]
    ins = programs[0].ins
    programs += [_partitioned(partitioner, whole, ins) for whole in others]
    outs = [
        max(several, key=partial(_parts, builder.axes)) for several in zip(*(b.outs for b in programs), strict=True)
    ]
    each = [_partitioned(partitioner, whole, ins, outs=outs) for whole in (first, *others)]
    number = partitioner.reshard_to(index, ()).number
    if any(body.program.communicates for body in each):
        _check_even(partitioner, "cond or switch", first.graph)
        number = agreed(builder, number)
    placed = [Value(partitioner.reshard_to(x, dims).number) for x, dims in zip(values, ins, strict=True)]
    results = [ShardedVar(0, m.shape, m.dtype, dims) for m, dims in zip(params.outputs, outs, strict=True)]
    types = [x.local(builder.axes) for x in results]
    numbers = builder.emit("cond", ([Value(number)], placed), {}, types, tuple(body.program for body in each))
    return [replace(x, number=number) for x, number in zip(results, numbers, strict=True)]


def _check_even(partitioner: Any, what: str, graph: torch.fx.GraphModule) -> None:
    """In a shard_map over a part of the axes: refuse what devices that exchange data may or may not run."""
    part = partitioner.part
    if part is not None and graph in part.uneven:
        raise uneven_error(what, ", ".join(map(repr, sorted(part.axes.named))))


def _parts(axes: Sequence[int], dims: Dims) -> int:
    return math.prod(axes[a] for cut in dims for a in cut)


def _dims(builder: Builder, x: Any) -> Dims | None:
    """How an operand is cut; None if the body may choose: nothing has placed it yet."""
    is_placed = not isinstance(x, Deferred) and (x.number not in builder.free or x.number in builder.wanted)
    return x.dims if is_placed else None


def _settled(partitioner: Any, whole: Whole, ins: Sequence[Dims | None]) -> Body:
    """A body whose results have the layouts of its carry."""
    carried = whole.carried
    for _ in range(_ROUNDS):
        body = _partitioned(partitioner, whole, ins)
        if body.ins[:carried] == body.outs[:carried] == body.carry:
            return body
        ins = [*body.carry, *ins[carried:]]
    return _partitioned(partitioner, whole, ins)


def _partitioned(
    partitioner: Any,
    whole: Whole,
    ins: Sequence[Dims | None],
    *,
    outs: Sequence[Dims] | None = None,
    agrees: bool = False,
) -> Body:
    """A body as a program.

    Args:
        partitioner: the walk over the graph around it.
        whole: the body.
        ins: how each input is cut; None where the body chooses.
        outs: how each result is cut; by default as the body makes it, and the carry as it comes in.
        agrees: the result, a bool, is that of the first device on all of them.
    """
    outer = partitioner.builder
    builder = Builder(outer.devices, outer.axes, where=outer.where)
    walk, inputs = partitioner.within(builder, whole.sums), []
    for meta, dims in zip(whole.taken, ins, strict=True):
        x = ShardedVar(0, meta.shape, meta.dtype, ((),) * len(meta.shape) if dims is None else dims)
        inputs.append(noted(builder, replace(x, number=builder.input(x.local(builder.axes)))))
        if dims is None:
            builder.free.add(inputs[-1].number)
    results = [walk.value(x) for x in evaluate(whole.graph, walk, inputs, walk.values)]
    results = results if whole.wanted is None else [results[i] for i in whole.wanted]
    nodes = whole.graph.graph.find_nodes(op="placeholder")
    inputs = [walk.settled_layout(walk.values[node]) for node in nodes]
    carried, starts = whole.carried, inputs[: whole.carried]
    both = zip(nodes, results, starts, strict=False)
    lost = {node for node, x, start in both if start.partial and x.partial != start.partial}
    if lost:  # some of what is added is not held in parts
        sums = {add: carry for add, carry in whole.sums.items() if carry not in lost}
        return _partitioned(partitioner, replace(whole, sums=sums), ins, outs=outs, agrees=agrees)
    carry = [
        start.dims if isinstance(x, Deferred) or x.partial else x.dims
        for x, start in zip(results[:carried], starts, strict=True)
    ]
    done = [
        x if start.partial else walk.reshard_to(x, start.dims)
        for x, start in zip(results[:carried], starts, strict=True)
    ]
    if outs is None:
        done += [reduce_partial(builder, walk.placed(walk.settled_layout(x))) for x in results[carried:]]
    else:
        done += [walk.reshard_to(x, dims) for x, dims in zip(results, outs, strict=True)]
    walk.note_cuts()
    ends = tuple(walk.settled_layout(x).dims for x in inputs)
    numbers = [agreed(builder, walk.reshard_to(done[0], ()).number)] if agrees else [x.number for x in done]
    return Body(
        builder.finish(numbers), ends, tuple(x.dims for x in done), tuple(x.partial for x in starts), tuple(carry)
    )
