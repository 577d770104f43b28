"""The torch ops that the expression tests draw: one row or one short function an op.

A drawer gets `pick` (chooses among values, reproducibly) and the operand as a plain tensor, and returns what to call:
a function of the operand alone, or such a function with the further operands that it takes, as plain tensors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
INTS = (torch.int64, torch.int32, torch.int16)
COMPLEX = (torch.complex64,)
NUMBERS = FLOATS + INTS
ANY = (*NUMBERS, torch.bool, *COMPLEX)

Drawer = Callable[["Pick", Tensor], Any]


class Pick:
    """Draws what an op needs besides its operand.

    Args:
        choose: picks one of a sequence.
        spare: tensors that are there already, for reuse as further operands.
    """

    def __init__(self, choose: Callable[[Sequence[Any]], Any], spare: Sequence[Tensor] = ()) -> None:
        self.choose = choose
        self.spare = spare

    def int(self, low: int, high: int) -> int:
        return int(self.choose(range(low, high + 1)))

    def bool(self) -> bool:
        return bool(self.choose((False, True)))

    def dim(self, x: Tensor) -> int:
        return self.int(-x.dim(), x.dim() - 1)

    def dims(self, x: Tensor) -> list[int]:
        return [d for d in range(x.dim()) if self.bool()] or [0]

    def tensor(self, shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of small distinct-looking numbers, or one that is there already."""
        fitting = [x for x in self.spare if tuple(x.shape) == tuple(shape) and x.dtype == dtype]
        if fitting and self.bool():
            return self.choose(fitting)
        return numbers(shape, dtype, self.int(0, 5))

    def indices(self, shape: Sequence[int], below: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return numbers(shape, torch.int64, self.int(0, 5)).remainder(below).to(dtype)


def numbers(shape: Sequence[int], dtype: torch.dtype, seed: int) -> Tensor:
    """Numbers in -4 .. 4 that hardly repeat; the same for the same arguments."""
    count = math.prod(shape)
    made = ((torch.arange(count) + 7 * seed + 1) * 2654435761 % 8191).double()
    if dtype == torch.bool:
        return (made % 2 == 0).reshape(tuple(shape))
    if dtype in INTS:
        return (made % 9 - 4).to(dtype).reshape(tuple(shape))
    scaled = (made / 1024 - 4).reshape(tuple(shape))
    return (
        torch.complex(scaled, scaled.flip(-1) if scaled.dim() else scaled).to(dtype)
        if dtype in COMPLEX
        else scaled.to(dtype)
    )


@dataclass(frozen=True)
class Operation:
    """One op.

    Attributes:
        draw: see above.
        dtypes: of the operand.
        ndim: least and greatest rank of the operand.
        empty: whether it takes an operand with a dim of size 0.
    """

    draw: Drawer
    dtypes: tuple[torch.dtype, ...] = NUMBERS
    ndim: tuple[int, int] = (0, 9)
    empty: bool = True

    def takes(self, x: Tensor) -> bool:
        return x.dtype in self.dtypes and self.ndim[0] <= x.dim() <= self.ndim[1] and (self.empty or x.numel() > 0)


OPERATIONS: dict[str, Operation] = {}


def row(name: str, f: Callable[[Tensor], Any], dtypes: tuple[torch.dtype, ...] = NUMBERS, **needs: Any) -> None:
    OPERATIONS[name] = Operation(lambda pick, x: f, dtypes, **needs)


def operation(dtypes: tuple[torch.dtype, ...] = NUMBERS, **needs: Any) -> Callable[[Drawer], Drawer]:
    def add(draw: Drawer) -> Drawer:
        OPERATIONS[draw.__name__.strip("_")] = Operation(draw, dtypes, **needs)
        return draw

    return add


# ---- elementwise -------------------------------------------------------------------------------------------------

row("sin", torch.sin)
row("exp", lambda x: torch.exp(-x.abs()), (*FLOATS, *COMPLEX))
row("tanh", torch.tanh, FLOATS)
row("sigmoid", torch.sigmoid, FLOATS)
row("sqrt", lambda x: x.abs().sqrt(), FLOATS)
row("neg", torch.neg, (*NUMBERS, *COMPLEX))
row("abs", torch.abs, (*NUMBERS, *COMPLEX))
row("clamp", lambda x: x.clamp(min=0))
row("relu", F.relu)
row("gelu", F.gelu, FLOATS)
row("silu", F.silu, FLOATS)
row("sign", torch.sign)
row("floor", torch.floor, FLOATS)
row("round", torch.round, FLOATS)
row("square", torch.square)
row("isfinite", torch.isfinite)
row("logical_not", torch.logical_not, ANY)
row("plus_int", lambda x: x + 3, ANY[:-2] + COMPLEX)
row("times_float", lambda x: x * 0.5, ANY)
row("int_minus", lambda x: 2 - x, (*NUMBERS, *COMPLEX))
row("over", lambda x: x / 4)
row("floor_over", lambda x: x // 2)
row("remainder", lambda x: x % 3)
row("power", lambda x: x**2)
row("to_double", lambda x: x.double(), NUMBERS)
row("to_long", lambda x: x.long(), NUMBERS)
row("to_bool", lambda x: x.bool(), NUMBERS)
row("to_bfloat16", lambda x: x.to(torch.bfloat16), NUMBERS)
row("to_complex", lambda x: x.to(torch.complex64), FLOATS[:2])
row("real", lambda x: x.real, COMPLEX)
row("imag", lambda x: x.imag, COMPLEX)
row("conj", lambda x: x.conj() * x, COMPLEX)
row("angle", lambda x: x.angle(), COMPLEX)
row("zeros_like", torch.zeros_like, ANY)
row("ones_like", lambda x: torch.ones_like(x, dtype=torch.int32), ANY)
row("full_like", lambda x: torch.full_like(x, 7))
row("new_zeros", lambda x: x.new_zeros(2, 3), ANY)
row("clone", torch.clone, ANY)
row("contiguous", lambda x: x.contiguous(), ANY)
row("nan_to_num", torch.nan_to_num)
row("lerp", lambda x: torch.lerp(x, x * 2, 0.25), FLOATS)
row("frexp", torch.frexp, FLOATS[:2])


def broadcastable(pick: Pick, x: Tensor) -> list[int]:
    """A shape that broadcasts with x, of lower, equal or higher rank."""
    shape = [n if n > 0 and pick.bool() else 1 if pick.bool() or n != 1 else 3 for n in x.shape]
    shape = [m if n != 0 else pick.choose((0, 1)) for m, n in zip(shape, x.shape, strict=True)]
    return (
        shape[pick.int(0, len(shape)) :]
        if pick.bool()
        else [pick.choose((1, 2, 4)), *shape]
        if x.dim() < 3 and pick.bool()
        else shape
    )


BINARY: dict[str, tuple[Callable[[Tensor, Tensor], Any], tuple[torch.dtype, ...]]] = {
    "add": (torch.add, ANY),
    "sub": (torch.sub, (*NUMBERS, *COMPLEX)),
    "mul": (torch.mul, ANY),
    "div": (lambda x, y: x / (y.abs() + 1), NUMBERS),
    "maximum": (torch.maximum, NUMBERS),
    "minimum": (torch.minimum, NUMBERS),
    "fmod": (lambda x, y: torch.fmod(x, y.abs() + 1), INTS),
    "atan2": (torch.atan2, FLOATS[:2]),
    "less": (torch.lt, NUMBERS),
    "equal_each": (torch.eq, ANY),
    "greater_or_equal": (torch.ge, NUMBERS),
    "logical_and": (torch.logical_and, ANY[:-1]),
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2), NUMBERS),
    "rsub": (lambda x, y: y - x, NUMBERS),
    "isclose": (lambda x, y: torch.isclose(x, y), FLOATS[:2]),
    "logaddexp": (torch.logaddexp, FLOATS[:2]),
    "hypot": (torch.hypot, FLOATS[:2]),
    "bitwise_xor": (torch.bitwise_xor, (*INTS, torch.bool)),
}


def _binary(f: Callable[[Tensor, Tensor], Any], dtypes: tuple[torch.dtype, ...]) -> Drawer:
    def draw(pick: Pick, x: Tensor) -> Any:
        other = pick.choose(dtypes) if pick.bool() else x.dtype
        return f, pick.tensor(broadcastable(pick, x), other)

    return draw


for _name, (_f, _dtypes) in BINARY.items():
    OPERATIONS[_name] = Operation(_binary(_f, _dtypes), _dtypes)


@operation(ANY)
def where(pick: Pick, x: Tensor) -> Any:
    mask, other = pick.tensor(broadcastable(pick, x), torch.bool), pick.tensor(broadcastable(pick, x), x.dtype)
    try:
        torch.broadcast_shapes(mask.shape, other.shape, x.shape)
    except RuntimeError:
        other = torch.ones((), dtype=x.dtype)
    return (lambda a, m, b: torch.where(m, a, b)), mask, other


@operation()
def where_scalar(pick: Pick, x: Tensor) -> Any:
    return lambda a: torch.where(a > 0, a, 0)


@operation(ANY)
def masked_fill(pick: Pick, x: Tensor) -> Any:
    return (lambda a, m: a.masked_fill(m, 1)), pick.tensor(x.shape, torch.bool)


@operation(FLOATS)
def addcmul(pick: Pick, x: Tensor) -> Any:
    return (lambda a, b: torch.addcmul(a, b, b, value=0.5)), pick.tensor(x.shape, x.dtype)


# ---- matmul family -----------------------------------------------------------------------------------------------

MATMUL = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.complex64)
SIZES = (1, 2, 4, 6, 8)


@operation(MATMUL, ndim=(2, 2))
def mm(pick: Pick, x: Tensor) -> Any:
    return torch.mm, pick.tensor((x.shape[1], pick.choose(SIZES)), x.dtype)


@operation(MATMUL, ndim=(2, 2))
def mm_transposed(pick: Pick, x: Tensor) -> Any:
    return (lambda a, b: a.T @ b.T), pick.tensor((pick.choose(SIZES), x.shape[0]), x.dtype)


@operation(MATMUL, ndim=(2, 2))
def gram(pick: Pick, x: Tensor) -> Any:
    return lambda a: a @ a.T


@operation(MATMUL, ndim=(2, 2))
def mv(pick: Pick, x: Tensor) -> Any:
    return torch.mv, pick.tensor((x.shape[1],), x.dtype)


@operation(MATMUL, ndim=(1, 1))
def dot(pick: Pick, x: Tensor) -> Any:
    return torch.dot, pick.tensor(x.shape, x.dtype)


@operation(MATMUL, ndim=(1, 1))
def vdot_matrix(pick: Pick, x: Tensor) -> Any:
    return torch.matmul, pick.tensor((x.shape[0], pick.choose(SIZES)), x.dtype)


@operation(MATMUL, ndim=(1, 1))
def outer(pick: Pick, x: Tensor) -> Any:
    return torch.outer, pick.tensor((pick.choose(SIZES),), x.dtype)


@operation(MATMUL, ndim=(3, 3))
def bmm(pick: Pick, x: Tensor) -> Any:
    return torch.bmm, pick.tensor((x.shape[0], x.shape[2], pick.choose(SIZES)), x.dtype)


@operation(MATMUL, ndim=(2, 4))
def matmul(pick: Pick, x: Tensor) -> Any:
    batch = list(x.shape[:-2]) if pick.bool() else []
    batch = [n if pick.bool() else 1 for n in batch]
    last = [] if pick.bool() and not batch else [pick.choose(SIZES)]
    return torch.matmul, pick.tensor((*batch, x.shape[-1], *last), x.dtype)


@operation(MATMUL, ndim=(2, 2))
def addmm(pick: Pick, x: Tensor) -> Any:
    n = pick.choose(SIZES)
    bias = pick.tensor(pick.choose(((n,), (x.shape[0], n), (1, n), ())), x.dtype)
    return (lambda a, b, c: torch.addmm(c, a, b, beta=2, alpha=3)), pick.tensor((x.shape[1], n), x.dtype), bias


@operation(MATMUL, ndim=(3, 3))
def baddbmm(pick: Pick, x: Tensor) -> Any:
    n = pick.choose(SIZES)
    other = pick.tensor((x.shape[0], x.shape[2], n), x.dtype)
    return (lambda a, b, c: torch.baddbmm(c, a, b)), other, pick.tensor((x.shape[0], x.shape[1], n), x.dtype)


@operation(MATMUL[:3], ndim=(1, 4))
def linear(pick: Pick, x: Tensor) -> Any:
    n = pick.choose(SIZES)
    weight = pick.tensor((n, x.shape[-1]), x.dtype)
    return (F.linear, weight, pick.tensor((n,), x.dtype)) if pick.bool() else (F.linear, weight)


@operation(MATMUL, ndim=(2, 2))
def einsum(pick: Pick, x: Tensor) -> Any:
    form, shape = pick.choose(
        (
            ("ij,jk->ik", (x.shape[1], 6)),
            ("ij,ij->i", x.shape),
            ("ij,kj->kij", (4, x.shape[1])),
            ("ij,i->j", x.shape[:1]),
        )
    )
    return (lambda a, b: torch.einsum(form, a, b)), pick.tensor(shape, x.dtype)


@operation(MATMUL, ndim=(3, 3))
def einsum_batch(pick: Pick, x: Tensor) -> Any:
    n = pick.choose(SIZES)
    form = pick.choose(("bij,bjk->bik", "bij,bjk->ik", "bij,bjk->bk"))
    return (lambda a, b: torch.einsum(form, a, b)), pick.tensor((x.shape[0], x.shape[2], n), x.dtype)


@operation(FLOATS[:2], ndim=(2, 2))
def kron(pick: Pick, x: Tensor) -> Any:
    return torch.kron, pick.tensor((2, 2), x.dtype)


@operation(FLOATS[:2], ndim=(2, 2), empty=False)
def cdist(pick: Pick, x: Tensor) -> Any:
    return torch.cdist, pick.tensor((4, x.shape[1]), x.dtype)


# ---- reductions --------------------------------------------------------------------------------------------------


def reduction(
    name: str, f: Callable[..., Any], dtypes: tuple[torch.dtype, ...], *, empty: bool = True, many: bool = True
) -> None:
    """A reduction over everything, one dim, or several."""

    def over_all(pick: Pick, x: Tensor) -> Any:
        return lambda a: f(a)

    def over_dim(pick: Pick, x: Tensor) -> Any:
        dim, keepdim = pick.dims(x) if many and pick.bool() else pick.dim(x), pick.bool()
        return lambda a: f(a, dim=dim, keepdim=keepdim)

    OPERATIONS[name] = Operation(over_all, dtypes, empty=empty)
    OPERATIONS[f"{name}_over_dim"] = Operation(over_dim, dtypes, (1, 9), empty=empty)


reduction("sum", torch.sum, ANY)
reduction("mean", torch.mean, (*FLOATS, *COMPLEX), empty=False)
reduction("amax", torch.amax, NUMBERS, empty=False)
reduction("amin", torch.amin, NUMBERS, empty=False)
reduction("max", torch.max, NUMBERS, empty=False, many=False)
reduction("min", torch.min, NUMBERS, empty=False, many=False)
reduction("argmax", torch.argmax, FLOATS[:2], empty=False, many=False)
reduction("argmin", torch.argmin, FLOATS[:2], empty=False, many=False)
reduction("prod", torch.prod, (*FLOATS[:2], *INTS), many=False)
reduction("any", torch.any, ANY)
reduction("all", torch.all, ANY)
reduction("norm", torch.linalg.vector_norm, (*FLOATS[:2], *COMPLEX), empty=False)
reduction("count_nonzero", lambda x, dim=None, keepdim=None: torch.count_nonzero(x, dim), ANY)
reduction("nansum", torch.nansum, FLOATS[:2])
reduction("median", torch.median, FLOATS[:2], empty=False, many=False)


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def var(pick: Pick, x: Tensor) -> Any:
    dim, keepdim, correction = pick.dims(x), pick.bool(), pick.int(0, 1)
    if math.prod(x.shape[d] for d in dim) <= 1:
        correction = 0
    f = pick.choose((torch.var, torch.std, torch.var_mean, torch.std_mean))
    return lambda a: f(a, dim=dim, keepdim=keepdim, correction=correction)


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def var_of_all(pick: Pick, x: Tensor) -> Any:
    return lambda a: a.var(correction=0)


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def logsumexp(pick: Pick, x: Tensor) -> Any:
    dim, keepdim = pick.dims(x), pick.bool()
    return lambda a: a.logsumexp(dim, keepdim=keepdim)


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def norm_of_order(pick: Pick, x: Tensor) -> Any:
    order, dim = pick.choose((0, 1, 2, 3, 0.5, float("inf"), -float("inf"))), pick.dims(x)
    return lambda a: torch.linalg.vector_norm(a, order, dim)


@operation(FLOATS[:2], ndim=(1, 9))
def sum_to_dtype(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    return lambda a: a.sum(dim, dtype=torch.float64)


# ---- views and transposes ----------------------------------------------------------------------------------------


def _factored(pick: Pick, count: int) -> list[int]:
    sizes = []
    while count > 1 and len(sizes) < 3:
        size = pick.choose([n for n in range(1, count + 1) if count % n == 0])
        sizes.append(size)
        count //= size
    return [*sizes, count]


@operation(ANY)
def reshape(pick: Pick, x: Tensor) -> Any:
    shape = _factored(pick, x.numel()) if x.numel() else [0, 2]
    if pick.bool() and x.numel():
        shape[pick.int(0, len(shape) - 1)] = -1
    return lambda a: a.reshape(shape)


@operation(ANY, ndim=(1, 9))
def view_split(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    shape = [*x.shape[:dim], *_factored(pick, x.shape[dim]), *x.shape[dim + 1 :]]
    return lambda a: a.contiguous().view(shape)


@operation(ANY, ndim=(1, 9))
def flatten(pick: Pick, x: Tensor) -> Any:
    first = pick.int(0, x.dim() - 1)
    last = pick.int(first, x.dim() - 1)
    return lambda a: a.flatten(first, last)


@operation(ANY, ndim=(1, 9), empty=False)
def unflatten(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    sizes = _factored(pick, x.shape[dim])
    return lambda a: a.unflatten(dim, sizes)


@operation(ANY, ndim=(1, 9))
def permute(pick: Pick, x: Tensor) -> Any:
    left, order = list(range(x.dim())), []
    while left:
        order.append(left.pop(pick.int(0, len(left) - 1)))
    return lambda a: a.permute(order)


@operation(ANY, ndim=(2, 9))
def transpose_then_flatten(pick: Pick, x: Tensor) -> Any:
    return lambda a: a.transpose(0, 1).reshape(-1)


@operation(ANY, ndim=(1, 9))
def transpose(pick: Pick, x: Tensor) -> Any:
    a, b = pick.dim(x), pick.dim(x)
    return lambda t: t.transpose(a, b)


row("T", lambda x: x.T, ANY, ndim=(2, 2))
row("mT", lambda x: x.mT, ANY, ndim=(2, 9))


@operation(ANY)
def expand(pick: Pick, x: Tensor) -> Any:
    shape = [pick.choose((1, 4)) if n == 1 else n for n in x.shape]
    shape = [pick.choose((2, 3)), *shape] if pick.bool() else shape
    return lambda a: a.expand(shape)


@operation(ANY)
def squeeze(pick: Pick, x: Tensor) -> Any:
    if x.dim() and pick.bool():
        dim = pick.dim(x)
        return lambda a: a.squeeze(dim)
    return lambda a: a.squeeze()


@operation(ANY)
def unsqueeze(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(-x.dim() - 1, x.dim())
    return lambda a: a.unsqueeze(dim)


@operation(ANY, ndim=(1, 9))
def movedim(pick: Pick, x: Tensor) -> Any:
    a, b = pick.dim(x), pick.dim(x)
    return lambda t: t.movedim(a, b)


row("broadcast_to", lambda x: torch.broadcast_to(x, (2, *x.shape)), ANY)
row("view_as_real", torch.view_as_real, COMPLEX)
row("ravel", torch.ravel, ANY)
row("atleast_2d", torch.atleast_2d, ANY)
row("view_dtype", lambda x: x.contiguous().view(torch.int32), FLOATS[:1])


# ---- indexing and slicing ----------------------------------------------------------------------------------------


@operation(ANY, ndim=(1, 9), empty=False)
def index_basic(pick: Pick, x: Tensor) -> Any:
    index: list[Any] = []
    for n in x.shape:
        kind = pick.choose(("int", "slice", "step", "all", "none", "stop"))
        if kind == "stop":
            break
        if kind == "none":
            index.append(None)
        low, high = pick.int(0, n - 1), pick.int(0, n)
        step = pick.int(1, 3) if kind == "step" else None
        index.append(pick.int(-n, n - 1) if kind == "int" else slice(None) if kind == "all" else slice(low, high, step))
    if pick.bool() and len(index) < x.dim():
        index.append(Ellipsis)
    return lambda a: a[tuple(index)]


@operation(ANY, ndim=(2, 9), empty=False)
def index_ellipsis(pick: Pick, x: Tensor) -> Any:
    at = pick.int(0, x.shape[-1] - 1)
    return lambda a: a[..., at]


@operation(ANY, ndim=(1, 9), empty=False)
def index_tensor(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    where_ = pick.indices(pick.choose(((2,), (4,), (2, 4), (0,))), x.shape[dim])
    lead = (slice(None),) * dim
    return (lambda a, i: a[(*lead, i)]), where_


@operation(ANY, ndim=(2, 9), empty=False)
def index_two_tensors(pick: Pick, x: Tensor) -> Any:
    first, second = pick.indices((4,), x.shape[0]), pick.indices((2, 1), x.shape[-1])
    if pick.bool() and x.dim() > 2:
        return (lambda a, i, j: a[i, ..., j]), first, second
    return (lambda a, i, j: a[i][..., j]), first, second


@operation(ANY, ndim=(1, 9))
def index_mask(pick: Pick, x: Tensor) -> Any:
    rank = pick.int(1, x.dim())
    return (lambda a, m: a[m]), pick.tensor(x.shape[:rank], torch.bool)


@operation(ANY)
def masked_select(pick: Pick, x: Tensor) -> Any:
    return (lambda a, m: torch.masked_select(a, m)), pick.tensor(x.shape, torch.bool)


row("nonzero", torch.nonzero, ANY)
row("unique", torch.unique, NUMBERS)
row("argwhere", lambda x: torch.argwhere(x > 0), NUMBERS)
row("select_positive", lambda x: x[x > 0] + 1, NUMBERS)


@operation(ANY, ndim=(1, 9), empty=False)
def gather(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    shape = list(x.shape)
    shape[dim] = pick.choose((1, 4, 8))
    return (lambda a, i: a.gather(dim, i)), pick.indices(shape, x.shape[dim])


@operation(ANY, ndim=(1, 9), empty=False)
def index_select(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    kind = pick.choose((torch.int64, torch.int32))
    return (lambda a, i: a.index_select(dim, i)), pick.indices((pick.choose(SIZES),), x.shape[dim], kind)


@operation(ANY, ndim=(1, 9), empty=False)
def take_along_dim(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    shape = [1] * x.dim()
    shape[dim] = 4
    return (lambda a, i: torch.take_along_dim(a, i, dim)), pick.indices(shape, x.shape[dim])


@operation(NUMBERS, ndim=(1, 9), empty=False)
def index_put(pick: Pick, x: Tensor) -> Any:
    at = pick.indices((1,), x.shape[0])
    return (lambda a, i, v: a.index_put((i,), v)), at, pick.tensor((1, *x.shape[1:]), x.dtype)


@operation(FLOATS[:2] + INTS, ndim=(1, 9), empty=False)
def scatter_add(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    return (
        (lambda a, i, v: a.scatter_add(dim, i, v)),
        pick.indices(x.shape, x.shape[dim]),
        pick.tensor(x.shape, x.dtype),
    )


@operation(FLOATS[:2] + INTS, ndim=(1, 9), empty=False)
def index_add(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    return (
        (lambda a, i, v: a.index_add(dim, i, v)),
        pick.indices((x.shape[dim],), x.shape[dim]),
        pick.tensor(x.shape, x.dtype),
    )


@operation(ANY, ndim=(1, 9), empty=False)
def narrow(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    start = pick.int(0, x.shape[dim] - 1)
    length = pick.int(0, x.shape[dim] - start)
    return lambda a: a.narrow(dim, start, length)


@operation(ANY, ndim=(1, 9), empty=False)
def select_scatter(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    at = pick.int(0, x.shape[dim] - 1)
    return (lambda a, v: a.select_scatter(v, dim, at)), pick.tensor(x.select(dim, 0).shape, x.dtype)


@operation(ANY, ndim=(1, 9), empty=False)
def slice_scatter(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(0, x.dim() - 1)
    half = x.shape[dim] // 2
    return (lambda a, v: a.slice_scatter(v, dim, 0, half)), pick.tensor(x.narrow(dim, 0, half).shape, x.dtype)


@operation(NUMBERS, ndim=(1, 9), empty=False)
def searchsorted(pick: Pick, x: Tensor) -> Any:
    return (lambda a, v: torch.searchsorted(a.sort(-1).values, v)), pick.tensor((*x.shape[:-1], 3), x.dtype)


# ---- joining and cutting -----------------------------------------------------------------------------------------


@operation(ANY, ndim=(1, 9))
def cat(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    shape = list(x.shape)
    shape[dim] = pick.choose((0, 1, 2, 4, x.shape[dim]))
    other = pick.choose(ANY) if pick.bool() else x.dtype
    return (lambda a, b: torch.cat([a, b, a], dim)), pick.tensor(shape, other)


@operation(ANY)
def stack(pick: Pick, x: Tensor) -> Any:
    dim = pick.int(-x.dim() - 1, x.dim())
    return (lambda a, b: torch.stack([a, b], dim)), pick.tensor(x.shape, x.dtype)


@operation(ANY, ndim=(1, 9), empty=False)
def split(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    size = pick.int(1, x.shape[dim])
    return lambda a: a.split(size, dim)


@operation(ANY, ndim=(1, 9), empty=False)
def split_sizes(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    size = pick.int(0, x.shape[dim])
    return lambda a: a.split([size, x.shape[dim] - size], dim)


@operation(ANY, ndim=(1, 9), empty=False)
def chunk(pick: Pick, x: Tensor) -> Any:
    count, dim = pick.int(1, 4), pick.dim(x)
    return lambda a: a.chunk(count, dim)


@operation(ANY, ndim=(1, 9), empty=False)
def unbind(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    return lambda a: a.unbind(dim)


@operation(ANY, ndim=(1, 9))
def repeat(pick: Pick, x: Tensor) -> Any:
    times = [pick.int(1, 2) for _ in x.shape]
    return lambda a: a.repeat(times)


@operation(ANY, ndim=(1, 9))
def tile(pick: Pick, x: Tensor) -> Any:
    return lambda a: torch.tile(a, (2,))


@operation(ANY, ndim=(1, 9))
def repeat_interleave(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    return lambda a: a.repeat_interleave(2, dim)


# ---- along a dim -------------------------------------------------------------------------------------------------


def along(name: str, f: Callable[[Tensor, int], Any], dtypes: tuple[torch.dtype, ...], **needs: Any) -> None:
    def draw(pick: Pick, x: Tensor) -> Any:
        dim = pick.dim(x)
        return lambda a: f(a, dim)

    OPERATIONS[name] = Operation(draw, dtypes, **{"ndim": (1, 9), **needs})


along("softmax", torch.softmax, FLOATS)
along("log_softmax", torch.log_softmax, FLOATS)
along("sort", lambda x, d: torch.sort(x, d), FLOATS[:2])
along("sort_values", lambda x, d: torch.sort(x, d).values, NUMBERS)
along("sort_stable", lambda x, d: torch.sort(x, dim=d, stable=True, descending=True), NUMBERS)
along("argsort", lambda x, d: torch.argsort(x, dim=d, stable=True), NUMBERS)
along("cumsum", torch.cumsum, (*NUMBERS, torch.bool))
along("cumprod", lambda x, d: torch.cumprod(x.clamp(-1, 1), d), (*FLOATS[:2], *INTS))
along("cummax", torch.cummax, FLOATS[:2], empty=False)
along("logcumsumexp", torch.logcumsumexp, FLOATS[:2], empty=False)
along("flip", lambda x, d: x.flip(d), ANY)
along("roll", lambda x, d: x.roll(3, d), ANY)
along("diff", lambda x, d: x.diff(dim=d), NUMBERS, empty=False)
along("normalize", lambda x, d: F.normalize(x, dim=d), FLOATS[:2])
along("glu", lambda x, d: F.glu(torch.cat([x, x], d), d), FLOATS[:2], empty=False)
along("fft", lambda x, d: torch.fft.fft(x, dim=d), FLOATS[:2] + COMPLEX, empty=False)
along("rfft", lambda x, d: torch.fft.irfft(torch.fft.rfft(x, dim=d), dim=d), FLOATS[:2], empty=False)
along("quantile", lambda x, d: torch.quantile(x, 0.5, d), FLOATS[:2], empty=False)
along("kthvalue", lambda x, d: torch.kthvalue(x, 1, d).values, FLOATS[:2], empty=False)
along("mode", lambda x, d: torch.mode(x, d).values, INTS, empty=False)


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def topk(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    k, largest = pick.int(1, x.shape[dim]), pick.bool()
    return lambda a: a.topk(k, dim, largest=largest).values


row("tril", torch.tril, ANY, ndim=(2, 9))
row("triu", lambda x: torch.triu(x, 1), ANY, ndim=(2, 9))
row("diagonal", lambda x: x.diagonal(0, 0, 1), ANY, ndim=(2, 9))
row("diag_embed", torch.diag_embed, NUMBERS, ndim=(1, 2))
row("trace", torch.trace, NUMBERS, ndim=(2, 2))
row("rot90", torch.rot90, ANY, ndim=(2, 4))
row("meshgrid", lambda x: torch.meshgrid(x, x, indexing="ij"), NUMBERS, ndim=(1, 1))


@operation(NUMBERS, ndim=(1, 9))
def pad(pick: Pick, x: Tensor) -> Any:
    amounts = [pick.int(0, 2), pick.int(0, 2)]
    return lambda a: F.pad(a, amounts, value=1)


@operation(FLOATS[:2], ndim=(2, 3), empty=False)
def pad_reflect(pick: Pick, x: Tensor) -> Any:
    mode = "replicate" if x.shape[-1] == 1 else pick.choose(("reflect", "replicate"))
    return lambda a: F.pad(a, [1, 0], mode=mode)


@operation(NUMBERS, ndim=(1, 9), empty=False)
def unfold(pick: Pick, x: Tensor) -> Any:
    dim = pick.dim(x)
    size = pick.int(1, x.shape[dim])
    return lambda a: a.unfold(dim, size, 1)


# ---- layers ------------------------------------------------------------------------------------------------------


@operation(FLOATS[:2], ndim=(3, 3), empty=False)
def conv1d(pick: Pick, x: Tensor) -> Any:
    groups = pick.choose([g for g in (1, 2, x.shape[1]) if x.shape[1] % g == 0])
    out = groups * pick.choose((1, 2, 4))
    stride, padding, size = pick.int(1, 2), pick.int(0, 2), pick.int(1, min(3, x.shape[2]))
    weight = pick.tensor((out, x.shape[1] // groups, size), x.dtype)
    if pick.bool():
        call = lambda a, w, b: F.conv1d(a, w, b, stride, padding, groups=groups)  # noqa: E731
        return call, weight, pick.tensor((out,), x.dtype)
    return (lambda a, w: F.conv1d(a, w, None, stride, padding, 1, groups)), weight


@operation(FLOATS[:1], ndim=(3, 4), empty=False)
def conv2d(pick: Pick, x: Tensor) -> Any:
    channels = x.shape[-3]
    groups = pick.choose([g for g in (1, 2) if channels % g == 0])
    out = groups * pick.choose((1, 2, 4))
    stride, padding = pick.int(1, 2), pick.choose((0, 1, (0, 1)))
    weight = pick.tensor((out, channels // groups, min(2, x.shape[-2]), min(3, x.shape[-1])), x.dtype)
    if pick.bool():
        return (lambda a, w, b: F.conv2d(a, w, b, stride, padding, groups=groups)), weight, pick.tensor((out,), x.dtype)
    return (lambda a, w: F.conv2d(a, w, None, stride, padding, groups=groups)), weight


@operation(FLOATS[:1], ndim=(3, 3), empty=False)
def conv_transpose1d(pick: Pick, x: Tensor) -> Any:
    return (lambda a, w: F.conv_transpose1d(a, w, stride=2)), pick.tensor((x.shape[1], 2, 3), x.dtype)


@operation(FLOATS[:2], ndim=(3, 4), empty=False)
def max_pool2d(pick: Pick, x: Tensor) -> Any:
    size = (min(2, x.shape[-2]), min(2, x.shape[-1]))
    return lambda a: F.max_pool2d(a, size)


@operation(FLOATS[:2], ndim=(3, 4), empty=False)
def avg_pool2d(pick: Pick, x: Tensor) -> Any:
    size = (min(2, x.shape[-2]), min(2, x.shape[-1]))
    return lambda a: F.avg_pool2d(a, size)


@operation(FLOATS[:1], ndim=(4, 4), empty=False)
def interpolate(pick: Pick, x: Tensor) -> Any:
    return lambda a: F.interpolate(a, scale_factor=2, mode="nearest")


@operation(FLOATS[:2], ndim=(1, 9), empty=False)
def layer_norm(pick: Pick, x: Tensor) -> Any:
    shape = list(x.shape[-pick.int(1, min(2, x.dim())) :])
    if pick.bool():
        return (lambda a, w, b: F.layer_norm(a, shape, w, b)), pick.tensor(shape, x.dtype), pick.tensor(shape, x.dtype)
    return lambda a: F.layer_norm(a, shape)


@operation(FLOATS[:1], ndim=(1, 9), empty=False)
def rms_norm(pick: Pick, x: Tensor) -> Any:
    return lambda a: F.rms_norm(a, [x.shape[-1]])


@operation(FLOATS[:1], ndim=(3, 3), empty=False)
def group_norm(pick: Pick, x: Tensor) -> Any:
    return lambda a: F.group_norm(a, x.shape[1])


@operation(FLOATS[:1], ndim=(2, 4), empty=False)
def batch_norm(pick: Pick, x: Tensor) -> Any:
    c = x.shape[1]
    return (lambda a, m, v: F.batch_norm(a, m, v.abs() + 1)), pick.tensor((c,), x.dtype), pick.tensor((c,), x.dtype)


@operation(FLOATS[:1], ndim=(4, 4), empty=False)
def attention(pick: Pick, x: Tensor) -> Any:
    causal = pick.bool()
    call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)  # noqa: E731
    return call, pick.tensor(x.shape, x.dtype), pick.tensor(x.shape, x.dtype)


@operation((torch.int64, torch.int32), ndim=(0, 3))
def embedding(pick: Pick, x: Tensor) -> Any:
    return (lambda a, w: F.embedding(a.remainder(8), w)), pick.tensor((8, pick.choose(SIZES)))


@operation((torch.int64,), ndim=(0, 3), empty=False)
def one_hot(pick: Pick, x: Tensor) -> Any:
    return lambda a: F.one_hot(a.remainder(6), 6)


row("bincount", lambda x: torch.bincount(x.remainder(5)), (torch.int64,), ndim=(1, 1))
row("histc", lambda x: torch.histc(x, 4, -4, 4), (torch.float32,), empty=False)
row("bucketize", lambda x: torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0])), (torch.float32,))


@operation(FLOATS[:2], ndim=(2, 2), empty=False)
def cross_entropy(pick: Pick, x: Tensor) -> Any:
    return F.cross_entropy, pick.indices((x.shape[0],), x.shape[1])


@operation(FLOATS[:2], empty=False)
def mse_loss(pick: Pick, x: Tensor) -> Any:
    return F.mse_loss, pick.tensor(x.shape, x.dtype)


# ---- linear algebra ----------------------------------------------------------------------------------------------


def _well_conditioned(a: Tensor) -> Tensor:
    return a @ a.mT + 100 * torch.eye(a.shape[-2], dtype=a.dtype)


LINEAR: dict[str, Any] = {"dtypes": (torch.float64,), "ndim": (2, 3), "empty": False}

row("inv", lambda x: torch.linalg.inv(_well_conditioned(x)), **LINEAR)
row("cholesky", lambda x: torch.linalg.cholesky(_well_conditioned(x)), **LINEAR)
row("det", lambda x: torch.linalg.det(_well_conditioned(x) / 100), **LINEAR)
row("slogdet", lambda x: torch.linalg.slogdet(_well_conditioned(x)), **LINEAR)
row("qr", lambda x: torch.linalg.qr(_well_conditioned(x)), **LINEAR)
row("eigvalsh", lambda x: torch.linalg.eigvalsh(_well_conditioned(x)), **LINEAR)
row("svdvals", torch.linalg.svdvals, **LINEAR)
row("matrix_norm", torch.linalg.matrix_norm, **LINEAR)
row("matrix_power", lambda x: torch.linalg.matrix_power(_well_conditioned(x) / 100, 3), **LINEAR)


@operation(**LINEAR)
def solve(pick: Pick, x: Tensor) -> Any:
    other = pick.tensor((*x.shape[:-1], 2), x.dtype)
    return (lambda a, b: torch.linalg.solve(_well_conditioned(a), b)), other
