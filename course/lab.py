"""The command line that opens JupyterLab on the working copy; no network and no set-up at home is needed."""

import importlib.util
import os
import re
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path

from course.errors import MissingLabError
from course.start import START

__all__ = ["lab_command", "offer_settings"]

# A workshop has no network, and JupyterLab would ask it for news, for a newer JupyterLab and for extensions.
OFFLINE = (
    "--LabApp.news_url=None",
    "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    "--LabApp.extension_manager=readonly",
)

# Found there: `labconfig`, our settings; `labextensions`, our extension.
SETTINGS = Path(__file__).parent / "jupyter"
EXTENSIONS = SETTINGS / "labextensions"


def lab_command(working: Path, lab_args: Sequence[str], environment: Mapping[str, str] = os.environ) -> list[str]:
    """Say how JupyterLab is started on `working`.

    The Python that runs this runs JupyterLab too, and JupyterLab's kernel `python3` is that Python again:
    what is installed here is what a lesson imports.

    Args:
        working: The folder that JupyterLab shows.
        lab_args: The user's own arguments. They come last, and the last one wins.
        environment: Where a codespace says under which address its pages are shown.

    Returns:
        The words of the command, the program first.

    Raises:
        MissingLabError: JupyterLab is not installed.
    """
    if importlib.util.find_spec("jupyterlab") is None:
        raise MissingLabError(
            "JupyterLab is not installed\n"
            f"  got:  {sys.executable}, which has no module jupyterlab\n"
            "  rule: the lessons need the extra `course`\n"
            "  try:  pip install 'tinyshard[course]', or make lab in a clone"
        )
    command = [sys.executable, "-m", "jupyterlab", f"--ServerApp.root_dir={working}"]
    command += [f"--LabApp.default_url=/lab/tree/{START}", f"--LabApp.extra_labextensions_path={EXTENSIONS}", *OFFLINE]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        # In a container root is the only user, and JupyterLab refuses to start for root without this option.
        command.append("--allow-root")
    return [*command, *_shown_in_codespaces(environment), *lab_args]


def _shown_in_codespaces(environment: Mapping[str, str]) -> list[str]:
    """Let in what comes from this codespace's own pages.

    JupyterLab is reached as localhost:8888 there, while its page is at https://NAME-8888.DOMAIN, and it refuses
    requests from a page of another address: no file would be listed, and no kernel started.
    """
    name, domain = environment.get("CODESPACE_NAME"), environment.get("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN")
    if not name or not domain:
        return []
    return [rf"--ServerApp.allow_origin_pat=https://{re.escape(name)}-\d+\.{re.escape(domain)}$"]


def offer_settings(environment: MutableMapping[str, str]) -> None:
    """Let JupyterLab find the course's own settings, and its terminals the command `tinyshard`.

    They do not ask the learner whether to fetch news. They show Markdown as a page, and in the list of files no dates,
    so that there is room for names. They keep the state of widgets: a lesson that is opened again shows its pictures.
    They leave the arrow keys to a dropdown or a slider that has the focus; JupyterLab alone would go to another cell.

    Args:
        environment: The environment that JupyterLab will have; the user's own settings there go first.
    """
    known = environment.get("JUPYTER_CONFIG_PATH")
    environment["JUPYTER_CONFIG_PATH"] = os.pathsep.join([known, str(SETTINGS)] if known else [str(SETTINGS)])
    environment["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), environment.get("PATH", os.defpath)])
