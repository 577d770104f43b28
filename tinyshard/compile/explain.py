"""Texts that flags print: why a jitted function is traced again; which op gathers an operand, on which line and why."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence

from tinyshard.compile.cost import bytes_sent, with_bodies
from tinyshard.compile.signature import Signature, spelled_call
from tinyshard.compile.text import axis_names
from tinyshard.core import config
from tinyshard.core.program import Program, values_in
from tinyshard.core.users_line import users_line
from tinyshard.sharding.mesh import Mesh

MOST_LINES = 8


def explanation(
    name: str,
    leaf_names: Sequence[str],
    new: Signature,
    old: Iterable[Signature],
    where: object,
    closed: Sequence[str] = (),
) -> str:
    """Which argument differs, old against new.

    Args:
        name: of the function.
        leaf_names: what to call each tensor leaf of the new call.
        new, old: the signatures.
        where: the line that calls.
        closed: for the same signature, the changes of the tensors that the function closes over.

    Example:
        >>> print(explanation("f", [], None, [], "notebook.py:3"))
        f is traced: it was not called before
          at notebook.py:3
    """
    known = list(old)
    if not known:
        return f"{name} is traced: it was not called before\n  at {where}"
    # a difference in containers, or in the number of arguments, counts more than any leaf
    alike = [before for before in known if _containers(before) == _containers(new)] or known
    differences = [list(_differences(leaf_names, before, new)) for before in alike]
    nearest = min(reversed(differences), key=len)  # among equals the latest
    lines = nearest[:MOST_LINES] or [*closed]
    if len(nearest) > MOST_LINES:
        lines.append(f"and {len(nearest) - MOST_LINES} more")
    return "\n  ".join([f"{name} is traced again", *lines, f"at {where}"])


def _containers(signature: Signature) -> tuple[object, ...]:
    """The structure of the arguments, without the leaves."""
    return signature.tree, signature.nones, len(signature.metas)


def _kinds(signature: Signature) -> list[str]:
    return [
        f"a number, {m}" if is_one else str(m) for m, is_one in zip(signature.metas, signature.numbers, strict=True)
    ]


def _differences(leaf_names: Sequence[str], before: Signature, now: Signature) -> Iterator[str]:
    if _containers(before) != _containers(now):
        yield f"the arguments are put together otherwise: {_spelled(before)}, now {_spelled(now)}"
    else:
        pairs = zip(leaf_names, _kinds(before), _kinds(now), strict=True)
        yield from (f"{label}: {a}, now {b}" for label, a, b in pairs if a != b)
    old, new = ({key: f"{value!r}" for key, _, value in s.static} for s in (before, now))
    for key in dict.fromkeys([*old, *new]):
        if old.get(key) != new.get(key):
            yield f"static argument {key!r}: {old.get(key, 'not given')}, now {new.get(key, 'not given')}"
    if before.around != now.around:
        yield "the devices, or the names of mapped axes around it, changed"
    if before.flags != now.flags:
        yield "a configuration flag or the mesh that is set changed"


def _spelled(signature: Signature) -> str:
    return spelled_call(signature.tree, signature.nones)


_explained: set[tuple[int, str]] = set()
MOST = 4096  # remembered; then all are forgotten, and may be explained again


def explain_gathers(program: Program, mesh: Mesh | None) -> None:
    """Print, if the flag is set, why a program that is called gathers operands; once for each program and line.

    Communication: none.
    """
    if not config.read("explain_gathers"):
        return
    caller = users_line()
    if (program.number, str(caller)) in _explained:
        return
    if len(_explained) >= MOST:
        _explained.clear()
    _explained.add((program.number, str(caller)))
    mesh_axes = axis_names(program, mesh)
    for part, times in with_bodies(program, every=True):
        for number, reason in part.reasons:
            step = part.steps[number]
            operands = ", ".join(str(part.metas[x.number]) for x in values_in(step.args))
            over = "*".join(name for a in step.kwargs["axes"] for name in mesh_axes[a])
            nbytes = bytes_sent(part, step)
            print(
                f"{reason.op} gathers an operand, in {reason.where or caller}\n"
                f"  what: all_gather of {operands} over {over}, "
                f"{nbytes:,} bytes sent by the busiest device{f', {times:,} times' if times > 1 else ''}\n"
                f"  why:  {reason.why}",
                file=sys.stderr,
            )
