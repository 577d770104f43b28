"""Ops that compute each line along some dims by itself: the dims of a line must be whole, all other dims may be cut.

cumsum(x, dim=1)       a line is along dim 1
renorm(x, 2, 0, 1.0)   each index of dim 0 has its own norm: a line is along all other dims
"""

from __future__ import annotations

from typing import Any

from tinyshard.partition.rule import Rule
from tinyshard.partition.rules.call import Call, Family, Row
from tinyshard.partition.rules.elementwise import elementwise


def along(argument: str, **more: Any) -> Family:
    """Lines along the dims that an argument names.

    Args:
        argument: "dim" or "dims".
        **more: other attributes of the rule.
    """
    return lambda call: elementwise(call, whole=call.dims(argument), **more)


def sliced(call: Call) -> Rule:
    """A slice of a whole dim is a slice of each whole block."""
    whole = [d for d in call.dims("dim") if call.result_shapes[0][d] != call.shape[d]]
    return elementwise(call, whole=whole, passes="moved")


def padded(call: Call) -> Rule:
    """Padding a part of a sum with zeros gives a part of the padded sum."""
    rank, pad = len(call.shape), call["pad"]
    whole = {rank - 1 - i // 2 for i, n in enumerate(pad) if n}
    return elementwise(call, whole=whole, passes="summed" if call["value"] == 0 else "")


def repeated(call: Call) -> Rule:
    """Dims that are repeated once may be cut."""
    repeats = call["repeats"]
    new = len(repeats) - len(call.shape)
    return elementwise(call, whole=[d for d, n in enumerate(repeats) if n != 1 or d < new])


def joined(call: Call) -> Rule | None:
    """cat; torch takes empty tensors of one dim beside those of more."""
    rank = len(call.result_shapes[0])
    if any(len(s) != rank for s in call.shapes):
        return None
    return elementwise(call, whole=call.dims("dim", rank), passes="summed")


def renormed(call: Call) -> Rule:
    """renorm: along its dim each slice has its own norm, over all other dims."""
    return elementwise(call, whole=set(range(len(call.shape))) - call.dims("dim"))


ROWS: dict[str, Row] = {
    "_softmax _log_softmax _safe_softmax _softmax_backward_data _log_softmax_backward_data": along("dim"),
    "cumsum cumprod cummax cummin logcumsumexp": along("dim"),
    "sort sort.stable topk linalg_cross glu glu_backward narrow_copy": along("dim"),
    "_fft_c2c _fft_c2r _fft_r2c": along("dim"),
    "flip roll": along("dims"),
    "slice.Tensor": sliced,
    "split.Tensor split_with_sizes split_with_sizes_copy": along("dim", passes="moved"),
    "constant_pad_nd": padded,
    "repeat": repeated,
    "renorm": renormed,
    "cat": joined,
}
