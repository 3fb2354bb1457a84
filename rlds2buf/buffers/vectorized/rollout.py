"""What an on-policy buffer hands out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from rlds2buf.core import nest, shown
from rlds2buf.core.arguments import integer
from rlds2buf.core.row_flags import TERMINATED, TRUNCATED

__all__ = ["Rollout"]


class Rollout(NamedTuple):
    """N steps of a policy with what to learn from them; every field has a leading axis ``[N]``.

    The steps of environment 0 come first, in time, then those of environment 1, and so on.
    Arrays, or PyTorch tensors if the buffer has a device; copies either way.

    Attributes:
        observation, action: nests of ``[N, ...]``.
        reward, cost: as they were stored, never penalised.
        is_done: ``uint8``: 0 goes on, 1 terminated, 2 cut; every path ends with 1 or 2.
        value_r, value_c: the value functions' estimates at `observation`, of rewards and of costs.
        logp: log probability of `action` under the policy that took it.
        adv_r, adv_c: advantages of reward and cost, standardised as the buffer was told to.
        target_value_r, target_value_c: what the value functions should have said.
        discounted_ret: discounted return of the unpenalised rewards, with the bootstrap value.
        extras: name to nest of ``[N, ...]``: the fields that were added.
    """

    observation: nest.Nest
    action: nest.Nest
    reward: Any
    cost: Any
    is_done: Any
    value_r: Any
    value_c: Any
    logp: Any
    adv_r: Any
    adv_c: Any
    target_value_r: Any
    target_value_c: Any
    discounted_ret: Any
    extras: dict[str, nest.Nest]

    def __repr__(self) -> str:
        return shown.batch(self)

    @property
    def num_steps(self) -> int:
        """N."""
        return len(self.reward)

    @property
    def terminated(self) -> Any:
        """``[N] bool``: the environment ended the episode."""
        return self.is_done == TERMINATED

    @property
    def truncated(self) -> Any:
        """``[N] bool``: the path was cut, by a limit or by the end of the rollout."""
        return self.is_done == TRUNCATED

    def minibatches(
        self,
        batch_size: int,
        *,
        epochs: int = 1,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int | np.random.Generator | None = None,
    ) -> Iterator[Rollout]:
        """Every step once per epoch, `batch_size` at a time.

        Args:
            batch_size: steps per batch, at least 1; the last batch of an epoch may hold fewer.
            epochs: how many times over all steps.
            shuffle: a new random order each epoch; False: as they lie.
            drop_last: leave out the last batch of an epoch if it is short.
            seed: of the shuffling.

        Raises:
            ValueError: `batch_size` is below 1, or `epochs` below 0.
        """
        batch_size, epochs = integer("batch_size", batch_size, 1), integer("epochs", epochs, 0)
        return self._minibatches(batch_size, epochs, shuffle, drop_last, np.random.default_rng(seed))

    def _minibatches(
        self, batch_size: int, epochs: int, shuffle: bool, drop_last: bool, rng: np.random.Generator
    ) -> Iterator[Rollout]:
        count = self.num_steps
        stop = count - count % batch_size if drop_last else count
        for _ in range(epochs):
            order = rng.permutation(count) if shuffle else np.arange(count)
            for start in range(0, stop, batch_size):
                yield self._rows(order[start : start + batch_size])

    def _rows(self, index: np.ndarray) -> Rollout:
        picked: Rollout = nest.map_structure(lambda column: column[index], self)
        return picked
