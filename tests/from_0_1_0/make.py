"""What version 0.1.0 leaves on a disk, small: run with that version (commit 79c746c) in an empty folder.

python make.py                  all but the journal of a push
python make.py push             that one too; needs dm-reverb
"""

from __future__ import annotations

import importlib
import json
import os
import sys

import numpy as np

import rlds2buf
from rlds2buf import Episode, GoalMap, convert, spec_of


def episodes(count: int = 12) -> list[Episode]:
    """Of 3 to 8 rows, every other one terminated; with an extra and metadata."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(count):
        rows = int(rng.integers(3, 9))
        last = np.arange(rows) == rows - 1
        made.append(
            Episode(
                observation=rng.normal(size=(rows, 3)).astype(np.float32),
                action=rng.integers(0, 4, rows),
                reward=rng.normal(size=rows).astype(np.float32),
                discount=np.ones(rows, np.float32),
                is_first=np.arange(rows) == 0,
                is_last=last,
                is_terminal=last & (index % 2 == 0),
                extras={"cost": rng.normal(size=rows).astype(np.float32)},
                metadata={"seed": index},
            )
        )
    return made


def texts(data: list[Episode]) -> list[Episode]:
    """The same with a text per row: buffers of format 2."""
    out = []
    for episode in data:
        words = np.empty(episode.num_steps, object)
        words[:] = [b"word %d" % step for step in range(episode.num_steps)]
        out.append(
            Episode(
                observation=episode.observation,
                action=episode.action,
                reward=episode.reward,
                discount=episode.discount,
                is_terminal=episode.is_terminal,
                is_last=episode.is_last,
                extras={"words": words},
            )
        )
    return out


def buffers(data: list[Episode]) -> None:
    """A saved buffer of each kind and unit."""
    spec = spec_of(data[0])
    goals = {"goals": [GoalMap(((), [0]), ((), [1]))], "reward_fn": met, "done_fn": met}
    made = {
        "circular": rlds2buf.make_circular(spec, 40, seed=1),
        "prioritized": rlds2buf.make_prioritized(spec, 100, seed=2),
        "hindsight": rlds2buf.make_hindsight(spec, 100, seed=3, **goals),
        "hindsight_prioritized": rlds2buf.make_hindsight_prioritized(spec, 100, seed=4, **goals),
        "reservoir": rlds2buf.make_reservoir(spec, 20, seed=5),
        "whole_episodes": rlds2buf.make_circular(spec, 30, storage_unit="episodes", seed=6),
        "sequences": rlds2buf.make_prioritized(spec, 50, storage_unit="sequences", item_length=3, seed=7),
        "in_a_folder": rlds2buf.make_circular(spec, 60, directory="in_a_folder", seed=8),
    }
    kept = {}
    for name, buffer in made.items():
        for episode in data:
            buffer.add(episode)
        keys = buffer.keys()
        if "prioritized" in name or name == "sequences":
            buffer.update_priorities(keys[::2], np.arange(len(keys[::2])) + 0.5)
        buffer.save() if name == "in_a_folder" else buffer.save(name)
        rows = buffer.all() if name not in ("whole_episodes", "sequences") else None
        batch = buffer.sample(8)
        kept[name] = {
            "keys": keys.tolist(),
            "rewards": None if rows is None else rows.reward.tolist(),
            "sampled": batch.info.key.tolist(),
        }
    worded = texts(data)
    written = rlds2buf.make_circular(spec_of(worded[0]), 100, seed=9)
    for episode in worded:
        written.add(episode)
    written.save("texts")
    kept["texts"] = {"keys": written.keys().tolist(), "rewards": written.all().reward.tolist(), "sampled": None}
    many = rlds2buf.make_multi_agent({"a": rlds2buf.make_circular(spec, 50), "b": rlds2buf.make_prioritized(spec, 50)})
    for index, episode in enumerate(data):
        many.add({"ab"[index % 2]: episode})
    many.save("multi_agent")
    with open("buffers.json", "w") as file:
        json.dump(kept, file)


def met(observation: np.ndarray, action: np.ndarray, after: np.ndarray) -> np.ndarray:
    return after[:, 0] > after[:, 1]


def interrupted(kind: str) -> None:
    """A conversion that dies after seven episodes, with a checkpoint after each."""
    module = importlib.import_module("rlds2buf.convert")
    module.CHECKPOINT_SECONDS = -1.0
    child = os.fork()
    if child == 0:
        take, count = module._Conversion._take, 0

        def counted(self: object, item: object) -> None:
            nonlocal count
            count += 1
            if count > 7:
                os._exit(0)
            take(self, item)

        module._Conversion._take = counted
        convert("source.hdf5", f"{kind}-out-v0", to=kind, resume=True, on_invalid="skip", float32=True)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def pushed() -> None:
    """The journal of a push of the first six episodes of all, and the keys of all items."""
    import reverb

    data = rlds2buf.open_source("source.hdf5")
    from rlds2buf.rlds_to_reverb import create_trajectory_data_spec  # noqa: F401  (TensorFlow is there)

    with rlds2buf.serve(data, "replay") as serving:
        rlds2buf.push(data, serving.address, "replay", resume="push.journal")
        client = reverb.Client(serving.address)
        size = client.server_info()["replay"].current_size
        found = sorted({int(s[0].info.key) for s in client.sample("replay", num_samples=40 * size)})
        assert len(found) == size, (len(found), size)
    lines = open("push.journal").read().splitlines(keepends=True)
    with open("push_keys.json", "w") as file:
        json.dump(found, file)
    print("".join(lines))


if __name__ == "__main__":
    assert rlds2buf.__version__ == "0.1.0"
    if sys.argv[1:] == ["push"]:
        pushed()
    else:
        data = episodes()
        convert(data, "source.hdf5", to="d4rl")
        for kind in ("rlds", "minari", "d4rl", "buffer"):
            target = {"rlds": "rlds", "minari": "minari-v0", "d4rl": "d4rl.hdf5", "buffer": "buffer"}[kind]
            convert("source.hdf5", target, to=kind)
            interrupted(kind)
        convert("source.hdf5", "checkpoint", to="reverb-checkpoint") if "cramjam" in sys.modules or True else None
        buffers(data)
