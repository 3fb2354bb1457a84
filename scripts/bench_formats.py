#!/usr/bin/env python3
"""Further formats, validated into a buffer whose memory is there, against the file's library reading the same arrays.

zarr       Diffusion Policy's group: PushT's arrays (float pictures of 96 x 96 x 3 as Blosc's chunks), and zarr
numbers    Zarr, OGBench, imitation, Stable-Baselines 2 (one file each), ALOHA and Dreamer (a file for each episode),
           robomimic and ManiSkill (an HDF5 group for each episode), Parquet: observation [17], action [6], reward;
           and zarr, numpy, h5py and pyarrow reading every array that is read from them
pictures   the same of ALOHA, robomimic, ManiSkill and Dreamer with pictures of 64 x 64, as they are stored there

Files are those of each format's own scripts in layout, compression and dtypes, and in the page cache.
``scripts/test core`` makes the environment that has all of these libraries (``.venv/core``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from bench import Bench, Pass, columns, cut, turns

import rlds2buf

PARTS = ["zarr", "numbers", "pictures"]
OURS = "rlds2buf"
LENGTH, SIDE = 200, 64
"""Steps of an episode, as demonstrations have them; pixels of a camera's side."""
LEAST, MOST_OF_ZARR = 0.3, 1.5
Made = tuple[Path, Callable[[], Any]]
"""A dataset, and what its library does to read all its arrays."""


def validated(path: Path, steps: int, **options: Any) -> Pass:
    """Read, check every episode, store it."""
    with rlds2buf.open_source(path, **options) as opened:
        buffer = rlds2buf.make_circular(opened.spec, steps + 1, seed=0)

    def run() -> int:
        buffer.clear()
        with rlds2buf.open_source(path, **options) as source:
            report = rlds2buf.convert(source, buffer, final_transition="drop")
        assert report.episodes == report.read and report.steps >= steps, report
        return steps

    return run


def npz(path: Path) -> Callable[[], Any]:
    def read() -> list[np.ndarray]:
        with np.load(path) as file:
            return [file[name] for name in file.files]

    return read


def hdf5(paths: list[Path]) -> Callable[[], Any]:
    """Every dataset of some files."""

    def read() -> list[Any]:
        found: list[Any] = []
        for path in paths:
            with h5py.File(path, "r") as file:
                file.visititems(lambda _, node: found.append(node[()]) if isinstance(node, h5py.Dataset) else None)
        return found

    return read


def pictures_of(rows: int) -> np.ndarray:
    """``[rows, 64, 64, 3] uint8``: one that moves on, so that compression has something to do."""
    ramp = np.add.outer(np.arange(SIDE), np.arange(SIDE))
    return ((ramp + 3 * np.arange(rows)[:, None, None])[..., None] * np.array([1, 2, 3]) % 256).astype(np.uint8)


def write_zarr(folder: Path, steps: int, has_pictures: bool) -> Made:
    import numcodecs
    import zarr

    table = columns(steps, LENGTH)
    arrays = {"state": table["observation"], "action": table["action"]}
    if has_pictures:
        arrays["img"] = np.resize(
            pictures_of(min(steps, 1000)).repeat(2, 1)[:, :96].repeat(2, 2)[:, :, :96], (steps, 96, 96, 3)
        ).astype(np.float32)
    root = zarr.open_group(str(folder / "made.zarr"), mode="w", zarr_format=2)
    for name, data in arrays.items():
        chunks = (161, *data.shape[1:])
        made = root.create_array(
            f"data/{name}",
            shape=data.shape,
            dtype=data.dtype,
            chunks=chunks,
            compressors=numcodecs.Blosc("zstd", clevel=5),
        )
        made[:] = data
    root.create_array("meta/episode_ends", data=np.arange(LENGTH, steps + 1, LENGTH))

    def read() -> list[Any]:
        group = zarr.open_group(str(folder / "made.zarr"), mode="r")
        return [group[f"data/{name}"][:] for name in arrays]

    return folder / "made.zarr", read


def write_ogbench(folder: Path, steps: int, has_pictures: bool) -> Made:
    table = columns(steps, LENGTH)
    np.savez_compressed(
        folder / "made-v0.npz", observations=table["observation"], actions=table["action"], terminals=table["is_last"]
    )
    return folder / "made-v0.npz", npz(folder / "made-v0.npz")


def write_imitation(folder: Path, steps: int, has_pictures: bool) -> Made:
    table, episodes = columns(steps, LENGTH), steps // LENGTH
    observations = np.resize(table["observation"], (steps + episodes, table["observation"].shape[1]))
    np.savez(
        folder / "final.npz",
        obs=observations,
        acts=table["action"],
        rews=table["reward"].astype(np.float64),
        terminal=np.zeros(episodes, np.bool_),
        indices=np.arange(LENGTH, steps, LENGTH),
    )
    return folder / "final.npz", npz(folder / "final.npz")


def write_sb2(folder: Path, steps: int, has_pictures: bool) -> Made:
    table = columns(steps, LENGTH)
    np.savez(
        folder / "expert.npz",
        obs=table["observation"],
        actions=table["action"],
        rewards=table["reward"].astype(np.float64),
        episode_starts=table["is_first"],
        episode_returns=np.zeros(steps // LENGTH),
    )
    return folder / "expert.npz", npz(folder / "expert.npz")


def write_aloha(folder: Path, steps: int, has_pictures: bool) -> Made:
    paths = []
    for number, rows in enumerate(cut(columns(steps, LENGTH), LENGTH)):
        paths.append(folder / f"episode_{number}.hdf5")
        with h5py.File(paths[-1], "w") as root:
            root.attrs["sim"] = True
            root["observations/qpos"] = rows["observation"].astype(np.float64)
            root["observations/qvel"] = rows["observation"].astype(np.float64)
            root["action"] = rows["action"].astype(np.float64)
            if has_pictures:
                frames = pictures_of(LENGTH)
                root.create_dataset("observations/images/top", data=frames, chunks=(1, *frames.shape[1:]))
    return folder, hdf5(paths)


def write_robomimic(folder: Path, steps: int, has_pictures: bool) -> Made:
    path = folder / "low_dim.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {}})
        data.attrs["total"] = steps
        for number, rows in enumerate(cut(columns(steps, LENGTH), LENGTH)):
            group = data.create_group(f"demo_{number}")
            group.attrs["num_samples"] = LENGTH
            for name, column in (("obs", rows["observation"]), ("next_obs", np.roll(rows["observation"], -1, axis=0))):
                group[f"{name}/object"] = column.astype(np.float64)
                if has_pictures:
                    group[f"{name}/agentview_image"] = pictures_of(LENGTH)
            group["actions"], group["rewards"] = rows["action"].astype(np.float64), rows["reward"].astype(np.float64)
            group["dones"] = rows["is_last"].astype(np.int64)
    return path, hdf5([path])


def write_maniskill(folder: Path, steps: int, has_pictures: bool) -> Made:
    path, told = folder / "trajectory.state.h5", []
    with h5py.File(path, "w") as file:
        for number, rows in enumerate(cut(columns(steps, LENGTH), LENGTH)):
            group = file.create_group(f"traj_{number}", track_order=True)
            group["obs/state"] = np.concatenate([rows["observation"], rows["observation"][-1:]])
            if has_pictures:
                group.create_dataset(
                    "obs/sensor_data/base_camera/rgb",
                    data=pictures_of(LENGTH + 1),
                    compression="gzip",
                    compression_opts=5,
                )
            group["actions"], group["rewards"] = rows["action"], rows["reward"]
            group["terminated"], group["truncated"] = rows["is_terminal"], rows["is_last"]
            group["success"] = rows["is_terminal"]
            told.append(
                {
                    "episode_id": number,
                    "episode_seed": number,
                    "control_mode": "pd_joint_delta_pos",
                    "elapsed_steps": LENGTH,
                    "reset_kwargs": {},
                }
            )
    told_of = {"env_info": {"env_id": "PickCube-v1", "max_episode_steps": LENGTH, "env_kwargs": {}}, "episodes": told}
    path.with_suffix(".json").write_text(json.dumps(told_of))
    return path, hdf5([path])


def write_dreamer(folder: Path, steps: int, has_pictures: bool) -> Made:
    paths = []
    for number, rows in enumerate(cut(columns(steps, LENGTH), LENGTH)):
        first = rows["is_first"]
        held = {
            "vector": rows["observation"],
            "action": rows["action"] * ~first[:, None],
            "reward": rows["reward"] * ~first,
            "discount": rows["discount"],
            "is_first": first,
            "is_last": rows["is_last"],
            "is_terminal": rows["is_terminal"],
        }
        if has_pictures:
            held["image"] = pictures_of(LENGTH)
        paths.append(folder / f"20211107T162200-{number:08x}-{LENGTH}.npz")
        np.savez_compressed(paths[-1], **held)
    return folder, lambda: [npz(path)() for path in paths]


def write_parquet(folder: Path, steps: int, has_pictures: bool) -> Made:
    import pyarrow.parquet

    data = cut(columns(steps, LENGTH), LENGTH)
    rlds2buf.convert([rlds2buf.Episode(**rows) for rows in data], folder / "made.parquet", to="parquet")
    return folder / "made.parquet", lambda: [
        column.to_numpy() for column in pyarrow.parquet.read_table(folder / "made.parquet").columns
    ]


WRITERS: dict[str, Callable[[Path, int, bool], Made]] = {
    "Zarr": write_zarr,
    "OGBench": write_ogbench,
    "imitation": write_imitation,
    "Stable-Baselines 2": write_sb2,
    "ALOHA": write_aloha,
    "robomimic": write_robomimic,
    "ManiSkill": write_maniskill,
    "Dreamer": write_dreamer,
    "Parquet": write_parquet,
}
WITH_PICTURES = ("ALOHA", "robomimic", "ManiSkill", "Dreamer")
LIBRARY = "its library"


def measure(bench: Bench, name: str, steps: int, has_pictures: bool, least: float) -> None:
    what = f"{name} with pictures" if has_pictures else name
    with bench.folder() as folder:
        path, read = WRITERS[name](folder, steps, has_pictures)

        def theirs() -> int:
            assert len(read())
            return steps

        rates = turns({OURS: validated(path, steps), LIBRARY: theirs}, bench.rounds)
    bench.show(f"{what}, episodes of {LENGTH} steps", rates)
    bench.ratio(f"{what} validated into a buffer", rates, OURS, LIBRARY, least=least)


def main() -> None:
    bench = Bench(__doc__, rounds=3, parts=PARTS, steps=100_000)
    steps = int(bench.options.steps) // LENGTH * LENGTH
    if "zarr" in bench.options.parts:
        measure(bench, "Zarr", max(LENGTH, steps // 25 // LENGTH * LENGTH), True, 1 / MOST_OF_ZARR)
    if "numbers" in bench.options.parts:
        for name in WRITERS:
            measure(bench, name, steps, False, LEAST)
    if "pictures" in bench.options.parts:
        for name in WITH_PICTURES:
            measure(bench, name, max(LENGTH, steps // 20 // LENGTH * LENGTH), True, LEAST)
    bench.finish()


if __name__ == "__main__":
    main()
