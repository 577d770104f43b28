"""The modules of torch.nn that the sweep runs, one row a call; the losses are in nn_losses.

A row's name begins with the module's; what follows says how this row differs from the others.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Case:
    """A call of a module.

    Attributes:
        make: makes the module.
        inputs: a tree of tensors for each argument.
        kwargs: arguments by name, the same in every layout.
        fixed: numbers of the tensors among the inputs that torch cannot differentiate by.
        buffers_on_host: whether the module's buffers stay plain tensors.
    """

    make: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    fixed: tuple[int, ...] = ()
    buffers_on_host: bool = False


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers, the same for the same arguments."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def positive(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed).abs() + 0.5


def below(most: int, *shape: int, seed: int = 0) -> Tensor:
    """Whole numbers under `most`."""
    return torch.randint(most, shape, generator=torch.Generator().manual_seed(seed))


CASES: dict[str, Case] = {}


def row(
    name: str,
    make: Callable[[], nn.Module],
    *inputs: Any,
    fixed: tuple[int, ...] = (),
    buffers_on_host: bool = False,
    **kwargs: Any,
) -> None:
    assert name not in CASES
    CASES[name] = Case(make, inputs, kwargs, fixed, buffers_on_host)


def causal(n: int) -> Tensor:
    """True above the diagonal: what a position may not attend to."""
    return torch.ones(n, n, dtype=torch.bool).triu(1)


ROWS, SEQUENCE, IMAGE = normal(8, 8), normal(8, 8, 16), normal(8, 8, 8, 4)

# ---- linear --------------------------------------------------------------------------------------------------------

row("Linear", lambda: nn.Linear(8, 16), ROWS)
row("Linear no bias, three dims", lambda: nn.Linear(16, 8, bias=False), SEQUENCE)
row("Linear one vector", lambda: nn.Linear(8, 16), normal(8))
row("Bilinear", lambda: nn.Bilinear(8, 4, 16), ROWS, normal(8, 4, seed=1))
row("Identity", nn.Identity, ROWS)
row("Sequential", lambda: nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), ROWS)

# ---- convolutions --------------------------------------------------------------------------------------------------

row("Conv1d", lambda: nn.Conv1d(8, 16, 3), SEQUENCE)
row("Conv1d stride and padding", lambda: nn.Conv1d(8, 8, 3, stride=2, padding=1), SEQUENCE)
row("Conv1d groups, dilation", lambda: nn.Conv1d(8, 16, 3, groups=4, dilation=2, padding="same"), SEQUENCE)
row("Conv1d circular", lambda: nn.Conv1d(8, 8, 3, padding=1, padding_mode="circular"), SEQUENCE)
row("Conv2d", lambda: nn.Conv2d(8, 16, 3), IMAGE)
row("Conv2d stride and padding", lambda: nn.Conv2d(8, 8, 3, stride=2, padding=1), IMAGE)
row("Conv2d depthwise, no bias", lambda: nn.Conv2d(8, 8, 3, groups=8, padding=1, bias=False), IMAGE)
row("Conv2d reflect", lambda: nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect"), IMAGE)
row("Conv2d one image", lambda: nn.Conv2d(8, 8, 3), normal(8, 8, 4))
row("Conv3d", lambda: nn.Conv3d(4, 8, 2), normal(8, 4, 4, 4, 2))
row("ConvTranspose1d", lambda: nn.ConvTranspose1d(8, 4, 4, stride=2, padding=1), SEQUENCE)
row("ConvTranspose2d", lambda: nn.ConvTranspose2d(8, 4, 3, stride=2, output_padding=1, groups=2), IMAGE)
row("ConvTranspose3d", lambda: nn.ConvTranspose3d(4, 2, 2), normal(8, 4, 2, 2, 2))

# ---- norms ---------------------------------------------------------------------------------------------------------

row("BatchNorm1d training in Arrays", lambda: nn.BatchNorm1d(8), ROWS)
row("BatchNorm1d training, three dims", lambda: nn.BatchNorm1d(8), SEQUENCE)
row("BatchNorm1d training on the host", lambda: nn.BatchNorm1d(8), ROWS, buffers_on_host=True)
row("BatchNorm2d training on the host", lambda: nn.BatchNorm2d(8), IMAGE, buffers_on_host=True)
row("BatchNorm1d eval", lambda: nn.BatchNorm1d(8).eval(), ROWS)
row("BatchNorm1d no statistics", lambda: nn.BatchNorm1d(8, track_running_stats=False), ROWS)
row("BatchNorm1d no affine, averages", lambda: nn.BatchNorm1d(8, affine=False, momentum=None), ROWS)
row("BatchNorm2d training in Arrays", lambda: nn.BatchNorm2d(8), IMAGE)
row("BatchNorm2d eval", lambda: nn.BatchNorm2d(8).eval(), IMAGE)
row("BatchNorm3d training", lambda: nn.BatchNorm3d(4), normal(8, 4, 2, 2, 2))
row("LayerNorm", lambda: nn.LayerNorm(16), SEQUENCE)
row("LayerNorm two dims, no bias", lambda: nn.LayerNorm((8, 16), bias=False), SEQUENCE)
row("LayerNorm no affine", lambda: nn.LayerNorm(16, elementwise_affine=False), SEQUENCE)
row("GroupNorm", lambda: nn.GroupNorm(4, 8), SEQUENCE)
row("GroupNorm of an image, one group", lambda: nn.GroupNorm(1, 8), IMAGE)
row("InstanceNorm1d", lambda: nn.InstanceNorm1d(8), SEQUENCE)
row("InstanceNorm2d affine", lambda: nn.InstanceNorm2d(8, affine=True), IMAGE)
row("InstanceNorm2d statistics", lambda: nn.InstanceNorm2d(8, track_running_stats=True), IMAGE)
row("InstanceNorm3d", lambda: nn.InstanceNorm3d(4), normal(8, 4, 2, 2, 2))
row("RMSNorm", lambda: nn.RMSNorm(16), SEQUENCE)
row("RMSNorm two dims", lambda: nn.RMSNorm((8, 16), eps=1e-3), SEQUENCE)
row("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), IMAGE)

# ---- attention -----------------------------------------------------------------------------------------------------

ROLES = tuple(normal(8, 4, 16, seed=s) for s in range(3))  # batch, length, features


def attention(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(16, 4, batch_first=True, **options)


def layer(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, **options)


PADDED = torch.tensor([[False, False, False, k % 2 == 1] for k in range(8)])
row("MultiheadAttention", attention(), *ROLES)
row("MultiheadAttention eval", lambda: attention()().eval(), *ROLES)
row("MultiheadAttention without weights", attention(), *ROLES, need_weights=False)
row("MultiheadAttention mask", attention(), *ROLES, attn_mask=causal(4))
row("MultiheadAttention weights of each head", attention(), *ROLES, average_attn_weights=False)
row("MultiheadAttention causal", attention(), *ROLES, attn_mask=causal(4), is_causal=True, need_weights=False)
row("MultiheadAttention padding", attention(), *ROLES, key_padding_mask=PADDED)
row("MultiheadAttention other sizes", attention(kdim=8, vdim=8, bias=False), ROLES[0], ROWS[:, None], ROWS[:, None])
row("MultiheadAttention extra keys", attention(add_bias_kv=True, add_zero_attn=True), *ROLES)
row("MultiheadAttention length first", lambda: nn.MultiheadAttention(16, 4), *(x.mT.mT for x in ROLES))
row("TransformerEncoderLayer", layer(), ROLES[0])
row("TransformerEncoderLayer eval", lambda: layer()().eval(), ROLES[0])
row("TransformerEncoderLayer norm first, gelu", layer(norm_first=True, activation="gelu"), ROLES[0])
row("TransformerEncoderLayer causal", layer(), ROLES[0], src_mask=causal(4), is_causal=True)
row("TransformerEncoder", lambda: nn.TransformerEncoder(layer()(), 2, enable_nested_tensor=False), ROLES[0])
row(
    "TransformerDecoderLayer",
    lambda: nn.TransformerDecoderLayer(16, 4, 32, dropout=0.0, batch_first=True),
    ROLES[0],
    ROLES[1],
)

# ---- embeddings ----------------------------------------------------------------------------------------------------

TOKENS = below(16, 8, 4)
row("Embedding", lambda: nn.Embedding(16, 8), TOKENS)
row("Embedding padding_idx", lambda: nn.Embedding(16, 8, padding_idx=3), TOKENS)
row("Embedding by frequency", lambda: nn.Embedding(16, 8, scale_grad_by_freq=True), TOKENS)
row("Embedding max_norm", lambda: nn.Embedding(16, 8, max_norm=1.0), TOKENS)
row("EmbeddingBag mean", lambda: nn.EmbeddingBag(16, 8), TOKENS)
row("EmbeddingBag sum", lambda: nn.EmbeddingBag(16, 8, mode="sum"), TOKENS)
row("EmbeddingBag max", lambda: nn.EmbeddingBag(16, 8, mode="max"), TOKENS)
row("EmbeddingBag offsets", lambda: nn.EmbeddingBag(16, 8, mode="sum"), below(16, 16), torch.arange(0, 16, 2))
row("EmbeddingBag weights", lambda: nn.EmbeddingBag(16, 8, mode="sum"), TOKENS, per_sample_weights=normal(8, 4))

# ---- recurrent -----------------------------------------------------------------------------------------------------

STEPS = normal(4, 8, 8)  # length, batch, features
row("RNN", lambda: nn.RNN(8, 16), STEPS)
row("RNN relu, batch first", lambda: nn.RNN(8, 16, nonlinearity="relu", batch_first=True), STEPS)
row("LSTM", lambda: nn.LSTM(8, 16), STEPS)
row("LSTM two layers, both ways", lambda: nn.LSTM(8, 8, num_layers=2, bidirectional=True, batch_first=True), STEPS)
row("LSTM with state", lambda: nn.LSTM(8, 16), STEPS, (normal(1, 8, 16), normal(1, 8, 16, seed=1)))
row("LSTM projected", lambda: nn.LSTM(8, 16, proj_size=8), STEPS)
row("GRU", lambda: nn.GRU(8, 16), STEPS)
row("GRU both ways, no bias", lambda: nn.GRU(8, 8, bidirectional=True, bias=False), STEPS, normal(2, 8, 8))
row("RNNCell", lambda: nn.RNNCell(8, 16), ROWS)
row("LSTMCell", lambda: nn.LSTMCell(8, 16), ROWS)
row("GRUCell", lambda: nn.GRUCell(8, 16), ROWS, normal(8, 16))

# ---- pools ---------------------------------------------------------------------------------------------------------

row("MaxPool1d", lambda: nn.MaxPool1d(2), SEQUENCE)
row("MaxPool1d overlapping, indices", lambda: nn.MaxPool1d(3, 1, padding=1, return_indices=True), SEQUENCE)
row("MaxPool2d", lambda: nn.MaxPool2d(2), IMAGE)
row("MaxPool2d overlapping, ceil", lambda: nn.MaxPool2d(3, 2, padding=1, ceil_mode=True), IMAGE)
row("MaxPool3d", lambda: nn.MaxPool3d(2), normal(8, 4, 4, 2, 2))
row("AvgPool1d", lambda: nn.AvgPool1d(2), SEQUENCE)
row("AvgPool2d", lambda: nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), IMAGE)
row("AvgPool3d", lambda: nn.AvgPool3d(2), normal(8, 4, 4, 2, 2))
row("AdaptiveAvgPool1d", lambda: nn.AdaptiveAvgPool1d(4), SEQUENCE)
row("AdaptiveAvgPool2d", lambda: nn.AdaptiveAvgPool2d((4, 2)), IMAGE)
row("AdaptiveAvgPool2d to one", lambda: nn.AdaptiveAvgPool2d(1), IMAGE)
row("AdaptiveAvgPool3d", lambda: nn.AdaptiveAvgPool3d((2, 1, 1)), normal(8, 4, 4, 2, 2))
row("AdaptiveMaxPool1d", lambda: nn.AdaptiveMaxPool1d(4), SEQUENCE)
row("AdaptiveMaxPool2d", lambda: nn.AdaptiveMaxPool2d(2, return_indices=True), IMAGE)
row("AdaptiveMaxPool3d", lambda: nn.AdaptiveMaxPool3d((2, 1, 1)), normal(8, 4, 4, 2, 2))
row("LPPool1d", lambda: nn.LPPool1d(2, 2), SEQUENCE)
row("LPPool2d", lambda: nn.LPPool2d(3, 2), IMAGE.abs())
row("LPPool3d", lambda: nn.LPPool3d(2, 2), normal(8, 4, 4, 2, 2))
SPOTS = torch.arange(8).expand(8, 8, 8) * 2
row("MaxUnpool1d", lambda: nn.MaxUnpool1d(2), normal(8, 8, 8), SPOTS.contiguous())
SPOTS_2D = (torch.arange(8).reshape(2, 4) * 4).repeat(8, 4, 1, 1)
row("MaxUnpool2d", lambda: nn.MaxUnpool2d(2), normal(8, 4, 2, 4), SPOTS_2D)
row("MaxUnpool3d", lambda: nn.MaxUnpool3d(2), normal(8, 4, 1, 2, 4), SPOTS_2D[:, :, None] * 2)
row("FractionalMaxPool2d", lambda: nn.FractionalMaxPool2d(2, (4, 2), _random_samples=positive(8, 8, 2) % 1), IMAGE)
row(
    "FractionalMaxPool3d",
    lambda: nn.FractionalMaxPool3d(2, (2, 2, 2), _random_samples=positive(8, 4, 3) % 1),
    normal(8, 4, 4, 4, 4),
)

# ---- activations ---------------------------------------------------------------------------------------------------

for activation in (
    nn.CELU, nn.ELU, nn.GELU, nn.Hardshrink, nn.Hardsigmoid, nn.Hardswish, nn.Hardtanh, nn.LeakyReLU, nn.LogSigmoid,
    nn.Mish, nn.PReLU, nn.ReLU, nn.ReLU6, nn.SELU, nn.SiLU, nn.Sigmoid, nn.Softplus, nn.Softshrink, nn.Softsign,
    nn.Tanh, nn.Tanhshrink,
):  # fmt: skip
    row(activation.__name__, activation, SEQUENCE)
row("GELU tanh", lambda: nn.GELU("tanh"), SEQUENCE)
row("GLU", nn.GLU, SEQUENCE)
row("GLU middle dim", lambda: nn.GLU(1), SEQUENCE)
row("LogSoftmax", lambda: nn.LogSoftmax(-1), SEQUENCE)
row("LogSoftmax dim 0", lambda: nn.LogSoftmax(0), SEQUENCE)
row("PReLU of channels", lambda: nn.PReLU(8), IMAGE)
row("ReLU in place", lambda: nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True)), ROWS)
row("Softmax", lambda: nn.Softmax(-1), SEQUENCE)
row("Softmax dim 1", lambda: nn.Softmax(1), SEQUENCE)
row("Softmax2d", nn.Softmax2d, IMAGE)
row("Softmin", lambda: nn.Softmin(-1), SEQUENCE)
row("Threshold", lambda: nn.Threshold(0.1, 2.0), SEQUENCE)

# ---- shapes and distances ------------------------------------------------------------------------------------------

row("ChannelShuffle", lambda: nn.ChannelShuffle(2), IMAGE)
row("PixelShuffle", lambda: nn.PixelShuffle(2), IMAGE)
row("PixelUnshuffle", lambda: nn.PixelUnshuffle(2), IMAGE)
row("Upsample nearest", lambda: nn.Upsample(scale_factor=2), IMAGE)
row("Upsample of a sequence", lambda: nn.Upsample(scale_factor=2, mode="linear"), SEQUENCE)
row("Upsample bilinear", lambda: nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE)
row("Upsample bicubic", lambda: nn.Upsample(size=(8, 8), mode="bicubic", align_corners=True), IMAGE)
row("UpsamplingNearest2d", lambda: nn.UpsamplingNearest2d(scale_factor=2), IMAGE)
row("UpsamplingBilinear2d", lambda: nn.UpsamplingBilinear2d(scale_factor=2), IMAGE)
row("Fold", lambda: nn.Fold((4, 4), 2, stride=2), normal(8, 16, 4))
row("Unfold", lambda: nn.Unfold(2, stride=2), IMAGE)
row("Flatten", nn.Flatten, IMAGE)
row("Flatten last dims", lambda: nn.Flatten(-2), IMAGE)
row("Unflatten", lambda: nn.Unflatten(1, (2, 4)), SEQUENCE)
row("CosineSimilarity", nn.CosineSimilarity, ROWS, normal(8, 8, seed=1))
row("CosineSimilarity last dim", lambda: nn.CosineSimilarity(-1), SEQUENCE, normal(8, 8, 16, seed=1))
row("PairwiseDistance", nn.PairwiseDistance, ROWS, normal(8, 8, seed=1))
row("PairwiseDistance order 1", lambda: nn.PairwiseDistance(1, keepdim=True), ROWS, normal(8, 8, seed=1))
row("PairwiseDistance greatest", lambda: nn.PairwiseDistance(math.inf), ROWS, normal(8, 8, seed=1))

for name, form in (("1d", SEQUENCE), ("2d", IMAGE), ("3d", normal(4, 4, 4, 4, 2))):
    for kind, options in (
        ("Circular", ()),
        ("Constant", (1.5,)),
        ("Reflection", ()),
        ("Replication", ()),
        ("Zero", ()),
    ):
        row(f"{kind}Pad{name}", functools.partial(getattr(nn, f"{kind}Pad{name}"), 1, *options), form)

# ---- noise, and modules without theirs -----------------------------------------------------------------------------

row("Dropout training", nn.Dropout, SEQUENCE)
row("Dropout2d training", nn.Dropout2d, IMAGE)
row("RReLU training", nn.RReLU, SEQUENCE)

for noisy in (nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout):
    row(f"{noisy.__name__} eval", lambda noisy=noisy: noisy().eval(), SEQUENCE)
row("Dropout2d eval", lambda: nn.Dropout2d().eval(), IMAGE)
row("Dropout3d eval", lambda: nn.Dropout3d().eval(), normal(8, 4, 2, 2, 2))
row("Dropout of nothing", lambda: nn.Dropout(0.0), SEQUENCE)
row("RReLU eval", lambda: nn.RReLU().eval(), SEQUENCE)
