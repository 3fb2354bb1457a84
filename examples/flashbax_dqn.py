"""flashbax starts from a buffer of ours: DQN on logged CartPole, sampling and learning compiled together by JAX.

pip install rlds2buf flashbax optax
python examples/flashbax_dqn.py
"""

from __future__ import annotations

import sys
from typing import Any

import cartpole
import flashbax as fbx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rlds2buf.adapters.flashbax import to_flashbax


def values(weights: Any, seen: Any) -> Any:
    """Of both actions, ``[..., 2]``."""
    for matrix, bias in weights[:-1]:
        seen = jax.nn.relu(seen @ matrix + bias)
    return seen @ weights[-1][0] + weights[-1][1]


def main(steps: int = 8000) -> tuple[float, float]:
    """Mean returns before and after."""
    logged = cartpole.log()
    held = to_flashbax(logged, max_length_time_axis=2 * len(logged))  # room for what an agent would add
    buffer = fbx.make_item_buffer(max_length=2 * len(logged), min_length=64, sample_batch_size=64)
    sizes = (4, 64, 64, 2)
    keys = jax.random.split(jax.random.PRNGKey(0), len(sizes) - 1)
    weights = [
        (jax.random.normal(key, (fan_in, fan_out)) * fan_in**-0.5, jnp.zeros(fan_out))
        for key, fan_in, fan_out in zip(keys, sizes[:-1], sizes[1:], strict=True)
    ]
    optimizer = optax.adam(1e-3)

    def update(carry: Any, key: Any) -> Any:
        weights, slow, state = carry
        batch = buffer.sample(held, key).experience
        best = values(weights, batch["next_observation"]).argmax(-1)
        ahead = jnp.take_along_axis(values(slow, batch["next_observation"]), best[:, None], 1)[:, 0]
        # The discount is 0 into a state that ended the episode, and 1 where it was only cut.
        target = batch["reward"] + 0.9 * batch["discount"] * ahead

        def loss(weights: Any) -> Any:
            found = jnp.take_along_axis(values(weights, batch["observation"]), batch["action"][:, None], 1)[:, 0]
            return optax.huber_loss(found, target).mean()

        changes, state = optimizer.update(jax.grad(loss)(weights), state)
        weights = optax.apply_updates(weights, changes)
        return (weights, optax.incremental_update(weights, slow, 0.02), state), None

    def policy(seen: np.ndarray) -> int:
        return int(np.argmax(values(weights, seen)))

    before = cartpole.mean_return(policy)
    keys = jax.random.split(jax.random.PRNGKey(1), steps)
    (weights, _, _), _ = jax.jit(lambda carry: jax.lax.scan(update, carry, keys))(
        (weights, weights, optimizer.init(weights))
    )
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} updates")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
