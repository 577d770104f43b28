"""Lesson 17: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.experts import AXIS
from course.experts import balance as balanced
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

all_to_all = ts.lax.all_to_all


def place_of(chosen: Any, experts: int, capacity: int) -> Any:
    """17.1."""
    is_chosen = (chosen[:, None] == torch.arange(experts)).long()
    place = (is_chosen.cumsum(0) * is_chosen).sum(1) - 1
    return torch.where(place < capacity, place, -1)


def place_from_one(chosen: Any, experts: int, capacity: int) -> Any:
    """Wrong: the first token has the place 1."""
    return place_of(chosen, experts, capacity) + 1


def place_without_end(chosen: Any, experts: int, capacity: int) -> Any:
    """Wrong: no token is dropped."""
    return place_of(chosen, experts, len(chosen))


def place_by_loop(chosen: Any, experts: int, capacity: int) -> Any:
    """Wrong: asks for values."""
    counts, found = [0] * experts, []
    for expert in chosen.tolist():
        found.append(counts[expert] if counts[expert] < capacity else -1)
        counts[expert] += 1
    return torch.tensor(found)


def there(mine: Any, boxes: Any, up: Any, down: Any) -> Any:
    """17.2."""
    arrived = all_to_all(boxes, AXIS, split_axis=0, concat_axis=0)
    results = torch.relu(arrived @ up[0]) @ down[0]
    back = all_to_all(results, AXIS, split_axis=0, concat_axis=0)
    return torch.einsum("tec,ecd->td", mine, back)


def staying(mine: Any, boxes: Any, up: Any, down: Any) -> Any:
    """Wrong: every device's expert computes its own tokens."""
    return torch.einsum("tec,ecd->td", mine, torch.relu(boxes @ up[0]) @ down[0])


def not_back(mine: Any, boxes: Any, up: Any, down: Any) -> Any:
    """Wrong: the results stay at the expert."""
    arrived = all_to_all(boxes, AXIS, split_axis=0, concat_axis=0)
    return torch.einsum("tec,ecd->td", mine, torch.relu(arrived @ up[0]) @ down[0])


def by_gathering(mine: Any, boxes: Any, up: Any, down: Any) -> Any:
    """Wrong: the results of all are gathered."""
    arrived = all_to_all(boxes, AXIS, split_axis=0, concat_axis=0)
    every = ts.lax.all_gather(torch.relu(arrived @ up[0]) @ down[0], AXIS)
    return torch.einsum("tec,ecd->td", mine, every[:, ts.lax.axis_index(AXIS)])


def with_the_mask(mine: Any, boxes: Any, up: Any, down: Any) -> Any:
    """Wrong: sends a third time what it has."""
    again = all_to_all(all_to_all(boxes, AXIS, 0, 0), AXIS, 0, 0)
    return there(mine, again, up, down)


def room_for_all(chosen: Any, experts: int) -> Any:
    """17.3."""
    return max(int((chosen == expert).sum(1).max()) for expert in range(experts))


def balance(chances: Any, chosen: Any) -> Any:
    """17.4."""
    experts = chances.shape[-1]
    shares = (chosen[:, None] == torch.arange(experts)).float().mean(0)
    shares, means = ts.lax.pmean(torch.stack([shares, chances.mean(0)]), AXIS).unbind(0)
    return experts * (shares * means).sum()


def mean_of_products(chances: Any, chosen: Any) -> Any:
    """Wrong: each device multiplies its own averages."""
    shares = (chosen[:, None] == torch.arange(chances.shape[-1])).float().mean(0)
    return chances.shape[-1] * ts.lax.pmean(shares * chances.mean(0), AXIS).sum()


def balance_by_gathering(chances: Any, chosen: Any) -> Any:
    """Wrong: all tokens go to all devices."""
    every = ts.lax.all_gather(chances, AXIS, tiled=True)
    chosen = ts.lax.all_gather(chosen, AXIS, tiled=True)
    shares = (chosen[:, None] == torch.arange(chances.shape[-1])).float().mean(0)
    return ts.lax.pmean(chances.shape[-1] * (shares * every.mean(0)).sum(), AXIS)


ANSWERS = {
    "17.1": Answers(
        solution=place_of,
        wrong=(
            Wrong(place_from_one, "Places count from 0"),
            Wrong(place_without_end, "has the place -1"),
            Wrong(place_by_loop, "asks for their values"),
        ),
    ),
    "17.2": Answers(
        solution=there,
        wrong=(
            Wrong(staying, "Box e goes to device e"),
            Wrong(not_back, "Box e goes to device e"),
            Wrong(by_gathering, "which collective"),
            Wrong(with_the_mask, "once there and once back"),
        ),
    ),
    "17.3": Answers(
        solution=room_for_all,
        wrong=(
            Wrong(lambda chosen, experts: chosen.shape[1] // experts, "That is the average"),
            Wrong(lambda chosen, experts: chosen.flatten().bincount().max(), "A box holds the tokens of one device"),
            Wrong(lambda chosen, experts: chosen.shape[1], "a smaller number is enough"),
            Wrong(lambda chosen, experts: chosen[0].bincount().max(), "One of the boxes is fuller"),
            Wrong(lambda chosen, experts: 10, "the boxes could be smaller"),
        ),
    ),
    "17.4": Answers(
        solution=balance,
        wrong=(
            Wrong(mean_of_products, "The mean of products is not the product of means"),
            Wrong(lambda chances, chosen: balanced(chances, chosen) / 8, "The number of experts is a factor"),
            Wrong(balance_by_gathering, "no token has to be sent"),
        ),
    ),
}
