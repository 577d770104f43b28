"""The site: built without a warning, every link leads somewhere, and a browser opens, searches and darkens it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

import pytest

import tinyshard as ts
from course.lessons import find_lessons, shipped_folder

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ROOT = Path(__file__).parents[2]
BUILDING_S = 280
ANSWER_MS = 60_000
BACKGROUND = "() => getComputedStyle(document.body).backgroundColor"

pytestmark = pytest.mark.whole


class Links(HTMLParser):
    """The addresses that a page leads to or shows, and the ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        told = dict(attrs)
        self.ids |= {value for name in ("id", "name") if (value := told.get(name))}
        self.addresses += [value for name in ("href", "src") if (value := told.get(name))]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `make site` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going", "-c", "site"]
    done = subprocess.run(
        [*command, "-d", folder / "cache", ".", folder / "pages"],
        cwd=ROOT,
        env={**os.environ, "TINYSHARD_RUNTIME": "local"},
        capture_output=True,
        text=True,
        timeout=BUILDING_S,
    )
    assert done.returncode == 0, done.stderr
    return folder / "pages"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Links]:
    return {path: Links(path.read_text("utf-8")) for path in site.rglob("*.html")}


@pytest.fixture(scope="module")
def page(browser: Browser, site: Path) -> Iterator[Page]:
    """A page of the site, served as it would be."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page = browser.new_page(base_url=f"http://127.0.0.1:{server.server_port}/", viewport={"width": 1280, "height": 900})
    yield page
    page.close()
    server.shutdown()
    server.server_close()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: object) -> None:
        pass


def test_every_link_within_the_site_leads_to_a_page_and_a_place_on_it(site: Path, pages: dict[Path, Links]) -> None:
    lost = []
    for path, links in pages.items():
        for address in links.addresses:
            parts = urlsplit(urljoin(path.as_uri(), address))
            target = Path(unquote(parts.path))
            if parts.scheme != "file":
                continue
            if not target.is_file() or (
                parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids
            ):
                lost.append(f"{path.relative_to(site)}: {address}")
    assert len(pages) > 60
    assert lost == []


def test_every_public_name_is_in_the_reference(pages: dict[Path, Links]) -> None:
    """Under its own name, or under the one by which the package or another module has it."""
    there = {id for links in pages.values() for id in links.ids}
    modules = {"": ts, "errors.": ts.errors}
    modules |= {f"{name}.": value for name in ts.__all__ if isinstance(value := getattr(ts, name), ModuleType)}
    named: dict[int, set[str]] = {}
    for module, contents in modules.items():
        for name in contents.__all__:
            value = getattr(contents, name)
            if not isinstance(value, ModuleType):
                named.setdefault(id(value), set()).add(f"tinyshard.{module}{name}")
    assert len(named) > 180
    assert [sorted(names) for names in named.values() if not names & there] == []


def test_the_first_page_leads_to_the_lessons_the_reference_and_the_teachers(page: Page) -> None:
    page.goto("")
    page.wait_for_url("**/README.html", timeout=ANSWER_MS)
    for words in ("The lessons", "Dictionary", "For the instructor"):
        assert page.get_by_role("link", name=words, exact=True).first.is_visible()


def test_a_lesson_shows_its_cells_its_outputs_and_its_pictures(page: Page) -> None:
    lesson = find_lessons(shipped_folder())[2]
    page.goto(f"notebooks/{lesson.path.stem}.html")
    assert page.get_by_role("heading", level=1).inner_text().startswith(lesson.title)
    assert page.locator(".cell_input").count() > 10
    assert page.locator(".cell_output svg").first.is_visible()
    assert page.locator("text=application/vnd.jupyter").count() == 0


def test_a_page_of_the_reference_has_signatures_arguments_and_examples(page: Page) -> None:
    page.goto("site/api/arrays.html#tinyshard.device_put")
    entry = page.locator("dl", has=page.locator('[id="tinyshard.device_put"]')).first
    text = entry.inner_text()
    assert "device_put" in text
    assert re.search("parameters", text, flags=re.IGNORECASE)
    assert "Returns:" in text
    assert ">>> " in text


def test_a_search_finds_a_name_where_it_is_explained(page: Page) -> None:
    page.goto("search.html?q=device_put")
    first = page.locator("#search-results li a").first
    first.wait_for(timeout=ANSWER_MS)
    assert "site/api/arrays.html#tinyshard.device_put" in (first.get_attribute("href") or "")


def test_the_dark_theme_darkens_the_page_and_its_pictures_stay_readable(page: Page) -> None:
    lesson = find_lessons(shipped_folder())[2]
    page.emulate_media(color_scheme="light")
    page.goto(f"notebooks/{lesson.path.stem}.html")
    light = page.evaluate(BACKGROUND)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => ({BACKGROUND})() !== light", arg=light, timeout=ANSWER_MS)
    brightness = {what: sum(_rgb(page.evaluate(of))) for what, of in _COLOURS.items()}
    assert brightness["page"] < 150 < 400 < brightness["words in a picture"]


_COLOURS = {
    "page": BACKGROUND,
    "words in a picture": """() => {
        const words = [...document.querySelectorAll('.cell_output svg text')];
        return getComputedStyle(words.find(each => (each.getAttribute('fill') ?? '').includes('var('))).fill;
    }""",
}


def _rgb(colour: str) -> list[int]:
    return [int(each) for each in re.findall(r"\d+", colour)[:3]]
