"""The README shows what the package does: its example prints what stands there, its pictures are the package's own."""

import contextlib
import io
import re
from pathlib import Path

import pytest

import tinyshard as ts
from tinyshard.draw import sharding_svg

ROOT = Path(__file__).parents[2]
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


@pytest.mark.parametrize("name", PICTURES)
def test_the_readme_pictures_are_drawn_by_the_package(name):
    assert (ROOT / "course/pictures" / name).read_text("utf-8") == picture(PICTURES[name])
