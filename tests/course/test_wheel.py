"""A wheel in an empty environment and an empty folder: its command needs no clone, and lesson 00 runs there."""

import contextlib
import faulthandler
import json
import os
import secrets
import subprocess
import sys
import time
import urllib.error
import urllib.request
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from course.lessons import find_lessons, shipped_folder

ROOT = Path(__file__).parents[2]
MOST_BYTES = 3_000_000
# torch alone is installed in a minute or in ten, by the network and the disk
INSTALLING_S, RUNNING_S = 1500, 280

pytestmark = pytest.mark.whole


@dataclass(frozen=True)
class Installation:
    """An environment that holds the wheel and nothing of the clone.

    Attributes:
        bin: its folder of commands.
        here: an empty folder, in which the commands are run.
    """

    bin: Path
    here: Path

    def environment(self) -> dict[str, str]:
        told = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TINYSHARD_RUNTIME")}
        return {**told, "JUPYTER_RUNTIME_DIR": str(self.here / ".runtime"), "IPYTHONDIR": str(self.here / ".ipython")}

    def run(self, command: str, *words: str) -> str:
        """What a command prints, which must end well."""
        done = subprocess.run(
            [self.bin / command, *words],
            cwd=self.here,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=RUNNING_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(command, check=True, timeout=RUNNING_S)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    faulthandler.cancel_dump_traceback_later()  # the limit of a test, which an installation may exceed; it has its own
    folder, here = tmp_path_factory.mktemp("environment"), tmp_path_factory.mktemp("here")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=RUNNING_S)
    bin = folder / ("Scripts" if os.name == "nt" else "bin")
    command = [bin / "python", "-m", "pip", "install", "--quiet", f"{wheel}[course]"]
    subprocess.run(command, check=True, cwd=here, timeout=INSTALLING_S)
    return Installation(bin, here)


@pytest.fixture(scope="module")
def working(installed: Installation) -> Path:
    """The copy that `tinyshard lab` makes, after its JupyterLab has listed it and ended."""
    token = secrets.token_hex(16)
    command = [installed.bin / "tinyshard", "lab", "--no-browser", "--port=0", f"--IdentityProvider.token={token}"]
    with (installed.here / "lab.log").open("wb") as log:
        lab = subprocess.Popen(
            command, cwd=installed.here, env=installed.environment(), stdout=log, stderr=subprocess.STDOUT
        )
    try:
        listed = {each["name"] for each in _contents(lab, installed.here, token)}
    finally:
        lab.terminate()
        lab.wait(timeout=60)
    assert {lesson.path.name for lesson in find_lessons(shipped_folder())} <= listed
    return installed.here / "my-lessons"


def _contents(lab: subprocess.Popen[bytes], here: Path, token: str) -> list[dict[str, Any]]:
    """What JupyterLab lists, once it answers; its address is in a file that it writes before it listens there."""
    end_s = time.monotonic() + RUNNING_S
    while True:
        for found in (here / ".runtime").glob("jpserver-*.json"):
            with contextlib.suppress(ValueError, urllib.error.URLError):  # half written; not yet listening
                url = json.loads(found.read_text("utf-8"))["url"]
                with urllib.request.urlopen(f"{url}api/contents?token={token}", timeout=60) as answer:
                    return json.load(answer)["content"]
        log = (here / "lab.log").read_text("utf-8")
        assert lab.poll() is None, log
        assert time.monotonic() < end_s, log
        time.sleep(0.05)


OURS = {"__pycache__", ".ipynb_checkpoints", ".ruff_cache", ".ruff.toml"}  # what only a clone has


def test_the_wheel_is_small_and_holds_the_lessons_and_all_that_they_read(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
    folders = {"notebooks": "course/notebooks", "course": "course", "tinyshard": "tinyshard"}
    wanted = {
        f"{inside}/{path.relative_to(ROOT / folder).as_posix()}"
        for folder, inside in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and not OURS & set(path.parts)
    }
    assert wanted - names == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tinyshard", "course"}
    assert wheel.stat().st_size < MOST_BYTES


def test_the_command_lists_the_lessons_and_the_doctor_lets_them_run(installed: Installation) -> None:
    listed = installed.run("tinyshard", "list")
    assert all(f"{lesson.number}  {lesson.title}" in listed for lesson in find_lessons(shipped_folder()))
    assert "The lessons run here" in installed.run("tinyshard", "doctor")
    assert not (installed.here / "my-lessons").exists()


def test_lesson_00_runs_in_the_copy_that_lab_has_made(installed: Installation, working: Path) -> None:
    (lesson,) = working.glob("00-*.ipynb")
    installed.run("jupyter", "execute", "--inplace", "--timeout=120", str(lesson))
    cells = [cell for cell in json.loads(lesson.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells if "".join(cell["source"]).strip())
    where = "import course, tinyshard; print(course.__file__, tinyshard.__file__)"
    assert str(ROOT) not in installed.run("python", "-c", where)


def test_progress_and_reset_know_the_copy(installed: Installation, working: Path) -> None:
    assert "exercises passed" in installed.run("tinyshard", "progress")
    (lesson,) = working.glob("01-*.ipynb")
    lesson.write_text("mine", "utf-8")
    assert "yours is kept as" in installed.run("tinyshard", "reset", "1", "--folder", str(working))
    assert json.loads(lesson.read_text("utf-8"))["cells"]


def test_a_handout_is_made_without_a_clone(installed: Installation) -> None:
    installed.run("tinyshard", "handout", "given")
    given = {path.name for path in (installed.here / "given").iterdir()}
    assert {"course", "tinyshard", "requirements.txt", "LICENSE", "README.md"} <= given
    assert "BSD 3-Clause" in (installed.here / "given/LICENSE").read_text("utf-8")
    assert not (installed.here / "given/course/notebooks").exists()
