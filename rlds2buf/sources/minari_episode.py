"""One episode's group in Minari's HDF5 layout, as columns."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import MissingDependency, SourceFormatError, SpecMismatch
from rlds2buf.sources.hdf5_file import tree
from rlds2buf.sources.hdf5_rows import native_dtype
from rlds2buf.sources.spaces import is_image

__all__ = ["read_episode"]

_PART = re.compile(r"_index_(\d+)")


def read_episode(group: Any, spaces: dict[str, nest.Nest], *, infos: bool, source: str, index: int) -> Episode:
    """The episode in an HDF5 group ``episode_<k>``.

    Args:
        group: the open h5py group.
        spaces: ``observation`` and ``action`` as nests of FieldSpec, which say what is a picture; or {}.
        infos: whether to read ``infos``.
        source, index: the episode's place, for messages.

    Raises:
        SpecMismatch: a part is missing, or as long as no part should be.
        SourceFormatError: the bytes can't be read.
    """
    where: dict[str, Any] = {"source": source, "episode": index}

    def part(name: str, field: str) -> Any:
        if group.get(name) is None:
            message = f"{group.name.strip('/')} has no `{name}`"
            raise SpecMismatch(message, path=field, rule="spec", **where)
        found = tree(group[name], f"{source}: {group.name}/{name}")
        return nest.map_structure(_read, found)

    def numbers(name: str, field: str) -> np.ndarray:
        column = part(name, field)
        if not isinstance(column, np.ndarray) or column.ndim != 1 or column.dtype.kind not in "biuf":
            got = f"{column.dtype}{list(column.shape)}" if isinstance(column, np.ndarray) else "a group"
            raise SpecMismatch(f"`{name}` should hold one number a step, got {got}", path=field, rule="spec", **where)
        return column

    rewards = numbers("rewards", "reward")
    steps = len(rewards)
    ended, cut = (numbers(name, name).astype(np.bool_) for name in ("terminations", "truncations"))
    columns = {
        "observation": _with_pictures(_tuples(part("observations", "observation")), spaces.get("observation")),
        "action": _with_pictures(_tuples(part("actions", "action")), spaces.get("action")),
    }
    extras: dict[str, nest.Nest] = {}
    single: dict[str, Any] = {}
    if infos and group.get("infos") is not None:
        extras, single = _split(part("infos", "extras/infos"))
    checks = {"observation": steps + 1, "action": steps, "reward": steps, "terminations": steps, "truncations": steps}
    for name, want in checks.items():
        found = {"reward": rewards, "terminations": ended, "truncations": cut, **columns}[name]
        _check_length(found, name, (want,), where)
    _check_length(extras, "extras/infos", (steps, steps + 1), where)

    is_terminal = np.concatenate([[False], ended])
    is_last = np.concatenate([[False], ended | cut])
    open_tail = not is_last[-1]
    is_last[-1] = True
    is_first = np.zeros(steps + 1, np.bool_)
    is_first[0] = True
    discount = np.ones(steps + 1, np.float32)
    discount[is_terminal] = 0
    discount[:-1][is_terminal[1:]] = 0
    metadata = _metadata(group) | ({"infos": single} if single else {}) | ({"open_tail": True} if open_tail else {})
    longer = nest.map_structure(lambda column: _padded(column, steps + 1), extras)
    return Episode(
        observation=columns["observation"],
        action=nest.map_structure(lambda column: _padded(column, steps + 1), columns["action"]),
        reward=_padded(rewards, steps + 1),
        discount=discount,
        is_first=is_first,
        is_last=is_last,
        is_terminal=is_terminal,
        extras={"infos": longer} if longer else {},
        metadata=metadata,
        source=source,
        index=index,
    )


def _read(dataset: Any) -> Any:
    if dataset.dtype.metadata and isinstance(dataset.dtype.metadata.get("vlen"), np.dtype):
        dtype = np.dtype(object)  # files in a field, taken apart in _with_pictures
    else:
        dtype = native_dtype(dataset)
    try:
        value = dataset[()]
    except (OSError, RuntimeError) as cause:
        raise SourceFormatError(f"{dataset.file.filename}: {dataset.name} can't be read ({cause})") from cause
    return np.asarray(value).astype(dtype, copy=False)


def _tuples(value: nest.Nest) -> nest.Nest:
    """Groups whose members are ``_index_0``, ``_index_1``, ... become tuples."""
    if not isinstance(value, dict):
        return value
    numbers = {int(match[1]): key for key in value if (match := _PART.fullmatch(key))}
    if value and sorted(numbers) == list(range(len(value))):
        return tuple(_tuples(value[numbers[i]]) for i in range(len(value)))
    return {key: _tuples(child) for key, child in value.items()}


def _with_pictures(columns: nest.Nest, specs: nest.Nest) -> nest.Nest:
    """Decode the columns that hold JPEG files; the rest stay as they are.

    Files of one length are stored as one array ``[T, bytes]``, files of different lengths as rows
    of their own.
    """
    if specs is None or not nest.same_structure(columns, specs):
        return columns

    def decoded(column: np.ndarray, spec: FieldSpec) -> np.ndarray:
        as_files = column.ndim == 1 or (column.ndim == 2 and len(spec.shape) > 1)
        return _pictures(column) if is_image(spec) and as_files else column

    return nest.map_structure(decoded, columns, specs)


def _pictures(files: np.ndarray) -> np.ndarray:
    try:
        from PIL import Image
    except ImportError as cause:
        raise MissingDependency("images need Pillow: pip install Pillow") from cause
    try:
        frames = [np.asarray(Image.open(io.BytesIO(bytes(file)), formats=["JPEG"])) for file in files]
    except (OSError, ValueError, SyntaxError) as cause:
        raise SourceFormatError(f"a picture can't be decoded ({cause})") from cause
    if any(frame.shape != frames[0].shape for frame in frames):
        raise SourceFormatError("the pictures of one episode differ in size")
    return np.stack(frames)


def _split(infos: nest.Nest) -> tuple[dict[str, nest.Nest], dict[str, Any]]:
    """Info columns, and the single values beside them."""
    columns: dict[str, nest.Nest] = {}
    single: dict[str, Any] = {}
    for key, value in infos.items():
        if isinstance(value, dict):
            inner, inner_single = _split(value)
            columns.update({key: inner} if inner else {})
            single.update({key: inner_single} if inner_single else {})
        elif value.ndim == 0:
            single[key] = value.item()
        else:
            columns[key] = value
    return columns, single


def _check_length(columns: nest.Nest, name: str, allowed: tuple[int, ...], where: dict[str, Any]) -> None:
    for path, column in nest.flatten(columns, (name,)):
        length = len(column) if column.ndim else 0
        if length not in allowed:
            wanted = " or ".join(str(n) for n in allowed)
            message = f"{length} rows; beside {min(allowed)} rewards there should be {wanted}"
            if name == "observation":
                message = f"{length} rows; beside {allowed[0] - 1} rewards there should be {allowed[0]}"
            raise SpecMismatch(message, path=nest.path_name(path), rule="ragged-columns", **where)


def _padded(column: np.ndarray, rows: int) -> np.ndarray:
    if len(column) == rows:
        return column
    out = np.zeros((rows, *column.shape[1:]), column.dtype)
    out[: len(column)] = column
    if out.dtype == object:
        out[len(column) :] = b""
    return out


def _metadata(group: Any) -> dict[str, Any]:
    """The group's attributes; Minari writes nested options as ``options/name``."""
    out: dict[str, Any] = {}
    for key, value in group.attrs.items():
        here = out
        *parents, last = key.split("/")
        for parent in parents:
            here = here.setdefault(parent, {})
        here[last] = value.item() if isinstance(value, np.generic) else value
    return out
