"""The README shows what the package does: its example prints what stands there, its pictures are the package's own."""

import contextlib
import io
import re
import runpy
from pathlib import Path

import pytest

import tinyshard as ts
from tests.rows import for_every_row
from tinyshard.draw import sharding_svg

ROOT = Path(__file__).parents[2]
# what README says of a row of the table, as a ratio to JAX's time
CLAIMS = {
    "psum 64 MB": r"a psum of 64 MB a device takes ([\d.]+)",
    "psum 16 MB": r"takes [\d.]+, of 16 MB ([\d.]+)",
    "psum 1 MB": r"of 1 MB ([\d.]+)",
    "psum 4 KB a device": r"of 4 KB ([\d.]+)",
    "all_gather 16 MB": r"an all-gather of 16 MB ([\d.]+)",
    "all_to_all 16 MB": r"an all-to-all ([\d.]+)",
    "psum_scatter 16 MB": r"a reduce-scatter ([\d.]+)",
    "256 MB (a, b) → (b, a)": r"to another sharding ([\d.]+)",
    "30 M uniform": r"random numbers ([\d.]+)",
    "dot 2048, rows by columns": r"a product of 2048 × 2048 ([\d.]+)",
    "gradient step, 8-way data parallel": r"a gradient step ([\d.]+) on 8 × 1",
    "gradient step, 4x2": r"and ([\d.]+) on 4 × 2",
    "a training's step, DP": r"training takes ([\d.]+) under DP,",
    "a training's step, FSDP": r"([\d.]+) under FSDP",
    "a training's step, TP": r"([\d.]+) under TP",
    "a training's step, DP X TP": r"([\d.]+) under DP × TP",
    "eager round trip": r"an op by itself ([\d.]+)",
    "jit round trip": r"a jitted call ([\d.]+)",
    "500 dependent eager ops": r"500 ops in a row ([\d.]+)",
    "start to first result": r"the start ([\d.]+)",
}
# what README says of a row's first call
FIRST_CALLS = {
    "a training's step, DP": r"compiles, ([\d.]+)",
    "a training's step, FSDP": r"compiles, [\d.]+, ([\d.]+)",
    "a training's step, TP": r"([\d.]+) and [\d.]+\. Small calls",
    "a training's step, DP X TP": r"and ([\d.]+)\. Small calls",
}
PICTURES = {"blocks.svg": ("a", "b"), "copies.svg": (None, "b")}


def picture(spec):
    """The package's SVG with a fixed colour: a picture file has no page to take one from."""
    sharding = ts.NamedSharding(ts.AbstractMesh((4, 2), ("a", "b")), ts.P(*spec))
    return sharding_svg(sharding.layout(2), (1024, 1024)).replace("var(--jp-ui-font-color1,currentColor)", "#808080")


@pytest.mark.usefixtures("local")
def test_the_readme_example_prints_what_it_shows():
    text = (ROOT / "README.md").read_text("utf-8")
    example, shown = re.search(r"```python\n(.*?)```\n\n```\n(.*?)```", text, re.DOTALL).groups()
    assert len([line for line in example.splitlines() if line]) == 6
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "README", "exec"), {})
    assert printed.getvalue().replace("\n\n", "\n") == shown


@for_every_row(PICTURES)
def test_the_readme_pictures_are_drawn_by_the_package(name):
    assert (ROOT / "course/pictures" / name).read_text("utf-8") == picture(PICTURES[name])


def test_the_readmes_figures_are_those_of_the_published_table():
    table = (ROOT / "benchmarks/results.md").read_text("utf-8")
    section = (ROOT / "README.md").read_text("utf-8").partition("## How fast")[2].partition("\n## ")[0]
    said = section.partition("<!-- measured -->")[2].partition("<!-- end -->")[0].replace("\n", " ")
    assert re.search(r"` on (.*?), linux", table)[1] in said, "the processor and its cores"
    ratios, first_ratios = {}, {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 10 and (ratio := re.match(r"[\d.e+]+", cells[6])):
            ratios[cells[0]] = ratio[0]
            first_ratios[cells[0]] = cells[9].partition(": ")[2].partition(" (")[0]
    wrong = [row for row, pattern in CLAIMS.items() if re.findall(pattern, said) != [ratios.get(row)]]
    wrong += [f"first {row}" for row, p in FIRST_CALLS.items() if re.findall(p, said) != [first_ratios.get(row)]]
    assert not wrong, ", ".join(wrong)
    assert len(re.findall(r"\d\.\d+", said)) <= len(CLAIMS) + len(FIRST_CALLS), "a figure that no claim checks"


def test_the_moving_picture_is_what_its_script_draws():
    drawn = runpy.run_path(str(ROOT / "site/ring.py"))["picture"]()
    assert (ROOT / "course/pictures/ring.svg").read_text("utf-8") == drawn
    assert drawn.count('class="block after0"') == 8 and drawn.count('class="block after7"') == 8
