"""The table of ratios, and its plot."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cases import Case

SIDES = ("tinyshard", "JAX", "gloo", "ipyparallel")
HEAD = f"""# tinyshard, JAX, raw gloo and ipyparallel, measured in one run

Written by `python -m benchmarks` on {os.cpu_count()} cores ({sys.platform}, {platform.machine()}).
Least / median of each side; the ratios are of medians, beside the bar that the case is held to.
Peak memory is that of all processes of a side together.

"""


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one case.

    Attributes:
        seconds: by side, the least and the median.
        peaks: by side, the most memory held, in bytes.
    """

    case: Case
    seconds: dict[str, tuple[float, float]]
    peaks: dict[str, int]

    def ratio(self, peer: str) -> float | None:
        """tinyshard's median over the peer's."""
        if "tinyshard" not in self.seconds or peer not in self.seconds:
            return None
        return self.seconds["tinyshard"][1] / self.seconds[peer][1]


def time_text(seconds: tuple[float, float] | None) -> str:
    """Least and median, in one unit."""
    if seconds is None:
        return "–"
    unit, scale = next((u, s) for u, s in (("s", 1.0), ("ms", 1e3), ("µs", 1e6)) if seconds[1] * s >= 1 or u == "µs")
    return f"{seconds[0] * scale:.3g} / {seconds[1] * scale:.3g} {unit}"


def _against(ratio: float | None, bar: float | None) -> str:
    if ratio is None:
        return "–"
    return f"{ratio:.2g}" + ("" if bar is None else f" (at most {bar:g}{'' if ratio <= bar else ', missed'})")


def table(figures: Sequence[Figures], *, heading: bool = True) -> str:
    """The figures as rows of Markdown: least / median of each side, ratios of medians, peak memory."""
    lines = []
    if heading:
        lines.append("| | " + " | ".join(SIDES) + " | to JAX | to gloo | peak MiB, tinyshard / JAX |")
        lines.append("|---" * (len(SIDES) + 4) + "|")
    for f in figures:
        peaks = " / ".join(f"{f.peaks[s] >> 20}" if s in f.peaks else "–" for s in ("tinyshard", "JAX"))
        cells = [f.case.what, *(time_text(f.seconds.get(s)) for s in SIDES)]
        cells += [_against(f.ratio("JAX"), f.case.to_jax), _against(f.ratio("gloo"), f.case.to_gloo), peaks]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(figures: Sequence[Figures], folder: Path) -> None:
    """results.md and results.svg in a folder."""
    (folder / "results.md").write_text(HEAD + table(figures) + "\n")
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
