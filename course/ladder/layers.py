"""Rungs 6 to 10: layers whose operands are cut. All but the exponentials are of whole numbers: sums are exact."""

from __future__ import annotations

import functools
from typing import Any

import torch

import tinyshard as ts
from course.ladder.rung import CLOSE, DEVICES, Par, Rung

__all__ = ["RUNGS"]

P = ts.P
EVERY = tuple(map(str, range(DEVICES)))
Tensors = tuple[torch.Tensor, ...]


def whole_numbers(seed: int, most: int, *shape: int) -> torch.Tensor:
    """Whole numbers from -most to most, as float32.

    Example:
        >>> whole_numbers(3, 1, 2, 3).unique().tolist()
        [-1.0, 0.0, 1.0]
    """
    return torch.randint(-most, most + 1, shape, generator=torch.Generator().manual_seed(seed)).float()


def few(seed: int, *shape: int) -> torch.Tensor:
    """A matrix of 1, -1, and three times as many zeros: products of many of them stay exact."""
    return whole_numbers(seed, 1, *shape) * (whole_numbers(seed + 1, 1, *shape) == 1)


def own(name: str) -> tuple[tuple[str, ...], ...]:
    """Each device has its own block."""
    return tuple((f"{name}.{device}",) for device in EVERY)


def copies(name: str) -> tuple[tuple[str, ...], ...]:
    """Each device has the whole."""
    return ((name,),) * DEVICES


# ---- 18.6: a product whose left operand is cut by rows ------------------------------------------------------------

ROWS, INNER, COLUMNS = 32, 512, 64  # of one device


@functools.cache
def rows_and_columns() -> Tensors:
    """x f32[256, 512] and w f32[512, 512].

    Example:
        >>> [tuple(each.shape) for each in rows_and_columns()]
        [(256, 512), (512, 512)]
    """
    return whole_numbers(4, 2, DEVICES * ROWS, INNER), whole_numbers(5, 2, INNER, DEVICES * COLUMNS)


# ---- 18.7: layer norm ---------------------------------------------------------------------------------------------

EXAMPLES, FEATURES = 64, 1024


@functools.cache
def far_from_zero() -> Tensors:
    """f32[64, 1024] around 300: sums of squares of such numbers have too few digits in 32 bits.

    Example:
        >>> float(far_from_zero()[0].mean().round())
        300.0
    """
    return (300 + whole_numbers(6, 9, EXAMPLES, FEATURES),)


def _layer_norm(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x.double(), (FEATURES,)).float()


# ---- 18.8: cross entropy ------------------------------------------------------------------------------------------

TOKENS, WIDTH, VOCABULARY = 64, 32, 1024


@functools.cache
def tokens_head_and_targets() -> Tensors:
    """x f32[64, 32], w f32[32, 1024] and targets i64[64]; exp of the largest logits overflows.

    Example:
        >>> x, w, targets = tokens_head_and_targets()
        >>> float(torch.exp((x @ w).amax()))
        inf
    """
    targets = torch.randint(VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(7))
    return whole_numbers(8, 5, TOKENS, WIDTH), whole_numbers(9, 3, WIDTH, VOCABULARY), targets


def _losses(x: torch.Tensor, w: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    losses = torch.nn.functional.cross_entropy(x.double() @ w.double(), targets, reduction="none")
    return losses.float().repeat(DEVICES)


# ---- 18.9: FSDP ---------------------------------------------------------------------------------------------------

LAYERS, SIDE, BATCH = 4, 128, 32  # the batch of one device
MATRIX_NBYTES = 4 * SIDE * SIDE


@functools.cache
def matrices_batch_and_gradient() -> tuple[list[torch.Tensor], torch.Tensor, torch.Tensor]:
    """Four matrices f32[128, 128], a batch f32[256, 128], and the gradient of what the last layer makes of it.

    Example:
        >>> matrices, x, gradient = matrices_batch_and_gradient()
        >>> len(matrices), tuple(x.shape), tuple(gradient.shape)
        (4, (256, 128), (256, 128))
    """
    matrices = [few(10 + 2 * layer, SIDE, SIDE) for layer in range(LAYERS)]
    return matrices, whole_numbers(20, 2, DEVICES * BATCH, SIDE), whole_numbers(21, 1, DEVICES * BATCH, SIDE)


def _layers_and_gradients(matrices: list[torch.Tensor], x: torch.Tensor, gradient: torch.Tensor) -> Any:
    leaves = [matrix.clone().requires_grad_() for matrix in matrices]
    for leaf in leaves:
        x = x.relu() @ leaf
    return x.detach(), list(torch.autograd.grad(x, leaves, gradient))


# ---- 18.10: an MLP in Megatron's layout ---------------------------------------------------------------------------

PLACES, NARROW, WIDE = 16, 64, 256


@functools.cache
def mlp_and_gradient() -> Tensors:
    """x f32[16, 64], up f32[64, 256], down f32[256, 64], and the gradient of the result f32[16, 64].

    Example:
        >>> [tuple(each.shape) for each in mlp_and_gradient()]
        [(16, 64), (64, 256), (256, 64), (16, 64)]
    """
    return (
        whole_numbers(22, 2, PLACES, NARROW),
        few(23, NARROW, WIDE),
        few(25, WIDE, NARROW),
        whole_numbers(27, 1, PLACES, NARROW),
    )


def _mlp_and_gradients(x: torch.Tensor, up: torch.Tensor, down: torch.Tensor, gradient: torch.Tensor) -> Tensors:
    leaves = [each.clone().requires_grad_() for each in (x, up, down)]
    y = (leaves[0] @ leaves[1]).relu() @ leaves[2]
    of_x, of_up, of_down = torch.autograd.grad(y, leaves, gradient)
    return y.detach().repeat(DEVICES, 1), of_x.repeat(DEVICES, 1), of_up, of_down


RUNGS = (
    Rung(
        "18.6",
        "matmul around a ring",
        given=(("x, by rows", own("x")), ("w, by columns", own("w"))),
        wanted=(("x @ w, by columns", tuple((f"y.{device}",) for device in EVERY)),),
        par=Par(
            nbytes=7 * 4 * ROWS * INNER,
            # two blocks of x, one of w, and the result three times: in pieces, joined, and in order
            peak_nbytes=4 * (2 * ROWS * INNER + INNER * COLUMNS + 3 * DEVICES * ROWS * COLUMNS) + 1024,
            flops=2 * DEVICES * ROWS * INNER * COLUMNS,
        ),
        inputs=rows_and_columns,
        want=lambda x, w: x @ w,
        in_specs=(P("d"), P(None, "d")),
        out_specs=P(None, "d"),
    ),
    Rung(
        "18.7",
        "layer norm of features that are cut",
        given=(("x, by columns", own("x")),),
        wanted=(("norm of x, by columns", own("y")),),
        # two all-reduces of a number for each of 64 rows; x, what is left of it, its square or the result
        par=Par(
            nbytes=2 * 2 * 7 * EXAMPLES * 4 // DEVICES, peak_nbytes=4 * EXAMPLES * FEATURES * 4 // DEVICES, rounds=2
        ),
        inputs=far_from_zero,
        want=_layer_norm,
        in_specs=P(None, "d"),
        out_specs=P(None, "d"),
        tolerance=CLOSE,
    ),
    Rung(
        "18.8",
        "cross entropy of a vocabulary that is cut",
        given=(("x", copies("x")), ("w, by columns", own("w")), ("targets", copies("t"))),
        wanted=(("loss of each token", copies("loss")),),
        # of each token the logsumexp of a block and the target's logit to the device that finishes the token, and its
        # loss back to all; held are x, w and targets, three blocks of 64 x 128 floats, and a mask of that shape
        par=Par(nbytes=(2 + 1) * 7 * TOKENS * 4 // DEVICES, peak_nbytes=136 * 1024, rounds=2),
        inputs=tokens_head_and_targets,
        want=_losses,
        in_specs=(P(), P(None, "d"), P()),
        out_specs=P("d"),
        tolerance=CLOSE,
    ),
    Rung(
        "18.9",
        "FSDP: four layers forward and backward",
        given=(
            ("4 shards, by rows", own("W")),
            ("x, by examples", own("x")),
            ("gradient, by examples", own("g")),
        ),
        wanted=(("outputs, by examples", own("y")), ("4 gradients, by rows", own("dW"))),
        # gathered four times forward, and backward all but the first and the last; four gradients scattered; held are
        # shards, relu of what layers were given, a whole matrix and a whole gradient
        par=Par(
            nbytes=(2 * LAYERS - 2 + LAYERS) * MATRIX_NBYTES * 7 // 8,
            peak_nbytes=280 * 1024,
            flops=(3 * LAYERS - 1) * 2 * BATCH * SIDE**2,
        ),
        inputs=matrices_batch_and_gradient,
        want=_layers_and_gradients,
        in_specs=P("d"),
        out_specs=P("d"),
    ),
    Rung(
        "18.10",
        "Megatron's MLP, forward and backward",
        given=(
            ("x", copies("x")),
            ("up, by columns", own("up")),
            ("down, by rows", own("dn")),
            ("gradient", copies("g")),
        ),
        wanted=(
            ("y", copies("y")),
            ("gradient of x", copies("dx")),
            ("gradient of up", own("dup")),
            ("gradient of down", own("ddn")),
        ),
        par=Par(nbytes=2 * 2 * 7 * 4 * PLACES * NARROW // DEVICES, peak_nbytes=72 * 1024, rounds=1),
        inputs=mlp_and_gradient,
        want=_mlp_and_gradients,
        in_specs=(P(), P(None, "d"), P("d"), P()),
        out_specs=(P("d"), P("d"), P(None, "d"), P("d")),
    ),
)
