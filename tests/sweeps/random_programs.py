"""Random programs as text: one source that runs on plain tensors, and on Arrays with placements, jit and shard_map.

A program is a function of a few tensors, each line an op or a transform of a function that is made in the same way. It
is grown line by line on plain tensors: a line that torch does not take, or whose values get out of hand, is left out.
PLAIN and SHARDED say what the words of a program mean that torch does not have.
"""

from __future__ import annotations

import ast
import random
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import tinyshard as ts
from tests.expressions import is_tame
from tests.operations import OPERATIONS, Pick, numbers
from tests.sweeps.layouts import AXES, Choose, mesh_of, random_spec
from tests.sweeps.regions import REGIONS, mapped, plain_region

SHAPES = ((8, 8), (8,), (4, 8), (8, 2, 4), (16, 4), (8, 16), (2, 8))
DEEPEST = 3  # functions within functions


def operate(name: str, seed: int, *operands: Tensor) -> Tensor:
    """The first floating-point result of a row of tests.operations; the seed decides on all that it draws.

    Args:
        name: of the row.
        seed: for its further operands and arguments.
        operands: a tensor; one more takes the place of the first further operand if it is of the same shape.
    """
    x, *given = operands
    # a stand-in of the same shape: what is drawn must not depend on values, which a traced tensor does not have
    drawn = OPERATIONS[name].draw(Pick(random.Random(seed).choice), numbers(x.shape, x.dtype, 0))
    call, *others = drawn if isinstance(drawn, tuple) else (drawn,)
    others[: len(given)] = [a if a.shape == b.shape else b for a, b in zip(given, others, strict=False)]
    found = [y for y in tree_leaves(call(x, *others)) if isinstance(y, Tensor) and y.is_floating_point()]
    if not found:
        raise ValueError(f"{name} has no floating-point result")
    return found[0]


def _put(x: Tensor, sizes: tuple[int, ...], *spec: Any) -> Tensor:
    return ts.device_put(x, ts.NamedSharding(mesh_of(sizes), ts.P(*spec)))


def _constrain(x: Tensor, sizes: tuple[int, ...], *spec: Any) -> Tensor:
    return ts.lax.with_sharding_constraint(x, ts.NamedSharding(mesh_of(sizes), ts.P(*spec)))


def _where_it_is(x: Tensor, sizes: tuple[int, ...], *spec: Any) -> Tensor:
    return x


_WORDS = {"torch": torch, "numbers": lambda *a: numbers(*a) / 4, "operate": operate, "float64": torch.float64}

PLAIN: dict[str, Any] = {
    **_WORDS,
    "put": _where_it_is,
    "constrain": _where_it_is,
    "jit": lambda f: f,
    "grad": torch.func.grad,
    "vmap": torch.func.vmap,
    "region": plain_region,
}
SHARDED: dict[str, Any] = {
    **_WORDS,
    "put": _put,
    "constrain": _constrain,
    "jit": ts.jit,
    "grad": ts.grad,
    "vmap": ts.vmap,
    "region": mapped,
}


def run(source: str, words: dict[str, Any]) -> list[Tensor]:
    """The results of a program.

    Args:
        source: of which the last line sets `results`.
        words: PLAIN or SHARDED.
    """
    scope = dict(words)
    exec(compile(source, "<random program>", "exec"), scope)
    return scope["results"]


def smaller(source: str, fails: Callable[[str], bool]) -> str:
    """A program that still fails when any further line or result of it is left out.

    Args:
        source: a program that fails.
        fails: whether a program fails; one that plain torch cannot run counts as none.
    """
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    parts: list[list[Any]] = [n.body for n in nodes if isinstance(n, ast.Module | ast.FunctionDef)]
    parts += [n.elts for n in nodes if isinstance(n, ast.List)]
    before = ""
    while before != ast.unparse(tree):
        before = ast.unparse(tree)
        for part in parts:
            for number in reversed(range(len(part))):
                left_out = part.pop(number)
                if isinstance(left_out, ast.Return) or not part or not _runs_and(fails, ast.unparse(tree)):
                    part.insert(number, left_out)
    return ast.unparse(tree)


def _runs_and(fails: Callable[[str], bool], source: str) -> bool:
    try:
        run(source, PLAIN)
    except (*REFUSED, NameError, KeyError):
        return False
    return fails(source)


# what plain torch raises where a line asks for what it does not have; warnings are errors in the tests
REFUSED = (RuntimeError, IndexError, TypeError, ValueError, NotImplementedError, UserWarning)


@dataclass
class Writer:
    """Writes the lines of one function.

    Attributes:
        choose: picks one of a sequence.
        values: name -> plain value of what the function can see.
        depth: how many functions it stands in.
        names: gives a name that the program does not have yet.
        lines: what is written.
        own: names that this function has set.
    """

    choose: Choose
    values: dict[str, Tensor]
    depth: int
    names: Any
    lines: list[str] = field(default_factory=list)
    own: list[str] = field(default_factory=list)

    def grow(self, steps: int) -> None:
        """Try so many lines."""
        for _ in range(steps):
            self.choose(KINDS if self.depth < DEEPEST else FLAT_KINDS)(self)

    def add(self, text: str, *, before: str = "") -> None:
        """Set a new name to the value of an expression, if plain torch has one that is tame."""
        name = next(self.names)
        scope = {**PLAIN, **self.values}
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                exec(before, scope)
                value = eval(text, scope)
        except REFUSED:
            return
        if isinstance(value, Tensor) and value.is_floating_point() and value.numel() <= 512 and is_tame(value):
            self.values[name] = value
            self.own.append(name)
            self.lines += [*before.splitlines(), f"{name} = {text}"]

    def operand(self, fits: Callable[[Tensor], bool] = lambda x: True) -> str | None:
        """A name that it can see, mostly one of the latest."""
        found = [name for name, x in self.values.items() if fits(x)]
        return self.choose(found[-4:] if self.choose((True, True, False)) else found) if found else None

    def function(self, parameter: str, example: Tensor, last: str) -> tuple[str, str]:
        """The name and the text of a new function of one tensor.

        Args:
            parameter: its name.
            example: a value of it.
            last: what it returns, of `{}`, the last name set in it.
        """
        inner = Writer(self.choose, {**self.values, parameter: example}, self.depth + 1, self.names)
        inner.grow(self.choose((1, 2, 3)))
        name = "f_" + parameter
        body = [*inner.lines, "return " + last.format(inner.own[-1] if inner.own else parameter)]
        return name, f"def {name}({parameter}):\n" + textwrap.indent("\n".join(body), "    ")


# ---- kinds of lines --------------------------------------------------------------------------------------------------

# rows of float64 whose values do not jump where a sum is added in another order, and whose shapes do not depend on them
_NOT_UNDER_JIT = {"index_mask", "masked_select", "nonzero", "unique", "argwhere", "select_positive"}
_JUMPING = {"floor", "round", "floor_over", "remainder", "sign", "where_scalar", "bucketize", "isclose", "argsort"}
_DRAWABLE = [
    name
    for name, row in sorted(OPERATIONS.items())
    if torch.float64 in row.dtypes and name not in _JUMPING and name not in _NOT_UNDER_JIT
]


def operation(writer: Writer) -> None:
    x = writer.operand()
    fitting = [name for name in _DRAWABLE if OPERATIONS[name].takes(writer.values[x])] if x else []
    if fitting:
        name, seed, other = writer.choose(fitting), writer.choose(range(8)), writer.operand()
        writer.add(f"operate({name!r}, {seed}, {x}, {other})")


def binary(writer: Writer) -> None:
    x = writer.operand()
    y = writer.operand(lambda v: v.shape == writer.values[x].shape)
    writer.add(writer.choose(("{} + {}", "{} * {}", "torch.maximum({}, {})", "torch.cat([{}, {}])")).format(x, y))


def product(writer: Writer) -> None:
    x = writer.operand(lambda v: v.dim() > 0)
    if x is not None:
        y = writer.operand(lambda v: v.dim() == 2 and v.shape[0] == writer.values[x].shape[-1])
        writer.add(f"torch.tanh({x} @ {y})" if y else f"torch.tanh({x} @ {x}.T)")


def view(writer: Writer) -> None:
    x = writer.operand(lambda v: v.dim() > 0)
    if x is None:
        return
    d = writer.choose(range(writer.values[x].dim()))
    forms = (
        "{x}.transpose(0, -1)", "{x}.movedim({d}, 0)", "{x}.unsqueeze({d})", "{x}.flatten()", "{x}.flip({d})",
        "{x}.roll(3, {d})", "{x}.narrow({d}, 1, 2)", "{x}.select({d}, -1)", "{x}.unflatten({d}, (2, -1))", "{x}[1:]",
        "{x}[..., ::2]", "{x}.chunk(2, {d})[1]", "{x}.expand(2, *{x}.shape)", "{x}.reshape(4, -1)", "{x}.diagonal()",
    )  # fmt: skip
    writer.add(writer.choose(forms).format(x=x, d=d))


def placement(writer: Writer) -> None:
    x = writer.operand()
    if x is not None:
        writer.add(_placed(writer.choose, writer.choose(("put", "constrain")), x, writer.values[x]))


def _placed(choose: Choose, word: str, name: str, value: Tensor) -> str:
    sizes = choose(list(AXES))
    spec = "".join(f", {entry!r}" for entry in random_spec(choose, sizes, value.shape))
    return f"{word}({name}, {sizes}{spec})"


def gradient(writer: Writer) -> None:
    x = writer.operand()
    if x is not None:
        name, text = writer.function(next(writer.names), writer.values[x], "torch.sin({}).sum()")
        writer.add(f"grad({name})({x})", before=text)


def vectorized(writer: Writer) -> None:
    x = writer.operand(lambda v: v.dim() > 0)
    if x is not None:
        value = writer.values[x]
        d = writer.choose(range(value.dim()))
        if value.shape[d]:
            name, text = writer.function(next(writer.names), value.select(d, 0), "{}")
            writer.add(f"vmap({name}, {d})({x})", before=text)


def compiled(writer: Writer) -> None:
    x = writer.operand()
    if x is not None:
        name, text = writer.function(next(writer.names), writer.values[x], "{}")
        writer.add(f"jit({name})({x})", before=text)


def over_devices(writer: Writer) -> None:
    sizes = writer.choose(list(AXES))
    axes = AXES[sizes]
    named = writer.choose((*axes, axes) if len(axes) > 1 else axes)
    kind = writer.choose(sorted(REGIONS))
    x = writer.operand(lambda v: v.dim() > 0)
    if x is not None:
        writer.add(f"region({kind!r}, {sizes}, {named!r}, {x})")


FLAT_KINDS = (operation, operation, operation, binary, product, view, view, placement, placement)
KINDS = (*FLAT_KINDS, gradient, vectorized, compiled, over_devices, over_devices)


def program(choose: Choose) -> str:
    """The text of a random program."""
    names = (f"{letter}{number or ''}" for number in range(1000) for letter in "abcdefghijklmnopqrstuvwxyz")
    head, values = [], {}
    for _ in range(choose((1, 2))):
        name, shape = next(names), choose(SHAPES)
        text = f"numbers({shape}, float64, {choose(range(4))})"
        values[name] = eval(text, dict(PLAIN))
        placed = text if choose((False, False, False, True)) else _placed(choose, "put", text, values[name])
        head.append(f"{name} = {placed}")
    writer = Writer(choose, dict(values), 0, names)
    writer.grow(choose((2, 3, 4, 5)))
    inputs = ", ".join(values)
    body = [*writer.lines, f"return [{', '.join(writer.own or values)}]"]
    wrapped = choose(("program", "jit(program)"))
    return "\n".join(
        [*head, f"def program({inputs}):", textwrap.indent("\n".join(body), "    "), f"results = {wrapped}({inputs})"]
    )
