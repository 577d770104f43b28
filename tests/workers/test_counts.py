"""What a program says it sends is what the workers exchange."""

import pytest

from tests import counting
from tests.programs import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_collectives_and_bytes_in_the_text_are_those_performed(pool, name):
    counting.check(CASES[name])
