"""A hint leads to the answer and is not the answer: the code that it shows is less than half of the solution.

Held against the source of `course/solutions`: every expression in a hint's `backticks` that occurs in the solution, or
in a function of the same file that the solution calls, counts with its operators, calls, names and constants. Spaces,
kinds of quotes, 0 or 0.0, and the names of variables make no difference. A bare name such as `ts.lax.psum` is no
answer yet, and `ts.lax.psum(..., "i")` occurs in none.
"""

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from course.exercises import exercises_of, lesson_numbers
from tests.rows import for_every_row

SOLUTIONS = Path(__file__).parents[2] / "course/solutions"
MODULES = ("torch", "ts", "np", "P")  # names that are no variables


def solutions_in(source: str) -> dict[str, list[ast.expr]]:
    """Exercise id → the expressions of its solution, those of functions that it calls included."""
    tree = ast.parse(source)
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    (answers,) = [node.value for node in tree.body if isinstance(node, ast.Assign) and node.targets[0].id == "ANSWERS"]
    found = {}
    for id, made in zip(answers.keys, answers.values, strict=True):
        (solution,) = [word.value for word in made.keywords if word.arg == "solution"] or made.args[:1]
        found[id.value] = list(expressions(solution, functions, set()))
    return found


def expressions(node: ast.expr, functions: dict[str, ast.FunctionDef], seen: set[str]) -> Iterator[ast.expr]:
    """A lambda's body, what the statements of a named function compute, and likewise for the functions in them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Made":
        node = (node.args or [word.value for word in node.keywords])[0]
    if isinstance(node, ast.Lambda):
        node = node.body
    if not (isinstance(node, ast.Name) and node.id in functions):
        yield node
    for name in [each.id for each in ast.walk(node) if isinstance(each, ast.Name) and each.id in functions]:
        if name not in seen:
            seen.add(name)
            for statement in functions[name].body:
                for part in statement_values(statement):
                    yield from expressions(part, functions, seen)


def statement_values(statement: ast.AST) -> Iterator[ast.expr]:
    for child in ast.iter_child_nodes(statement):
        is_target = isinstance(getattr(child, "ctx", None), ast.Store)
        is_docstring = isinstance(statement, ast.Expr) and isinstance(getattr(child, "value", None), str)
        if not isinstance(child, ast.expr):
            yield from statement_values(child)
        elif not is_target and not is_docstring:
            yield child


def shown_by(hint: str) -> list[ast.expr]:
    """The expressions in the hint's backticks that are more than a name."""
    found: list[ast.expr] = []
    for code in re.findall(r"`([^`]+)`", hint):
        with suppress(SyntaxError):
            found += statement_values(ast.parse(code))
    return [each for each in found if not isinstance(each, ast.Name | ast.Attribute)]


def same(node: ast.AST) -> str:
    """The expression as text, with the variables' names left out."""
    text = re.sub(rf"Name\(id='(?!(?:{'|'.join(MODULES)})')\w+'", "Name(id='_'", ast.dump(node))
    return re.sub(r"Constant\(value=(\d+)\)", r"Constant(value=\1.0)", text)


def size(node: ast.AST) -> int:
    return sum(isinstance(each, ast.expr) for each in ast.walk(node))


def part_shown(solution: list[ast.expr], hint: str) -> float:
    """How much of the solution the hint shows, from 0 to 1."""
    shown = {same(each) for each in shown_by(hint)}
    return sum(_covered(each, shown) for each in solution) / sum(map(size, solution))


def _covered(node: ast.AST, shown: set[str]) -> int:
    if isinstance(node, ast.expr) and same(node) in shown:
        return size(node)
    return sum(_covered(child, shown) for child in ast.iter_child_nodes(node))


HINTS = [
    (id, hint)
    for lesson in lesson_numbers()
    for id, exercise in exercises_of(lesson).items()
    for hint in exercise.hints
]
PARTS = {
    id: parts
    for lesson in lesson_numbers()
    for id, parts in solutions_in((SOLUTIONS / f"lesson_{lesson}.py").read_text("utf-8")).items()
}


@for_every_row(HINTS)
def test_no_hint_shows_half_of_the_solution_or_more(id: str, hint: str) -> None:
    assert part_shown(PARTS[id], hint) < 0.5


SOLVED = """
def masked(row):
    '''Zeros but on device 3.'''
    is_three = ts.lax.axis_index("i") == 3
    return torch.where(is_three, row, 0.0)

ANSWERS = {
    "1": Answers(solution=lambda v: v - ts.lax.ppermute(v, "i", RING), wrong=()),
    "2": Answers(solution=lambda row: ts.lax.psum(masked(row), "i"), wrong=()),
    "3": Answers(P(("b", "a"), None), ()),
    "4": Answers(solution=Made(lambda: [1, 2, 3, 4]), wrong=()),
}
"""


@pytest.mark.parametrize(
    "id, hint, part",
    [
        ("1", "`v - ts.lax.ppermute(v, 'i', ring)`", 1.0),
        ("1", "`left = x - ts.lax.ppermute(x, 'i', pairs)`, and return it", 1.0),
        ("1", "Use `ts.lax.ppermute` with a ring, and `v - ...`: what to subtract from what?", 0.0),
        ("1", "`v - ts.lax.ppermute(v, 'i', ...)`", 0.0),
        ("2", "`ts.lax.axis_index('i') == 3` is true on one device.", 7 / 21),
        ("2", "`ts.lax.axis_index('i') == 3` is what `torch.where(mask, row, 0)` asks for.", 13 / 21),
        ("3", 'Turn them round: `("b", "a")`.', 3 / 6),
        ("4", "It starts with `1`, `2`; the next is one more.", 2 / 5),
        ("4", "`[1, 2, 3, 4]`", 1.0),
    ],
)
def test_how_much_of_a_solution_a_hint_shows(id: str, hint: str, part: float) -> None:
    assert part_shown(solutions_in(SOLVED)[id], hint) == pytest.approx(part)
