import numpy as np
import pytest

import tinyshard as ts
from tinyshard.core.devices import Device
from tinyshard.sharding.mesh import current_mesh

EIGHT = [Device(i) for i in range(8)]


def test_a_mesh_tells_its_axes_and_size():
    mesh = ts.Mesh(np.array(EIGHT, dtype=object).reshape(4, 2), ("a", "b"))
    assert mesh.shape == {"a": 4, "b": 2}
    assert mesh.size == 8
    assert mesh.device_ids == tuple(range(8))
    assert repr(mesh) == "Mesh('a': 4, 'b': 2)"


def test_meshes_are_equal_when_devices_and_names_are():
    assert ts.make_mesh((2, 2), ("a", "b"), EIGHT) == ts.make_mesh((2, 2), ("a", "b"), EIGHT)
    assert ts.make_mesh((2, 2), ("a", "b"), EIGHT) != ts.make_mesh((2, 2), ("b", "a"), EIGHT)
    assert ts.make_mesh((4,), "a", EIGHT) != ts.make_mesh((4,), "a", EIGHT[4:])


def test_make_mesh_takes_the_first_devices():
    assert ts.make_mesh((2,), ("a",), EIGHT).device_ids == (0, 1)


def test_a_mesh_cannot_be_changed_through_its_device_array():
    with pytest.raises(ValueError, match="read-only"):
        ts.make_mesh((2,), "a", EIGHT).devices[0] = EIGHT[5]


def test_an_abstract_mesh_of_thousands_starts_no_device():
    mesh = ts.AbstractMesh((64, 64), ("x", "y"))
    assert mesh.size == 4096
    assert ts.NamedSharding(mesh, ts.P("x", "y")).shard_shape((8192, 8192)) == (128, 128)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ts.make_mesh((4, 4), ("a", "b"), EIGHT), ["(4, 4)", "16 devices", "8 devices"]),
        (lambda: ts.make_mesh((0,), "a", EIGHT), ["positive int", "(0,)"]),
        (lambda: ts.make_mesh((4, 2), ("a", "a"), EIGHT), ["duplicate axis name", "('a', 'a')"]),
        (lambda: ts.make_mesh((4, 2), ("a",), EIGHT), ["a name for each axis", "(4, 2)"]),
        (lambda: ts.make_mesh((4, 2), ("a", 1), EIGHT), ["axis name is a string"]),
        (lambda: ts.Mesh([EIGHT[0], EIGHT[0]], "a"), ["names a device twice", "[0, 0]"]),
        (lambda: ts.Mesh([0, 1], "a"), ["made of devices", "0 (int)"]),
        (lambda: ts.Mesh([], "a"), ["at least one device"]),
        (lambda: ts.AbstractMesh((4, -1), ("a", "b")), ["positive int", "(4, -1)"]),
        (lambda: ts.mesh_utils.create_device_mesh((3, 2), EIGHT), ["(3, 2)", "6 devices", "8 devices"]),
        (lambda: ts.set_mesh("a"), ["set_mesh takes a mesh"]),
    ],
)
def test_a_wrong_mesh_is_refused_with_what_was_given(make, words):
    with pytest.raises(ts.MeshError) as caught:
        make()
    assert isinstance(caught.value, ValueError)
    for word in words:
        assert word in str(caught.value)


def test_set_mesh_holds_for_a_block_or_from_now_on():
    mesh = ts.AbstractMesh((2,), "x")
    with ts.set_mesh(mesh):
        assert current_mesh() == mesh
    assert current_mesh() is None
    before = ts.set_mesh(mesh)
    assert current_mesh() == mesh
    before.__exit__(None, None, None)
    assert current_mesh() is None


def test_create_device_mesh_places_every_device_in_order():
    grid = ts.mesh_utils.create_device_mesh((4, 2), EIGHT)
    assert grid.shape == (4, 2)
    assert [d.id for d in grid.flat] == list(range(8))


def test_a_mesh_shows_a_picture():
    assert "<svg" in ts.AbstractMesh((4, 2), ("a", "b"))._repr_html_()
