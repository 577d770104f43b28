"""What torch's op database does on plain tensors and tinyshard refuses on Arrays, by op, with the reason in a word.

Nothing here gives another number than torch: a refusal is an error. In `make sweep` an op that passes is an error too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """A row of the table.

    Attributes:
        reason: "random" (it draws from torch's own generator), "shape" (of the result, depends on values, under jit),
            "sparse" (the result), "resizes" (its operand), "written" (an operand that is an Array is overwritten, or
            given new running statistics), "refused" (none of these).
        modes: how it is called when it is refused.
    """

    reason: str
    modes: tuple[str, ...]


def _rows(reason: str, modes: tuple[str, ...], names: str) -> dict[str, Refusal]:
    return {name: Refusal(reason, modes) for name in names.split()}


_MASKS = """
nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d nn.functional.alpha_dropout
"""
_DRAWS_WITH_GRADIENT = """
bernoulli nn.functional.feature_alpha_dropout.with_train nn.functional.multi_head_attention_forward
nn.functional.rrelu nn.functional.scaled_dot_product_attention normal normal.number_mean
"""
_DRAWS = """
cauchy exponential geometric log_normal multinomial normal.in_place rand_like randint_like randn_like uniform
"""
_SHAPES = """
argwhere bincount combinations linalg.lstsq linalg.lstsq.grad_oriented masked_select nn.functional.ctc_loss
nonzero repeat_interleave tensor_split unique unique_consecutive nn.functional.one_hot
"""
_STATISTICS = "nn.functional.batch_norm nn.functional.instance_norm native_batch_norm _native_batch_norm_legit"

MISSES: dict[str, Refusal] = {
    **_rows("random", ("eager", "jit", "gradient", "vmap"), _MASKS),
    **_rows("random", ("eager", "jit", "gradient"), _DRAWS_WITH_GRADIENT),
    **_rows("random", ("eager", "jit"), _DRAWS),
    **_rows("random", ("jit",), "nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d"),
    **_rows("random", ("jit",), "svd_lowrank pca_lowrank"),
    **_rows("shape", ("jit",), _SHAPES),
    **_rows("sparse", ("eager", "jit", "gradient"), "to_sparse"),
    **_rows("resizes", ("eager",), "resize_ resize_as_"),
    **_rows("written", ("eager", "gradient"), "zero_"),
    **_rows("written", ("eager", "jit", "gradient"), "nn.functional.embedding"),  # with max_norm
    **_rows("written", ("eager", "jit", "gradient", "vmap"), "nn.functional.embedding_bag"),  # likewise
    **_rows("written", ("eager", "jit", "vmap"), _STATISTICS),
    **_rows("written", ("eager", "jit"), "_batch_norm_with_update"),
    **_rows("refused", ("jit",), "allclose equal item"),  # a Python value is asked for
    **_rows("refused", ("jit",), "istft"),  # torch reads a value to check it
}
# one op of torch under several names
ONE_OP = {
    "native_batch_norm": "nn.functional.batch_norm",
    "_native_batch_norm_legit": "nn.functional.batch_norm",
    "_batch_norm_with_update": "nn.functional.batch_norm",
}
# what torch.empty holds: there is no right number
NOT_RUN: dict[str, str] = dict.fromkeys(("empty_like", "new_empty", "new_empty_strided"), "uninitialized")
