"""Hearing that a cell of a notebook was interrupted, wherever Ctrl-C struck, be it in the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tinyshard.runtime.controller.lineage import Where, users_line_of


def after_interrupted_cells(call: Callable[[Where], None]) -> Callable[[], None]:
    """Call `call` with the interrupted line of every cell that Ctrl-C ended, before IPython shows the traceback.

    To show it takes processor time, half a second where it leads through libraries; and as long as nobody has cancelled
    what is queued, every device competes for the processors. IPython has no event so early: post_run_cell is after it.

    Returns:
        A function that ends this. Outside of IPython neither does anything.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return lambda: None
    show = shell.showtraceback
    is_ended = False

    def hear_and_show(*args: Any, **options: Any) -> None:
        error = sys.exc_info()[1]
        if isinstance(error, KeyboardInterrupt) and not is_ended:
            # between two statements of a cell IPython compiles the next one: no line of the cell runs then
            call(users_line_of(error) or Where(f"In[{shell.execution_count}]", 0))
        show(*args, **options)

    shell.showtraceback = hear_and_show

    def end() -> None:
        nonlocal is_ended
        is_ended = True  # somebody may have put his own around it since, and it must stay
        if shell.showtraceback is hear_and_show:
            shell.showtraceback = show

    return end
