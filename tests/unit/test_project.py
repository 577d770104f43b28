"""The files around the code agree with each other and name nothing that only one machine has."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tinyshard
from tests.rows import for_every_row

ROOT = Path(__file__).parents[2]

# conda's names of pip's packages
CONDA_NAMES = {"pytorch": "torch", "pytorch-cpu": "torch", "playwright-python": "playwright"}

# Where packages come from is for each machine's own settings to say. No pattern here matches itself.
PRIVATE = {
    "a package registry": r"index[-_]url|find[-_]links|--trusted[-_]host|pypi[.]org|pythonhosted[.]org"
    r"|download[.]pytorch[.]org|(?:repo|conda)[.]anaconda[.]",
    "a path of one machine": r"(?<![\w.])/(?:root|home|Users)/\w",
}


def requirements_of(words: list[str]) -> dict[str, set[str]]:
    """["torch>=2.13,<2.14"] → {"torch": {">=2.13", "<2.14"}}; conda's names are told as pip's."""
    found = {}
    for word in words:
        name, bounds = re.fullmatch(r"([A-Za-z0-9_-]+)(.*)", word).groups()
        found[CONDA_NAMES.get(name, name)] = set(bounds.split(",")) - {""}
    return found


def project_files() -> list[Path]:
    """What git holds, and what it would take in next."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    # safe.directory: in a container the checkout may belong to another user.
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [ROOT / name for name in names.split("\0") if name and (ROOT / name).is_file()]


@pytest.mark.parametrize(
    "file, wanted, python",
    [("environment.yml", ("course", "test"), ">=3.11"), ("binder/environment.yml", ("course",), "=3.12")],
)
def test_conda_and_pip_have_the_same_needs(file: str, wanted: tuple[str, ...], python: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    assert project["requires-python"] == ">=3.11"
    for_pip = [
        "python" + python,
        *project["dependencies"],
        *(need for extra in wanted for need in extras[extra]),
    ]
    for_conda = re.findall(r"^  - ([^:\n]+)$", (ROOT / file).read_text(), flags=re.MULTILINE)
    for_conda = [word for word in for_conda if word not in ("conda-forge", "pip")]
    assert requirements_of(for_conda) == requirements_of(for_pip)


def test_torch_is_pinned_to_one_minor_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert requirements_of(project["dependencies"])["torch"] == {">=2.13", "<2.14"}


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in project_files():
        text = path.read_text("utf-8", errors="replace")
        for what, pattern in PRIVATE.items():
            found += [f"{path.relative_to(ROOT)}: {what}: {match}" for match in re.findall(pattern, text)]
    assert not found, "\n".join(found)


@for_every_row(["make lab", "make test"])
def test_the_readme_names_the_command(command: str) -> None:
    assert command in (ROOT / "README.md").read_text("utf-8")


def test_the_licence_is_the_three_clause_bsd_one() -> None:
    licence = (ROOT / "LICENSE").read_text("utf-8")
    assert licence.startswith("BSD 3-Clause License\n\nCopyright (c) 2026, the tinyshard authors\n")
    assert re.findall(r"^(\d)\. ", licence, flags=re.MULTILINE) == ["1", "2", "3"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["license"] == "BSD-3-Clause"


def test_every_file_that_names_the_version_names_the_same_one() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert tinyshard.__version__ == version
    assert re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE) == [version]
    assert re.findall(r"^## (\S+)$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[0] == version


def test_the_projects_addresses_are_those_of_pyproject() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    assert all(each.startswith(urls["Homepage"]) for each in urls.values())
    for name in ("CITATION.cff", ".github/ISSUE_TEMPLATE/config.yml"):
        found = re.findall(r"https://[^\s\"]+", (ROOT / name).read_text("utf-8"))
        assert found
        assert set(found) <= set(urls.values())


def test_a_release_is_tested_as_a_wheel_and_published_without_a_password() -> None:
    workflow = (ROOT / ".github/workflows/release.yml").read_text("utf-8")
    build, publish = workflow.split("  publish:")
    assert "run: make wheel" in build
    assert "needs: build" in publish
    assert "id-token: write" in publish
    assert "id-token" not in build
    assert "password" not in publish


def test_contributing_stays_under_sixty_lines() -> None:
    text, _, _ = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("## Example")
    assert len(text.splitlines()) < 60


def test_every_command_of_contributing_is_one_that_make_knows() -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    targets = {name for line in re.findall(r"^([a-z -]+):", makefile, flags=re.MULTILINE) for name in line.split()}
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text("utf-8")))
    assert named
    assert named <= targets


def test_binder_makes_the_working_copy_and_has_the_settings_of_the_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = ROOT / "binder/postBuild"
    assert script.stat().st_mode & 0o100
    copying, settings = re.findall(r"python -c '(.*?)'", script.read_text("utf-8"), flags=re.DOTALL)
    imports, call = copying.rsplit("\n", 1)
    names: dict[str, object] = {}
    exec(imports, names)
    assert callable(names["refresh"])
    assert call == "refresh(shipped_folder(), working_folder())"
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    exec(settings, {})
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert {
        "share/jupyter/labextensions/tinyshard-lab/package.json",
        "share/jupyter/labextensions/tinyshard-lab/static/lab.js",
        "etc/jupyter/labconfig/default_setting_overrides.json",
    } <= found


def test_the_devcontainer_uses_what_make_knows() -> None:
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text("utf-8"))
    target = container["postCreateCommand"].removeprefix("make ")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text("utf-8"), flags=re.MULTILINE)


def test_the_workflow_runs_what_ci_runs_everywhere() -> None:
    """`make test` for each push, `make test-all` at night."""
    workflow = (ROOT / ".github/workflows/ci.yml").read_text("utf-8")
    assert "run: .ci/run ${{" in workflow
    assert "schedule:" in workflow
    assert "'test' || 'test-all'" in workflow
    script = ROOT / ".ci/run"
    assert 'make "${1:-test}"' in script.read_text("utf-8")
    assert script.stat().st_mode & 0o100


def test_what_ci_runs_goes_on_where_there_is_no_apt_get(tmp_path: Path) -> None:
    """As on macOS: without ip and Chromium, whose tests are skipped."""
    for name in ("bash", "dirname", "uname"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    (tmp_path / "make").write_text("#!/bin/sh\necho ran make $*\n")
    (tmp_path / "make").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    environment = {"PATH": str(tmp_path), "PYTHON": str(tmp_path / "python")}
    done = subprocess.run(
        [str(tmp_path / "bash"), ".ci/run"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "chromium cannot be installed here" in done.stdout
    *_, ran, took = done.stdout.splitlines()
    assert ran == f"ran make test PYTHON={tmp_path}/python"
    assert took.startswith("== .ci/run took 0 min")
