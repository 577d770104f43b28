"""What a program says it sends is what the workers hand to gloo, or to the memory that they share."""

import pytest

from tests import counting
from tests.programs import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_collectives_and_bytes_in_the_text_are_those_performed(pool, name):
    counting.check(CASES[name], counting.GLOO if pool.collectives == "gloo" else {})
