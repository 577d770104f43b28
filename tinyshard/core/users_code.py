"""Whose code a line is in, by the name of its file: what does not begin so is the user's; and the user's notebook."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import torch

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
LIBRARIES = (*(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen ")


def ipython_shell() -> Any:
    """The IPython shell that this process runs in, of a notebook or of a terminal; None if there is none."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
