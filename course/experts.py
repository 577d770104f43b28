"""A layer of experts: a router sends each token to one or two of several small networks, each on a device of its own.

    tokens [n, width] of a device  --router-->  chances [n, experts]
    boxes [experts, capacity, width]  --all_to_all-->  [senders, capacity, width] at the expert's device
    results the same way back, each times the chance of its expert

Each device has a box for each expert, with room for `capacity` tokens. A token that finds its box full is dropped: the
layer adds nothing to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import tinyshard as ts

__all__ = [
    "AXIS",
    "Load",
    "Params",
    "balance",
    "by_experts",
    "choices",
    "examples",
    "kinds",
    "load_of",
    "new_params",
    "on_one_device",
    "placed",
    "places",
]

AXIS = "e"  # of the mesh: as many devices as experts
WIDTH, HIDDEN, EXPERTS = 16, 32, 8

Params = dict[str, Any]


def choices(chances: torch.Tensor, count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token, and their chances: [count, tokens] each, all first choices before the second ones.

    Args:
        chances: [tokens, experts].
        count: how many experts a token goes to.
    """
    weights, chosen = chances.topk(count, dim=-1)
    return chosen.T, weights.T


def places(chosen: torch.Tensor, experts: int, capacity: int) -> torch.Tensor:
    """Which place of which box each token has: bool[tokens, experts, capacity], all False for a dropped one.

    Args:
        chosen: the expert of each token, int64[tokens]; earlier ones find room first.
        experts: how many boxes there are.
        capacity: places of a box.

    Example:
        >>> places(torch.tensor([1, 1, 0, 1]), experts=2, capacity=2).any(-1).int()
        tensor([[0, 1],
                [0, 1],
                [1, 0],
                [0, 0]], dtype=torch.int32)
    """
    is_chosen = chosen[:, None] == torch.arange(experts)
    before = is_chosen.long().cumsum(0) - 1  # how many tokens ahead of this one chose the expert
    return is_chosen[:, :, None] & (before[:, :, None] == torch.arange(capacity))


def balance(chances: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    """The balancing loss of all devices' tokens, inside of a shard_map: 1 if all experts are chosen alike, at most E.

    Args:
        chances: of this device's tokens, [tokens, experts].
        chosen: the first choice of each, int64[tokens].

    Communication: one all_reduce of two numbers an expert.
    """
    experts = chances.shape[-1]
    shares = (chosen[:, None] == torch.arange(experts)).to(chances.dtype).mean(0)
    shares, means = ts.lax.pmean(torch.stack([shares, chances.mean(0)]), AXIS).unbind(0)
    return experts * (shares * means).sum()


def by_experts(params: Params, x: torch.Tensor, capacity: int, count: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """What the experts make of one device's tokens, and the balancing loss; inside of a shard_map over AXIS.

    Args:
        params: "router" [width, experts], whole; "up" [1, width, hidden] and "down" [1, hidden, width]: this device's.
        x: [tokens, width].
        capacity: places of a box.
        count: how many experts a token goes to.

    Communication: an all_to_all there, one back, and the all_reduce of `balance`.
    """
    chances = torch.softmax(x @ params["router"], -1)
    chosen, weights = choices(chances, count)
    mine = places(chosen.flatten(), chances.shape[-1], capacity).to(x.dtype)
    boxes = torch.einsum("tec,td->ecd", mine, x.repeat(count, 1))
    boxes = ts.lax.all_to_all(boxes, AXIS, 0, 0)
    boxes = torch.relu(boxes @ params["up"][0]) @ params["down"][0]
    boxes = ts.lax.all_to_all(boxes, AXIS, 0, 0)
    results = torch.einsum("tec,ecd->td", mine, boxes) * weights.flatten()[:, None]
    return results.reshape(count, *x.shape).sum(0), balance(chances, chosen[0])


def on_one_device(params: Params, x: torch.Tensor, capacity: int, senders: int, count: int = 1) -> torch.Tensor:
    """The same results without devices: plain torch, all experts, and boxes for `senders` parts of the tokens."""
    chances = torch.softmax(x @ params["router"], -1)
    parts = []
    for part, its_chances in zip(x.chunk(senders), chances.chunk(senders), strict=True):
        out, room = torch.zeros_like(part), dict.fromkeys(range(chances.shape[-1]), capacity)
        for chosen, weights in zip(*choices(its_chances, count), strict=True):
            rows = []
            for row, expert, weight in zip(part, chosen.tolist(), weights, strict=True):
                room[expert] -= 1
                made = torch.relu(row @ params["up"][expert]) @ params["down"][expert]
                rows.append(weight * made if room[expert] >= 0 else torch.zeros_like(row))
            out = out + torch.stack(rows)
        parts.append(out)
    return torch.cat(parts)


def new_params(seed: int = 0, experts: int = EXPERTS) -> Params:
    """Parameters to begin with, plain tensors; those of the experts have the expert as their first dim."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / shape[-2] ** 0.5

    return {
        "router": drawn(WIDTH, experts),
        "up": drawn(experts, WIDTH, HIDDEN),
        "down": drawn(experts, HIDDEN, WIDTH),
    }


def placed(params: Params, mesh: Any) -> Params:
    """The parameters on a mesh of the axis AXIS: an expert each device, the router on all."""
    specs = {"router": ts.P(), "up": ts.P(AXIS), "down": ts.P(AXIS)}
    return {name: ts.device_put(x, ts.NamedSharding(mesh, specs[name])) for name, x in params.items()}


def examples(step: int, count: int = 256) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of eight kinds, and what is wanted of each: two of f32[count, WIDTH].

    Kind k is a point with noise around it, and wants a matrix of its own. All kinds are equally frequent.
    """
    fixed = torch.Generator().manual_seed(1)
    points = 2 * torch.randn(EXPERTS, WIDTH, generator=fixed)
    turns = torch.randn(EXPERTS, WIDTH, WIDTH, generator=fixed) / WIDTH**0.5
    drawn, generator = _drawn(step, count)
    x = points[drawn] + 0.5 * torch.randn(count, WIDTH, generator=generator)
    return x, torch.einsum("td,tde->te", x, turns[drawn])


def kinds(step: int, count: int = 256) -> torch.Tensor:
    """The kind of each token of `examples(step, count)`: int64[count], from 0 to 7."""
    return _drawn(step, count)[0]


def _drawn(step: int, count: int) -> tuple[torch.Tensor, torch.Generator]:
    """The kinds of a step's tokens, and the generator from which their noise comes next."""
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randint(EXPERTS, (count,), generator=generator), generator


@dataclass(frozen=True)
class Load:
    """Where tokens go.

    Attributes:
        sent: tokens that each device sends to each expert, [senders][experts].
        dropped: tokens that found no room, of each device.
        capacity: places of a box.
    """

    sent: list[list[int]]
    dropped: list[int]
    capacity: int

    @property
    def arrived(self) -> list[int]:
        """Tokens at each expert, from all devices."""
        return [sum(row[expert] for row in self.sent) for expert in range(len(self.sent[0]))]


def load_of(chosen: torch.Tensor, experts: int, capacity: int) -> Load:
    """Count what `places` does, device by device.

    Args:
        chosen: the expert of each token, int64[devices, tokens of a device].

    Example:
        >>> load_of(torch.tensor([[0, 0, 1], [0, 0, 0]]), experts=2, capacity=2)
        Load(sent=[[2, 1], [2, 0]], dropped=[0, 1], capacity=2)
    """
    kept = [places(row, experts, capacity).any(-1) for row in chosen]
    return Load([row.sum(0).tolist() for row in kept], [int((~row.any(-1)).sum()) for row in kept], capacity)
