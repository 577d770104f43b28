"""An index or a class that torch refuses is refused in every layout, and a number that torch takes is taken."""

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import tinyshard as ts
from tests.extent import every, pairwise
from tinyshard import P

pytestmark = pytest.mark.usefixtures("local")

LAYOUTS = [P(), P("x"), P(None, "x"), P(None, "y"), P("y", "x"), P(None, ("x", "y"))]
MODES: dict[str, Any] = {"in an op": lambda f: f, "jit": ts.jit}


def put(x: torch.Tensor, spec: P) -> ts.Array:
    return ts.device_put(x, ts.NamedSharding(ts.make_mesh((4, 2), ("x", "y")), spec))


@pytest.mark.parametrize(
    "spec, wrong, reduction, mode", pairwise(LAYOUTS, (8, -1, 100), ("mean", "sum", "none"), list(MODES)), ids=str
)
def test_a_target_that_is_no_class_is_an_error_though_the_classes_are_cut(
    spec: P, wrong: int, reduction: str, mode: str
) -> None:
    target = torch.tensor([0, 1, 2, 3, wrong, 5, 6, 7])
    loss = MODES[mode](lambda x, target: F.cross_entropy(x, target, reduction=reduction))
    with pytest.raises((IndexError, RuntimeError), match=r"out of (bounds|range)"):
        ts.device_get(loss(put(torch.randn(8, 8), spec), put(target, P("y"))))


@pytest.mark.parametrize("spec, ignored", every(4, itertools.product(LAYOUTS, (-100, 3, 100))), ids=str)
def test_an_ignored_target_is_none_of_the_classes_and_weighs_nothing(spec: P, ignored: int) -> None:
    x, weight = torch.randn(8, 8), torch.rand(8)
    target = torch.tensor([0, 1, ignored, 3, ignored, 5, 6, 7])

    def loss(x: Any, target: Any, weight: Any) -> Any:
        return F.cross_entropy(x, target, weight, ignore_index=ignored)

    leaf = x.clone().requires_grad_()
    expected = loss(leaf, target, weight)
    expected.backward()
    value, gradient = ts.value_and_grad(loss)(put(x, spec), put(target, P("x")), put(weight, P("y")))
    torch.testing.assert_close(ts.device_get(value), expected.detach())
    torch.testing.assert_close(ts.device_get(gradient), leaf.grad)


NOT_TAKEN: dict[str, tuple[Any, torch.dtype, torch.dtype]] = {
    "argmax of bools": (lambda x, _: x.argmax(1), torch.bool, torch.int64),
    "argmin of bools": (lambda x, _: x.argmin(), torch.bool, torch.int64),
    "softmax of integers": (lambda x, _: torch.softmax(x, 1), torch.int64, torch.int64),
    "log_softmax of integers": (lambda x, _: torch.log_softmax(x, 1), torch.uint8, torch.int64),
    "targets of int32": (F.cross_entropy, torch.float32, torch.int32),
    "targets of bool": (F.cross_entropy, torch.float32, torch.bool),
    "targets of int32, each loss": (lambda x, t: F.nll_loss(x, t, reduction="none"), torch.float32, torch.int32),
    "complex numbers of integers": (lambda x, _: torch.complex(x, x), torch.int64, torch.int64),
    "polar coordinates of bools": (lambda x, _: torch.polar(x, x), torch.bool, torch.int64),
    "a sum with float8": (lambda x, t: torch.add(x.to(torch.float8_e4m3fn), t), torch.float32, torch.complex64),
    "losses of integers": (lambda x, t: F.nll_loss(x, t, reduction="sum"), torch.int64, torch.int64),
}


@pytest.mark.parametrize("case, spec, mode", every(5, itertools.product(NOT_TAKEN, LAYOUTS, MODES)), ids=str)
def test_a_dtype_that_torch_refuses_is_refused_in_every_layout(case: str, spec: P, mode: str) -> None:
    function, dtype, of_target = NOT_TAKEN[case]
    x, target = torch.ones(8, 8, dtype=dtype), torch.ones(8, dtype=of_target)
    with pytest.raises(RuntimeError) as torchs:
        function(x, target)
    word = str(torchs.value).split(", but got")[0].replace("_lastdim", "")
    with pytest.raises((ts.DtypeError, ts.RemoteError)) as caught:
        ts.device_get(MODES[mode](function)(put(x, spec), put(target, P("y"))))
    assert word in str(caught.value).replace("_lastdim", "")


REFUSED: dict[str, tuple[Any, type[Exception]]] = {
    "a doubled matrix": (lambda x: torch.addmm(x.double(), x, x), RuntimeError),
    "a doubled vector": (lambda x: torch.addmv(x[0].double(), x, x[0]), RuntimeError),
    "doubled batches": (lambda x: torch.baddbmm(x.double()[None], x[None], x[None]), RuntimeError),
    "a matrix too many": (lambda x: torch.addmm(x.expand(3, 8, 8), x, x), RuntimeError),
    "a batch too many": (lambda x: torch.addbmm(x[None].expand(2, 8, 8), x[None], x[None]), RuntimeError),
    "a mask of one": (lambda x: x.index_put((x[:1, 0] > 0,), x.detach()[0, 0]), IndexError),
    "a mask of half": (lambda x: x.index_put((x[:4, 0] > 0,), x.detach()[0, 0]), IndexError),
    "a double added at a mask": (lambda x: x.index_put((x > 0,), x.double().sum(), accumulate=True), RuntimeError),
}


@pytest.mark.parametrize("case, spec, mode", every(3, itertools.product(REFUSED, [P(), P("y", "x")], MODES)), ids=str)
def test_what_torch_refuses_is_refused_though_other_ops_stand_for_the_op(case: str, spec: P, mode: str) -> None:
    function, kind = REFUSED[case]
    x = torch.arange(64.0).reshape(8, 8)
    with pytest.raises(kind):
        function(x)
    with pytest.raises((ts.DtypeError, kind)):
        ts.device_get(MODES[mode](function)(put(x, spec)))


@pytest.mark.parametrize("mode", MODES)
def test_a_float_written_at_a_mask_of_integers_is_an_integer_as_in_torch(mode: str) -> None:
    x = torch.arange(64).reshape(8, 8)

    def written(x: Any) -> Any:
        return x.index_put((x > 40,), torch.tensor(5.5))

    torch.testing.assert_close(ts.device_get(MODES[mode](written)(put(x, P("x")))), written(x))


LOSSES: dict[str, Any] = {
    "cross_entropy": F.cross_entropy,
    "nll_loss": lambda x, t: F.nll_loss(x.log_softmax(-1), t),
}


@pytest.mark.parametrize("name, spec", every(4, itertools.product(LOSSES, [P("x"), P(None, "y"), P()])), ids=str)
def test_classes_of_uint8_are_classes_as_in_torch(name: str, spec: P) -> None:
    loss = LOSSES[name]
    torch.manual_seed(0)
    x, classes = torch.randn(8, 6), torch.randint(0, 6, (8,)).to(torch.uint8)
    cut, whole = put(x, spec), put(classes, P())
    wanted = torch.func.grad_and_value(loss)(x, classes)
    for f in (ts.value_and_grad(loss), ts.jit(ts.value_and_grad(loss)), ts.value_and_grad(ts.jit(loss))):
        value, gradient = f(cut, whole)
        torch.testing.assert_close(ts.device_get(value), wanted[1])
        torch.testing.assert_close(ts.device_get(gradient), wanted[0])
