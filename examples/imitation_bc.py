"""imitation clones what a buffer of ours holds: behaviour cloning on logged CartPole.

pip install rlds2buf imitation
python examples/imitation_bc.py
"""

from __future__ import annotations

import sys

import cartpole
import numpy as np
from gymnasium import spaces
from imitation.algorithms import bc
from imitation.data import rollout

from rlds2buf.adapters.imitation import to_imitation


def main(epochs: int = 4) -> tuple[float, float]:
    """Mean returns before and after."""
    trainer = bc.BC(
        observation_space=spaces.Box(-np.inf, np.inf, (4,)),
        action_space=spaces.Discrete(2),
        demonstrations=rollout.flatten_trajectories(to_imitation(cartpole.log())),
        rng=np.random.default_rng(0),
    )

    def policy(seen: np.ndarray) -> int:
        return int(trainer.policy.predict(seen, deterministic=True)[0])

    before = cartpole.mean_return(policy)
    trainer.train(n_epochs=epochs, progress_bar=False)
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {epochs} epochs")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
