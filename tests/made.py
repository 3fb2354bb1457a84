"""Stand-ins for real datasets: their layouts, sizes and quirks, with values made up.

Each lies under :data:`MADE` by the name that the real one has under :data:`tests.data.DATA`, so that a test can read
either.  They are written when the first test of a run begins that imports this module (see conftest.py), by h5py,
by Minari itself, and by our tests' own writer of RLDS folders, which shares nothing with the package's.
"""

from __future__ import annotations

import io
import os
import secrets
import tempfile
import warnings
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from PIL import Image

from tests.data import DATA
from tests.formats.rlds.folder import CORE, features_dict, rlds, tensor, write_folder

MADE = Path(tempfile.gettempdir()) / f"rlds2buf-made-{os.getpid()}-{secrets.token_hex(4)}"
"""Where they lie; the folder is there while tests run."""

BOTH = pytest.mark.parametrize("sets", [MADE, DATA], ids=["made", "real"])
"""For tests that read ``sets / name``, made here and as others made it."""


def make() -> None:
    """Write all of them."""
    make_d4rl(MADE / "d4rl")
    make_rlds(MADE / "rlds")
    make_minari(MADE / "minari")


# -- episodes -------------------------------------------------------------------------------------


def walk(rng: np.random.Generator, rows: int, width: int) -> np.ndarray:
    """Observations as a simulator gives them: small steps away from where every episode starts, `[rows, width]`."""
    start = np.linspace(-1, 1.5, width)
    return (start + rng.normal(scale=0.01, size=(rows, width)).cumsum(0)).astype(np.float32)


def policy(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """The weights that a D4RL file of version 1 or 2 keeps of the policy that acted."""
    shapes = {"fc0": (256, 11), "fc1": (256, 256), "last_fc": (3, 256), "last_fc_log_std": (3, 256)}
    weights = {f"{name}/weight": rng.normal(size=shape) for name, shape in shapes.items()}
    biases = {f"{name}/bias": rng.normal(size=shape[0]) for name, shape in shapes.items()}
    return {name: value.astype(np.float32) for name, value in (weights | biases).items()}


def infos(rng: np.random.Generator, rows: int, dtype: str = "<f8") -> dict[str, np.ndarray]:
    return {
        "action_log_probs": rng.normal(size=rows).astype(np.float32),
        "qpos": rng.normal(size=(rows, 6)).astype(dtype),
        "qvel": rng.normal(size=(rows, 6)).astype(dtype),
    }


# -- D4RL -----------------------------------------------------------------------------------------


def d4rl_columns(seed: int, lengths: Sequence[int], observation: int, action: int, end: str) -> dict[str, np.ndarray]:
    """The columns that every D4RL file has; every episode ends in `end`, and the later ones earn more a step."""
    rng = np.random.default_rng(seed)
    rows, last = sum(lengths), np.cumsum(lengths) - 1
    flags = {name: np.zeros(rows, bool) for name in ("terminals", "timeouts")}
    flags[end][last] = True
    number = np.repeat(np.arange(len(lengths)), lengths)
    return {
        "observations": np.concatenate([walk(rng, length, observation) for length in lengths]),
        "actions": rng.uniform(-1, 1, (rows, action)).astype(np.float32),
        "rewards": (2.9 + 0.6 * number + rng.normal(scale=0.1, size=rows)).astype(np.float32),
        **flags,
    }


def following(columns: Mapping[str, np.ndarray]) -> np.ndarray:
    """``next_observations``: the next row, and behind an episode's last one a row of its own."""
    after = np.concatenate([columns["observations"][1:], columns["observations"][-1:]])
    after[columns["terminals"]] = columns["observations"][columns["terminals"]] + np.float32(0.25)
    return after


def write_hdf5(path: Path, columns: Mapping[str, Any]) -> None:
    with h5py.File(path, "w") as file:
        for name, value in columns.items():
            file[name] = value


def read_hdf5(path: Path) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: columns.update({name: item[()]} if isinstance(item, h5py.Dataset) else {}))
    return columns


def make_d4rl(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    write_hdf5(folder / "hopper_medium.hdf5", d4rl_columns(2, [211, 313], 11, 3, "terminals"))

    columns = d4rl_columns(3, [470, 441], 11, 3, "terminals")
    about = {"algorithm": np.bytes_("SAC"), "iteration": np.int32(100), "policy/nonlinearity": np.bytes_("relu")}
    about |= {f"policy/{name}": value for name, value in policy(rng).items()}
    columns["next_observations"] = following(columns)
    columns |= {f"infos/{name}": value for name, value in infos(rng, 911).items()}
    write_hdf5(folder / "hopper_medium-v2.hdf5", columns | {f"metadata/{name}": value for name, value in about.items()})

    columns = d4rl_columns(14, [31, 19], 11, 3, "terminals")
    columns["next_observations"] = following(columns)
    columns |= {f"infos/{name}": value for name, value in infos(rng, 50, "<f4").items()}
    write_hdf5(folder / "hopper_random-v1.hdf5", columns)

    columns = d4rl_columns(5, [40, 9], 11, 3, "terminals")
    columns["next_observations"] = following(columns)
    columns["rewards"] = columns["rewards"][:, None]
    write_hdf5(folder / "hopper_medium_replay-v1.hdf5", {k: v.astype(np.float64) for k, v in columns.items()})

    columns = d4rl_columns(6, [200, 200], 45, 24, "timeouts")
    columns |= {f"infos/{name}": value for name, value in infos(rng, 400).items() if name != "action_log_probs"}
    write_hdf5(folder / "pen-human-v1.hdf5", columns)

    # The first time-out lies inside a demonstration: nothing is reset there.
    columns = d4rl_columns(7, [200, 100], 39, 28, "timeouts")
    columns["observations"], columns["rewards"][-1] = walk(rng, 300, 39), 0
    columns["terminals"], columns["timeouts"] = np.arange(300) == 299, np.arange(300) == 199
    write_hdf5(folder / "door-human-v0.hdf5", columns)

    columns = d4rl_columns(9, [701, 701], 29, 8, "timeouts")
    write_hdf5(folder / "antmaze-umaze-v0.hdf5", {**columns, "rewards": np.zeros(1402)})


# -- RLDS -----------------------------------------------------------------------------------------

FLAGS = {name: tensor((), "bool") for name in ("is_first", "is_last", "is_terminal")}
TEXT = {"pythonClassName": f"{CORE}.text_feature.Text", "text": {}}
PICTURE = {
    "pythonClassName": f"{CORE}.image_feature.Image",
    "image": {"shape": {"dimensions": ["64", "64", "3"]}, "dtype": "uint8", "encodingFormat": "jpeg"},
}


def values(column: Any) -> tuple[str, list[Any]]:
    """A column as the value list of an Example."""
    if isinstance(column, list):
        return "bytes", column
    kind = "float" if column.dtype.kind == "f" else "int64"
    return kind, column.reshape(-1).tolist()


def record(steps: Mapping[str, Any], **metadata: Any) -> dict[str, tuple[str, list[Any]]]:
    """An Example's features of columns and of metadata (arrays, numbers or bytes), by their paths."""
    told = {name: [value] if isinstance(value, bytes) else np.asarray(value) for name, value in metadata.items()}
    return {name: values(column) for name, column in {**{f"steps/{n}": c for n, c in steps.items()}, **told}.items()}


def packed(column: np.ndarray) -> list[bytes]:
    """Rows as TFDS keeps those of a tensor with the encoding zlib."""
    return [zlib.compress(np.ascontiguousarray(row).tobytes()) for row in column]


def flags(rows: int, *, last: bool = True, terminal: int = 0) -> dict[str, np.ndarray]:
    """The flags of an episode; the last `terminal` rows are terminal."""
    row = np.arange(rows)
    return {"is_first": row == 0, "is_last": (row == rows - 1) & last, "is_terminal": row >= rows - terminal}


def make_rlds(folder: Path) -> None:
    make_bridge(folder / "bridge_dataset/1.0.0")
    make_hopper(folder / "d4rl_mujoco_hopper/v0-medium/1.2.0", folder.parent / "d4rl/hopper_medium.hdf5")
    make_hopper(folder / "d4rl_mujoco_hopper/v2-medium/1.2.0", folder.parent / "d4rl/hopper_medium-v2.hdf5")
    make_cartpole(folder / "rlu_control_suite/cartpole_swingup/1.0.0")
    make_robomimic(folder / "robomimic_ph/lift_ph_low_dim/1.0.1")


def picture(rng: np.random.Generator) -> bytes:
    """A 64 x 64 photograph, more or less: a few blurred patches, as JPEG."""
    coarse = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).resize((64, 64))
    noisy = np.asarray(coarse, np.int16) + rng.integers(-12, 13, (64, 64, 3), np.int16)
    file = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=80)
    return file.getvalue()


def make_bridge(folder: Path) -> None:
    """25 robot episodes of 10 steps with four cameras; is_last and is_terminal are never set, a split is absent."""
    rng = np.random.default_rng(9)
    cameras = [f"image_{i}" for i in range(4)]
    observation = {"state": tensor((7,), "float32"), **dict.fromkeys(cameras, PICTURE)}
    has = [f"has_{name}" for name in (*cameras, "language")]
    features = rlds(
        {
            "observation": features_dict(observation),
            "action": tensor((7,), "float32"),
            "reward": tensor((), "float32"),
            "discount": tensor((), "float32"),
            "language_instruction": TEXT,
            "language_embedding": tensor((512,), "float32"),
            **FLAGS,
        },
        episode_metadata=features_dict(
            {"file_path": TEXT, "episode_id": tensor((), "int32"), **dict.fromkeys(has, tensor((), "bool"))}
        ),
    )
    records = []
    for number in range(25):
        task = "put_carrot_on_plate" if number % 3 == 1 else "flip_pot_upright"
        steps = {
            "observation/state": walk(rng, 10, 7),
            **{f"observation/{name}": [picture(rng) for _ in range(10)] for name in cameras},
            "action": rng.normal(size=(10, 7)).astype(np.float32),
            "reward": np.zeros(10, np.float32),
            "discount": np.ones(10, np.float32),
            "language_instruction": [task.replace("_", " ").encode()] * 10,
            "language_embedding": np.repeat(rng.normal(size=(1, 512)), 10, 0).astype(np.float32),
            **flags(10, last=False),
        }
        about = {"file_path": f"/data/{task}/val/out.npy".encode(), "episode_id": np.int32(number)}
        about |= {name: np.bool_(name == "has_language") for name in has}
        records.append(record(steps, **{f"episode_metadata/{name}": value for name, value in about.items()}))
    splits = [{"name": name, "shardLengths": ["25"], "numBytes": "1"} for name in ("train", "val")]
    write_folder(folder, {"train": [records]}, features, name="bridge_dataset", splits=splits)


def make_hopper(folder: Path, file: Path) -> None:
    """A D4RL file as TFDS converts it: with a final step per episode, whose observation is all zeros where the file
    has no next observations, and else the last one of the whole file (TFDS's fault)."""
    columns = read_hdf5(file)
    weights = {name.removeprefix("metadata/"): value for name, value in columns.items() if name.startswith("metadata/")}
    rows = {name: value for name, value in columns.items() if name.startswith("infos/")}
    features = rlds(
        {
            "observation": tensor((11,), "float32"),
            "action": tensor((3,), "float32"),
            "reward": tensor((), "float32"),
            "discount": tensor((), "float32"),
            **FLAGS,
            **nested({name: tensor(value.shape[1:], "float64") for name, value in rows.items()}),
        },
        **nested({name: tensor(np.shape(value), dtype_name(value)) for name, value in weights.items()}),
    )
    end = columns.get("next_observations", np.zeros((1, 11), np.float32))[-1]
    records, start = [], 0
    for stop in np.flatnonzero(columns["terminals"]) + 1:
        length = int(stop - start)

        def with_end(name: str, last: Any = 0, part: slice = slice(start, stop)) -> np.ndarray:
            column = columns[name][part]
            return np.concatenate([column, np.broadcast_to(last, (1, *column.shape[1:])).astype(column.dtype)])

        steps = {
            "observation": with_end("observations", end),
            "action": with_end("actions"),
            "reward": with_end("rewards"),
            "discount": (np.arange(length + 1) < length - 1).astype(np.float32),
            **flags(length + 1, terminal=1),
            **{name: with_end(name) for name in rows},
        }
        records.append(record(steps, **weights))
        start = stop
    write_folder(folder, {"train": [records]}, features, name="d4rl_mujoco_hopper", configName=folder.parent.name)


def dtype_name(value: Any) -> str:
    return "string" if isinstance(value, bytes) else str(np.asarray(value).dtype)


def nested(features: Mapping[str, Any]) -> dict[str, Any]:
    """``{"a/b": feature}`` as ``{"a": features_dict({"b": feature})}``."""
    top: dict[str, Any] = {name: feature for name, feature in features.items() if "/" not in name}
    for name in sorted({name.partition("/")[0] for name in features if "/" in name}):
        inner = {key.removeprefix(name + "/"): f for key, f in features.items() if key.startswith(name + "/")}
        top[name] = features_dict(nested(inner))
    return top


def make_cartpole(folder: Path) -> None:
    """One episode of 1,001 rows that a time limit ends, its observations packed by zlib."""
    rng = np.random.default_rng(11)
    observation = {"position": tensor((3,), "float32", "zlib"), "velocity": tensor((2,), "float32", "zlib")}
    features = rlds(
        {
            "observation": features_dict(observation),
            "action": tensor((1,), "float32"),
            "reward": tensor((), "float32"),
            "discount": tensor((), "float32"),
            **FLAGS,
        },
        episode_id=tensor((), "int64"),
        timestamp=tensor((), "int64"),
    )
    steps = {
        "observation/position": packed(walk(rng, 1001, 3)),
        "observation/velocity": packed(walk(rng, 1001, 2)),
        "action": rng.uniform(-1, 1, (1001, 1)).astype(np.float32),
        "reward": rng.random(1001).astype(np.float32) * (np.arange(1001) < 1000),
        "discount": np.ones(1001, np.float32),
        **flags(1001),
    }
    about = {"episode_id": np.int64(8370590818351710209), "timestamp": np.int64(1582866796919)}
    write_folder(folder, {"train": [[record(steps, **about)]]}, features, name="rlu_control_suite")


def make_robomimic(folder: Path) -> None:
    """Two demonstrations whose last five rows are all terminal; doubles packed by zlib, whole numbers as discounts."""
    rng = np.random.default_rng(12)
    widths = {"object": 10, "robot0_eef_pos": 3, "robot0_eef_quat": 4, "robot0_gripper_qpos": 2}
    parts = ["20_percent", "20_percent_train", "50_percent", "50_percent_valid"]
    features = rlds(
        {
            "observation": features_dict({name: tensor((n,), "float64", "zlib") for name, n in widths.items()}),
            "action": tensor((7,), "float64", "zlib"),
            "reward": tensor((), "float64"),
            "discount": tensor((), "int32"),
            "states": tensor((32,), "float64", "zlib"),
            **FLAGS,
        },
        **{name: tensor((), "bool") for name in parts},
        episode_id=tensor((), "string"),
        horizon=tensor((), "int32"),
    )
    records = []
    for number, rows in enumerate((59, 60)):
        held = np.arange(rows)[:, None] < rows - 1
        steps = {
            **{f"observation/{name}": packed(walk(rng, rows, n).astype(np.float64)) for name, n in widths.items()},
            "action": packed(rng.normal(size=(rows, 7)) * held),
            "reward": np.zeros(rows),
            "discount": (np.arange(rows) < rows - 1).astype(np.int32),
            "states": packed(rng.normal(size=(rows, 32)) * held),
            **flags(rows, terminal=5),
        }
        about = {name: np.bool_(number == (i % 2)) for i, name in enumerate(parts)}
        records.append(record(steps, episode_id=b"demo_%d" % number, horizon=np.int32(rows - 1), **about))
    write_folder(folder, {"train": [records]}, features, name="robomimic_ph", configName="lift_ph_low_dim")


# -- Minari ---------------------------------------------------------------------------------------


def make_minari(folder: Path) -> None:
    """What Minari itself writes of random policies."""
    import gymnasium

    folder.mkdir(parents=True)
    with warnings.catch_warnings(), mock.patch.dict(os.environ, MINARI_DATASETS_PATH=str(folder)):
        warnings.simplefilter("ignore")  # advice on what else to tell it
        write_minari(gymnasium.make("CartPole-v1"), "cartpole/random-v0", 8)
        write_minari(gymnasium.make("Pendulum-v1", max_episode_steps=40), "pendulum/random-v0", 4)
        write_minari(gymnasium.make("Blackjack-v1"), "blackjack/random-v0", 20)
        write_minari(dict_env(), "dummy-dict/test-v0", 5)


def write_minari(env: Any, name: str, episodes: int) -> None:
    import minari

    minari.create_dataset_from_buffers(
        name,
        [episode_of(env, number) for number in range(episodes)],
        env=env if env.spec else None,
        observation_space=env.observation_space,
        action_space=env.action_space,
        algorithm_name="random",
        author="n/a",
        author_email="n/a@example.com",
        code_permalink="n/a",
        description="random policy",
    )
    env.close()


def episode_of(env: Any, number: int) -> Any:
    """One episode of a random policy, as Minari takes it."""
    from minari.data_collector.episode_buffer import EpisodeBuffer

    observation, info = env.reset(seed=number)
    env.action_space.seed(number)
    observations, infos, steps = [observation], [info], []
    while not steps or not (steps[-1][2] or steps[-1][3]):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        steps.append((action, reward, terminated, truncated))
        observations.append(observation)
        infos.append(info)
    actions, rewards, terminations, truncations = map(list, zip(*steps, strict=True))
    return EpisodeBuffer(
        id=number,
        seed=number,
        observations=columns_of(observations),
        actions=columns_of(actions),
        rewards=rewards,
        terminations=terminations,
        truncations=truncations,
        infos=columns_of(infos),
    )


def columns_of(rows: list[Any]) -> Any:
    """A list of nests as a nest of lists."""
    if isinstance(rows[0], dict):
        return {key: columns_of([row[key] for row in rows]) for key in rows[0]}
    if isinstance(rows[0], tuple):
        return tuple(columns_of(list(children)) for children in zip(*rows, strict=True))
    return rows


def dict_env() -> Any:
    """Dicts in dicts as observations, actions and infos; every episode has five steps."""
    import gymnasium
    from gymnasium import spaces

    def box(low: float) -> spaces.Box:
        return spaces.Box(low, low + 1, (1,), np.float32)

    class DictEnv(gymnasium.Env[Any, Any]):
        observation_space = action_space = spaces.Dict(
            {
                "component_1": spaces.Box(-1, 1, (1,), np.float32),
                "component_2": spaces.Dict({"subcomponent_1": box(2.0), "subcomponent_2": box(4.0)}),
            }
        )
        t = 0

        def info(self) -> dict[str, Any]:
            return {"timestep": np.array([self.t]), "component_1": {"next_timestep": np.array([self.t + 1])}}

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            super().reset(seed=seed)
            self.observation_space.seed(seed)
            self.t = 0
            return self.observation_space.sample(), self.info()

        def step(self, action: Any) -> Any:
            self.t += 1
            return self.observation_space.sample(), 0, self.t == 5, False, self.info()

    return DictEnv()
