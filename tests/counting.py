"""What a program says it sends, and what the devices then send: the comparison, for either runtime."""

import math

import tinyshard as ts
from tests.programs import Case
from tinyshard.core.collectives import COLLECTIVES
from tinyshard.runtime import lifecycle


def sent(name: str, size: int, nbytes: int) -> int:
    """Bytes that a device sends of an operand of this size, by a ring or directly."""
    return {
        "all_reduce": 2 * nbytes * (size - 1) // size,
        "all_gather": nbytes * (size - 1),
        "reduce_scatter": nbytes * (size - 1) // size,
        "all_to_all": nbytes * (size - 1) // size,
        "collective_permute": nbytes,
    }[name]


def announced(program) -> list[tuple[str, int, int]]:
    """(collective, group size, bytes of its operands) for each collective of a program that communicates."""
    told = []
    for step in program.steps:
        if step.op in COLLECTIVES and COLLECTIVES[step.op].communicates:
            size = math.prod(program.axes[a] for a in step.kwargs["axes"])
            if size > 1:
                told.append((step.op, size, sum(program.metas[x.number].nbytes for x in step.args)))
    return told


def check(case: Case) -> list[tuple[str, int, int]]:
    """Run a case; what its text, its cost and the devices say is the same. Returns what was announced."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    arguments = ts.block_until_ready(case.placed(mesh))
    with ts.set_mesh(mesh):
        compiled = ts.jit(case.function).lower(*arguments).compile()
        ts.block_until_ready(compiled(*arguments))  # operands that are still to be put are put once here
        lifecycle.current().handed()
        ts.block_until_ready(compiled(*arguments))
    told = announced(compiled.program)
    for device, handed in lifecycle.current().handed().items():
        assert handed == told, f"device {device}"
    cost = compiled.cost_analysis()
    assert cost.nbytes == sum(sent(*each) for each in told)
    assert sum(t.count for t in cost.traffic) == len(told)
    text = compiled.as_text()
    for name in COLLECTIVES:
        if name != "local_slice":
            assert text.count(f" {name}(") == sum(each[0] == name for each in told)
    return told
