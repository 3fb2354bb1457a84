"""A sink that spools columns asks for no package but what writes its own output."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlds2buf import EpisodeBatch, FieldSpec, MissingDependency, StepSpec
from rlds2buf.formats.d4rl.sink import D4rlHdf5Sink
from rlds2buf.formats.minari.sink import MinariDirSink
from rlds2buf.io.column_spool import ColumnSpool
from rlds2buf.io.spooled_sink import SpooledSink
from tests.buffers.numbered import SPEC, episode
from tests.contracts.sink import PROVENANCE


class RewardsSink(SpooledSink):
    """The rewards of a dataset as one .npy file."""

    what = "a file of rewards"

    def plan(self, spec: StepSpec) -> dict[str, FieldSpec]:
        return {"reward": self.reward_field(spec.reward)}

    def take(self, batch: EpisodeBatch) -> None:
        self.append({"reward": self.rewards(batch)})

    def produce(self, spool: ColumnSpool, target: Path) -> None:
        column = spool.columns["reward"]
        with target.open("wb") as file:
            np.save(file, column.read(0, column.rows))

    def replaceable(self, path: Path) -> bool:
        return False

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        return None


def test_no_hdf5_is_needed_for_what_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    sink = RewardsSink(tmp_path / "rewards.npy", overwrite=False, resume=False, options={})
    sink.open(SPEC, PROVENANCE)
    parts = [episode(0, 3), episode(3, 4)]
    assert [sink.write(part) for part in parts] == [2, 3]
    sink.commit()
    expected = np.concatenate([part.reward[:-1] for part in parts])
    np.testing.assert_array_equal(np.load(tmp_path / "rewards.npy"), expected)


@pytest.mark.parametrize("cls", [D4rlHdf5Sink, MinariDirSink])
def test_what_writes_hdf5_says_so_before_it_begins(cls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    spec = StepSpec(**{name: FieldSpec((2,), np.dtype(np.float32)) for name in ("observation", "action")})
    sink = cls(tmp_path / "made-v0")
    with pytest.raises(MissingDependency, match="h5py"):
        sink.open(spec, PROVENANCE)
    sink.abort()
    assert not list(tmp_path.iterdir())
