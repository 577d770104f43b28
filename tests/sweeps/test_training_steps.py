"""Losses and gradients of a training step equal plain torch's in every layout of a mesh (4, 2) that fits.

Each tensor has every layout at least once, eager and on the local runtime (in `make test` every second one); a drawn
part of these runs under jit and on worker processes. `make sweep` runs all combinations of layouts of the tensors, in
every way.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import tinyshard as ts
from tests.extent import IS_SWEEP, IS_WHOLE, drawn
from tests.sweeps.nn_running import check_near
from tests.sweeps.training_steps import (
    TRAININGS,
    Training,
    blocks_of_examples,
    every_combination,
    every_layout,
    placed,
    plain_step,
    step,
    step_of_blocks,
)

DRAWN = drawn(1, 2, 2)  # how many layouts of a step run under jit, and on worker processes

WAYS = pytest.mark.parametrize("way", ["eager", "jit"])
STEPS = pytest.mark.parametrize("name", TRAININGS)


@pytest.fixture(scope="module", params=["local", "process"], autouse=True)
def runtime(request: Any) -> Iterator[str]:
    ts.init(devices=8, runtime=request.param)
    yield request.param
    ts.shutdown()


def chosen(layouts: list[Any], name: str, way: str, runtime: str) -> list[Any]:
    """The part of the layouts that this run goes through."""
    if IS_SWEEP or len(layouts) <= DRAWN:
        return layouts
    if (way, runtime) == ("eager", "local"):
        return layouts if IS_WHOLE else layouts[::2]
    return random.Random(f"{name} {way} {runtime}").sample(layouts, DRAWN)


def wrapped(way: str, run: Callable[..., Any]) -> Callable[..., Any]:
    return ts.jit(run) if way == "jit" else run


def check_step(run: Callable[..., Any], training: Training, params: Any, batch: Any, want: Any) -> None:
    """Run a step with its operands laid out so, and hold it against plain torch."""
    operands = dict(zip(training.params, placed(training.params.values(), params), strict=True))
    got = run(operands, placed(training.batch, batch))
    try:
        check_near(got, want)
    except AssertionError as problem:
        problem.add_note(f"parameters {params}, batch {batch}")
        raise


@WAYS
@STEPS
def test_a_step_is_plain_torchs_in_every_layout_of_the_batch(name: str, way: str, runtime: str) -> None:
    training = TRAININGS[name]
    want, run = plain_step(training), wrapped(way, step(training))
    layouts = every_combination(training.batch, 121) if IS_SWEEP else every_layout(training.batch)
    for batch in chosen(layouts, name, way, runtime):
        check_step(run, training, [ts.P()] * len(training.params), batch, want)


@WAYS
@STEPS
def test_a_step_is_plain_torchs_in_every_layout_of_the_parameters(name: str, way: str, runtime: str) -> None:
    training = TRAININGS[name]
    want, run = plain_step(training), wrapped(way, step(training))
    tensors = training.params.values()
    layouts = every_combination(tensors, 121) if IS_SWEEP else every_layout(tensors)
    for params in chosen(layouts, name, way, runtime):
        check_step(run, training, params, [ts.P("a")] * len(training.batch), want)


@WAYS
@STEPS
def test_a_step_by_shard_map_and_pmean_is_plain_torchs(name: str, way: str, runtime: str) -> None:
    training = TRAININGS[name]
    want = plain_step(training)
    for cut in chosen(blocks_of_examples(training), name, way, runtime):
        run = wrapped(way, step_of_blocks(training, cut))
        check_step(run, training, [ts.P()] * len(training.params), [cut] * len(training.batch), want)
