"""The table of ratios, and its plot."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.cases import Case
from tinyshard.runtime.launch.forkserver import allocator

SIDES = ("tinyshard", "JAX", "gloo", "ipyparallel", "torchmonarch")
HEAD = """# tinyshard, JAX, raw gloo, ipyparallel and torchmonarch, measured in one run

Written by `python -m benchmarks` on {processor}, {cores} cores, {system}, Python {python}; {versions}.
The devices of tinyshard have their memory from {allocator}.
{rounds} rounds, in each of which every side takes its turn. A side's figure is the median, and in parentheses the
lower and the upper quartile. The ratios are of medians, beside the bar that the case is held to.
Peak memory is that of all processes of a side together. A first call is that of a fresh process whose devices are up:
it traces and compiles.

"""
SLOWER = """## Where JAX is the faster one

"""


@dataclass(frozen=True, slots=True)
class Spread:
    """Seconds that one call took, over many samples: the quartiles."""

    lower: float
    median: float
    upper: float

    @staticmethod
    def of(samples: Sequence[float]) -> Spread:
        """The quartiles of samples."""
        lower, median, upper = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
        return Spread(lower, median, upper)

    def __str__(self) -> str:
        units = (("s", 1.0), ("ms", 1e3), ("µs", 1e6))
        unit, scale = next((u, s) for u, s in units if self.median * s >= 1 or u == "µs")
        return f"{self.median * scale:.3g} ({self.lower * scale:.3g}–{self.upper * scale:.3g}) {unit}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one case.

    Attributes:
        seconds: by side.
        peaks: by side, the most memory held, in bytes.
        first: by side, its first call; empty where it was not measured.
    """

    case: Case
    seconds: dict[str, Spread]
    peaks: dict[str, int]
    first: dict[str, Spread] = field(default_factory=dict)

    def ratio(self, peer: str) -> float | None:
        """tinyshard's median over the peer's."""
        return _ratio(self.seconds, peer)


def _ratio(seconds: Mapping[str, Spread], peer: str) -> float | None:
    if "tinyshard" not in seconds or peer not in seconds:
        return None
    return seconds["tinyshard"].median / seconds[peer].median


def _against(ratio: float | None, bar: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.2g}" + ("" if bar is None else f" (at most {bar:g}{'' if ratio <= bar else ', missed'})")


def table(figures: Sequence[Figures], *, heading: bool = True) -> str:
    """The figures as rows of Markdown: each side, ratios of medians, peak memory, the first call."""
    lines = []
    if heading:
        titles = ["", *SIDES, "to JAX", "to gloo", "peak MiB, tinyshard / JAX", "first call, tinyshard / JAX"]
        lines += ["| " + " | ".join(titles) + " |", "|---" * len(titles) + "|"]
    for f in figures:
        peaks = " / ".join(f"{f.peaks[s] >> 20}" if s in f.peaks else "–" for s in ("tinyshard", "JAX"))
        first = " / ".join(str(f.first.get(s, "–")) for s in ("tinyshard", "JAX"))
        cells = [f.case.what, *(str(f.seconds.get(s, "–")) for s in SIDES)]
        cells += [_against(f.ratio("JAX"), f.case.to_jax), _against(f.ratio("gloo"), f.case.to_gloo), peaks]
        cells += [f"{first}: {_against(_ratio(f.first, 'JAX'), f.case.first_to_jax)}" if f.first else "–"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def slower(figures: Sequence[Figures]) -> str:
    """The cases in which JAX is the faster one, each with its reason, as rows of Markdown."""
    rows = [(f.case.what, ratio, f.case.why_slower) for f in figures if (ratio := f.ratio("JAX")) and ratio > 1]
    return "\n".join(
        ["| | to JAX | why |", "|---|---|---|", *(f"| {what} | {ratio:.2g} | {why} |" for what, ratio, why in rows)]
    )


def processor() -> str:
    """The processor's name, as the system gives it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write(figures: Sequence[Figures], folder: Path, rounds: int, versions: Mapping[str, str]) -> None:
    """results.md and results.svg in a folder."""
    head = HEAD.format(
        processor=processor(),
        cores=os.cpu_count(),
        system=sys.platform,
        python=platform.python_version(),
        versions=", ".join(f"{name} {version}" for name, version in versions.items()),
        allocator=Path({**allocator(), **os.environ}.get("LD_PRELOAD", "")).name or "the C library",
        rounds=rounds,
    )
    (folder / "results.md").write_text(f"{head}{table(figures)}\n\n{SLOWER}{slower(figures)}\n")
    plot(figures, folder / "results.svg")


def plot(figures: Sequence[Figures], path: Path) -> None:
    """A bar a case: tinyshard's time as a ratio to JAX's; left of 1 it is the faster one."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    shown = [(f.case.what, f.ratio("JAX")) for f in reversed(figures) if f.ratio("JAX") is not None]
    names, ratios = [n for n, _ in shown], [r for _, r in shown if r is not None]
    figure, axes = plt.subplots(figsize=(7, 0.28 * len(names) + 0.8))
    axes.barh(names, ratios, color=["#2a9d8f" if r <= 1 else "#e9a15b" for r in ratios])
    axes.axvline(1, color="#444", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("time of tinyshard / time of JAX with 8 CPU devices (less is better)")
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
