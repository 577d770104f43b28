"""The workshop kit around tinyshard: the lessons, and the commands that open and list them.

Start with `python -m course lab`, or from a fresh clone with `make lab`.
"""
