"""Whose code a line is in, by the name of its file: what does not begin so is the user's."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import torch

PACKAGE = str(Path(__file__).resolve().parents[1]) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
LIBRARIES = (*(sysconfig.get_paths()[name] + os.sep for name in ("stdlib", "purelib", "platlib")), "<frozen ")
