"""The means of an answer: whether it is mapped over devices, and its collectives, whichever way it is written."""

from collections.abc import Iterator

import pytest
import torch

import tinyshard as ts
from course.exercises.means import compiled, is_mapped

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


def test_a_function_that_calls_a_shard_map_is_mapped_and_a_plain_one_is_not():
    for function in (column_sums(), written_as_a_function, ts.jit(written_as_a_function), ts.pmap(plain)):
        assert is_mapped(function, MATRIX)
    for function in (plain, ts.jit(plain), ts.vmap(plain)):
        assert not is_mapped(function, MATRIX)


def counts(function, *args):
    return {each.kind: each.count for each in ts.collectives_in(compiled(function, *args))}


def test_collectives_are_those_of_the_program_for_these_arguments():
    assert counts(column_sums(), MATRIX) == {"all_reduce": 1}
    assert counts(plain, MATRIX) == {}
    rows = ts.device_put(MATRIX, ts.NamedSharding(ts.make_mesh((8,), ("i",)), ts.P("i")))
    assert counts(plain, rows) == {"all_reduce": 1}
    halves = ts.pmap(lambda row: ts.lax.all_gather(ts.lax.psum_scatter(row, "i"), "i"), axis_name="i")
    assert counts(halves, torch.ones(8, 8)) == {"reduce_scatter": 1, "all_gather": 1}
    assert ts.collectives_in(compiled(halves, torch.ones(8, 8)))[0].nbytes == 28
