"""The table of deliberate faults: what a tired engineer might write, and the fast tests that must notice it.

`python -m tests.mutants` plants them one by one. To add one is to add a row. Its old text occurs exactly once in its
file; a test that it names is a fast one (not of tests/workers, tests/browser or tests/sweeps) and takes a few seconds.
A test with parameters is named whole, so that its rows may change, except where its rows take long together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """One deliberate fault.

    Attributes:
        name: what is broken, in words.
        file: in which file.
        old: the text there, which occurs exactly once.
        new: what stands in its place.
        caught_by: ids of one fast test, or two, of which one must fail.
    """

    name: str
    file: str
    old: str
    new: str
    caught_by: tuple[str, ...]


def _doctest(file: str, name: str) -> str:
    """The id of the example in a docstring."""
    return f"{file}::{file.removesuffix('.py').replace('/', '.')}.{name}"


CORE = (
    Fault(
        "a block's number is read with the least significant axis first",
        "tinyshard/core/layout.py",
        "    for a in cut:\n        value =",
        "    for a in reversed(cut):\n        value =",
        ("tests/unit/test_layout.py::test_a_block_is_the_number_that_the_coordinates_along_its_cuts_spell",),
    ),
    Fault(
        "a block's slice ends one too early",
        "tinyshard/core/layout.py",
        "slice(b * (n // k), (b + 1) * (n // k))",
        "slice(b * (n // k), (b + 1) * (n // k) - 1)",
        ("tests/unit/test_layout.py::test_the_blocks_tile_the_tensor",),
    ),
    Fault(
        "a permutation goes from target to source",
        "tinyshard/core/collectives.py",
        "source = {target: origin for origin, target in pairs}",
        "source = {origin: target for origin, target in pairs}",
        ("tests/unit/test_resharding.py::test_collective_permute_gives_the_target_the_sources_shard",),
    ),
    Fault(
        "an all_reduce is counted as half of its bytes",
        "tinyshard/core/collectives.py",
        "lambda m, n, p: 2 * m.nbytes * (n - 1) // n",
        "lambda m, n, p: m.nbytes * (n - 1) // n",
        (
            "tests/unit/test_lowering.py::test_the_collectives_of_a_compiled_layer_are_listed_by_kind_axes_count_and_bytes",
        ),
    ),
    Fault(
        "the positions of a group count the first axis of the mesh fastest",
        "tinyshard/core/collectives.py",
        "strides = [math.prod(axes[a + 1 :]) for a in range(len(axes))]",
        "strides = [math.prod(axes[:a]) for a in range(len(axes))]",
        ("tests/unit/test_resharding.py::test_a_group_is_a_line_of_the_grid_of_positions",),
    ),
    Fault(
        "the error for an unbound axis name is no NameError any more",
        "tinyshard/core/errors.py",
        "class AxisNameError(TinyshardError, NameError):",
        "class AxisNameError(TinyshardError, ValueError):",
        ("tests/unit/test_lax.py::test_a_name_outside_of_every_map_is_unbound",),
    ),
    Fault(
        "torch's default dtype is left out of the key of traces",
        "tinyshard/core/config.py",
        "mesh[0], torch.get_default_dtype(), autocast)",
        "mesh[0], autocast)",
        ("tests/unit/test_torch_state.py::test_an_op_and_a_trace_are_of_one_default_dtype",),
    ),
    Fault(
        "the outermost binding of an axis name is found in place of the innermost",
        "tinyshard/core/axis_names.py",
        "known = next((n for n in in_scope() if n.name == name), None)",
        "known = next((n for n in _scope.get() if n.name == name), None)",
        ("tests/unit/test_shadowed_names.py::test_size_mean_and_position_are_of_the_inner_axis",),
    ),
)

DRAW = (
    Fault(
        "the text picture has its rows upside down",
        "tinyshard/draw/text.py",
        "names = [column[k].line(width)",
        "names = [column[-1 - k].line(width)",
        ("tests/unit/test_draw_text.py::test_every_picture_has_straight_borders_and_names_every_block_in_order",),
    ),
    Fault(
        "the svg of a mesh names its rows by the axis of its columns",
        "tinyshard/draw/svg.py",
        "    return below, beside",
        "    return beside, below",
        ("tests/unit/test_sides_of_pictures.py::test_the_first_axis_of_a_mesh_is_beside_it_and_the_second_below",),
    ),
    Fault(
        "the words for a slice count blocks from 1",
        "tinyshard/draw/blocks.py",
        'f"{number * step}:{(number + 1) * step}"',
        'f"{number * step + 1}:{(number + 1) * step}"',
        ("tests/unit/test_draw_svg.py::test_a_grid_has_a_cell_for_each_block_with_its_slices_and_its_device",),
    ),
)

RUNTIME = (
    Fault(
        "a scan in reverse stacks its results from the first row on",
        "tinyshard/runtime/worker/flow.py",
        "        i = self._order[self._done - 1]\n        for stack",
        "        i = self._done - 1\n        for stack",
        ("tests/unit/test_scan.py::test_a_scan_of_any_layout_is_the_loop",),
    ),
    Fault(
        "a tensor is put on the devices without a snapshot of it",
        "tinyshard/runtime/local.py",
        "host.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)",
        "host.resolve_conj().resolve_neg().contiguous()",
        ("tests/unit/test_placement.py::test_a_later_change_of_the_host_tensor_does_not_reach_the_array",),
    ),
    Fault(
        "the user gets the devices' own memory in place of a copy",
        "tinyshard/runtime/local.py",
        "return {d: self._values[d].by_number[buffer.number].clone() for d in device_ids}",
        "return {d: self._values[d].by_number[buffer.number] for d in device_ids}",
        ("tests/unit/test_values_of_ones_own.py::test_to_write_into_what_device_get_gives_changes_no_array",),
    ),
    Fault(
        "a full cache drops what was used last",
        "tinyshard/core/cache.py",
        "self._kept.popitem(last=False)",
        "self._kept.popitem()",
        ("tests/unit/test_closed_over_and_hidden.py::test_a_cache_drops_what_was_used_longest_ago",),
    ),
    Fault(
        "a payload swallows the messages behind it",
        "tinyshard/runtime/wire.py",
        "part = self._bytes[position : position + payload_nbytes]",
        "part = self._bytes[position:]",
        ("tests/unit/test_messages_in_one_read.py::test_short_payloads_between_messages_come_with_one_read",),
    ),
    Fault(
        "the length of a message's head includes its payload",
        "tinyshard/runtime/wire.py",
        "_LENGTHS.pack(len(pickled), size)",
        "_LENGTHS.pack(len(pickled) + size, size)",
        ("tests/unit/test_wire.py::test_a_frame_in_one_piece_is_parsed",),
    ),
    Fault(
        "a small operand is written over while another device still reads it",
        "tinyshard/runtime/collectives/eager.py",
        "            self._wait_for_readers(slot)\n",
        "",
        ("tests/unit/test_shm_collectives.py::test_a_small_operand_that_a_device_still_reads_is_not_overwritten",),
    ),
    Fault(
        "the parts of a large sum do not reach its end",
        "tinyshard/runtime/collectives/several.py",
        "low, high = (total * k // count for k",
        "low, high = (total // count * k for k",
        (
            "tests/unit/test_shm_collectives.py"
            "::test_sums_of_many_elements_are_those_of_the_rows_whatever_lies_between_them",
        ),
    ),
    Fault(
        "a mean over devices is divided by the number of the others",
        "tinyshard/runtime/collectives/reduction.py",
        "np.divide(target, len(parts), out=target)",
        "np.divide(target, len(parts) - 1, out=target)",
        ("tests/unit/test_reduction.py::test_members_are_combined_one_after_the_other",),
    ),
    Fault(
        "the function of a program does not look whether its call is cancelled",
        "tinyshard/runtime/worker/steps.py",
        "if control.lost is not None or self.number <= control.cancelled_upto:",
        "if control.lost is not None:",
        (
            "tests/unit/test_device_code.py::test_a_call_that_is_cancelled_in_an_exchange_gives_zeros_in_all_that_follow",
        ),
    ),
    Fault(
        "after an error in the function of a program its step runs again",
        "tinyshard/runtime/worker/steps.py",
        "step, after = ready.steps[after], after + 1",
        "step = ready.steps[after]",
        ("tests/unit/test_device_code.py::test_an_exchange_that_raises_is_the_failure_and_the_others_go_on",),
    ),
    Fault(
        "the function of a program keeps values after their last use",
        "tinyshard/runtime/worker/device_code.py",
        "            if dead:\n",
        "            if not dead:\n",
        ("tests/unit/test_device_code.py::test_a_value_is_dropped_after_its_last_use_also_after_an_error",),
    ),
    Fault(
        "a value that is used again is overwritten",
        "tinyshard/runtime/worker/device_code.py",
        "for n in made if uses[n] == 1}",
        "for n in made if uses[n]}",
        (
            "tests/unit/test_device_code.py::test_a_large_result_is_written_into_an_operand_that_nothing_else_uses",
            "tests/unit/test_device_code.py::test_random_arithmetic_that_reuses_memory_gives_what_its_steps_give",
        ),
    ),
    Fault(
        "a sum of a view is taken for a sum of the whole where the view has another order",
        "tinyshard/compile/simplify.py",
        "if before is None or before.op not in _IN_ORDER or",
        "if before is None or",
        ("tests/unit/test_simplify.py::test_what_computes_nothing_new_is_left_out",),
    ),
    Fault(
        "products are joined where one operand is not there yet",
        "tinyshard/compile/join_products.py",
        "        elif (self._groups[maker].at if maker in self._groups else maker) < group.at:\n",
        "        elif True:\n",
        (
            "tests/unit/test_join_products.py::test_a_product_that_needs_the_other_and_one_whose_nans_are_looked_for_stay_alone",
        ),
    ),
    Fault(
        "a product is part of a joined sum though another step uses it",
        "tinyshard/compile/join_products.py",
        "while len(self._uses[number]) == 1 and",
        "while",
        ("tests/unit/test_join_products.py::test_sums_with_something_else_in_them_stay_sums",),
    ),
    Fault(
        "what gloo receives is not waited for",
        "tinyshard/runtime/collectives/gloo.py",
        "            for work in works:\n                work.wait()\n",
        "",
        ("tests/unit/test_gloo.py::test_two_devices_that_swap_begin_to_send_and_to_receive_before_they_wait",),
    ),
    Fault(
        "a mutex is not released where a wait is given up",
        "tinyshard/runtime/shm/monitor.py",
        "    def __exit__(self, *_: object) -> None:\n        self.release()\n",
        "    def __exit__(self, kind: object, *_: object) -> None:\n"
        "        if kind is None:\n            self.release()\n",
        ("tests/unit/test_monitor.py::test_what_is_checked_between_sleeps_ends_the_waiting",),
    ),
    Fault(
        "two phases of an exchange have the number of the next step",
        "tinyshard/runtime/shm/barrier.py",
        "return (call * _STEPS + step) * 2 + phase",
        "return call * _STEPS + step + phase",
        ("tests/unit/test_shm_collectives.py::test_exchanges_have_numbers_that_only_grow",),
    ),
    Fault(
        "the log is written over where a device has not read it",
        "tinyshard/runtime/shm/log.py",
        "self._free_upto = oldest + LOG_NBYTES",
        "self._free_upto = self._end + LOG_NBYTES",
        ("tests/unit/test_log.py::test_what_a_device_has_not_taken_is_not_written_over",),
    ),
    Fault(
        "a device that has made room for the controller stays away from its core",
        "tinyshard/runtime/launch/processors.py",
        "if self._small_calls >= SMALL_CALLS and",
        "if self._small_calls == 0 and",
        (
            "tests/unit/test_cores.py::test_a_device_that_has_another_core_is_there_from_the_last_of_some_small_calls_to_the_next_other_one",
        ),
    ),
    Fault(
        "a device looks for its bit in the first byte of the log's bits",
        "tinyshard/runtime/shm/log.py",
        "if ring[bits + self._byte] & self._bit:",
        "if ring[bits] & self._bit:",
        ("tests/unit/test_log.py::test_any_number_of_devices_is_told_apart",),
    ),
    Fault(
        "shared memory is freed though a second tensor has it",
        "tinyshard/runtime/shm/allocator.py",
        "        self._uses[key] -= 1\n"
        "        if not self._uses[key]:\n            del self._uses[key]\n            self.release(block)",
        "        self._uses[key] -= 1\n        self.release(block)",
        ("tests/unit/test_allocator.py::test_a_block_held_twice_by_one_member_stays_until_both_are_gone",),
    ),
    Fault(
        "what a device finishes wakes no thread that waits for it",
        "tinyshard/runtime/shm/completion.py",
        "if before < self._awaited[self._device] <= number:",
        "if before < self._awaited[self._device] < number:",
        ("tests/unit/test_completion.py::test_a_thread_that_waits_is_woken_when_all_that_it_needs_is_finished",),
    ),
    Fault(
        "a failed call's error does not reach what was computed from it",
        "tinyshard/runtime/controller/lineage.py",
        "            run.failures.setdefault(device, failure)\n",
        "            pass\n",
        ("tests/unit/test_lineage.py::test_a_settled_run_keeps_failures_and_forgets_parents",),
    ),
    Fault(
        "a wait is given up as soon as one device makes no progress",
        "tinyshard/runtime/controller/watchdog.py",
        "return mine if all(",
        "return mine if any(",
        ("tests/unit/test_watchdog.py::test_a_wait_is_given_up_only_if_none_that_it_depends_on_gets_on",),
    ),
    Fault(
        "a message that was sent in part is sent again from its start",
        "tinyshard/runtime/controller/connection.py",
        "self.unwritten.appendleft(piece[sent:])",
        "self.unwritten.appendleft(piece)",
        ("tests/unit/test_connection.py::test_what_the_control_line_has_no_room_for_is_said_later_whole_and_in_order",),
    ),
    Fault(
        "the controller lets in a worker with any proof",
        "tinyshard/runtime/launch/connect.py",
        'if not hmac.compare_digest(shown, proof(secret, "worker", theirs, mine)):',
        "if not shown:",
        ("tests/unit/test_authentication.py::test_a_controller_refuses_a_worker_that_does_not_know_the_secret",),
    ),
    Fault(
        "an agent is refused where an earlier one with its rank has gone",
        "tinyshard/runtime/launch/hosts.py",
        "if there is not None and there.is_there:",
        "if there is not None:",
        ("tests/unit/test_hosts.py::test_an_agent_may_come_again_when_the_one_with_its_rank_has_gone",),
    ),
    Fault(
        "the devices along one axis of a mesh are on one core",
        "tinyshard/runtime/launch/processors.py",
        "sum(device // base**place for place in places) % base",
        "device % base",
        ("tests/unit/test_cores.py::test_the_devices_along_any_axis_of_a_mesh_are_on_different_cores",),
    ),
    Fault(
        "a frozen device starts the next call",
        "tinyshard/runtime/worker/control.py",
        "self._is_frozen = True",
        "self._is_frozen = False",
        ("tests/unit/test_control.py::test_no_call_starts_while_it_is_frozen_and_then_those_that_are_left_out_do_not",),
    ),
    Fault(
        "the kernel for where takes -0.0 for zero",
        "tinyshard/runtime/worker/kernels.py",
        "if not all(map(_is_row_major, (mask, x, other))) or other.view(torch.int32).item():",
        "if not all(map(_is_row_major, (mask, x, other))) or other.item():",
        (
            "tests/unit/test_where_and_minus_zero.py::test_where_of_many_elements_keeps_the_sign_of_the_zero_that_it_puts",
        ),
    ),
)

SHARDING = (
    Fault(
        "an uneven cut is accepted",
        "tinyshard/sharding/base.py",
        "            if size % parts:\n",
        "            if size < parts:\n",
        ("tests/unit/test_sharding.py::test_a_wrong_sharding_is_refused_with_what_was_given",),
    ),
    Fault(
        "a tuple of names cuts a dim in the mesh's order of the axes",
        "tinyshard/sharding/named.py",
        "dims = tuple(tuple(number[n] for n in names) for names in self._names)",
        "dims = tuple(tuple(sorted(number[n] for n in names)) for names in self._names)",
        ("tests/unit/test_order_of_names.py::test_devices_hold_blocks_in_the_order_of_the_names",),
    ),
    Fault(
        "after a block with a mesh of its own no mesh is set",
        "tinyshard/sharding/mesh.py",
        "        config.mesh[0] = self._before",
        "        config.mesh[0] = None",
        ("tests/unit/test_order_of_names.py::test_a_mesh_that_is_set_within_another_one_gives_way_to_it_again",),
    ),
)

PARTITION = (
    Fault(
        "along explicit axes an operand is moved as along others",
        "tinyshard/partition/explicit.py",
        "if any(w[: len(h)] != h for h, w in pairs):",
        "if False:",
        ("tests/unit/test_explicit.py::test_where_operands_leave_a_choice_the_error_names_op_shardings_and_a_way_out",),
    ),
    Fault(
        "a product of which both sides are cut along the sum is taken along explicit axes",
        "tinyshard/partition/explicit.py",
        "if op in PRODUCTS and any(sum(a in cuts for cuts in cutting) > 1 for a in summed):",
        "if op in PRODUCTS and any(sum(a in cuts for cuts in cutting) > 2 for a in summed):",
        ("tests/unit/test_explicit.py::test_where_operands_leave_a_choice_the_error_names_op_shardings_and_a_way_out",),
    ),
    Fault(
        "rows become columns by an all_to_all with its dims exchanged",
        "tinyshard/partition/reshard.py",
        '(("split", other), ("join", d))',
        '(("split", d), ("join", other))',
        ("tests/unit/test_resharding.py::test_an_array_put_elsewhere_is_the_tensor_cut_anew",),
    ),
    Fault(
        "blocks change places from the new holder to the old one",
        "tinyshard/partition/reshard.py",
        "for pair in zip(held[at], targets, strict=True)",
        "for pair in zip(targets, held[at], strict=True)",
        ("tests/unit/test_order_of_names.py::test_blocks_go_to_the_devices_that_hold_them_in_the_other_order",),
    ),
    Fault(
        "a block comes from a device at another place along an axis that cuts nothing",
        "tinyshard/partition/reshard.py",
        "beside = sorted(set(have.free_axes) & set(want.free_axes))",
        "beside: list[int] = []",
        ("tests/unit/test_part_of_mesh.py::test_a_cut_that_changes_axes_stays_among_devices_of_one_block",),
    ),
    Fault(
        "parts of a sum are scaled in half precision, where they may vanish",
        "tinyshard/partition/rules/elementwise.py",
        " or dtype is torch.float16:",
        ":",
        ("tests/unit/test_partial_results.py::test_parts_of_a_sum_are_not_scaled_where_they_may_overflow_or_vanish",),
    ),
    Fault(
        "parts of integers are taken for parts of a sum by each linear op",
        "tinyshard/partition/layouts.py",
        " and all(d.is_floating_point or d.is_complex for d in dtypes)",
        "",
        ("tests/unit/test_layouts.py::test_parts_of_integers_are_combined_before_a_linear_op",),
    ),
    Fault(
        "a rule need not say what becomes of a factor",
        "tinyshard/partition/rule.py",
        "            if missing:\n",
        "            if False:\n",
        ("tests/unit/test_rule.py::test_a_rule_whose_result_says_nothing_of_a_factor_is_refused",),
    ),
    Fault(
        "a rule of a product forgets that the result is a sum",
        "tinyshard/partition/rules/matrices.py",
        '"mm": "i k, k j -> i j +k",',
        '"mm": "i k, k j -> i j =k",',
        ("tests/unit/test_partition.py::test_an_op_exchanges_what_it_must",),
    ),
    Fault(
        "an operand that is broadcast is made as if it were of the result's size",
        "tinyshard/partition/deferred.py",
        "cut if n == size else ()",
        "cut",
        (
            "tests/unit/test_placed_by_default.py::test_a_draw_that_is_repeated_along_a_cut_dim_is_made_whole_on_each_device",
        ),
    ),
)

ARRAYS = (
    Fault(
        "a gradient is left as it comes along explicit axes",
        "tinyshard/arrays/explicit.py",
        "return g if sharding is None else placed_at(g, Target(sharding, True))",
        "return g",
        ("tests/unit/test_explicit.py::test_a_gradient_that_comes_cut_is_whole_as_its_value",),
    ),
    Fault(
        "vmap forgets which axis cuts the examples of a constraint",
        "tinyshard/arrays/constraint.py",
        "entries.insert(dim, names)",
        "entries.insert(dim, None)",
        ("tests/unit/test_explicit.py::test_spmd_axis_name_cuts_the_examples_where_a_sharding_is_named",),
    ),
    Fault(
        "NumPy's functions of an Array take its values to the host",
        "tinyshard/arrays/function_overrides/ufuncs.py",
        "    meaning = UFUNCS.get(ufunc.__name__)\n",
        "    meaning = None\n",
        ("tests/unit/test_numpy_beside_arrays.py::test_a_function_of_numpys_gives_an_array",),
    ),
    Fault(
        "a function that NumPy alone has drops the gradient",
        "tinyshard/arrays/function_overrides/ufuncs.py",
        "    if any(isinstance(x, Immutable) and x.requires_grad",
        "    if any(isinstance(x, Immutable) and not x.requires_grad",
        (
            "tests/unit/test_numpy_beside_arrays.py::test_what_numpy_alone_can_do_is_done_on_the_values_and_not_for_a_gradient",
        ),
    ),
    Fault(
        "a piece of a block is put where it was in the old block",
        "tinyshard/arrays/transfer.py",
        "place.append(slice(low - t_start, high - t_start))",
        "place.append(slice(low - s_start, high - s_start))",
        ("tests/unit/test_resharding.py::test_layouts_without_common_axes_are_moved_by_index_ranges",),
    ),
    Fault(
        "a value that was placed nowhere is committed",
        "tinyshard/arrays/placement.py",
        "return put_plain(value, sharding, device is not None)",
        "return put_plain(value, sharding, True)",
        ("tests/unit/test_placed_by_default.py::test_device_put_without_a_device_commits_nothing",),
    ),
    Fault(
        "blocks that two live arrays share count twice",
        "tinyshard/arrays/live.py",
        "                seen.add(x._buffer.number)\n",
        "",
        ("tests/unit/test_live.py::test_nbytes_are_those_of_each_devices_blocks_and_shared_ones_count_once",),
    ),
)

COMPILE = (
    Fault(
        "of branches the cheapest is counted",
        "tinyshard/compile/cost.py",
        "[max(step.bodies, key=_weight)]",
        "[min(step.bodies, key=_weight)]",
        ("tests/unit/test_branches.py::test_of_branches_the_one_that_costs_most_is_counted",),
    ),
    Fault(
        "the body of a loop is counted once",
        "tinyshard/compile/cost.py",
        'times * int(step.kwargs.get("length", 1))',
        "times",
        ("tests/unit/test_scan.py::test_the_analyses_count_each_round",),
    ),
    Fault(
        "what the body of a loop holds is not counted",
        "tinyshard/compile/memory.py",
        "found.append(nbytes + _within(program, step))",
        "found.append(nbytes)",
        ("tests/unit/test_scan.py::test_the_analyses_count_each_round",),
    ),
    Fault(
        "all_reduce forgotten in a jitted function after a product over a cut dim",
        "tinyshard/compile/spmd.py",
        "done.append(x if isinstance(x, UnalignedVar | Value) else reduce_partial(builder, walk.placed(x)))",
        "done.append(x if isinstance(x, UnalignedVar | Value) else walk.placed(x))",
        ("tests/unit/test_lowering.py::test_a_contraction_over_a_sharded_dim_has_exactly_one_reduction",),
    ),
    Fault(
        "a static argument is left out of the key of traces",
        "tinyshard/compile/signature.py",
        "tuple((key, types_in(value), value) for key, value in static)",
        "tuple((key, types_in(value)) for key, value in static)",
        ("tests/unit/test_jit_static_arguments.py::test_a_static_argument_is_a_python_value_by_position_and_by_name",),
    ),
    Fault(
        "equal static values with other types inside share a trace",
        "tinyshard/compile/signature.py",
        "tuple((key, types_in(value), value) for key, value in static)",
        "tuple((key, type(value), value) for key, value in static)",
        (
            "tests/unit/test_jit_static_arguments.py::test_equal_static_values_with_other_types_inside_do_not_share_a_trace",
        ),
    ),
    Fault(
        "a Python float beside doubles is rounded to single precision",
        "tinyshard/compile/signature.py",
        "x.dtype in (torch.float64, torch.complex128) for x in operands",
        "x.dtype == torch.complex128 for x in operands",
        ("tests/unit/test_torch_state.py::test_a_python_float_is_not_rounded_beside_doubles",),
    ),
    Fault(
        "a trace forgets how what it closes over was cut along explicit axes",
        "tinyshard/compile/trace_cache.py",
        "and tuple(map(_type_of, found)) == self.closed else None",
        "and [t for t, _ in map(_type_of, found)] == [t for t, _ in self.closed] else None",
        ("tests/unit/test_explicit.py::test_what_is_closed_over_has_a_type_and_another_one_is_traced_again",),
    ),
    Fault(
        "a program keeps the shapes that it closed over at its trace",
        "tinyshard/compile/trace_cache.py",
        "return found if len(found) == len(now) and tuple(map(_type_of, found)) == self.closed else None",
        "return found if len(found) == len(now) else None",
        ("tests/unit/test_closed_over_shapes.py::test_a_global_of_another_shape_or_dtype_is_traced_again",),
    ),
    Fault(
        "only the last product is counted in the operations of a program",
        "tinyshard/compile/cost.py",
        "flops += times * flops_of(part, step)",
        "flops = times * flops_of(part, step)",
        ("tests/unit/test_lowering.py::test_costs_are_counted_by_collective_and_axes",),
    ),
    Fault(
        "a result is not held to the end of the memory line",
        "tinyshard/compile/memory.py",
        "for n in [*kept, *program.outputs]:\n        last",
        "for n in kept:\n        last",
        ("tests/unit/test_memory_analysis.py::test_a_result_is_held_to_the_end",),
    ),
    Fault(
        "the branches of a cond in a trace are exchanged",
        "tinyshard/compile/cond.py",
        "for f in (true_fn, false_fn))",
        "for f in (false_fn, true_fn))",
        ("tests/unit/test_jit_control_flow.py::test_cond_chooses_a_branch_by_value",),
    ),
)

DISPATCH = (
    Fault(
        "the dtype is left out of the key of an op's programs",
        "tinyshard/dispatch/eager.py",
        "return (tree._meta, tree._layout)",
        "return (tree.shape, tree._layout)",
        ("tests/unit/test_partition.py::test_another_shape_dtype_or_layout_is_planned_anew",),
    ),
    Fault(
        "1, 1.0 and True share an op's program",
        "tinyshard/core/cache.py",
        "return (type(x), repr(x) if isinstance(x, _BY_TEXT) else x)",
        "return x",
        ("tests/unit/test_partition.py::test_scalars_that_compare_equal_do_not_share_a_program",),
    ),
    Fault(
        "a write in place reaches the user's own array",
        "tinyshard/dispatch/inplace.py",
        "all(is_own(x) and (only_shape or not root_of(x)._viewed) for x in targets)",
        "all(only_shape or not root_of(x)._viewed for x in targets)",
        ("tests/unit/test_array.py::test_changing_an_array_in_place_names_what_to_do_instead",),
    ),
)

PRIMITIVES = (
    Fault(
        "the results of a scan have one row",
        "tinyshard/primitives/scan.py",
        "return ShapedType((self.length, *row.shape), row.dtype)",
        "return ShapedType((1, *row.shape), row.dtype)",
        ("tests/unit/test_scan.py::test_a_scan_of_arrays_outside_of_jit_is_jitted_and_differentiated_there",),
    ),
    Fault(
        "psum is transposed to the identity",
        "tinyshard/primitives/collective.py",
        "        kind, params = (_TRANSPOSED_TYPED if is_typed else _TRANSPOSED)[call.kind](call.arguments)\n",
        '        if call.kind == "all_reduce":\n            return [g]\n'
        "        kind, params = (_TRANSPOSED_TYPED if is_typed else _TRANSPOSED)[call.kind](call.arguments)\n",
        ("tests/unit/test_lax.py::test_the_gradient_of_a_sum_of_squares_counts_every_position",),
    ),
    Fault(
        "the gradient of ppermute goes on in place of back",
        "tinyshard/primitives/collective.py",
        'tuple((t, s) for s, t in p["pairs"])',
        'tuple(p["pairs"])',
        ("tests/unit/test_gradient_of_a_shift.py::test_the_gradient_of_a_permutation_is_the_way_back",),
    ),
    Fault(
        "a result that differs along another axis than the reduced one passes for the same",
        "tinyshard/primitives/collective.py",
        "return operand - own if call.groups is None else operand",
        "return frozenset() if call.groups is None else operand",
        ("tests/unit/test_promises_of_specs.py::test_a_spec_that_the_graph_does_not_bear_out_is_an_error",),
    ),
    Fault(
        "a rotation of threefry is off",
        "tinyshard/primitives/threefry.py",
        "((13, 15, 26, 6), (17, 29, 16, 24))",
        "((13, 15, 26, 6), (17, 29, 16, 23))",
        ("tests/unit/test_random.py::test_words_are_those_that_the_authors_of_threefry_published",),
    ),
    Fault(
        "a block's counters begin at that of the block before",
        "tinyshard/primitives/random_bits.py",
        "index = torch.arange(block[dim]) + coordinates[dim] * block[dim]",
        "index = torch.arange(block[dim]) + coordinates[dim]",
        ("tests/unit/test_random.py::test_the_counters_of_a_block_are_the_row_major_numbers_of_its_elements",),
    ),
    Fault(
        "an odd number of words is filled up with the next counter",
        "tinyshard/primitives/legacy_threefry.py",
        "torch.where(c < count, c, 0)",
        "torch.where(c <= count, c, 0)",
        ("tests/unit/test_random.py::test_an_odd_number_of_original_words_is_filled_up_with_a_zero",),
    ),
)

RANDOM = (
    Fault(
        "a number is folded into a key as the high word of the counter",
        "tinyshard/random/key_creation.py",
        "torch.zeros_like(low), low), -1)",
        "low, torch.zeros_like(low)), -1)",
        ("tests/unit/test_random_parity.py::test_values_are_those_of_jax[fold_in-partitionable]",),
    ),
    Fault(
        "folding in uses a key up",
        "tinyshard/random/key_creation.py",
        'checked_key("fold_in", key, consumes=False)',
        'checked_key("fold_in", key)',
        ("tests/unit/test_random.py::test_folding_in_does_not_use_a_key_up_and_a_key_made_again_is_new",),
    ),
    Fault(
        "a shuffle sorts its words as signed numbers",
        "tinyshard/random/choices.py",
        '"bits", torch.int32).long() & MASK\n',
        '"bits", torch.int32).long()\n',
        ("tests/unit/test_random_parity.py::test_values_are_those_of_jax[permutation-partitionable]",),
    ),
)

LAX = (
    Fault(
        "an associative scan combines a running result and an element in the wrong order",
        "tinyshard/lax/associative_scan.py",
        "combine(part(odd, 0, (count - 1) // 2), part(elements, 2, None, 2))",
        "combine(part(elements, 2, None, 2), part(odd, 0, (count - 1) // 2))",
        ("tests/unit/test_associative_scan.py::test_products_of_matrices_keep_their_order",),
    ),
    Fault(
        "map of batches drops the rows that are left over",
        "tinyshard/lax/loops.py",
        "    if whole < len(rows[0]):",
        "    if not parts:",
        ("tests/unit/test_loops.py::test_map_is_the_function_on_each_row",),
    ),
    Fault(
        "the mean within groups is divided by the size of the whole axis",
        "tinyshard/lax/reduce.py",
        "    size = axis_total(axes, groups)\n",
        "    size = axis_total(axes)\n",
        ("tests/unit/test_lax.py::test_vmap_and_pmap_give_what_numpy_gives",),
    ),
    Fault(
        "axis_index counts the first of several names fastest",
        "tinyshard/lax/index.py",
        "total * axis_total(part) + place",
        "total + place * axis_total(part)",
        ("tests/unit/test_order_of_names.py::test_collectives_over_two_names_count_the_last_one_fastest",),
    ),
    Fault(
        "all_gather over several names has the first one innermost",
        "tinyshard/lax/gather.py",
        "for part in reversed(one_by_one(axes)):",
        "for part in one_by_one(axes):",
        ("tests/unit/test_order_of_names.py::test_collectives_over_two_names_count_the_last_one_fastest",),
    ),
    Fault(
        "pshuffle sends where it should fetch: a ring in the wrong direction",
        "tinyshard/lax/permute.py",
        "[(source, target) for target, source in enumerate(sources)]",
        "[(source, target) for source, target in enumerate(sources)]",
        (_doctest("tinyshard/lax/permute.py", "pshuffle"),),
    ),
)

TRANSFORMS = (
    Fault(
        "a mapped number chooses the branch after its own",
        "tinyshard/transforms/branch_rules.py",
        "(index <= number)",
        "(index < number)",
        ("tests/unit/test_branches.py::test_each_example_of_a_mapped_number_has_its_branch",),
    ),
    Fault(
        "a branch is given what another one closes over",
        "tinyshard/lax/branches.py",
        "((closed[number][0] if closed[number] else first, before), (first, after))",
        "((first, before), (first, after))",
        ("tests/unit/test_branches.py::test_a_switch_calls_the_branch_of_the_number_or_the_nearest",),
    ),
    Fault(
        "examples of a mapped while_loop go on after their end",
        "tinyshard/transforms/while_rules.py",
        "goes_on.reshape(size, *[1] * (x.dim() - 1)), x, before)",
        "goes_on.reshape(size, *[1] * (x.dim() - 1)), x, x)",
        ("tests/unit/test_loops.py::test_each_example_of_a_mapped_while_loop_goes_round_as_often_as_it_asks",),
    ),
    Fault(
        "devices may part before they exchange data",
        "tinyshard/transforms/mapped_function.py",
        "        if region.asks:\n",
        "        if False:\n",
        (
            "tests/unit/test_loops.py::test_a_while_loop_that_may_end_for_some_devices_before_others_exchange_is_refused",
        ),
    ),
    Fault(
        "a gradient in a shard_map over a part of the axes computes the function again",
        "tinyshard/compile/spmd.py",
        "return self.builder.once(key, lambda: self._called(node, args, kwargs))",
        "return self._called(node, args, kwargs)",
        ("tests/unit/test_part_of_mesh.py::test_a_step_sends_what_the_partitioner_alone_sends",),
    ),
    Fault(
        "in a shard_map inside another one a gradient is not summed over the outer one's axes",
        "tinyshard/transforms/mapped_function.py",
        "_alike([capture_outer(x) for x in everything])",
        "[capture_outer(x) for x in everything]",
        ("tests/unit/test_part_of_mesh.py::test_shard_map_over_the_axes_that_another_one_leaves",),
    ),
    Fault(
        "a device that has failed asks for another round",
        "tinyshard/transforms/partitioned_bodies.py",
        "    if body.program.communicates or test.program.communicates:\n",
        "    if False:\n",
        ("tests/unit/test_loops.py::test_the_devices_agree_to_go_on_where_they_exchange_data",),
    ),
    Fault(
        "the gradient of a scan goes forwards",
        "tinyshard/transforms/scan_rules.py",
        "scan.length, not scan.reverse)",
        "scan.length, scan.reverse)",
        ("tests/unit/test_scan.py::test_the_gradient_of_a_jitted_scan_is_the_loops",),
    ),
    Fault(
        "the gradient of what a scan closes over is that of one round",
        "tinyshard/transforms/scan_rules.py",
        "*(a + g for a, g in zip(sums, of_closed, strict=True))",
        "*(g for a, g in zip(sums, of_closed, strict=True))",
        ("tests/unit/test_scan.py::test_the_gradient_of_a_jitted_scan_is_the_loops",),
    ),
    Fault(
        "a carry stays as its first value is cut",
        "tinyshard/transforms/partitioned_bodies.py",
        "_ROUNDS = 3 ",
        "_ROUNDS = 0 ",
        ("tests/unit/test_scan.py::test_a_carry_takes_the_layout_that_the_body_gives_it",),
    ),
    Fault(
        "vmap leaves a part of the carry unmapped that comes to depend on what is mapped",
        "tinyshard/transforms/bodies.py",
        "or any(self._made[x] for x in node.all_input_nodes)",
        "",
        ("tests/unit/test_scan.py::test_vmap_of_a_scan_is_vmap_of_the_loop",),
    ),
    Fault(
        "vmap leaves the mapped dim of a result in front",
        "tinyshard/transforms/vmap.py",
        "next(outputs)[:size].movedim(0, axis)",
        "next(outputs)[:size]",
        ("tests/unit/test_vmap.py::test_out_axes_may_be_any_dim_of_the_result",),
    ),
    Fault(
        "what checkpoint computes again is merged with what was computed forwards",
        "tinyshard/transforms/call_rules.py",
        "return builder.apart() if call.derivation.is_apart else",
        "return builder.apart() if False else",
        ("tests/unit/test_checkpoint.py::test_in_a_mapped_function_equal_steps_are_not_merged_unless_asked_for",),
    ),
    Fault(
        "a policy of checkpoint saves values and computes them again all the same",
        "tinyshard/transforms/cutting.py",
        "        node.replace_all_uses_with(placeholder)\n",
        "",
        ("tests/unit/test_checkpoint.py::test_policies_by_name_save_what_is_named_and_no_more",),
    ),
    Fault(
        "the outer one of two gradients uses the custom rule again",
        "tinyshard/transforms/call_rules.py",
        "if ctx.is_outer or not",
        "if not",
        ("tests/unit/test_custom_derivatives.py::test_the_outer_of_two_gradients_differentiates_what_fwd_does",),
    ),
    Fault(
        "the derivative of a holomorphic function is conjugated",
        "tinyshard/transforms/autodiff.py",
        "[g.conj() for g in found",
        "[g for g in found",
        ("tests/unit/test_custom_derivatives.py::test_derivatives_of_holomorphic_functions_are_complex",),
    ),
    Fault(
        "jacfwd leaves the dim of its columns in front",
        "tinyshard/transforms/jacobians.py",
        "_apart(of, column.movedim(0, -1))",
        "_apart(of, column)",
        ("tests/unit/test_autodiff.py::test_jacobians_are_those_of_finite_differences",),
    ),
    Fault(
        "the values of several argnums are put in each other's places",
        "tinyshard/transforms/autodiff.py",
        "    return values[0] if isinstance(numbers, int) else values\n",
        "    return values[0] if isinstance(numbers, int) else values[::-1]\n",
        ("tests/unit/test_autodiff.py::test_jacobians_of_trees_nest_results_outside_and_arguments_inside",),
    ),
    Fault(
        "pmap takes in_axes of static arguments for those of the next ones",
        "tinyshard/transforms/pmap.py",
        "enumerate(self._in_axes) if i not in static)",
        "enumerate(self._in_axes) if i < len(args))",
        ("tests/unit/test_axes_beside_static_arguments.py::test_a_static_argument_takes_its_own_entry_with_it",),
    ),
)

TOP = (
    Fault(
        "a worker waits nan seconds for its controller",
        "tinyshard/worker.py",
        "if not seconds >= 0:",
        "if seconds < 0:",
        ("tests/unit/test_hosts.py::test_what_is_no_number_of_seconds_is_refused_by_a_worker",),
    ),
)

COURSE = (
    Fault(
        "a wrong answer climbs two rungs of the ladder",
        "course/checking.py",
        "rung = min(earned, len(exercise.hints))",
        "rung = min(earned + 1, len(exercise.hints))",
        ("tests/course/test_check.py::test_wrong_answers_climb_the_ladder_and_stay_on_its_last_rung",),
    ),
    Fault(
        "a wrong answer takes back what was passed",
        "course/progress.py",
        "before.is_passed or is_passed, recognised)",
        "is_passed, recognised)",
        ("tests/course/test_check.py::test_a_right_answer_is_passed_and_stays_so",),
    ),
    Fault(
        "the latency of a collective counts once, however many rounds it takes",
        "course/planner.py",
        "ROUNDS[rounds][step.op](n) * link.latency_s + carried_s",
        "link.latency_s + carried_s",
        ("tests/course/test_planner.py::test_an_all_reduce_on_one_host_is_a_ring_over_its_own_links",),
    ),
    Fault(
        "whoever has read an answer may still predict it",
        "course/predicted.py",
        "if id in _explained or (id in known and known[id].is_explained):",
        "if id in known and known[id].is_explained:",
        (
            "tests/course/test_predictions.py::test_whoever_has_read_the_answer_does_not_predict_it_before_the_next_kernel",
        ),
    ),
    Fault(
        "the handout has the solutions in it",
        "course/handout.py",
        'STAYS_BEHIND = ("solutions", "instructor",',
        'STAYS_BEHIND = ("instructor",',
        ("tests/course/test_handout.py::test_answers_and_the_instructors_pages_stay_behind",),
    ),
    Fault(
        "an edited lesson is written over by its new version",
        "course/working_copy.py",
        "        if is_edited:\n            beside =",
        "        if is_edited and name not in known:\n            beside =",
        ("tests/course/test_lessons.py::test_the_new_version_of_an_edited_lesson_is_put_beside_it_once",),
    ),
    Fault(
        "a learner with two files in the room counts twice",
        "course/room.py",
        "learners[learner_in(kept) or str(path)]",
        "learners[str(path)]",
        ("tests/course/test_room.py::test_collected_working_folders_are_a_room_too_and_nobody_counts_twice",),
    ),
    Fault(
        "on the ladder every exchange is a round, whether it waits for another one or not",
        "course/ladder/rung.py",
        "before = max((rounds[v.number] for v in values_in((step.args, step.kwargs))), default=0)",
        "before = max(rounds)",
        ("tests/course/test_ladder.py::test_rounds_are_the_longest_chain_of_exchanges",),
    ),
    Fault(
        "the lesson's ring sends to the device before",
        "course/schedules.py",
        "before, behind = (device - 1) % count, (device + 1) % count",
        "behind, before = (device - 1) % count, (device + 1) % count",
        (_doctest("course/schedules.py", "ring"),),
    ),
    Fault(
        "bytes go through a link that is cut",
        "course/two_hosts.py",
        "            self._passes.wait()\n",
        "",
        ("tests/course/test_two_hosts.py::test_what_is_sent_into_a_cut_link_arrives_when_it_is_joined",),
    ),
    Fault(
        "an exercise that was tried counts as passed",
        "course/commands/progress.py",
        "still = [id for id in all_ids if not known.get(id, Record()).is_passed]",
        "still = [id for id in all_ids if id not in known]",
        (
            "tests/course/test_progress_command.py"
            "::test_passed_and_tried_ones_are_marked_and_the_next_is_the_first_that_is_not_passed",
        ),
    ),
    Fault(
        "the doctor stops at a machine where the lessons run less well",
        "course/doctor/machine.py",
        "State.WEAK if 2 * free_bytes >= NEEDED_BYTES else State.FATAL",
        "State.WEAK if free_bytes >= NEEDED_BYTES else State.FATAL",
        ("tests/course/test_doctor.py::test_memory_is_judged_against_what_the_lessons_take",),
    ),
    Fault(
        "a small error of an answer is taken for a wrong answer",
        "course/exercises/compare.py",
        "rtol=tolerance, atol=tolerance",
        "rtol=0, atol=0",
        ("tests/course/test_compare.py::test_equal_values_of_any_kind_do_not_differ",),
    ),
    Fault(
        "a hint for another mistake",
        "course/exercises/lesson_06.py",
        "if not difference(got, MATRIX / halves.sum(1, keepdim=True)):",
        "if not difference(got, MATRIX / squares.sum((1, 2))[:, None]):",
        ("tests/course/test_exercises.py::test_a_wrong_answer_is_refused_with_its_hint[06.1-wrong-3]",),
    ),
    Fault(
        "a solution takes one column too few",
        "course/solutions/lesson_00.py",
        "    mine = slice(k * width, (k + 1) * width)\n",
        "    mine = slice(k * width, (k + 1) * width - 1)\n",
        ("tests/course/test_exercises.py::test_the_solution_is_passed_and_told_why_it_is_right[00.1]",),
    ),
    Fault(
        "a prediction's first choice passes for the right one",
        "course/predictions/prediction.py",
        "return next(letter for letter in self.letters if self.choice(letter).is_right)",
        "return next(letter for letter in self.letters if self.choice(letter).text)",
        ("tests/course/test_predictions.py::test_without_a_choice_the_right_one_is_explained_and_nothing_is_written",),
    ),
    Fault(
        "the clock of the half day does not add up",
        "course/instructor/half-day.md",
        "| 0:31 | 24 | 01 |",
        "| 0:31 | 26 | 01 |",
        ("tests/course/test_instructor.py::test_the_clock_of_a_day_adds_up",),
    ),
    Fault(
        "the parts of a bar are drawn on one another",
        "course/widgets/bars.py",
        "        x += long\n",
        "",
        ("tests/course/test_bars.py::test_parts_are_end_to_end_and_words_behind_the_last",),
    ),
    Fault(
        "the stepper shows each device's messages as if it had received them",
        "course/widgets/traffic.py",
        "sums[message.source] += message.nbytes",
        "sums[message.target] += message.nbytes",
        ("tests/course/test_recorded_senders.py::test_only_a_device_that_sends_has_sent",),
    ),
    Fault(
        "exchanges are as low as the steps that compute",
        "course/widgets/schedule.py",
        "height = STRIP if moment.communicates else STRIP / 2",
        "height = STRIP / 2",
        ("tests/course/test_widgets_schedule.py::test_steps_that_exchange_are_taller_and_named_in_words",),
    ),
)

OPTIM = (
    Fault(
        "gradients of a small norm are scaled up",
        "tinyshard/optim/clipping.py",
        ".clamp(max=1.0)",
        "",
        ("tests/unit/test_optim.py::test_the_global_norm_is_that_of_one_vector",),
    ),
    Fault(
        "a schedule sees the first update again and again",
        "tinyshard/optim/functional.py",
        '"count": state["count"] + 1',
        '"count": state["count"]',
        ("tests/unit/test_optim.py::test_a_schedule_is_a_function_of_the_number_of_updates",),
    ),
)

FILES = (
    Fault(
        "a damaged file is read",
        "tinyshard/core/stored_blocks.py",
        "if zlib.crc32(block[at : at + PIECE_NBYTES]) != part.checksums[number]:",
        "if False:",
        ("tests/unit/test_files.py::test_a_changed_bit_is_an_error_that_names_the_file",),
    ),
    Fault(
        "of a block that several devices hold each writes a copy",
        "tinyshard/arrays/file_transfer.py",
        "device = min(owners, key=lambda d: (nbytes.get(d, 0), d))",
        "device = owners[0]",
        ("tests/unit/test_files.py::test_what_all_devices_hold_is_shared_out_among_them",),
    ),
    Fault(
        "where two names cannot be exchanged, the old tree is gone first",
        "tinyshard/core/replaced_folder.py",
        "return before(folder) if not folder.exists() and before(folder).exists() else folder",
        "return folder",
        ("tests/unit/test_files.py::test_killed_between_two_renames_the_old_tree_is_read_and_saved_over",),
    ),
    Fault(
        "what is out of bounds is written to the nearest row",
        "tinyshard/arrays/at.py",
        "at = torch.where(place.inside.flatten(), at, size)",
        "at = torch.where(place.inside.flatten(), at, size - 1)",
        ("tests/unit/test_at.py::test_what_is_left_out_hides_nothing_that_names_the_nearest",),
    ),
    Fault(
        "a block that a callback gives is not copied",
        "tinyshard/arrays/from_parts.py",
        "copies[block] = runtime.snapshot(values.to(dtype))",
        "copies[block] = values.to(dtype)",
        ("tests/unit/test_arrays_from_parts.py::test_what_a_callback_gives_may_change_afterwards",),
    ),
)

PROFILER = (
    Fault(
        "the wait of an exchange counts as exchanging",
        "tinyshard/profiler/events.py",
        "return self.end_ns - self.start_ns - self.wait_ns",
        "return self.end_ns - self.start_ns",
        ("tests/unit/test_profiler.py::test_the_shares_of_a_device_add_up_to_the_wall_time",),
    ),
    Fault(
        "a device waits in an exchange until it is over",
        "tinyshard/profiler/joining.py",
        "min(steps[last].start_ns, steps[i].end_ns) - steps[i].start_ns",
        "steps[i].end_ns - steps[i].start_ns",
        (
            "tests/unit/test_profiler.py::"
            "test_an_exchange_waits_until_the_last_device_has_started_it_whatever_the_clocks_say",
        ),
    ),
    Fault(
        "the bridge starts a program that it does not have",
        "course/bridge/launch.py",
        "    if name not in programs:",
        "    if not name:",
        ("tests/course/test_bridge.py::test_a_program_that_is_not_there_is_refused_with_those_that_are",),
    ),
    Fault(
        "a derivative performs the effects of what it computes again",
        "tinyshard/core/evaluate.py",
        "token = _is_silent.set(True)",
        "token = _is_silent.set(False)",
        ("tests/unit/test_debug.py::test_a_print_comes_once_for_each_value",),
    ),
)

FAULTS = (
    *CORE, *DRAW, *RUNTIME, *SHARDING, *PARTITION, *ARRAYS, *COMPILE, *DISPATCH, *PRIMITIVES, *RANDOM, *OPTIM, *LAX,
    *TRANSFORMS, *TOP, *COURSE, *FILES, *PROFILER,
)  # fmt: skip
