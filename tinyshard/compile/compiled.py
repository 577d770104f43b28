"""Lowered and Compiled: the trace and the program of one signature, to be read and called without a new trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from tinyshard.arrays.abstract import ShapeDtypeStruct
from tinyshard.arrays.array import shaped_type_of
from tinyshard.arrays.constraint import is_on_tape
from tinyshard.compile.cost import CollectiveCounts, Cost, cost_of
from tinyshard.compile.drawn import drawn_graph, drawn_program
from tinyshard.compile.executable import DeviceAssignment, Executable, assembled, call
from tinyshard.compile.memory import MemoryAnalysis, memory_of
from tinyshard.compile.signature import Bound, as_operands, spelled_call
from tinyshard.compile.text import axis_names, graph_text, program_text
from tinyshard.compile.trace_cache import TraceCacheEntry, refuse_abstract
from tinyshard.compile.tracing import Traced, closed_names
from tinyshard.core.errors import DtypeError, ShardingError
from tinyshard.core.layout import is_same_placement
from tinyshard.core.program import Program
from tinyshard.core.thread_state import is_tracing
from tinyshard.draw.program import program_html
from tinyshard.runtime.worker.device_code import device_code
from tinyshard.sharding import Sharding, express


class Compiled:
    """A partitioned function. Made by `jit(f).lower(*args).compile()`.

    It is called as the function, without the static arguments, and takes exactly what it was compiled for: the same
    containers, shapes, dtypes and, for committed Arrays, shardings. Uncommitted values are put where it wants them.
    """

    def __init__(
        self,
        name: str,
        entry: TraceCacheEntry,
        executable: Executable,
        assignment: DeviceAssignment,
        bound: Bound,
        roots: Sequence[Any],
        what: str,
        donated: Sequence[int] = (),
    ) -> None:
        self._name = name
        self._called = f"ts.{what}({name})"  # the call that compiles again
        self._entry = entry
        self._roots = roots
        self._donated = donated
        self._executable = executable
        self._assignment = assignment
        self._signature = bound.signature
        self._names = tuple(bound.names())
        self._given = tuple(x.sharding if getattr(x, "committed", False) else None for x in bound.operands)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; returns at once.

        Args:
            args, kwargs: as in `lower`, without the static ones.

        Raises:
            DtypeError: other containers, shapes or dtypes than it was compiled for; or a call inside a transformation,
                or on what requires a gradient.
            ShardingError: a committed Array with another layout; or the program is for an abstract mesh.

        Communication: the collectives in `as_text()`.
        """
        if is_tracing() or torch._C._functorch.maybe_current_level() is not None:
            problem = "a compiled function is called inside jit or a transformation"
            rule = "it is a program for values, and cannot be traced, mapped or differentiated"
            raise DtypeError(problem, got=self._name, rule=rule, try_=f"{self._called}, before lower()")
        operands = self._operands(args, kwargs)
        closed = self._entry.look_up(self._roots)
        if closed is None:
            rule = "what it closes over has the shapes and dtypes of then, and its modules are in the same mode"
            self._refuse("\n".join(self._entry.changes(self._roots)), rule)
        everything = [*operands, *closed]
        if is_on_tape(everything):
            problem = "a compiled function is called on a value that requires a gradient, or has a tangent"
            rule = "it is a program for values, and torch's tape would not see what it does"
            try_ = f"{self._called}, before lower(); x.detach(), or torch.no_grad() around the call"
            raise DtypeError(problem, got=self._name, rule=rule, try_=try_)
        self._check_places(everything)
        outputs = call(self._executable, everything, self._assignment_now(everything), self._donated)
        return assembled(self._entry.traced, outputs)

    def __repr__(self) -> str:
        return f"<program of {len(self.program.steps)} steps on {len(self.program.devices)} devices>"

    def __str__(self) -> str:
        return self.as_text()

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """In IPython: as it is printed."""
        printer.text(self.as_text())

    def _repr_html_(self) -> str:
        names = [*self._names, *closed_names(self._entry.traced)]
        axes = axis_names(self.program, self._assignment.mesh)
        costs = self.cost_analysis(), self.memory_analysis()
        return program_html(drawn_program(self.program, names, axes, self._assignment.platform, *costs))

    # ---- what it takes ----------------------------------------------------------------------------------------

    def _operands(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        form, nones = self._signature.tree, self._signature.nones
        known = list(tree_unflatten([None] * len(nones), form)[1])  # by name, in their order
        if set(kwargs) == set(known):
            kwargs = {name: kwargs[name] for name in known}
        leaves, given = tree_flatten((list(args), kwargs))
        left_out = tuple(x is None for x in leaves)
        if (given, left_out) != (form, nones):
            got = f"{spelled_call(given, left_out)}, compiled for {spelled_call(form, nones)}"
            self._refuse(got, "its arguments are put together as in lower(), static ones left out")
        operands = as_operands(leaves, lambda: self._names, "", self._name)
        wrong = [
            f"{name}: {shaped_type_of(x)}, compiled for {meta}"
            for name, x, meta in zip(self._names, operands, self._signature.metas, strict=True)
            if shaped_type_of(x) != meta
        ]
        if wrong:
            self._refuse("\n".join(wrong), "its arguments have the shapes and dtypes of those in lower()")
        if any(isinstance(x, ShapeDtypeStruct) for x in operands):
            self._refuse("a ShapeDtypeStruct, which has no values", "its arguments are Arrays, tensors and numbers")
        return operands

    def _refuse(self, got: str, rule: str) -> NoReturn:
        problem = f"{self._name} was compiled for other arguments"
        raise DtypeError(problem, got=got, rule=rule, try_=f"{self._called}, which compiles again")

    def _check_places(self, operands: Sequence[Any]) -> None:
        names = [*self._names, *("what it closes over",) * len(operands)]
        for name, x, layout in zip(names, operands, self._executable.inputs, strict=False):
            if getattr(x, "committed", False) and not is_same_placement(x._layout, layout):
                raise ShardingError(
                    f"{self._name} was compiled for arguments with other shardings",
                    got=f"{name} with {x.sharding!r}",
                    rule=f"it was compiled for {express(layout, self._assignment.mesh)!r}",
                    try_=f"ts.device_put the argument there; or {self._called}, which compiles again",
                )

    def _assignment_now(self, operands: Sequence[Any]) -> DeviceAssignment:
        """Where it runs, on the operands' mesh: it may have been compiled on an abstract mesh."""
        bound = [x for x in operands if getattr(x, "committed", False)]
        mesh = next((x._mesh for x in bound if x._mesh is not None), self._assignment.mesh)
        refuse_abstract(mesh, self._name)
        return replace(self._assignment, mesh=mesh, committed=self._assignment.committed or bool(bound))

    # ---- its properties ---------------------------------------------------------------------------------------

    @property
    def program(self) -> Program:
        """The program that each device runs."""
        return self._executable.program

    @property
    def input_shardings(self) -> tuple[Any, Any]:
        """The shardings of the arguments: (args, kwargs) with a Sharding for each tensor, without static ones."""
        mesh, shardings = self._assignment.mesh, iter(zip(self._given, self._executable.inputs, strict=False))

        def sharding_of(given: Sharding | None, layout: Any) -> Sharding:
            fits = given is not None and is_same_placement(given.layout(layout.ndim), layout)
            return given if given is not None and fits else express(layout, mesh)

        leaves = [None if none else sharding_of(*next(shardings)) for none in self._signature.nones]
        args, kwargs = tree_unflatten(leaves, self._signature.tree)
        return tuple(args), kwargs

    @property
    def output_shardings(self) -> Any:
        """The shardings of the results: the tree that the function returns, with a Sharding for each tensor."""
        named = self._executable.shardings or (None,) * len(self._executable.results)
        found = [
            given or express(result[0], self._assignment.mesh)
            for given, result in zip(named, self._executable.results, strict=True)
            if result is not None
        ]
        leaves = [found[x] if is_tensor else None for is_tensor, x in self._entry.traced.outputs]
        return tree_unflatten(leaves, self._entry.traced.out_tree)

    def as_text(self) -> str:
        """The program, one step per line: local shapes, collectives, and the bytes that a device sends."""
        return program_text(self.program, axis_names(self.program, self._assignment.mesh))

    def device_code(self) -> str:
        """The Python function that each worker process runs for a call: this text is compiled there, once.

        `aten_add` is torch's op `aten.add`, or a faster function with its results. `check()` raises if Ctrl-C has
        cancelled the call. A loop or a branch is one line, which calls the functions that follow. The same lines run
        one by one on a GPU, and on a device that has failed, records a profile, or has limited memory.

        Communication: none.

        In JAX: `compiled.runtime_executable().hlo_modules()` is nearest.

        Example:
            >>> import torch
            >>> import tinyshard as ts
            >>> rows = ts.NamedSharding(ts.AbstractMesh((2,), "d"), ts.P("d"))
            >>> x = ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=rows)
            >>> print(ts.jit(lambda x: x.sum(0) + 1).lower(x).compile().device_code())
            c0 = torch.tensor(1, dtype=torch.float32)
            <BLANKLINE>
            def program(operands):
                v0, = operands
                operands.clear()
                v1 = aten_sum(v0, [0])  # f32[4]
                v0 = None
                v2 = all_reduce(v1)  # f32[4], axes=(0,), op='sum'
                v1 = None
                v3 = aten_add(v2, c0)  # f32[4]
                v2 = None
                return v3,
        """
        return device_code(self.program)

    def cost_analysis(self) -> Cost:
        """Floating-point operations of one device, and the bytes that it sends, by collective and axis."""
        return cost_of(self.program, axis_names(self.program, self._assignment.mesh))

    def memory_analysis(self) -> MemoryAnalysis:
        """Bytes that one device holds: arguments, results, the peak, and during each step; a model.

        Arguments count from the first step to the last, donated ones to their last use; every other value counts from
        the step that makes it to the last step that needs it; results count to the end. A view takes no memory. The
        temporary memory of an op or a collective is not counted. `Device.memory_stats()` counts the same while the
        program runs.

        Returns:
            A MemoryAnalysis; printed, it has a line for each step.

        Communication: none.

        In JAX: `memory_analysis()` has `argument_size_in_bytes`, `output_size_in_bytes`, `alias_size_in_bytes` and
        `peak_memory_in_bytes`, and nothing step by step.

        Example:
            >>> import torch
            >>> import tinyshard as ts
            >>> rows = ts.NamedSharding(ts.AbstractMesh((2,), "d"), ts.P("d"))
            >>> x = ts.ShapeDtypeStruct((8, 4), torch.float32, sharding=rows)
            >>> memory = ts.jit(lambda x: torch.sin(x).T + 1).lower(x).compile().memory_analysis()
            >>> memory.argument_nbytes, memory.output_nbytes, memory.peak_nbytes
            (64, 64, 192)
            >>> print(memory)
            arguments 64 bytes a device, results 64, peak 192
                        128  aten.sin.default  %1: f32[4, 4]
                        128  aten.permute.default  %2: f32[4, 4]
                        192  aten.add.Tensor  %3: f32[4, 4]  <- peak
        """
        return memory_of(self.program, self._donated)


@dataclass(frozen=True, repr=False)
class Lowered:
    """A traced function, not yet partitioned. Made by `jit(f).lower(*args)`."""

    _traced: Traced
    _name: str
    _names: tuple[str, ...]
    _compile: Callable[[], Compiled]

    def __repr__(self) -> str:
        return f"<{self._name}, traced: {len(self._traced.graph.graph.nodes)} nodes>"

    def __str__(self) -> str:
        return self.as_text()

    def _repr_pretty_(self, printer: Any, is_cycle: bool) -> None:
        """In IPython: as it is printed."""
        printer.text(self.as_text())

    def _repr_html_(self) -> str:
        return program_html(drawn_graph(self._traced, self._name, self._names))

    @property
    def graph(self) -> torch.fx.GraphModule:
        """The ops on whole tensors.

        Communication: none.
        """
        return self._traced.graph

    @property
    def out_info(self) -> Any:
        """The tree that the function returns, with a ShapeDtypeStruct for each tensor.

        Communication: none.
        """
        metas = [shaped_type_of(node.meta["val"]) for node in self._traced.results]
        described: list[Any] = [ShapeDtypeStruct(meta.shape, meta.dtype) for meta in metas]
        return assembled(self._traced, described)

    def as_text(self) -> str:
        """The ops on whole tensors, one a line.

        Communication: none.
        """
        return graph_text(self._traced, self._name, self._names)

    def compile(self) -> Compiled:
        """Partition it for the layouts of the arguments.

        Communication: none; nothing is sent to a device.
        """
        return self._compile()


def collectives_in(compiled: Compiled) -> CollectiveCounts:
    """The collectives of a compiled program: kind, axes, how many, and bytes.

    Args:
        compiled: made by `ts.jit(f).lower(*args).compile()`, or by pmap's or shard_map's `lower`.

    Returns:
        A tuple with a CollectiveCount for each kind along the same axes: `kind`, `axes` (names of the mesh's axes),
        `count`, and `nbytes`, the bytes that the busiest device sends in all of them together. The bytes are a model,
        a lower bound where blocks go around a ring, not a measurement. Printed, it has a line for each.

    Raises:
        DtypeError: `compiled` is something else, such as the function itself.

    Communication: none; nothing runs.

    In JAX: has no counterpart; there one searches in `compiled.as_text()`. In PyTorch:
    `torch.distributed.tensor.debug.CommDebugMode` counts while a function runs.

    Example:
        >>> import torch
        >>> import tinyshard as ts
        >>> mesh = ts.AbstractMesh((4,), "d")
        >>> x = ts.ShapeDtypeStruct((8, 6), torch.float32, sharding=ts.NamedSharding(mesh, ts.P("d")))
        >>> compiled = ts.jit(lambda x: x.sum(0)).lower(x).compile()
        >>> ts.collectives_in(compiled)
        all_reduce over d: once, 36 bytes
        >>> [(each.kind, each.count) for each in ts.collectives_in(compiled)]
        [('all_reduce', 1)]
    """
    if not isinstance(compiled, Compiled):
        problem = "collectives are counted in a compiled program"
        rule = "it is made by lower(), with arguments of the function, and compile()"
        try_ = "ts.collectives_in(ts.jit(f).lower(x).compile())"
        raise DtypeError(problem, got=f"{type(compiled).__name__}", rule=rule, try_=try_)
    return compiled.cost_analysis().traffic
