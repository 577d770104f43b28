"""The members of a collective as one of them sees them."""

from tinyshard.runtime.collectives.base import group_of


def test_a_group_knows_its_place_its_others_and_its_least_member():
    group = group_of((6, 4, 5), 4)
    assert (group.place, group.others, group.least, group.count) == (1, (6, 5), 4, 3)
