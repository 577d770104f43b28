"""What a learner predicts, for the teacher's screen: one small file in a folder that all in the room can write to.

`TINYSHARD_ROOM` names the folder. The file is the learner's own `.predictions.json`, under a random name.
"""

import os
from pathlib import Path

from course import jsonfile
from course.predicted import PREDICTED, learner_in

__all__ = ["ROOM", "share"]

ROOM = "TINYSHARD_ROOM"


def share(folder: Path) -> str:
    """Put the learner's predictions into the room's folder, if there is one; the file that was there is replaced.

    Args:
        folder: The folder of the learner's lessons.

    Returns:
        Why that was not possible, in a line; empty if it was, or if there is no room.
    """
    room = os.environ.get(ROOM)
    kept = jsonfile.read_dict(folder / PREDICTED)
    learner = learner_in(kept)
    if not room or learner is None:
        return ""
    try:
        jsonfile.write(Path(room) / f"{learner}.json", kept)
    except OSError as error:
        return f"The room does not get it: {room}: {error.strerror}"
    return ""
