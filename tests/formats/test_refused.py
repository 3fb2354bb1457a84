"""What is known and never read, for it is pickled: each is refused by name, with the way out, and nothing is loaded."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from rlds2buf import SourceFormatError, open_source


class Bomb:
    """Loading it would raise."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return eval, ("1 / 0",)


def pickled(path: Path, module: str) -> Path:
    """As ``save_replay_buffer`` and others leave them: the class's module is named at the start."""
    path.write_bytes(pickle.dumps((module, Bomb()), protocol=4))
    return path


@pytest.mark.parametrize(
    ("module", "says"),
    [
        ("stable_baselines3.common.buffers", "Stable-Baselines 3's .* never loaded; load it there, and give convert"),
        ("d3rlpy.dataset", r"d3rlpy's, and pickles are never loaded; ReplayBuffer\.dump writes an \.h5"),
        ("my_own_buffer", "a Python pickle, which is never loaded"),
    ],
)
def test_pickles(tmp_path: Path, module: str, says: str) -> None:
    with pytest.raises(SourceFormatError, match=says):
        open_source(pickled(tmp_path / "buffer.pkl", module))


def test_calvin(tmp_path: Path) -> None:
    folder = tmp_path / "training"
    (folder / "lang_annotations").mkdir(parents=True)
    np.savez(folder / "episode_0358482.npz", rgb_static=np.zeros((2, 2, 3)), actions=np.zeros(7))
    np.save(folder / "ep_start_end_ids.npy", np.array([[358482, 358482]]))
    pickled(folder / "lang_annotations/auto_lang_ann.npy", "numpy")
    for path in (folder, folder / "lang_annotations/auto_lang_ann.npy"):
        with pytest.raises(SourceFormatError, match=r"CALVIN's .* never loaded; its conversions to RLDS"):
            open_source(path)


def test_robo_dm(tmp_path: Path) -> None:
    (tmp_path / "a.vla").write_bytes(b"\x1a\x45\xdf\xa3" + bytes(100))
    with pytest.raises(SourceFormatError, match=r"Robo-DM's \.vla .* never loaded; its own tools export RLDS"):
        open_source(tmp_path / "a.vla")
