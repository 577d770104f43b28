"""One JupyterLab and one browser for all lessons. Where no browser can be had the tests are skipped, and say why."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser.jupyterlab import JupyterLab, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# CI names the browser that it has installed: there its absence is a failure, not a reason to skip.
IS_REQUIRED = "TINYSHARD_BROWSER" in os.environ


def missing(what: str) -> None:
    reason = f"{what}; the browser test needs Playwright (the extra `test`) and Chromium"
    if IS_REQUIRED:
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where what was seen is kept; pytest keeps the folders of its last three runs."""
    folder = os.environ.get("TINYSHARD_SCREENSHOTS")
    return Path(folder) if folder else tmp_path_factory.mktemp("screenshots")


@pytest.fixture(scope="session")
def jupyterlab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterLab]:
    """A server on a fresh working copy of all lessons."""
    lab = JupyterLab(tmp_path_factory.mktemp("lab"))
    yield lab
    lab.stop()


@pytest.fixture(scope="session")
def memory(screenshots: Path) -> Iterator[list[str]]:
    """The most memory that each lesson took, JupyterLab included; kept beside the screenshots."""
    lines: list[str] = []
    yield lines
    (screenshots / "memory.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


@pytest.fixture(scope="session")
def browser() -> Iterator["Browser"]:
    """One Chromium for all tests: Playwright starts once in a process."""
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        missing(f"{error.name} is not installed")
    browser_path = find_browser()
    if browser_path is None:
        missing("there is no Chromium on this machine")
    with sync_playwright() as playwright:
        # Root, as in a container, has no sandbox; containers have little /dev/shm.
        browser = playwright.chromium.launch(
            executable_path=browser_path, args=["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def lesson_page(browser: "Browser", jupyterlab: JupyterLab) -> Iterator[object]:
    """JupyterLab in a browser window of a laptop's size."""
    from tests.browser.notebook_page import NotebookPage

    page = browser.new_page(viewport={"width": 1280, "height": 900})
    yield NotebookPage(page, jupyterlab.url())
    page.close()
