"""What the commands of the workshop kit raise on purpose: the message is for the learner, and no traceback is shown."""

__all__ = [
    "CourseError",
    "HandoutError",
    "MissingCopyError",
    "MissingLabError",
    "MissingLessonsError",
    "MissingRoomError",
    "UnknownLessonError",
]


class CourseError(Exception):
    """The base of every error that a command of the kit raises on purpose."""


class MissingCopyError(CourseError, FileNotFoundError):
    """The folder is not a working copy of the lessons."""


class MissingLabError(CourseError, RuntimeError):
    """JupyterLab is not installed in this environment."""


class MissingLessonsError(CourseError, FileNotFoundError):
    """The folder of lessons is missing, as in an installation from a wheel."""


class MissingRoomError(CourseError, FileNotFoundError):
    """The folder of a room's predictions is missing."""


class UnknownLessonError(CourseError, LookupError):
    """No lesson has this number or this file name."""


class HandoutError(CourseError, FileExistsError):
    """The folder of a handout already holds something."""
