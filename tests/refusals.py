"""What every refusal holds: an error of tinyshard's own, of the kind that JAX's users expect, that says what it got."""

from collections.abc import Callable, Sequence

import pytest

import tinyshard as ts


def assert_refused(call: Callable[[], object], kind: type[Exception], words: Sequence[str]) -> None:
    with pytest.raises(kind) as raised:
        call()
    assert isinstance(raised.value, ts.TinyshardError)
    for word in words:
        assert word in str(raised.value), str(raised.value)
