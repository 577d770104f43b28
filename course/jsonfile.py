"""Small JSON files that outlive a cell that is interrupted, and are read even where they are damaged."""

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["read_dict", "write"]


def read_dict(path: Path) -> dict[str, Any]:
    """What the file holds; empty where it is missing, damaged, or holds something else than a JSON object."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def write(path: Path, value: dict[str, Any]) -> None:
    """Write the whole file, or leave the one that is there: never half of one.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(partial, path)
