"""The members of a collective as one of them sees them."""

from tinyshard.runtime.collectives.base import group_of


def test_a_group_knows_its_place_and_its_others():
    group = group_of((6, 4, 5), 4)
    assert (group.place, group.others, group.count) == (1, (6, 5), 3)
