"""Layers: normalizations, attention, convolutions, losses of classes; and the draws of random keys."""

from __future__ import annotations

from collections.abc import Callable

from tinyshard.partition.rule import Dim, Rule
from tinyshard.partition.rules.call import Call, Family, Row, is_tensor, written


def normalized(make: Callable[[str], str]) -> Family:
    """An item of a batch is the dims of `normalized_shape`: a `_` for each of them."""
    return lambda call: call.text(make("_ " * len(call["normalized_shape"])))


def batch_normed(call: Call) -> Rule:
    """Each channel by itself; in training over the whole batch."""
    statistics = "c, c" if "running_mean" in call.arguments else ""
    given = f"c, c, {statistics}".rstrip(", ")
    if call.get("training", True):
        return call.text(f"_ c *, {given} -> _ c *, c, c")
    return call.text(f"n c ..., {given} -> n c ..., *, *")  # its two statistics are empty


def batch_norm_gradient(call: Call) -> Rule:
    """The gradients of weight and bias are sums over the batch."""
    if call["train"]:
        return call.text("_ c *, _ c *, c, c, c, c, c -> _ c *, c, c")
    return call.text("n c ..., n c ..., c, c, c, *, * -> n c ..., c +n +..., c +n +...")


def attention(call: Call) -> Rule | None:
    """Each head by itself. A head of keys is shared by a group of r heads of queries: its gradient sums over them."""
    groups = call["query"].shape[1] // call["key"].shape[1]
    queries: list[Dim] = [("b",), ("h", "r"), (), ()] if groups > 1 else [("b",), ("h",), (), ()]
    keys: list[Dim] = [("b",), ("h",), (), ()]
    sums: list[Dim] = [*queries[:2], ()]
    dims = {"query": queries, "grad_out": queries, "out": queries, "key": keys, "value": keys, "logsumexp": sums}
    mask = call["attn_mask"]
    if mask is not None:
        if groups > 1 and len(mask.shape) > 2 and mask.shape[-3] > 1:
            return None
        dims["attn_mask"] = [*queries[:2], (), ()][4 - len(mask.shape) :]
    is_gradient = "grad_out" in call.arguments
    return call.rule(
        [dims[name] for name, x in call.arguments.items() if is_tensor(x)],
        [queries, keys, keys] if is_gradient else [queries, sums],
        [{}, {"r": "sum"}, {"r": "sum"}] if is_gradient and groups > 1 else None,
        sizes={"h": call["key"].shape[1], "r": groups},
    )


def convolved(call: Call) -> Rule:
    """A sum over blocks of input channels would add the bias several times: with a bias, input channels are whole."""
    if call["groups"] > 1:
        return call.text("n _ *, _ _ *, _ -> n _ *")
    weight = "i o *" if call["transposed"] else "o i *"
    batch = "n " if len(call.shape) == len(call["weight"].shape) else ""
    if call["bias"] is None:
        return call.text(f"{batch}i *, {weight}, o -> {batch}o * +i")
    return call.text(f"{batch}i *, {weight}, o -> {batch}o *".replace("i ", "[i] "))


def convolution_gradient(call: Call) -> Rule:
    """The gradients of weight and bias sum over the batch, the gradient of the input over the output channels."""
    sizes = {} if call["bias_sizes"] is None else {"bias_sizes": (("o",),)}
    if call["groups"] > 1:
        return call.text("n _ *, n _ *, _ _ * -> n _ *, _ _ * +n, _ +n")
    weight = "i o *" if call["transposed"] else "o i *"
    return call.text(f"n o *, n i *, {weight} -> n i * +o, {weight} +n, o +n =i", arguments=sizes)


def nll(call: Call) -> Rule:
    """Classes must be whole; a mean divides by weights that differ by block (`decompositions`)."""
    if len(call.shape) == 1 or call["reduction"] == 1:
        return call.text("_ *, *, _ -> *, *")
    if call["reduction"] == 0:
        return call.text("n [c] ..., n ..., _ -> n ..., =n =...")
    return call.text("n [c] ..., n ..., _ -> +n +..., +n +...")


def nll_gradient(call: Call) -> Rule:
    """The gradient of a loss that is a number, or of one loss per example."""
    if len(call["self"].shape) == 1:
        return call.text("*, _, *, _, * -> _")
    gradient = "n ..." if call["grad_output"].shape else ""
    return call.text(f"{gradient}, n [c] ..., n ..., _,  -> n [c] ...")


ROWS: dict[str, Row] = {
    "native_layer_norm": normalized(lambda item: f"... {item}, *, * -> ... {item}, ... {item}, ... {item}"),
    "_fused_rms_norm": normalized(lambda item: f"... {item}, * -> ... {item}, ... {item}"),
    "native_layer_norm_backward": normalized(
        lambda item: f"... {item}, ... {item}, ... {item}, ... {item}, *, * -> ... {item}, * +..., * +..."
    ),
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats": batch_normed,
    "native_batch_norm_backward": batch_norm_gradient,
    "native_group_norm": written("n _ *, _, _ -> n _ *, n _, n _", N="n"),
    "native_group_norm_backward": written("n _ *, n _ *, n _, n _, _ -> n _ *, _ +n, _ +n", N="n"),
    "_scaled_dot_product_flash_attention_for_cpu": attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": attention,
    "convolution": convolved,
    "convolution_backward": convolution_gradient,
    "nll_loss_forward nll_loss2d_forward": nll,
    "nll_loss_backward nll_loss2d_backward": nll_gradient,
}

# each key of a batch is drawn from by itself; the dim of its words is whole
DRAWS: dict[str, Row] = {
    "draw": "... _, * -> ... *",
    "draw_original": "... _ -> ... *",
    "fold_in": "... _, ... -> ... _",
}
