"""Sphinx's settings: the lessons as they are stored, the pages beside the code, and the reference from docstrings.

The pages are the repository's own files, where they are, so that a link on GitHub is a link here. Only the pages of the
reference are written, before each build: api_pages.py.
"""

import json
import re
import sys
from pathlib import Path
from textwrap import dedent
from typing import Any

SITE = Path(__file__).parent
sys.path[:0] = [str(SITE.parent), str(SITE)]

import api_pages  # noqa: E402

import tinyshard  # noqa: E402

project, author, version = "tinyshard", "the tinyshard authors", tinyshard.__version__
release, copyright = version, "2026, the tinyshard authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "README"
include_patterns = [
    "README.md",
    "site/*.md",
    "site/api/*.rst",
    "notebooks/*",
    "tinyshard/README.md",
    "course/instructor/**.md",
    "course/solutions/*.md",
    "benchmarks/*.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
]
exclude_patterns = ["**/.*", "site/contents.md"]

nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "html_image"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "tinyshard"
html_static_path = ["static"]
html_css_files = ["tinyshard.css"]
html_additional_pages = {"index": "first.html"}
templates_path = ["templates"]
html_show_sphinx = html_copy_source = False

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_google_docstring, napoleon_numpy_docstring = True, False
default_role = "code"


def as_restructured_text(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text with `code` in it: mark what stands apart, and guard what Sphinx reads as markup."""
    text = "\n".join(lines)
    text = re.sub(r"^(Communication|In JAX|Note):(?= )", r"**\1:**", text, flags=re.MULTILINE)
    text = re.sub(
        r"^Returns:\n((?: {4}.*\n|\n)+)", lambda found: f"**Returns:** {dedent(found[1])}", text, flags=re.MULTILINE
    )
    pieces = re.split(r"(`[^`]+`)", text)
    text = "".join(
        _code(piece) if i % 2 else re.sub(r"([*|]|(?<=\w)_(?!\w))", r"\\\1", piece) for i, piece in enumerate(pieces)
    )
    lines[:] = _literal_blocks(text.replace(r"\*\*", "**").split("\n"))


def _code(piece: str) -> str:
    """`x` → ``x``, also where a letter follows."""
    return f"\\ `{piece}`\\ "


def _literal_blocks(lines: list[str]) -> list[str]:
    """Indented lines after an empty one, beneath lines that are not indented, are a text as it stands."""
    found: list[str] = []
    for i, line in enumerate(lines):
        before = [each for each in lines[:i] if each.strip()]
        if line.startswith("    ") and i and not lines[i - 1].strip() and before and not before[-1].startswith(" "):
            found += ["::", ""]
        found.append(line)
    return found


def as_a_page(app: Any, docname: str, source: list[str]) -> None:
    """What a page has here and not on GitHub: the first one the contents, the instructor's a page for a folder."""
    if docname == "README":
        source[0] += (SITE / "contents.md").read_text("utf-8")
    if docname.startswith("course/instructor/"):
        source[0] = source[0].replace("](lessons)", "](../../site/sheets.md)")


def inline_pictures(app: Any, docname: str, source: list[str]) -> None:
    """A stored picture in SVG becomes a part of its page: so it takes the page's colours, light or dark."""
    if not docname.startswith("notebooks/") or not source[0].lstrip().startswith("{"):
        return
    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            picture = output.get("data", {}).pop("image/svg+xml", None)
            if picture is not None:
                output["data"]["text/html"] = picture
    source[0] = json.dumps(notebook)


def setup(app: Any) -> None:
    """What Sphinx calls first."""
    api_pages.write(SITE / "api")
    app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
    app.connect("source-read", as_a_page)
    app.connect("source-read", inline_pictures)
