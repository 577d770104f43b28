"""The room check: figures of machines, good and bad, and what is said of them."""

import argparse
import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import course.commands.doctor
from course.doctor import machine, software
from course.doctor.finding import Finding, State, summary

GIB = 2**30


def test_one_core_is_weak_and_two_are_good() -> None:
    assert machine.judge_cores(1).state is State.WEAK
    assert machine.judge_cores(1).remedy
    assert machine.judge_cores(2).state is State.GOOD


@pytest.mark.parametrize(
    "free_bytes, expected",
    [(None, State.WEAK), (GIB // 2, State.FATAL), (GIB, State.WEAK), (2 * GIB, State.GOOD)],
)
def test_memory_is_judged_against_what_the_lessons_take(free_bytes: int | None, expected: State) -> None:
    finding = machine.judge_memory(free_bytes)
    assert finding.state is expected
    assert bool(finding.remedy) is (expected is not State.GOOD)


def linux(root: Path, available_kib: int, **groups: str) -> Path:
    """A machine's account of its memory, as files."""
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable:    {available_kib} kB\n")
    for name, text in groups.items():
        path = root / "sys/fs/cgroup" / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_free_memory_is_the_systems_where_no_container_limits_it(tmp_path: Path) -> None:
    root = linux(tmp_path, 1000, memory_dot_max="max\n", memory_dot_current="12\n")
    assert machine.available_bytes(root) == 1024000


def test_free_memory_is_what_the_container_has_left(tmp_path: Path) -> None:
    root = linux(tmp_path, 1000, memory_dot_max="5000\n", memory_dot_current="2000\n")
    assert machine.available_bytes(root) == 3000


def test_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    older = {"memory__memory_dot_limit_in_bytes": "700\n", "memory__memory_dot_usage_in_bytes": "900\n"}
    assert machine.available_bytes(linux(tmp_path, 1000, **older)) == 0


def test_a_machine_that_says_nothing_of_its_memory_is_no_reason_to_stop(tmp_path: Path) -> None:
    assert machine.available_bytes(tmp_path) is None


def test_little_shared_memory_stops_nothing(tmp_path: Path) -> None:
    assert machine.judge_shared_memory(2**20).state is State.GOOD
    assert machine.look_at_shared_memory(tmp_path / "none").found.startswith("none")


def test_a_taken_port_is_told_and_the_loopback_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("http_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        monkeypatch.setattr(machine, "LAB_PORT", listening.getsockname()[1])
        finding = machine.look_at_loopback()
    assert finding.state is State.GOOD
    assert "taken" in finding.found


def test_a_proxy_for_all_addresses_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.delenv("no_proxy", raising=False)
    assert "no_proxy" in machine.look_at_loopback().remedy


def test_an_unreachable_loopback_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise PermissionError("not in this sandbox")

    monkeypatch.setattr(machine.socket, "create_connection", refuse)
    finding = machine.look_at_loopback()
    assert finding.state is State.FATAL
    assert "not in this sandbox" in finding.found


def test_torch_is_found_with_its_version() -> None:
    finding = software.look_at_torch()
    assert finding.state is State.GOOD
    assert finding.found.startswith("2.13")


def test_an_extra_whose_name_begins_like_torch_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = ["torch<2.14,>=2.13", "torchmonarch==0.7.0; extra == 'monarch'", "torch-xla>=9; extra == 'xla'"]
    monkeypatch.setattr(software.importlib.metadata, "requires", lambda name: needed)
    assert software.look_at_torch().state is State.GOOD


def test_a_torch_of_another_version_is_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.importlib.metadata, "requires", lambda name: ["numpy>=2", "torch<2.13,>=2.12"])
    finding = software.look_at_torch()
    assert finding.state is State.FATAL
    assert "torch<2.13,>=2.12" in finding.found


def test_the_program_that_starts_two_devices_adds_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    """Here with devices in this process, which saves loading torch twice."""
    assert 'runtime="process"' in software.START_DEVICES
    exec(software.START_DEVICES.replace('runtime="process"', 'runtime="local"'), {})
    assert float(capsys.readouterr().out) >= 0


def test_devices_that_answer_are_good_with_the_seconds_that_they_took(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "START_DEVICES", "print('0.7')")
    finding = software.look_at_devices()
    assert finding.state is State.GOOD
    assert "added numbers, 0.7 s after the start" in finding.found


@pytest.mark.whole
def test_two_devices_are_started_and_answer() -> None:
    assert software.look_at_devices().state is State.GOOD


def test_devices_that_cannot_start_are_fatal_with_the_last_line_of_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "START_DEVICES", "raise SystemExit('no room for a process')")
    finding = software.look_at_devices()
    assert finding.state is State.FATAL
    assert "no room for a process" in finding.found


def test_devices_that_do_not_answer_are_fatal(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object, **options: object) -> None:
        raise subprocess.TimeoutExpired("python", 1)

    monkeypatch.setattr(software.subprocess, "run", never)
    assert software.look_at_devices().state is State.FATAL


def test_the_kernel_is_this_python() -> None:
    finding = software.look_at_kernel()
    assert finding.state is State.GOOD, finding
    assert sys.executable in finding.found


def test_a_kernel_without_tinyshard_is_fatal_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "ASK_KERNEL", "import no_such_package")
    finding = software.look_at_kernel()
    assert finding.state is State.FATAL
    assert "no_such_package" in finding.found


def test_widgets_fit_in_this_environment() -> None:
    assert software.look_at_widgets().state is State.GOOD


@pytest.mark.parametrize(
    "unmet, manager, expected, words",
    [
        ([], {"version": "5.0.16", "folder": "/here"}, State.GOOD, ""),
        (["jupyterlab_widgets~=3.0.17"], {"version": "5.0.9", "folder": "/here"}, State.WEAK, "upgrade ipywidgets"),
        ([], {"version": "3.1.1", "folder": "/old"}, State.FATAL, "remove /old"),
        ([], None, State.FATAL, "jupyterlab_widgets"),
    ],
)
def test_both_sides_of_widgets_are_compared(
    unmet: list[str], manager: dict[str, str] | None, expected: State, words: str
) -> None:
    finding = software.judge_widgets("8.1.9", unmet, manager)
    assert finding.state is expected
    assert words in finding.remedy


def test_the_extension_that_jupyterlab_finds_first_counts(tmp_path: Path) -> None:
    for folder, version in (("hidden", "5.0.16"), ("first", "3.1.1")):
        file = tmp_path / folder / software.MANAGER
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"version": version}))
    found = software.widget_manager([tmp_path / "none", tmp_path / "first", tmp_path / "hidden"])
    assert found == {"version": "3.1.1", "folder": str(tmp_path / "first")}
    assert software.widget_manager([tmp_path / "none"]) is None


@pytest.mark.parametrize("state, status", [(State.GOOD, 0), (State.WEAK, 0), (State.FATAL, 1)])
def test_only_what_stops_the_lessons_ends_the_command_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], state: State, status: int
) -> None:
    look = lambda: Finding("memory", state, "as found", "what to do")  # noqa: E731
    monkeypatch.setattr(course.commands.doctor, "LOOKS", ((look, "seconds"),))
    assert course.commands.doctor.examine(argparse.Namespace()) == status
    printed = capsys.readouterr().out
    assert "→ what to do" in printed
    assert printed.index("…     seconds") < printed.index("as found")


def test_what_takes_seconds_comes_last_and_says_so() -> None:
    slow = [bool(meanwhile) for _, meanwhile in course.commands.doctor.LOOKS]
    assert slow == sorted(slow)
    assert [look for look, meanwhile in course.commands.doctor.LOOKS if meanwhile] == [
        software.look_at_kernel,
        software.look_at_devices,
    ]


def test_what_is_to_be_mended_is_counted() -> None:
    findings = [Finding("a", State.FATAL, ""), Finding("b", State.FATAL, ""), Finding("c", State.WEAK, "")]
    assert summary(findings) == "The lessons do not run here yet: 2 things to fix, marked STOP."
