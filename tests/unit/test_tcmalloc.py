"""Where devices find tcmalloc, and what happens if it cannot be loaded."""

import sys
from pathlib import Path

import pytest

from tinyshard.runtime.launch import forkserver


@pytest.fixture
def condas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of libraries of a Python of conda, whose path has a space in it."""
    prefix = tmp_path / "a folder"
    for name in ("conda-meta", "lib"):
        (prefix / name).mkdir(parents=True)
    (tmp_path / "conda").symlink_to(prefix)
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path / "conda"))
    return tmp_path / "conda" / "lib"


@pytest.mark.parametrize("name", ["libtcmalloc_minimal.so.4", "libtcmalloc.so.4"])
def test_condas_python_gets_condas(name: str, condas: Path) -> None:
    (condas / name).touch()
    assert forkserver.allocator()["LD_PRELOAD"] == str(condas / name)


@pytest.mark.usefixtures("condas")
def test_condas_python_gets_none_of_the_systems_libraries() -> None:
    assert forkserver.allocator() == {}


def test_a_path_that_would_be_several_is_not_taken(condas: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (condas / "libtcmalloc_minimal.so.4").touch()
    monkeypatch.setattr(sys, "base_prefix", str(condas.parent.resolve()))
    assert forkserver.allocator() == {}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no workers")
def test_workers_start_without_it_where_it_ends_their_python(monkeypatch: pytest.MonkeyPatch) -> None:
    forkserver.stop()
    monkeypatch.setattr(forkserver, "allocator", lambda: {"PYTHONHOME": "/there/is/none"})  # ends any Python
    server = forkserver.ForkServer()
    try:
        server.wait_until_ready()
        assert server.is_alive
    finally:
        server.close()
