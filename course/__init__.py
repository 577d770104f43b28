"""The workshop kit around tinyshard: the lessons, the commands that open and list them, and `check` for exercises.

Start with `python -m course lab`, or from a fresh clone with `make lab`.
"""

from course.checking import check

__all__ = ["check"]
