"""Products of matrices, on the processors where torch's own are slow.

On AMD's processors torch multiplies by MKL, which does not choose the fast instructions there; NumPy from PyPI brings
OpenBLAS, which does. On a Zen 2 with one thread a product of 512 x 512 float32 takes 0.77 times as long.

On a processor without AVX-512 torch multiplies numbers of 16 bits one by one: a product of 256 x 256 bfloat16 takes 40
times as long as one of float32. There the operands are converted to float32, and the result is rounded once, as it is
in torch's own product.
"""

from __future__ import annotations

import functools
import math
import os
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.core.types import ShapedType

LIBRARIES = ("torch", "numpy")
HALVES = (torch.bfloat16, torch.float16)
# 128 x 128 by 128 x 128: with fewer multiplications NumPy's larger overhead outweighs the gain
_MANY = 1 << 21
# 64 x 64 by 64 x 64: with fewer the conversions outweigh the gain
_MANY_HALVES = 1 << 18


@functools.cache
def library() -> str:
    """The library that multiplies matrices on the devices of this machine: "torch" or "numpy".

    TINYSHARD_PRODUCTS says it; otherwise it is decided by the processor, not by a measurement, so that a program gives
    the same numbers in every run. OpenBLAS reads how many threads it may use when NumPy is imported, so it is chosen
    only where the environment says 1, as it does in the processes that `ts.init()` or torchrun start.
    """
    given = os.environ.get("TINYSHARD_PRODUCTS")
    if given in LIBRARIES:
        return given
    is_slow = torch.backends.mkl.is_available() and _vendor() == "AuthenticAMD"
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return "numpy" if is_slow and threads == "1" and _numpys_blas() == "scipy-openblas" else "torch"


def _vendor() -> str:
    """Of the processor, where the system says it in a file; "" elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _numpys_blas() -> str:
    """The name of the BLAS that NumPy was built with: "scipy-openblas" in the wheels of PyPI."""
    needs: Any = np.show_config(mode="dicts").get("Build Dependencies", {})
    return str(needs.get("blas", {}).get("name"))


@functools.cache
def has_half(dtype: torch.dtype) -> bool:
    """Whether the processor multiplies matrices of bfloat16 or float16 by instructions that oneDNN knows.

    True too for another processor than x86-64, of which torch has kernels of its own.
    """
    name = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}[dtype]
    is_supported = getattr(torch.ops.mkldnn, name, None)
    return platform.machine() not in ("x86_64", "AMD64") or is_supported is None or bool(is_supported())


def _multiplications(x: ShapedType, y: ShapedType) -> int:
    """Of each product of a stack."""
    return math.prod(x.shape[-2:]) * y.shape[-1]


def is_large_product(x: ShapedType, y: ShapedType) -> bool:
    """Whether NumPy multiplies two matrices, or two stacks of matrices: where it is chosen, and faster than torch."""
    is_known = x.dtype == y.dtype and x.dtype in (torch.float32, torch.float64)
    return is_known and _multiplications(x, y) >= _MANY and library() == "numpy"


def product(op: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """`x @ y`; by torch's op where NumPy would first copy an operand, element by element."""
    if not (_is_dense(x) and _is_dense(y)):
        return op(x, y)
    out = torch.empty((*x.shape[:-1], y.shape[-1]), dtype=x.dtype)
    with np.errstate(all="ignore"):  # torch does not warn of infinity
        np.matmul(x.numpy(), y.numpy(), out=out.numpy())
    return out


def is_slow_half_product(x: ShapedType, y: ShapedType) -> bool:
    """Whether a product is faster in float32."""
    is_half = x.dtype == y.dtype and x.dtype in HALVES
    return is_half and _multiplications(x, y) >= _MANY_HALVES and not has_half(x.dtype)


def half_product(op: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` in float32, rounded to the dtype of the operands."""
    multiply = functools.partial(product, op) if library() == "numpy" else op
    return multiply(x.float(), y.float()).to(x.dtype)


def _is_dense(x: Tensor) -> bool:
    """Whether BLAS takes a matrix as it is: its rows, or its columns, have no gaps between elements."""
    (down, across), (rows, columns) = x.stride()[-2:], x.shape[-2:]
    return not x.is_neg() and ((across == 1 and down >= columns) or (down == 1 and across >= rows))
