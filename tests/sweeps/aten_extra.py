"""Calls of the ops that training uses, in sizes that every mesh of the sweep divides: the op database's are small.

Most have several operands, whose layouts a rule must bring together: there a rule is most likely to be wrong.
"""

from __future__ import annotations

from typing import Any

import torch

aten = torch.ops.aten


def calls() -> dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """The calls, by op."""
    generator = torch.Generator().manual_seed(7)
    made: dict[Any, list[tuple[tuple[Any, ...], dict[str, Any]]]] = {}

    def t(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    def p(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) * 0.8 + 0.1

    def i(below: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, below, shape, generator=generator)

    def add(op: Any, *args: Any, **kwargs: Any) -> None:
        made.setdefault(op, []).append((args, kwargs))

    x, g = t(20, 10), t(20, 10)
    for reduction in (0, 1, 2):
        by = t(20, 10) if reduction == 0 else t()
        add(aten.mse_loss.default, x, g, reduction)
        add(aten.mse_loss_backward.default, by, x, g, reduction)
        add(aten.smooth_l1_loss.default, x, g, reduction, 0.5)
        add(aten.smooth_l1_loss_backward.default, by, x, g, reduction, 0.5)
        add(aten.huber_loss.default, x, g, reduction, 0.5)
        add(aten.huber_loss_backward.default, by, x, g, reduction, 0.5)
        add(aten.binary_cross_entropy.default, p(20, 10), p(20, 10), p(20, 10), reduction)
        add(aten.binary_cross_entropy_backward.default, by, p(20, 10), p(20, 10), None, reduction)
        add(aten.binary_cross_entropy_backward.default, by, p(20, 10), p(20, 10), p(20, 10), reduction)
        add(aten.soft_margin_loss.default, x, g.sign(), reduction)
        add(aten.soft_margin_loss_backward.default, by, x, g.sign(), reduction)
        for weight in (None, p(10)):
            for ignored in (-100, 3):
                target = i(10, 20)
                out, total = aten.nll_loss_forward(x, target, weight, reduction, ignored)
                add(aten.nll_loss_forward.default, x, target, weight, reduction, ignored)
                by = t(*out.shape)
                add(aten.nll_loss_backward.default, by, x, target, weight, reduction, ignored, total)
                deep, deep_target = t(10, 10, 2, 4), i(10, 10, 2, 4)
                out, total = aten.nll_loss2d_forward(deep, deep_target, weight, reduction, ignored)
                add(aten.nll_loss2d_forward.default, deep, deep_target, weight, reduction, ignored)
                by = t(*out.shape)
                add(aten.nll_loss2d_backward.default, by, deep, deep_target, weight, reduction, ignored, total)

    add(aten._standard_gamma_grad.default, p(20, 10), p(20, 10))

    # slices of all of a dim, which keep its cut
    add(aten.slice.Tensor, x, 0, 0, 20)
    add(aten.slice.Tensor, x, 1, 0, 2**63 - 1)
    add(aten.slice_backward.default, x, [20, 10], 0, 0, 20, 1)
    add(aten.slice_scatter.default, x, g, 1, 0, 10)

    cube, by = t(10, 4, 20), t(10, 4, 20)
    for normalized in ([20], [4, 20]):
        weight, bias = t(*normalized), t(*normalized)
        _, mean, rstd = aten.native_layer_norm(cube, normalized, weight, bias, 1e-5)
        add(aten.native_layer_norm.default, cube, normalized, weight, bias, 1e-5)
        add(aten.native_layer_norm.default, cube, normalized, None, None, 1e-5)
        args = (by, cube, normalized, mean, rstd)
        add(aten.native_layer_norm_backward.default, *args, weight, bias, [True, True, True])
        add(aten.native_layer_norm_backward.default, *args, None, None, [True, False, False])
        add(aten.native_layer_norm_backward.default, *args, weight, bias, [False, True, True])
    square = t(20, 20)
    _, mean, rstd = aten.native_layer_norm(square, [20], t(20), t(20), 1e-5)
    for _ in range(3):
        add(aten.native_layer_norm_backward.default, t(20, 20), square, [20], mean, rstd, t(20), t(20), [True] * 3)
        add(aten.native_layer_norm.default, square, [20], t(20), t(20), 1e-5)

    image = t(10, 20, 4, 2)
    _, mean, rstd = aten.native_group_norm(image, t(20), t(20), 10, 20, 8, 5, 1e-5)
    add(aten.native_group_norm.default, image, t(20), t(20), 10, 20, 8, 5, 1e-5)
    sizes = (10, 20, 8, 5, [True] * 3)
    add(aten.native_group_norm_backward.default, t(10, 20, 4, 2), image, mean, rstd, t(20), *sizes)
    for training in (True, False):
        args = (t(20), t(20), t(20), p(20), training, 0.1, 1e-5)
        # saved statistics: empty on the CPU in evaluation, where torch's meta kernel says otherwise
        if training:
            add(aten.native_batch_norm.default, image, *args)
            out = aten.native_batch_norm(image, *args)
            rest = (args[0], args[2], args[3], out[1], out[2], training, 1e-5, [True] * 3)
            add(aten.native_batch_norm_backward.default, t(10, 20, 4, 2), image, *rest)

    kernel = t(20, 20, 3, 3)
    for groups, k in ((1, kernel), (5, t(20, 4, 3, 3))):
        plain = ([1, 1], [1, 1], [1, 1], False, [0, 0], groups)
        add(aten.convolution.default, t(10, 20, 4, 10), k, t(20), *plain)
        add(aten.convolution.default, t(10, 20, 4, 10), k, None, *plain)
        gradient = (t(10, 20, 4, 10), t(10, 20, 4, 10), k, [20], *plain, [True] * 3)
        add(aten.convolution_backward.default, *gradient)
    add(aten.convolution.default, t(10, 20, 10), t(10, 20, 3), t(10), [1], [1], [1], False, [0], 1)
    line = ([10], [1], [1], [1], False, [0], 1, [True] * 3)
    add(aten.convolution_backward.default, t(10, 10, 10), t(10, 20, 10), t(10, 20, 3), *line)

    tokens = i(20, 10, 20)
    add(aten.embedding.default, t(20, 10), tokens)
    for frequent in (False, True):
        add(aten.embedding_dense_backward.default, t(10, 20, 10), tokens, 20, -1, frequent)
        add(aten.embedding_dense_backward.default, t(10, 20, 10), tokens, 20, 3, frequent)

    q, k, v = t(10, 20, 4, 2), t(10, 20, 4, 2), t(10, 20, 4, 2)
    flash = aten._scaled_dot_product_flash_attention_for_cpu
    for causal in (False, True):
        out, lse = flash(q, k, v, 0.0, causal)
        add(flash.default, q, k, v, 0.0, causal)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        add(backward, t(10, 20, 4, 2), q, k, v, out, lse, 0.0, causal)
    add(flash.default, q, k, v, 0.0, False, attn_mask=t(4, 4))
    add(flash.default, q, k, v, 0.0, False, attn_mask=t(10, 20, 4, 4))

    add(aten.mm.default, t(20, 10), t(10, 20))
    add(aten.bmm.default, t(10, 20, 4), t(10, 4, 20))
    add(aten.mv.default, t(20, 10), t(10))
    add(aten.dot.default, t(20), t(20))
    add(aten.addmm.default, t(20), t(20, 10), t(10, 20))
    add(aten.addmm.default, t(20, 20), t(20, 10), t(10, 20), beta=0.5, alpha=2.0)
    add(aten.baddbmm.default, t(10, 20, 20), t(10, 20, 4), t(10, 4, 20))
    add(aten._log_softmax.default, t(20, 10), 1, False)
    add(aten._softmax.default, t(20, 10), 1, False)
    soft = torch.softmax(t(20, 10), 1)
    add(aten._softmax_backward_data.default, t(20, 10), soft, 1, torch.float32)
    add(aten._log_softmax_backward_data.default, t(20, 10), soft.log(), 1, torch.float32)
    for dims in ([0], [1], [0, 1], None):
        add(aten.var.correction, t(20, 10), dims, correction=1)
        add(aten.std.correction, t(20, 10), dims, correction=0, keepdim=True)
        add(aten.var_mean.correction, t(20, 10), dims, correction=1)
        add(aten.linalg_vector_norm.default, t(20, 10), 2, dims)
        add(aten.linalg_vector_norm.default, t(20, 10), 1, dims, True)
        add(aten.linalg_vector_norm.default, t(20, 10), float("inf"), dims)
        add(aten.logsumexp.default, t(20, 10), [0, 1] if dims is None else dims)
    whole = (i(4, 20, 10), t(20, 10))  # with equal maxima: the first counts
    for values in whole:
        for dim in (0, 1):
            add(aten.argmax.default, values, dim)
            add(aten.argmin.default, values, dim, True)
            add(aten.max.dim, values, dim)
            add(aten.min.dim, values, dim, True)
        add(aten.argmax.default, values)
    add(aten.argmax.default, torch.where(t(20, 10) > 1.2, float("nan"), t(20, 10)), 1)
    add(aten.cat.default, [t(20, 10), t(20, 10)], 0)
    add(aten.cat.default, [t(20, 10), t(10, 10), t(20, 10)], 0)
    add(aten.stack.default, [t(20, 10), t(20, 10)], 1)
    add(aten.split.Tensor, t(20, 10), 10, 0)
    add(aten.split_with_sizes.default, t(20, 10), [10, 10], 0)
    add(aten.gather.default, t(20, 10), 1, i(10, 20, 10))
    add(aten.gather.default, t(20, 10), 0, i(20, 20, 10))
    add(aten.gather.default, t(20, 10), 1, i(10, 10, 10))
    add(aten.gather.default, t(20, 10), 0, i(20, 20, 5))
    add(aten.scatter_add.default, t(20, 10), 0, i(20, 20, 5), t(20, 10))
    add(aten.scatter_add.default, t(20, 10), 1, i(10, 10, 10), t(20, 10))
    add(aten.scatter.value, t(20, 10), 1, i(10, 10, 5), 0.5)
    add(aten.scatter.src, t(20, 10), 1, t(20, 10).argsort(1), t(20, 10))
    add(aten.scatter.value, t(20, 10), 1, i(10, 20, 10), 0.5)
    add(aten.scatter_add.default, t(20, 10), 0, i(20, 20, 10), t(20, 10))
    add(aten.scatter_reduce.two, t(20, 10), 0, i(20, 20, 10), t(20, 10), "amax")
    add(aten.index_select.default, t(20, 10), 0, i(20, 10))
    add(aten.index.Tensor, t(20, 10), [i(20, 10)])
    add(aten.index.Tensor, t(20, 10), [i(20, 10), i(10, 10)])
    add(aten.index_put.default, t(20, 10), [i(20, 10)], t(10, 10), True)
    add(aten.masked_fill.Scalar, t(20, 10), t(20, 10) > 0, 0.5)
    add(aten.where.self, t(20, 10) > 0, t(20, 10), t(10))
    add(aten.addcmul.default, t(20, 10), t(20, 10), t(10), value=0.5)
    add(aten.cumsum.default, t(20, 10), 0)
    add(aten.sort.default, t(20, 10), 1)
    add(aten.topk.default, t(20, 10), 3, 1)
    add(aten.select_backward.default, t(10), [20, 10], 0, 3)
    add(aten.select_backward.default, t(20), [20, 10], -1, 3)
    add(aten.slice_backward.default, t(10, 10), [20, 10], 0, 0, 20, 2)
    add(aten.diagonal_backward.default, t(10, 20), [10, 20, 20], 0, -2, -1)
    add(aten.unfold_backward.default, t(20, 9, 2), [20, 10], -1, 2, 1)
    add(aten.avg_pool2d.default, t(10, 20, 4, 10), [2, 2], [2, 2])
    add(aten.max_pool2d_with_indices.default, t(10, 20, 4, 10), [2, 2], [2, 2])
    add(aten.upsample_nearest2d.default, t(10, 20, 4, 10), [8, 20])
    add(aten.glu.default, t(20, 20), 1)
    add(aten.prod.dim_int, t(20, 10), 0)
    add(aten.any.dim, t(20, 10) > 1.5, 0)
    add(aten.all.dim, t(20, 10) > -1.5, 1)
    add(aten._cdist_forward.default, t(20, 10), t(10, 10), 2.0, None)
    add(aten._fused_rms_norm.default, t(20, 10), [10], t(10), 1e-5)
    for op in (
        aten.relu,
        aten.sin,
        aten.exp,
        aten.sigmoid,
        aten.tanh,
        aten.sqrt,
        aten.abs,
        aten.neg,
        aten.erf,
        aten.log,
    ):
        add(op.default, p(20, 10))
        add(op.default, p(10, 20))
    return made
