"""How fast bytes travel in real machines: published peaks, the one table from which the lessons and the planner read.

A GPU here is NVIDIA's H100 with eight in a box; the laptop has two channels of DDR5-5600. What a program reaches is
less, often 60 to 90 percent of a peak. Of links the rate is that of one direction.
"""

from __future__ import annotations

from dataclasses import dataclass

from tinyshard.core.page import Drawing, page, table

__all__ = ["ETHERNET", "HBM", "INFINIBAND", "LAPTOP", "NVLINK", "PCIE", "RATES", "Rate", "rates"]


@dataclass(frozen=True, slots=True)
class Rate:
    """How many bytes a second pass through a place.

    Attributes:
        name: as in data sheets.
        between: what it connects.
        bytes_per_s: its peak.
    """

    name: str
    between: str
    bytes_per_s: float


HBM = Rate("HBM", "a GPU and its own memory", 3.35e12)
NVLINK = Rate("NVLink", "a GPU and the other GPUs of its box", 450e9)
LAPTOP = Rate("DDR5", "a laptop's cores and its memory", 89.6e9)
PCIE = Rate("PCIe", "a GPU and its host", 64e9)
INFINIBAND = Rate("InfiniBand", "a GPU and the GPUs of other boxes", 50e9)
ETHERNET = Rate("Ethernet", "two laptops, by a cable of 1 Gbit/s", 125e6)
RATES = (HBM, NVLINK, LAPTOP, PCIE, INFINIBAND, ETHERNET)


def rates(nbytes: int) -> Drawing:
    """The table of rates, with the time that so many bytes need at each.

    Args:
        nbytes: to be sent, or read, once.

    Returns:
        A row for each of `RATES`, the fastest first.

    Communication: none.

    Example:
        >>> print(rates(2**20).text.splitlines()[2])
        NVLink      a GPU and the other GPUs of its box       450 GB/s      0.0023 ms
    """
    cells = [(rate.name, rate.between, *_in_words(rate, nbytes)) for rate in RATES]
    heading = f"how long {nbytes / 2**20:g} MiB take"
    lines = [f"{name:10}  {between:37}  {speed:>11}  {time:>13}" for name, between, speed, time in cells]
    drawn = table(heading, ("name", "between", ">rate", ">time"), cells)
    return Drawing("\n".join([heading, *lines]), page(drawn))


def _in_words(rate: Rate, nbytes: int) -> tuple[str, str]:
    """GB a second, and milliseconds with two digits that count."""
    return f"{rate.bytes_per_s / 1e9:,g} GB/s", f"{float(f'{nbytes / rate.bytes_per_s * 1e3:.2g}'):,g} ms"
