"""What a program says it sends is what the workers hand to gloo."""

import pytest

from tests import counting
from tests.programs import CASES


@pytest.mark.parametrize("name", CASES)
def test_the_collectives_and_bytes_in_the_text_are_those_handed_to_gloo(pool, name):
    counting.check(CASES[name], counting.GLOO)
