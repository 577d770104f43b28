"""The command line: which commands there are, what they hand on, and how they end."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import course.__main__
import course.commands.lab
import course.commands.listing
import course.lab
import course.lessons
from course.errors import MissingLabError
from course.lab import lab_command, offer_settings
from course.lessons import shipped_folder
from course.predicted import note_choice, read_guesses
from course.progress import Record, note, read_progress
from course.working_copy import refresh

ROOT = Path(__file__).parents[2]


def test_lab_runs_this_python_and_the_users_arguments_come_last() -> None:
    command = lab_command(Path("/lessons"), ["--no-browser"])
    assert command[:3] == [sys.executable, "-m", "jupyterlab"]
    assert "--ServerApp.root_dir=/lessons" in command
    assert "--LabApp.default_url=/lab/tree/START.md" in command
    assert command[-1] == "--no-browser"


@pytest.mark.parametrize("user_id, is_expected", [(0, True), (1000, False)])
def test_root_alone_is_let_in_as_root(monkeypatch: pytest.MonkeyPatch, user_id: int, is_expected: bool) -> None:
    monkeypatch.setattr("os.geteuid", lambda: user_id, raising=False)
    assert ("--allow-root" in lab_command(Path("/lessons"), [])) is is_expected


def test_in_a_codespace_jupyterlab_answers_its_own_pages_and_no_others() -> None:
    told = {"CODESPACE_NAME": "fuzzy-space-x4", "GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN": "app.github.dev"}
    (word,) = [word for word in lab_command(Path("/lessons"), [], told) if "allow_origin" in word]
    name, _, pattern = word.partition("=")
    assert name == "--ServerApp.allow_origin_pat"
    assert re.match(pattern, "https://fuzzy-space-x4-8888.app.github.dev")
    assert not re.match(pattern, "https://other-space-8888.app.github.dev")
    assert not re.match(pattern, "https://fuzzy-space-x4-8888.app.github.dev.elsewhere.org")
    assert not any("allow_origin" in word for word in lab_command(Path("/lessons"), [], {}))


def test_without_jupyterlab_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course.lab.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingLabError, match=r"pip install 'tinyshard\[course\]'"):
        lab_command(Path("/lessons"), [])


def test_lab_hands_options_on_and_becomes_jupyterlab(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started = []
    monkeypatch.setattr(course.commands.lab, "shipped_folder", lambda: tmp_path)
    monkeypatch.setattr(course.commands.lab, "working_folder", lambda named: tmp_path / "my-lessons")
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "")
    monkeypatch.setattr("os.execv", lambda program, words: started.append((program, words)))
    course.__main__.main(["lab", "--no-browser", "--port=8900", "--debug"])
    ((program, words),) = started
    assert program == sys.executable
    assert words[-3:] == ["--no-browser", "--port=8900", "--debug"]


def test_the_courses_settings_come_behind_the_users(tmp_path: Path) -> None:
    environment = {"JUPYTER_CONFIG_PATH": str(tmp_path)}
    offer_settings(environment)
    users, ours = environment["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert users == str(tmp_path)
    assert (Path(ours) / "labconfig/page_config.json").is_file()
    assert (Path(ours) / "labconfig/default_setting_overrides.json").is_file()


def test_a_terminal_of_jupyterlab_finds_the_command_of_this_python(tmp_path: Path) -> None:
    environment = {"PATH": str(tmp_path)}
    offer_settings(environment)
    assert environment["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), str(tmp_path)]


def test_help_tells_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        course.__main__.main(["--help"])
    assert end.value.code == 0
    printed = capsys.readouterr().out
    assert all(f"    {command.name} " in printed for command in course.__main__.COMMANDS)


def test_help_of_lab_tells_that_other_arguments_go_to_jupyterlab(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        course.__main__.main(["lab", "--help"])
    assert "go on to JupyterLab, such as --no-browser" in " ".join(capsys.readouterr().out.split())


def test_a_reader_that_has_read_enough_gets_no_traceback() -> None:
    code = "import course.__main__, sys; sys.exit(course.__main__.main(['list']))"
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, stdout=writes, stderr=subprocess.PIPE, text=True)
    os.close(writes)
    assert (done.returncode, done.stderr) == (1, "")


def test_list_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        course.__main__.main(["list", "--no-browser"])
    assert "unrecognized arguments: --no-browser" in capsys.readouterr().err


def test_missing_lessons_end_with_a_message_not_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(course.commands.listing, "shipped_folder", lambda: course.lessons.shipped_folder(tmp_path))
    assert course.__main__.main(["list"]) == 1
    assert capsys.readouterr().err.startswith("the lessons are not here\n")


def test_commands_start_without_torch_so_that_the_doctor_can_say_what_is_wrong_with_it() -> None:
    code = "import course.__main__, sys; print('torch' in sys.modules, 'tinyshard' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def test_reset_refuses_a_folder_that_is_not_a_working_copy(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert course.__main__.main(["reset", "3", "--folder", str(tmp_path / "none")]) == 1
    told = capsys.readouterr().err
    assert told.startswith("there is no working copy here\n") and f"{tmp_path / 'none'}, which" in told
    assert not (tmp_path / "none").exists()


def test_reset_forgets_predictions_and_wrong_answers_of_its_lesson_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refresh(shipped_folder(), tmp_path)
    for id in ("03.1", "03.2", "04.1"):
        note(tmp_path, id, is_passed=False)
    note(tmp_path, "03.2", is_passed=True)
    for id in ("03.a", "04.a"):
        note_choice(tmp_path, id, "b")
    assert course.__main__.main(["reset", "3", "--folder", str(tmp_path)]) == 0
    assert read_progress(tmp_path) == {"03.1": Record(), "03.2": Record(is_passed=True), "04.1": Record(wrong=1)}
    assert list(read_guesses(tmp_path)) == ["04.a"]
    assert capsys.readouterr().out.splitlines()[-1] == f"the working copy is {tmp_path}"
