"""The plugin itself: green for a good notebook, red for each way in which a wrong number could pass."""

from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest

from tests.notebooks.corrupted import examine

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
REASON = {"tinyshard": {"ignored because": "a timing differs from run to run"}}


def cell(source: str, prints: str = "", count: int | None = 1, metadata: dict[str, Any] | None = None) -> Any:
    """A code cell that stores `prints` as what it wrote to stdout."""
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=prints)] if prints else []
    return nbformat.v4.new_code_cell(source, execution_count=count, outputs=outputs, metadata=metadata or {})


def good(number: int) -> Any:
    return cell(f"print({number})", f"{number}\n")


def ignored(metadata: dict[str, Any]) -> Any:
    return cell(
        "import time; print(time.time())", "1700000000.5\n", metadata={"tags": ["nbval-ignore-output"], **metadata}
    )


# Six good cells: one ignored output in seven is 14 %, two in eight are 25 %.
SIX_GOOD = [good(number) for number in range(10, 16)]
GREEN = {
    "good.ipynb": [
        good(7),
        cell("1 / 0", count=None, metadata={"tags": ["nbval-skip"], **REASON}),
        *SIX_GOOD,
    ],
    "ignored-with-reason.ipynb": [*SIX_GOOD, ignored(REASON)],
    "address-sanitized.ipynb": [*SIX_GOOD, cell("print('at 0x7f00aa and', 5)", "at 0x7f11bb and 5\n")],
}
RED = {
    "wrong-number.ipynb": [good(7), cell("print(21 * 2)", "43\n")],
    "no-outputs.ipynb": [cell("print(7)", count=None)],
    "no-number.ipynb": [cell("print('a word')", "a word\n")],
    "ignored-without-reason.ipynb": [*SIX_GOOD, ignored({})],
    "ignored-too-often.ipynb": [*SIX_GOOD, ignored(REASON), ignored(REASON)],
    "all-sanitized.ipynb": [*SIX_GOOD, cell("print(object())", "<object object at 0x7f11bb22>\n")],
}


def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, notebooks: dict[str, list[Any]]) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for name, cells in notebooks.items():
        nbformat.write(nbformat.v4.new_notebook(cells=cells), str(pytester.path / name))
    sanitize = Path(__file__).with_name("sanitize.cfg")
    return pytester.runpytest_subprocess(
        *("-p", "tests.notebooks.corrupted", "--nbval", "--nbval-current-env", "--color=no", "-rA"),
        f"--nbval-sanitize-with={sanitize}",
    )


@pytest.mark.whole
def test_good_notebooks_are_green_and_the_summary_says_what_was_tried(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, GREEN)
    assert result.ret == 0
    result.stdout.fnmatch_lines_random(
        [
            "good.ipynb: 7 corrupted numbers refused; 1 of 8 code cells not compared; good",
            "ignored-with-reason.ipynb: 6 corrupted numbers refused; 1 of 7 code cells not compared; good",
            "address-sanitized.ipynb: 7 corrupted numbers refused; 0 of 7 code cells not compared; good",
        ]
    )


def test_each_way_in_which_a_wrong_number_could_pass_is_red(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run(pytester, monkeypatch, RED)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        [
            "FAILED wrong-number.ipynb::Cell 1*",
            "FAILED no-outputs.ipynb::corrupted copy*",
            "*no number is stored and compared: run the notebook and keep its outputs",
            "Cell 0 was never run in the stored notebook, so its output is not compared",
            "FAILED no-number.ipynb::corrupted copy*",
            "FAILED ignored-without-reason.ipynb::corrupted copy*",
            'Cell 6 is not compared and its metadata has no "tinyshard": {"ignored because": "…"}',
            "FAILED ignored-too-often.ipynb::corrupted copy*",
            "*2 of 8 code cells are not compared; at most 15% may be",
            "FAILED all-sanitized.ipynb::corrupted copy*",
        ]
    )
    # nbval alone sees nothing wrong in any of them but the first.
    assert "FAILED no-outputs.ipynb::Cell" not in result.stdout.str()
    assert result.parseoutcomes()["failed"] == 6


@pytest.mark.parametrize(
    "test_outputs, problem",
    [
        ([], "Cell 0: a wrong digit in output 0, text passes"),
        (None, "Cell 0 did not run, so nothing can be held against its outputs"),
    ],
)
def test_a_comparison_that_accepts_anything_and_a_cell_that_did_not_run_are_found(
    test_outputs: list[Any] | None, problem: str
) -> None:
    careless = SimpleNamespace(
        name="Cell 0",
        cell=good(7),
        options=defaultdict(bool, check=True),
        parent=SimpleNamespace(skip_compare=("output_type", "name")),
        sanitize=lambda text: text,
        test_outputs=test_outputs,
        compare_outputs=lambda test, ref: True,
    )
    assert examine([careless]).problems == [problem]
