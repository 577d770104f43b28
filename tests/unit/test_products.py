"""Products by NumPy's BLAS and by oneDNN: torch's values in torch's layout, and only where they pay."""

import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from tests.extent import pairwise
from tinyshard.core.errors import RuntimeStateError
from tinyshard.core.program import Eqn, Value
from tinyshard.core.types import HALVES, ShapedType
from tinyshard.runtime import lifecycle
from tinyshard.runtime.worker import kernels, products
from tinyshard.runtime.worker.kernels import kernel_for

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x,
    "columns": lambda x: x.mT.contiguous().mT,
    "every other row": lambda x: x.repeat_interleave(2, -2)[..., ::2, :],
    "every other column": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "one row, repeated": lambda x: x[..., :1, :].expand(x.shape),
    "negated": torch._neg_view,
}
SIZES: dict[str, tuple[int, ...]] = {"mm": (), "bmm": (3,)}  # how many products an op makes at once


@pytest.fixture(autouse=True)
def by_numpy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TINYSHARD_PRODUCTS", "numpy")
    products.library.cache_clear()
    yield
    products.library.cache_clear()


def kernel_of(op: str, tensors: list[torch.Tensor], own: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    metas = [ShapedType(tuple(x.shape), x.dtype) for x in tensors]
    return kernel_for(Eqn(op, tuple(map(Value, range(len(tensors)))), {}, (len(tensors),)), metas, own)


@pytest.mark.parametrize(
    ("left", "right", "dtype", "op"), pairwise(list(LAYOUTS), list(LAYOUTS), (torch.float32, torch.float64), SIZES)
)
def test_a_product_has_torchs_values_shape_and_strides(left: str, right: str, dtype: torch.dtype, op: str) -> None:
    tensors = [torch.randn(*SIZES[op], *shape, dtype=dtype) for shape in ((320, 250), (250, 300))]
    tensors = [LAYOUTS[left](tensors[0]), LAYOUTS[right](tensors[1])]
    torchs = getattr(torch, op)
    kernel = kernel_of(f"aten.{op}.default", tensors, torchs)
    assert kernel is not torchs, "the kernel fits"
    before = [x.clone() for x in tensors]
    made, wanted = kernel(*tensors), torchs(*tensors)
    assert made.stride() == wanted.stride()
    assert all(map(torch.equal, tensors, before)), "the operands are as they were"
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(("left", "right"), pairwise(list(LAYOUTS), list(LAYOUTS)))
def test_onednn_gives_torchs_values_shape_and_strides(monkeypatch: pytest.MonkeyPatch, left: str, right: str) -> None:
    monkeypatch.setenv("TINYSHARD_PRODUCTS", "onednn")
    tensors = [LAYOUTS[left](torch.randn(160, 130)), LAYOUTS[right](torch.randn(130, 150))]
    kernel = kernel_of("aten.mm.default", tensors, torch.mm)
    assert kernel is not torch.mm, "the kernel fits"
    made, wanted = kernel(*tensors), torch.mm(*tensors)
    assert made.stride() == wanted.stride()
    torch.testing.assert_close(made, wanted, rtol=1e-5, atol=1e-4)


def test_onednn_multiplies_matrices_of_singles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYSHARD_PRODUCTS", "onednn")
    for op, x in (("mm", torch.ones(256, 256).double()), ("bmm", torch.ones(3, 256, 256)), ("mm", torch.ones(64, 64))):
        own = getattr(torch, op)
        assert kernel_of(f"aten.{op}.default", [x, x], own) is own


@pytest.mark.parametrize(("left", "dtype", "op", "size"), pairwise(list(LAYOUTS), list(HALVES), SIZES, (1, 4)))
def test_a_product_of_16_bits_is_rounded_once(
    monkeypatch: pytest.MonkeyPatch, left: str, dtype: torch.dtype, op: str, size: int
) -> None:
    monkeypatch.setattr(kernels, "has_half", lambda dtype: False)
    tensors = [torch.randn(*SIZES[op], n * size, m * size).to(dtype) for n, m in ((90, 70), (70, 80))]
    tensors[0] = LAYOUTS[left](tensors[0])
    torchs = getattr(torch, op)
    kernel = kernel_of(f"aten.{op}.default", tensors, torchs)
    assert kernel is not torchs, "the kernel fits"
    made, exact = kernel(*tensors), torchs(*[x.double() for x in tensors])
    assert (made.dtype, made.stride()) == (dtype, exact.stride())
    torch.testing.assert_close(made.double(), exact, rtol=torch.finfo(dtype).eps, atol=1e-4)


def test_products_of_16_bits_are_torchs_where_the_processor_has_them(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.ones(90, 90, dtype=torch.bfloat16)
    for has_half in (True, False):
        monkeypatch.setattr(kernels, "has_half", lambda dtype, has_half=has_half: has_half)
        assert (kernel_of("aten.mm.default", [x, x], torch.mm) is torch.mm) is has_half


@pytest.mark.parametrize("number", [float("inf"), float("nan"), 1e30])
def test_infinity_is_no_warning(number: float) -> None:
    x = torch.full((256, 256), number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = kernel_of("aten.mm.default", [x, x], torch.mm)(x, x)
    torch.testing.assert_close(made, x @ x, equal_nan=True)


@pytest.mark.parametrize(
    ("op", "shapes", "dtype"),
    [
        ("mm", [(128, 128), (128, 128)], torch.float32),  # few multiplications
        ("bmm", [(99, 128, 128), (99, 128, 128)], torch.float32),  # few in each
        ("mm", [(32, 32), (32, 32)], torch.bfloat16),
        ("mm", [(256, 256), (256, 256)], torch.int64),
        ("mm", [(0, 256), (256, 256)], torch.float32),
    ],
)
def test_other_products_are_torchs(op: str, shapes: list[tuple[int, ...]], dtype: torch.dtype) -> None:
    tensors = [torch.ones(shape, dtype=dtype) for shape in shapes]
    own = getattr(torch, op)
    assert kernel_of(f"aten.{op}.default", tensors, own) is own


def test_the_processor_decides_and_the_environment_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def found(vendor: str, blas: str, environment: dict[str, str], instructions: str = "AVX2") -> str:
        for name in ("TINYSHARD_PRODUCTS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(products, "_vendor", lambda: vendor)
        monkeypatch.setattr(np, "show_config", lambda mode: {"Build Dependencies": {"blas": {"name": blas}}})
        monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
        products.library.cache_clear()
        return products.library()

    one = {"OPENBLAS_NUM_THREADS": "1"}
    assert found("AuthenticAMD", "scipy-openblas", one) == "numpy"
    assert found("AuthenticAMD", "scipy-openblas", {"OMP_NUM_THREADS": "1"}) == "numpy"
    assert found("AuthenticAMD", "scipy-openblas", one, "AVX512") == "onednn"
    assert found("AuthenticAMD", "mkl-sdl", {}, "AVX512") == "onednn"
    assert found("GenuineIntel", "scipy-openblas", one) == "torch"
    assert found("GenuineIntel", "scipy-openblas", one, "AVX512") == "torch"
    assert found("AuthenticAMD", "mkl-sdl", one) == "torch"
    assert found("AuthenticAMD", "scipy-openblas", {}) == "torch"
    assert found("AuthenticAMD", "scipy-openblas", {**one, "TINYSHARD_PRODUCTS": "torch"}) == "torch"
    assert found("GenuineIntel", "mkl-sdl", {"TINYSHARD_PRODUCTS": "numpy"}) == "numpy"
    monkeypatch.setenv("TINYSHARD_PRODUCTS", "mkl")
    with pytest.raises(RuntimeStateError, match="no TINYSHARD_PRODUCTS 'mkl'"):
        lifecycle.init(devices=2, runtime="local")
