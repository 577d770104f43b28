"""With one library for products and one thread, the three ways to run a program give the same bits."""

import pytest

from tests.extent import mostly_whole

SUMS = """
import hashlib

torch.manual_seed(0)
LEFT, RIGHT, BIAS = torch.randn(256, 2048), torch.randn(2048, 640), torch.randn(640)
PARAMS = [torch.randn(shape) for shape in ((640, 300), (300,), (300, 48), (48,), (48, 8), (8, 1))]


def loss(weights, x):
    for weight in weights:
        x = torch.nn.functional.relu(x @ weight)
    return x.square().mean()


def step(params, x):
    def loss(params):
        y = x
        for p in params:
            y = torch.tanh(y @ p if p.dim() == 2 else y + p)
        return y.square().mean()

    return [p - 0.1 * g for p, g in zip(params, ts.grad(loss)(params), strict=True)]


def gathered(x):
    parts = [x, x[:, :3] * 3, x[:2], x.bfloat16(), x.transpose(0, 1)[:64].contiguous()]
    for does in (ts.lax.all_gather, lambda v, axis: ts.lax.ppermute(v, axis, [(0, 1), (1, 2), (2, 3)])):
        x = x + sum(y.sum() * k for k, y in enumerate([does(part, "a") for part in parts]))
    pieces = [ts.lax.psum_scatter(x.repeat(4, k), "a", tiled=True) for k in (1, 2)]
    return x + pieces[0] + pieces[1][:, : x.shape[1]]


def both_ways(function, *args):
    whole = []
    for nbytes in (0, 1 << 22):
        ts.config.update("combine_nbytes", nbytes)
        whole.append(ts.tree.leaves(function(*args)))
        exchanges = sum(c.count for c in ts.collectives_in(function.lower(*args).compile()))
        whole[-1].append(torch.tensor(exchanges))
    one_by_one, together = ([ts.device_get(x) for x in results] for results in whole)
    assert all(map(torch.equal, one_by_one[:-1], together[:-1])), "combined, another result"
    assert one_by_one[-1] > together[-1], "nothing is combined"
    return together[:-1]


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
        for spec in ((), ("a",)):
            placed = [put(p, *spec[: p.dim()]) if p.shape[-1] % 4 == 0 else put(p) for p in PARAMS]
            yield from both_ways(ts.jit(step), placed, put(LEFT[:, :640], "b"))
        yield from both_ways(ts.shard_map(gathered, mesh=mesh, in_specs=ts.P("a", "b"), out_specs=ts.P("a", "b")), LEFT)

    return [hashlib.sha256(ts.device_get(x).contiguous().view(torch.uint8).numpy()).hexdigest()[:8] for x in values()]


found = []
for given in ({"runtime": "local"}, {"collectives": "gloo"}, {"collectives": "shared"}):
    ts.init(devices=8, **given)
    found.append(digests())
    ts.shutdown()
tell(found[0] == found[1] == found[2] or found)
"""


@pytest.mark.whole
@pytest.mark.parametrize("library", mostly_whole(["torch", "numpy", "onednn"], lambda library: library == "torch"))
def test_local_gloo_and_shared_memory_give_the_same_bits(controller, library):
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    each = controller(SUMS, environment={**threads, "TINYSHARD_PRODUCTS": library})
    assert each.line() == "True"
