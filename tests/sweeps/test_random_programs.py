"""Random programs give what plain torch gives: placements, jit and shard_map regions do not change a value.

A hundred in `make test`, four hundred in `make test-all`, 10,000 in `make sweep`. A program that fails is printed as
code, with as few lines as still fail; once the cause is gone, it is kept in KEPT.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import tinyshard as ts
from tests.expressions import check_same
from tests.extent import drawn
from tests.sweeps.random_programs import PLAIN, SHARDED, program, run, smaller

PARTS = range(drawn(2, 8, 200))
A_PART = 50  # a part is a test, far below the limit of one

# programs that once gave something else
KEPT: dict[str, str] = {
    "a constraint and a region of an argument that is not committed": """
a = numbers((16, 4), float64, 3)
def program(a):
    b = constrain(a, (8,), ('n',), None)
    c = region('psum', (4, 2), 'b', a)
    return [b, c]
results = jit(program)(a)
""",
    "a constraint and a region on one mesh": """
a = numbers((16, 4), float64, 3)
def program(a):
    b = constrain(a, (4, 2), ('a',), None)
    c = region('psum', (4, 2), 'b', a)
    return [b, c]
results = jit(program)(a)
""",
    "an argument that is not committed, beside a constraint on it": """
a = numbers((8, 8), float64, 1)
def program(a):
    return [a + constrain(a, (2, 2, 2), None, ('y',))]
results = jit(program)(a)
""",
    "the gradient of unfold over a negative dim": """
a = put(numbers((8,), float64, 1), (4, 2), None)
def f(x):
    return torch.sin(x.unfold(-1, 2, 1)).sum()
results = [grad(f)(a)]
""",
    "device_put within grad": """
a = put(numbers((8, 8), float64, 0), (4, 2), ('a',), None)
def f(x):
    return torch.sin(put(x, (4, 2), None, ('b',))).sum()
results = [grad(f)(a)]
""",
    "device_put within jit": """
a = put(numbers((8, 8), float64, 0), (4, 2), ('a',), None)
def f(x):
    return put(x, (2, 4), None, ('p', 'q'))
results = [jit(f)(a)]
""",
    "device_put within vmap": """
a = put(numbers((8, 8), float64, 0), (4, 2), ('a',), None)
def f(x):
    return put(x, (8,), ('n',))
results = [vmap(f, 0)(a)]
""",
    "vmap of grad over what jit's function closes over": """
a = put(numbers((8, 8), float64, 0), (4, 2), ('a',), None)
def f(x):
    def g(y):
        return torch.sin(y).sum()
    return vmap(grad(g), 0)(a)
results = [jit(f)(a)]
""",
    "a jitted inverse, which checks its operand, within vmap and grad": """
a = numbers((8, 2, 4), float64, 1)
b = numbers((8, 8), float64, 3)
def program(a, b):
    c = operate('mm_transposed', 6, b, a)
    d = torch.maximum(b, b)
    e = d[1:]
    def f(x):
        def each(y):
            h = torch.maximum(x, d)
            def inverse(i):
                return operate('inv', 1, h, h)
            return constrain(jit(inverse)(e), (4, 2), 'b', 'a')
        vmap(each, 0)(e)
        return torch.sin(torch.cat([x])).sum()
    p = grad(f)(c)
    return [c, p]
results = program(a, b)
""",
}


@pytest.fixture(scope="module", autouse=True)
def eight_local_devices() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def problem_of(source: str) -> Exception | None:
    """What differs where the program runs on Arrays, or the error; None where all is as on plain tensors."""
    want = run(source, PLAIN)
    try:
        got = run(source, SHARDED)
        check_same([x if isinstance(x, ts.Array) else ts.array(x) for x in got], want, "results", 10.0)
    except Exception as problem:  # of whatever kind: plain torch ran the program
        return problem
    return None


def check_program(source: str) -> None:
    if problem_of(source) is not None:
        source = smaller(source, lambda text: problem_of(text) is not None)
        raise AssertionError(f"this program differs from plain torch:\n\n{source}\n") from problem_of(source)


@st.composite
def programs(draw: Any) -> str:
    return program(lambda choices: draw(st.sampled_from(choices)))


@pytest.mark.parametrize("part", PARTS)
def test_random_programs_give_what_plain_torch_gives(part: int) -> None:
    @seed(part)
    @settings(
        max_examples=A_PART,
        derandomize=False,  # the seed decides
        phases=[Phase.generate],  # `smaller` knows what a program is, and takes seconds
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(source=programs())
    def check(source: str) -> None:
        check_program(source)

    check()


@pytest.mark.parametrize("name", KEPT)
def test_a_program_that_once_missed_gives_what_plain_torch_gives(name: str) -> None:
    check_program(KEPT[name])
