"""A folder that is replaced atomically: a reader finds the old one or the new one, even if a process is killed.

The new one is written beside it, and takes its name in one step: Linux and macOS can swap two names. If a file
system cannot, the old one is first renamed; if the process is killed between the two steps, it keeps that name.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tinyshard.core.errors import FileError

_number = itertools.count(1)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # Linux
_RENAME_SWAP = 2  # macOS


@contextlib.contextmanager
def replacing(folder: Path, is_own: Callable[[Path], bool]) -> Iterator[Path]:
    """An empty folder, which replaces `folder` at the end of the block; not if the block raises.

    Args:
        folder: need not exist; its parents are made.
        is_own: whether a file may be deleted; a folder with any other file is not replaced.

    Raises:
        FileError: `folder` contains other files, or is a file; or the operating system refused.
    """
    folder = Path(os.path.realpath(folder))
    _check_replaceable(folder, is_own)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _drop_remains(folder)
        new = folder.parent / f".{folder.name}.saving-{socket.gethostname()}-{os.getpid()}-{next(_number)}"
        new.mkdir()
    except OSError as error:
        raise _refused(folder, error) from error
    try:
        yield new
        sync(new)
        take_place(new, folder)
    except OSError as error:
        raise error if isinstance(error, FileError) else _refused(folder, error) from error
    finally:
        shutil.rmtree(new, ignore_errors=True)  # after an exchange it is the old one


def take_place(new: Path, folder: Path) -> None:
    """Give a folder the name of another one; if that exists, it then has the first one's name, or is deleted."""
    if not folder.exists():
        os.rename(new, folder)
    elif not exchanged(new, folder):
        os.rename(folder, before(folder))
        os.rename(new, folder)
        shutil.rmtree(before(folder), ignore_errors=True)
    sync(folder.parent)


def exchanged(a: Path, b: Path) -> bool:
    """Swap two names in one step; False if the system or the file system cannot."""
    names = os.fsencode(a), os.fsencode(b)
    if sys.platform == "linux" and hasattr(libc := ctypes.CDLL(None), "renameat2"):
        return bool(libc.renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0)
    if sys.platform == "darwin" and hasattr(libc := ctypes.CDLL(None), "renamex_np"):
        return bool(libc.renamex_np(*names, _RENAME_SWAP) == 0)
    return False


def before(folder: Path) -> Path:
    """The name of the old folder between two renames."""
    return folder.parent / f".{folder.name}.before"


def present(folder: Path) -> Path:
    """The path of the folder: its name, or, after a kill between two renames, the other one."""
    folder = Path(os.path.realpath(folder))
    return before(folder) if not folder.exists() and before(folder).exists() else folder


def sync(folder: Path) -> None:
    """Flush the names in a folder to disk, where the system can."""
    with contextlib.suppress(OSError):
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _drop_remains(folder: Path) -> None:
    """Delete leftovers of killed processes of this machine, once the folder itself exists."""
    if folder.exists():
        shutil.rmtree(before(folder), ignore_errors=True)
    elif before(folder).exists():
        os.rename(before(folder), folder)
    own = f".{folder.name}.saving-{socket.gethostname()}-"
    for remains in folder.parent.glob(f"{_literal(own)}*"):
        pid = remains.name.removeprefix(own).partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(remains, ignore_errors=True)


def _literal(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _is_alive(pid: int) -> bool:
    if sys.platform == "win32":  # there signal 0 is Ctrl-C
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return True


def _check_replaceable(folder: Path, is_own: Callable[[Path], bool]) -> None:
    others = [folder] if folder.is_file() else []
    if folder.is_dir():
        others = [path for path in sorted(folder.iterdir()) if not is_own(path)]
    if others:
        raise FileError(
            "the folder holds other files than those of a saved tree",
            got=f"{others[0]}" + (f" and {len(others) - 1} more" if len(others) > 1 else ""),
            rule="saving replaces the folder as a whole: it must be new, empty, or one that was saved before",
            try_=f"{str(folder / 'saved')!r}, a folder of its own",
        )


def _refused(folder: Path, error: OSError) -> FileError:
    return FileError(
        "the system does not let the folder be written",
        got=f"{folder}: {error}",
        rule="the new folder is made beside the old one, and then takes its name; what was there before is whole",
        try_="a folder that this process may write to, with room on its disk",
    )
