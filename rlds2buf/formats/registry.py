"""The formats that are read, and how each is told by looking; the ones that are only recognised."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

from rlds2buf.io.look import Look

__all__ = ["FORMATS", "OBJECTS", "REFUSALS", "SCHEMES", "Format", "ObjectFormat", "Refusal"]


@dataclasses.dataclass(frozen=True)
class Format:
    """A format that is read.

    Attributes:
        name: what ``open_source(format=...)`` calls it.
        what: what it is, for messages.
        module, cls: where its :class:`~rlds2buf.io.source.Source` lives in ``rlds2buf``.
        fits: whether something at a path looks like it.
        has_splits: whether it takes ``split=``.
        suffixes: of its files' names, where these mean this format and no other.
        by_name: whether it is told by names alone.
    """

    name: str
    what: str
    module: str
    cls: str
    fits: Callable[[Look], bool]
    has_splits: bool = False
    suffixes: tuple[str, ...] = ()
    by_name: bool = False


@dataclasses.dataclass(frozen=True)
class ObjectFormat:
    """Something in memory that is read; as :class:`Format`, but `fits` is asked about the object."""

    name: str
    what: str
    module: str
    cls: str
    fits: Callable[[Any], bool]
    has_splits: bool = False


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Something known that is not read.

    Attributes:
        fits: whether something at a path looks like it.
        why: what it is and what to do, for the message.
    """

    fits: Callable[[Look], bool]
    why: Callable[[Look], str]


_D4RL_COLUMNS = {"observations", "actions", "rewards", "terminals"}
_MINARI_FILE = "main_data.hdf5"
_TFDS_FILES = ("features.json", "dataset_info.json")
_SHARD = re.compile(r".+\.(tfrecord|array_record|riegeli).*-\d{5}-of-\d{5}$")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_MAX_FOLDERS = 500


def _is_d4rl(look: Look) -> bool:
    return look.hdf5 is not None and len(_D4RL_COLUMNS & set(look.hdf5)) >= 2


def _is_minari(look: Look) -> bool:
    if look.hdf5:
        return all(re.fullmatch(r"episode_\d+", name) for name in look.hdf5)
    if look.path.name == _MINARI_FILE:
        return look.path.is_file()
    folders = [look, look.inside("data")]
    return any(_MINARI_FILE in folder.names or _minari_metadata(folder) is not None for folder in folders)


def _minari_metadata(folder: Look) -> Any:
    if "metadata.json" not in folder.names:
        return None
    metadata = folder.inside("metadata.json").json()
    known = isinstance(metadata, dict) and {"data_format", "minari_version", "total_episodes"} & set(metadata)
    return metadata if known else None


def _is_rlds(look: Look) -> bool:
    """A version folder of TFDS's, or the config or dataset folder above it; not the folder above several datasets."""
    if any(name in look.names for name in _TFDS_FILES) or _has_versions(look):
        return True
    below = {name: look.inside(name) for name in look.names[:_MAX_FOLDERS]}
    configs = {name for name, folder in below.items() if _has_versions(folder)}
    return bool(configs) and not any(
        entry.fits(folder) for name, folder in below.items() if name not in configs for entry in FORMATS
    )


def _has_versions(look: Look) -> bool:
    versions = (look.inside(name) for name in look.names if _VERSION.fullmatch(name))
    return any(name in version.names for version in versions for name in _TFDS_FILES)


def _folders(look: Look, depth: int) -> Iterator[Look]:
    if not look.is_folder:
        return
    yield look
    if depth:
        for name in look.names:
            yield from _folders(look.inside(name), depth - 1)


_RLLIB_BATCH = re.compile(rb'\s*\{"type": ?"(SampleBatch|MultiAgentBatch)"')
_RLLIB_SUFFIXES = (".json", ".jsonl", ".parquet")
_RLLIB_ENDS = ("dones", "terminateds", "truncateds")


def _is_rllib(look: Look) -> bool:
    """RLlib's batches or steps, or a folder (of folders) of such files; the first file tells."""
    if look.is_folder:
        files = (
            folder.inside(name) for folder in itertools.islice(_folders(look, 2), _MAX_FOLDERS) for name in folder.names
        )
        first = next((file for file in files if file.path.suffix in _RLLIB_SUFFIXES and file.path.is_file()), None)
        return first is not None and _is_rllib(first)
    if look.path.suffix not in _RLLIB_SUFFIXES or not look.path.is_file():
        return False
    if look.parquet is not None:
        names = set(look.parquet)
        has_ends = any(name in names for name in _RLLIB_ENDS)
        rows = has_ends and {"eps_id", "obs", "actions", "rewards"} <= names
        return names == {"item"} or "policy_batches" in names or rows
    has_ends = any(f'"{name}"'.encode() in look.first_line for name in _RLLIB_ENDS)
    row = (b'"eps_id"', b'"obs"', b'"actions"')
    return bool(_RLLIB_BATCH.match(look.head)) or (has_ends and all(name in look.first_line for name in row))


def _is_reverb_checkpoint(look: Look) -> bool:
    """A checkpoint, or a checkpointer's folder with one in it."""
    folders = itertools.islice(_folders(look, 1), _MAX_FOLDERS)
    return any({"DONE", "tables.tfrecord", "chunks.tfrecord"} <= set(folder.names) for folder in folders)


def _is_saved_buffer(look: Look) -> bool:
    if "manifest.json" not in look.names:
        return False
    manifest = look.inside("manifest.json").json()
    return isinstance(manifest, dict) and manifest.get("format") == "rlds2buf-buffer"


def _is_tf_dataset(value: Any) -> bool:
    """Told by its class's bases, so that TensorFlow isn't imported where there is none."""
    return any(
        base.__module__.split(".")[0] == "tensorflow" and base.__name__ in ("DatasetV2", "DatasetV1")
        for base in type(value).__mro__
    )


def _is_episodes(value: Any) -> bool:
    from rlds2buf.core.episode import Episode

    named = isinstance(value, str | bytes | dict | Episode) or hasattr(value, "dtype")
    return hasattr(value, "__iter__") and not named


def _is_robomimic(look: Look) -> bool:
    """Demonstrations, and observations in the first; raw robosuite files have none."""
    demos = _demonstrations(look)
    return bool(demos) and look.hdf5_has(f"data/{demos[0]}/obs")


def _is_d3rlpy(look: Look) -> bool:
    return {"columns", "num_episodes", "version"} <= set(look.hdf5 or ())


def _is_d3rlpy_v1(look: Look) -> bool:
    """D4RL's layout but for a flag or a scalar of d3rlpy's own."""
    return _is_d4rl(look) and bool({"episode_terminals", "discrete_action"} & set(look.hdf5 or ()))


def _is_log(*suffixes: str) -> Callable[[Look], bool]:
    """A file with one of the suffixes, or a folder with nothing but such files."""

    def fits(look: Look) -> bool:
        if not look.is_folder:
            return look.path.name.lower().endswith(suffixes) and look.path.is_file()
        names = [name for name in look.names if name[0] not in "._"]
        return bool(names) and all(name.lower().endswith(suffixes) for name in names)

    return fits


def _is_arrays(look: Look) -> bool:
    return _is_log(".npz")(look) or (look.is_folder and _is_log(".npy")(look))


def _log(name: str, what: str, module: str, cls: str, *suffixes: str) -> Format:
    """A format that is told by its files' names alone."""
    return Format(name, what, module, cls, _is_log(*suffixes), suffixes=suffixes, by_name=True)


FORMATS = (
    Format("rlds", "an RLDS folder of TFDS", "formats.rlds.source", "RldsDirSource", _is_rlds, has_splits=True),
    Format("minari", "a Minari dataset", "formats.minari.source", "MinariDirSource", _is_minari),
    Format("rllib", "RLlib's logged batches", "formats.rllib.source", "RllibSource", _is_rllib, suffixes=(".json",)),
    # Nothing in such files tells how to read them, so they are read where this format is asked for.
    Format(
        "tf-example",
        "raw tf.train.Example records",
        "formats.tf_example.source",
        "TfExampleSource",
        lambda look: False,
        suffixes=(".tfrecord", ".tfrecords"),
    ),
    Format(
        "robomimic",
        "a robomimic file",
        "formats.robomimic.source",
        "RobomimicHdf5Source",
        _is_robomimic,
        has_splits=True,
    ),
    Format("d3rlpy", "a dataset file of d3rlpy 2", "formats.d3rlpy.source_v2", "D3rlpyH5Source", _is_d3rlpy),
    Format("d3rlpy-v1", "a dataset file of d3rlpy 1", "formats.d3rlpy.source_v1", "D3rlpyV1Source", _is_d3rlpy_v1),
    Format("d4rl", "a D4RL HDF5 file", "formats.d4rl.source", "D4rlHdf5Source", _is_d4rl),
    Format(
        "reverb-checkpoint",
        "a Reverb checkpoint",
        "formats.reverb.checkpoint_source",
        "ReverbCheckpointSource",
        _is_reverb_checkpoint,
    ),
    Format("buffer", "a saved buffer", "formats.buffer.source", "BufferDirSource", _is_saved_buffer),
    # Told by their names alone, so behind all others.
    Format(
        "npz",
        "a log of numpy arrays",
        "formats.step_log.npz_log",
        "StepLogNpzSource",
        _is_arrays,
        suffixes=(".npz",),
        by_name=True,
    ),
    _log("jsonl", "a log in JSON Lines", "formats.step_log.json_log", "StepLogJsonSource", ".jsonl", ".ndjson"),
    _log("csv", "a log in CSV", "formats.step_log.csv_log", "StepLogCsvSource", ".csv", ".tsv"),
    _log(
        "parquet",
        "a log in Parquet",
        "formats.step_log.parquet_log",
        "StepLogParquetSource",
        ".parquet",
        ".pq",
        ".parq",
    ),
)
"""What is read from a path; the first that fits is taken."""


def _is_arrays_held(value: Any) -> bool:
    """A dict of columns, or a list of such dicts; not a list of steps."""
    from rlds2buf.formats.step_log.arrays_log import holds_columns

    first = value[0] if isinstance(value, list | tuple) and value else value
    return holds_columns(first)


OBJECTS = (
    ObjectFormat("arrays", "a dict of arrays", "formats.step_log.arrays_log", "StepLogArraysSource", _is_arrays_held),
    ObjectFormat("tf.data", "a tf.data.Dataset", "formats.rlds.tf_data_source", "RldsDatasetSource", _is_tf_dataset),
    ObjectFormat("memory", "a list of episodes", "formats.memory.source", "MemorySource", _is_episodes),
)
"""What is read from memory; the first that fits is taken."""

SCHEMES = {
    "reverb": ObjectFormat(
        "reverb", "a Reverb table", "formats.reverb.table_source", "ReverbTableSource", lambda value: True
    ),
}
"""What is read from an address, by its scheme."""


def _is_minari_namespace(look: Look) -> bool:
    return "namespace_metadata.json" in look.names


def _namespace_members(look: Look) -> str:
    held = [name for name in look.names if _is_minari(look.inside(name))]
    return f"a Minari namespace; name one of its datasets: {', '.join(held) or 'there is none'}"


def _demonstrations(look: Look) -> list[str]:
    return [name for name in (look.hdf5 or {}).get("data", []) if name.startswith("demo")]


def _is_tf_agents(look: Look) -> bool:
    if look.is_folder:
        return any(f"{name}.spec" in look.names for name in look.names)
    if look.path.suffix == ".spec":
        return look.path.with_suffix("").is_file()
    return look.is_tfrecord() and look.path.with_name(look.path.name + ".spec").is_file()


def _is_tfds_shard(look: Look) -> bool:
    return bool(_SHARD.match(look.path.name)) and look.path.is_file()


_RAW_ADVICE = 'format="tf-example" with features= reads records whose features you can name'


def _shard_advice(look: Look) -> str:
    parent = look.path.parent
    if (parent / "features.json").is_file():
        return f"one shard of an RLDS folder; name the folder: {parent}"
    return f"one shard of an RLDS folder, without the features.json that tells how to read it; {_RAW_ADVICE}"


REFUSALS = (
    Refusal(_is_minari_namespace, _namespace_members),
    Refusal(
        lambda look: bool(_demonstrations(look)),
        lambda look: (
            f"a robosuite or robomimic file ({len(_demonstrations(look))} or more demonstrations under data/) "
            "without observations, which is not read: raw robosuite demonstrations hold simulator states and "
            "actions, but neither observations nor rewards"
        ),
    ),
    Refusal(
        _is_tf_agents,
        lambda look: (
            "TF-Agents' own transition records (TFRecords beside a .spec file), which are not read: "
            "they hold shuffled transitions, not episodes"
        ),
    ),
    Refusal(_is_tfds_shard, _shard_advice),
    Refusal(
        lambda look: any(_SHARD.match(name) for name in look.names),
        lambda look: f"record shards without the features.json that tells how to read them; {_RAW_ADVICE}",
    ),
    Refusal(
        lambda look: look.path.is_file() and look.is_tfrecord(),
        lambda look: f"TFRecords, which do not tell what they hold; {_RAW_ADVICE}",
    ),
)
"""What is recognised and not read; asked where no format fits."""
