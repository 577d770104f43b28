"""The primitive of a scan. Its gradient, its tangent and its vmapped form are scans again.

gradient    forward a scan that saves the carry of each round; backward a scan that recomputes each round
tangent     a scan of the body and its tangent
vmap        a scan of the vmapped body; the parts of the carry that depend on the mapped dim are mapped
partition   one step, whose body is a program: rows are whole along dim 0, the carry keeps its layout; where
            the body only adds to zeros, parts of the sum are combined after the last round
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tinyshard.compile.replay import Function, gradients, replayed
from tinyshard.compile.tracing import is_effective
from tinyshard.core import axis_names
from tinyshard.core.errors import ShardingError
from tinyshard.core.evaluate import evaluate
from tinyshard.core.primitive import FunctionPrimitive
from tinyshard.core.program import Value, values_in
from tinyshard.core.types import ShapedType
from tinyshard.primitives.scan import Scan
from tinyshard.primitives.varying import Varying
from tinyshard.transforms import bodies, partitioned_bodies
from tinyshard.transforms.vmap import vmap


def apply_scan(scan: Scan, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Apply a scan within a trace, and within any transformation there.

    Args:
        scan: the scan.
        operands: its carry, the tensors whose rows it scans, and those that it closes over; constants may be left out.
    """
    end = scan.carried + scan.rows
    constants = [c.value for c in scan.body.closed[len(operands) - end :]]
    operands = bodies.lifted_along(scan.body.graph, [*operands, *constants])
    if scan.keeps or not any(x.requires_grad for x in operands):
        return SCAN.bind(scan, *operands)
    return SCAN.bind(keeping(scan), *operands)[: len(scan.outputs)]


def keeping(scan: Scan) -> Scan:
    """The same scan; its last results are the carries at the start of each round."""

    def make() -> Scan:
        function = replayed(scan.body)
        rule = scan.body.custom_derivative
        body = bodies.traced_body(lambda *xs: (*function(*xs), *xs[: scan.carried]), scan.taken, custom_derivative=rule)
        return replace(scan, body=body, keeps=True, derived={})

    derived_scan: Scan = scan if scan.keeps else bodies.derived(scan.derived, "keeps", make)
    return derived_scan


def _is_continuous(meta: ShapedType) -> bool:
    return meta.dtype.is_floating_point or meta.dtype.is_complex


class ScanPrimitive(FunctionPrimitive[Scan]):
    """A scan: its operands are the carry, the tensors whose rows it scans, and those that its body closes over."""

    name = "scan"

    def abstract(self, params: Scan, *xs: ShapedType) -> Sequence[ShapedType]:
        return params.outputs

    def run(self, params: Scan, *xs: torch.Tensor) -> Sequence[torch.Tensor]:
        """On plain tensors, as in a checkpointed function outside of a trace: a Python loop."""
        one, (carry, operands, closed) = replayed(params.body), params.parts(xs)
        rows: list[Sequence[torch.Tensor]] = []
        for i in reversed(range(params.length)) if params.reverse else range(params.length):
            results = one(*carry, *(x[i] for x in operands), *closed)
            carry = results[: params.carried]
            rows.append(results[params.carried :])
        rows = rows[::-1] if params.reverse else rows
        none = params.outputs[params.carried :]
        stacked = map(torch.stack, zip(*rows, strict=True)) if rows else map(bodies.zeros, none)
        return bodies.own([*carry, *stacked], xs)

    def graphs(self, params: Scan) -> Sequence[torch.fx.GraphModule]:
        return [params.body.graph]

    def has_effect(self, args: Sequence[Any]) -> bool:
        return is_effective(self.params(args).body.graph)

    def replay(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[torch.Tensor, ...]:
        return apply_scan(self.params(args), args[0])

    def typed(self, args: Sequence[Any], given: Sequence[Any]) -> Any:
        scan = self.params(args)
        carry, rows, _ = scan.parts(given)
        bodies.check_carried("scan", scan.body, carry)
        if any(at.dims[0] for at in rows):
            raise ShardingError(
                "a scan goes along a dim that is sharded",
                got=f"rows of {' and '.join(map(str, scan.taken[scan.carried : scan.carried + scan.rows]))}",
                rule="each round has a row of dim 0, which is whole on every device",
                try_="ts.reshard(xs, P(None, ...))",
            )
        derived = bodies.layouts_of_results(scan.body)[scan.carried :]
        return [*carry, *(None if at is None else replace(at, dims=((), *at.dims)) for at in derived)]

    def varies(self, given: Sequence[frozenset[str]], args: Sequence[Any]) -> list[frozenset[str]]:
        scan, operands = self.params(args), list(given)
        while True:
            outputs = evaluate(scan.body.graph, Varying(), operands)
            carry = [a | b for a, b in zip(operands, outputs[: scan.carried], strict=False)]
            if carry == operands[: scan.carried]:
                return [*carry, *outputs[scan.carried :]]
            operands[: scan.carried] = carry

    def text(self, printer: Any, result: str, args: Sequence[Any]) -> list[str]:
        scan = self.params(args)
        carry, rows, closed = scan.parts(args[0])
        inputs = (
            [f"carry, at first {x!r}" for x in carry] + [f"row of {x!r}" for x in rows] + [f"{x!r}" for x in closed]
        )
        direction = ", from the last" if scan.reverse else ""
        first = f"{result} scan({', '.join(map(repr, args[0]))}) {scan.length} times{direction}:"
        return [first, *printer.nested(scan.body, inputs, "")]

    # ---- derivatives --------------------------------------------------------------------------------------------

    def check_differentiable(self, params: Scan) -> None:
        bodies.check_differentiable("scan", params.body)

    def save(self, ctx: Any, params: Scan, xs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        ctx.set_materialize_grads(False)  # only a second gradient has gradients of the saved carries
        carries = outputs[len(outputs) - params.carried :] if params.keeps else ()
        ctx.save_for_backward(*xs, *carries)
        ctx.save_for_forward(*xs, *carries)

    def transpose(self, ctx: Any, *gradients: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        self.check_differentiable(ctx.params)
        scan, count = ctx.params, len(ctx.params.taken)
        xs, carries = ctx.saved_tensors[:count], ctx.saved_tensors[count:]
        wanted = tuple(i for i, need in enumerate(ctx.needs_input_grad[2:]) if need)
        if not scan.keeps:
            carries = SCAN.bind(keeping(scan), *xs)[len(scan.outputs) :]
        flowing = {i: g for i, g in enumerate(gradients) if g is not None and i in ctx.flowing}
        gradients_in = iter(_backwards(scan, wanted, xs, carries, flowing))
        return [next(gradients_in) if i in wanted else None for i in range(count)]

    def jvp(self, ctx: Any, *tangents: torch.Tensor | None) -> Sequence[torch.Tensor | None]:
        self.check_differentiable(ctx.params)
        scan, count = ctx.params, len(ctx.params.taken)
        xs = ctx.saved_tensors[:count]
        moved = {i: t for i, t in enumerate(tangents) if t is not None}
        pushed = iter(_along(scan, xs, moved))
        return [next(pushed) if i in ctx.flowing else None for i in range(ctx.count)]

    def batch(
        self, params: Scan, size: int, dims: Sequence[int | None], *xs: torch.Tensor
    ) -> tuple[Sequence[torch.Tensor], Sequence[int | None]]:
        here = axis_names.at_level(axis_names.level() + 1)
        name = None if here is None else here.name
        mapped, count = [d is not None for d in dims], params.carried
        while True:
            is_batched = bodies.depends(params.body.graph, mapped, name)
            carry = [a or b for a, b in zip(mapped, is_batched[:count], strict=False)]
            if carry == mapped[:count]:
                break
            mapped[:count] = carry

        def make() -> Scan:
            in_axes = tuple(0 if is_mapped else None for is_mapped in mapped)
            out_axes = (*in_axes[:count], *(0 for _ in params.given[count:]))
            function = vmap(replayed(params.body), in_axes, out_axes, axis_name=name, axis_size=size)
            metas = [replace(m, shape=(size, *m.shape)) if d else m for m, d in zip(params.taken, mapped, strict=True)]
            body = bodies.traced_body(function, metas, custom_derivative=params.body.custom_derivative)
            return replace(params, body=body, derived={})

        batched = bodies.derived(params.derived, ("vmap", tuple(mapped), size, name), make)
        operands = []
        for i, (x, d) in enumerate(zip(xs, dims, strict=True)):
            place = 1 if count <= i < count + params.rows else 0
            if d is not None:
                x = x.movedim(d, place)
            elif mapped[i]:
                x = x.unsqueeze(0).expand(size, *x.shape)
            operands.append(x)
        results = apply_scan(batched, operands)
        return results, [*(0 if is_mapped else None for is_mapped in mapped[:count]), *(1 for _ in results[count:])]

    # ---- programs -----------------------------------------------------------------------------------------------

    def partition(self, partitioner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        return partitioned_bodies.scan(partitioner, node, self.params(args), args[0])

    def inline(self, inliner: Any, node: torch.fx.Node, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        scan, builder = self.params(args), inliner.builder
        used = scan.used(node)

        def emit() -> list[Value | None]:
            body = bodies.inlined(inliner, scan.body, used)
            named = {"length": scan.length, "reverse": scan.reverse}
            parts = tuple(list(part) for part in scan.parts(args[0]))
            numbers = builder.emit("scan", parts, named, [scan.outputs[i] for i in used], (body,))
            return scan.with_gaps(used, map(Value, numbers))

        results: list[Value | None] = builder.once(("scan", args[1], tuple(values_in(args[0])), used), emit)
        return results


SCAN = ScanPrimitive()


def _backwards(
    scan: Scan,
    wanted: tuple[int, ...],
    xs: Sequence[torch.Tensor],
    carries: Sequence[torch.Tensor],
    flowing: dict[int, torch.Tensor],
) -> list[torch.Tensor]:
    """The gradients of the wanted operands: a scan from the last round to the first.

    Its carry is the gradient of the body's carry, and the summed gradients of the tensors that the body closes over.
    """
    taken, given, count = scan.taken, scan.given, scan.carried
    end = count + scan.rows
    carried = [i for i in range(count) if _is_continuous(taken[i])]
    rows, closed = [i for i in wanted if count <= i < end], [i for i in wanted if i >= end]
    stacks = [i for i in flowing if i >= count]

    def make() -> Scan:
        function = replayed(scan.body)
        metas = [taken[i] for i in (*carried, *closed)]
        metas += [*taken[:end], *(given[i] for i in stacks), *taken[end:]]
        first, second = len(carried), len(carried) + len(closed)

        def pull(*values: torch.Tensor) -> Sequence[torch.Tensor]:
            sums, primals = values[first:second], values[second : second + end]
            cotangents, constants = values[second + end :][: len(stacks)], values[second + end + len(stacks) :]
            found = gradients(
                function,
                [*primals, *constants],
                [*carried, *rows, *closed],
                [*carried, *stacks],
                [*values[:first], *cotangents],
            )
            of_rows, of_closed = found[first : first + len(rows)], found[first + len(rows) :]
            return [*found[:first], *(a + g for a, g in zip(sums, of_closed, strict=True)), *of_rows]

        body = bodies.traced_silently(pull, metas)
        return Scan(body, second, end + len(stacks), scan.length, not scan.reverse)

    key = ("gradient", tuple(rows), tuple(closed), tuple(stacks))
    backwards: Scan = bodies.derived(scan.derived, key, make)
    seeds = [flowing[i] if i in flowing else torch.zeros_like(xs[i]) for i in carried]
    sums = [torch.zeros_like(xs[i]) for i in closed]
    operands = [*seeds, *sums, *carries, *xs[count:end], *(flowing[i] for i in stacks), *xs[end:]]
    outputs = apply_scan(backwards, operands)
    found = dict(zip((*carried, *closed, *rows), outputs, strict=True))
    return [found[i] for i in wanted]


def _along(scan: Scan, xs: Sequence[torch.Tensor], moved: dict[int, torch.Tensor]) -> list[torch.Tensor]:
    """The tangents of the continuous results: a scan whose carry is the body's carry and its tangent."""
    taken, given, count = scan.taken, scan.given, scan.carried
    end = count + scan.rows
    carried = [i for i in range(count) if _is_continuous(taken[i])]
    rows, closed = [i for i in moved if count <= i < end], [i for i in moved if i >= end]
    stacks = [i for i in range(count, len(given)) if _is_continuous(given[i])]

    def make() -> Scan:
        function: Function = replayed(scan.body)
        first = count + len(carried)
        last = first + scan.rows + len(rows)
        metas = [*taken[:count], *(taken[i] for i in carried), *taken[count:end], *(taken[i] for i in rows)]
        metas += [*taken[end:], *(taken[i] for i in closed)]

        def push(*values: torch.Tensor) -> Sequence[torch.Tensor]:
            primals = [*values[:count], *values[first : first + scan.rows], *values[last : last + len(taken) - end]]
            along = [*values[count:first], *values[first + scan.rows : last], *values[last + len(taken) - end :]]
            numbers = [*carried, *rows, *closed]
            return bodies.with_tangents(function, primals, numbers, along, range(count), [*carried, *stacks])

        return Scan(bodies.traced_silently(push, metas), first, scan.rows + len(rows), scan.length, scan.reverse)

    key = ("tangent", tuple(rows), tuple(closed))
    along: Scan = bodies.derived(scan.derived, key, make)
    starts = [moved[i] if i in moved else torch.zeros_like(xs[i]) for i in carried]
    operands = [*xs[:count], *starts, *xs[count:end], *(moved[i] for i in rows), *xs[end:], *(moved[i] for i in closed)]
    return list(apply_scan(along, operands)[count:])
