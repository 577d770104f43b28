"""Training: torch's optimizers as pure functions of parameters, gradients and state; clipping by the global norm.

functional   `functional(torch.optim.AdamW, lr=1e-3)`: `init(params)` and `update(params, grads, state)`
bound        torch's optimizer over the tensors of a trace
clipping     `global_norm` and `clip_by_global_norm`
"""

from tinyshard.core.jax_hints import names_of as _names_of
from tinyshard.optim.clipping import clip_by_global_norm, global_norm
from tinyshard.optim.functional import Optimizer, functional

__all__ = ["Optimizer", "clip_by_global_norm", "functional", "global_norm"]

__getattr__ = _names_of(__name__, __all__)
