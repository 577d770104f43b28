"""What the sweep of the partitioning rules has found right; `python -m tests.sweeps.verify` writes it.

RULES        aten ops whose rule of DTensor's gave torch's numbers in every layout that was drawn; others are gathered
ANY_STRIDES  aten ops whose kernel gave torch's numbers on operands with transposed memory; others get contiguous ones
"""

# ruff: noqa: SIM905
from __future__ import annotations

RULES: frozenset[str] = frozenset(
    f"aten.{name}"
    for name in """
    _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d.default _conj.default
    _conj_physical.default _fft_c2c.default _fft_c2r.default _fft_r2c.default _fused_rms_norm.default
    _linalg_solve_ex.default _log_softmax.default _log_softmax_backward_data.default
    _native_batch_norm_legit.no_stats _prelu_kernel.default _safe_softmax.default _softmax.default
    _softmax_backward_data.default _to_copy.default _unsafe_view.default _upsample_bilinear2d_aa.default
    _upsample_bilinear2d_aa_backward.default _upsample_nearest_exact1d.default
    _upsample_nearest_exact1d_backward.default _upsample_nearest_exact2d.default
    _upsample_nearest_exact2d_backward.default abs.default acos.default acosh.default adaptive_max_pool2d.default
    adaptive_max_pool3d.default add.Scalar add.Tensor addbmm.default addcdiv.default addcmul.default addmm.default
    addmv.default addr.default alias_copy.default all.default all.dim all.dims amax.default amin.default
    aminmax.default angle.default any.default any.dim any.dims argmax.default argmin.default asin.default
    asinh.default atan.default atan2.default atanh.default avg_pool2d.default avg_pool3d.default baddbmm.default
    binary_cross_entropy.default binary_cross_entropy_backward.default binary_cross_entropy_with_logits.default
    bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_not.default bitwise_or.Tensor bitwise_right_shift.Tensor
    bitwise_xor.Tensor bmm.default bucketize.Tensor cat.default ceil.default celu.default channel_shuffle.default
    cholesky.default cholesky_inverse.default cholesky_solve.default clamp.Tensor clamp.default clamp_max.Tensor
    clamp_min.Tensor clamp_min.default clone.default complex.default constant_pad_nd.default convolution.default
    convolution_backward.default copysign.Scalar copysign.Tensor cos.default cosh.default count_nonzero.default
    count_nonzero.dim_IntList cummax.default cummin.default cumprod.default cumsum.default deg2rad.default
    detach.default diag_embed.default diagonal.default diagonal_backward.default diagonal_copy.default
    diagonal_scatter.default digamma.default dist.default div.Scalar div.Tensor div.Tensor_mode dot.default
    elu.default elu_backward.default embedding.default embedding_dense_backward.default eq.Scalar eq.Tensor
    erf.default erfc.default erfinv.default exp.default exp2.default expand.default expand_copy.default
    expm1.default fill.Scalar flip.default floor.default floor_divide.default fmax.default fmin.default fmod.Tensor
    frac.default fractional_max_pool2d.default fractional_max_pool3d.default frexp.Tensor full_like.default
    gather.default gcd.default ge.Scalar ge.Tensor gelu.default gelu_backward.default geqrf.default glu.default
    glu_backward.default grid_sampler_2d.default grid_sampler_2d_backward.default grid_sampler_3d.default
    grid_sampler_3d_backward.default gt.Scalar gt.Tensor hardshrink.default hardsigmoid.default hardswish.default
    hardtanh.default heaviside.default histc.default huber_loss.default huber_loss_backward.default hypot.default
    i0.default igamma.default igammac.default index.Tensor index_add.default index_copy.default
    index_fill.int_Scalar index_fill.int_Tensor index_put.default index_reduce.default index_select.default
    isin.Tensor_Tensor isinf.default isnan.default isneginf.default isposinf.default kthvalue.default lcm.default
    ldexp.Tensor le.Scalar le.Tensor leaky_relu.default leaky_relu_backward.default lerp.Scalar lerp.Tensor
    lgamma.default lift_fresh.default linalg_cross.default linalg_eig.default linalg_householder_product.default
    linalg_ldl_factor_ex.default linalg_ldl_solve.default linalg_lu.default linalg_lu_solve.default
    linalg_matrix_exp.default linalg_pinv.atol_rtol_tensor linalg_vector_norm.default log.default log10.default
    log1p.default log2.default log_sigmoid_forward.default logaddexp.default logaddexp2.default logcumsumexp.default
    logical_and.default logical_not.default logical_or.default logical_xor.default logit.default
    logit_backward.default logsumexp.default lt.Scalar lt.Tensor lu_unpack.default masked_fill.Scalar
    masked_fill.Tensor max.default max.dim max_pool2d_with_indices.default max_pool2d_with_indices_backward.default
    max_pool3d_with_indices.default max_unpool2d.default max_unpool3d.default maximum.default mean.default mean.dim
    median.default median.dim min.default min.dim minimum.default mish.default mish_backward.default mm.default
    mode.default mse_loss.default mse_loss_backward.default mul.Scalar mul.Tensor mv.default mvlgamma.default
    nan_to_num.default nanmedian.default nanmedian.dim nansum.default narrow_copy.default native_batch_norm.default
    native_batch_norm_backward.default native_dropout_backward.default native_group_norm.default
    native_layer_norm.default ne.Scalar ne.Tensor neg.default new_full.default new_ones.default new_zeros.default
    nextafter.default nll_loss2d_backward.default nll_loss2d_forward.default nll_loss_backward.default
    nll_loss_forward.default norm.ScalarOpt_dim ones_like.default ormqr.default permute.default permute_copy.default
    pixel_shuffle.default pixel_unshuffle.default polar.default polygamma.default pow.Scalar pow.Tensor_Scalar
    pow.Tensor_Tensor prod.default prod.dim_int rad2deg.default reciprocal.default relu.default remainder.Scalar
    remainder.Tensor repeat.default roll.default rot90.default round.decimals round.default
    rrelu_with_noise_backward.default rsqrt.default rsub.Scalar rsub.Tensor scatter.src scatter.value
    scatter_add.default select.int select_backward.default select_scatter.default sgn.default sigmoid.default
    sigmoid_backward.default sign.default signbit.default silu.default silu_backward.default sin.default
    sinc.default sinh.default slice.Tensor slice_backward.default smooth_l1_loss.default
    smooth_l1_loss_backward.default soft_margin_loss.default soft_margin_loss_backward.default softplus.default
    softplus_backward.default softshrink.default sort.default sort.stable special_airy_ai.default
    special_bessel_j0.default special_bessel_j1.default special_bessel_y0.default special_bessel_y1.default
    special_chebyshev_polynomial_t.default special_chebyshev_polynomial_u.default
    special_chebyshev_polynomial_v.default special_chebyshev_polynomial_w.default special_entr.default
    special_erfcx.default special_hermite_polynomial_h.default special_hermite_polynomial_he.default
    special_i0e.default special_i1.default special_i1e.default special_laguerre_polynomial_l.default
    special_legendre_polynomial_p.default special_log_ndtr.default special_modified_bessel_i0.default
    special_modified_bessel_i1.default special_modified_bessel_k0.default special_modified_bessel_k1.default
    special_ndtri.default special_scaled_modified_bessel_k0.default special_scaled_modified_bessel_k1.default
    special_shifted_chebyshev_polynomial_t.default special_shifted_chebyshev_polynomial_u.default
    special_shifted_chebyshev_polynomial_v.default special_shifted_chebyshev_polynomial_w.default
    special_spherical_bessel_j0.default special_xlog1py.default special_zeta.default split.Tensor
    split_with_sizes.default split_with_sizes_copy.default sqrt.default squeeze.default squeeze.dim squeeze.dims
    squeeze_copy.default squeeze_copy.dim stack.default std.correction std_mean.correction sub.Scalar sub.Tensor
    sum.default sum.dim_IntList t.default t_copy.default take.default tan.default tanh.default tanh_backward.default
    threshold.default threshold_backward.default topk.default trace.default transpose.int transpose_copy.int
    triangular_solve.default trunc.default unbind.int unbind_copy.int unfold_backward.default unsqueeze.default
    unsqueeze_copy.default upsample_bicubic2d.default upsample_bicubic2d_backward.default
    upsample_bilinear2d.default upsample_bilinear2d_backward.default upsample_linear1d.default
    upsample_linear1d_backward.default upsample_nearest1d.default upsample_nearest1d_backward.default
    upsample_nearest2d.default upsample_nearest2d_backward.default upsample_nearest3d.default
    upsample_nearest3d_backward.default upsample_trilinear3d.default upsample_trilinear3d_backward.default
    var.correction var_mean.correction vdot.default view.default view_as_complex.default view_copy.default
    where.self xlogy.Tensor zeros_like.default
    """.split()
)

ANY_STRIDES: frozenset[str] = frozenset(
    f"aten.{name}"
    for name in """
    _adaptive_avg_pool2d.default _adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d.default
    _adaptive_avg_pool3d_backward.default _cdist_backward.default _cdist_forward.default _chunk_cat.default
    _conj.default _conj_physical.default _embedding_bag_per_sample_weights_backward.default _fft_c2c.default
    _fft_c2r.default _fft_r2c.default _fused_rms_norm.default _histogramdd_bin_edges.default
    _histogramdd_from_bin_cts.default _histogramdd_from_bin_tensors.default _linalg_check_errors.default
    _linalg_eigh.default _linalg_solve_ex.default _linalg_svd.default _log_softmax.default
    _log_softmax_backward_data.default _native_batch_norm_legit.no_stats _prelu_kernel.default
    _prelu_kernel_backward.default _safe_softmax.default _segment_reduce_backward.default _softmax.default
    _softmax_backward_data.default _to_copy.default _trilinear.default _unsafe_masked_index.default
    _unsafe_masked_index_put_accumulate.default _unsafe_view.default _upsample_bilinear2d_aa.default
    _upsample_bilinear2d_aa_backward.default _upsample_nearest_exact1d.default
    _upsample_nearest_exact1d_backward.default _upsample_nearest_exact2d.default
    _upsample_nearest_exact2d_backward.default abs.default acos.default acosh.default adaptive_max_pool2d.default
    adaptive_max_pool2d_backward.default adaptive_max_pool3d.default add.Scalar add.Tensor addbmm.default
    addcdiv.default addcmul.default addmm.default addmv.default addr.default alias.default alias_copy.default
    all.default all.dim all.dims amax.default amin.default aminmax.default angle.default any.default any.dim
    any.dims argmax.default argmin.default as_strided.default as_strided_copy.default asin.default asinh.default
    atan.default atan2.default atanh.default avg_pool2d.default avg_pool2d_backward.default avg_pool3d.default
    avg_pool3d_backward.default baddbmm.default binary_cross_entropy.default binary_cross_entropy_backward.default
    binary_cross_entropy_with_logits.default bitwise_and.Tensor bitwise_left_shift.Tensor bitwise_not.default
    bitwise_or.Tensor bitwise_right_shift.Tensor bitwise_xor.Tensor block_diag.default bmm.default bucketize.Tensor
    cat.default ceil.default celu.default channel_shuffle.default cholesky.default cholesky_inverse.default
    cholesky_solve.default clamp.Tensor clamp.default clamp_max.Tensor clamp_min.Tensor clamp_min.default
    clone.default col2im.default complex.default constant_pad_nd.default convolution.default
    convolution_backward.default copysign.Scalar copysign.Tensor cos.default cosh.default count_nonzero.default
    count_nonzero.dim_IntList cummax.default cummin.default cumprod.default cumsum.default deg2rad.default
    detach.default diag_embed.default diagonal.default diagonal_backward.default diagonal_copy.default
    diagonal_scatter.default digamma.default dist.default div.Scalar div.Tensor div.Tensor_mode dot.default
    elu.default elu_backward.default embedding.default embedding_dense_backward.default eq.Scalar eq.Tensor
    erf.default erfc.default erfinv.default exp.default exp2.default expand.default expand_copy.default
    expm1.default fill.Scalar flip.default floor.default floor_divide.default fmax.default fmin.default fmod.Tensor
    frac.default fractional_max_pool2d.default fractional_max_pool3d.default frexp.Tensor full_like.default
    gather.default gcd.default ge.Scalar ge.Tensor gelu.default gelu_backward.default geqrf.default glu.default
    glu_backward.default grid_sampler_2d.default grid_sampler_2d_backward.default grid_sampler_3d.default
    grid_sampler_3d_backward.default gt.Scalar gt.Tensor hardshrink.default hardshrink_backward.default
    hardsigmoid.default hardsigmoid_backward.default hardswish.default hardswish_backward.default hardtanh.default
    hardtanh_backward.default hash_tensor.default heaviside.default histc.default histogram.bin_ct
    histogram.bins_tensor huber_loss.default huber_loss_backward.default hypot.default i0.default igamma.default
    igammac.default im2col.default index.Tensor index_add.default index_copy.default index_fill.int_Scalar
    index_fill.int_Tensor index_put.default index_reduce.default index_select.default isin.Tensor_Tensor
    isinf.default isnan.default isneginf.default isposinf.default kthvalue.default lcm.default ldexp.Tensor
    le.Scalar le.Tensor leaky_relu.default leaky_relu_backward.default lerp.Scalar lerp.Tensor lgamma.default
    lift_fresh.default linalg_cholesky_ex.default linalg_cross.default linalg_eig.default
    linalg_householder_product.default linalg_inv_ex.default linalg_ldl_factor_ex.default linalg_ldl_solve.default
    linalg_lu.default linalg_lu_factor_ex.default linalg_lu_solve.default linalg_matrix_exp.default
    linalg_pinv.atol_rtol_tensor linalg_qr.default linalg_solve_triangular.default linalg_vector_norm.default
    linspace.Scalar_Tensor linspace.Tensor_Scalar linspace.Tensor_Tensor log.default log10.default log1p.default
    log2.default log_sigmoid_backward.default log_sigmoid_forward.default logaddexp.default logaddexp2.default
    logcumsumexp.default logical_and.default logical_not.default logical_or.default logical_xor.default
    logit.default logit_backward.default logspace.Scalar_Tensor logspace.Tensor_Scalar logspace.Tensor_Tensor
    logsumexp.default lt.Scalar lt.Tensor lu_unpack.default masked_fill.Scalar masked_fill.Tensor
    masked_scatter.default masked_scatter_backward.default max.default max.dim max_pool2d_with_indices.default
    max_pool2d_with_indices_backward.default max_pool3d_with_indices.default
    max_pool3d_with_indices_backward.default max_unpool2d.default max_unpool3d.default maximum.default mean.default
    mean.dim median.default median.dim min.default min.dim minimum.default mish.default mish_backward.default
    mm.default mode.default mse_loss.default mse_loss_backward.default mul.Scalar mul.Tensor
    multi_margin_loss.default multi_margin_loss_backward.default multilabel_margin_loss_backward.default
    multilabel_margin_loss_forward.default mv.default mvlgamma.default nan_to_num.default nanmedian.default
    nanmedian.dim nansum.default narrow_copy.default native_batch_norm.default native_batch_norm_backward.default
    native_dropout_backward.default native_layer_norm.default ne.Scalar ne.Tensor neg.default new_full.default
    new_ones.default new_zeros.default nextafter.default nll_loss2d_forward.default nll_loss_backward.default
    nll_loss_forward.default nonzero_static.default norm.ScalarOpt_dim ones_like.default ormqr.default
    permute.default permute_copy.default pixel_shuffle.default pixel_unshuffle.default polar.default
    polygamma.default pow.Scalar pow.Tensor_Scalar pow.Tensor_Tensor prod.default prod.dim_int put.default
    rad2deg.default reciprocal.default reflection_pad1d.default reflection_pad1d_backward.default
    reflection_pad2d.default reflection_pad2d_backward.default reflection_pad3d.default
    reflection_pad3d_backward.default relu.default remainder.Scalar remainder.Tensor renorm.default repeat.default
    replication_pad1d.default replication_pad1d_backward.default replication_pad2d.default
    replication_pad2d_backward.default replication_pad3d.default replication_pad3d_backward.default roll.default
    rot90.default round.decimals round.default rrelu_with_noise_backward.default rsqrt.default rsub.Scalar
    rsub.Tensor scatter.reduce scatter.src scatter.value scatter_add.default scatter_reduce.two searchsorted.Tensor
    segment_reduce.default select.int select_backward.default select_scatter.default sgn.default sigmoid.default
    sigmoid_backward.default sign.default signbit.default silu.default silu_backward.default sin.default
    sinc.default sinh.default slice.Tensor slice_backward.default smooth_l1_loss.default
    smooth_l1_loss_backward.default soft_margin_loss.default soft_margin_loss_backward.default softplus.default
    softplus_backward.default softshrink.default softshrink_backward.default sort.default sort.stable
    special_airy_ai.default special_bessel_j0.default special_bessel_j1.default special_bessel_y0.default
    special_bessel_y1.default special_chebyshev_polynomial_t.default special_chebyshev_polynomial_u.default
    special_chebyshev_polynomial_v.default special_chebyshev_polynomial_w.default special_entr.default
    special_erfcx.default special_hermite_polynomial_h.default special_hermite_polynomial_he.default
    special_i0e.default special_i1.default special_i1e.default special_laguerre_polynomial_l.default
    special_legendre_polynomial_p.default special_log_ndtr.default special_modified_bessel_i0.default
    special_modified_bessel_i1.default special_modified_bessel_k0.default special_modified_bessel_k1.default
    special_ndtri.default special_scaled_modified_bessel_k0.default special_scaled_modified_bessel_k1.default
    special_shifted_chebyshev_polynomial_t.default special_shifted_chebyshev_polynomial_u.default
    special_shifted_chebyshev_polynomial_v.default special_shifted_chebyshev_polynomial_w.default
    special_spherical_bessel_j0.default special_xlog1py.default special_zeta.default split.Tensor
    split_with_sizes.default split_with_sizes_copy.default sqrt.default squeeze.default squeeze.dim squeeze.dims
    squeeze_copy.default squeeze_copy.dim stack.default std.correction std_mean.correction sub.Scalar sub.Tensor
    sum.default sum.dim_IntList t.default t_copy.default take.default tan.default tanh.default tanh_backward.default
    threshold.default threshold_backward.default topk.default trace.default transpose.int transpose_copy.int
    triangular_solve.default tril.default triu.default trunc.default unbind.int unbind_copy.int unfold.default
    unfold_backward.default unfold_copy.default unsqueeze.default unsqueeze_copy.default upsample_bicubic2d.default
    upsample_bicubic2d_backward.default upsample_bilinear2d.default upsample_bilinear2d_backward.default
    upsample_linear1d.default upsample_linear1d_backward.default upsample_nearest1d.default
    upsample_nearest1d_backward.default upsample_nearest2d.default upsample_nearest2d_backward.default
    upsample_nearest3d.default upsample_nearest3d_backward.default upsample_trilinear3d.default
    upsample_trilinear3d_backward.default var.correction var_mean.correction vdot.default view.default
    view_copy.default where.self xlogy.Tensor zeros_like.default
    """.split()
)
