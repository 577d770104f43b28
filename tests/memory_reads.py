"""What torch, NumPy and Python let C++ read the memory of: three hundred programs, each in a process of its own.

A program gets x, f32[8], and k, i64[8]; once as plain tensors, once as Arrays. With Arrays it gives the same `r`, or
raises an error; it is never ended by a signal. Run as a script it prints the programs that break this, one a line:
nothing, if all is well.
"""

import argparse
import importlib
import os
import signal
import traceback
from collections.abc import Sequence
from concurrent import futures
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.tensor as dtensor
import torch.multiprocessing
from torch import nn

# what programs find by name besides
MODULES = {
    name: importlib.import_module(name)
    for name in ("copy", "ctypes", "io", "pickle", "struct", "threading", "weakref", "zlib")
}
MODULES |= {"np": np, "dist": dist, "dtensor": dtensor, "futures": futures}

SETTERS = """
t.data = x; r = t + 1
t.data = x; r = t.tolist()
t.data = x; r = t.numpy()
p.data = x; r = (p * 2).sum()
p.data = x; (p * p).sum().backward(); r = p.grad
p.data = x; r = p.detach().clone()
p.data = x; r = repr(p.requires_grad)
p.data = x[2:6]; r = p * 2
p.data = x.reshape(2, 4).T; r = p.sum(0)
p.data = x.data; r = p + 0
p.data = nn.Parameter(x); r = p + 0
p.data = x.double(); r = p + 0
setattr(t, 'data', x); r = t + 1
torch.Tensor.data.__set__(t, x); r = t + 1
torch._C.TensorBase.data.__set__(t, 2 * t); r = t + 1
torch.ops.aten.set_data(t, x); r = t + 1
torch.ops.aten.set_data.default(t, x); r = t + 1
torch.ops.aten.set_data(x, t); r = x + 1
vars(t).update(data=x); r = t + 1
torch.Tensor.data.__set__(x, t); r = x + 1
torch.Tensor.set_(x, t); r = x + 1
net.weight.data = x.reshape(2, 4); torch.jit.save(torch.jit.script(net), io.BytesIO()); r = 0
net.weight.data = x.reshape(2, 4); r = torch.jit.script(net).save_to_buffer()
net.weight.data = x.reshape(2, 4); r = torch.jit.script(net)._save_to_buffer_for_lite_interpreter()
net.weight.data = x.reshape(2, 4); torch.jit.save(torch.jit.trace(net, torch.ones(1, 4)), io.BytesIO()); r = 0
net.weight.data = x.reshape(2, 4); net.to_empty(device='cpu'); r = net.weight.shape
net.weight.data = x.reshape(2, 4); net.apply(lambda m: m.weight.data.fill_(2)); r = net.weight + 0
net.weight.data = x.reshape(2, 4); net.share_memory(); r = net.weight + 0
net.weight.data = x.reshape(2, 4); nn.utils.parametrizations.weight_norm(net); r = net(torch.ones(4))
net.weight.data = x.reshape(2, 4); nn.utils.parametrizations.orthogonal(net); r = 0
net.weight.data = x.reshape(2, 4); r = torch.optim.swa_utils.AveragedModel(net)(torch.ones(4))
net.weight.data = x.reshape(2, 4); r = pickle.loads(pickle.dumps(net)).weight + 0
net.weight.data = x.reshape(2, 4); r = torch.jit.script(net)(torch.ones(4))
net.weight.data = x.reshape(2, 4); r = torch.jit.trace(net, torch.ones(4))(torch.ones(4))
net.weight.data = x.reshape(2, 4); r = torch.jit.freeze(torch.jit.script(net.eval()))(torch.ones(4))
net.weight.data = x.reshape(2, 4); r = torch.export.export(net, (torch.ones(4),)).module()(torch.ones(4))
net.weight.data = x.reshape(2, 4); r = torch.fx.symbolic_trace(net)(torch.ones(4))
net.weight.data = x.reshape(2, 4); nn.utils.parametrizations.spectral_norm(net); r = 0
net.register_buffer('b', x); net.double(); r = net.b + 0
net.register_buffer('b', torch.ones(8)); net.b.mul_(.9).add_(x, alpha=.1); r = net.b + 0
net.load_state_dict({'weight': x.reshape(2, 4), 'bias': x[:2]}, assign=True); r = net.weight + 0
p.register_hook(lambda g: x); (p * 2).sum().backward(); r = p.grad
(p * 2).backward(x); r = p.grad
r = torch.autograd.grad(p * 2, [p], grad_outputs=[x])[0]
p.data.sub_(x, alpha=.1); r = p
c = torch.zeros(8, dtype=torch.complex64); c.real = x; r = c
t.__setstate__((x.untyped_storage(), 0, (8,), (1,))); r = t
net.weight.data = x.reshape(2, 4); r = net(torch.ones(4))
net.weight.data = x.reshape(2, 4); net.weight.data = torch.ones(2, 4); r = net(torch.ones(4))
net.weight.data = x.reshape(2, 4); net.to(torch.float64); r = net.weight * 1
net.weight.data = x.reshape(2, 4); r = sum(v.sum() for v in net.parameters())
net.weight.data = x.reshape(2, 4); r = net.state_dict()['weight']
net.weight.data = x.reshape(2, 4); r = copy.deepcopy(net).weight + 0
a = t; t.data = x; r = a + 1
a = t[:4]; t.data = x; r = a + 1
a = (p * 2).sum(); p.data = x; a.backward(); r = p.grad
p.grad = x; r = p.grad + 1
p.grad = x; p.data = x; r = p.grad + p
p.grad = torch.ones(8); p.grad.data = x; r = p.grad + 1
t.grad = x; r = t.grad + 1
t.real = x; r = t
t[:] = x; r = t
t[k % 8] = x; r = t
t[2] = x[2]; r = t
t.T.data = x; r = t
t.requires_grad_(); t.data = x; r = t + 1
nn.utils.vector_to_parameters(x, [p]); r = p * 1
nn.utils.vector_to_parameters(x, net.parameters() if False else [net.weight]); r = net.weight * 1
r = nn.utils.parameters_to_vector([x, p])
torch.utils.swap_tensors(t, x); r = t + 1
"""

METHODS = """
t.set_(x); r = t + 1
t.set_(x.untyped_storage()); r = t + 1
t.set_(x, 0, (8,), (1,)); r = t + 1
t.set_(x, 2, (4,), (1,)); r = t + 1
t.copy_(x); r = t
t.resize_as_(x); r = t.shape
t.swapaxes_(0, 0).add_(x); r = t
t.index_copy_(0, k, x); r = t
t.scatter_(0, k, x); r = t
t.index_fill_(0, k, 1); r = t
t.masked_scatter_(x > 3, x); r = t
t.masked_fill_(x > 3, 5); r = t
t.put_(k, x); r = t
t.lerp_(x, .5); r = t
t.map_(x, lambda a, b: a + b); r = t
t.map2_(x, x, lambda a, b, c: a + b + c); r = t
t.apply_(lambda v: v + 1); r = t
torch.Tensor.apply_(x, lambda v: v + 1); r = x
torch.Tensor.map_(t, x, lambda a, b: a + b); r = t
torch.Tensor.data_ptr(x); r = 0
torch.Tensor.const_data_ptr(x); r = 0
torch.Tensor.copy_(t, x); r = t
torch.Tensor.numpy(x, force=True); r = 0
torch.ops.aten.set_.source_Tensor(t, x); r = t + 1
torch.ops.aten.alias(x).data_ptr(); r = 0
torch.ops.aten.resize_(x, [4]); r = 0
r = torch.ops.aten.item(x[0])
r = torch.ops.aten.nonzero(x)
r = torch._C._VariableFunctions.as_tensor([x[0], x[1]])
r = torch.UntypedStorage(x)
r = torch.masked.masked_tensor(x, x > 3).sum().get_data()
r = torch.nested.nested_tensor([x, x], layout=torch.jagged).values()
r = torch.sparse.sum(x.to_sparse())
r = nn.Embedding.from_pretrained(x.reshape(2, 4))(torch.tensor([1]))
r = torch.export.export(nn.Linear(8, 2), (x,)) and 0
r = t.view_as(x)
r = t.type_as(x)
r = t.new_tensor(x)
r = t.new(x)
r = x.new(t)
r = x.new([1., 2.])
r = torch.Tensor(x)
r = torch.FloatTensor(x)
r = torch.tensor(x)
r = torch.tensor([x[0], x[1]])
r = torch.tensor([[x[0], 1], [2, x[1]]])
r = torch.tensor([x[0] > 0, x[1] > 5])
r = torch.tensor([k[0], k[1]])
r = torch.tensor((x[0], x[1]), dtype=torch.float64)
r = torch.tensor([x, x])
r = torch.as_tensor(x) + 1
r = torch.as_tensor([x[0], x[1]])
r = torch.as_tensor(x, dtype=torch.float64)
r = torch.asarray(x) + 1
r = torch.asarray([x[0], x[1]])
r = torch.asarray(x, copy=True)
r = torch.scalar_tensor(x[0])
r = torch.full((2,), x[1])
r = torch.linspace(x[0], x[3], 4)
r = torch.arange(k[4])
r = torch.zeros(k[2])
r = t.reshape(k[2], k[4])
r = t[k[2]]
r = t[x > 3].shape
r = [1, 2, 3][k[1]]
r = list(range(k[3]))
r = x.as_subclass(torch.Tensor) + 1
r = torch.Tensor._make_subclass(torch.Tensor, x) + 1
r = torch.Tensor._make_subclass(nn.Parameter, x) + 1
r = nn.Parameter(x) + 1
r = nn.Buffer(x) + 1
r = x.data_ptr() * 0
r = x.const_data_ptr() * 0
r = torch._C._data_address(x) * 0
r = x.untyped_storage().nbytes()
r = x.storage()[0]
r = x.is_shared()
r = x.share_memory_()
r = x.pin_memory()
r = x.is_pinned()
r = x.is_set_to(t)
r = t.is_set_to(x)
r = x.resize_(4)
r = x.resize_as_(t)
r = t.sparse_mask(x.to_sparse())
r = x.to_sparse().to_dense()
r = x.to_mkldnn().to_dense()
r = torch.quantize_per_tensor(x, .1, 0, torch.qint8).dequantize()
r = torch.from_file
r = torch._C._nn.linear(x, x)
r = torch.sparse_coo_tensor(k[None], x, (8,)).to_dense()
r = torch.sparse_csr_tensor(k[:2], k[:1], x[:1]).to_dense()
r = torch.result_type(x, t)
r = torch.vander(x)
r = torch.eye(k[3])
r = x.new_full((2,), x[0])
r = x.new_tensor([x[0], 2.])
r = x.new_ones(3)
r = x._lazy_clone() + 1
r = x._view_func(x) + 0
r = x.__array_interface__
r = x.__cuda_array_interface__
r = torch.ops.aten.add(t, x)
r = torch._foreach_add([t, t], [x, x])[0]
torch._foreach_add_([t], [x]); r = t
torch._foreach_copy_([t], [x]); r = t
torch.add(x, 1, out=t); r = t
torch.cat([x, x], out=torch.empty(16)); r = 0
torch.sort(x, out=(t, torch.empty(8, dtype=torch.int64))); r = t
r = torch.jit.trace(lambda v: v + 1, (x,))(t)
r = torch.compile(lambda v: v + 1, backend='eager')(x)
r = torch.nested.nested_tensor([x, x])[0]
r = torch.utils.data.TensorDataset(x)[1][0]
r = next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x), batch_size=2)))[0]
r = torch.utils.data.default_collate([x, x])
r = torch.func.functional_call(net, {'weight': x.reshape(2, 4)}, torch.ones(4))
r = torch.utils.checkpoint.checkpoint(torch.sin, x, use_reentrant=False)
r = torch.autograd.functional.jacobian(torch.sin, x)
r = torch.autograd.gradcheck(torch.sin, (x.double().requires_grad_(),))
r = torch.autograd.forward_ad.make_dual
torch.testing.assert_close(x, x); r = 0
r = torch.equal(t, x)
r = torch.allclose(t, x)
r = torch.histogram(x)[0]
r = torch.bincount(k)
r = torch.nn.utils.rnn.pad_sequence([x, x])
r = torch.save(x, io.BytesIO())
torch.save(t, b := io.BytesIO()); r = 0
torch.save([x], b := io.BytesIO()); b.seek(0); r = torch.load(b)[0] + 1
torch.save(net.requires_grad_(), b := io.BytesIO()); r = 0
o = torch.optim.SGD([p], .1); p.grad = x; o.step(); r = p
o = torch.optim.SGD([p], .1, foreach=True); p.grad = x; o.step(); r = p
o = torch.optim.SGD([p], .1, fused=True); p.grad = x; o.step(); r = p
o = torch.optim.Adam([p], .1); p.grad = x; o.step(); r = p
o = torch.optim.Adam([p], .1, fused=True); p.grad = x; o.step(); r = p
o = torch.optim.AdamW([p], .1, foreach=True); p.grad = x; o.step(); r = p
o = torch.optim.RMSprop([p], .1); p.grad = x; o.step(); r = p
p.grad = x; nn.utils.clip_grad_norm_([p], 1.); r = p.grad
net.load_state_dict({'weight': x.reshape(2, 4), 'bias': x[:2]}); r = net.weight
nn.init.normal_(t); t.copy_(x); r = t
"""

PROCESS_GROUPS = """
dist.all_reduce(x); r = x
dist.all_reduce(t); r = t
dist.broadcast(x, 0); r = x
dist.reduce(x, 0); r = x
dist.scatter(t, [x]); r = t
dist.scatter(x, [t]); r = x
dist.gather(x, [t]); r = t
dist.gather(t, [x]); r = x
dist.all_gather([t], x); r = t
dist.all_gather([x], t); r = x
dist.all_gather_into_tensor(t, x); r = t
dist.reduce_scatter(t, [x]); r = t
dist.reduce_scatter_tensor(t, x); r = t
dist.all_to_all([t], [x]); r = t
dist.all_to_all_single(t, x); r = t
dist.send(x, 0); r = 0
dist.isend(x, 0); r = 0
dist.recv(x, 0); r = 0
dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 0)]); r = 0
b = [x]; dist.broadcast_object_list(b, 0); r = b[0] + 1
b = [None]; dist.all_gather_object(b, x); r = b[0] + 1
dist.group.WORLD.scatter([t], [[x]]).wait(); r = t
dist.group.WORLD.allgather([[t]], [x]).wait(); r = t
dist.group.WORLD._get_backend(torch.device('cpu')).scatter([t], [[x]], dist.ScatterOptions()).wait(); r = t
dist.group.WORLD._get_backend(torch.device('cpu')).allgather([[t]], [x]).wait(); r = t
torch.distributed._functional_collectives.all_reduce(x, 'sum', dist.group.WORLD); r = 0
torch.distributed.nn.functional.all_reduce(x); r = 0
m = dist.init_device_mesh('cpu', (1,)); r = dtensor.distribute_tensor(x, m, [dtensor.Shard(0)]).full_tensor()
m = dist.init_device_mesh('cpu', (1,)); r = dtensor.distribute_tensor(x, m, [dtensor.Replicate()]).full_tensor()
m = dist.init_device_mesh('cpu', (1,)); r = dtensor.DTensor.from_local(x, m, [dtensor.Shard(0)]).full_tensor()
nn.parallel.DistributedDataParallel(net)(x[:4]); r = 0
net.weight.data = x.reshape(2, 4); nn.parallel.DistributedDataParallel(net); r = 0
"""

OUTSIDE = """
r = np.asarray(x) + 1
r = np.array([x[0], x[1]])
r = np.array([x, x])
r = np.float64(x[0])
r = np.add(x, 1)
r = np.frombuffer(x, np.float32)
r = np.from_dlpack(x)
r = torch.from_dlpack(x)
r = torch.from_dlpack(torch.utils.dlpack.to_dlpack(x))
r = torch.from_dlpack(torch.to_dlpack(x))
r = torch.from_dlpack(torch._C._to_dlpack(x))
r = torch.from_dlpack(torch._C._to_dlpack_versioned(x))
r = torch.from_dlpack(x.__dlpack__())
r = torch.from_dlpack(torch.Tensor.__dlpack__(x))
r = x.__dlpack_device__()[0] * 0
r = torch.from_numpy(x)
r = torch.frombuffer(x, dtype=torch.float32)
r = torch.Tensor.numpy(x)
r = torch.Tensor.__array__(x)
r = torch.Tensor.tolist(x)
r = torch.Tensor.item(x[0])
r = memoryview(x)
r = bytes(k)
r = bytearray(k)
r = ctypes.c_float(x[0]).value
r = float(x[1]), int(x[1]), bool(x[1]), complex(x[1]), int(k[1])
r = k[1].__index__()
r = f'{x[0]:.2f}'
r = '%d' % k[1]
r = round(x[1])
r = list(x)
r = sum(x)
r = max(x)
r = x in [t]
r = x[0] in x
r = hash(x) * 0
r = copy.copy(x) + 1
r = copy.deepcopy(x) + 1
r = pickle.loads(pickle.dumps(x)) + 1
r = pickle.loads(pickle.dumps(x, 2)) + 1
r = pickle.loads(pickle.dumps({'a': [x, k]}))['a'][1] + 1
r = pickle.loads(torch.multiprocessing.reductions.reduction.ForkingPickler.dumps(x)) + 1
torch.multiprocessing.SimpleQueue().put(x); r = 0
r = x.__reduce_ex__(2)[0](*x.__reduce_ex__(2)[1]) + 1
r = torch.Tensor.__reduce_ex__(x, 2) and 0
r = torch.Tensor.__deepcopy__(x, {}) + 1
r = next(iter(torch.utils.data.DataLoader([x[0], x[1]], batch_size=2)))
torch.utils.data.DataLoader([x], num_workers=1, multiprocessing_context='fork').__iter__().__next__(); r = 0
q = torch.multiprocessing.get_context('fork').Queue(); q.put(x); r = q.get(timeout=20) + 0
r = struct.pack('f', x[0])
r = zlib.crc32(x)
io.BytesIO().write(x); r = 0
r = ctypes.cast(x.data_ptr(), ctypes.c_void_p)
r = sum(futures.ThreadPoolExecutor(4).map(lambda i: (x * i).sum(), range(8)))
r = futures.ThreadPoolExecutor(2).submit(lambda: x * 2).result()
r = weakref.ref(x)() + 1
r = {x: 1}[x]
r = sorted([x[1], x[0]])
r = np.sum(x) + np.mean(x)
r = np.matmul(np.ones((2, 8), np.float32), x)
r = np.ones(8).dot(x)
b = np.ones(8); b[:] = x; r = b
b = np.ones(8); b[2] = x[1]; r = b
np.save(io.BytesIO(), x); r = 0
b = []; h = threading.Thread(target=lambda: b.append(x + 1)); h.start(); h.join(); r = b[0]
b = []; h = threading.Thread(target=lambda: (setattr(t, 'data', x), b.append(t + 1))); h.start(); h.join(); r = b[0]
b = []; h = threading.Thread(target=lambda: b.append(t.copy_(x))); h.start(); h.join(); r = t
"""

PROGRAMS = [row for rows in (SETTERS, METHODS, PROCESS_GROUPS, OUTSIDE) for row in rows.strip().splitlines()]


def names(x: torch.Tensor, k: torch.Tensor) -> dict[str, Any]:
    """What a program finds by name."""
    net = nn.Linear(4, 2)
    nn.init.ones_(net.weight), nn.init.zeros_(net.bias)
    return {**globals(), **MODULES, "x": x, "k": k, "t": torch.zeros(8), "p": nn.Parameter(torch.ones(8)), "net": net}


def run(program: str, made: dict[str, Any]) -> Any:
    """The program's `r`, with plain tensors in place of Arrays."""
    import tinyshard as ts

    exec(program, made)
    r = ts.device_get(made["r"])
    return r.detach() if isinstance(r, torch.Tensor) else r


def is_same(got: Any, want: Any) -> bool:
    """Whether two results are the same; a tensor and a NumPy array of the same values are."""
    if isinstance(want, torch.Tensor | np.ndarray | np.generic):
        got, want = torch.as_tensor(got), torch.as_tensor(want)
        return got.dtype == want.dtype and torch.equal(got, want)
    if isinstance(want, list | tuple):
        return len(got) == len(want) and all(map(is_same, got, want))
    return bool(got == want)


def check(program: str) -> str:
    """What is wrong with a program; nothing, if nothing is."""
    import tinyshard as ts

    x, k = torch.arange(8.0) + 1, torch.arange(8)
    try:
        want = run(program, names(x.clone(), k.clone()))
    except Exception as error:
        want = error
    mesh = ts.make_mesh(2, "i")
    try:
        got = run(program, names(*ts.device_put((x, k), ts.NamedSharding(mesh, ts.P("i")))))
    except Exception as error:
        return "" if not VERBOSE else f"refused: {type(error).__name__}: {str(error).splitlines()[0][:150]}"
    if isinstance(want, Exception):
        return f"gives {got!r}, where torch raises {want!r}"[:300] if VERBOSE else ""
    return "" if is_same(got, want) else f"gives {got!r}, not {want!r}"[:300]


VERBOSE = False


def main(every: int, only: Sequence[str]) -> None:
    """Run each program in a child of this process.

    Args:
        every: one program in so many.
        only: those with one of these words in them; none for all.
    """
    import tinyshard as ts

    ts.init(devices=2, runtime="local")
    for program in PROGRAMS[::every]:
        if only and not any(word in program for word in only):
            continue
        child = os.fork()
        if not child:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.alarm(60)  # a program that hangs ends by a signal too
            try:
                if program in PROCESS_GROUPS:
                    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
                if wrong := check(program):
                    print(f"{program}\n    {wrong}", flush=True)
            except BaseException:
                print(f"{program}\n    {traceback.format_exc()}", flush=True)
            os._exit(0)
        status = os.waitpid(child, 0)[1]
        if status:
            print(f"{program}\n    ended by signal {os.WTERMSIG(status)}", flush=True)


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--every", type=int, default=1)
    asked.add_argument("-v", action="store_true", help="print what is refused, too")
    asked.add_argument("words", nargs="*")
    args = asked.parse_args()
    VERBOSE = args.v
    main(args.every, args.words)
