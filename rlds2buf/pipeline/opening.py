"""Opening a dataset, whatever its format."""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import itertools
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlds2buf.core.budget import Budget
from rlds2buf.core.options import check_types
from rlds2buf.errors import Rlds2bufError, SourceError, SourceFormatError, SourceNotFound
from rlds2buf.formats.registry import FORMATS, OBJECTS, REFUSALS, SCHEMES, Format, ObjectFormat
from rlds2buf.io.look import Look
from rlds2buf.io.source import Source
from rlds2buf.pipeline.hints import closest
from rlds2buf.transform.transformation import OPTIONS, Transformation

__all__ = ["open_source"]

_MAX_INSIDE = 50
_BUDGET = "budget"
_MAX_LISTED = 20
_MAX_DEPTH = 3
_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]+)://")


def open_source(
    uri: Any,
    *,
    split: str | None = None,
    format: str | None = None,
    max_bytes: int | None = None,
    max_objects: int | None = None,
    **options: Any,
) -> Source:
    """Open a dataset; the format is told by looking at what is there.

    ====================================================  =====================  ================================
    `uri`                                                 `format`               read by, in ``rlds2buf``
    ====================================================  =====================  ================================
    a dataset, config or version folder as TFDS writes    ``rlds``               ``RldsDirSource``
    a D4RL HDF5 file                                      ``d4rl``               ``D4rlHdf5Source``
    an ``.h5`` that d3rlpy 2 dumped                       ``d3rlpy``             ``D3rlpyH5Source``
    an ``.h5`` that d3rlpy 0.2 to 1.1 dumped              ``d3rlpy-v1``          ``D3rlpyV1Source``
    a robomimic HDF5 file                                 ``robomimic``          ``RobomimicHdf5Source``
    a Minari folder, its ``data``, or ``main_data.hdf5``  ``minari``             ``MinariDirSource``
    a Reverb checkpoint, or a checkpointer's folder       ``reverb-checkpoint``  ``ReverbCheckpointSource``
    RLlib's JSON or Parquet, a file or a folder of them   ``rllib``              ``RllibSource``
    TFRecord files, a folder or a glob of them            ``tf-example``         ``TfExampleSource``
    a saved buffer that holds episodes                    ``buffer``             ``BufferDirSource``
    an .npz, a folder of them, or of .npy files           ``npz``                ``StepLogNpzSource``
    JSON Lines, a step or an episode a line               ``jsonl``              ``StepLogJsonSource``
    CSV with a header, a row a step                       ``csv``                ``StepLogCsvSource``
    Parquet, a row a step                                 ``parquet``            ``StepLogParquetSource``
    a ``tf.data.Dataset`` of RLDS episodes                ``tf.data``            ``RldsDatasetSource``
    a list (or iterator) of episodes or of step lists     ``memory``             ``MemorySource``
    a dict of arrays by D4RL's or a log's names; a list   ``arrays``             ``StepLogArraysSource``
    of dicts of arrays, each an episode
    a list of paths of one format                                                each, one after another
    ``reverb://host:port/table``                          ``reverb``             ``ReverbTableSource``
    an open :class:`~rlds2buf.io.source.Source`                               itself
    ====================================================  =====================  ================================

    Args:
        uri: a path, an address, or data in memory.
        split: for formats that have splits: TFDS's split syntax, for example ``"train[:10%]"``.
        format: a name from the table, if it is not to be told by looking.
        max_bytes, max_objects: what one record (an episode), or one thing in it, may take in memory
            beyond its bytes in the file, and how many things it may be made of: 1 GiB and 1,000,000
            unless given.  A dataset as a whole may be of any size.
        options: for the format's source, its docstring lists them; and for every format what
            :class:`~rlds2buf.transform.transformation.Transformation` does:
            ``map``, ``drop``, ``float32``, ``cast`` (which field goes where, as which type),
            ``alignment``, ``reward_shift`` (which row holds the action and the reward),
            ``min_return``, ``max_return``, ``min_length``, ``max_length``, ``where`` (which episodes),
            ``sample``, ``val_fraction``, ``part``, ``seed`` (how many of them).  For a format that takes
            ``columns`` (logs of one's own program), `map` names the log's columns.

    Raises:
        SourceNotFound: nothing is at the path, or the split is unknown.
        SourceFormatError: what is there is no dataset that can be read; the message says what it is.
        LimitExceeded: opening it would take more than `max_bytes` or `max_objects`; reading raises it, too.
        ValueError: unknown `format`, a `split` for a format without splits, or a field that is not there.
        TypeError: an option that the format does not have, or a `uri` of the wrong type.

    >>> source = open_source([[{"observation": 1.0, "action": 0}, {"observation": 2.0, "action": 0}]])
    >>> source.num_episodes, source.num_steps
    (1, 2)
    """
    if isinstance(uri, Source):
        changes = {name: options.pop(name) for name in OPTIONS if name in options}
        if any(given is not None for given in (split, format, max_bytes, max_objects)) or options:
            raise ValueError("the source is open already; split, format, limits and options are for opening one")
        return _transformed(uri, changes)
    if _is_paths(uri):
        limits = {"max_bytes": max_bytes, "max_objects": max_objects}
        return _one_after_another(uri, format, {"split": split, **limits, **options})
    chosen, target = _choose(uri, format)
    if split is not None:
        if not chosen.has_splits:
            raise ValueError(f"{chosen.what} has no splits, got split={split!r}")
        options["split"] = split
    cls = _load(chosen)
    changes = _changes(cls, options)
    absent = _may_be_absent(cls, changes)
    _check_options(chosen, cls, options)
    limits = {"max_bytes": max_bytes, "max_objects": max_objects}
    budget = Budget(**{name: limit for name, limit in limits.items() if limit is not None})
    if _BUDGET in _keywords(cls):
        options[_BUDGET] = budget
    source: Source = cls(target, **options, **({"optional": absent} if absent else {}))
    try:
        if absent:
            changes["drop"] = [name for name in changes["drop"] if name not in absent or _has(source, name)]
        return _transformed(source, changes)
    except BaseException:
        source.close()
        raise


def _is_paths(uri: Any) -> bool:
    return isinstance(uri, list | tuple) and bool(uri) and all(isinstance(one, str | os.PathLike) for one in uri)


def _one_after_another(paths: Sequence[Any], name: str | None, options: dict[str, Any]) -> Source:
    """Several paths as one source; nothing is added to the steps."""
    from rlds2buf.pipeline.mixture import MixtureSource

    if name is None:
        found = {entry.name: path for path in reversed(paths) for entry in [_choose(path, None)[0]]}
        if len(found) > 1:
            (one, first), (other, second), *_ = reversed(found.items())
            raise ValueError(
                f"several paths are read as one dataset of one format, but {first} is {one} and {second} is {other}; "
                "open_mixture takes sources of any formats"
            )
    with contextlib.ExitStack() as opened:
        sources = [opened.enter_context(open_source(path, format=name, **options)) for path in paths]
        joined = MixtureSource(sources, source_column=False)
        opened.pop_all()
    return joined


def _transformed(source: Source, changes: dict[str, Any]) -> Source:
    if not changes:
        return source
    from rlds2buf.pipeline.transformed_source import TransformedSource

    check_types(Transformation, changes)
    changed = TransformedSource(source, **changes)
    return changed if changed.does_something else source


def _changes(cls: type[Any], options: dict[str, Any]) -> dict[str, Any]:
    """Take out of `options` what is done to the episodes of any format; what the format does itself stays in."""
    own = _keywords(cls)
    if "columns" in own and options.get("map") is not None and "columns" not in options:
        options["columns"] = options.pop("map")
    changes = {name: options.pop(name) for name in OPTIONS if name in options}
    if "reward_shift" in own and "reward_shift" in changes and not changes.keys() & {"map", "alignment"}:
        options["reward_shift"] = changes.pop("reward_shift")  # the same, and batches stay fast
    return changes


def _may_be_absent(cls: type[Any], changes: dict[str, Any]) -> list[str]:
    """The fields without which a log is no log, unless they are dropped; `changes` then has a list of what is."""
    if "optional" not in _keywords(cls) or not changes.get("drop"):
        return []
    dropped = changes["drop"]
    changes["drop"] = [dropped] if isinstance(dropped, str) else list(dropped)
    return [name for name in ("observation", "action") if name in changes["drop"]]


def _has(source: Source, name: str) -> bool:
    return getattr(source.spec, name) is not None


def _choose(uri: Any, name: str | None) -> tuple[Format | ObjectFormat, Any]:
    """The format, and what its source is to be made from."""
    entries: list[Format | ObjectFormat] = [*FORMATS, *OBJECTS, *SCHEMES.values()]
    every = {entry.name: entry for entry in entries}
    if name is not None and name not in every:
        raise ValueError(f"unknown format {name!r}; it is one of {', '.join(sorted(every))}")
    if isinstance(uri, str) and (match := _SCHEME.match(uri)):
        scheme = match[1].lower()
        if scheme not in SCHEMES:
            raise SourceError(f"{uri}: {scheme}:// is not read; name a local path ({', '.join(SCHEMES)}:// is known)")
        return SCHEMES[scheme], uri
    if isinstance(uri, str | os.PathLike):
        return _of_path(uri, None if name is None else every[name])
    if name is not None and isinstance(every[name], Format):
        raise TypeError(f"{every[name].what} is read from a path, got {type(uri).__name__}")
    for entry in OBJECTS:
        if entry.name == name or (name is None and entry.fits(uri)):
            return entry, uri
    raise TypeError(
        "a source is a path or a list of paths, an address, a tf.data.Dataset, a dict of arrays, or a list of "
        "episodes, of lists of step dicts or of dicts of arrays, "
        f"got {type(uri).__name__}"
    )


def _of_path(uri: str | os.PathLike[str], chosen: Format | ObjectFormat | None) -> tuple[Format, Path]:
    if not os.fspath(uri):
        raise SourceNotFound("an empty name is no dataset's")
    path = Path(os.path.expanduser(os.fspath(uri)))
    if isinstance(chosen, ObjectFormat):
        raise TypeError(f"{chosen.what} is not read from a path")
    return chosen or _by_looking(path), path


def _by_looking(path: Path) -> Format:
    look = Look(path)
    if not look.exists:
        raise SourceNotFound(f"{path}: no such file or directory{_neighbour(path)}")
    try:
        if entry := _fitting(look):
            return entry
        for refusal in REFUSALS:
            if refusal.fits(look):
                raise SourceFormatError(f"{path}: {refusal.why(look)}")
        inside = list(itertools.islice(_datasets(look), _MAX_INSIDE))
        if inside:
            what = "a folder of several datasets; name one of them" if len(inside) > 1 else "a folder; name the dataset"
            more = f" and {len(inside) - _MAX_LISTED} more" if len(inside) > _MAX_LISTED else ""
            raise SourceFormatError(f"{path}: {what}: {', '.join(inside[:_MAX_LISTED])}{more}")
        found = f"found {look.describe()}{closest(look)}; format= overrides detection"
        raise SourceFormatError(f"{path}: not a recognised dataset: {found}")
    except Rlds2bufError:
        raise
    except OSError as cause:
        raise SourceError(f"{cause.filename or path}: can't be opened: {cause.strerror or cause}") from cause


def _datasets(look: Look, depth: int = _MAX_DEPTH, before: str = "") -> Iterator[str]:
    """The datasets in a folder and in the folders below, by their paths; not those inside of datasets.

    What is told by its name alone counts in the folder itself: further down it may be a part of anything.
    """
    for name in look.names[:_MAX_INSIDE]:
        child = look.inside(name)
        found = _fitting(child)
        if found is not None and not (found.by_name and before):
            yield f"{before}{name}"
        elif depth > 1 and child.is_folder and not child.path.is_symlink():
            yield from _datasets(child, depth - 1, f"{before}{name}/")


def _fitting(look: Look) -> Format | None:
    return next((entry for entry in FORMATS if entry.fits(look)), None)


def _neighbour(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, Look(path.parent).names, n=1)
    except OSError:
        near = []
    return f"; is it {path.parent / near[0]}?" if near else ""


def _load(entry: Format | ObjectFormat) -> type[Any]:
    module = f"rlds2buf.{entry.module}"
    try:
        found: type[Any] = getattr(importlib.import_module(module), entry.cls)
    except ModuleNotFoundError as cause:
        if cause.name != module:
            raise
        raise SourceError(f"{entry.what} is not read by this version of rlds2buf") from cause
    return found


def _check_options(entry: Format | ObjectFormat, cls: type[Any], options: dict[str, Any]) -> None:
    parameters = inspect.signature(cls).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = _keywords(cls) - {_BUDGET}
    unknown = sorted(set(options) - known)
    if unknown:
        offered = ", ".join(sorted(known - {"split", "optional"})) or "none"
        raise TypeError(f"{entry.what} takes no option {unknown[0]!r}; its options: {offered}")
    check_types(cls, options)


def _keywords(cls: type[Any]) -> set[str]:
    parameters = inspect.signature(cls).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
