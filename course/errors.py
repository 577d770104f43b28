"""What the commands of the workshop kit raise on purpose: the message is for the learner, and no traceback is shown."""

__all__ = [
    "CourseError",
    "HandoutError",
    "MissingLabError",
    "MissingLessonsError",
    "MissingRoomError",
    "UnknownLessonError",
]


class CourseError(Exception):
    """The base of every error that a command of the kit raises on purpose."""


class MissingLabError(CourseError, RuntimeError):
    """JupyterLab is not installed in this environment."""


class MissingLessonsError(CourseError, FileNotFoundError):
    """There is no folder of lessons, as in an installation from a wheel."""


class MissingRoomError(CourseError, FileNotFoundError):
    """There is no folder in which a room's predictions could be."""


class UnknownLessonError(CourseError, LookupError):
    """No lesson has this number or this file name."""


class HandoutError(CourseError, FileExistsError):
    """The folder of a handout already holds something."""
