"""A small transformer that learns to write like Shakespeare, a character at a time, and its text.

text/coriolanus.txt is the beginning of "The Tragedy of Coriolanus" by William Shakespeare, which is in the public
domain, in the edition that many courses on language models train on: 79,929 characters, 61 different ones.

    tokens [examples, length]  ->  logits [examples, length, vocabulary]: of the character after each
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

__all__ = ["VOCABULARY", "Layer", "Transformer", "batch", "cross_entropy", "decoded", "tokens", "written"]

VOCABULARY = 64  # the 61 characters of the text, rounded up so that eight devices can share them

Around = Callable[[Callable[[torch.Tensor], torch.Tensor]], Callable[[torch.Tensor], torch.Tensor]]


class Layer(nn.Module):
    """Causal attention and two dense layers, each added to its input.

    Args:
        width: numbers a position.
        heads: of attention; they share the width.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From x [examples, length, width] to the same shape."""
        y = self.before(x)
        q, k, v = (each(y).unflatten(-1, (self.heads, -1)).transpose(-3, -2) for each in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(-3, -2).flatten(-2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    """Characters to the logits of the next ones.

    Args:
        width, heads, depth: of the layers.
        length: the most characters in a row.
        around: what each layer is wrapped in, as `ts.checkpoint`, which computes it again in the backward pass.

    Example:
        >>> model = Transformer(width=128, heads=4, depth=4, length=64)
        >>> sum(p.numel() for p in model.parameters())
        817984
        >>> model(torch.zeros(2, 64, dtype=torch.int64)).shape
        torch.Size([2, 64, 64])
    """

    def __init__(self, width: int, heads: int, depth: int, length: int, around: Around = lambda layer: layer) -> None:
        super().__init__()
        self.around = around
        self.words, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """What the first layer gets."""
        return self.words(tokens) + self.places(torch.arange(tokens.shape[-1]))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """From what the last layer gives."""
        return self.head(self.norm(x))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """From tokens [examples, length] to logits [examples, length, vocabulary]."""
        x = self.embed(tokens)
        for layer in self.layers:
            x = self.around(layer)(x)
        return self.logits(x)


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The mean over all positions, in float32: logits [..., vocabulary], targets [...]."""
    return F.cross_entropy(logits.float().flatten(0, -2), targets.flatten())


@functools.cache
def _text() -> str:
    return Path(__file__).with_name("text").joinpath("coriolanus.txt").read_text("utf-8")


@functools.cache
def _characters() -> str:
    return "".join(sorted(set(_text())))


@functools.cache
def tokens() -> torch.Tensor:
    """The text as numbers: int64[79929], the place of each character in the alphabet of the text.

    Example:
        >>> decoded(tokens()[:14])
        'First Citizen:'
    """
    place = {character: i for i, character in enumerate(_characters())}
    return torch.tensor([place[character] for character in _text()])


def decoded(numbers: Any) -> str:
    """The characters of some numbers; those that no character has are "?"."""
    alphabet = _characters()
    return "".join(alphabet[int(i)] if int(i) < len(alphabet) else "?" for i in numbers)


def batch(step: int, examples: int, length: int) -> torch.Tensor:
    """What a step of training learns from, the same whenever it is asked for: int64[examples, length + 1].

    Each row is a piece of the text: all but its last character are inputs, all but its first are targets.

    Example:
        >>> batch(0, 8, 64).shape, bool((batch(3, 8, 64) == batch(3, 8, 64)).all())
        (torch.Size([8, 65]), True)
    """
    every = tokens()
    starts = torch.randint(len(every) - length, (examples,), generator=torch.Generator().manual_seed(step))
    return every[starts[:, None] + torch.arange(length + 1)]


def written(
    logits_of: Callable[[torch.Tensor], torch.Tensor],
    beginning: str,
    count: int,
    length: int,
    temperature: float = 0.7,
    seed: int = 0,
) -> str:
    """A text that a model writes, a character at a time: each is drawn from what the model expects after the last ones.

    Args:
        logits_of: from tokens int64[1, length] to logits [1, length, vocabulary] in this process.
        beginning: what the text starts with, of characters that `tokens()` has.
        count: how many characters are added.
        length: how many of the last characters the model sees.
        temperature: 1 draws as the model expects; towards 0 the most probable character wins.
        seed: of the draws; the same seed writes the same text.

    Example:
        >>> written(lambda tokens: torch.eye(VOCABULARY)[(tokens + 1) % 61] * 99, "a", count=3, length=8)
        'abcd'
    """
    place = {character: i for i, character in enumerate(_characters())}
    found = [place[character] for character in beginning]
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        seen = found[-length:]
        window = torch.tensor([seen + [0] * (length - len(seen))])  # causal: what follows the last one is not seen
        expected = torch.softmax(logits_of(window)[0, len(seen) - 1] / temperature, -1)
        found.append(int(torch.multinomial(expected, 1, generator=generator)))
    return decoded(found)
