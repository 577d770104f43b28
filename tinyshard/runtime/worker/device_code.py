"""The code that a device runs: a program as one Python function, which is generated, with a line for each step.

    x of f32[8, 4], rows cut in 4: x.sum(0) + 1     c0 = torch.tensor(1, dtype=torch.float32)

                                                    def program(operands):
                                                        v0, = operands
                                                        operands.clear()
                                                        v1 = aten_sum(v0, [0])  # f32[4]
                                                        v0 = None
                                                        v2 = all_reduce(v1)  # f32[4], axes=(0,), op='sum'
                                                        ...

A line drops values after their last use. A large sum, difference, product or quotient of elements is written into its
first operand if nothing else uses that (`out=v1`): the processor has its memory in the cache. `check()` raises if the
call was cancelled meanwhile; so does a collective. Nothing else looks for what may go wrong: after an error
`Steps.go_on` finds the step by the line number in the traceback, and its operands among the locals of the frame.
"""

from __future__ import annotations

import keyword
import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tinyshard.core.collectives import COLLECTIVES
from tinyshard.core.program import Eqn, Program, Value, find_op, has_op
from tinyshard.core.types import ShapedType
from tinyshard.runtime.worker.executor import last_uses
from tinyshard.runtime.worker.kernels import ARITHMETIC, KERNELS, with_tensors_for_numbers

# a cancelled call ends at the next check: there is one before so many bytes of operands and results, or so many steps
CHECK_NBYTES = 1 << 20
CHECK_STEPS = 64
# a smaller result takes as long in new memory
_REUSED_NBYTES = 1 << 16
# ops that give their results new memory, always: no view, and never an operand
_MAKE_MEMORY = (*ARITHMETIC, "aten.bmm.default", "aten.mm.default")
# ints below this are the same in all dtypes
_GREATEST = 1 << 24
# what is written in the text as Python prints it
_PLAIN = (int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format)


@dataclass(frozen=True, slots=True)
class Code:
    """The text of a program's function, and what its names stand for.

    Attributes:
        text: Python, with one function, `program`.
        steps: by line of the text, the position of its step in the program; -1 for none.
        functions: by name, the position of a step that calls the function of this name.
        constants: by name, a value that cannot be written as text.
    """

    text: str
    steps: tuple[int, ...]
    functions: dict[str, int]
    constants: dict[str, Any]

    def compiled(self, file: str, functions: dict[str, Callable[..., Any]], check: Callable[[], None]) -> Any:
        """The function; `functions` has those that it calls, by name."""
        names = {"torch": torch, "inf": math.inf, "nan": math.nan, "check": check, **self.constants, **functions}
        exec(compile(self.text, file, "exec"), names)
        return names["program"]


def code_of(program: Program) -> Code:
    """The code of a program, but not of those in it: a loop is one line. It is the same on all devices.

    Example:
        >>> from tinyshard.core.program import Builder
        >>> builder = Builder((0, 1), (2,))
        >>> x = Value(builder.input(ShapedType((4,), torch.float32)))
        >>> y = builder.emit("aten.mul.Tensor", [x, 2.0], {}, [ShapedType((4,), torch.float32)])
        >>> print(code_of(builder.finish(y)).text)
        c0 = torch.tensor(2.0, dtype=torch.float32)
        <BLANKLINE>
        def program(operands):
            v0, = operands
            operands.clear()
            v1 = aten_mul(v0, c0)  # f32[4]
            v0 = None
            return v1,
    """
    return _Writer(program).code()


class _Writer:
    def __init__(self, program: Program) -> None:
        self._program = program
        self._names: dict[Any, str] = {}
        self._functions: dict[str, int] = {}
        self._constants: dict[str, Any] = {}
        self._numbers: dict[str, str] = {}  # the text of a tensor -> its name
        self._lines: list[tuple[str, int]] = []
        self._since = [0, 0.0]  # steps, and their bytes, since the last check
        uses = Counter(n for numbers in (*(s.operands for s in program.steps), program.outputs) for n in numbers)
        made = (n for step in program.steps if step.op in _MAKE_MEMORY for n in step.results)
        self._reusable = {n for n in made if uses[n] == 1}

    def code(self) -> Code:
        program = self._program
        for k, (step, dead) in enumerate(zip(program.steps, last_uses(program), strict=True)):
            self._check(k, step)
            self._lines.append((self._step(k, step), k))
            if dead:
                self._lines.append((" = ".join([f"v{number}" for number in dead] + ["None"]), k))
        last = len(program.steps) - 1
        inputs = "".join(f"v{number}, " for number in range(program.num_inputs)).rstrip()
        outputs = "".join(f"v{number}, " for number in program.outputs).rstrip() or "()"
        taken = [f"{inputs} = operands", "operands.clear()"] if inputs else []
        named = [f"{name} = {text}" for text, name in self._numbers.items()]
        named += [f"# {name} is {' '.join(repr(x).split())}" for name, x in self._constants.items()]
        head = [*named, "", "def program(operands):"] if named else ["def program(operands):"]
        body = [*((line, -1) for line in taken), *self._lines, (f"return {outputs}", last)]
        text = "\n".join([*head, *("    " + line for line, _ in body)])
        return Code(text, (-1,) * (len(head) + 1) + tuple(k for _, k in body), self._functions, self._constants)

    def _check(self, number: int, step: Eqn) -> None:
        """Write a check before the step, if it is due. An exchange checks by itself, and control flow in each round."""
        if step.op in COLLECTIVES or step.op == "transfer" or step.bodies:
            self._since = [0, 0.0]
            return
        used = [self._program.metas[n] for n in step.operands]
        used += [self._program.metas[n] for n in step.results if n >= 0]
        self._since[0] += 1
        self._since[1] += sum(math.inf if meta is None else meta.nbytes for meta in used)
        if self._since[0] >= CHECK_STEPS or self._since[1] >= CHECK_NBYTES:
            self._lines.append(("check()", number))
            self._since = [0, 0.0]

    def _step(self, number: int, step: Eqn) -> str:
        metas = self._program.metas
        types = ", ".join(str(metas[n] or "?") for n in step.results if n >= 0)
        if step.is_torch_op:
            args: Sequence[Any] = with_tensors_for_numbers(step, metas)
            plain = [self._number(given, metas[step.results[0]]) if given is not arg else self._text(arg)
                     for given, arg in zip(step.args, args, strict=True)]  # fmt: skip
            named = {k: self._text(x) for k, x in step.kwargs.items() if k != "device"}  # each device has its own
            arguments = plain + [f"{k}={x}" for k, x in named.items() if not keyword.iskeyword(k)]
            arguments += [f"**{{{k!r}: {x}}}" for k, x in named.items() if keyword.iskeyword(k)]
            # those whose functions may differ, as a kernel suits some shapes, have different names
            is_of_tensors = all(isinstance(a, Value | torch.Tensor) for a in args)
            if is_of_tensors and not step.kwargs and self._reuses(step):
                arguments.append(f"out=v{step.operands[0]}")
            form: Any = list(step.kwargs), is_of_tensors
            if step.op in KERNELS:
                form = [metas[a.number] if isinstance(a, Value) else a for a in step.args], step.kwargs
            name = self._name(step.op.rpartition(".")[0], (step.op, repr(form)), number)
        else:
            arguments = [f"v{n}" for n in step.operands]
            if step.op in COLLECTIVES:
                types += "".join(f", {k}={x!r}" for k, x in step.kwargs.items())
            name = self._name(step.op, number, number)
        call = f"{name}({', '.join(arguments)})"
        if any(n >= 0 for n in step.results):  # torch's checks return None
            slots = ", ".join(f"v{n}" if n >= 0 else "_" for n in step.results)
            call = f"{slots}{', *_' if gives_more(step) else ''} = {call}"
        return f"{call}  # {types}" if types else call

    def _reuses(self, step: Eqn) -> bool:
        """Whether a step may write its result into its first operand, which has its shape and dtype and is used once.

        In new memory the result would have that operand's layout, too, so later steps compute the same bits.
        """
        if step.op not in ARITHMETIC or step.operands[0] not in self._reusable:
            return False
        meta = self._program.metas[step.results[0]]
        return meta is not None and meta.nbytes >= _REUSED_NBYTES and meta == self._program.metas[step.operands[0]]

    def _name(self, op: str, key: Any, number: int) -> str:
        if key not in self._names:
            base = name = re.sub(r"\W", "_", op) + "_" * keyword.iskeyword(op)  # "while" is a step, too
            count = 1
            while name in self._functions:
                count += 1
                name = f"{base}_{count}"
            self._names[key] = name
            self._functions[name] = number
        return self._names[key]

    def _number(self, number: Any, meta: ShapedType | None) -> str:
        """The name of a tensor that stands for a number, in the dtype of the result."""
        assert meta is not None
        value = f"torch.tensor({number!r}, dtype={meta.dtype})"
        if type(number) is int and abs(number) >= _GREATEST:  # as torch converts it: first to the widest int
            value = f"torch.tensor({number!r}, dtype=torch.int64).to({meta.dtype})"
        return self._numbers.setdefault(value, f"c{len(self._numbers)}")

    def _text(self, x: Any) -> str:
        if isinstance(x, Value):
            return f"v{x.number}"
        if isinstance(x, list | tuple):
            items = ", ".join(map(self._text, x))
            return f"[{items}]" if isinstance(x, list) else f"({items},)" if len(x) == 1 else f"({items})"
        if type(x) in _PLAIN:
            return repr(x)
        self._constants[name := f"k{len(self._constants)}"] = x
        return name


def gives_more(step: Eqn) -> bool:
    """Whether a step's function may return more than the step's results: a list, of which others may be left out."""
    if not step.is_torch_op or not has_op(step.op):
        return False
    returns = find_op(step.op)._schema.returns
    return len(returns) != len(step.results) or isinstance(returns[0].type, torch.ListType)


def device_code(program: Program, title: str = "program") -> str:
    """The code of a program, as the function `title`, and after it that of its loops' and branches' programs."""
    parts = [code_of(program).text.replace("def program(", f"def {title}(")]
    for step in program.steps:
        for k, body in enumerate(step.bodies):
            parts.append(device_code(body, f"{step.op}_{step.results[0]}_{k}" if step.results else f"{step.op}_{k}"))
    return "\n\n".join(parts)
