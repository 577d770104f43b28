"""With one library for products and one thread, the three ways to run a program give the same bits."""

import pytest

from tests.extent import mostly_whole

SUMS = """
import hashlib

torch.manual_seed(0)
LEFT, RIGHT, BIAS = torch.randn(256, 2048), torch.randn(2048, 640), torch.randn(640)


def loss(weights, x):
    for weight in weights:
        x = torch.nn.functional.relu(x @ weight)
    return x.square().mean()


def digests():
    mesh = ts.make_mesh((4, 2), ("a", "b"))

    def put(x, *spec):
        return ts.device_put(x, ts.NamedSharding(mesh, ts.P(*spec)))

    def values():
        yield put(LEFT, "a") @ put(RIGHT, None, "b")
        yield put(LEFT, None, ("a", "b")) @ put(RIGHT, ("a", "b"))
        yield torch.addmm(put(BIAS), put(LEFT, "a", "b"), put(RIGHT, "b"))
        yield torch.bmm(put(LEFT.view(4, 64, 2048), "b"), put(RIGHT.expand(4, 2048, 640).clone(), "b"))
        yield put(LEFT.bfloat16(), "a") @ put(RIGHT.bfloat16(), None, "b")
        weights = [put(w, None, "b") for w in (RIGHT, torch.linspace(-1, 1, 640 * 1024).view(640, 1024))]
        yield from ts.jit(ts.grad(loss))(weights, put(LEFT, "a"))
        yield put(LEFT, "a", "b").softmax(dim=1).sum(dim=0)

    return [hashlib.sha256(ts.device_get(x).contiguous().view(torch.uint8).numpy()).hexdigest()[:8] for x in values()]


found = []
for given in ({"runtime": "local"}, {"collectives": "gloo"}, {"collectives": "shared"}):
    ts.init(devices=8, **given)
    found.append(digests())
    ts.shutdown()
tell(found[0] == found[1] == found[2] or found)
"""


@pytest.mark.parametrize("library", mostly_whole(["torch", "numpy"], lambda library: library == "torch"))
def test_local_gloo_and_shared_memory_give_the_same_bits(controller, library):
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    each = controller(SUMS, environment={**threads, "TINYSHARD_PRODUCTS": library})
    assert each.line() == "True"
