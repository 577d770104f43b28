"""Which lines are the user's, by the name of their file; and the IPython shell of the user's notebook."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from types import FrameType
from typing import Any

import torch

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
COURSE = str(Path(PACKAGE).with_name("course")) + os.sep  # in a clone and in an installation
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
LIBRARIES = (*(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen ")


def is_users(frame: FrameType) -> bool:
    """Whether a line is the user's, or of a library that the user calls."""
    caller: FrameType | None = frame
    while caller is not None:
        file = caller.f_code.co_filename
        # code that torch generates while it traces is in "<string>"; so is a program of `python -c`
        is_generated = file == "<string>" and caller.f_globals.get("__name__") != "__main__"
        if is_generated or file.startswith((PACKAGE, TORCH, "<eval_with_key>")):
            return False
        if not file.startswith(LIBRARIES):
            return True
        caller = caller.f_back
    return False


def ipython_shell() -> Any:
    """The IPython shell that this process runs in, of a notebook or of a terminal; None if there is none."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


def can_ask() -> bool:
    """Whether a user reads this notebook as it runs; nbval and nbclient, which cannot prompt for input, are not one."""
    return bool(getattr(getattr(ipython_shell(), "kernel", None), "_allow_stdin", False))
