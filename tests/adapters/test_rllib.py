"""RLlib's own pre-learner makes episodes of what is written, and its cloning learns from it (see test_examples.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from ray.rllib.offline.offline_prelearner import OfflinePreLearner

from rlds2buf import SinkError, SnapshotExists, transitions
from rlds2buf.adapters.held import all_episodes
from rlds2buf.adapters.rllib import offline_data
from tests.adapters.logged import circular, episode


@pytest.mark.parametrize("discrete", [False, True], ids=["continuous", "discrete"])
def test_their_prelearner_reads_our_transitions(tmp_path: Path, discrete: bool) -> None:
    buffer = circular(discrete=discrete)
    given = offline_data(buffer, tmp_path / "log.parquet")
    assert given == {"input_": [f"local://{tmp_path / 'log.parquet'}"], "input_read_method": "read_parquet"}
    table = pq.read_table(tmp_path / "log.parquet")
    batch: dict[str, Any] = {name: np.array(table[name].to_pylist()) for name in table.column_names}
    made = OfflinePreLearner._map_to_episodes(False, batch, input_compress_columns=[])["episodes"]
    mine = transitions(all_episodes(buffer))
    assert len(made) == len(mine.is_done)
    for i, one in enumerate(made):
        np.testing.assert_array_equal(one.observations[0], mine.observation[i])
        np.testing.assert_array_equal(one.observations[1], mine.next_observation[i])
        np.testing.assert_array_equal(one.actions[0], mine.action[i])
        assert one.rewards[0] == mine.reward[i]
        assert (one.is_terminated, one.is_truncated) == (mine.terminated[i], mine.truncated[i])


def test_bad_arguments(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"end in \.parquet"):
        offline_data(circular(), tmp_path / "log.arrow")
    with pytest.raises(SinkError, match="nested"):
        offline_data([episode(0, 3, "terminated", kind="dict")], tmp_path / "log.parquet")
    offline_data(circular(), tmp_path / "log.parquet")
    with pytest.raises(SnapshotExists):
        offline_data(circular(), tmp_path / "log.parquet")
    offline_data(circular(), tmp_path / "log.parquet", overwrite=True)
