# mypy: disable-error-code="no-untyped-def, var-annotated, arg-type"
"""Lesson 18: answers, as a learner writes them in a cell; the wrong ones are those that come to mind first."""

import math

import torch

import tinyshard as ts
from course.solutions.answers import Answers, Wrong

__all__ = ["ANSWERS"]

RING = [(i, (i + 1) % 8) for i in range(8)]
RIGHT = [(i, i + 1) for i in range(7)]


def gather(x):
    """The whole, by the library."""
    return ts.lax.all_gather(x, "d", tiled=True)


# ---- 18.1: all-gather ---------------------------------------------------------------------------------------------


def all_gather(x):
    """Seven moves; then row i is where what came after (me - i) moves is."""
    arrived = [x]
    for _ in range(7):
        arrived.append(ts.lax.ppermute(arrived[-1], "d", RING))
    me = ts.lax.axis_index("d")
    return torch.stack(arrived)[(me - torch.arange(8)) % 8]


def gathered_in_order_of_arrival(x):
    """Each device has its own row first."""
    arrived = [x]
    for _ in range(7):
        arrived.append(ts.lax.ppermute(arrived[-1], "d", RING))
    return torch.stack(arrived)


def gathered_by_the_library(x):
    """The collective itself."""
    return ts.lax.all_gather(x, "d")


def gathered_by_passing_on_all(x):
    """Passes on all that it has, again and again."""
    me = ts.lax.axis_index("d")
    mine = (torch.arange(8) == me)[:, None]
    rows = torch.where(mine, x, torch.zeros(8, 1024))
    for _ in range(7):
        rows = torch.where(mine, x, ts.lax.ppermute(rows, "d", RING))
    return rows


def gathered_in_a_list_and_a_table(x):
    """Right, but all rows are held three times: each one that is written makes another table."""
    me, arrived = ts.lax.axis_index("d"), [x]
    for _ in range(7):
        arrived.append(ts.lax.ppermute(arrived[-1], "d", RING))
    rows = torch.zeros(8, 1024)
    for k, row in enumerate(arrived):
        rows[(me - k) % 8] = row
    return rows


def gathered_into_a_table_at_once(x):
    """Right, but the table is made twice, beside the rows that are stacked."""
    me, arrived = ts.lax.axis_index("d"), [x]
    for _ in range(7):
        arrived.append(ts.lax.ppermute(arrived[-1], "d", RING))
    rows = torch.zeros(8, 1024)
    rows[(me - torch.arange(8)) % 8] = torch.stack(arrived)
    return rows


# ---- 18.2: reduce-scatter -----------------------------------------------------------------------------------------


def reduce_scatter(x):
    """The sum that ends here has come from the next device, all the way round."""
    me = ts.lax.axis_index("d")
    total = x[(me - 1) % 8]
    for k in range(2, 9):
        total = ts.lax.ppermute(total, "d", RING) + x[(me - k) % 8]
    return total


def scattered_one_too_far(x):
    """Starts with its own row, so that the sum ends with the next device."""
    me = ts.lax.axis_index("d")
    total = x[me]
    for k in range(1, 8):
        total = ts.lax.ppermute(total, "d", RING) + x[(me - k) % 8]
    return total


def scattered_by_the_library(x):
    """The collective itself."""
    return ts.lax.psum_scatter(x, "d")


def scattered_after_all_rows_went_round(x):
    """All rows of all devices come by."""
    total = rows = x
    for _ in range(7):
        rows = ts.lax.ppermute(rows, "d", RING)
        total = total + rows
    return total[ts.lax.axis_index("d")]


def scattered_rows_that_wait(x):
    """Sends each row straight to its device, and adds them up when all are there."""
    me = ts.lax.axis_index("d")
    arrived = [x[me]]
    for far in range(1, 8):
        arrived.append(ts.lax.ppermute(x[(me + far) % 8], "d", [(i, (i + far) % 8) for i in range(8)]))
    return sum(arrived)


def scattered_by_halving(x):
    """Three rounds, but the first one sends half of the rows, and holds them beside x."""
    return halved(x)[0]


# ---- 18.3: all-reduce, as a ring ----------------------------------------------------------------------------------


def ring_all_reduce(x):
    """One after the other."""
    return all_gather(reduce_scatter(x))


def reduced_by_the_library(x):
    """The collective itself."""
    return ts.lax.psum(x, "d")


def reduced_by_passing_all_on(x):
    """All rows of all devices come by."""
    total = rows = x
    for _ in range(7):
        rows = ts.lax.ppermute(rows, "d", RING)
        total = total + rows
    return total


def reduced_in_order_of_arrival(x):
    """The sums are right, in another order on each device."""
    return gathered_in_order_of_arrival(reduce_scatter(x))


def reduced_in_a_list_and_a_table(x):
    """The second half is an all-gather that holds too much."""
    return gathered_in_a_list_and_a_table(reduce_scatter(x))


# ---- 18.4: all-reduce, by halving and doubling --------------------------------------------------------------------


def across(x, distance):
    """Sent to the device that differs in one bit."""
    return ts.lax.ppermute(x, "d", [(i, i ^ distance) for i in range(8)])


def halved(x):
    """In three rounds each device gets its own sum."""
    me = ts.lax.axis_index("d")
    for distance in (4, 2, 1):
        low, high = x.chunk(2)
        is_high = me // distance % 2 == 1
        x = torch.where(is_high, high, low) + across(torch.where(is_high, low, high), distance)
    return x


def halving_doubling(x):
    """Halves in three rounds, doubles in three."""
    x, me = halved(x), ts.lax.axis_index("d")
    for distance in (1, 2, 4):
        other = across(x, distance)
        is_high = me // distance % 2 == 1
        x = torch.cat([torch.where(is_high, other, x), torch.where(is_high, x, other)])
    return x


def doubling_of_the_whole(x):
    """Three rounds, of all rows each."""
    for distance in (1, 2, 4):
        x = x + across(x, distance)
    return x


def doubling_in_one_order(x):
    """Joins what came behind what was there, on every device."""
    x = halved(x)
    for distance in (1, 2, 4):
        x = torch.cat([x, across(x, distance)])
    return x


def doubling_in_both_orders(x):
    """Right, but eight rows are joined in both orders, and then chosen from."""
    x, me = halved(x), ts.lax.axis_index("d")
    for distance in (1, 2, 4):
        other = across(x, distance)
        x = torch.where(me // distance % 2 == 1, torch.cat([other, x]), torch.cat([x, other]))
    return x


# ---- 18.5: all-to-all ---------------------------------------------------------------------------------------------


def all_to_all(x):
    """Each row goes straight to its device."""
    me = ts.lax.axis_index("d")
    arrived = [x[me]]
    for far in range(1, 8):
        arrived.append(ts.lax.ppermute(x[(me + far) % 8], "d", [(i, (i + far) % 8) for i in range(8)]))
    return torch.stack(arrived)[(me - torch.arange(8)) % 8]


def exchanged_by_the_library(x):
    """The collective itself."""
    return ts.lax.all_to_all(x, "d", 0, 0, tiled=True)


def exchanged_by_passing_all_on(x):
    """All rows of all devices come by; each keeps one of eight."""
    me = ts.lax.axis_index("d")
    arrived, rows = [x[me]], x
    for _ in range(7):
        rows = ts.lax.ppermute(rows, "d", RING)
        arrived.append(rows[me])
    return torch.stack(arrived)[(me - torch.arange(8)) % 8]


def exchanged_in_order_of_distance(x):
    """Right rows, in another order on each device."""
    me = ts.lax.axis_index("d")
    arrived = [x[me]]
    for far in range(1, 8):
        arrived.append(ts.lax.ppermute(x[(me + far) % 8], "d", [(i, (i + far) % 8) for i in range(8)]))
    return torch.stack(arrived)


def exchanged_from_an_ordered_copy(x):
    """Puts the rows in the order of distance before it sends them."""
    me = ts.lax.axis_index("d")
    by_distance = x[(me + torch.arange(8)) % 8]
    arrived = [by_distance[0]]
    for far in range(1, 8):
        arrived.append(ts.lax.ppermute(by_distance[far], "d", [(i, (i + far) % 8) for i in range(8)]))
    return torch.stack(arrived)[(me - torch.arange(8)) % 8]


# ---- 18.6: matmul around a ring -----------------------------------------------------------------------------------


def ring_matmul(x, w):
    """Multiplies the block that is here while it is passed on."""
    pieces = []
    for far in range(8):
        pieces.append(x @ w)
        x = ts.lax.ppermute(x, "d", RING) if far < 7 else x
    me = ts.lax.axis_index("d")
    return torch.stack(pieces)[(me - torch.arange(8)) % 8].flatten(0, 1)


def matmul_of_the_gathered(x, w):
    """All rows at once."""
    return gather(x) @ w


def matmul_of_rows_that_were_kept(x, w):
    """Moves one block at a time, keeps them all, and multiplies at the end."""
    return all_gather(x).flatten(0, 1) @ w


def matmul_in_order_of_arrival(x, w):
    """Right rows, in another order on each device."""
    pieces = []
    for far in range(8):
        pieces.append(x @ w)
        x = ts.lax.ppermute(x, "d", RING) if far < 7 else x
    return torch.cat(pieces)


# ---- 18.7: layer norm ---------------------------------------------------------------------------------------------


def layer_norm(x):
    """The mean first; then the mean of squares of what is left."""
    x = x - ts.lax.pmean(x.mean(1), "d")[:, None]
    variance = ts.lax.pmean((x * x).mean(1), "d")[:, None]
    return x / torch.sqrt(variance + 1e-5)


def norm_of_the_gathered(x):
    """All features at once."""
    whole = ts.lax.all_gather(x, "d", axis=1, tiled=True)
    mine = torch.nn.functional.layer_norm(whole, (1024,)).unflatten(1, (8, 128))
    return mine[:, ts.lax.axis_index("d")]


def norm_of_each_block(x):
    """Each block by itself."""
    return torch.nn.functional.layer_norm(x, (128,))


def norm_by_sums_of_squares(x):
    """One all-reduce; but squares of about a million leave no digits for a variance of thirty."""
    mean, squares = ts.lax.pmean(torch.stack([x.mean(1), (x * x).mean(1)]), "d").unsqueeze(2)
    return (x - mean) / torch.sqrt(squares - mean * mean + 1e-5)


def norm_by_mean_of_variances(x):
    """Adds up how far numbers are from the mean of their block."""
    mean = ts.lax.pmean(x.mean(1), "d")[:, None]
    variance = ts.lax.pmean(x.var(1, correction=0), "d")[:, None]
    return (x - mean) / torch.sqrt(variance + 1e-5)


# ---- 18.8: cross entropy ------------------------------------------------------------------------------------------


def finished(known, found):
    """From a number for 128 logits of each token, and the target's logit or 0, to the losses, finished 8 by 8."""
    both = torch.stack([known, found], 1)
    both = ts.lax.all_to_all(both, "d", 0, 0, tiled=True).unflatten(0, (8, 8))
    known, found = both.unbind(2)
    return gather(torch.logsumexp(known, 0) - found.sum(0))


def own_logits_of(targets, logits):
    """The target's logit of each token where its column is here, elsewhere 0."""
    column = targets - 128 * ts.lax.axis_index("d")
    found = logits.gather(1, column.clamp(0, 127)[:, None])[:, 0]
    return torch.where((column >= 0) & (column < 128), found, 0.0)


def cross_entropy(x, w, targets):
    """One number for 128 logits, and the one logit that some device has."""
    logits = x @ w
    return finished(torch.logsumexp(logits, 1), own_logits_of(targets, logits))


def entropy_of_gathered_logits(x, w, targets):
    """All logits on every device."""
    logits = ts.lax.all_gather(x @ w, "d", axis=1, tiled=True)
    return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def entropy_that_overflows(x, w, targets):
    """exp of the logits as they are."""
    logits = x @ w
    return finished(torch.log(torch.exp(logits).sum(1)), own_logits_of(targets, logits))


def entropy_of_every_devices_column(x, w, targets):
    """Each device adds a logit, its own target or not."""
    logits = x @ w
    column = targets - 128 * ts.lax.axis_index("d")
    return finished(torch.logsumexp(logits, 1), logits.gather(1, column.clamp(0, 127)[:, None])[:, 0])


def entropy_of_one_hot_rows(x, w, targets):
    """Picks the target's logit by a row of 1,024 zeros and a one."""
    logits, me = x @ w, ts.lax.axis_index("d")
    is_target = torch.nn.functional.one_hot(targets, 1024).unflatten(1, (8, 128))[:, me]
    return finished(torch.logsumexp(logits, 1), (is_target * logits).sum(1))


def entropy_of_one_hot_columns(x, w, targets):
    """Picks the target's logit by a row of 128 zeros, or of zeros and a one."""
    logits, column = x @ w, targets - 128 * ts.lax.axis_index("d")
    is_here = (column >= 0) & (column < 128)
    is_target = torch.nn.functional.one_hot(column.clamp(0, 127), 128) * is_here[:, None]
    return finished(torch.logsumexp(logits, 1), (is_target * logits).sum(1))


def entropy_by_three_all_reduces(x, w, targets):
    """Brings the largest logit, the sum of exponentials and the target's logit to every device."""
    logits = x @ w
    largest = ts.lax.pmax(logits.amax(1), "d")
    total = torch.exp(logits - largest[:, None]).sum(1)
    total, found = ts.lax.psum(torch.stack([total, own_logits_of(targets, logits)]), "d")
    return torch.log(total) + largest - found


def entropy_of_log_probabilities(x, w, targets):
    """Finishes the logarithm of each probability first, then picks the target's."""
    logits, columns = x @ w, torch.arange(128) + 128 * ts.lax.axis_index("d")
    logits = logits - ts.lax.pmax(logits.amax(1, keepdim=True), "d")
    total = ts.lax.psum(torch.exp(logits).sum(1, keepdim=True), "d")
    found = torch.where(targets[:, None] == columns, logits - torch.log(total), 0.0)
    return -ts.lax.psum(found.sum(1), "d")


def entropy_of_gathered_numbers(x, w, targets):
    """Two numbers a token, but from every device to every device."""
    logits = x @ w
    known = ts.lax.all_gather(torch.logsumexp(logits, 1), "d")
    return torch.logsumexp(known, 0) - ts.lax.psum(own_logits_of(targets, logits), "d")


def entropy_of_three_numbers(x, w, targets):
    """Finished 8 by 8, but the largest logit and the sum of exponentials travel side by side."""
    logits = x @ w
    largest = logits.amax(1)
    total = torch.exp(logits - largest[:, None]).sum(1)
    three = torch.stack([largest, total, own_logits_of(targets, logits)], 1)
    largest, total, found = ts.lax.all_to_all(three, "d", 0, 0, tiled=True).unflatten(0, (8, 8)).unbind(2)
    top = largest.amax(0)
    return gather(torch.log((total * torch.exp(largest - top)).sum(0)) + top - found.sum(0))


# ---- 18.9: FSDP ---------------------------------------------------------------------------------------------------


def scatter(grad):
    """The own rows of the sum over all devices."""
    return ts.lax.psum_scatter(grad, "d", tiled=True)


def fsdp_of(shards, x, grad, again, scatter=scatter):
    """Forward, keeping relu of each x; backward, from the last layer, whose matrix is still there."""
    kept = []
    for shard in shards:
        kept.append(x.relu())
        whole = gather(shard)
        x = kept[-1] @ whole
    grads = []
    for shard, given in zip(reversed(shards), reversed(kept), strict=True):
        grads.insert(0, scatter(given.T @ grad))
        if shard is not shards[0]:
            whole = whole if shard is shards[-1] else gather(again(shard))
            grad = grad @ whole.T * (given > 0)
    return x, grads


def fsdp(shards, x, grad):
    """Gathers the two middle layers a second time."""
    return fsdp_of(shards, x, grad, lambda shard: shard.clone())


def fsdp_that_gathers_the_last_again(shards, x, grad):
    """Gathers the last matrix again right after its product."""
    kept = []
    for shard in shards:
        kept.append(x)
        x = x.relu() @ gather(shard)
    grads = []
    for shard, given in zip(reversed(shards), reversed(kept), strict=True):
        grads.insert(0, scatter(given.relu().T @ grad))
        if shard is not shards[0]:
            grad = grad @ gather(shard.clone()).T * (given > 0)
    return x, grads


def fsdp_by_vjp(shards, x, grad):
    """Keeps x, so that relu(x) is held beside it, next to a whole matrix and its whole gradient."""

    def layer(whole, x):
        return x.relu() @ whole

    kept, grads = [], []
    for shard in shards:
        whole = gather(shard)
        kept.append(x)
        x = layer(whole, x)
    for shard, given in zip(reversed(shards), reversed(kept), strict=True):
        whole = whole if shard is shards[-1] else gather(shard.clone())
        _, back = ts.vjp(layer, whole, given)
        of_whole, grad = back(grad)
        grads.insert(0, scatter(of_whole))
    return x, grads


def fsdp_that_keeps_two(shards, x, grad):
    """Gathers one layer less again, and holds two whole matrices for it."""
    kept, wholes = [], []
    for shard in shards:
        kept.append(x.relu())
        wholes.append(gather(shard))
        x = kept[-1] @ wholes[-1]
    grads = []
    for layer in (3, 2, 1, 0):
        of_whole = kept[layer].T @ grad
        if layer:
            whole = wholes[layer] if layer > 1 else gather(shards[layer].clone())
            grad = grad @ whole.T * (kept[layer] > 0)
        grads.insert(0, scatter(of_whole))
    return x, grads


def fsdp_that_keeps(shards, x, grad):
    """Without the clone the whole matrices wait for the backward pass."""
    return fsdp_of(shards, x, grad, lambda shard: shard)


def fsdp_of_whole_gradients(shards, x, grad):
    """Every device gets the whole gradients."""

    def own_rows(whole):
        return ts.lax.psum(whole, "d").unflatten(0, (8, 16))[ts.lax.axis_index("d")]

    return fsdp_of(shards, x, grad, lambda shard: shard.clone(), own_rows)


def fsdp_of_own_gradients(shards, x, grad):
    """Takes its rows of the gradient of its own examples."""

    def own_rows(whole):
        return whole.unflatten(0, (8, 16))[ts.lax.axis_index("d")]

    return fsdp_of(shards, x, grad, lambda shard: shard.clone(), own_rows)


def fsdp_without_the_gradient_of_relu(shards, x, grad):
    """Takes the gradient through the matrices alone."""
    kept, whole = [], []
    for shard in shards:
        kept.append(x.relu())
        whole.append(gather(shard))
        x = kept[-1] @ whole[-1]
    grads = []
    for given, matrix in zip(reversed(kept), reversed(whole), strict=True):
        grads.insert(0, scatter(given.T @ grad))
        grad = grad @ matrix.T
    return x, grads


def fsdp_without_relu(shards, x, grad):
    """Forgets relu."""
    x, grads = fsdp_of(shards, x, grad, lambda shard: shard.clone())
    return x.relu(), grads


def fsdp_that_scatters_last(shards, x, grad):
    """Whole gradients wait for the end."""
    x, whole = fsdp_of(shards, x, grad, lambda shard: shard.clone(), lambda whole: whole)
    return x, [scatter(each) for each in whole]


def fsdp_forward_alone(shards, x, grad):
    """Forgets the gradients."""
    for shard in shards:
        x = x.relu() @ ts.lax.all_gather(shard, "d", tiled=True)
    return x


# ---- 18.10: Megatron's MLP ----------------------------------------------------------------------------------------


def megatron(x, up, down, grad):
    """One all-reduce forward, one backward."""
    hidden = (x @ up).relu()
    of_hidden = grad @ down.T * (hidden > 0)
    y = ts.lax.psum(hidden @ down, "d")
    return y, ts.lax.psum(of_hidden @ up.T, "d"), x.T @ of_hidden, hidden.T @ grad


def megatron_without_the_second_sum(x, up, down, grad):
    """Each device has the gradient that goes through its own columns."""
    hidden = (x @ up).relu()
    of_hidden = grad @ down.T * (hidden > 0)
    return ts.lax.psum(hidden @ down, "d"), of_hidden @ up.T, x.T @ of_hidden, hidden.T @ grad


def megatron_without_the_first_sum(x, up, down, grad):
    """Each device has its part of y."""
    hidden = (x @ up).relu()
    of_hidden = grad @ down.T * (hidden > 0)
    return hidden @ down, ts.lax.psum(of_hidden @ up.T, "d"), x.T @ of_hidden, hidden.T @ grad


def megatron_without_the_gradient_of_relu(x, up, down, grad):
    """Takes the gradient through the matrices alone."""
    hidden, of_hidden = (x @ up).relu(), grad @ down.T
    y, of_x = ts.lax.psum(hidden @ down, "d"), ts.lax.psum(of_hidden @ up.T, "d")
    return y, of_x, x.T @ of_hidden, hidden.T @ grad


def megatron_that_adds_up_all(x, up, down, grad):
    """As in data parallelism: sums of gradients that belong to different columns."""
    y, of_x, of_up, of_down = megatron(x, up, down, grad)
    return y, of_x, ts.lax.psum(of_up, "d"), ts.lax.psum(of_down, "d")


def megatron_differentiated(x, up, down, grad):
    """The gradient of a psum is the psum of eight equal gradients."""
    y, back = ts.vjp(lambda x, up, down: ts.lax.psum((x @ up).relu() @ down, "d"), x, up, down)
    of_x, of_up, of_down = back(grad)
    return y, ts.lax.psum(of_x, "d"), of_up, of_down


def megatron_of_whole_matrices(x, up, down, grad):
    """Gathers both matrices, and cuts the gradients."""
    up, down = ts.lax.all_gather(up, "d", axis=1, tiled=True), gather(down)
    hidden = (x @ up).relu()
    of_hidden = grad @ down.T * (hidden > 0)
    me = ts.lax.axis_index("d")
    of_up = (x.T @ of_hidden).unflatten(1, (8, 32))[:, me]
    return hidden @ down, of_hidden @ up.T, of_up, (hidden.T @ grad).unflatten(0, (8, 32))[me]


# ---- 18.11: ring attention ----------------------------------------------------------------------------------------


def start(q):
    """Nothing seen yet: the largest score, the sum of weights, the weighted sum of values."""
    return torch.full_like(q[:, :1], -math.inf), torch.zeros_like(q[:, :1]), torch.zeros_like(q)


def seen(state, q, k, v, hidden=None):
    """The state after one more block of keys and values."""
    largest, total, weighted = state
    scores = q @ k.T / 4
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    new = torch.maximum(largest, scores.amax(1, keepdim=True))
    shrink, weights = torch.exp(largest - new), torch.exp(scores - new)
    return new, total * shrink + weights.sum(1, keepdim=True), weighted * shrink + weights @ v


def ring_attention(q, k, v):
    """One block of keys and values at a time."""
    state = start(q)
    for far in range(8):
        state = seen(state, q, k, v)
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return state[2] / state[1]


def attention_of_the_gathered(q, k, v):
    """All keys and values at once."""
    k, v = gather(k), gather(v)
    return torch.softmax(q @ k.T / 4, -1) @ v


def attention_that_overflows(q, k, v):
    """exp of the scores as they are."""
    total, weighted = torch.zeros_like(q[:, :1]), torch.zeros_like(q)
    for far in range(8):
        weights = torch.exp(q @ k.T / 4)
        total, weighted = total + weights.sum(1, keepdim=True), weighted + weights @ v
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return weighted / total


def attention_that_does_not_shrink(q, k, v):
    """Subtracts the largest score so far, but adds to sums from which a smaller one was subtracted."""
    largest, total, weighted = start(q)
    for far in range(8):
        scores = q @ k.T / 4
        largest = torch.maximum(largest, scores.amax(1, keepdim=True))
        weights = torch.exp(scores - largest)
        total, weighted = total + weights.sum(1, keepdim=True), weighted + weights @ v
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return weighted / total


def attention_of_kept_blocks(q, k, v):
    """Moves one block at a time, and keeps them all."""
    k, v = all_gather(k).flatten(0, 1), all_gather(v).flatten(0, 1)
    return torch.softmax(q @ k.T / 4, -1) @ v


def mean_of_softmaxes(q, k, v):
    """A softmax for each block."""
    total = torch.zeros_like(q)
    for far in range(8):
        total = total + torch.softmax(q @ k.T / 4, -1) @ v
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return total / 8


# ---- 18.12: causal ring attention, in zigzag ----------------------------------------------------------------------


def zigzag_attention(q, k, v):
    """At home three of four pairs of chunks, and in every round two."""
    later = torch.ones(32, 32).triu(1) > 0  # a key that comes after its query
    (qa, qb), (ka, kb), (va, vb) = (each.chunk(2) for each in (q, k, v))
    front = seen(start(qa), qa, ka, va, later)
    back = seen(seen(start(qb), qb, ka, va), qb, kb, vb, later)
    return after_seven_moves(front, back, q, k, v)


def zigzag_of_four_pairs_at_home(q, k, v):
    """One mask over its own block: the pair that it hides as a whole is computed too."""
    places = places_of(ts.lax.axis_index("d"))
    state = seen(start(q), q, k, v, places > places[:, None])
    front, back = zip(*(each.chunk(2) for each in state), strict=True)
    return after_seven_moves(front, back, q, k, v)


def after_seven_moves(front, back, q, k, v):
    """The attention of both chunks, from the state of each after its own keys."""
    qa, qb = q.chunk(2)
    me = ts.lax.axis_index("d")
    for far in range(1, 8):
        k, v = ts.lax.ppermute((k, v), "d", RING)
        (ka, kb), (va, vb) = k.chunk(2), v.chunk(2)
        back = seen(back, qb, ka, va)
        is_before = me >= far  # these blocks come from a device before this one
        chosen = [torch.where(is_before, one, other) for one, other in zip(front, back, strict=True)]
        chosen = seen(
            chosen,
            torch.where(is_before, qa, qb),
            torch.where(is_before, ka, kb),
            torch.where(is_before, va, vb),
        )
        front = [torch.where(is_before, new, old) for new, old in zip(chosen, front, strict=True)]
        back = [torch.where(is_before, old, new) for new, old in zip(chosen, back, strict=True)]
    return torch.cat([front[2] / front[1], back[2] / back[1]])


def places_of(device):
    """The places in the text of a device's rows."""
    return torch.cat([32 * device + torch.arange(32), 32 * (15 - device) + torch.arange(32)])


def zigzag_of_masked_blocks(q, k, v):
    """Computes every score, and hides half of them."""
    me, state = ts.lax.axis_index("d"), start(q)
    for far in range(8):
        state = seen(state, q, k, v, places_of((me - far) % 8) > places_of(me)[:, None])
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return state[2] / state[1]


def zigzag_of_the_gathered(q, k, v):
    """All keys and values at once, and a mask."""
    k, v = gather(k), gather(v)
    places = torch.cat([places_of(device) for device in range(8)])
    hidden = places > places_of(ts.lax.axis_index("d"))[:, None]
    return torch.softmax((q @ k.T / 4).masked_fill(hidden, -math.inf), -1) @ v


def zigzag_of_kept_results(q, k, v):
    """Right, but what each pair of chunks gives waits for the end."""
    later = torch.ones(32, 32).triu(1) > 0
    (qa, qb), (ka, kb), (va, vb) = (each.chunk(2) for each in (q, k, v))
    front = [seen(start(qa), qa, ka, va, later)]
    back = [seen(start(qb), qb, ka, va), seen(start(qb), qb, kb, vb, later)]
    me = ts.lax.axis_index("d")
    for far in range(1, 8):
        k, v = ts.lax.ppermute((k, v), "d", RING)
        (ka, kb), (va, vb) = k.chunk(2), v.chunk(2)
        is_before = me >= far
        q, ka_or_kb, va_or_vb = (torch.where(is_before, *each) for each in ((qa, qb), (ka, kb), (va, vb)))
        largest, total, weighted = seen(start(q), q, ka_or_kb, va_or_vb)
        front.append((torch.where(is_before, largest, -math.inf), total, weighted))
        back += [seen(start(qb), qb, ka, va), (torch.where(is_before, -math.inf, largest), total, weighted)]
    return torch.cat([joined(front), joined(back)])


def joined(states):
    """The attention from the states of separate blocks."""
    largest, total, weighted = (torch.stack(each) for each in zip(*states, strict=True))
    share = torch.exp(largest - largest.amax(0))
    return (weighted * share).sum(0) / (total * share).sum(0)


def rows_in_one_block(q, k, v):
    """Takes the rows of a device for one piece of the text."""
    me, state, rows = ts.lax.axis_index("d"), start(q), torch.arange(64)
    for far in range(8):
        state = seen(state, q, k, v, 64 * ((me - far) % 8) + rows > (64 * me + rows)[:, None])
        if far < 7:
            k, v = ts.lax.ppermute((k, v), "d", RING)
    return state[2] / state[1]


# ---- 18.13: GPipe, forward ----------------------------------------------------------------------------------------


def pipeline_of(W, batches, first, sends=14):
    """Every stage works in every tick; results are kept from tick `first` on."""
    me = ts.lax.axis_index("d")
    received = torch.zeros_like(batches[0])
    results = []
    for tick in range(15):
        value = torch.where(me == 0, batches[min(tick, 7)], received).relu() @ W[0]
        results += [value] if tick >= first else []
        received = ts.lax.ppermute(value, "d", RIGHT) if tick < sends else received
    # a message that no tick uses is left out of the program
    return torch.stack(results)[None] + (0 * received if sends > 14 else 0)


def pipeline(W, batches):
    """15 ticks."""
    return pipeline_of(W, batches, first=7)


def pipeline_that_keeps_late(W, batches):
    """Forgets that the first result leaves in tick 7, counted from 0."""
    return pipeline_of(W, batches, first=8)


def pipeline_that_sends_last(W, batches):
    """Sends on in the last tick too."""
    return pipeline_of(W, batches, first=7, sends=15)


def pipeline_that_stacks_every_tick(W, batches):
    """Keeps seven values that are no results until the end."""
    return pipeline_of(W, batches, first=0)[:, 7:]


def one_after_the_other(W, batches):
    """Each micro-batch goes through all stages before the next one starts."""
    results = []
    for value in batches:
        for stage in range(8):
            value = value.relu() @ W[0]
            value = ts.lax.ppermute(value, "d", RIGHT) if stage < 7 else value
        results.append(value)
    return torch.stack(results)[None]


# ---- 18.14: 1F1B, with the backward pass --------------------------------------------------------------------------

ON = [(0, 1), (1, 2), (2, 3)]
BACK = [(1, 0), (2, 1), (3, 2)]


def one_forward_one_backward_of(W, batches, targets, is_newest=False, ends=11):
    """In each tick one micro-batch forward and another one backward: stage s waits 6 - 2s ticks between the two."""
    me = ts.lax.axis_index("stage")
    value = grad = torch.zeros_like(batches[0])
    kept = [value] * 7
    of_W = torch.zeros_like(W[0])
    for tick in range(14):
        if tick < 11:
            given = torch.where(me == 0, batches[min(tick, 7)], value)
            value = given.relu() @ W[0]
            error = value - targets[tick - 3] if tick >= 3 else None
            value = ts.lax.ppermute(value, "stage", ON) if tick < 10 else value
        kept = [*kept[1:], given]
        if tick >= 3:
            grad = torch.where(me == 3, error if tick < ends else 0.0, grad)
            then = given if is_newest else torch.stack(kept[::2])[me]
            of_W = of_W + then.relu().T @ grad
            grad = grad @ W[0].T * (then > 0)
            grad = ts.lax.ppermute(grad, "stage", BACK) if tick < 13 else grad
    return of_W


def one_forward_one_backward(W, batches, targets):
    """The gradients of both pipelines, added up."""
    return ts.lax.psum(one_forward_one_backward_of(W, batches, targets), "data")[None]


def one_pipeline_alone(W, batches, targets):
    """Forgets the other pipeline."""
    return one_forward_one_backward_of(W, batches, targets)[None]


def the_newest_input(W, batches, targets):
    """Multiplies the gradient by what has just come in."""
    return ts.lax.psum(one_forward_one_backward_of(W, batches, targets, is_newest=True), "data")[None]


def stale_errors_added(W, batches, targets):
    """Lets the last stage go backward in its bubble, from the error of the last micro-batch."""
    return ts.lax.psum(one_forward_one_backward_of(W, batches, targets, ends=14), "data")[None]


def without_the_first_dimension(W, batches, targets):
    """Returns 32 x 32."""
    return one_forward_one_backward(W, batches, targets)[0]


def all_forward_all_backward(W, batches, targets):
    """GPipe: what each stage was given waits until all micro-batches have gone forward."""
    me = ts.lax.axis_index("stage")
    value = grad = torch.zeros_like(batches[0])
    kept, errors = [], []
    of_W = torch.zeros_like(W[0])
    for tick in range(11):
        kept.append(torch.where(me == 0, batches[min(tick, 7)], value))
        value = kept[-1].relu() @ W[0]
        errors += [value - targets[tick - 3]] if tick >= 3 else []
        value = ts.lax.ppermute(value, "stage", ON) if tick < 10 else value
    for tick in range(11):
        grad = torch.where(me == 3, errors[tick] if tick < 8 else torch.zeros_like(value), grad)
        then = torch.stack([kept[min(max(tick - 3 + 2 * stage, 0), 10)] for stage in range(4)])[me]
        of_W = of_W + then.relu().T @ grad
        grad = grad @ W[0].T * (then > 0)
        grad = ts.lax.ppermute(grad, "stage", BACK) if tick < 10 else grad
    return ts.lax.psum(of_W, "data")[None]


def one_micro_batch_at_a_time(W, batches, targets):
    """Forward through all stages and backward through all, then the next."""
    me = ts.lax.axis_index("stage")
    of_W = torch.zeros_like(W[0])
    for batch, target in zip(batches, targets, strict=True):
        value, given = batch, []
        for stage in range(4):
            given.append(value)
            value = value.relu() @ W[0]
            out = value
            value = ts.lax.ppermute(value, "stage", ON) if stage < 3 else value
        grad = torch.where(me == 3, out - target, torch.zeros_like(out))
        then = torch.stack(given)[me]
        for stage in range(4):
            of_W = of_W + torch.where(me == 3 - stage, then.relu().T @ grad, torch.zeros_like(of_W))
            grad = grad @ W[0].T * (then > 0)
            grad = ts.lax.ppermute(grad, "stage", BACK) if stage < 3 else grad
    return ts.lax.psum(of_W, "data")[None]


ANSWERS = {
    "18.1": Answers(
        solution=all_gather,
        wrong=(
            Wrong(gathered_by_the_library, "made of single messages"),
            Wrong(gathered_in_order_of_arrival, "All devices must have the same order"),
            Wrong(gathered_by_passing_on_all, "passed on once, alone"),
            Wrong(gathered_in_a_list_and_a_table, "stack them once"),
            Wrong(gathered_into_a_table_at_once, "in order by an index"),
        ),
    ),
    "18.2": Answers(
        solution=reduce_scatter,
        wrong=(
            Wrong(scattered_by_the_library, "made of single messages"),
            Wrong(scattered_one_too_far, "Follow one sum"),
            Wrong(scattered_after_all_rows_went_round, "Add first, then send the sum"),
            Wrong(scattered_rows_that_wait, "as soon as it is there"),
            Wrong(scattered_by_halving, "Beside x one row is enough"),
        ),
    ),
    "18.3": Answers(
        solution=ring_all_reduce,
        wrong=(
            Wrong(reduced_by_the_library, "made of single messages"),
            Wrong(reduced_in_order_of_arrival, "row i on every device"),
            Wrong(reduced_by_passing_all_on, "First complete each sum"),
            Wrong(reduced_in_a_list_and_a_table, "stack them once"),
        ),
    ),
    "18.4": Answers(
        solution=halving_doubling,
        wrong=(
            Wrong(ring_all_reduce, "a device 4 away"),
            Wrong(doubling_of_the_whole, "Halve before you send"),
            Wrong(doubling_in_one_order, "above yours or below it"),
            Wrong(doubling_in_both_orders, "then join both once"),
        ),
    ),
    "18.5": Answers(
        solution=all_to_all,
        wrong=(
            Wrong(exchanged_by_the_library, "made of single messages"),
            Wrong(exchanged_by_passing_all_on, "straight to its device"),
            Wrong(exchanged_in_order_of_distance, "it belongs in that row"),
            Wrong(exchanged_from_an_ordered_copy, "Take each row from x when it is sent"),
        ),
    ),
    "18.6": Answers(
        solution=ring_matmul,
        wrong=(
            Wrong(matmul_of_the_gathered, "Multiply each block when it comes"),
            Wrong(matmul_of_rows_that_were_kept, "Multiply each block when it comes"),
            Wrong(matmul_in_order_of_arrival, "where do they belong in the result"),
        ),
    ),
    "18.7": Answers(
        solution=layer_norm,
        wrong=(
            Wrong(norm_of_the_gathered, "not the row"),
            Wrong(norm_of_each_block, "those of whole rows"),
            Wrong(norm_by_sums_of_squares, "subtract its square from a mean of squares"),
            Wrong(norm_by_mean_of_variances, "how far apart the means of blocks are"),
        ),
    ),
    "18.8": Answers(
        solution=cross_entropy,
        wrong=(
            Wrong(entropy_of_gathered_logits, "Reduce the 128 that are here"),
            Wrong(entropy_by_three_all_reduces, "the losses of 8 tokens"),
            Wrong(entropy_of_gathered_numbers, "the losses of 8 tokens"),
            Wrong(entropy_of_log_probabilities, "the losses of 8 tokens"),
            Wrong(entropy_of_three_numbers, "one number says both"),
            Wrong(entropy_that_overflows, "exp of a large logit overflows"),
            Wrong(entropy_of_every_devices_column, "What do the other seven add"),
            Wrong(entropy_of_one_hot_rows, "has 8 bytes"),
            Wrong(entropy_of_one_hot_columns, "has 8 bytes"),
        ),
    ),
    "18.9": Answers(
        solution=fsdp,
        wrong=(
            Wrong(fsdp_that_gathers_the_last_again, "its matrix is still there"),
            Wrong(fsdp_by_vjp, "keep one"),
            Wrong(fsdp_that_keeps_two, "Gather again from"),
            Wrong(fsdp_that_keeps, "Gather again from"),
            Wrong(fsdp_that_scatters_last, "Scatter each gradient as soon as it is made"),
            Wrong(fsdp_of_whole_gradients, "each one updates its own rows"),
            Wrong(fsdp_of_own_gradients, "Which collective adds them up and cuts"),
            Wrong(fsdp_without_relu, "In every layer relu comes first"),
            Wrong(fsdp_without_the_gradient_of_relu, "no gradient goes on to the layer before"),
            Wrong(fsdp_forward_alone, "How many values"),
        ),
    ),
    "18.10": Answers(
        solution=megatron,
        wrong=(
            Wrong(megatron_of_whole_matrices, "Not a matrix"),
            Wrong(megatron_without_the_second_sum, "a part of the gradient of x"),
            Wrong(megatron_without_the_first_sum, "a part of y"),
            Wrong(megatron_without_the_gradient_of_relu, "relu lets no gradient through"),
            Wrong(megatron_that_adds_up_all, "nothing is to be added"),
            Wrong(megatron_differentiated, "eight times too much"),
        ),
    ),
    "18.11": Answers(
        solution=ring_attention,
        wrong=(
            Wrong(attention_of_the_gathered, "Hold one block of each"),
            Wrong(attention_that_overflows, "exp of a large score overflows"),
            Wrong(attention_of_kept_blocks, "let it go after its turn"),
            Wrong(attention_that_does_not_shrink, "whenever a larger score comes"),
            Wrong(mean_of_softmaxes, "Do not divide before the last block"),
        ),
    ),
    "18.12": Answers(
        solution=zigzag_attention,
        wrong=(
            Wrong(zigzag_of_masked_blocks, "hidden as a whole"),
            Wrong(zigzag_of_the_gathered, "hidden as a whole"),
            Wrong(zigzag_of_four_pairs_at_home, "three pairs of chunks, not four"),
            Wrong(zigzag_of_kept_results, "state at once"),
            Wrong(rows_in_one_block, "the last 32 are chunk 15 - d"),
        ),
    ),
    "18.13": Answers(
        solution=pipeline,
        wrong=(
            Wrong(one_after_the_other, "what keeps stage 0 from starting"),
            Wrong(pipeline_that_keeps_late, "the first one in tick 7"),
            Wrong(pipeline_that_sends_last, "What is computed in the last tick"),
            Wrong(pipeline_that_stacks_every_tick, "before tick 7 is not a result"),
        ),
    ),
    "18.14": Answers(
        solution=one_forward_one_backward,
        wrong=(
            Wrong(all_forward_all_backward, "as soon as it has reached the last stage"),
            Wrong(one_micro_batch_at_a_time, "What may stage 0 do meanwhile"),
            Wrong(one_pipeline_alone, "the two pipelines are not added up"),
            Wrong(the_newest_input, "an input that is not its own"),
            Wrong(stale_errors_added, "what it computed in its bubble"),
            Wrong(without_the_first_dimension, "with how many dimensions"),
        ),
    ),
}
