"""A coverage plugin: a forked child saves what it ran every second, since worker processes end by being killed."""

import os
import threading
import time
from typing import Any

import coverage


def _save_every_second(saving: threading.Lock) -> None:
    while True:
        time.sleep(1)
        running = coverage.Coverage.current()
        if running is not None:
            with saving:
                running.save()


def _in_child() -> None:
    saving, end = threading.Lock(), os._exit

    def end_after_saving(code: int) -> None:
        """Coverage's own `_exit` saves too: two threads that do so at a time crash."""
        saving.acquire()
        end(code)

    os._exit = end_after_saving  # type: ignore[assignment]
    threading.Thread(target=_save_every_second, args=(saving,), daemon=True).start()


class KilledWorkers(coverage.CoveragePlugin):
    """Changes no setting."""

    def configure(self, config: Any) -> None:
        """Nothing: that the plugin is loaded is all that it is for."""


def coverage_init(registry: Any, options: Any) -> None:
    """Called by coverage in each process that it measures."""
    registry.add_configurer(KilledWorkers())
    os.register_at_fork(after_in_child=_in_child)
