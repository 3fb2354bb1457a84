"""Tianshou learns from a buffer of ours: conservative quantile Q-learning on logged CartPole.

pip install rlds2buf tianshou
python examples/tianshou_cql.py
"""

from __future__ import annotations

import sys

import cartpole
import gymnasium
import numpy as np
import torch
from tianshou.algorithm import DiscreteCQL
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch
from tianshou.trainer import OfflineTrainerParams
from tianshou.utils.net.common import Net

from rlds2buf.adapters.tianshou import to_tianshou


def main(steps: int = 3000) -> tuple[float, float]:
    """Mean returns before and after."""
    torch.manual_seed(0)
    space = gymnasium.make("CartPole-v1").action_space
    network = Net(state_shape=4, action_shape=2, hidden_sizes=[64, 64], softmax=False, num_atoms=50)
    algorithm = DiscreteCQL(
        policy=QRDQNPolicy(model=network, action_space=space),
        optim=AdamOptimizerFactory(lr=3e-3),
        gamma=0.99,
        num_quantiles=50,
        n_step_return_horizon=3,
        target_update_freq=200,
        min_q_weight=10.0,
    )

    def policy(seen: np.ndarray) -> int:
        with torch.no_grad():
            return int(algorithm.policy(Batch(obs=seen[None], info=Batch())).act[0])

    before = cartpole.mean_return(policy)
    algorithm.run_training(
        OfflineTrainerParams(
            buffer=to_tianshou(cartpole.log()),
            test_collector=None,
            max_epochs=1,
            epoch_num_steps=steps,
            batch_size=64,
            show_progress=False,
        )
    )
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} updates")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
