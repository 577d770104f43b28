"""Lesson 11: answers."""

from typing import Any

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]


def order(device: int) -> list[str]:
    """11.2: every other device receives first."""
    return ["receive", "send"] if device % 2 else ["send", "receive"]


def order_all_receive(device: int) -> list[str]:
    """All wait for a number that nobody has sent."""
    return ["receive", "send"]


def order_one_receives(device: int) -> list[str]:
    """It gets done, one pair after another."""
    return ["receive", "send"] if device == 0 else ["send", "receive"]


def order_forgets(device: int) -> list[str]:
    """Nobody receives."""
    return ["send"]


def rectified(v: Any) -> Any:
    """11.3: two new arrays."""
    w = v - v.mean(0)
    return torch.where(w < 0, 0.0, w)


def rectified_copy(v: Any) -> Any:
    """Writes into a copy."""
    w = v.clone()
    w -= w.mean(0)
    return torch.where(w < 0, 0.0, w)


def rectified_fetches(v: Any) -> Any:
    """Works on the host."""
    w = ts.device_get(v)
    w = w - w.mean(0)
    return w.clamp(min=0)


def rectified_half(v: Any) -> Any:
    """Forgets the second step."""
    return v - v.mean(0)


def augmented(image: Any, key: Any) -> Any:
    """11.4: a key for each draw."""
    noise_key, mask_key = ts.random.split(key)
    noisy = image + ts.random.normal(noise_key, image.shape)
    return noisy * ts.random.bernoulli(mask_key, 0.5, image.shape)


def augmented_draws_from_the_old(image: Any, key: Any) -> Any:
    """Splits, and draws from the old key all the same."""
    mask_key, _ = ts.random.split(key)
    noisy = image + ts.random.normal(key, image.shape)
    return noisy * ts.random.bernoulli(mask_key, 0.5, image.shape)


def augmented_ignores_the_key(image: Any, key: Any) -> Any:
    """Makes keys of its own."""
    noisy = image + ts.random.normal(ts.random.key(0), image.shape)
    return noisy * ts.random.bernoulli(ts.random.key(1), 0.5, image.shape)


def augmented_without_mask(image: Any, key: Any) -> Any:
    """Leaves out the second draw."""
    return image + ts.random.normal(key, image.shape)


def augmented_uses_twice(image: Any, key: Any) -> Any:
    """Takes one of the two new keys for both draws."""
    new, _ = ts.random.split(key)
    noisy = image + ts.random.normal(new, image.shape)
    return noisy * ts.random.bernoulli(new, 0.5, image.shape)


ANSWERS = {
    "11.1": Answers(
        solution=["ask again", "start afresh", "mend my line", "compute again"],
        wrong=(
            Wrong(["start afresh", "start afresh", "mend my line", "compute again"], "a fresh pool costs all arrays"),
            Wrong(["ask again", "ask again", "mend my line", "compute again"], "a dead process does not come back"),
            Wrong(["ask again", "start afresh", "compute again", "compute again"], "fails again, on a fresh pool too"),
            Wrong(["ask again", "start afresh", "mend my line", "ask again"], "never comes by itself"),
        ),
    ),
    "11.2": Answers(
        solution=order,
        wrong=(
            Wrong(order_all_receive, "They must differ"),
            Wrong(order_one_receives, "Let half of them differ"),
            Wrong(order_forgets, "Draw the ring"),
        ),
    ),
    "11.3": Answers(
        solution=rectified,
        wrong=(
            Wrong(rectified_copy, "A copy is an Array, too"),
            Wrong(rectified_fetches, "fetched to the kernel"),
            Wrong(rectified_half, "Negative numbers are left"),
        ),
    ),
    "11.4": Answers(
        solution=augmented,
        wrong=(
            Wrong(augmented_draws_from_the_old, "the old key is used up"),
            Wrong(augmented_ignores_the_key, "no longer depends on `key`"),
            Wrong(augmented_without_mask, "Both draws are still needed"),
            Wrong(augmented_uses_twice, "Two draws need two keys"),
        ),
    ),
    "11.5": Answers(
        solution=ts.P(("a", "b")),
        wrong=(
            Wrong(ts.P("a", "b"), "must therefore not be cut"),
            Wrong(ts.P(None, ("a", "b")), "must therefore not be cut"),
            Wrong(ts.P("a"), "with copies"),
            Wrong(ts.P(), "with copies"),
        ),
    ),
}
