#!/usr/bin/env python3
"""Bit flipping, with and without hindsight (Andrychowicz et al. 2017, section 3.1 and figure 1).

The state is n bits, an action flips one of them, the goal is n bits drawn at random, and the reward is
-1 until the state is the goal.  An episode has at most n steps.  A DQN that sees a reward only by
chance learns nothing from about 13 bits on; the same DQN learns to set bits from what it did reach.

The network (one hidden layer of 256, Adam), 16 episodes and 40 updates of 128 transitions a cycle, the
discount of 0.98 and the slow target network are the paper's; exploration is epsilon-greedy.  The
runs differ in nothing but the buffer: ``make_hindsight(..., strategy="future", num_goals=4)`` or
``make_circular``.  With ``--adding`` a third one gets new transitions added after each episode, by
``generate_hindsight``, in place of goals put in while sampling.  numpy only; the default takes a few
minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

import rlds2buf

GAMMA, HIDDEN, BATCH, EPISODES, UPDATES = 0.98, 256, 128, 16, 40


class Network:
    """Q values of all n actions from state and goal; ReLU, trained by Adam on squared errors."""

    def __init__(self, bits: int, rng: np.random.Generator) -> None:
        def layer(fan_in: int, fan_out: int) -> np.ndarray:
            bound = np.sqrt(1 / fan_in)
            return rng.uniform(-bound, bound, (fan_in, fan_out)).astype(np.float32)

        self.weights = [
            layer(2 * bits, HIDDEN),
            np.zeros(HIDDEN, np.float32),
            layer(HIDDEN, bits),
            np.zeros(bits, np.float32),
        ]
        self._mean = [np.zeros_like(weight) for weight in self.weights]
        self._square = [np.zeros_like(weight) for weight in self.weights]
        self._updates = 0

    def values(self, inputs: np.ndarray) -> np.ndarray:
        """``[B, n]`` for inputs ``[B, 2n]``."""
        first, bias, second, offset = self.weights
        return np.maximum(inputs @ first + bias, 0) @ second + offset

    def update(self, inputs: np.ndarray, action: np.ndarray, target: np.ndarray, rate: float = 1e-3) -> None:
        """One step towards ``Q(inputs, action) = target``, ``[B]``."""
        first, bias, second, offset = self.weights
        hidden = np.maximum(inputs @ first + bias, 0)
        rows = np.arange(len(action))
        error = np.zeros((len(action), len(offset)), np.float32)
        error[rows, action] = ((hidden @ second + offset)[rows, action] - target) * (2 / len(action))
        back = (error @ second.T) * (hidden > 0)
        gradients = [inputs.T @ back, back.sum(0), hidden.T @ error, error.sum(0)]
        self._updates += 1
        step = rate * np.sqrt(1 - 0.999**self._updates) / (1 - 0.9**self._updates)
        for weight, gradient, mean, square in zip(self.weights, gradients, self._mean, self._square, strict=True):
            mean += 0.1 * (gradient - mean)
            square += 0.001 * (gradient * gradient - square)
            weight -= np.float32(step) * mean / (np.sqrt(square) + 1e-8)


def inputs_of(observation: Any) -> np.ndarray:
    """``[B, 2n] float32`` in {-1, 1}."""
    return np.concatenate([observation["bits"], observation["goal"]], axis=-1).astype(np.float32) * 2 - 1


def reached(observation: Any, action: Any, after: Any) -> np.ndarray:
    """Whether the goal is met ``[B]``."""
    return (after["bits"] == after["goal"]).all(-1)


def reward(observation: Any, action: Any, after: Any) -> np.ndarray:
    """0 at the goal, -1 elsewhere."""
    return reached(observation, action, after).astype(np.float32) - 1


def play(network: Network, bits: int, count: int, epsilon: float, rng: np.random.Generator) -> list[rlds2buf.Episode]:
    """`count` episodes side by side, each until its goal is met or n steps are over."""
    state = rng.integers(0, 2, (count, bits), np.uint8)
    goal = rng.integers(0, 2, (count, bits), np.uint8)
    states, actions = [state], []
    for _ in range(bits):
        action = network.values(inputs_of({"bits": state, "goal": goal})).argmax(1)
        random = rng.random(count) < epsilon
        action[random] = rng.integers(0, bits, int(random.sum()))
        state = state.copy()
        state[np.arange(count), action] ^= 1
        states.append(state)
        actions.append(action)
    track, moves = np.stack(states, 1), np.stack([*actions, actions[-1] * 0], 1)
    met = (track == goal[:, None]).all(-1)
    episodes = []
    for i in range(count):
        # An episode that starts at its goal takes one step, too.
        ends = np.flatnonzero(met[i, 1:]) + 1
        rows = (int(ends[0]) if len(ends) else bits) + 1
        terminal = np.zeros(rows, np.bool_)
        terminal[-1] = len(ends) > 0
        rewards = np.full(rows, -1, np.float32)
        rewards[-2] = 0 if len(ends) else -1
        episodes.append(
            rlds2buf.Episode(
                observation={"bits": track[i, :rows], "goal": np.repeat(goal[i : i + 1], rows, 0)},
                action=moves[i, :rows].astype(np.int64),
                reward=rewards,
                discount=np.ones(rows, np.float32),
                is_terminal=terminal,
                is_last=np.arange(rows) == rows - 1,
            )
        )
    return episodes


WAYS = ("sampling", "adding", "without")


def make_buffer(way: str, spec: rlds2buf.StepSpec, seed: int, capacity: int = 1_000_000) -> Any:
    """The buffer that a run learns from."""
    if way == "without":
        return rlds2buf.make_circular(spec, capacity, seed=seed)
    return rlds2buf.make_hindsight(
        spec,
        capacity,
        goals=[rlds2buf.GoalMap("bits", "goal")],
        reward_fn=reward,
        done_fn=reached,
        strategy="future",
        num_goals=4,
        while_sampling=way == "sampling",
        seed=seed,
    )


def train(bits: int, way: str, epochs: int, seed: int, *, verbose: bool = True) -> list[float]:
    """Success rates of the greedy policy after each epoch of 50 cycles; stops early at 0.99 twice in a row."""
    rng = np.random.default_rng(seed)
    network = Network(bits, rng)
    target = [weight.copy() for weight in network.weights]
    slow = Network(bits, rng)
    slow.weights = target
    spec = rlds2buf.spec_of(play(network, bits, 1, 1.0, rng)[0])
    buffer = make_buffer(way, spec, seed)
    rates: list[float] = []
    for epoch in range(epochs):
        start = time.perf_counter()
        for cycle in range(50):
            done = (epoch * 50 + cycle) / 200
            for episode in play(network, bits, EPISODES, max(0.1, 0.5 - 0.4 * done), rng):
                buffer.add(episode)
                if way == "adding":
                    buffer.add(buffer.generate_hindsight(episode.num_transitions), consecutive=False)
            for _ in range(UPDATES):
                batch = buffer.sample(BATCH, gamma=GAMMA).data
                ahead = slow.values(inputs_of(batch.next_observation)).max(1)
                goal = batch.reward + batch.bootstrap_discount * ahead
                network.update(inputs_of(batch.observation), batch.action, np.clip(goal, -1 / (1 - GAMMA), 0))
            for mine, theirs in zip(target, network.weights, strict=True):
                mine += np.float32(0.05) * (theirs - mine)
        rates.append(float(np.mean([bool(ep.is_terminal[-1]) for ep in play(network, bits, 500, 0.0, rng)])))
        if verbose:
            print(
                f"  n = {bits}  {way:8s}  epoch {epoch + 1:3d}: success {rates[-1]:.3f}   "
                f"({time.perf_counter() - start:.1f} s)",
                flush=True,
            )
        if len(rates) > 1 and min(rates[-2:]) >= 0.99:
            break
    return rates


def main() -> None:
    """Train both for each number of bits and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", type=int, nargs="+", default=[10, 25, 40])
    parser.add_argument("--epochs", type=int, default=60, help="of 50 cycles of 16 episodes, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--adding", action="store_true", help="also with new transitions added")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    table: dict[int, dict[str, list[float]]] = {}
    for bits in options.bits:
        found = table[bits] = {}
        for way in WAYS:
            if way == "adding" and not options.adding:
                continue
            # Without hindsight, longer than it took with it.
            epochs = options.epochs if way != "without" else max(20, 2 * len(found["sampling"]))
            found[way] = train(bits, way, epochs, options.seed, verbose=not options.json)
    if options.json:
        print(json.dumps(table))
        return
    print("\n  n   goals        success   episodes")
    for bits, found in table.items():
        for way, rates in found.items():
            print(f"{bits:3d}   {way:10s} {rates[-1]:9.3f}   {len(rates) * 50 * EPISODES:8,d}")


if __name__ == "__main__":
    main()
