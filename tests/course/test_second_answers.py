"""Right answers to rungs of the ladder, written otherwise than the solution, are at par too."""

import pytest
import torch

import tinyshard as ts
from course import ladder
from course.solutions.lesson_18 import (
    RIGHT,
    RING,
    across,
    finished,
    gather,
    halved,
    own_logits_of,
    scatter,
    seen,
    start,
)
from tests.extent import mostly_whole


@pytest.fixture(scope="module", autouse=True)
def local():
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def gathered_into_a_table(x):
    me, newest = ts.lax.axis_index("d"), x
    rows = torch.zeros(8, 1024)
    rows[me] = x
    for k in range(1, 8):
        newest = ts.lax.ppermute(newest, "d", RING)
        rows[(me - k) % 8] = newest
    return rows


def gathered_by_masks(x):
    me, newest, number = ts.lax.axis_index("d"), x, torch.arange(8)[:, None]
    rows = torch.where(number == me, x, 0.0)
    for k in range(1, 8):
        newest = ts.lax.ppermute(newest, "d", RING)
        rows = torch.where(number == (me - k) % 8, newest, rows)
    return rows


def halved_and_doubled_in_a_copy(x):
    me, rows = ts.lax.axis_index("d"), x.clone()
    first = 0 * me
    for distance in (4, 2, 1):
        bit = me // distance % 2
        mine, theirs = (first + each * distance + torch.arange(distance) for each in (bit, 1 - bit))
        came = across(rows[theirs], distance)
        rows[mine] = rows[mine] + came
        first = first + bit * distance
    for distance in (1, 2, 4):
        mine = me // distance * distance + torch.arange(distance)
        theirs = (me // distance ^ 1) * distance + torch.arange(distance)
        rows[theirs] = across(rows[mine], distance)
    return rows


def doubled_in_own_order(x):
    x = halved(x)
    for distance in (1, 2, 4):
        x = torch.cat([x, across(x, distance)])
    return x[ts.lax.axis_index("d") ^ torch.arange(8)]


def exchanged_into_a_table(x):
    me = ts.lax.axis_index("d")
    rows = x.clone()
    for far in range(1, 8):
        rows[(me - far) % 8] = ts.lax.ppermute(x[(me + far) % 8], "d", [(i, (i + far) % 8) for i in range(8)])
    return rows


def matmul_by_masks(x, w):
    me, number = ts.lax.axis_index("d"), torch.arange(8)[:, None, None]
    rows = torch.zeros(8, 32, 64)
    for far in range(8):
        rows = rows + (number == (me - far) % 8) * (x @ w)
        x = ts.lax.ppermute(x, "d", RING) if far < 7 else x
    return rows.flatten(0, 1)


def norm_by_means_of_blocks(x):
    both = torch.stack([x.mean(1), x.var(1, correction=0)], 1)
    means, variances = ts.lax.all_to_all(both, "d", 0, 0, tiled=True).unflatten(0, (8, 8)).unbind(2)
    mean = means.mean(0)
    variance = (variances + (means - mean) ** 2).mean(0)
    mean, variance = gather(torch.stack([mean, variance], 1)).unbind(1)
    return (x - mean[:, None]) / torch.sqrt(variance + 1e-5)[:, None]


def norm_around_300(x):
    x = x - 300
    mean, mean_of_squares = ts.lax.pmean(torch.stack([x.mean(1), (x * x).mean(1)]), "d")
    return (x - mean[:, None]) / torch.sqrt(mean_of_squares - mean**2 + 1e-5)[:, None]


def entropy_by_a_mask_of_floats(x, w, targets):
    logits = x @ w
    largest = logits.amax(1)
    known = largest + torch.log(torch.exp(logits - largest[:, None]).sum(1))
    is_target = (targets[:, None] == torch.arange(128) + 128 * ts.lax.axis_index("d")).float()
    return finished(known, (is_target * logits).sum(1))


def entropy_whose_targets_are_scattered(x, w, targets):
    logits = x @ w
    found = scatter(own_logits_of(targets, logits))
    known = ts.lax.all_to_all(torch.logsumexp(logits, 1), "d", 0, 0, tiled=True)
    return gather(torch.logsumexp(known.unflatten(0, (8, 8)), 0) - found)


def fsdp_that_lets_go_of_the_matrix_first(shards, x, grad):
    given, grads = [], []
    for shard in shards:
        given.append(x)
        whole = gather(shard)
        x = x.relu() @ whole
    for shard, each in zip(reversed(shards), reversed(given), strict=True):
        after = grad
        if shard is not shards[0]:
            whole = whole if shard is shards[-1] else gather(shard.clone())
            grad = grad @ whole.T * (each > 0)
        grads.insert(0, scatter(each.relu().T @ after))
    return x, grads


def fsdp_whose_gradients_of_matrices_come_last(shards, x, grad):
    given, grads = [], [grad]
    for shard in shards:
        given.append(x.relu())
        whole = gather(shard)
        x = given[-1] @ whole
    for layer in (3, 2, 1):
        whole = whole if layer == 3 else gather(shards[layer].clone())
        grads.insert(0, grads[0] @ whole.T * (given[layer] > 0))
    return x, [scatter(each.T @ after) for each, after in zip(given, grads, strict=True)]


def megatron_by_vjp(x, up, down, grad):
    part, back = ts.vjp(lambda x, up, down: (x @ up).relu() @ down, x, up, down)
    of_x, of_up, of_down = back(grad)
    return ts.lax.psum(part, "d"), ts.lax.psum(of_x, "d"), of_up, of_down


def attention_of_results_joined_at_the_end(q, k, v):
    parts = []
    for far in range(8):
        parts.append(seen(start(q), q, k, v))
        k, v = ts.lax.ppermute((k, v), "d", RING) if far < 7 else (k, v)
    largest, total, weighted = (torch.stack(each) for each in zip(*parts, strict=True))
    share = torch.exp(largest - largest.amax(0))
    return (weighted * share).sum(0) / (total * share).sum(0)


def attention_by_logsumexp(q, k, v):
    results, weights = [], []
    for far in range(8):
        scores = q @ k.T / 4
        results.append(torch.softmax(scores, -1) @ v)
        weights.append(torch.logsumexp(scores, -1))
        k, v = ts.lax.ppermute((k, v), "d", RING) if far < 7 else (k, v)
    share = torch.softmax(torch.stack(weights), 0)
    return (torch.stack(results) * share[..., None]).sum(0)


def pipeline_of_batches_and_zeros(W, batches):
    me, received, results = ts.lax.axis_index("d"), torch.zeros(4, 32), []
    batches = torch.cat([batches, torch.zeros(7, 4, 32)])
    for tick in range(15):
        value = torch.where(me == 0, batches[tick], received).relu() @ W[0]
        results += [value] if tick >= 7 else []
        received = ts.lax.ppermute(value, "d", RIGHT) if tick < 14 else received
    return torch.stack(results)[None]


ANSWERS = [
    ("18.1", gathered_into_a_table),
    ("18.1", gathered_by_masks),
    ("18.4", halved_and_doubled_in_a_copy),
    ("18.4", doubled_in_own_order),
    ("18.5", exchanged_into_a_table),
    ("18.6", matmul_by_masks),
    ("18.7", norm_by_means_of_blocks),
    ("18.7", norm_around_300),
    ("18.8", entropy_by_a_mask_of_floats),
    ("18.8", entropy_whose_targets_are_scattered),
    ("18.9", fsdp_that_lets_go_of_the_matrix_first),
    ("18.9", fsdp_whose_gradients_of_matrices_come_last),
    ("18.10", megatron_by_vjp),
    ("18.11", attention_of_results_joined_at_the_end),
    ("18.11", attention_by_logsumexp),
    ("18.13", pipeline_of_batches_and_zeros),
]
ROWS = mostly_whole(
    [pytest.param(id, answer, id=f"{id}-{answer.__name__}") for id, answer in ANSWERS],
    lambda row: row.values[1] is gathered_into_a_table,
)


@pytest.mark.parametrize("id, answer", ROWS)
def test_a_second_right_answer_is_at_par(id, answer):
    score = ladder.score(id, answer)
    assert score.is_par, score
