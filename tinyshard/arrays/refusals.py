"""Methods of tensors that an Array refuses: it is immutable, and has no memory in this process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, Self

import torch

from tinyshard.core.devices import Device
from tinyshard.core.errors import DtypeError, ImmutableError, TracedValueError
from tinyshard.core.frames import is_called_from
from tinyshard.core.thread_state import is_tracing
from tinyshard.core.users_line import Where, users_line
from tinyshard.sharding import Sharding


def no_memory(what: str) -> NoReturn:
    """Raise DtypeError for a method that accesses the memory of a tensor."""
    raise DtypeError(
        "an Array has no memory in this process",
        got=f"x.{what}()",
        rule="its shards are in the memory of its devices",
        try_=f"ts.device_get(x).{what}(), or x.addressable_shards",
    )


def no_memory_wrapped(what: str) -> NoReturn:
    """Raise DtypeError for a method that accesses the memory of a value that a transformation wraps."""
    raise DtypeError(
        "a value inside of a transformation has no memory of its own",
        got=f"x.{what}(), as copy.copy(x) and pickle.dumps(x) call it",
        rule="it represents a value that the transformation differentiates or maps",
        try_="x.clone() for a copy; what should be saved is returned from the function",
    )


def refuse(what: str, instead: str, problem: str = "an Array cannot be changed in place") -> NoReturn:
    """Raise ImmutableError for a change in place."""
    if is_called_from(_OPTIMIZERS):
        raise optimizer_error(f"{what}, where x is an Array, in torch.optim")
    raise ImmutableError(
        problem,
        got=what,
        rule="an Array is immutable: other arrays and queued computations may share its shards",
        try_=instead,
    )


_OPTIMIZERS = [("torch.optim", "")]
# functions that write to the parameters of modules and their gradients: the handles take over the new values
_WRITE_FOR_MODULES = [
    ("torch.nn.init", ""),
    ("torch.nn.utils.clip_grad", ""),
    ("torch.nn.utils.convert_parameters", ""),
    ("torch.nn.modules.module", "_load_from_state_dict"),
    ("torch.nn.modules.module", "zero_grad"),
    ("torch.optim.optimizer", "zero_grad"),
]


def writes_for_a_module() -> bool:
    """Whether the caller is a torch function that writes to a module's tensors, outside of a trace."""
    return not is_tracing() and is_called_from(_WRITE_FOR_MODULES)


def optimizer_error(got: str) -> ImmutableError:
    """The error for a torch optimizer that would change Arrays, or anything in a traced function."""
    return ImmutableError(
        "an optimizer of torch.optim changes its parameters in place",
        got=got,
        rule="an Array is immutable, and a traced function runs once: new parameters are a result, as in JAX",
        try_="optimizer = ts.optim.functional(torch.optim.AdamW, lr=1e-3); state = optimizer.init(params);\n"
        "params, state = optimizer.update(params, ts.grad(loss)(params), state), under ts.jit",
    )


def traced_value_error(
    where: Where | None = None,
    problem: str = "Python asks for the value of a traced tensor",
    rule: str = "a traced function runs once, on stand-ins without values: if, while, float(), item() see nothing",
    try_: str = "torch.where(condition, a, b) to choose element by element,\n"
    "ts.lax.cond(condition, if_true, if_false, *operands) to choose a branch,\n"
    "or a static argument, for a Python value",
) -> TracedValueError:
    """The error for a read of a traced value."""
    return TracedValueError(problem, got=str(where or users_line()), rule=rule, try_=try_)


class Immutable(torch.Tensor):
    """A tensor without memory in this process, immutable except within the torch call that made it."""

    _from_values: ClassVar[Callable[[torch.Tensor], torch.Tensor]]  # called by unpickling; set by `placement`

    def _gather(self) -> torch.Tensor:
        """The whole values as a plain tensor: waits."""
        raise NotImplementedError

    def _is_own(self) -> bool:
        """Whether the running call made it, so that torch may change it."""
        raise NotImplementedError

    def _new_handle(self) -> Self:
        """Another handle of the same values, without a tape or a tangent."""
        raise NotImplementedError

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """As in torch. Raises DtypeError for a tinyshard device or sharding, which is for `ts.device_put`."""
        for place in (*args, *kwargs.values()):
            if isinstance(place, Device | Sharding):
                raise DtypeError(
                    "x.to takes devices of torch's, and an Array is on those of ts.devices()",
                    got=f"x.to({place!r})",
                    rule="x.to(dtype) gives another dtype; ts.device_put brings values to devices",
                    try_="ts.device_put(x, device), or a sharding in place of the device",
                )
        _check_device(*args, **kwargs)
        return super().to(*args, **kwargs)

    def cuda(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: an Array is on the devices of `ts.devices()`. Raises DtypeError."""
        _refuse_device("x.cuda()")

    def _take(self, result: Any) -> None:
        """Take over the values of another handle; other handles of the old values keep them."""
        raise NotImplementedError

    def _mark_viewed(self) -> None:
        """Note that an untracked handle shares its memory, in torch."""
        raise NotImplementedError

    def data_ptr(self) -> NoReturn:
        """Refused: the values are in the workers' memory. Raises DtypeError."""
        no_memory("data_ptr")

    def const_data_ptr(self) -> NoReturn:
        """Refused, as `data_ptr`."""
        no_memory("const_data_ptr")

    __dlpack_c_exchange_api__ = None  # it would give other libraries the memory; `__dlpack__` gives them the values

    def untyped_storage(self) -> NoReturn:
        """Refused, as `data_ptr`."""
        no_memory("untyped_storage")

    def share_memory_(self) -> NoReturn:
        """Refused, as `data_ptr`."""
        no_memory("share_memory_")

    def set_(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: it would change the memory of a tensor. Raises ImmutableError."""
        refuse("x.set_(...)", "x = value")

    def apply_(self, function: Any) -> NoReturn:
        """Refused: torch would write into memory that does not exist. Raises ImmutableError."""
        refuse("x.apply_(f)", "ops of torch, or ts.device_get(x).apply_(f)")

    @property
    def data(self) -> torch.Tensor:
        """The same values, without a gradient, as in torch. It cannot be assigned."""
        return self.detach() if is_tracing() else self._new_handle()

    @data.setter
    def data(self, value: Any) -> None:
        if not writes_for_a_module():
            refuse("x.data = value", "x = value; for a parameter module.weight = torch.nn.Parameter(value)")
        with torch.no_grad():
            self.copy_(value)

    def __copy__(self) -> torch.Tensor:
        """Another handle of the same values, with its own gradient. A result on torch's tape is cloned."""
        if is_tracing():  # it can be found again, as the value that the function closes over
            return self.detach().clone()
        if not self.is_leaf:
            return self.clone()
        handle = self._new_handle()
        handle.__dict__.update(
            (k, v) for k, v in self.__dict__.items() if k not in (*handle.__dict__, "_view", "_views")
        )
        return handle.requires_grad_() if self.requires_grad else handle

    def __deepcopy__(self, memo: Any) -> Any:
        if id(self) not in memo:
            handle = memo[id(self)] = self.__copy__()
            if isinstance(handle, Immutable):
                handle.grad = copy.deepcopy(self.grad, memo) if self.is_leaf else None
                users = {k: v for k, v in vars(handle).items() if k not in type(self).__annotations__}
                handle.__dict__.update(copy.deepcopy(users, memo))
        return memo[id(self)]

    def __setitem__(self, index: Any, value: Any) -> None:
        if not self._is_own():
            instead = "x.at[index].set(value), or torch.where(mask, value, x)"
            refuse("x[index] = value", instead)
        super().__setitem__(index, value)


def _check_device(*args: Any, **kwargs: Any) -> None:
    """Raise DtypeError for arguments of `x.to` that name a torch device other than the CPU."""
    device = kwargs.get("device", args[0] if args else None)
    if isinstance(device, str | int | torch.device) and torch.device(device).type not in ("cpu", "meta"):
        _refuse_device(f"x.to({str(device)!r})")


def _refuse_device(got: str) -> NoReturn:
    raise DtypeError(
        "an Array does not move to a device of torch's",
        got=got,
        rule="its shards are on the devices of ts.devices(); x.device is cpu for each of them",
        try_="ts.init(platform='gpu') before it is made; ts.device_put(x, device) for another of ts.devices()",
    )


def _augmented_operator(symbol: str, name: str) -> Any:
    torchs = getattr(torch.Tensor, name, None)  # it has no `@=`

    def operator(self: Immutable, other: Any) -> Any:
        if torchs is not None and self._is_own():
            return torchs(self, other)
        return refuse(f"x {symbol}= ...", f"y = x {symbol} ...")

    return operator


# torch's own augmented operators turn our TypeError into "not implemented", and Python would then rebind the name
for _symbol, _name in {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "&": "and", "|": "or", "^": "xor", "<<": "lshift", ">>": "rshift",
}.items():  # fmt: skip
    setattr(Immutable, f"__i{_name}__", _augmented_operator(_symbol, f"__i{_name}__"))


def _compared(name: str) -> Any:
    """A comparison; where the operator refuses a tensor, the function behind it is called, so its error is visible.

    Python reads a TypeError as `not comparable`, and == would then be False.
    """
    operator, function = getattr(torch.Tensor, f"__{name}__"), getattr(torch, name)

    def compare(x: Any, other: Any) -> Any:
        result = operator(x, other)
        return function(x, other) if result is NotImplemented and isinstance(other, torch.Tensor) else result

    return compare


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Immutable, f"__{_name}__", _compared(_name))
