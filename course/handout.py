"""A folder to hand out: lessons without outputs, what they import, and a page that says how to start them.

For hubs and machines without a clone of the repository. Solutions and the instructor's pages are not copied.
"""

import importlib.metadata
import shutil
from pathlib import Path

from course.errors import HandoutError
from course.lessons import PACKAGE, find_lessons, shipped_folder, without_outputs

__all__ = ["hand_out"]

# What stays behind of the package `course`: answers, the instructor's pages, and commands that need a clone.
STAYS_BEHIND = ("solutions", "instructor", "commands", "doctor", "jupyter", "pictures", "notebooks", "__pycache__")
STAYING_FILES = ("__main__.py", "handout.py", "lab.py", "room.py", "working_copy.py")
# The hub brings JupyterLab; the kernel's side of widgets is the lessons' need.
OF_THE_HUB = ("jupyterlab",)

PAGE = """# The lessons of tinyshard, to be opened in JupyterLab

Open the lessons below in this folder: they import the packages `tinyshard` and `course`, which lie beside them. Python
{python} and the packages in `requirements.txt` must be there, in the kernel that JupyterLab starts:

    pip install -r requirements.txt

JupyterLab needs `jupyterlab_widgets` in its own environment, to show controls. Two cores and 1.5 GB of memory serve
one learner. A learner's answers are kept in this folder, in `.progress.json`, `.predictions.json` and
`.ladder.json`: each learner needs a copy.

{lessons}
"""


def hand_out(folder: Path) -> list[str]:
    """Write the lessons, without outputs and without solutions, into a new folder, with what they need.

    Args:
        folder: The folder to make; it may exist if it is empty.

    Returns:
        The names of the files and folders that were written there.

    Raises:
        HandoutError: `folder` holds something already.
        MissingLessonsError: there are no lessons to hand out.
    """
    lessons = find_lessons(shipped_folder())
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HandoutError(
            "the handout needs a folder of its own\n"
            f"  got:  {folder}, which holds something already\n"
            "  rule: nothing is written over\n"
            "  try:  a folder that does not exist yet"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for lesson in lessons:
        text = without_outputs(lesson.path.read_text("utf-8"))
        (folder / lesson.path.name).write_text(text, "utf-8")
    _copy_package(PACKAGE.parent / "tinyshard", folder / "tinyshard")
    _copy_package(PACKAGE, folder / "course")
    installed = importlib.metadata.distribution("tinyshard")
    (folder / "LICENSE").write_text(installed.read_text("licenses/LICENSE") or "", "utf-8")
    (folder / "requirements.txt").write_text("".join(f"{each}\n" for each in _needs(installed)), "utf-8")
    listed = "\n".join(f"- {lesson.number} [{lesson.title}]({lesson.path.name})" for lesson in lessons)
    (folder / "README.md").write_text(
        PAGE.format(python=installed.metadata["Requires-Python"], lessons=listed), "utf-8"
    )
    return sorted(each.name for each in folder.iterdir())


def _needs(installed: importlib.metadata.Distribution) -> list[str]:
    """What the lessons import, such as "torch<2.14,>=2.13", without what the hub brings itself."""
    from packaging.requirements import Requirement  # JupyterLab brings it

    wanted = [Requirement(line) for line in installed.requires or []]
    return [
        f"{each.name}{each.specifier}"
        for each in wanted
        if (each.marker is None or each.marker.evaluate({"extra": "course"})) and each.name not in OF_THE_HUB
    ]


def _copy_package(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(*STAYS_BEHIND, *STAYING_FILES))
