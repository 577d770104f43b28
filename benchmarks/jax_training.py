"""The training of `tests/training.py` in JAX: AdamW by hand, for optax is not what is measured."""

from __future__ import annotations

import fnmatch
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.transformer import DEPTH, HEADS, MICRO_BATCHES, PLANS, parameters, tokens

MAX_NORM, PEAK, WARM_UP, STEPS = 1.0, 3e-3, 5, 50
BETAS, EPSILON, DECAY = (0.9, 0.95), 1e-8, 0.1


def _norm(params: Any, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
    return (scaled * params[f"{name}.weight"] + params[f"{name}.bias"]).astype(x.dtype)


def _dense(params: Any, name: str, x: Any) -> Any:
    return x @ params[f"{name}.weight"].T + params[f"{name}.bias"]


@jax.checkpoint
def _layer(params: Any, x: Any) -> Any:
    y = _norm(params, "before", x)
    q, k, v = (_dense(params, name, y).reshape(*y.shape[:2], HEADS, -1) for name in "qkv")
    x = x + _dense(params, "o", jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(x.shape))
    return x + _dense(params, "down", jax.nn.gelu(_dense(params, "up", _norm(params, "after", x)), approximate=False))


def _loss(params: Any, micro: Any, dtype: Any) -> Any:
    params = {name: p.astype(dtype) for name, p in params.items()}
    read, targets = micro[:, :-1], micro[:, 1:]
    x = params["words.weight"][read] + params["places.weight"]
    for i in range(DEPTH):
        start = f"layers.{i}."
        x = _layer({name.removeprefix(start): p for name, p in params.items() if name.startswith(start)}, x)
    logits = _dense(params, "head", _norm(params, "norm", x)).astype(jnp.float32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), targets[..., None], -1).mean() / MICRO_BATCHES


def _rate(count: Any) -> Any:
    falling = 0.55 + 0.45 * jnp.cos(math.pi * (count - WARM_UP) / (STEPS - WARM_UP))
    return PEAK * jnp.where(count < WARM_UP, (count + 1) / WARM_UP, falling)


def _step(params: Any, state: Any, tokens: Any, dtype: Any) -> Any:
    def add(total: Any, micro: Any) -> Any:
        return jax.tree.map(jnp.add, total, jax.value_and_grad(_loss)(params, micro, dtype)), None

    nothing = jnp.zeros(()), jax.tree.map(jnp.zeros_like, params)
    (loss, grads), _ = jax.lax.scan(add, nothing, tokens)
    norm = jnp.sqrt(sum((g**2).sum() for g in grads.values()))
    grads = {name: g * jnp.minimum(1, MAX_NORM / (norm + 1e-6)) for name, g in grads.items()}
    firsts, seconds, count = state
    rate, steps = _rate(count), count + 1
    firsts = {name: BETAS[0] * m + (1 - BETAS[0]) * grads[name] for name, m in firsts.items()}
    seconds = {name: BETAS[1] * v + (1 - BETAS[1]) * grads[name] ** 2 for name, v in seconds.items()}
    scales = [1 - beta**steps for beta in BETAS]
    params = {
        name: p * (1 - rate * DECAY)
        - rate * (firsts[name] / scales[0]) / (jnp.sqrt(seconds[name] / scales[1]) + EPSILON)
        for name, p in params.items()
    }
    return loss, params, (firsts, seconds, steps)


class Training:
    """A training under a plan.

    Args:
        plan: of PLANS.
        dtype: to compute with.
    """

    def __init__(self, plan: str, dtype: Any = jnp.bfloat16) -> None:
        axes, rules = PLANS[plan]
        devices = np.array(jax.devices()[: math.prod(axes.values())])
        mesh = jax.sharding.Mesh(devices.reshape(tuple(axes.values())), tuple(axes))
        begin = parameters()
        spec = {
            name: next((P(*s) for pattern, s in rules.items() if fnmatch.fnmatch(name, pattern)), P()) for name in begin
        }
        places = {name: NamedSharding(mesh, s) for name, s in spec.items()}
        whole = NamedSharding(mesh, P())
        at_rest = places, (places, places, whole)
        self.params = jax.device_put(begin, places)
        zeros = jax.tree.map(np.zeros_like, begin)
        self.state = jax.device_put((zeros, zeros, np.zeros((), np.int32)), at_rest[1])
        self.data = NamedSharding(mesh, P(None, "d") if "d" in axes else P())
        self.step = jax.jit(lambda *args: _step(*args, dtype), out_shardings=(whole, *at_rest), donate_argnums=(0, 1))

    def arguments(self, step: int) -> tuple[Any, ...]:
        """Of a step."""
        return self.params, self.state, jax.device_put(tokens(step).astype(np.int32), self.data)
