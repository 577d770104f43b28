"""Writes `course/pictures/ring.svg`, the moving picture of the front page: a ring all-gather over eight devices.

python site/ring.py
"""

from __future__ import annotations

import math
from pathlib import Path

DEVICES, TICK_S, PAUSE_TICKS = 8, 0.9, 3
WIDTH, HEIGHT, CENTRE_X, CENTRE_Y, RADIUS_X, RADIUS_Y = 720, 380, 360, 188, 275, 135
CELL, GAP = 11, 1
# those of Okabe and Ito, which differ for colour-blind readers, and a grey
COLOURS = ("#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7", "#999999")
PICTURE = Path(__file__).parents[1] / "course/pictures/ring.svg"

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #222 }
.box { fill: #fff; stroke: #888 }
.empty { fill: none; stroke: #ccc }
@media (prefers-color-scheme: dark) {
  text { fill: #ddd }
  .box { fill: #1c1c1c; stroke: #777 }
  .empty { stroke: #444 }
}
@media (prefers-reduced-motion: reduce) { .moves { display: none } .block { animation: none !important; opacity: 1 } }
"""


def place(device: int) -> tuple[float, float]:
    """The centre of a device's box, on an oval, clockwise from the top."""
    angle = 2 * math.pi * device / DEVICES
    return CENTRE_X + RADIUS_X * math.sin(angle), CENTRE_Y - RADIUS_Y * math.cos(angle)


def picture() -> str:
    """The SVG: in each tick every device passes one block on to the next, until all have all eight."""
    ticks = DEVICES - 1 + PAUSE_TICKS
    seconds = ticks * TICK_S
    rules, marks = [STYLE], []
    for step in range(DEVICES):  # a block that arrives after `step` ticks is hidden until then
        start = 100 * step / ticks
        rules.append(
            f"@keyframes from{step} {{ 0%, {max(0.0, start - 0.01):.2f}% {{ opacity: {0 if step else 1} }} "
            f"{start:.2f}%, 100% {{ opacity: 1 }} }}"
        )
        rules.append(f".after{step} {{ animation: from{step} {seconds:.1f}s linear infinite }}")
    length = DEVICES * (CELL + GAP) - GAP
    for device in range(DEVICES):
        x, y = place(device)
        left, top = x - length / 2, y
        marks.append(
            f'<rect class="box" x="{left - 8:.1f}" y="{y - 24:.1f}" width="{length + 16}" height="46" rx="6"/>'
        )
        marks.append(f'<text x="{x:.1f}" y="{y - 8:.1f}" text-anchor="middle">CPU {device}</text>')
        for block in range(DEVICES):
            at, step = left + block * (CELL + GAP), (device - block) % DEVICES
            size = f'x="{at:.1f}" y="{top:.1f}" width="{CELL}" height="{CELL}"'
            marks.append(f'<rect class="empty" {size}/>')
            marks.append(f'<rect class="block after{step}" {size} fill="{COLOURS[block]}"/>')
    for device in range(DEVICES):  # what travels to the next device, in each tick
        (x, y), (to_x, to_y) = place(device), place((device + 1) % DEVICES)
        frames = []
        for tick in range(DEVICES - 1):
            begin, end = 100 * tick / ticks, 100 * (tick + 1) / ticks
            colour = COLOURS[(device - tick) % DEVICES]
            frames.append(f"{begin:.2f}% {{ transform: translate(0, 0); fill: {colour}; opacity: 1 }}")
            frames.append(
                f"{end - 0.01:.2f}% {{ transform: translate({to_x - x:.1f}px, {to_y - y:.1f}px); fill: {colour}; "
                f"opacity: {1 if tick < DEVICES - 2 else 0} }}"
            )
        frames.append("100% { opacity: 0 }")
        rules.append(f"@keyframes move{device} {{ {' '.join(frames)} }}")
        rules.append(f".move{device} {{ animation: move{device} {seconds:.1f}s linear infinite }}")
        marks.append(
            f'<rect class="moves move{device}" x="{x - 6:.1f}" y="{y + 12:.1f}" width="12" height="12" rx="2"/>'
        )
    words = "a ring all-gather: in seven steps every device passes a block on, and all eight have all"
    marks.append(f'<text x="{CENTRE_X}" y="{CENTRE_Y - 6}" text-anchor="middle">all_gather around a ring</text>')
    marks.append(
        f'<text x="{CENTRE_X}" y="{CENTRE_Y + 14}" text-anchor="middle">7 steps, each device sends 7 of 8 blocks</text>'
    )
    lines = "\n".join([f"<style>{chr(10).join(rules)}</style>", *marks])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'role="img" aria-label="{words}">\n{lines}\n</svg>\n'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
