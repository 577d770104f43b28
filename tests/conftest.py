"""What all tests share: hypothesis draws the same cases in each run, and no deadline, which would assert a timing.

`pytest --hypothesis-profile=explore` draws new ones, and prints what repeats a failure.
"""

from hypothesis import settings

settings.register_profile("tinyshard", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("tinyshard")
