"""The handout: lessons without outputs, what they import beside them, and no answers."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from course.errors import HandoutError
from course.handout import hand_out
from course.lessons import find_lessons, shipped_folder


@pytest.fixture(scope="module")
def handout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given") / "handout"
    hand_out(folder)
    return folder


def code_cells(lesson: Path) -> list[dict]:
    return [cell for cell in json.loads(lesson.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]


def test_every_lesson_is_there_with_its_cells_and_without_outputs(handout: Path) -> None:
    shipped, given = find_lessons(shipped_folder()), find_lessons(handout)
    assert [each.path.name for each in given] == [each.path.name for each in shipped]
    for before, after in zip(shipped, given, strict=True):
        assert any(cell["outputs"] for cell in code_cells(before.path))
        assert [cell["source"] for cell in code_cells(after.path)] == [
            cell["source"] for cell in code_cells(before.path)
        ]
        assert not any(cell["outputs"] or cell["execution_count"] for cell in code_cells(after.path))


def test_answers_and_the_instructors_pages_stay_behind(handout: Path) -> None:
    given = {path.relative_to(handout).as_posix() for path in handout.rglob("*") if path.is_file()}
    assert not [path for path in given if "solutions" in path or "instructor" in path or "__pycache__" in path]
    assert "tinyshard/__init__.py" in given
    assert "course/__init__.py" in given


@pytest.mark.whole
def test_whatever_a_lesson_imports_of_the_course_is_there_and_needs_nothing_that_stayed_behind(handout: Path) -> None:
    wanted = {"tinyshard", "course"}
    for lesson in find_lessons(handout):
        for cell in code_cells(lesson.path):
            source = "".join(line for line in cell["source"] if not line.lstrip().startswith(("%", "!")))
            for node in ast.walk(ast.parse(source)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course"):
                    wanted |= {f"{node.module}:{alias.name}" for alias in node.names}
    code = "import importlib, sys\nsys.path.insert(0, '')\n"
    for each in sorted(wanted):
        module, _, name = each.partition(":")
        code += f"module = importlib.import_module({module!r})\n"
        code += f"getattr(module, {name!r}, None) or importlib.import_module({module + '.' + name!r})\n" if name else ""
        code += "print(module.__file__)\n"
    done = subprocess.run([sys.executable, "-I", "-c", code], cwd=handout, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert all(Path(line).is_relative_to(handout) for line in done.stdout.splitlines())


def test_the_needs_are_those_of_the_project_but_for_the_hubs_own(handout: Path) -> None:
    needs = (handout / "requirements.txt").read_text("utf-8").splitlines()
    assert "torch<2.14,>=2.13" in needs
    assert not any(need.startswith(("pytest", "ruff")) for need in needs)
    assert any(need.startswith("ipywidgets") for need in needs)
    assert not any(need.startswith("jupyterlab") for need in needs)


def test_its_page_lists_every_lesson(handout: Path) -> None:
    page = (handout / "README.md").read_text("utf-8")
    assert all(f"({lesson.path.name})" in page for lesson in find_lessons(handout))


def test_nothing_is_written_into_a_folder_that_holds_something(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HandoutError, match="nothing is written over"):
        hand_out(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
