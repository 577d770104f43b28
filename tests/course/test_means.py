"""The means of an answer: whether it is mapped over devices, and its collectives, whichever way it is written."""

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from course.exercises.means import collectives, compiled, is_mapped, lacks, made_by

MATRIX = torch.arange(32.0).reshape(8, 4)


@pytest.fixture(scope="module", autouse=True)
def local() -> Iterator[None]:
    ts.init(devices=8, runtime="local")
    yield
    ts.shutdown()


def column_sums():
    """By shard_map: each device adds up its own block, then over `a`."""
    mesh = ts.make_mesh((4, 2), ("a", "b"))
    return ts.shard_map(
        lambda block: ts.lax.psum(block.sum(0), "a"), mesh=mesh, in_specs=ts.P("a", "b"), out_specs=ts.P("b")
    )


def written_as_a_function(matrix):
    return column_sums()(matrix)


def plain(matrix):
    return matrix.sum(0)


def test_who_made_a_function_is_known_and_a_plain_one_is_made_by_none():
    made = [column_sums(), ts.pmap(plain), ts.vmap(plain), ts.jit(plain), plain, written_as_a_function, 3, print]
    assert [made_by(each) for each in made] == ["shard_map", "pmap", "vmap", "jit", "", "", "", ""]


def test_a_function_that_calls_a_shard_map_is_mapped_and_a_plain_one_is_not():
    for function in (column_sums(), written_as_a_function, ts.jit(written_as_a_function), ts.pmap(plain)):
        assert is_mapped(function, MATRIX)
    for function in (plain, ts.jit(plain), ts.vmap(plain)):
        assert not is_mapped(function, MATRIX)


def test_collectives_are_those_of_the_program_for_these_arguments():
    assert collectives(column_sums(), MATRIX) == {"all_reduce": 1}
    assert collectives(plain, MATRIX) == {}
    rows = ts.device_put(MATRIX, ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i")))
    assert collectives(plain, rows) == {"all_reduce": 1}
    halves = ts.pmap(lambda row: ts.lax.all_gather(ts.lax.psum_scatter(row, "i"), "i"), axis_name="i")
    assert collectives(halves, torch.ones(8, 8)) == {"reduce_scatter": 1, "all_gather": 1}
    assert ts.collectives_in(compiled(halves, torch.ones(8, 8)))[0].nbytes == 28


def test_what_is_lacking_is_said_in_a_line_and_nothing_of_an_answer_by_the_named_means():
    assert lacks(column_sums(), MATRIX, mapped=True, all_reduce=1, all_gather=0) == ""
    assert lacks(written_as_a_function, MATRIX, mapped=True, all_reduce=1) == ""
    assert lacks(plain, MATRIX) == ""
    assert "no shard_map or pmap" in lacks(plain, MATRIX, mapped=True, all_reduce=1)
    assert lacks(column_sums(), MATRIX, all_gather=1) == "its program has 0 all_gather, not 1"
    assert lacks(column_sums(), MATRIX, all_reduce=0) == "its program has 1 all_reduce, not 0"
