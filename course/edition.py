"""Which edition of the lessons this is: each may give an id, such as "04.2", to another exercise or prediction."""

__all__ = ["EDITION"]

EDITION = 3
