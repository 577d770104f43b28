"""Array: a tensor whose shards live on devices. Shape, dtype and sharding are known at once; values are a future."""

from __future__ import annotations

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import torch

from tinyshard.arrays.function_overrides import EAGER
from tinyshard.arrays.function_overrides.ufuncs import call_function, call_ufunc, refuse_gradient
from tinyshard.arrays.gathering import Copy, gathered
from tinyshard.arrays.refusals import Immutable
from tinyshard.arrays.shard import HasShards
from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError
from tinyshard.core.jax_hints import OF_ARRAYS, no_attribute
from tinyshard.core.layout import Layout
from tinyshard.core.types import ShapedType
from tinyshard.draw.html import array_html
from tinyshard.runtime.controller.lineage import Buffer
from tinyshard.sharding import Sharding, express
from tinyshard.sharding.mesh import Mesh

_CPU = torch.device("cpu")
DEFAULT_ORIGIN = (0, -1, 0)
_calls = itertools.count(1)
_running = threading.local()  # .call: the number of the user's present call of a torch function or transformation
remembered: dict[int, list[weakref.ref[Array]]] = {}  # by call: the views that `tinyshard.arrays.views` remembers


class op_scope:
    """All values made inside belong to one call by the user: torch may change them in place.

    Autograd then has to reach a part of a value by the ops that made the part, not by strides, which a handle does not
    know. It is not a generator: that would be slower, and every op uses it.
    """

    __slots__ = ("_before", "_replayed")

    def __enter__(self) -> None:
        self._before = getattr(_running, "call", 0)
        _running.call = next(_calls)
        self._replayed = torch._C._is_view_replay_enabled()
        torch._C._set_view_replay_enabled(True)

    def __exit__(self, *args: object) -> None:
        torch._C._set_view_replay_enabled(self._replayed)
        if remembered:
            _forget(remembered.pop(_running.call, ()))
        _running.call = self._before


def _forget(views: Iterable[weakref.ref[Array]]) -> None:
    """End a call: its own values are immutable from now on, and drop their references to other handles."""
    for ref in views:
        x = ref()
        if x is not None and x._view is not None:
            x._viewed = x._view.root._viewed = True
            x._view = None


def is_own(x: Any) -> bool:
    """Whether it is an Array that was made inside the running call, so that torch may change it."""
    return isinstance(x, Array) and x._origin == origin() != DEFAULT_ORIGIN


def origin() -> tuple[int, int, int]:
    """The present functorch level, backward pass, and user's call of a torch function; (0, -1, 0) for none."""
    level = torch._C._functorch.maybe_current_level() or 0
    return level, torch._C._current_graph_task_id(), getattr(_running, "call", 0)


def shaped_type_of(x: Any) -> ShapedType:
    """Shape and dtype of a tensor. An Array stores them: through torch each is a call of `__torch_function__`."""
    return x._meta if isinstance(x, Array) else ShapedType(tuple(x.shape), x.dtype)


class Array(HasShards, Immutable):
    """A `torch.Tensor` cut into shards over devices. Made by `device_put`, `array`, and ops on Arrays; immutable.

    torch functions and methods work on it: they return at once, and the devices compute. Printing, `numpy()`, `item()`
    and `block_until_ready()` wait.

    `ts.save` and `ts.load` store a tree of Arrays block by block. `torch.save` writes whole values, and `torch.load`,
    after `import tinyshard`, returns Arrays; a file of `torch.save(ts.device_get(tree), file)` loads without tinyshard.

    Raises:
        ImmutableError: a change in place.
        RemoteError: reading a value that a device could not compute.

    Communication: none by itself; an op has the collectives that its operands' layouts need, reading the values copies
    each block to the host.

    In JAX: `jax.Array`. Here `x[i] = v`, `x += v` and `out=x` are errors too; `x += v` would change `x` in torch.

    In torch: some functions change an argument implicitly, and are errors for an Array:
    `F.embedding` and `F.embedding_bag` with max_norm= rescale rows of their weight, batch norm in training mode writes
    into running statistics. The error says what to write instead.

    Example:
        >>> import tinyshard as ts
        >>> ts.init(devices=2, runtime="local")
        >>> x = ts.device_put(torch.ones(4, 3), ts.NamedSharding(ts.make_mesh(2, "i"), ts.P("i")))
        >>> (x.T @ x).sum(0)
        Array([12., 12., 12.], dtype=float32)
    """

    _buffer: Buffer
    _layout: Layout
    _mesh: Mesh | None
    _sharding: Sharding | None
    _meta: ShapedType
    _origin: tuple[int, int, int]
    _viewed: bool  # shares memory, in torch, with a handle that is not remembered
    _view: Any = None  # a `views.View`: the ops that lead to it from the handle whose memory it shares
    _views: list[weakref.ref[Array]] | None = None  # the views of this handle
    _is_part: bool
    _copy: Any = None  # a `gathering.Copy`: its values, being copied to this process
    committed: bool
    _dispatch: ClassVar[Callable[[Any, Any, Any], Any]]  # an op on Arrays; `dispatch.eager` puts it here

    @staticmethod
    def __new__(
        cls: type[Array],
        buffer: Buffer,
        layout: Layout,
        meta: ShapedType,
        committed: bool,
        mesh: Mesh | None = None,
        sharding: Sharding | None = None,
    ) -> Array:
        """A handle of values that the runtime has, or will have, under `buffer`.

        Args:
            layout: of the values.
            meta: their shape and dtype.
            mesh: the mesh whose axis names express the layout.
            sharding: the user's name of this layout, if there is one; it stays as it was written.
        """
        # a handle made in inference_mode cannot be a view of one made outside. The guard takes microseconds
        if torch.is_inference_mode_enabled():
            with torch._C._InferenceMode(False):
                array: Array = torch.Tensor._make_wrapper_subclass(cls, meta.shape, dtype=meta.dtype, device=_CPU)
        else:
            array = torch.Tensor._make_wrapper_subclass(cls, meta.shape, dtype=meta.dtype, device=_CPU)
        array._buffer = buffer
        array._layout = layout
        array._mesh = mesh if sharding is None else getattr(sharding, "mesh", None)
        array._sharding = sharding
        array._meta = meta
        array._origin = origin()
        array._viewed = False
        array._is_part = False
        array.committed = committed
        return array

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Number the user's call: torch may change values that it makes inside it (F.linear of a vector does)."""
        func = EAGER.get(func, func)
        with op_scope(), torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return cls._dispatch(op, args, kwargs or {})

    # ---- where it is --------------------------------------------------------------------------------------------

    @property
    def layout_of_shards(self) -> Layout:
        """The plain form of the sharding."""
        return self._layout

    @property
    def sharding(self) -> Sharding:
        """How the array is laid out over devices: as it was named in `device_put`, out_shardings or out_specs.

        A computed result has a sharding in the axis names of its operands.

        Communication: none; known before the values are.
        """
        return express(self._layout, self._mesh) if self._sharding is None else self._sharding

    def devices(self) -> set[Device]:
        """The devices that hold a shard."""
        return {Device(i, self._layout.platform) for i in self._layout.devices}

    # ---- when it is computed ------------------------------------------------------------------------------------

    def block_until_ready(self) -> Array:
        """Wait until every shard is computed.

        Raises:
            RemoteError: a device could not compute it; the message names device, op and dispatching line.
            DeviceLostError: a device that it depends on is gone.

        Communication: none between devices.
        """
        self._buffer.runtime.wait(self._buffer, self._layout.devices)
        return self

    def is_ready(self) -> bool:
        """Whether `block_until_ready` would return at once."""
        return bool(self._buffer.runtime.is_ready(self._buffer, self._layout.devices))

    def delete(self) -> None:
        """Free its memory on the devices now; every handle of the same values is deleted, too. It may be deleted twice.

        Communication: a message to the devices.
        """
        if not self.is_deleted():
            self._buffer.runtime.delete(self._buffer)

    def is_deleted(self) -> bool:
        """Whether it was deleted, or donated to a call: using it raises RuntimeStateError."""
        return self._buffer.is_deleted

    # ---- its values ---------------------------------------------------------------------------------------------

    def copy_to_host_async(self) -> None:
        """Start copying the values to this process. Returns at once; the next read of the values uses this copy."""
        self._copy = Copy(self)

    def _gather(self) -> torch.Tensor:
        """The whole values as a plain tensor: waits, and copies one of each block to this process."""
        return gathered([self])[0]

    def numpy(self, *, force: bool = False) -> np.ndarray:
        """A copy of the whole array as a NumPy array. Waits.

        Args:
            force: allow an Array that requires a gradient, as in torch.

        Raises:
            DtypeError: NumPy has no such dtype (bfloat16); or the Array requires a gradient, which would end there.
        """
        if self.requires_grad and not force:
            refuse_gradient("x.numpy(), or a function of NumPy that calls it,")
        whole = self._gather()
        try:
            return whole.numpy()
        except TypeError as error:
            raise DtypeError(
                f"NumPy has no {self.dtype}",
                got=f"an Array of {self.dtype}",
                try_="x.float().numpy(), or ts.device_get(x) for a plain torch tensor",
            ) from error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("the values of an Array are on its devices: NumPy needs a copy, so copy=False is refused")
        values = self.numpy()
        return values if dtype is None else values.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        return call_ufunc(ufunc, method, inputs, kwargs)

    def __array_function__(self, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return call_function(function, args, kwargs)

    def __dlpack__(self, **options: Any) -> Any:
        return self._gather().__dlpack__(**options)

    def tolist(self) -> Any:
        """The values as nested lists of Python numbers. Waits."""
        return self._gather().tolist()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        if torch._C._functorch.is_functorch_wrapped_tensor(self):
            return super().__repr__()
        name = str(self.dtype).removeprefix("torch.")
        if math.prod(self.shape) == 0:
            return f"Array([], shape={tuple(self.shape)}, dtype={name})"
        body = np.array2string(printable(self._gather()), separator=", ", prefix="Array(", suffix=f", dtype={name})")
        return f"Array({body}, dtype={name})"

    def __str__(self) -> str:
        return str(printable(self._gather()))

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if self.dim() == 0 else format(str(self), spec)

    def __round__(self, digits: int | None = None) -> Any:
        return torch.round(self) if digits is None else torch.round(self, decimals=digits)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Array._from_values, (self._gather(), self.requires_grad, getattr(self, "_is_param", False))

    def _take(self, result: Any) -> None:
        """Take over the values of another handle; other handles of the old values keep them."""
        result = result if result.dtype == self.dtype else result.to(self.dtype)
        self._buffer, self._layout, self._mesh = result._buffer, result._layout, result._mesh
        self._sharding, self.committed = result._sharding, result.committed

    def _mark_viewed(self) -> None:
        """Note that an untracked handle shares its memory, in torch."""
        (self if self._view is None else self._view.root)._viewed = self._viewed = True

    def _new_handle(self) -> Array:
        """Another handle of the same values, without a tape or a tangent."""
        self._mark_viewed()
        handle = Array(self._buffer, self._layout, self._meta, self.committed, self._mesh, self._sharding)
        handle._is_part, handle._viewed = self._is_part, True
        return handle

    def _repr_html_(self) -> str:
        shape, item, name = tuple(self.shape), self.dtype.itemsize, str(self.dtype).removeprefix("torch.")
        nbytes, shard_nbytes = math.prod(shape) * item, math.prod(self._layout.shard_shape(shape)) * item
        return array_html(self._layout, shape, name, nbytes, shard_nbytes, repr(self.sharding), self.committed)

    def __getattr__(self, name: str) -> Any:
        return no_attribute(self, name) if name in OF_ARRAYS else object.__getattribute__(self, name)

    _is_own = is_own


def printable(values: torch.Tensor) -> np.ndarray:
    """NumPy values to print: dtypes that NumPy lacks are shown in float32."""
    lacking = values.dtype == torch.bfloat16 or (values.is_floating_point() and values.dtype.itemsize == 1)
    return (values.float() if lacking else values).numpy()
