"""Wrong calls over the whole public API, as a learner would write them: each with the error that it must give.

A row is the call, the class of the error, and words that its message must hold. Four devices are there; `x` is an Array
of f32[4, 4] whose rows lie on them, `y` one on CPU 1 alone, `mesh` is {a: 2, b: 2}.
"""

from typing import Any

import numpy as np
import pytest
import torch

import tinyshard as ts
from tinyshard import P
from tinyshard.core.config import UnknownFlagError
from tinyshard.core.errors import TracedValueError
from tinyshard.runtime import lifecycle

UNEVEN = ("cannot be split evenly", "must be a multiple of")
RANK = ("does not fit the array's rank",)
PLACE = ("not a place to put a value", "a Sharding, a Device")
IMMUTABLE = ("cannot be changed in place", "an Array is immutable")
RANDOM = ("a stateful random op", "ts.random")
TRACED = ("Python asks for the value of a traced tensor",)
ELSEWHERE = ("Devices of all `Array` inputs and outputs should be the same", "ts.device_put")
CALLABLE = ("takes a function", "3 (int)")

CALLS: list[tuple[str, type[Exception], tuple[str, ...]]] = [
    # ---- devices ----
    ("ts.init(devices=0)", ts.RuntimeStateError, ("number of devices is a positive int", "0")),
    ("ts.init(devices=-3)", ts.RuntimeStateError, ("number of devices is a positive int", "-3")),
    ("ts.init(devices=2.5)", ts.RuntimeStateError, ("number of devices is a positive int", "2.5")),
    ("ts.init(devices=float('inf'))", ts.RuntimeStateError, ("number of devices is a positive int", "inf")),
    ("ts.init(devices='many')", ts.RuntimeStateError, ("number of devices is a positive int", "'many'")),
    ("ts.init(devices=True)", ts.RuntimeStateError, ("number of devices is a positive int", "True")),
    ("ts.init(devices=[1, 2])", ts.RuntimeStateError, ("number of devices is a positive int", "[1, 2]")),
    ("ts.init(runtime='threads')", ts.RuntimeStateError, ("no runtime 'threads'", "'process', 'local'")),
    ("ts.init(platform='tpu')", ts.RuntimeStateError, ("no platform 'tpu'", "'cpu'")),
    ("ts.init(collectives='mpi')", ts.RuntimeStateError, ("no collectives 'mpi'", "'gloo'")),
    (
        "ts.init(hosts='nowhere', runtime='process')",
        ts.RuntimeStateError,
        ("address of the controller is a host and a port", "'nowhere'"),
    ),
    (
        "ts.init(hosts='10.0.0.1:29400', runtime='local')",
        ts.RuntimeStateError,
        ("local runtime has no workers on other machines",),
    ),
    (
        "ts.init(platform='gpu', runtime='local')",
        ts.RuntimeStateError,
        ("no platform of the local runtime 'gpu'", "'cpu'"),
    ),
    # ---- meshes ----
    ("ts.make_mesh((2, 2), ('a', 'a'))", ts.MeshError, ("duplicate axis name", "('a', 'a')")),
    ("ts.make_mesh((2, 3), ('a', 'b'))", ts.MeshError, ("does not fit the number of devices", "(2, 3)", "4 devices")),
    ("ts.make_mesh((3,), ('a', 'b'))", ts.MeshError, ("needs a name for each axis", "(3,)")),
    ("ts.make_mesh((2, -1), ('a', 'b'))", ts.MeshError, ("axis size is a positive int", "(2, -1)")),
    ("ts.make_mesh((0,), ('a',))", ts.MeshError, ("axis size is a positive int",)),
    ("ts.make_mesh(('two',), ('a',))", ts.MeshError, ("axis size is a positive int", "'two'")),
    ("ts.make_mesh((2,), (1,))", ts.MeshError, ("axis name is a string", "(1,)")),
    ("ts.make_mesh((2,), ('a',), devices=[0, 1])", ts.MeshError, ("a mesh is made of devices", "0 (int)")),
    ("ts.make_mesh((2,), ('a',), devices=[first, first])", ts.MeshError, ("names a device twice", "[0, 0]")),
    ("ts.Mesh(ts.devices(), ('a', 'b'))", ts.MeshError, ("needs a name for each axis", "2 names")),
    ("ts.Mesh('devices', ('a',))", ts.MeshError, ("mesh",)),
    ("ts.Mesh([], ('a',))", ts.MeshError, ("at least one device",)),
    ("ts.AbstractMesh((2, 2), ('a',))", ts.MeshError, ("needs a name for each axis",)),
    ("ts.AbstractMesh((0,), ('a',))", ts.MeshError, ("axis size is a positive int",)),
    ("ts.set_mesh('mesh')", ts.MeshError, ("set_mesh takes a mesh", "'mesh' (str)")),
    ("ts.mesh_utils.create_device_mesh((3, 5))", ts.MeshError, ("does not fit the number of devices", "15")),
    ("ts.mesh_utils.create_device_mesh('2x2')", ts.MeshError, ("axis size is a positive int",)),
    # ---- shardings ----
    ("ts.NamedSharding(mesh, P('c'))", ts.ShardingError, ("no axis named 'c'", "('a', 'b')")),
    ("ts.NamedSharding(mesh, P('a', 'a'))", ts.ShardingError, ("uses mesh axis 'a' twice",)),
    ("ts.NamedSharding(mesh, P(1))", ts.ShardingError, ("made of axis names", "1 (int)")),
    ("ts.NamedSharding('mesh', P('a'))", ts.ShardingError, ("takes a mesh first", "'mesh' (str)")),
    ("ts.NamedSharding(mesh, ('a',))", ts.ShardingError, ("takes a PartitionSpec second", "(tuple)")),
    ("ts.SingleDeviceSharding('cpu')", ts.ShardingError, ("takes one device", "'cpu' (str)")),
    ("Positional([])", ts.ShardingError, ("made of devices",)),
    ("Positional(['cpu'])", ts.ShardingError, ("made of devices", "'cpu'")),
    ("Positional([first, first])", ts.TinyshardError, ("twice",)),
    ("Positional(ts.devices()).reshape(3, 1)", ts.ShardingError, ("3",)),
    ("Positional(ts.devices()).reshape(-1, -1)", ts.ShardingError, ("at most one of them -1",)),
    ("rows.replicate(5)", ts.ShardingError, ("no axis 5", "between -2 and 1")),
    ("rows.replicate('x')", ts.ShardingError, ("no axis 'x'",)),
    ("rows.shard_shape((3, 4))", ts.ShardingError, UNEVEN),
    ("rows.shard_shape((4,))", ts.ShardingError, RANK),
    ("rows.devices_indices_map((5, 4))", ts.ShardingError, UNEVEN),
    # ---- placing ----
    ("ts.device_put(torch.ones(6, 4), rows)", ts.ShardingError, (*UNEVEN, "6")),
    ("ts.device_put(torch.ones(4, 4, 4), rows)", ts.ShardingError, (*RANK, "3-d")),
    ("ts.device_put(torch.ones(4), cut('a', 'b'))", ts.ShardingError, (*RANK, "1-d")),
    ("ts.device_put(torch.ones(3, 4), cut('a', 'b'))", ts.ShardingError, (*UNEVEN, "axis 'a'")),
    ("ts.device_put(torch.ones(4, 4), 'cpu')", ts.ShardingError, (*PLACE, "'cpu' (str)")),
    ("ts.device_put(torch.ones(4, 4), 3)", ts.ShardingError, (*PLACE, "3 (int)")),
    ("ts.device_put(torch.ones(4, 4), P('a'))", ts.ShardingError, (*PLACE, "no mesh is set")),
    ("ts.device_put(torch.ones(4, 4), torch.device('cpu'))", ts.ShardingError, PLACE),
    ("ts.device_put(torch.ones(4, 4), ts.Device(17))", ts.ShardingError, ("not there", "CPU 17", "ts.init")),
    ("ts.device_put('text', rows)", ts.DtypeError, ("not a value that can live on a device", "text")),
    ("ts.device_put(object())", ts.DtypeError, ("not a value that can live on a device", "object")),
    ("ts.device_put([1, 2], [rows])", ts.ShardingError, ("device_put's shardings do not fit", "list of 1")),
    ("ts.device_put({'a': 1}, {'b': None})", ts.ShardingError, ("device_put's shardings do not fit",)),
    ("ts.device_put(torch.ones(2), abstract)", ts.ShardingError, ("abstract mesh", "ts.make_mesh")),
    ("ts.device_put(torch.ones(2, 2).to_sparse(), first)", ts.DtypeError, ("only dense CPU tensors",)),
    ("ts.device_put(torch.ones(2, device='meta'), first)", ts.DtypeError, ("only dense CPU tensors", "meta")),
    ("ts.array('text')", ts.DtypeError, ("not a value that can live on a device", "str: text")),
    ("ts.array([[1, 2], [3]])", ts.DtypeError, ("not a value that can live on a device", "[[1, 2], [3]]")),
    ("ts.array({'a': 1})", ts.DtypeError, ("not a value that can live on a device", "dict")),
    ("ts.array(None)", ts.DtypeError, ("not a value that can live on a device", "NoneType")),
    ("ts.array([1.0], dtype='float32')", ts.DtypeError, ("one of torch's dtypes", "'float32' (str)")),
    ("ts.array(np.array(['a']))", ts.DtypeError, ("not a value that can live on a device", "ndarray")),
    ("ts.array(np.array([object()]))", ts.DtypeError, ("not a value that can live on a device",)),
    # ---- Arrays ----
    ("x[9]", IndexError, ("index 9 is out of bounds", "size 4")),
    ("x[0, 0, 0]", IndexError, ("too many indices", "dimension 2")),
    ("x['a']", TypeError, ("str",)),
    ("x.reshape(3, 5)", RuntimeError, ("[3, 5]", "16")),
    ("x.sum(7)", IndexError, ("Dimension out of range", "7")),
    ("x @ torch.ones(3)", RuntimeError, ("size mismatch", "4x4")),
    ("x + torch.ones(3)", RuntimeError, ("broadcast", "[4, 4]")),
    ("x + 'one'", TypeError, ("'Array' and 'str'",)),
    ("x + y", ts.ShardingError, ELSEWHERE),
    ("torch.cat([x, ts.device_put(torch.ones(4, 5), rows)])", RuntimeError, ("Expected 4", "5")),
    ("torch.stack([x, ts.device_put(torch.ones(4, 8), rows)])", RuntimeError, ("equal size",)),
    ("x.expand(3, 3)", RuntimeError, ("expanded size", "existing size (4)")),
    ("torch.einsum('ij,jk->ik', x, torch.ones(3, 3))", RuntimeError, ("subscript j", "3", "4")),
    ("torch.nn.functional.linear(x, torch.ones(3, 3))", RuntimeError, ("[4, 4] X [3, 3]",)),
    ("x.__setitem__(0, 5)", ts.ImmutableError, (*IMMUTABLE, "torch.where")),
    ("x.add_(1)", ts.ImmutableError, (*IMMUTABLE, "torch.add")),
    ("x.__iadd__(1)", ts.ImmutableError, (*IMMUTABLE, "y = x +")),
    ("x.copy_(torch.ones(4, 4))", ts.ImmutableError, IMMUTABLE),
    ("np.add(x, 1, out=x)", ts.ImmutableError, IMMUTABLE),
    ("setattr(x, 'data', torch.ones(4, 4))", ts.ImmutableError, IMMUTABLE),
    ("x.item()", RuntimeError, ("16 elements",)),
    ("float(x)", ValueError, ("only one element",)),
    ("bool(x)", RuntimeError, ("ambiguous",)),
    ("len(ts.array(1.0))", TypeError, ("len() of a 0-d tensor",)),
    ("x.data_ptr()", ts.DtypeError, ("no memory in this process", "ts.device_get(x).data_ptr()")),
    ("x.untyped_storage()", ts.DtypeError, ("no memory in this process",)),
    ("ts.array([1.0]).bfloat16().numpy()", ts.DtypeError, ("NumPy has no torch.bfloat16", "x.float().numpy()")),
    ("torch.rand_like(x)", ts.StatefulRandomError, RANDOM),
    ("torch.nn.functional.dropout(x)", ts.StatefulRandomError, RANDOM),
    ("x.addressable_shards[9]", IndexError, ("out of range",)),
    # ---- what only the devices can tell ----
    ("torch.linalg.cholesky(-torch.eye(4) * (x * 0 + 1)).numpy()", ts.RemoteError, ("not positive-definite",)),
    ("torch.gather(x, 1, ts.array([[9]])).numpy()", ts.RemoteError, ("aten.gather.default failed on CPU", "index 9")),
    ("ts.block_until_ready([torch.gather(x, 1, ts.array([[9]]))])", ts.RemoteError, ("index 9 is out of bounds",)),
    ("ts.device_get({'a': x[torch.tensor([9])]})", ts.RemoteError, ("index 9 is out of bounds", "dispatched by")),
    ("torch.nn.functional.embedding(ts.array([9]), x).numpy()", ts.RemoteError, ("index out of range",)),
    # ---- jit ----
    ("ts.jit(3)", ts.DtypeError, CALLABLE),
    (
        "ts.jit(lambda v: v)('text')",
        ts.DtypeError,
        ("a function under jit is not a tensor", "argument 'v' of <lambda>: 'text' (str)"),
    ),
    ("ts.jit(lambda v: v if v.sum() > 0 else -v)(x)", TracedValueError, TRACED),
    ("ts.jit(lambda v: float(v.sum()))(x)", TracedValueError, TRACED),
    ("ts.jit(lambda v: v.numpy())(x)", TracedValueError, TRACED),
    ("ts.jit(lambda v: v + np.ones(4))(x)", TracedValueError, ("NumPy asks for", "torch.as_tensor")),
    ("ts.jit(lambda v: v.add_(1))(x)", ts.ImmutableError, ("changes its argument in place", "argument v")),
    ("ts.jit(lambda v: torch.rand(4) + v)(x)", ts.StatefulRandomError, ("in a traced function", "aten.rand")),
    ("ts.jit(lambda v: v + y)(x)", ts.ShardingError, ELSEWHERE),
    ("ts.jit(lambda v, w: v + w)(x)", TypeError, ("missing 1 required positional argument: 'w'",)),
    ("ts.jit(lambda v: v @ torch.ones(3, 3))(x)", RuntimeError, ("[4, 4] X [3, 3]",)),
    ("ts.jit(lambda v: undefined_name)(x)", NameError, ("undefined_name",)),
    ("ts.jit(lambda v, n: v * n, static_argnums=1)(x, [1])", ts.StaticArgumentError, ("cannot be hashed", "'n': list")),
    (
        "ts.jit(lambda v, n: v * n, static_argnames='m')(x, 1)",
        ts.StaticArgumentError,
        ("does not have", "'m'", "'v', 'n'"),
    ),
    ("ts.jit(lambda v: v, in_shardings=first)(x)", ts.ShardingError, ("committed to another sharding",)),
    ("ts.jit(lambda v: v, in_shardings='rows')(x)", ts.ShardingError, PLACE),
    (
        "ts.jit(lambda v: v, in_shardings=(None, rows))(x)",
        ts.ShardingError,
        ("in_shardings do not fit the arguments", "1 positional argument: v"),
    ),
    ("ts.jit(lambda v: v[0], out_shardings=rows)(x)", ts.ShardingError, RANK),
    (
        "ts.jit(lambda v: (v, v), out_shardings=(rows,))(x)",
        ts.ShardingError,
        ("jit's out_shardings do not fit the result",),
    ),
    (
        "ts.jit(lambda v, w: v, in_shardings=(rows,))(x, x)",
        ts.ShardingError,
        ("jit's in_shardings do not fit the arguments of <lambda>", "1 entry for 2 positional arguments: v, w"),
    ),
    (
        "ts.jit(lambda p: p, in_shardings=({'v': rows},))({'w': x})",
        ts.ShardingError,
        ("jit's in_shardings do not fit argument 'p' of <lambda>", "dict of 'v' for dict of 'w'"),
    ),
    ("ts.jit(lambda v: v, out_shardings=(rows, rows))(x)", ts.ShardingError, ("tuple of 2 for one value",)),
    (
        "ts.shard_map(lambda v, w: v, mesh=mesh, in_specs=(P('a'),), out_specs=P('a'))(x, x)",
        ts.ShardingError,
        ("shard_map's in_specs do not fit the arguments of <lambda>", "1 entry for 2 positional arguments: v, w"),
    ),
    (
        "ts.shard_map(lambda v, n, w: v, mesh=mesh, in_specs=(P('a'), None), out_specs=P('a'))(x, 2, x)",
        ts.ShardingError,
        ("shard_map's in_specs", "2 entries for 3 positional arguments: v, n, w"),
    ),
    (
        "ts.shard_map(lambda v: (v, v), mesh=mesh, in_specs=P('a'), out_specs=(P('a'),))(x)",
        ts.ShardingError,
        ("shard_map's out_specs do not fit the result of <lambda>", "tuple of 1 for tuple of 2"),
    ),
    (
        "ts.shard_map(lambda v: v, mesh=mesh, in_specs=P('a'))(x)",
        ts.DtypeError,
        ("out_specs are PartitionSpecs", "None"),
    ),
    ("ts.shard_map(lambda v: v, mesh=mesh, in_specs=('a',), out_specs=P())(x)", ts.DtypeError, ("in_specs are", "'a'")),
    (
        "ts.shard_map(lambda v, n: v, mesh=mesh, in_specs=P(), out_specs=P())(x, 'a')",
        ts.DtypeError,
        ("under shard_map is not a tensor", "argument 'n' of <lambda>", "None among in_specs"),
    ),
    (
        "ts.pmap(lambda v, n: v)(x, 'a')",
        ts.DtypeError,
        ("under pmap is not a tensor", "argument 'n' of <lambda>: 'a' (str)", "static_broadcasted_argnums"),
    ),
    (
        "ts.pmap(lambda v, w: v, in_axes=(0,))(x, x)",
        ts.MappingError,
        ("pmap's in_axes do not fit the arguments of <lambda>", "1 entry for 2 positional arguments: v, w"),
    ),
    (
        "ts.vmap(lambda v, w: v, in_axes=[None, 0])(v=x, w=x)",
        ts.MappingError,
        ("2 entries for no positional argument; by name: v, w", "v, w by position"),
    ),
    ("ts.vmap(lambda v, n: v)(x, 'a')", ts.DtypeError, ("vmap cannot map an argument", "n: 'a' (str)", "in_axes=None")),
    (
        "ts.lax.with_sharding_constraint([x, x], [rows])",
        ts.ShardingError,
        ("with_sharding_constraint's shardings do not fit", "list of 1 for list of 2"),
    ),
    ("ts.jit(lambda v: v).lower('text')", ts.DtypeError, ("is not a tensor", "'text' (str)")),
    ("ts.make_graph(3)", ts.DtypeError, ("takes a function",)),
    ("ts.make_graph(lambda v: v @ v)(torch.ones(2, 3))", RuntimeError, ("[2, 3] X [2, 3]",)),
    ("ts.lax.with_sharding_constraint(torch.ones(3, 4), rows)", ts.ShardingError, UNEVEN),
    ("ts.jit(lambda v: ts.lax.with_sharding_constraint(v, 'rows'))(x)", ts.ShardingError, PLACE),
    ("ts.jit(lambda v: ts.lax.with_sharding_constraint(v, first))(x)", ts.ShardingError, ELSEWHERE[:1]),
    (
        "ts.vmap(lambda k: ts.lax.pmean(k, 'i'), axis_name='i')(ts.random.split(ts.random.key(0), 2))",
        ts.DtypeError,
        ("pmean computes with numbers", "ppermute"),
    ),
    # ---- derivatives ----
    ("ts.grad(3)", ts.DtypeError, (*CALLABLE, "ts.grad(f)")),
    ("ts.value_and_grad(3)", ts.DtypeError, (*CALLABLE, "ts.value_and_grad(f)")),
    ("ts.vjp(3, x)", ts.DtypeError, CALLABLE),
    ("ts.jvp(3, (x,), (x,))", ts.DtypeError, CALLABLE),
    ("ts.jacrev(3)", ts.DtypeError, CALLABLE),
    ("ts.jacfwd(3)", ts.DtypeError, CALLABLE),
    ("ts.hessian(3)", ts.DtypeError, CALLABLE),
    ("ts.grad(lambda v: v)(x)", ts.DtypeError, ("real scalar result", "(4, 4)")),
    ("ts.grad(lambda v: 'text')(x)", ts.DtypeError, ("real scalar result", "returns str")),
    ("ts.grad(lambda v: v.sum())(ts.array([1, 2]))", ts.DtypeError, ("real floating-point", "torch.int64")),
    ("ts.grad(lambda v: v.sum(), argnums=3)(x)", ts.DtypeError, ("not there", "argnums=3")),
    ("ts.grad(lambda v: v.sum(), argnums='v')(x)", ts.DtypeError, ("an int or a tuple of ints", "'v'")),
    ("ts.grad(lambda v: v.sum(), has_aux=True)(x)", ts.DtypeError, ("(result, anything else)",)),
    (
        "ts.vjp(lambda v: v * 2, x)[1](torch.ones(3))",
        ts.DtypeError,
        ("does not fit its value", "f32[3] for a value f32[4, 4]"),
    ),
    ("ts.jvp(lambda v: v * 2, (x,), ())", ts.DtypeError, ("a tangent for each primal", "1 and 0")),
    ("ts.jvp(lambda v: v * 2, x, x)", ts.DtypeError, ("as tuples", "Array")),
    ("ts.jacfwd(lambda v: v.sum())(ts.array([1, 2]))", ts.DtypeError, ("real floating-point",)),
    # ---- descriptions, flags, pictures ----
    ("ts.typeof('text')", ts.DtypeError, ("only arrays have a type", "'text' (str)")),
    ("ts.ShapeDtypeStruct('shape', torch.float32)", ts.DtypeError, ("a shape is a tuple of ints",)),
    ("ts.ShapeDtypeStruct((-2,), torch.float32)", ts.DtypeError, ("a shape is a tuple of ints", "-2")),
    ("ts.ShapeDtypeStruct((2,), 'float32')", ts.DtypeError, ("one of torch's dtypes", "'float32' (str)")),
    ("ts.ShapeDtypeStruct((3, 4), torch.float32, sharding=rows)", ts.ShardingError, UNEVEN),
    ("ts.config.update('no_such_flag', 1)", UnknownFlagError, ("no flag 'no_such_flag'", "explain_cache_misses")),
    ("ts.config.update('explain_cache_misses', 1)", UnknownFlagError, ("takes a bool", "1 (int)")),
    ("ts.config.update('collective_timeout_s', 'long')", UnknownFlagError, ("takes an int", "'long' (str)")),
    ("ts.config.update('collective_timeout_s', 0)", UnknownFlagError, ("is a positive int", "0")),
    ("ts.debug.visualize_array_sharding('text')", ts.DtypeError, ("only an array can be shown", "'text'")),
    ("ts.debug.visualize_sharding((3, 4), rows)", ts.ShardingError, UNEVEN),
    ("ts.debug.visualize_sharding('shape', rows)", ts.DtypeError, ("not a shape",)),
    ("ts.debug.visualize_sharding((4, 4), 'rows')", ts.DtypeError, ("not a sharding",)),
]


def names() -> dict[str, Any]:
    """What the calls may use."""
    devices = ts.devices()
    mesh = ts.make_mesh((2, 2), ("a", "b"))
    rows = ts.sharding.PositionalSharding(devices).reshape(4, 1)
    return {
        "ts": ts,
        "torch": torch,
        "np": np,
        "P": P,
        "Positional": ts.sharding.PositionalSharding,
        "first": devices[0],
        "mesh": mesh,
        "rows": rows,
        "cut": lambda *spec: ts.NamedSharding(mesh, P(*spec)),
        "abstract": ts.NamedSharding(ts.AbstractMesh((2,), ("a",)), P("a")),
        "x": ts.device_put(torch.arange(16.0).reshape(4, 4), rows),
        "y": ts.device_put(torch.ones(4, 4), devices[1]),
    }


def check(call: str, error: type[Exception], words: tuple[str, ...]) -> None:
    """The call gives this error and these words, and everything that was there is there, and works."""
    runtime, known = lifecycle.current(), names()
    with pytest.raises(error) as caught:
        eval(call, known)
    assert isinstance(caught.value, error)
    for word in words:
        assert word in str(caught.value)
    assert lifecycle.current() is runtime and runtime.is_alive
    x = known["x"]
    assert (x + 1).sum().item() == 136
    assert (ts.device_put(torch.ones(4, 4), known["rows"]) @ x).tolist()[3] == [24, 28, 32, 36]
