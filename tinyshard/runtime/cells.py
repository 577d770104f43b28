"""Hearing that a cell of a notebook was interrupted, wherever Ctrl-C struck, be it in the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from tinyshard.runtime.runs import Where, users_line_of


def after_interrupted_cells(call: Callable[[Where], None]) -> Callable[[], None]:
    """Call `call` with the interrupted line after every cell that Ctrl-C ended.

    Returns:
        A function that ends this. Outside of IPython neither does anything.
    """
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is None:
        return lambda: None

    def after(result: Any) -> None:
        error = result.error_in_exec
        if isinstance(error, KeyboardInterrupt):
            call(users_line_of(error))

    shell.events.register("post_run_cell", after)

    def end() -> None:
        if after in shell.events.callbacks["post_run_cell"]:
            shell.events.unregister("post_run_cell", after)

    return end
