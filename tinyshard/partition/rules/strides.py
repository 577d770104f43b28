"""Which kernels are passed contiguous memory though their ops have a rule, and which take any strides without one.

A handle does not know the strides of its shards, so the call with which torch prepares an operand (`x.contiguous()`)
does nothing, and a kernel may read memory in the wrong order. The sweep of the rules passes each op transposed blocks,
and so finds a missing row.
"""

from __future__ import annotations

import torch

aten = torch.ops.aten

CONTIGUOUS = {
    # kernels that go wrong, or warn, where a tensor overlaps itself as an expanded one does
    aten.as_strided.default,
    aten.view.dtype,
    aten.view_as_real.default,
    aten.slice_scatter.default,
    aten.select_scatter.default,
    aten.diagonal_scatter.default,
    aten.searchsorted.Tensor,
    aten.bucketize.Tensor,
    # kernels that computed wrong numbers from transposed blocks, or that no sample of the sweep reaches
    aten._linalg_det.default,
    aten._linalg_slogdet.default,
    aten._native_batch_norm_legit.default,
    aten._scaled_dot_product_flash_attention_for_cpu.default,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    aten._unsafe_index.Tensor,
    aten._unsafe_index_put.default,
    aten._upsample_nearest_exact3d.default,
    aten._upsample_nearest_exact3d_backward.default,
    aten.native_group_norm.default,
    aten.native_group_norm_backward.default,
    aten.native_layer_norm_backward.default,
    aten.nll_loss2d_backward.default,
    aten.scatter.value_reduce,
    aten.view_as_complex.default,
}
# ops without a rule, which are partitioned as a product and an addition
ANY_STRIDES = {aten.addmm.default, aten.addmv.default, aten.addbmm.default, aten.baddbmm.default}
