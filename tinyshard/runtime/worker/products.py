"""Which library multiplies large matrices of floats on the devices, by the processor.

On AMD's processors torch multiplies float32 with MKL, which does not choose the fast instructions there. oneDNN, which
torch has too, uses AVX-512: on a Zen 5 with one thread a product of 1024 x 784 by 784 x 512 takes 0.45 times as long.
Where there is no AVX-512, NumPy from PyPI has OpenBLAS: on a Zen 2 a product of 512 x 512 takes 0.77 times as long, on
a Zen 3 one of 1024 x 1024 0.9 times, one of 64 x 128 by 128 x 128 1.4 times.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tinyshard.core.types import ShapedType

LIBRARIES = ("torch", "numpy", "onednn")
# 128 x 128 by 128 x 128, and 256 x 256 by 256 x 256: with fewer the larger overhead outweighs the gain
_MANY_MULTIPLICATIONS = {"onednn": 1 << 21, "numpy": 1 << 24}


@functools.cache
def library() -> str:
    """The library that multiplies matrices on the devices of this machine: one of `LIBRARIES`.

    TINYSHARD_PRODUCTS chooses it; by default the processor decides, not a measurement, so that a program gives
    the same numbers in every run. OpenBLAS reads its number of threads when NumPy is imported, so it is chosen
    only if the environment says 1, as it does in the processes that `ts.init()` or torchrun start.
    """
    given = os.environ.get("TINYSHARD_PRODUCTS")
    if given in LIBRARIES:
        return given
    if not torch.backends.mkl.is_available() or _vendor() != "AuthenticAMD":
        return "torch"
    if torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512":
        return "onednn"
    threads = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return "numpy" if threads == "1" and _numpys_blas() == "scipy-openblas" else "torch"


def _vendor() -> str:
    """The name of the processor, if the system has it in a file; else ""."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("vendor_id")), "")


def _numpys_blas() -> str:
    """The name of the BLAS that NumPy was built with: "scipy-openblas" in the wheels of PyPI."""
    needs: Any = np.show_config(mode="dicts").get("Build Dependencies", {})
    return str(needs.get("blas", {}).get("name"))


def multiplications(x: ShapedType | Tensor, y: ShapedType | Tensor) -> int:
    """The number of multiplications of each product of a stack."""
    return math.prod(x.shape[-2:]) * y.shape[-1]


def is_large_product(x: ShapedType | Tensor, y: ShapedType | Tensor) -> bool:
    """Whether the chosen library multiplies two matrices, or two stacks of matrices: if it is faster than torch.

    oneDNN multiplies matrices of float32.
    """
    if x.dtype != y.dtype or multiplications(x, y) < _MANY_MULTIPLICATIONS.get(library(), math.inf):
        return False
    if library() == "onednn":
        return x.dtype == torch.float32 and len(x.shape) == 2
    return x.dtype in (torch.float32, torch.float64) and library() == "numpy"


def product(op: Callable[..., Tensor], x: Tensor, y: Tensor) -> Tensor:
    """`x @ y` by the chosen library; by torch's op if that would first copy an operand, element by element."""
    if not (_is_dense(x) and _is_dense(y)):
        return op(x, y)
    if library() == "onednn":
        linear = torch.ops.mkldnn._linear_pointwise
        return linear(x, y.t(), None, "none", [], "") if x.dim() == 2 else op(x, y)
    out = torch.empty((*x.shape[:-1], y.shape[-1]), dtype=x.dtype)
    with np.errstate(all="ignore"):  # torch does not warn about infinity
        np.matmul(x.numpy(), y.numpy(), out=out.numpy())
    return out


def _is_dense(x: Tensor) -> bool:
    """Whether BLAS takes a matrix without a copy: its rows, or its columns, have no gaps between elements."""
    (down, across), (rows, columns) = x.stride()[-2:], x.shape[-2:]
    return not x.is_neg() and ((across == 1 and down >= columns) or (down == 1 and across >= rows))
