"""RLlib reads what a buffer of ours holds: behaviour cloning on logged CartPole, with its new API stack.

pip install rlds2buf[rllib] "ray[rllib]" torch
python examples/rllib_bc.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cartpole
import gymnasium
import numpy as np
import ray
import torch
from ray.rllib.algorithms.bc import BCConfig

from rlds2buf.adapters.rllib import offline_data


def main(iterations: int = 3) -> tuple[float, float]:
    """Mean returns before and after."""
    logged = offline_data(cartpole.log(), Path(tempfile.mkdtemp()) / "cartpole.parquet")
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    env = gymnasium.make("CartPole-v1")
    config = (
        BCConfig()
        .environment(observation_space=env.observation_space, action_space=env.action_space)
        .offline_data(**logged, dataset_num_iters_per_learner=150, map_batches_kwargs={"concurrency": 1})
        .training(train_batch_size_per_learner=64, lr=1e-3)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    learners = algorithm.learner_group.foreach_learner(lambda learner: learner.module["default_policy"])
    module = next(iter(learners)).get()  # of the one learner, which is in this process

    def policy(seen: np.ndarray) -> int:
        with torch.no_grad():
            found = module.forward_inference({"obs": torch.from_numpy(seen[None])})
        return int(found["action_dist_inputs"].argmax())

    before = cartpole.mean_return(policy)
    for _ in range(iterations):
        algorithm.train()
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {iterations} iterations")
    algorithm.stop()
    ray.shutdown()
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
