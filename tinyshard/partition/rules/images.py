"""Pools, resampling, and ops that trade channels for pixels: each item of a batch alone, mostly each channel too."""

from __future__ import annotations

import math

from tinyshard.partition.rule import Passes, Rule
from tinyshard.partition.rules.call import Call, Family, Row, written


def images(text: str, count: int, passes: Passes = "", **arguments: str) -> Family:
    """A text with `#` for the dims of an image, which must be whole.

    Args:
        text: as `partition.rule` has it.
        count: of dims.
        passes: as `Rule` has it.
        **arguments: as `written` has them.
    """
    return written(text.replace("#", " ".join(["_"] * count)), passes=passes, **arguments)


def shuffled(*, is_inverse: bool, factor: str) -> Family:
    """pixel_shuffle: r * r channels become pixels, the last factors of both dims of an image."""

    def family(call: Call) -> Rule:
        r = call[factor]
        channels, large = (call.result_shapes[0], call.shape) if is_inverse else (call.shape, call.result_shapes[0])
        sizes = {"c": large[-3], "h": channels[-2], "w": channels[-1], "i": r, "j": r}
        small, big = "... (c [i] [j]) h w", "... c (h [i]) (w [j])"
        return call.text(f"{big} -> {small}" if is_inverse else f"{small} -> {big}", sizes=sizes, passes="moved")

    return family


def folded(call: Call) -> Rule:
    """col2im: the windows of an image, with k elements of each channel, are added up at their positions."""
    sizes = {"c": call.result_shapes[0][-3], "k": math.prod(call["kernel_size"])}
    return call.text("... (c [k]) _ -> ... c _ _", sizes=sizes, passes="summed")


def unfolded(call: Call) -> Rule:
    """im2col: each channel becomes the k elements of a window, channel by channel; padding is with zeros."""
    sizes = {"c": call.shape[-3], "k": math.prod(call["kernel_size"])}
    return call.text("... c _ _ -> ... (c [k]) _", sizes=sizes, passes="summed")


def _resized(stem: str, count: int) -> dict[str, Row]:
    size = {"input_size": "n c"}
    forward, backward = (images("n c # -> n c #", count, "summed", **of) for of in ({}, size))
    return {stem: forward, f"{stem}_backward": backward}


ROWS: dict[str, Row] = {
    "_adaptive_avg_pool2d avg_pool2d": images("... # -> ... #", 2, "summed"),
    "_adaptive_avg_pool3d avg_pool3d": images("... # -> ... #", 3, "summed"),
    "adaptive_max_pool2d max_pool2d_with_indices": images("... # -> ... #, ... #", 2),
    "adaptive_max_pool3d max_pool3d_with_indices": images("... # -> ... #, ... #", 3),
    "fractional_max_pool2d": images("... #, ... _ -> ... #, ... #", 2),
    "fractional_max_pool3d": images("... #, ... _ -> ... #, ... #", 3),
    "_adaptive_avg_pool2d_backward avg_pool2d_backward max_unpool2d": images("... #, ... # -> ... #", 2),
    "_adaptive_avg_pool3d_backward avg_pool3d_backward max_unpool3d": images("... #, ... # -> ... #", 3),
    "max_pool2d_with_indices_backward": images("... #, ... #, ... # -> ... #", 2),
    "max_pool3d_with_indices_backward": images("... #, ... #, ... # -> ... #", 3),
    "pixel_shuffle": shuffled(is_inverse=False, factor="upscale_factor"),
    "pixel_unshuffle": shuffled(is_inverse=True, factor="downscale_factor"),
    "col2im": folded,
    "im2col": unfolded,
    "channel_shuffle": "n [c] ... -> n [c] ...",
    "grid_sampler_2d": "n c _ _, n h w _ -> n c h w",
    "grid_sampler_3d": "n c _ _ _, n d h w _ -> n c d h w",
    "grid_sampler_2d_backward": "n c h w, n c _ _, n h w _ -> n c _ _ +h +w, n h w _ +c",
    "grid_sampler_3d_backward": "n c d h w, n c _ _ _, n d h w _ -> n c _ _ _ +d +h +w, n d h w _ +c",
    **_resized("upsample_nearest1d", 1),
    **_resized("upsample_nearest2d", 2),
    **_resized("upsample_nearest3d", 3),
    **_resized("_upsample_nearest_exact1d", 1),
    **_resized("_upsample_nearest_exact2d", 2),
    **_resized("_upsample_nearest_exact3d", 3),
    **_resized("upsample_linear1d", 1),
    **_resized("upsample_bilinear2d", 2),
    **_resized("upsample_bicubic2d", 2),
    **_resized("upsample_trilinear3d", 3),
    **_resized("_upsample_bilinear2d_aa", 2),
}
