"""One colour per device, the same in every picture, distinct for any kind of colour vision.

The palette is Okabe and Ito's (2008), with grey for black so that all cells are visible on a dark page. Devices
8..15 have the same colours lighter, 16..23 darker; the id is in the cell too, so colour is never the only
cue.
"""

from __future__ import annotations

OKABE_ITO = ("#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#999999")

# one for each kind of collective, wherever it is drawn; its name stands beside it
KINDS = {
    "all_reduce": OKABE_ITO[4],
    "all_gather": OKABE_ITO[2],
    "reduce_scatter": OKABE_ITO[5],
    "all_to_all": OKABE_ITO[3],
    "collective_permute": OKABE_ITO[1],
    "transfer": OKABE_ITO[7],
}

# (towards, how far), one for each run of 8 devices; then the colours begin again.
_SHADES = (("#000000", 0.0), ("#ffffff", 0.55), ("#000000", 0.4), ("#ffffff", 0.8))


def device_colour(device: int) -> str:
    """The fill of a device's cells, as "#rrggbb".

    Example:
        >>> device_colour(0), device_colour(8), device_colour(32)
        ('#56b4e9', '#b3ddf5', '#56b4e9')
    """
    run, hue = divmod(device, len(OKABE_ITO))
    towards, share = _SHADES[run % len(_SHADES)]
    mixed = (a + (b - a) * share for a, b in zip(_channels(OKABE_ITO[hue]), _channels(towards), strict=True))
    return "#" + "".join(f"{round(channel):02x}" for channel in mixed)


def ink(fill: str) -> str:
    """Black or white, whichever is easier to read on `fill`.

    Example:
        >>> ink("#f0e442"), ink("#0072b2")
        ('#000000', '#ffffff')
    """
    luminance = _luminance(fill)
    return "#000000" if (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) else "#ffffff"


def _channels(colour: str) -> tuple[int, ...]:
    return tuple(int(colour[k : k + 2], 16) for k in (1, 3, 5))


def _luminance(colour: str) -> float:
    """Relative luminance as WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in (x / 255 for x in _channels(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
