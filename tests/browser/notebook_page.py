"""A lesson in a browser: opened, run, looked at, and touched as a learner would.

What runs is asked of JupyterLab's own model of the page; what is seen and touched is the page.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from playwright.sync_api import ElementHandle, Page

START_MS = 150_000
# The slowest lesson takes half a minute alone; here a browser and a server share its two cores.
RUN_MS = 280_000
ANSWER_MS = 60_000

PANEL = "window.jupyterapp.shell.currentWidget"

# The command's own promise is kept too early: at the first output of a cell that is meant to raise.
HAS_RUN = f"""() => {{
    const panel = {PANEL};
    const cells = panel.content.model.toJSON().cells.filter(
        cell => cell.cell_type === 'code' && [cell.source].flat().join('').trim());
    const isMeant = cell => (cell.metadata.tags ?? []).includes('raises-exception');
    const hasFailed = cell => !isMeant(cell) && cell.outputs.some(output => output.output_type === 'error');
    const isIdle = panel.sessionContext.session?.kernel?.status === 'idle';
    return isIdle && (cells.every(cell => cell.execution_count !== null) || cells.some(hasFailed));
}}"""


@dataclass(frozen=True)
class CellError:
    """An error output: the number of the cell, its id, and what was raised."""

    cell: int
    id: str
    raised: str


class NotebookPage:
    """One tab of a browser with JupyterLab in it.

    Args:
        page: Playwright's page.
        url: JupyterLab's address, the token included.

    Attributes:
        first: the file that JupyterLab opens by itself; None where it shows its Launcher.
    """

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        page.goto(url, timeout=START_MS)
        page.wait_for_function("window.jupyterapp !== undefined", timeout=START_MS)
        page.evaluate("() => window.jupyterapp.restored.then(() => null)")
        page.wait_for_selector(".jp-Document, .jp-Launcher", timeout=START_MS)
        self.first = page.evaluate(f"() => {PANEL}?.context?.path ?? null")

    def open(self, name: str) -> None:
        """Open a notebook, with its kernel started and outputs cleared, so that what is seen is new."""
        self.open_as_stored(name)
        self.command("notebook:clear-all-cell-outputs")

    def open_as_stored(self, name: str) -> None:
        """Open a notebook, with its kernel started."""
        self.command("docmanager:open", {"path": name, "factory": "Notebook"})
        self.page.wait_for_function(
            f"name => {PANEL}?.context?.path === name && {PANEL}.content?.model?.cells.length > 0",
            arg=name,
            timeout=START_MS,
        )
        self.page.evaluate(f"() => {PANEL}.context.ready.then(() => {PANEL}.sessionContext.ready)")
        self.page.wait_for_function(f"{PANEL}.sessionContext.session?.kernel?.status === 'idle'", timeout=START_MS)

    def run_all(self) -> None:
        """Run every cell by the menu's own command, and wait for the last one, or for an error that ends the run."""
        self.page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
        self.page.wait_for_function(HAS_RUN, timeout=RUN_MS, polling=200)

    def cells(self) -> list[dict[str, Any]]:
        """The notebook as it is now, cell by cell, in the form in which it would be saved."""
        return self.page.evaluate(f"() => {PANEL}.content.model.toJSON().cells")

    def errors(self) -> list[CellError]:
        """The errors of cells that are not meant to raise one."""
        return [
            CellError(number, cell["id"], f"{output['ename']}: {output['evalue']}")
            for number, cell in enumerate(self.cells())
            if "raises-exception" not in cell["metadata"].get("tags", [])
            for output in cell.get("outputs", [])
            if output["output_type"] == "error"
        ]

    def visualizers(self) -> list[int]:
        """The numbers of the cells that show a picture with controls."""
        return [
            number
            for number, cell in enumerate(self.cells())
            if any(is_visualizer(output) for output in cell.get("outputs", []))
        ]

    def output_of(self, cell: int, awaited: str = "svg") -> ElementHandle:
        """Scroll to a cell, and give its outputs as they are on the page, once this element is among them."""
        self.page.evaluate(f"cell => {PANEL}.content.scrollToItem(cell, 'start').then(() => null)", cell)
        handle = self.page.evaluate_handle(f"cell => {PANEL}.content.widgets[cell].outputArea.node", cell)
        element = handle.as_element()
        assert element is not None
        element.wait_for_selector(awaited, timeout=ANSWER_MS)
        return element

    def change_theme(self, is_dark: bool) -> None:
        """Put on JupyterLab's own light or dark theme."""
        self.command("apputils:change-theme", {"theme": "JupyterLab Dark" if is_dark else "JupyterLab Light"})
        light = str(not is_dark).lower()
        self.page.wait_for_function(
            "light => document.body.dataset.jpThemeLight === light", arg=light, timeout=ANSWER_MS
        )

    def screenshot(self, element: ElementHandle, path: Path) -> None:
        """Keep what is seen of an element."""
        element.scroll_into_view_if_needed()
        element.screenshot(path=path)

    def close(self) -> None:
        """End the kernel, and with it the devices; then close the tab without saving, and without a question."""
        self.page.evaluate(f"() => {PANEL}.sessionContext.shutdown().then(() => {{ {PANEL}.dispose(); }})")

    def command(self, name: str, arguments: dict[str, Any] | None = None) -> None:
        """Do what one of JupyterLab's commands does, and wait until it is done."""
        self.page.evaluate(
            "([name, arguments]) => window.jupyterapp.commands.execute(name, arguments).then(() => null)",
            [name, arguments or {}],
        )


def is_visualizer(output: dict[str, Any]) -> bool:
    """A visualizer stores a live view and beside it a picture for pages that run no Python; a progress bar does not."""
    data = output.get("data", {})
    return "application/vnd.jupyter.widget-view+json" in data and "image/svg+xml" in data
