"""What a dataset holds, counted another way."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import rlds2buf
from rlds2buf import Episode, EpisodeError
from rlds2buf.core.spec import StepSpec, spec_of
from rlds2buf.io.source import Source
from rlds2buf.pipeline.summary import summarize
from tests.buffers.numbered import episode
from tests.made import MADE


class Items(Source):
    """A source of these items."""

    format = "items"
    name = "items"

    def __init__(self, *items: Episode | EpisodeError) -> None:
        self.items = items

    @property
    def spec(self) -> StepSpec:
        return spec_of(next(item for item in self.items if isinstance(item, Episode)))

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        yield from self.items[start:stop]


def test_counts_lengths_returns_and_ends() -> None:
    episodes = [episode(0, 4), episode(10, 6, end="truncated"), episode(20, 1), episode(30, 3, end="open")]
    found = summarize(Items(*episodes))
    assert (found.episodes, found.steps, found.transitions, found.unreadable) == (4, 14, 10, 0)
    assert found.lengths == {"min": 1.0, "median": 3.5, "max": 6.0}
    sums = [sum(n * 0.5 for n in range(start, start + rows - 1)) for start, rows in ((0, 4), (10, 6), (20, 1), (30, 3))]
    assert found.returns == {"min": min(sums), "mean": pytest.approx(np.mean(sums)), "max": max(sums)}
    assert found.ends == {"terminated": 2, "truncated": 1, "open": 1}
    assert found.bytes_per_step == 2 * 4 + 8 + 4 + 8 + 4 + 3 + 1
    assert found.to_json()["fields"]["observation/place"] == {"shape": [2], "dtype": "float32"}


def test_what_could_not_be_built_is_counted_and_the_first_named() -> None:
    errors = [EpisodeError("columns differ", source="a", episode=1), EpisodeError("no steps", source="a", episode=3)]
    found = summarize(Items(episode(0, 3), errors[0], episode(0, 3), errors[1]))
    assert found.episodes == 2 and found.unreadable == 2
    assert found.first_error == "a, episode 1: columns differ"


@pytest.mark.parametrize("reward", [None, np.zeros((3, 2)), {"a": np.zeros(3)}], ids=["none", "vector", "nested"])
def test_no_returns_without_one_reward_a_step(reward: object) -> None:
    assert summarize(Items(Episode(observation=np.zeros(3), reward=reward))).returns is None  # type: ignore[arg-type]


def test_all_of_a_real_dataset() -> None:
    with rlds2buf.open_source(MADE / "minari/cartpole/random-v0") as source:
        found = summarize(source)
        rows = [ep.num_steps for ep in source]
    assert found.episodes == len(rows) and found.steps == sum(rows)
    assert found.lengths is not None and found.lengths["max"] == max(rows)
