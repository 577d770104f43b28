"""JupyterLab as `tinyshard lab` starts it, on a temporary working copy, with settings of nobody."""

import json
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from course.lab import lab_command, offer_settings
from course.lessons import shipped_folder
from course.working_copy import refresh

ROOT = Path(__file__).parents[2]
PATIENCE_S = 150


class JupyterLab:
    """A server of its own; `stop` ends it, and the kernels with it.

    Args:
        folder: where the working copy, the settings and the log are made.
    """

    def __init__(self, folder: Path) -> None:
        self.working = folder / "my-lessons"
        self.log = folder / "jupyterlab.log"
        self._runtime = folder / "runtime"
        self._token = secrets.token_hex(16)
        refresh(shipped_folder(), self.working)
        # --port=0 is any free port; the app in the page tells the test what is running.
        options = ["--no-browser", "--port=0", "--expose-app-in-browser", f"--IdentityProvider.token={self._token}"]
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "JUPYTER_RUNTIME_DIR": str(self._runtime),
            "JUPYTER_CONFIG_DIR": str(folder / "config"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
            "IPYTHONDIR": str(folder / "ipython"),
        }
        offer_settings(environment)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                lab_command(self.working, options), cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT
            )

    def url(self) -> str:
        """The address to open, which leads to the first page, once the server listens there.

        JupyterLab writes it into a file of its own, and the address answers from then on.
        """
        end_s = time.monotonic() + PATIENCE_S
        while True:
            for found in self._runtime.glob("jpserver-*.json"):
                text = found.read_text("utf-8")
                if text.rstrip().endswith("}"):
                    return f"{json.loads(text)['url']}?token={self._token}"
            assert self._process.poll() is None, f"JupyterLab ended:\n{self.log.read_text('utf-8')}"
            assert time.monotonic() < end_s, f"JupyterLab did not start:\n{self.log.read_text('utf-8')}"
            time.sleep(0.05)

    @property
    def pid(self) -> int:
        """The server's process."""
        return self._process.pid

    def stop(self) -> None:
        """End the server as Ctrl-C twice would; it ends its kernels, and they their devices."""
        self._process.terminate()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def find_browser() -> str | None:
    """The path of a Chromium: the one that TINYSHARD_BROWSER names, or else one that the system has."""
    named = os.environ.get("TINYSHARD_BROWSER")
    names = [named] if named else ["chromium", "chromium-browser", "google-chrome"]
    return next((path for name in names if (path := shutil.which(name))), None)
