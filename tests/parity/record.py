"""Record JAX's random numbers: run this where JAX 0.10 is installed, and commit what it writes beside itself.

    python tests/parity/record.py

`tests/unit/test_random_parity.py` draws the same from ts.random and compares. What is drawn is listed in `cases.py`,
which both read.
"""

import json
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, os.path.dirname(__file__))
from cases import CASES, MODES


def key_of(spec):
    seed, folds = spec
    key = jax.random.key(seed)
    for number in folds:
        key = jax.random.fold_in(key, number)
    return key


def drawn(function, key, arguments):
    given = {k: jnp.dtype(v) if k == "dtype" else jnp.asarray(v) if isinstance(v, list) else v for k, v in arguments}
    made = getattr(jax.random, function)(key_of(key), **given)
    if jnp.issubdtype(made.dtype, jax.dtypes.prng_key):
        made = jax.random.key_data(made)
    # NumPy files know no bfloat16: its bits are kept
    return np.asarray(made).view(np.uint16) if made.dtype == jnp.bfloat16 else np.asarray(made)


def main():
    described, values = [], b""
    for mode in MODES:
        jax.config.update("jax_threefry_partitionable", mode)
        for case in CASES:
            made = drawn(*case)
            described.append([mode, repr(case), made.dtype.name, made.shape])
            values += made.tobytes()
    path = os.path.join(os.path.dirname(__file__), "jax_0_10.npz")
    text = np.frombuffer(json.dumps(described).encode(), np.uint8)
    np.savez_compressed(path, described=text, values=np.frombuffer(values, np.uint8))
    print(f"{len(described)} arrays, {os.path.getsize(path):,} bytes, from JAX {jax.__version__}")


if __name__ == "__main__":
    main()
