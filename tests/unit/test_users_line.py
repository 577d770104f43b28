"""The line of the user that calls, and the one that an error was raised in."""

import pytest

from tinyshard.core.users_line import users_line, users_line_of


def test_the_users_line_is_the_innermost_outside_of_tinyshard_and_torch():
    where = users_line()
    assert where.file == __file__
    assert "where = users_line()" in str(where)


@pytest.mark.parametrize(
    ("file", "module"),
    [("zmq/backend/cython/_zmq.py", "_zmq"), ("<string>", "tinyshard.core.users_line")],
    ids=["zmq's own frames name their file from the folder in which they were built", "what dataclasses write"],
)
def test_an_interrupt_in_a_line_that_nobody_wrote_there_is_told_of_the_users_line(file, module):
    code = compile("raise KeyboardInterrupt", file, "exec")
    with pytest.raises(KeyboardInterrupt) as caught:
        exec(code, {"__name__": module})
    assert users_line_of(caught.value).file == __file__


def test_a_line_of_a_program_that_was_given_as_text_is_the_users():
    with pytest.raises(KeyboardInterrupt) as caught:
        exec(compile("raise KeyboardInterrupt", "<string>", "exec"), {"__name__": "__main__"})
    assert users_line_of(caught.value).file == "<string>"
