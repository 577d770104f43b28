"""The workshop kit around tinyshard: the lessons, the commands that open and list them, `check` for
exercises, `predict` and `explain` for what a learner expects of a cell.

Start with `tinyshard lab`, or from a fresh clone with `make lab`.
"""

from course.checking import check
from course.predicting import explain, predict

__all__ = ["check", "explain", "predict"]
