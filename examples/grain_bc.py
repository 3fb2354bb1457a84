"""grain shuffles and batches a buffer of ours for JAX: behaviour cloning on logged CartPole.

pip install rlds2buf grain jax optax
python examples/grain_bc.py
"""

from __future__ import annotations

import sys
from typing import Any

import cartpole
import grain
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlds2buf.adapters.grain import DataSource


def main(epochs: int = 3) -> tuple[float, float]:
    """Mean returns before and after."""
    dataset = grain.MapDataset.source(DataSource(cartpole.log())).shuffle(seed=0).repeat(epochs).batch(64)
    sizes = (4, 64, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), len(sizes) - 1)
    weights = [
        (jax.random.normal(key, (fan_in, fan_out)) * fan_in**-0.5, jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    optimizer = optax.adam(1e-3)

    def logits(weights: Any, seen: Any) -> Any:
        for matrix, bias in weights[:-1]:
            seen = jax.nn.relu(seen @ matrix + bias)
        return seen @ weights[-1][0] + weights[-1][1]

    @jax.jit
    def update(weights: Any, state: Any, seen: Any, action: Any) -> Any:
        def loss(weights: Any) -> Any:
            return optax.softmax_cross_entropy_with_integer_labels(logits(weights, seen), action).mean()

        changes, state = optimizer.update(jax.grad(loss)(weights), state)
        return optax.apply_updates(weights, changes), state

    def policy(seen: np.ndarray) -> int:
        return int(np.argmax(logits(weights, seen)))

    before, state = cartpole.mean_return(policy), optimizer.init(weights)
    for batch in dataset.to_iter_dataset():
        weights, state = update(weights, state, batch["observation"], batch["action"])
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {epochs} epochs")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
