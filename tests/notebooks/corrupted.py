"""A pytest plugin beside nbval: would a wrong number in a lesson be noticed?

nbval runs each notebook and compares what came out with what is stored. It passes what it does not compare: a
notebook without outputs, a cell that was never run, an ignored output. So this plugin adds one test to each
notebook, `corrupted copy`. It runs after the cells and holds wrong copies of the stored outputs, one for each
compared text that has a number, against the outputs of that same run, by nbval's own comparison. Each wrong
copy must be refused. It is also red when

- the notebook stores no number that is compared;
- the outputs of more than 15 % of its code cells are not compared;
- an output is not compared and the cell's metadata does not say why:
  `"tinyshard": {"ignored because": "a timing differs from run to run"}`.

Use: pytest -p tests.notebooks.corrupted --nbval --nbval-current-env notebooks
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from nbval.plugin import IPyNbCell, coalesce_streams

from tests.foreground import restore_sigint
from tests.notebooks.wrong_digits import WrongOutputs, wrong_outputs

MOST_IGNORED = 0.15
SUMMARY = "corrupted copy"


class NotNoticedError(Exception):
    """A notebook in which something wrong would pass; the message names each place."""


@dataclass
class Findings:
    """What the wrong copies of one notebook showed."""

    n_cells: int
    n_refused: int = 0
    n_plain_text: int = 0
    n_ignored: int = 0
    problems: list[str] = field(default_factory=list)

    def summary(self, name: str) -> str:
        """One line for the end of the run."""
        return (
            f"{name}: {self.n_refused} corrupted numbers refused; "
            f"{self.n_ignored} of {self.n_cells} code cells not compared; "
            + (f"problems: {len(self.problems)}" if self.problems else "good")
        )


def examine(cells: list[IPyNbCell]) -> Findings:
    """Hold wrong copies of the stored outputs of one notebook's cells against the outputs of their run."""
    findings = Findings(len(cells))
    for cell in cells:
        wrong_copies = list(_wrong_copies(cell)) if _is_compared(cell) else []
        if not _is_compared(cell) or (not wrong_copies and _has_digits(cell)):
            findings.n_ignored += 1
            findings.problems += _missing_reason(cell)
            continue
        findings.n_plain_text += sum(wrong.is_plain_text for wrong in wrong_copies)
        if cell.test_outputs is None:
            findings.problems.append(f"{cell.name} did not run, so nothing can be held against its outputs")
            continue
        accepted = [wrong for wrong in wrong_copies if _is_accepted(cell, wrong)]
        findings.n_refused += len(wrong_copies) - len(accepted)
        findings.problems += [f"{cell.name}: a wrong digit in {wrong.place} passes" for wrong in accepted]
    if findings.n_plain_text == 0:
        findings.problems.append("no number is stored and compared: run the notebook and keep its outputs")
    if findings.n_ignored > MOST_IGNORED * findings.n_cells:
        findings.problems.append(
            f"{findings.n_ignored} of {findings.n_cells} code cells are not compared; at most {MOST_IGNORED:.0%} may be"
        )
    return findings


def _is_compared(cell: IPyNbCell) -> bool:
    """Does nbval compare this cell? Not if it is marked so, nor if it has no execution count: never run."""
    return cell.options["check"] and not cell.options["skip"] and cell.cell.execution_count is not None


def _wrong_copies(cell: IPyNbCell) -> Iterator[WrongOutputs]:
    stored = coalesce_streams(copy.deepcopy(cell.cell.outputs))
    return wrong_outputs(stored, cell.parent.skip_compare, cell.sanitize)


def _has_digits(cell: IPyNbCell) -> bool:
    """Has the cell a number at all? If so, and no wrong copy can be made, the sanitizers hide them all."""
    stored = coalesce_streams(copy.deepcopy(cell.cell.outputs))
    return any(wrong_outputs(stored, cell.parent.skip_compare, lambda text: text))


def _missing_reason(cell: IPyNbCell) -> list[str]:
    reason = cell.cell.metadata.get("tinyshard", {}).get("ignored because", "")
    if isinstance(reason, str) and reason.strip():
        return []
    if cell.cell.execution_count is None:
        return [f"{cell.name} was never run in the stored notebook, so its output is not compared"]
    return [f'{cell.name} is not compared and its metadata has no "tinyshard": {{"ignored because": "…"}}']


def _is_accepted(cell: IPyNbCell, wrong: WrongOutputs) -> bool:
    quiet = copy.copy(cell)
    # The answer is all that is wanted; to write out how two long drawings differ takes seconds.
    quiet.format_output_compare = lambda *texts: None
    return quiet.compare_outputs(cell.test_outputs, wrong.outputs)


class CorruptedCopy(pytest.Item):
    """The test that one notebook gets in addition to its cells."""

    def runtest(self) -> None:
        """Examine the notebook's cells, which ran just before."""
        cells = [item for item in self.session.items if isinstance(item, IPyNbCell) and item.path == self.path]
        findings = examine(cells)
        self.user_properties.append((SUMMARY, findings.summary(self.path.name)))
        if findings.problems:
            raise NotNoticedError("\n".join(findings.problems))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The problems, a line each; the whole traceback of any other error."""
        if isinstance(excinfo.value, NotNoticedError):
            return f"in {self.path.name} something wrong would not be noticed:\n{excinfo.value}"
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Path, None, str]:
        """Where the test stands: in the notebook."""
        return self.path, None, f"{self.path.name}::{self.name}"


class NotebookCopy(pytest.File):
    """A second collector of the same notebook, after nbval's own: so its test runs after the cells."""

    def collect(self) -> Iterator[CorruptedCopy]:
        """The one test."""
        yield CorruptedCopy.from_parent(self, name=SUMMARY)


def pytest_configure(config: pytest.Config) -> None:
    """A run that a shell started in the background interrupts cells all the same."""
    restore_sigint()


@pytest.hookimpl(trylast=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> NotebookCopy | None:
    """Add the test to each notebook that nbval runs."""
    if parent.config.option.nbval and file_path.suffix == ".ipynb":
        return NotebookCopy.from_parent(parent, path=file_path)
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say of each notebook how many wrong numbers were tried and what became of them."""
    reports = [*terminalreporter.getreports("passed"), *terminalreporter.getreports("failed")]
    lines = sorted(line for report in reports for name, line in report.user_properties if name == SUMMARY)
    if lines:
        terminalreporter.section("corrupted copies of the notebooks")
        for line in dict.fromkeys(lines):  # a report for each of a test's phases
            terminalreporter.line(line)
