"""torchrl learns from a saved buffer of ours: double DQN on logged CartPole, drawn from its own replay buffer.

pip install rlds2buf torchrl
python examples/torchrl_dqn.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cartpole
import numpy as np
import torch
from torchrl.data.datasets import load_dataset
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

import rlds2buf.adapters.torchrl  # so that load_dataset knows "rlds2buf:"  # noqa: F401


def main(steps: int = 2000) -> tuple[float, float]:
    """Mean returns before and after."""
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp()) / "cartpole"
    cartpole.log().save(folder)
    replay = load_dataset(f"rlds2buf:{folder}", batch_size=64)
    network = MLP(in_features=4, out_features=2, num_cells=[64, 64])
    actor = QValueActor(network, in_keys=["observation"], action_space="categorical")
    loss = DQNLoss(actor, action_space="categorical", delay_value=True, double_dqn=True)
    loss.make_value_estimator(gamma=0.99)
    slow, optimizer = SoftUpdate(loss, tau=0.01), torch.optim.Adam(network.parameters(), 1e-3)

    def policy(seen: np.ndarray) -> int:
        with torch.no_grad():
            return int(network(torch.from_numpy(seen)).argmax())

    before = cartpole.mean_return(policy)
    for _ in range(steps):
        optimizer.zero_grad()
        loss(replay.sample())["loss"].backward()
        optimizer.step()
        slow.step()
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {steps} updates")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
