"""What a learner predicts and climbs, for the teacher's screen: files in a folder to which all in the room can write.

`TINYSHARD_ROOM` names the folder. The files are the learner's own `.predictions.json` and `.ladder.json`, each under a
random name.
"""

import os
from pathlib import Path

from course import jsonfile
from course.climbs import CLIMBED
from course.predicted import PREDICTED, learner_in

__all__ = ["ROOM", "SHARED_CLIMBS", "share", "share_climbs"]

ROOM = "TINYSHARD_ROOM"
SHARED_CLIMBS = ".ladder.json"  # the end of the name of a shared file


def share(folder: Path) -> str:
    """Put the learner's predictions into the room's folder, if there is one; the file that was there is replaced.

    Args:
        folder: The folder of the learner's lessons.

    Returns:
        Why that was not possible, in a line; empty if it was, or if there is no room.
    """
    return _share(folder / PREDICTED, ".json")


def share_climbs(folder: Path) -> str:
    """Put what the learner has reached on the ladder into the room's folder, likewise."""
    return _share(folder / CLIMBED, SHARED_CLIMBS)


def _share(own: Path, ending: str) -> str:
    room = os.environ.get(ROOM)
    kept = jsonfile.read_dict(own)
    learner = learner_in(kept)
    if not room or learner is None:
        return ""
    try:
        jsonfile.write(Path(room) / f"{learner}{ending}", kept)
    except OSError as error:
        return f"The room does not get it: {room}: {error.strerror}"
    return ""
