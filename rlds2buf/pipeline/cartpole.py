"""A small dataset to try everything with: episodes of CartPole, simulated here, so that no other package is needed."""

from __future__ import annotations

import numpy as np

from rlds2buf.core.episode import Episode

__all__ = ["cartpole_episodes"]

_GRAVITY, _CART, _POLE, _HALF_LENGTH, _FORCE, _SECONDS = 9.8, 1.0, 0.1, 0.5, 10.0, 0.02
_MAX_ANGLE, _MAX_POSITION = np.deg2rad(12.0), 2.4


def cartpole_episodes(episodes: int = 100, max_steps: int = 200, seed: int = 0) -> list[Episode]:
    """Episodes of a cart that balances a pole, as Gymnasium's CartPole-v1 defines it.

    The equations are those of Barto, Sutton and Anderson (1983, doi:10.1109/TSMC.1983.6313077), integrated by Euler
    steps of 0.02 s.  The behaviour policy pushes to where the pole falls in two of three steps, and at random
    otherwise, so that some episodes end because the pole has fallen and others after `max_steps`.

    Args:
        episodes: how many.
        max_steps: the time limit, in transitions.
        seed: of the start states and the policy; the same seed gives the same episodes.

    Returns:
        Episodes with observation ``[N, 4] float32`` (position m, velocity m/s, angle rad, angular velocity rad/s),
        action ``[N] int64`` (0 left, 1 right), reward ``[N] float32``, all 1.

    >>> episode = cartpole_episodes(1)[0]
    >>> episode.observation.shape[1:], episode.action.dtype, episode.end
    ((4,), dtype('int64'), 'terminated')
    """
    rng = np.random.default_rng(seed)
    state = rng.uniform(-0.05, 0.05, (episodes, 4))
    states, actions = [state], []
    fallen = np.zeros((max_steps, episodes), np.bool_)
    for t in range(max_steps):
        towards_fall = (state[:, 2] + state[:, 3] > 0).astype(np.int64)
        action = np.where(rng.random(episodes) < 2 / 3, towards_fall, rng.integers(0, 2, episodes))
        state = _step(state, action)
        states.append(state)
        actions.append(action)
        fallen[t] = (np.abs(state[:, 0]) > _MAX_POSITION) | (np.abs(state[:, 2]) > _MAX_ANGLE)
    track = np.stack(states).astype(np.float32)
    moves = np.stack([*actions, actions[-1] * 0])
    return [_episode(track[:, i], moves[:, i], fallen[:, i]) for i in range(episodes)]


def _step(state: np.ndarray, action: np.ndarray) -> np.ndarray:
    """The states ``[E, 4]`` after 0.02 s under the actions ``[E]``."""
    _, velocity, angle, spin = state.T
    sine, cosine = np.sin(angle), np.cos(angle)
    mass, moment = _CART + _POLE, _POLE * _HALF_LENGTH
    push = (np.where(action == 1, _FORCE, -_FORCE) + moment * spin**2 * sine) / mass
    spin_up = (_GRAVITY * sine - cosine * push) / (_HALF_LENGTH * (4 / 3 - _POLE * cosine**2 / mass))
    speed_up = push - moment * spin_up * cosine / mass
    change = np.stack([velocity, speed_up, spin, spin_up], axis=1)
    return np.asarray(state + _SECONDS * change)


def _episode(track: np.ndarray, moves: np.ndarray, fallen: np.ndarray) -> Episode:
    ends = np.flatnonzero(fallen)
    rows = (int(ends[0]) + 1 if len(ends) else len(fallen)) + 1
    is_last = np.arange(rows) == rows - 1
    return Episode(
        observation=track[:rows],
        action=moves[:rows],
        reward=np.ones(rows, np.float32),
        discount=np.ones(rows, np.float32),
        is_terminal=is_last & bool(len(ends)),
        is_last=is_last,
    )
