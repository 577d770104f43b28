"""The losses of torch.nn that the sweep runs, one row a call, each with every reduction that it has."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.sweeps.nn_cases import SEQUENCE, Case, below, normal, positive

LOSSES: dict[str, Case] = {}


def loss(
    name: str,
    make: Callable[..., nn.Module],
    *inputs: Any,
    fixed: tuple[int, ...] = (),
    reductions: tuple[str, ...] = ("none", "mean", "sum"),
) -> None:
    for reduction in reductions:
        LOSSES[f"{name}, {reduction}"] = Case(functools.partial(make, reduction=reduction), inputs, fixed=fixed)


def signs(*shape: int) -> Tensor:
    return below(2, *shape, seed=1) * 2.0 - 1.0


SCORES, SCORES_OF_PIXELS = normal(8, 16), normal(8, 8, 4, 2)
OTHER = normal(8, 16, seed=1)
SHARES = positive(8, 16, seed=2)
CHANCES, WANTED = normal(8, 16).sigmoid(), below(2, 8, 16, seed=1).float()
CLASSES, SOME = below(16, 8, seed=1), torch.tensor([1, -100, 3, 0, -100, 5, 9, 15])
WEIGHT = positive(16)

# ---- distances -----------------------------------------------------------------------------------------------------

loss("L1Loss", nn.L1Loss, SCORES, OTHER)
loss("MSELoss", nn.MSELoss, SCORES, OTHER)
loss("MSELoss of a sequence", nn.MSELoss, SEQUENCE, normal(8, 8, 16, seed=1))
loss("SmoothL1Loss", nn.SmoothL1Loss, SCORES, OTHER)
loss("SmoothL1Loss beta", functools.partial(nn.SmoothL1Loss, beta=0.5), SCORES, OTHER)
loss("HuberLoss", nn.HuberLoss, SCORES, OTHER)
loss("HuberLoss delta", functools.partial(nn.HuberLoss, delta=0.5), SCORES, OTHER)

# ---- classes -------------------------------------------------------------------------------------------------------

loss("CrossEntropyLoss", nn.CrossEntropyLoss, SCORES, CLASSES)
loss("CrossEntropyLoss weight", functools.partial(nn.CrossEntropyLoss, WEIGHT), SCORES, CLASSES)
loss("CrossEntropyLoss ignore_index", nn.CrossEntropyLoss, SCORES, SOME)
loss(
    "CrossEntropyLoss weight, smoothing",
    functools.partial(nn.CrossEntropyLoss, WEIGHT, label_smoothing=0.1, ignore_index=3),
    SCORES,
    CLASSES,
)
loss("CrossEntropyLoss smoothing", functools.partial(nn.CrossEntropyLoss, label_smoothing=0.1), SCORES, CLASSES)
loss("CrossEntropyLoss shares", nn.CrossEntropyLoss, SCORES, SHARES)
loss("CrossEntropyLoss shares, weight", functools.partial(nn.CrossEntropyLoss, WEIGHT), SCORES, SHARES)
loss("CrossEntropyLoss of pixels", nn.CrossEntropyLoss, SCORES_OF_PIXELS, below(8, 8, 4, 2))
loss("CrossEntropyLoss of one", nn.CrossEntropyLoss, normal(16), torch.tensor(3))
loss("NLLLoss", nn.NLLLoss, SCORES.log_softmax(1), CLASSES)
loss("NLLLoss weight", functools.partial(nn.NLLLoss, WEIGHT), SCORES.log_softmax(1), SOME)
loss("NLLLoss of pixels", nn.NLLLoss, SCORES_OF_PIXELS.log_softmax(1), below(8, 8, 4, 2))
linear = functools.partial(nn.LinearCrossEntropyLoss, 16, 8)
loss("LinearCrossEntropyLoss", linear, SCORES, below(8, 8))
loss("LinearCrossEntropyLoss weight", functools.partial(linear, bias=True, weight=positive(8)), SCORES, below(8, 8))
loss("BCELoss", nn.BCELoss, CHANCES, WANTED)
loss("BCELoss weight", functools.partial(nn.BCELoss, WEIGHT), CHANCES, WANTED)
loss("BCEWithLogitsLoss", nn.BCEWithLogitsLoss, SCORES, WANTED)
loss("BCEWithLogitsLoss weight", functools.partial(nn.BCEWithLogitsLoss, WEIGHT), SCORES, WANTED)
loss("BCEWithLogitsLoss pos_weight", functools.partial(nn.BCEWithLogitsLoss, pos_weight=WEIGHT), SCORES, WANTED)
loss("MultiLabelSoftMarginLoss", nn.MultiLabelSoftMarginLoss, SCORES, WANTED)
loss("MultiLabelSoftMarginLoss weight", functools.partial(nn.MultiLabelSoftMarginLoss, WEIGHT), SCORES, WANTED)
LABELS = torch.where(torch.arange(16) < 3, (below(16, 8, 1) + torch.arange(16) * 5) % 16, -1)
loss("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, SCORES, LABELS)
loss("MultiMarginLoss", nn.MultiMarginLoss, SCORES, CLASSES)
loss("MultiMarginLoss weight, p", functools.partial(nn.MultiMarginLoss, p=2, weight=WEIGHT), SCORES, CLASSES)
loss("SoftMarginLoss", nn.SoftMarginLoss, SCORES, signs(8, 16), fixed=(1,))

# ---- distributions -------------------------------------------------------------------------------------------------

DIVERGENCE = ("none", "mean", "sum", "batchmean")
loss("KLDivLoss", nn.KLDivLoss, SCORES.log_softmax(1), SHARES, reductions=DIVERGENCE)
loss("KLDivLoss of logs", functools.partial(nn.KLDivLoss, log_target=True), SCORES, OTHER, reductions=DIVERGENCE)
loss("PoissonNLLLoss", nn.PoissonNLLLoss, SCORES, SHARES)
loss("PoissonNLLLoss full", functools.partial(nn.PoissonNLLLoss, log_input=False, full=True), SHARES, SHARES * 2)
loss("GaussianNLLLoss", nn.GaussianNLLLoss, SCORES, OTHER, SHARES)
loss(
    "GaussianNLLLoss one variance a row, full",
    functools.partial(nn.GaussianNLLLoss, full=True),
    SCORES,
    OTHER,
    SHARES[:, :1],
)

# ---- pairs and triples ---------------------------------------------------------------------------------------------

loss("CosineEmbeddingLoss", functools.partial(nn.CosineEmbeddingLoss, margin=0.1), SCORES, OTHER, signs(8))
loss("HingeEmbeddingLoss", nn.HingeEmbeddingLoss, SCORES, signs(8, 16))
loss("MarginRankingLoss", functools.partial(nn.MarginRankingLoss, margin=0.1), SCORES, OTHER, signs(8, 16))
loss("TripletMarginLoss", nn.TripletMarginLoss, SCORES, OTHER, SHARES)
loss("TripletMarginLoss swap, p", functools.partial(nn.TripletMarginLoss, p=1.0, swap=True), SCORES, OTHER, SHARES)
loss("TripletMarginWithDistanceLoss", nn.TripletMarginWithDistanceLoss, SCORES, OTHER, SHARES)

# ---- sequences -----------------------------------------------------------------------------------------------------

SPOKEN = (normal(16, 8, 8).log_softmax(2), below(7, 8, 4) + 1)  # steps, batch, letters of which 0 is the blank
LENGTHS = torch.full((8,), 16), torch.tensor([4, 3, 2, 1, 4, 3, 2, 1])
HURRIED = torch.tensor([16, 2, 16, 1, 2, 16, 16, 1])  # some have fewer steps than letters, which cannot be
loss("CTCLoss", nn.CTCLoss, *SPOKEN, *LENGTHS)
loss("CTCLoss zero_infinity", functools.partial(nn.CTCLoss, zero_infinity=True), *SPOKEN, HURRIED, LENGTHS[1])
