"""What GPUs call in place of ops that torch has for CPUs alone; here on the CPU, beside torch's op."""

from typing import Any

import pytest
import torch

from tinyshard.core.program import find_op
from tinyshard.runtime.worker.gpu import GPU_KERNELS

FORWARD, BACKWARD, LSTM = GPU_KERNELS
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float64).to(dtype)


MASK = torch.zeros(5, 7)
MASK[0], MASK[2, 3:] = -torch.inf, -torch.inf
ATTENTIONS = {
    "plain": ((4, 7), {}),
    "of shared heads": ((2, 7), {}),
    "causal": ((4, 7), {"is_causal": True}),
    "with a scale": ((4, 5), {"scale": 0.3}),
    "with a mask, of which a row has nothing": ((4, 7), {"attn_mask": MASK}),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_and_its_gradient_are_torchs(name: str, dtype: torch.dtype) -> None:
    (heads, length), options = ATTENTIONS[name]
    named: dict[str, Any] = dict(options)
    if "attn_mask" in named:
        named["attn_mask"] = named["attn_mask"].to(dtype)
    is_causal = named.pop("is_causal", False)
    q, k, v = (
        drawn(2, 4, 5, 8, dtype=dtype),
        drawn(2, heads, length, 8, dtype=dtype),
        drawn(2, heads, length, 8, dtype=dtype),
    )
    # torch's rounds the weights of attention to 16 bits
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype.itemsize == 2 else {}
    want = find_op(FORWARD)(q, k, v, 0.0, is_causal, **named)
    torch.testing.assert_close(GPU_KERNELS[FORWARD](q, k, v, 0.0, is_causal, **named), want, **tolerance)
    if heads == 4:  # torch's op for the gradient has no shared heads
        rest = (q, k, v, *want, 0.0, is_causal)
        got = GPU_KERNELS[BACKWARD](drawn(2, 4, 5, 8, dtype=dtype), *rest, **named)
        torch.testing.assert_close(got, find_op(BACKWARD)(drawn(2, 4, 5, 8, dtype=dtype), *rest, **named), **tolerance)


def test_the_gradient_of_shared_heads_is_the_sum_of_those_of_copies() -> None:
    q, k, g = drawn(2, 4, 5, 8), drawn(2, 2, 7, 8), drawn(2, 4, 5, 8)
    many = k.repeat_interleave(2, 1)
    made = GPU_KERNELS[FORWARD](q, k, k)
    got = GPU_KERNELS[BACKWARD](g, q, k, k, *made, 0.0, False)
    want = find_op(BACKWARD)(g, q, many, many, *made, 0.0, False)
    torch.testing.assert_close(got[0], want[0])
    for ours, theirs in zip(got[1:], want[1:], strict=True):
        torch.testing.assert_close(ours, theirs.unflatten(1, (2, 2)).sum(2))


@pytest.mark.parametrize("is_reversed", [False, True])
@pytest.mark.parametrize("has_biases", [False, True])
def test_a_layer_of_an_lstm_is_torchs(has_biases: bool, is_reversed: bool) -> None:
    biases = [drawn(12), drawn(12) * 2] if has_biases else [torch.zeros(12), torch.zeros(12)]
    operands = (drawn(5, 2, 4), drawn(12, 4), drawn(12, 3), *biases, drawn(2, 3), drawn(2, 3) + 1)
    rest = (is_reversed, [], 2, 3, 1, has_biases, False, False, False)
    want = find_op(LSTM)(*operands, *rest)
    torch.testing.assert_close(GPU_KERNELS[LSTM](*operands, *rest)[:3], want[:3])
