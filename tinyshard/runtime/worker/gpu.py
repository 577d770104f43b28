"""Kernels of GPUs in place of ops that torch has for CPUs alone: a trace, which uses tensors on the CPU, has them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float) -> Tensor:
    """The scores of attention: query @ key.T * scale, -inf for masked positions."""
    scores = query @ key.mT * scale
    if mask is not None:
        scores = scores + mask
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    return scores


def _widened(*xs: Tensor) -> list[Tensor]:
    """Tensors in float32, if they have 16 bits: torch's op computes in float32."""
    return [x if x.dtype == torch.float64 else x.float() for x in xs]


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """`aten._scaled_dot_product_flash_attention_for_cpu`, which refuses dropout.

    Returns:
        As that op: the result, and for the gradient the logarithms of the sums of the exponentiated scores.
    """
    if dropout_p:
        raise NotImplementedError("this op has no dropout, on a GPU as on a CPU")
    heads = query.size(1) // key.size(1)  # several heads of queries may share one of keys
    q, k, v = _widened(query, key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1))
    scores = _scores(q, k, is_causal, attn_mask, query.size(-1) ** -0.5 if scale is None else scale)
    sums = scores.logsumexp(-1)
    sums = torch.where(sums == -torch.inf, 0, sums)  # a query with all positions masked gets zeros
    return ((scores - sums[..., None]).exp() @ v).to(query.dtype), sums


def attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aten._scaled_dot_product_flash_attention_for_cpu_backward`: the gradients of query, key and value."""
    heads = query.size(1) // key.size(1)
    wide = _widened(grad_out, query, key.repeat_interleave(heads, 1), value.repeat_interleave(heads, 1), out)
    g, q, k, v, forward = wide
    factor = query.size(-1) ** -0.5 if scale is None else scale
    weights = (_scores(q, k, is_causal, attn_mask, factor) - logsumexp[..., None]).exp()
    of_scores = weights * (g @ v.mT - (g * forward).sum(-1, keepdim=True)) * factor

    def shared(x: Tensor) -> Tensor:
        return x.unflatten(1, (-1, heads)).sum(2)

    found = of_scores @ k, shared(of_scores.mT @ q), shared(weights.mT @ g)
    return tuple(x.to(query.dtype) for x in found)  # type: ignore[return-value]


def lstm_layer(x: Tensor, *operands: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`aten.mkldnn_rnn_layer`, which torch calls for one direction of one layer of an LSTM.

    Args:
        x: (steps, batch, features).
        operands: four weights, the state, the cell, whether it runs backwards, and eight more; the fifth of these is
            whether there are biases.

    Returns:
        As that op: the results, the last state, the last cell, and a workspace, which is empty.
    """
    (*weights, state, cell, is_reversed), has_biases = operands[:7], operands[11]
    x = x.flip(0) if is_reversed else x
    start = [state[None], cell[None]]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about weights that are not in a module's single block of memory
        out, *last = torch.lstm(x, start, weights[: 4 if has_biases else 2], has_biases, 1, 0.0, False, False, False)
    workspace = torch.empty(0, dtype=torch.uint8, device=x.device)
    return out.flip(0) if is_reversed else out, last[0][0], last[1][0], workspace


GPU_KERNELS: dict[str, Callable[..., Any]] = {
    "aten._scaled_dot_product_flash_attention_for_cpu.default": attention,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward.default": attention_backward,
    "aten.mkldnn_rnn_layer.default": lstm_layer,
}
