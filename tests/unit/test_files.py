"""Trees in files: what comes back, onto which devices, what torch reads and writes, and what is damaged."""

import collections
import dataclasses
import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.utils import _pytree

import tinyshard as ts
from tinyshard.arrays.manifest import MANIFEST
from tinyshard.core import replaced_folder, stored_blocks
from tinyshard.core.safetensors import NAMES, REALS, read_head

pytestmark = pytest.mark.usefixtures("local")

ALONE = "ignore:torch.distributed is disabled"
Pair = collections.namedtuple("Pair", ["left", "right"])


@dataclasses.dataclass
class Layer:
    weight: torch.Tensor
    bias: torch.Tensor | None


_pytree.register_dataclass(Layer)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "saved"


@pytest.fixture
def rows(mesh):
    return ts.NamedSharding(mesh, ts.P("a"))


def values(tree):
    return ts.device_get(tree)


def bits(x: torch.Tensor) -> list[int]:
    return x.contiguous().reshape(-1).view(torch.uint8).tolist()


# ---- the tree -------------------------------------------------------------------------------------------------------


def test_a_tree_comes_back_with_its_containers_values_and_shardings(folder, mesh, rows, host):
    x = ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", "b")))
    tree = {
        "params": [Layer(x, None), Layer(x + 1, ts.device_put(torch.ones(4), rows))],
        "state": Pair((), collections.OrderedDict(m=x * 2)),
        3: (torch.arange(3), np.arange(4, dtype=np.int16), np.float64(0.1)),
        "key": ts.random.split(ts.random.key(7), 8),
        "count": ts.array(5),
        "python": [1, 2.5, True, None, "text", 1j, -math.inf, torch.bfloat16],
    }
    ts.save(tree, folder)
    back = ts.load(folder)
    assert ts.tree.structure(back) == ts.tree.structure(tree)
    assert type(back["params"][0]) is Layer and type(back["state"]) is Pair
    assert type(back["state"].right) is collections.OrderedDict
    assert torch.equal(values(back["params"][1].weight), host + 1)
    assert back["params"][0].weight.sharding == x.sharding and back["params"][1].bias.sharding == rows
    assert back["params"][0].weight.committed and not back["count"].committed
    assert type(back[3][0]) is torch.Tensor and torch.equal(back[3][0], torch.arange(3))
    assert back[3][1].dtype == np.int16 and back[3][1].tolist() == [0, 1, 2, 3]
    assert back[3][2] == np.float64(0.1)
    assert ts.random.key_data(back["key"]).tolist() == ts.random.key_data(tree["key"]).tolist()
    assert back["python"] == tree["python"]


@pytest.mark.parametrize("kind", [ts.AxisType.Auto, ts.AxisType.Explicit])
def test_the_axes_of_a_mesh_come_back_with_their_types(kind, folder):
    mesh = ts.make_mesh((4, 2), ("x", "y"), axis_types=(kind, kind))
    x = ts.device_put(torch.ones(8, 4), ts.NamedSharding(mesh, ts.P("x")))
    ts.save(x, folder)
    back = ts.load(folder)
    assert back.sharding == x.sharding and ts.typeof(back) == ts.typeof(x)


def test_nan_comes_back(folder):
    ts.save([math.nan], folder)
    assert math.isnan(ts.load(folder)[0])


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [*NAMES, *REALS], ids=str)
def test_every_dtype_comes_back_bit_for_bit(dtype, folder, rows):
    nbytes = 64 * dtype.itemsize
    data = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    host = (data % 2 if dtype is torch.bool else data).view(dtype).reshape(8, 8)
    tree = {"host": host, "x": ts.device_put(host, rows)}
    ts.save(tree, folder)
    back = ts.load(folder, {"host": None, "x": ts.NamedSharding(rows.mesh, ts.P("b", "a"))})
    assert back["x"].dtype is back["host"].dtype is dtype
    assert bits(values(back["x"])) == bits(back["host"]) == bits(host)


def test_parameters_and_what_requires_a_gradient_come_back_as_such(folder, rows):
    module = torch.nn.Linear(4, 2)
    placed = ts.device_put(torch.ones(8), rows).requires_grad_()
    ts.save({"module": dict(module.named_parameters()), "x": placed}, folder)
    back = ts.load(folder)
    assert isinstance(back["module"]["weight"], torch.nn.Parameter) and back["module"]["weight"].requires_grad
    assert isinstance(back["x"], ts.Array) and back["x"].requires_grad


def test_paths_that_are_spelled_alike_are_kept_apart(folder):
    tree = {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)}
    ts.save(tree, folder)
    back = ts.load(folder)
    assert back["a"]["b"].item() == 1 and back["a.b"].item() == 0


@pytest.mark.parametrize("tree", [torch.ones(2), 3, {}, [], None, ((), {"x": []})])
def test_small_trees_come_back(tree, folder):
    ts.save(tree, folder)
    back = ts.load(folder)
    assert torch.equal(back, tree) if isinstance(tree, torch.Tensor) else back == tree


@pytest.mark.parametrize("shape, spec", [((0, 8), (None, "a")), ((8, 0), ("a",)), ((), ()), ((8, 0, 2), ("a", "b"))])
def test_empty_arrays_and_numbers_come_back(shape, spec, folder, mesh):
    x = ts.device_put(torch.ones(shape), ts.NamedSharding(mesh, ts.P(*spec)))
    ts.save(x, folder)
    back = ts.load(folder)
    assert back.shape == x.shape and back.sharding == x.sharding and torch.equal(values(back), values(x))


@pytest.mark.parametrize(
    "tree, words",
    [
        ({"f": print}, "builtin_function_or_method at ['f']"),
        ([torch.ones(2).to_sparse()], "sparse"),
        ({"x": object()}, "object at ['x']"),
    ],
)
def test_a_leaf_that_cannot_be_saved_is_named_and_nothing_is_written(tree, words, folder):
    with pytest.raises(ts.DtypeError, match=words.replace("[", r"\[")):
        ts.save(tree, folder)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["jit", "vmap", "grad"])
def test_saving_where_values_are_traced_is_an_error(name, folder):
    transformed = getattr(ts, name)(lambda x: (ts.save(x, folder), x.sum())[1])
    with pytest.raises(ts.errors.TracedValueError, match="outside of traces"):
        transformed(torch.ones(3))


def test_a_class_that_is_not_imported_is_named(folder, monkeypatch):
    ts.save(Pair(1, 2), folder)
    monkeypatch.delitem(globals(), "Pair")
    with pytest.raises(ts.FileError, match="Pair"):
        ts.load(folder)


# ---- where it is --------------------------------------------------------------------------------------------------


@st.composite
def placements(draw):
    shape = draw(st.sampled_from([(8, 16), (16, 8, 8), (8,)]))
    names = draw(st.permutations(["a", "b", None, None]))[: len(shape)]
    count = draw(st.sampled_from([1, 2, 4, 8]))
    sizes = draw(st.sampled_from([(n, count // n) for n in (1, 2, 4, 8) if count % n == 0]))
    return shape, sizes, names


@given(placements(), placements())
def test_every_placement_is_read_onto_every_other(tmp_path_factory, before, after):
    (shape, sizes, names), (_, new_sizes, new_names) = before, after
    folder = tmp_path_factory.mktemp("files") / "saved"
    host = torch.arange(math.prod(shape)).reshape(shape)

    def sharding(sizes, names):
        mesh = ts.make_mesh(sizes, ("a", "b"), devices=ts.devices()[: math.prod(sizes)])
        return ts.NamedSharding(mesh, ts.P(*names[: len(shape)]))

    ts.save(ts.device_put(host, sharding(sizes, names)), folder)
    elements = sum(
        torch.Size(s.shape).numel() for f in folder.glob("*.safetensors") for s in read_head(str(f)).values()
    )
    assert elements == host.numel()  # what several devices hold is written once
    wanted = sharding(new_sizes, new_names)
    back = ts.load(folder, wanted)
    assert back.sharding == wanted and torch.equal(values(back), host)
    for shard in back.addressable_shards:
        assert torch.equal(values(shard.data), host[shard.index])
    assert torch.equal(values(ts.load(folder)), host)


def test_what_all_devices_hold_is_shared_out_among_them(folder, mesh):
    whole = ts.NamedSharding(mesh, ts.P())
    ts.save([ts.device_put(torch.ones(1000), whole) for _ in range(16)], folder)
    sizes = [file.stat().st_size for file in folder.glob("device-*.safetensors")]
    assert len(sizes) == 8 and max(sizes) < 2 * 4000 + 1000


def test_shardings_are_one_a_prefix_or_a_tree_and_a_spec_names_axes_of_the_set_mesh(folder, mesh, host, rows):
    ts.save({"w": [host, host], "n": 1, "b": host}, folder)
    with ts.set_mesh(mesh):
        back = ts.load(folder, {"w": ts.P("b"), "n": None, "b": None})
    assert [x.sharding.spec for x in back["w"]] == [ts.P("b"), ts.P("b")] and back["n"] == 1
    assert type(back["b"]) is torch.Tensor
    one = ts.load(folder, rows)
    assert one["b"].sharding == one["w"][1].sharding == rows
    assert ts.load(folder, ts.devices()[5])["b"].devices() == {ts.devices()[5]}


def test_keys_are_loaded_under_shardings_of_their_own_shape(folder, rows):
    keys = ts.random.split(ts.random.key(0), 8)
    ts.save({"keys": keys}, folder)
    back = ts.load(folder, rows)["keys"]
    assert back.sharding == rows and back.shape == (8,)
    assert ts.random.key_data(back).tolist() == ts.random.key_data(keys).tolist()


def test_a_sharding_that_does_not_fit_is_an_error(folder, host, rows):
    ts.save({"w": host}, folder)
    with pytest.raises(ts.ShardingError, match="load's shardings do not fit the saved tree"):
        ts.load(folder, {"v": rows})
    with pytest.raises(ts.ShardingError, match="cannot be split evenly"):
        ts.save({"w": torch.ones(3)}, folder)
        ts.load(folder, rows)
    with pytest.raises(ts.ShardingError, match="abstract mesh"):
        ts.load(folder, ts.NamedSharding(ts.AbstractMesh(2, "i"), ts.P("i")))


def test_fewer_devices_than_were_saved_on_need_a_sharding(folder, rows):
    x = torch.arange(8)
    ts.save({"w": ts.device_put(x, rows)}, folder)
    try:
        ts.init(devices=2, runtime="local")
        with pytest.raises(ts.ShardingError, match="'w' was saved on devices that are not there"):
            ts.load(folder)
        two = ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i"))
        assert torch.equal(values(ts.load(folder, two)["w"]), x)
    finally:
        ts.init(devices=8, runtime="local")


def test_a_device_reads_only_the_pieces_in_which_its_block_lies(folder, monkeypatch, rows):
    monkeypatch.setattr(stored_blocks, "PIECE_NBYTES", 64)
    host = torch.arange(256.0).reshape(64, 4)
    ts.save(host, folder)
    checked = []
    crc32 = stored_blocks.zlib.crc32
    monkeypatch.setattr(stored_blocks.zlib, "crc32", lambda data: (checked.append(len(data)), crc32(data))[1])
    assert torch.equal(values(ts.load(folder, ts.NamedSharding(rows.mesh, ts.P(("a", "b"))))), host)
    assert sum(n for n in checked if n == 64) == host.nbytes  # once each, though eight devices read


def test_the_spans_of_a_part_of_long_rows_leave_out_what_is_between(monkeypatch):
    monkeypatch.setattr(stored_blocks, "PIECE_NBYTES", 8)
    cut = (slice(1, 3), slice(2, 4))
    assert list(stored_blocks._spans(cut, (4, 8), 4)) == [(40, 48), (72, 80)]
    monkeypatch.setattr(stored_blocks, "PIECE_NBYTES", 1000)
    assert list(stored_blocks._spans(cut, (4, 8), 4)) == [(40, 80)]


# ---- damage ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(folder, mesh, host):
    x = ts.device_put(host, ts.NamedSharding(mesh, ts.P("a", "b")))
    ts.save({"x": x, "host": host}, folder)
    return folder


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["device-3.safetensors", "host.safetensors"])
def test_a_changed_bit_is_an_error_that_names_the_file(name, saved):
    flip(saved / name, -1)
    with pytest.raises(ts.FileError, match=f"is damaged[^$]*{name}") as caught:
        ts.load(saved)
    assert "try:" in str(caught.value)
    assert isinstance(caught.value, OSError)


@pytest.mark.parametrize("name", ["device-3.safetensors", "host.safetensors"])
def test_a_cut_file_and_a_missing_one_are_errors_that_name_it(name, saved):
    whole = (saved / name).read_bytes()
    (saved / name).write_bytes(whole[:-1])
    with pytest.raises(ts.FileError, match=f"is cut\n.*{name}: {len(whole) - 1} bytes of {len(whole)}"):
        ts.load(saved)
    (saved / name).unlink()
    with pytest.raises(ts.FileError, match=f"is missing\n.*{name}"):
        ts.load(saved)


def test_any_bit_of_the_manifest_that_changes_is_an_error(saved):
    path = saved / MANIFEST
    good = path.read_bytes()
    for at in range(0, len(good), 7):
        for bit in (1, 4, 32):
            changed = bytearray(good)
            changed[at] ^= bit
            path.write_bytes(changed)
            try:
                back = ts.load(saved)
            except ts.FileError as error:
                assert MANIFEST in str(error)
            else:  # as a space that becomes another
                assert torch.equal(values(back["x"]), back["host"]), (at, bit)


def test_a_folder_that_is_not_there_and_one_without_a_tree_are_errors(tmp_path):
    with pytest.raises(ts.FileError, match="there is no such folder"):
        ts.load(tmp_path / "nothing")
    with pytest.raises(ts.FileError, match="the folder holds no saved tree"):
        ts.load(tmp_path)


def test_a_newer_format_is_an_error(saved):
    from tinyshard.arrays import manifest

    told = json.loads((saved / MANIFEST).read_text())
    told["contents"]["format"] = 99
    told["checksum"] = manifest._checksum(told["contents"])
    (saved / MANIFEST).write_text(json.dumps(told))
    with pytest.raises(ts.FileError, match="a newer tinyshard"):
        ts.load(saved)


# ---- the folder -----------------------------------------------------------------------------------------------------


def test_saving_again_replaces_all_files(saved, host):
    ts.save({"y": host}, saved)
    assert sorted(os.listdir(saved)) == ["host.safetensors", MANIFEST]
    assert os.listdir(saved.parent) == ["saved"]


def test_a_folder_with_other_files_is_not_replaced(tmp_path, host):
    (tmp_path / "thesis.tex").write_text("text")
    with pytest.raises(ts.FileError, match=r"holds other files[^$]*thesis\.tex"):
        ts.save(host, tmp_path)
    with pytest.raises(ts.FileError, match="holds other files"):
        ts.save(host, tmp_path / "thesis.tex")
    assert (tmp_path / "thesis.tex").read_text() == "text"


def test_where_the_system_exchanges_no_names_the_folder_is_replaced_too(saved, host, monkeypatch):
    monkeypatch.setattr(replaced_folder, "exchanged", lambda a, b: False)
    ts.save({"y": host}, saved)
    assert list(ts.load(saved)) == ["y"]
    assert os.listdir(saved.parent) == ["saved"]


def test_killed_between_two_renames_the_old_tree_is_read_and_saved_over(saved, host):
    os.rename(saved, replaced_folder.before(saved))  # what is there then
    assert torch.equal(ts.load(saved)["host"], host)
    ts.save({"y": host}, saved)
    assert list(ts.load(saved)) == ["y"]
    assert os.listdir(saved.parent) == ["saved"]


def test_an_error_while_saving_leaves_the_old_tree_and_nothing_else(saved, host, monkeypatch):
    def full(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(stored_blocks.os, "fsync", full)
    with pytest.raises(ts.FileError, match="No space left on device"):
        ts.save({"x": ts.device_put(host, ts.devices()[2])}, saved)
    monkeypatch.undo()
    assert os.listdir(saved.parent) == ["saved"]
    assert torch.equal(ts.load(saved)["host"], host)


def test_a_value_that_could_not_be_computed_is_its_own_error(saved, host):
    bad = ts.array(host).gather(0, ts.array(torch.full((8, 4), 99)))
    with pytest.raises(ts.RemoteError, match=r"gather\.default failed"):
        ts.save({"x": bad}, saved)
    assert torch.equal(ts.load(saved)["host"], host)
    assert os.listdir(saved.parent) == ["saved"]


# ---- other programs -------------------------------------------------------------------------------------------------


def mixed(mesh, host):
    return {
        "layers": [{"weight": ts.device_put(host, ts.NamedSharding(mesh, ts.P("b", "a")))}],
        "bias": ts.device_put(torch.arange(8, dtype=torch.bfloat16), ts.NamedSharding(mesh, ts.P("b"))),
        "host": torch.arange(5),
    }


@pytest.mark.filterwarnings(ALONE)
def test_torchs_reader_of_checkpoints_reads_what_was_saved(folder, mesh, host):
    tree = mixed(mesh, host)
    ts.save(tree, folder)
    state = {
        "layers": [{"weight": torch.zeros(8, 4)}],
        "bias": torch.zeros(8, dtype=torch.bfloat16),
        "host": torch.zeros(5, dtype=torch.int64),
    }
    dcp.load(state, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
    assert torch.equal(state["layers"][0]["weight"], host)
    assert torch.equal(state["bias"], values(tree["bias"])) and torch.equal(state["host"], torch.arange(5))


def test_torch_makes_whole_tensors_of_the_files_and_hugging_faces_reader_opens_them(folder, mesh, host, tmp_path):
    from safetensors.torch import load_file

    tree = mixed(mesh, host)
    ts.save(tree, folder)
    for path in folder.glob("*.safetensors"):
        assert set(load_file(path)) == set(read_head(str(path)))
    del tree["host"]  # torch 2.13's function takes no ints
    ts.save(tree, folder)
    names = ["layers.0.weight", "bias"]
    (tmp_path / "whole").mkdir()
    consolidate_safetensors_files(str(folder), str(tmp_path / "whole"), fqn_to_index_mapping=dict.fromkeys(names, 1))
    (path,) = (tmp_path / "whole").glob("*.safetensors")
    whole = load_file(path)
    assert torch.equal(whole["layers.0.weight"], host) and torch.equal(whole["bias"], values(tree["bias"]))
    again = ts.load(tmp_path / "whole")
    assert torch.equal(values(again["layers.0.weight"]), host)


@pytest.mark.filterwarnings(ALONE)
def test_what_torchs_writer_of_checkpoints_wrote_is_read(folder, host, rows):
    state = {"layers": [{"weight": host}], "bias": torch.arange(8, dtype=torch.bfloat16)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(folder)), no_dist=True)
    back = ts.load(folder, rows)
    assert set(back) == {"layers.0.weight", "bias"}
    assert torch.equal(values(back["layers.0.weight"]), host) and back["bias"].sharding == rows
    assert torch.equal(values(back["bias"]), state["bias"])
    assert not ts.load(folder)["bias"].committed


def test_a_file_of_hugging_faces_is_read_onto_devices_by_the_rules_of_a_module(tmp_path, mesh):
    from safetensors.torch import save_file

    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    save_file({k: v.detach() for k, v in module.named_parameters()}, tmp_path / "model.safetensors")
    with ts.set_mesh(mesh):
        back = ts.load(tmp_path / "model.safetensors", ts.shardings(module, {"0.weight": ts.P("a"), "*": ts.P()}))
    assert back["0.weight"].sharding.spec == ts.P("a")
    x = torch.ones(3, 4)
    torch.testing.assert_close(values(torch.func.functional_call(module, back, (ts.array(x),))), module(x).detach())


def test_blocks_that_are_missing_and_damaged_heads_of_other_programs_are_errors(saved):
    (saved / MANIFEST).unlink()
    assert set(ts.load(saved)) == {"x", "host"}
    (saved / "device-3.safetensors").unlink()
    with pytest.raises(ts.FileError, match=r"missing[^$]*28 elements of 'x'"):
        ts.load(saved)
    path = saved / "device-2.safetensors"
    for damage in (
        b"",
        b"xx",
        struct.pack("<Q", 1 << 40) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        path.read_bytes()[:-1],
    ):
        path.write_bytes(damage)
        with pytest.raises(ts.FileError, match=r"device-2\.safetensors"):
            ts.load(saved)
