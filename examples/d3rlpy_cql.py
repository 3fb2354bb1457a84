"""d3rlpy learns from a buffer of ours: conservative Q-learning on logged CartPole.

pip install rlds2buf d3rlpy
python examples/d3rlpy_cql.py
"""

from __future__ import annotations

import sys

import cartpole
import d3rlpy
import numpy as np

from rlds2buf.adapters.d3rlpy import ReplayBuffer


def main(steps: int = 3000) -> tuple[float, float]:
    """Mean returns before and after."""
    buffer = ReplayBuffer(cartpole.log())
    algorithm = d3rlpy.algos.DiscreteCQLConfig(batch_size=64, learning_rate=1e-3, target_update_interval=200).create()
    algorithm.build_with_dataset(buffer)

    def policy(seen: np.ndarray) -> int:
        return int(algorithm.predict(seen[None])[0])

    before = cartpole.mean_return(policy)
    quiet = {"logger_adapter": d3rlpy.logging.NoopAdapterFactory(), "show_progress": False}
    algorithm.fit(buffer, n_steps=steps, n_steps_per_epoch=steps, **quiet)
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} updates")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
