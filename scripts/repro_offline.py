#!/usr/bin/env python3
"""What a learner makes of logged data: TD3+BC through our batches, behaviour cloning, and TD3+BC through d3rlpy's.

An online agent (TD3, Fujimoto et al. 2018) learns a Gymnasium task, and three sets are logged on the way, as in D4RL:

==========  ===============================================================================
random      actions drawn uniformly
medium      the policy at the first evaluation that reaches the task's middling return (the last
            one if none does), with the noise it explored with
replay      all that the agent had done by then, the random beginning included
==========  ===============================================================================

Each is saved as a buffer. Then, for each set, these learn from it and from nothing else:

==========  ===============================================================================
TD3+BC      Fujimoto and Gu 2021, alpha 2.5, states normalised; batches come of
            ``load_buffer(folder).batches(..., to="torch")``
d3rlpy      the same learner from the same first weights, batches come of d3rlpy's own
            ``ReplayBuffer.sample_transition_batch``, which ``to_d3rlpy`` filled
cloning     the actor of TD3+BC alone, on the squared error of its actions
==========  ===============================================================================

A number is the mean return of 20 episodes without noise, after the last update: nothing is picked by looking at
returns. The learners of all seeds are trained side by side, as one stack of networks; each seed has weights, batches
and noise of its own. Everything runs on one thread; see docs/offline_result.md for what came out.

    pip install rlds2buf torch gymnasium[mujoco] d3rlpy
    python scripts/repro_offline.py --out results
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch

import rlds2buf

GAMMA, TAU, NOISE, NOISE_CLIP, ALPHA, RATE = 0.99, 0.005, 0.2, 0.5, 2.5, 1e-3
WAYS = ("td3+bc", "d3rlpy", "cloning")


class Task(NamedTuple):
    """What is logged of a task.

    Attributes:
        medium: the mean return at which a policy is a middling one.
        online: steps of the agent at most.
        logged: steps of the random and of the medium set.
    """

    medium: float
    online: int
    logged: int


TASKS = {
    "Pendulum-v1": Task(-700.0, 20_000, 20_000),
    "Hopper-v5": Task(1000.0, 120_000, 50_000),
}


class Stack(torch.nn.Module):
    """`count` networks of two hidden layers side by side: ``[count, B, inputs]`` to ``[count, B, outputs]``."""

    def __init__(self, count: int, inputs: int, outputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = torch.nn.ParameterList()
        for fan_in, fan_out in ((inputs, hidden), (hidden, hidden), (hidden, outputs)):
            bound = fan_in**-0.5
            for shape in ((count, fan_in, fan_out), (count, 1, fan_out)):
                self.layers.append((torch.rand(shape, generator=generator) * 2 - 1) * bound)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        w1, b1, w2, b2, w3, b3 = self.layers
        hidden = torch.relu(torch.baddbmm(b2, torch.relu(torch.baddbmm(b1, inputs, w1)), w2))
        return torch.baddbmm(b3, hidden, w3)


class Batch(NamedTuple):
    """Transitions ``[S, B, ...]`` of S learners; `bootstrap` is gamma, and 0 into terminal states."""

    observation: torch.Tensor
    action: torch.Tensor
    reward: torch.Tensor
    next_observation: torch.Tensor
    bootstrap: torch.Tensor


class Learners:
    """S learners that differ in their seeds; actions are in [-1, 1].

    Args:
        sizes: of observations and of actions.
        seeds: S of them.
        alpha: of TD3+BC; None for TD3 alone.
        hidden: width of the two layers.
    """

    def __init__(self, sizes: tuple[int, int], seeds: list[int], alpha: float | None, hidden: int) -> None:
        self.count, self.alpha = len(seeds), alpha
        generator = torch.Generator().manual_seed(seeds[0])
        observation, action = sizes
        self.actor = Stack(self.count, observation, action, hidden, generator)
        # Two critics for each learner, one behind the other.
        self.critic = Stack(2 * self.count, observation + action, 1, hidden, generator)
        self.slow_actor, self.slow_critic = copy.deepcopy(self.actor), copy.deepcopy(self.critic)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), RATE)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), RATE)
        self.generator = generator
        self.updates = 0

    def values(self, critic: Stack, observation: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        """``[2, S, B]``."""
        inputs = torch.cat([observation, action], -1).repeat(2, 1, 1)
        return critic(inputs).view(2, self.count, -1)

    def act(self, observation: torch.Tensor) -> torch.Tensor:
        """``[S, B, actions]`` in [-1, 1]."""
        return torch.tanh(self.actor(observation))

    def clone(self, batch: Batch) -> None:
        """One update towards the logged actions."""
        loss = ((self.act(batch.observation) - batch.action) ** 2).mean((1, 2)).sum()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()

    def update(self, batch: Batch) -> None:
        """One update of the critics, and every second time of the actors."""
        self.updates += 1
        with torch.no_grad():
            shape = batch.action.shape
            noise = (torch.randn(shape, generator=self.generator) * NOISE).clamp(-NOISE_CLIP, NOISE_CLIP)
            following = (torch.tanh(self.slow_actor(batch.next_observation)) + noise).clamp(-1, 1)
            value = self.values(self.slow_critic, batch.next_observation, following).amin(0)
            target = batch.reward + batch.bootstrap * value
        found = self.values(self.critic, batch.observation, batch.action)
        # The sum over learners: none has a gradient from another.
        loss = ((found - target) ** 2).mean(2).sum()
        self.critic_optimizer.zero_grad()
        loss.backward()
        self.critic_optimizer.step()
        if self.updates % 2 == 0:
            self._update_actors(batch)

    def _update_actors(self, batch: Batch) -> None:
        action = self.act(batch.observation)
        value = self.values(self.critic, batch.observation, action)[0]
        if self.alpha is None:
            loss = -value.mean(1).sum()
        else:
            scale = self.alpha / value.abs().mean(1).detach()
            cloned = ((action - batch.action) ** 2).mean((1, 2))
            loss = (cloned - scale * value.mean(1)).sum()
        self.actor_optimizer.zero_grad()
        loss.backward()
        self.actor_optimizer.step()
        with torch.no_grad():
            for slow, fast in ((self.slow_actor, self.actor), (self.slow_critic, self.critic)):
                for mine, theirs in zip(slow.parameters(), fast.parameters(), strict=True):
                    mine.lerp_(theirs, TAU)


Policy = Callable[[np.ndarray], np.ndarray]
"""Observations ``[B, ...]`` to actions in [-1, 1]."""


def limit_of(task: str) -> float:
    """Actions of the task are in ``[-limit, limit]``."""
    space = gymnasium.make(task).action_space
    assert isinstance(space, gymnasium.spaces.Box) and np.all(space.high == -space.low) and np.ptp(space.high) == 0
    return float(space.high.flat[0])


def play(task: str, policy: Policy, seed: int, steps: int) -> list[rlds2buf.Episode]:
    """Whole episodes of at least so many steps."""
    env, limit = gymnasium.make(task), limit_of(task)
    episodes: list[rlds2buf.Episode] = []
    observation, _ = env.reset(seed=seed)
    while sum(episode.num_transitions for episode in episodes) < steps:
        log = Log(observation)
        while not log.over:
            action = policy(observation[None])[0].astype(np.float32)
            observation, reward, terminated, truncated, _ = env.step(action * limit)
            log.add(action, float(reward), observation, terminated, truncated)
        episodes.append(log.episode())
        observation, _ = env.reset()
    return episodes


class Log:
    """The rows of an episode that is going on; actions as in [-1, 1]."""

    def __init__(self, observation: np.ndarray) -> None:
        self.observations, self.actions, self.rewards = [observation], [], []
        self.terminated = self.over = False

    def add(
        self, action: np.ndarray, reward: float, observation: np.ndarray, terminated: bool, truncated: bool
    ) -> None:
        self.observations.append(observation)
        self.actions.append(action)
        self.rewards.append(reward)
        self.terminated, self.over = terminated, terminated or truncated

    def episode(self) -> rlds2buf.Episode:
        rows = len(self.observations)
        last = np.arange(rows) == rows - 1
        return rlds2buf.Episode(
            observation=np.array(self.observations, np.float32),
            action=np.array([*self.actions, self.actions[0] * 0], np.float32),
            reward=np.array([*self.rewards, 0], np.float32),
            discount=np.where(last & self.terminated, 0, 1).astype(np.float32),
            is_last=last,
            is_terminal=last & self.terminated,
        )


def returns_of(task: str, act: Callable[[np.ndarray], np.ndarray], count: int, episodes: int, seed: int) -> np.ndarray:
    """Returns ``[count, episodes]`` of `count` policies, side by side; `act` takes ``[count, episodes, ...]``."""
    limit = limit_of(task)
    envs = [gymnasium.make(task) for _ in range(count * episodes)]
    # Every policy starts from the same states.
    seen = np.array([env.reset(seed=seed + i % episodes)[0] for i, env in enumerate(envs)], np.float32)
    total, going = np.zeros(len(envs)), np.ones(len(envs), np.bool_)
    while going.any():
        action = act(seen.reshape(count, episodes, -1)).reshape(len(envs), -1)
        for i in np.flatnonzero(going):
            seen[i], reward, terminated, truncated, _ = envs[i].step(action[i] * limit)
            total[i] += float(reward)
            going[i] = not (terminated or truncated)
    return total.reshape(count, episodes)


def policy_of(learners: Learners, mean: Any = 0.0, scale: Any = 1.0) -> Callable[[np.ndarray], np.ndarray]:
    """What the learners do, without noise: ``[S, B, ...]`` to ``[S, B, actions]``."""

    def act(observation: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return learners.act(torch.as_tensor(((observation - mean) / scale).astype(np.float32))).numpy()

    return act


def learn_online(task: str, hidden: int, seed: int, budget: int) -> tuple[Policy, list[rlds2buf.Episode]]:
    """The first middling policy of an online agent, and every episode that it had played by then.

    The agent is TD3 on a buffer of ours, to which each step is added as it comes.
    """
    env, limit, rng = gymnasium.make(task), limit_of(task), np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    sizes = observation.shape[0], env.action_space.shape[0]
    agent = Learners(sizes, [seed], None, hidden)
    act = policy_of(agent)
    log, played = Log(observation), []
    rows = rlds2buf.spec_of(play(task, lambda seen: np.zeros((1, sizes[1])), seed, 1)[0])
    buffer = rlds2buf.make_circular(rows, budget + 1, seed=seed)
    warm_up = min(2000, budget // 4)
    for step in range(1, budget + 1):
        if step <= warm_up:
            action = rng.uniform(-1, 1, sizes[1])
        else:
            action = np.clip(act(observation[None, None])[0, 0] + rng.normal(0, 0.1, sizes[1]), -1, 1)
        following, reward, terminated, truncated, _ = env.step(action * limit)
        step_taken = {
            "observation": observation.astype(np.float32),
            "action": action.astype(np.float32),
            "reward": np.float32(reward),
            "discount": np.float32(not terminated),
            "next_observation": following.astype(np.float32),
            "terminated": terminated,
            "truncated": truncated,
        }
        buffer.add(step_taken)
        log.add(step_taken["action"], float(reward), following, terminated, truncated)
        observation = following
        if log.over:
            played.append(log.episode())
            observation, _ = env.reset()
            log = Log(observation)
        if step > warm_up:
            data = buffer.sample(128, gamma=GAMMA).data
            fields = data.observation, data.action, data.reward, data.next_observation, data.bootstrap_discount
            agent.update(Batch(*(torch.from_numpy(np.ascontiguousarray(field))[None] for field in fields)))
            if step % 500 == 0 and returns_of(task, act, 1, 5, 10_000).mean() >= TASKS[task].medium:
                break
    frozen = policy_of(copy.deepcopy(agent))

    def noisy(observation: np.ndarray) -> np.ndarray:
        found = frozen(observation[None])[0]
        return np.clip(found + rng.normal(0, 0.1, found.shape), -1, 1)

    return noisy, played


def log_data(task: str, out: Path, hidden: int, seed: int, share: float = 1.0) -> dict[str, Path]:
    """The three sets as saved buffers, made unless they are there; `share` makes all of it shorter."""
    folders = {level: out / f"{task}-{level}" for level in ("random", "medium", "replay")}
    if all(folder.exists() for folder in folders.values()):
        return folders
    steps = int(TASKS[task].logged * share)
    rng = np.random.default_rng(seed)
    actions = gymnasium.make(task).action_space.shape[0]
    medium, played = learn_online(task, hidden, seed, int(TASKS[task].online * share))
    sets = {
        "random": play(task, lambda seen: rng.uniform(-1, 1, (1, actions)), seed + 1, steps),
        "medium": play(task, medium, seed + 2, steps),
        "replay": played,
    }
    for level, folder in folders.items():
        rlds2buf.convert(sets[level], folder, overwrite=True)
    return folders


def our_batches(folder: Path, seeds: list[int], size: int, steps: int) -> Iterator[Batch]:
    """Of our sampler: a buffer for each seed over the files of the folder."""
    streams = [
        rlds2buf.load_buffer(folder, seed=seed).batches(size, to="torch", steps=steps, gamma=GAMMA, together=16)
        for seed in seeds
    ]
    for parts in zip(*streams, strict=True):
        data = [part.data for part in parts]
        yield Batch(
            *(
                torch.stack([getattr(one, name) for one in data])
                for name in ("observation", "action", "reward", "next_observation", "bootstrap_discount")
            )
        )


def their_batches(folder: Path, seeds: list[int], size: int, steps: int) -> Iterator[Batch]:
    """Of d3rlpy's sampler, which draws with numpy's global generator."""
    from rlds2buf.adapters.d3rlpy import to_d3rlpy

    buffer = to_d3rlpy(rlds2buf.load_buffer(folder))
    state = np.random.RandomState(seeds[0]).get_state()
    for _ in range(steps):
        np.random.set_state(state)
        parts = [buffer.sample_transition_batch(size) for _ in seeds]
        state = np.random.get_state()

        def stacked(name: str, parts: list[Any] = parts) -> torch.Tensor:
            return torch.from_numpy(np.stack([getattr(part, name) for part in parts]))

        yield Batch(
            stacked("observations"),
            stacked("actions"),
            stacked("rewards")[..., 0],
            stacked("next_observations"),
            GAMMA * (1 - stacked("terminals")[..., 0]),
        )


def learn(
    task: str, folder: Path, way: str, seeds: list[int], steps: int, size: int, hidden: int, episodes: int
) -> np.ndarray:
    """Mean returns ``[S]`` of learners that saw nothing but the folder."""
    held = rlds2buf.load_buffer(folder).all()
    mean, scale = held.observation.mean(0), held.observation.std(0) + 1e-3
    learners = Learners((held.observation.shape[1], held.action.shape[1]), seeds, ALPHA, hidden)
    batches = (their_batches if way == "d3rlpy" else our_batches)(folder, seeds, size, steps)
    center, width = torch.from_numpy(mean), torch.from_numpy(scale)
    for batch in batches:
        batch = batch._replace(
            observation=(batch.observation - center) / width,
            next_observation=(batch.next_observation - center) / width,
        )
        learners.clone(batch) if way == "cloning" else learners.update(batch)
    return returns_of(task, policy_of(learners, mean, scale), len(seeds), episodes, 20_000).mean(1)


def behaviour(folder: Path) -> float:
    """The mean return of the episodes logged."""
    return float(np.mean([episode.reward.sum(dtype=np.float64) for episode in rlds2buf.open_source(folder)]))


def table(found: dict[str, Any]) -> str:
    """What was found, as a table of a page."""
    lines = ["| task | set | logged | cloning | TD3+BC | TD3+BC, d3rlpy's batches |", "|---|---|---|---|---|---|"]
    for name, result in found.items():
        task, level = name.split("/")
        cells = [f"{result['logged']:.0f}"]
        for way in ("cloning", "td3+bc", "d3rlpy"):
            values = result.get(way)
            cells.append("" if values is None else f"{np.mean(values):.0f} ± {np.std(values, ddof=1):.0f}")
        lines.append(f"| {task} | {level} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Log, learn, and print the table; what is in ``results.json`` already is not done again."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for the sets and results.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=20_000, help="updates of each learner")
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--episodes", type=int, default=20, help="of each policy, at the end")
    parser.add_argument("--share", type=float, default=1.0, help="of the steps that are logged, for a quick look")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "results.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    seeds = list(range(options.seeds))
    for task in options.tasks:
        for level, folder in log_data(task, options.out, options.hidden, 0, options.share).items():
            result = found.setdefault(f"{task}/{level}", {"logged": behaviour(folder)})
            for way in options.ways:
                if way in result:
                    continue
                start = time.perf_counter()
                returns = learn(
                    task, folder, way, seeds, options.steps, options.batch_size, options.hidden, options.episodes
                )
                result[way] = returns.tolist()
                path.write_text(json.dumps(found, indent=1))
                print(f"{task} {level} {way}: {returns.mean():.1f} ({time.perf_counter() - start:.0f} s)", flush=True)
    print(table(found))


if __name__ == "__main__":
    main()
