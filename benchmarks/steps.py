"""What each step of the work was worth: several versions of tinyshard measured side by side, in one run.

python -m benchmarks.steps COMMIT ...                # in this order, each compared with the one before
python -m benchmarks.steps HEAD~1 . --rounds 3       # a folder is measured as it stands, uncommitted changes included
python -m benchmarks.steps OLD NEW --rows eager jit  # some rows

Only what has not changed between the versions is used: device_put, device_get, ops on Arrays, jit, pmap. Each version
is a process of its own, and in every round each takes its samples in turn. Prints the median and the quartiles, and the
ratio of the medians.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cases import BATCH, LAYERS
from benchmarks.report import Spread
from benchmarks.serve import Generator, serve, timed
from benchmarks.side import ROOT, Side
from benchmarks.start import TINYSHARD

SAMPLES = 20
MIB = 1 << 20


def _rows(ts: Any) -> Any:
    return ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i"))


def _repeated(call: Callable[[Any, Any], Any], shape: tuple[int, ...], wanted: float) -> Callable[[], Generator]:
    """Samples of one call on ones of a shape, rows sharded eight ways; one element of the result is looked at."""

    def samples() -> Generator:
        import torch

        import tinyshard as ts

        x = ts.device_put(torch.ones(shape), _rows(ts))
        while True:
            seconds, y = timed(lambda: call(ts, x))
            assert y.reshape(-1)[-1].item() == wanted
            del y
            yield seconds

    return samples


def _jitted() -> Callable[[Any, Any], Any]:
    kept: list[Any] = []

    def call(ts: Any, x: Any) -> Any:
        if not kept:
            kept.append(ts.jit(lambda x: x * 2 + 1))
        return kept[0](x).block_until_ready()

    return call


def _loop(ts: Any, x: Any) -> Any:
    for _ in range(500):
        x = x + 1
    return x.block_until_ready()


def _sum(ts: Any, x: Any) -> Any:
    return x.sum(0).block_until_ready()


def _collective(call: Callable[[Any, Any], Any], nbytes: int, wanted: float) -> Callable[[], Generator]:
    """Samples of a mapped function that is one collective; device d holds `nbytes` of the number d + 1."""

    def samples() -> Generator:
        import torch

        import tinyshard as ts

        blocks = torch.arange(1.0, 9).reshape(8, 1, 1).expand(8, 8, nbytes // 32)
        x = ts.device_put(blocks, _rows(ts))
        mapped = ts.jit(ts.pmap(lambda v: call(ts, v), axis_name="i"))
        while True:
            seconds, y = timed(lambda: mapped(x).block_until_ready())
            assert y[(-1,) * y.ndim].item() == wanted
            del y
            yield seconds

    return samples


def _put() -> Generator:
    import torch

    import tinyshard as ts

    host = torch.rand(4096, 4096)
    for number in itertools.count():
        host[-1, -1] = number
        seconds, x = timed(lambda: ts.device_put(host, _rows(ts)).block_until_ready())
        assert x[-1, -1].item() == number
        del x
        yield seconds


def _got() -> Generator:
    import torch

    import tinyshard as ts

    host = torch.rand(4096, 4096)
    x = ts.device_put(host, _rows(ts))
    while True:
        y = (x + 1).block_until_ready()
        seconds, back = timed(lambda y=y: ts.device_get(y))
        assert back[-1, 1] == host[-1, 1] + 1
        del y, back
        yield seconds


def _training() -> Generator:
    """A gradient step of the network of `python -m benchmarks`, eight parts of the batch."""
    import torch

    import tinyshard as ts
    from benchmarks.network import data_parallel, step

    params = [(torch.rand(a, b) / a, torch.zeros(b)) for a, b in itertools.pairwise(LAYERS)]
    placed, data = data_parallel(params, (torch.rand(BATCH, LAYERS[0]), torch.rand(BATCH, LAYERS[-1])))
    jitted = ts.jit(step)
    while True:
        seconds, (loss, placed) = timed(lambda: ts.block_until_ready(jitted(placed, data)))
        assert float(loss) > 0
        yield seconds


CASES: dict[str, Callable[[], Generator]] = {
    "eager": _repeated(lambda ts, x: (x + 1).block_until_ready(), (8,), 2.0),
    "jit": _repeated(_jitted(), (8,), 3.0),
    "500 dependent ops": _repeated(_loop, (8,), 501.0),
    **{
        f"sum over devices, {name}": _repeated(_sum, (8, nbytes // 4), 8.0)
        for name, nbytes in (("4 KB", 4096), ("1 MB", MIB), ("16 MB", 16 * MIB), ("64 MB", 64 * MIB))
    },
    "psum, 4 KB": _collective(lambda ts, v: ts.lax.psum(v, "i"), 4096, 36.0),
    "psum, 1 MB": _collective(lambda ts, v: ts.lax.psum(v, "i"), MIB, 36.0),
    "psum, 16 MB": _collective(lambda ts, v: ts.lax.psum(v, "i"), 16 * MIB, 36.0),
    "all_gather, 16 MB": _collective(lambda ts, v: ts.lax.all_gather(v, "i"), 16 * MIB, 8.0),
    "psum_scatter, 16 MB": _collective(lambda ts, v: ts.lax.psum_scatter(v, "i"), 16 * MIB, 36.0),
    "all_to_all, 16 MB": _collective(lambda ts, v: ts.lax.all_to_all(v, "i", 0, 0), 16 * MIB, 8.0),
    "ppermute, 16 MB": _collective(
        lambda ts, v: ts.lax.ppermute(v, "i", [(d, (d + 1) % 8) for d in range(8)]), 16 * MIB, 7.0
    ),
    "device_put, 64 MB": _put,
    "device_get, 64 MB": _got,
    "gradient step, 8-way data parallel": _training,
}
START = "start to first result, and the end"


def _packages(version: str, there: Path) -> Path:
    """Make a folder that holds the package and nothing else: of a commit, or a link to that of another folder."""
    there.mkdir()
    if (Path(version) / "tinyshard").is_dir():
        (there / "tinyshard").symlink_to((Path(version) / "tinyshard").resolve())
        return there
    packed = subprocess.run(["git", "archive", version, "tinyshard"], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", str(there)], input=packed, check=True)
    return there


def _started(path: Path) -> float:
    command = [sys.executable, "-c", TINYSHARD]
    start_s = time.perf_counter()
    subprocess.run(command, check=True, env={"PYTHONPATH": str(path), "PATH": ""}, cwd=path)
    return time.perf_counter() - start_s


def _row(case: str, taken: list[list[float]]) -> str:
    """A row of the table: each version's median and quartiles, and the ratio of medians to the version before."""
    cells, before = [case], 0.0
    for samples in taken:
        if not samples:
            cells.append("–")
            continue
        spread = Spread.of(samples)
        cells.append(f"{spread}" + (f" (× {spread.median / before:.2f})" if before else ""))
        before = spread.median
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", metavar="COMMIT or folder")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", nargs="+", choices=[START, *CASES], metavar="ROW", default=[START, *CASES])
    asked = parser.parse_args()
    print("| | " + " | ".join(asked.versions) + " |")
    print("|---" * (len(asked.versions) + 1) + "|")
    with tempfile.TemporaryDirectory() as folder:
        paths = [_packages(version, Path(folder, str(number))) for number, version in enumerate(asked.versions)]
        if START in asked.rows:
            rounds = range(max(2, asked.rounds // 3))
            taken = list(map(list, zip(*([_started(path) for path in paths] for _ in rounds), strict=True)))
            print(_row(START, taken), flush=True)
        sides = [
            Side(version, sys.executable, "--serve", module="benchmarks.steps", path=path)
            for version, path in zip(asked.versions, paths, strict=True)
        ]
        for case in [case for case in CASES if case in asked.rows]:
            for side in sides:
                side.ask(f"prepare {list(CASES).index(case)}")
            taken = [[] for _ in sides]
            for number in range(asked.rounds * SAMPLES):
                for samples, side in zip(taken, sides, strict=True):
                    seconds = side.ask("sample").get("seconds")
                    if seconds is not None and number >= SAMPLES // 2:
                        samples.append(seconds)
            for side in sides:
                side.ask("drop")
            print(_row(case, taken), flush=True)
        for side in sides:
            side.end()


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve({str(number): case for number, case in enumerate(CASES.values())})
    else:
        main()
