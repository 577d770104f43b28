"""Lesson 17: places in a queue, tokens there and back by two all_to_alls, room for all, and a loss over all devices."""

from collections.abc import Callable
from typing import Any

import torch

import tinyshard as ts
from course.exercises.compare import difference, number_in, plain
from course.exercises.exercise import PASSED, Exercise, Verdict, differs
from course.exercises.means import compiled
from course.experts import AXIS, EXPERTS, choices, examples, load_of, new_params, on_one_device, placed, places

__all__ = ["EXERCISES"]

Answer = Callable[..., Any]
P = ts.P
SPECS = {"router": P(), "up": P(AXIS), "down": P(AXIS)}


def judge_places(place_of: Answer) -> Verdict:
    """17.1: how many tokens ahead of each chose the same expert, -1 beyond the capacity; it can be traced."""
    for seed, (tokens, experts, capacity) in enumerate(((8, 2, 3), (30, 4, 5), (6, 3, 6))):
        chosen = torch.randint(experts, (tokens,), generator=torch.Generator().manual_seed(seed))
        ahead = [int((chosen[:k] == chosen[k]).sum()) for k in range(tokens)]
        want = torch.tensor([n if n < capacity else -1 for n in ahead])
        got = place_of(chosen, experts, capacity)
        if got is None:
            return differs("it returns None")
        reported = difference(got, want)
        if reported and not difference(got, want + 1):
            return differs(reported, "Places count from 0: a token does not wait for itself.")
        if reported and not difference(got, torch.tensor(ahead)):
            return differs(reported, "A token that finds no room has the place -1.")
        if reported:
            return differs(reported)
        try:
            ts.jit(lambda chosen, e=experts, c=capacity: place_of(chosen, e, c)).lower(chosen)
        except TypeError:
            hint = "A loop over tokens asks for their values. `cumsum` counts for all tokens at once."
            return differs("the places are right, but it cannot be traced", hint)
    return PASSED


# 17.2's answer cell before it is touched: right, but every device gets all tokens
def _gathering(mine, boxes, up, down):  # type: ignore[no-untyped-def]
    every = ts.lax.all_gather(boxes, "e")[:, ts.lax.axis_index("e")]
    results = torch.relu(every @ up[0]) @ down[0]
    back = ts.lax.all_gather(results, "e")[:, ts.lax.axis_index("e")]
    return torch.einsum("tec,ecd->td", mine, back)


def there_and_back(answer: Answer, capacity: int) -> Any:
    """The function of whole arrays that dispatches by the answer: parameters and tokens to results."""

    def body(params: Any, x: Any) -> Any:
        chances = torch.softmax(x @ params["router"], -1)
        chosen, weights = choices(chances)
        mine = places(chosen[0], EXPERTS, capacity).to(x.dtype)
        boxes = torch.einsum("tec,td->ecd", mine, x)
        return answer(mine, boxes, params["up"], params["down"]) * weights[0][:, None]

    mesh = ts.make_mesh((EXPERTS,), (AXIS,))
    return ts.jit(ts.shard_map(body, mesh=mesh, in_specs=(SPECS, P(AXIS)), out_specs=P(AXIS)))


def judge_dispatch(there: Answer) -> Verdict:
    """17.2: right results, by no more than two all_to_alls of the boxes."""
    params, (x, _) = new_params(), examples(0)
    mesh = ts.make_mesh((EXPERTS,), (AXIS,))
    rows = ts.device_put(x, ts.NamedSharding(mesh, P(AXIS)))
    for capacity in (6, 3):
        mapped = there_and_back(there, capacity)
        got = mapped(placed(params, mesh), rows)
        if reported := difference(got, on_one_device(params, x, capacity, EXPERTS), "the result", tolerance=1e-4):
            return differs(reported, "Box e goes to device e, and its results go back to the device that sent it.")
        cost = compiled(mapped, placed(params, mesh), rows).cost_analysis()
        most = 2 * 7 * capacity * x.shape[1] * 4
        others = {each.kind for each in cost.traffic} - {"all_to_all"}
        if others:
            reported = f"right, with {cost.nbytes:,} bytes, by {', '.join(sorted(others))}"
            return differs(reported, "A device needs one box of each other device, not all of them: which collective?")
        if cost.count("all_to_all") > 2 or cost.nbytes > most:
            reported = f"{cost.count('all_to_all')} all_to_alls and {cost.nbytes:,} bytes, not 2 and {most:,}"
            return differs(reported, "The boxes go once there and once back, and nothing else does.")
    return PASSED


def first_choices() -> torch.Tensor:
    """What the untrained router of the lesson chooses on each of eight devices: int64[8, 32]."""
    chances = torch.softmax(examples(0)[0] @ new_params()["router"], -1)
    return choices(chances)[0][0].reshape(EXPERTS, -1)


# The fullest box is neither on the first device nor the busiest expert's.
OTHER_CHOICES = torch.tensor([[0, 0, 1, 2], [0, 0, 2, 2], [1, 1, 1, 0]])


def judge_capacity(room_for_all: Answer) -> Verdict:
    """17.3: the smallest capacity at which nothing is dropped, for the lesson's tokens and for others."""
    for chosen, experts in ((first_choices(), EXPERTS), (OTHER_CHOICES, 3)):
        boxes = torch.stack([(chosen == expert).sum(1) for expert in range(experts)], 1)  # [devices, experts]
        best = int(boxes.max())
        answer = room_for_all(chosen.clone(), experts)
        number = number_in(answer)
        if number == best:
            continue
        if not isinstance(number, int) or number < 1:
            return differs(f"{answer!r} is not a number of places")
        dropped = sum(load_of(chosen, experts, number).dropped)
        devices, tokens = chosen.shape
        reported = f"{devices} devices, {tokens} tokens each: with room for {number} {dropped} tokens are dropped"
        if number == int(boxes.sum(0).max()):
            hint = "That is the busiest expert, from all devices. A box holds the tokens of one device."
            return differs(reported, hint)
        if number == tokens:
            return differs(reported, "That is enough for any router. Here a smaller number is enough, too.")
        if number == tokens // experts:
            return differs(reported, f"That is the average. The fullest of the {boxes.numel()} boxes decides.")
        if number > best:
            return differs(reported, "Nothing is dropped, but the boxes could be smaller.")
        return differs(reported, "One of the boxes is fuller than that: look at each expert on each device.")
    return PASSED


def _local_balance(chances, chosen):  # type: ignore[no-untyped-def]
    experts = chances.shape[-1]
    shares = (chosen[:, None] == torch.arange(experts)).float().mean(0)
    return ts.lax.pmean(experts * (shares * chances.mean(0)).sum(), "e")


def judge_balance(balance: Answer) -> Verdict:
    """17.4: the loss of all tokens, on one device as on eight; two numbers an expert are sent."""
    chances = torch.softmax(examples(0)[0] @ new_params()["router"], -1)
    chances = chances[torch.argsort(chances.argmax(-1))]  # each device's tokens are alike
    chosen = chances.argmax(-1)
    shares = torch.bincount(chosen, minlength=EXPERTS) / len(chosen)
    want = EXPERTS * (shares * chances.mean(0)).sum()
    for count in (1, 8):
        mesh = ts.make_mesh((count,), (AXIS,), devices=ts.devices()[:count])
        mapped = ts.jit(ts.shard_map(balance, mesh=mesh, in_specs=(P(AXIS), P(AXIS)), out_specs=P()))
        rows = ts.device_put((chances, chosen), ts.NamedSharding(mesh, P(AXIS)))
        got = mapped(*rows)
        if reported := difference(got, want, "the loss on " + ("1 device" if count == 1 else f"{count} devices")):
            if abs(float(plain(got)) * EXPERTS - float(want)) < 1e-4:
                return differs(reported, "The number of experts is a factor: a uniform choice has the loss 1.")
            hint = "The mean of products is not the product of means: average shares and chances before you multiply."
            return differs(reported, hint if count == 8 else "")
        cost = compiled(mapped, *rows).cost_analysis()
        if cost.nbytes > 2 * 2 * EXPERTS * 4:
            reported = f"right, but a device sends {cost.nbytes:,} bytes"
            return differs(reported, "Two numbers an expert are enough: no token has to be sent.")
    slope = ts.grad(lambda c: mapped(c, rows[1]))(rows[0])
    if not bool((plain(slope) != 0).any()):
        return differs("its gradient is zero", "The router learns through the chances: they must stay in the product.")
    return PASSED


EXERCISES = (
    Exercise(
        "17.1",
        judge_places,
        (
            "For each token: how many tokens before it chose the same expert?",
            "A table, tokens by experts, with a 1 where a token chose the expert: what does `cumsum` over tokens give?",
            "From the counts of all experts take that of the token's own, less one; `torch.where` for those beyond.",
        ),
        why="One comparison and one cumsum: shapes do not depend on what the router chose, so the function can be "
        "traced, and each device computes its places alone.",
    ),
    Exercise(
        "17.2",
        judge_dispatch,
        (
            "Which boxes does the device of expert 3 need, and who has them?",
            "`ts.lax.all_to_all` sends piece j of dim `split_axis` to device j.",
            "Two calls, each with `split_axis=0` and `concat_axis=0`: what is computed between them?",
        ),
        stub=_gathering,
        why="All_to_all is its own inverse here, so one there and one back suffice. Gathering sends eight times the "
        "bytes, and seven boxes of eight are thrown away.",
    ),
    Exercise(
        "17.3",
        judge_capacity,
        (
            "How many boxes are there, and which of them is the first to be full?",
            "Count, on each device, how many of its tokens chose each expert.",
            "A comparison and a sum count the tokens of one expert on each device; the largest count is wanted.",
        ),
        why="The fullest box of one device decides for all 64, because a program has one shape. So one popular expert "
        "makes every box larger: that is what imbalance costs.",
    ),
    Exercise(
        "17.4",
        judge_balance,
        (
            "Which of the two averages of a device differ from those of the whole batch?",
            "`ts.lax.pmean` of a stack of both averages is one all_reduce.",
            "First the mean over all devices, then the product, the sum over experts, and the factor.",
        ),
        stub=_local_balance,
        why="The mean of products is not the product of means. A device whose tokens are all alike is not an "
        "imbalance, as long as the experts are used alike in the whole batch.",
    ),
)
