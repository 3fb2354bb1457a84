"""Opening a dataset to read, whatever its format, and a target to write."""

from __future__ import annotations

import contextlib
import difflib
import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from rlds2buf.core.budget import Budget
from rlds2buf.core.options import Option, check_types
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import Rlds2bufError, SinkError, SourceError, SourceFormatError, SourceNotFound
from rlds2buf.files.local_path import refuse_address
from rlds2buf.formats import registry
from rlds2buf.io.format import Format
from rlds2buf.io.look import Look
from rlds2buf.io.sink import Sink
from rlds2buf.io.source import Source
from rlds2buf.pipeline.mixture import MixtureSource
from rlds2buf.pipeline.transformed_source import TransformedSource
from rlds2buf.transform.transformation import OPTIONS, Transformation

__all__ = ["format_of_target", "open_mixture", "open_sink", "open_source"]

_MAX_INSIDE = 50
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
    repair: bool = False,
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
    a LeRobot dataset's folder                            ``lerobot``            ``LeRobotDirSource``
    a Reverb checkpoint, or a checkpointer's folder       ``reverb-checkpoint``  ``ReverbCheckpointSource``
    a Diffusion Policy or UMI Zarr group, ``.zarr.zip``   ``zarr``               ``ZarrSource``
    ALOHA's or ACT's HDF5, a file or a folder of them     ``aloha``              ``AlohaSource``
    a ManiSkill ``.h5``, its ``.json`` beside it          ``maniskill``          ``ManiSkillSource``
    Dreamer's episodes, ``.npz`` files                    ``dreamer``            ``DreamerSource``
    V-D4RL's HDF5, a file or a folder of them             ``v-d4rl``             ``VD4rlSource``
    an imitation rollout file, ``.npz``                   ``imitation``          ``ImitationSource``
    a Stable-Baselines 2 expert file, ``.npz``            ``sb2``                ``Sb2Source``
    an OGBench ``.npz``                                   ``ogbench``            ``OgbenchSource``
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
    what an installed plug-in's format fits               its name               its ``Source``
    an open :class:`~rlds2buf.io.source.Source`                               itself
    ====================================================  =====================  ================================

    Args:
        uri: a path, an address, or data in memory.
        split: for formats that have splits: TFDS's split syntax, for example ``"train[:10%]"``.
        format: a name from the table, if it is not to be told by looking.
        max_bytes, max_objects: what one record (an episode), or one thing in it, may take in memory
            beyond its bytes in the file, and how many things it may be made of: 1 GiB and 1,000,000
            unless given.  A dataset as a whole may be of any size.
        repair: where files or metadata are damaged, read what the data themselves prove, and say what that is; of
            formats that can do that (LeRobot).  Nothing on the disk is changed.
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
        if any(given is not None for given in (split, format, max_bytes, max_objects)) or repair or options:
            raise ValueError("the source is open already; split, format, limits and options are for opening one")
        return _transformed(uri, changes)
    limits = {"max_bytes": max_bytes, "max_objects": max_objects}
    if _is_paths(uri):
        return _one_after_another(uri, format, {"split": split, "repair": repair, **limits, **options})
    mending = {"repair": True} if repair else {}
    recipe = {
        "split": split,
        "format": format,
        "max_bytes": max_bytes,
        "max_objects": max_objects,
        **mending,
        **options,
    }
    entry, target = _choose(uri, format)
    if split is not None:
        if not entry.has_splits:
            raise ValueError(f"{entry.what} has no splits, got split={split!r}")
        options["split"] = split
    cls = registry.source_class(entry)
    changes = _changes(entry, options)
    absent = _may_be_absent(entry, changes)
    _check_options(entry, cls, options)
    budget = Budget(**{name: limit for name, limit in limits.items() if limit is not None})
    options |= {name: given for name, given in {"budget": budget, **mending}.items() if name in entry.takes}
    source = _made(cls, target, {**options, **({"optional": absent} if absent else {})})
    try:
        if absent:
            changes["drop"] = [name for name in changes["drop"] if name not in absent or _has(source.spec, name)]
        opened = _transformed(source, changes)
    except BaseException:
        source.close()
        raise
    if isinstance(uri, str | os.PathLike):
        opened.recipe = (os.fspath(uri), recipe, ())
    return opened


def _made(cls: Callable[..., Source], target: Any, options: dict[str, Any]) -> Source:
    try:
        return cls(target, **options)
    except Rlds2bufError:
        raise
    except OSError as cause:  # what metadata name as a file may be no name that a system takes
        raise SourceError(f"{target}: {cause.strerror or cause}") from cause


def open_mixture(
    sources: Iterable[Any],
    *,
    weights: Sequence[float] | None = None,
    seed: int = 0,
    names: Sequence[str] | None = None,
    stop: str = "all",
    source_column: bool = True,
    split: str | None = None,
    format: str | None = None,
    repair: bool = False,
    **options: Any,
) -> MixtureSource:
    """Open several datasets as one.

    Args:
        sources: Sources, or whatever :func:`rlds2buf.open_source` takes.
        weights, seed, names, stop, source_column: see :class:`~rlds2buf.pipeline.mixture.MixtureSource`.  The seed
            is also that of ``sample`` and ``val_fraction``.
        split, format, repair, options: for :func:`rlds2buf.open_source`, for each of them.  What differs from
            one dataset to the next is given by opening them first.

    Raises:
        SpecMismatch: their fields, shapes or types differ.
        SourceError: one can't be read.
        ValueError, TypeError: a wrong argument.

    >>> one, two = [[{"observation": 1.0}] * 2] * 3, [[{"observation": 2.0}] * 4]
    >>> with open_mixture([one, two], names=["one", "two"]) as mixture:
    ...     [(len(episode), episode.metadata["source_name"], episode.extras["source_id"][0].item())
    ...      for episode in mixture]
    [(2, 'one', 0), (2, 'one', 0), (2, 'one', 0), (4, 'two', 1)]
    """
    if options.keys() & {"sample", "val_fraction"}:
        options["seed"] = seed
    with contextlib.ExitStack() as stack:
        opened: list[Source] = []
        if isinstance(sources, str | os.PathLike | Source) or not isinstance(sources, Iterable):
            raise TypeError(f"a mixture is of a list of sources, such as [path, other_path], got {sources!r}")
        for given in sources:
            if isinstance(given, Source):
                source = open_source(given, **options)
            else:
                source = open_source(given, split=split, format=format, repair=repair, **options)
            opened.append(stack.enter_context(source))
        mixture = MixtureSource(opened, weights=weights, seed=seed, names=names, stop=stop, source_column=source_column)
        stack.pop_all()
        return mixture


def open_sink(
    target: Any, *, to: str | None = None, overwrite: bool = False, resume: bool = False, **options: Any
) -> Sink:
    """The sink for a target.

    ======================================  ===============================================================
    target                                  sink
    ======================================  ===============================================================
    a Sink                                  itself
    a list                                  :class:`~rlds2buf.formats.memory.sink.MemorySink`
    a buffer (it has ``add``, ``sample``)   :class:`~rlds2buf.formats.buffer.sink.BufferSink`
    a path                                  that of a format: a saved buffer, an RLDS folder, ...
    ======================================  ===============================================================

    Args:
        target: where the episodes go.
        to: the format to write at a path; None: what its name means, see :func:`format_of_target`.
        overwrite, resume: for a path only.
        options: for a path: those of what is written there, its class's docstring lists them.

    Raises:
        ValueError: unknown `to`, a path whose name is of files that are not written, an option that the target does
            not take, or an address.
        TypeError: none of the above, or an option that the sink of a path does not have.
        SinkError: a plug-in can't be loaded.

    >>> open_sink([])
    <MemorySink memory>
    """
    entry = None if to is None else _writable(to)
    if isinstance(target, str | os.PathLike):
        refuse_address(target)
        entry = entry or format_of_target(target)
        return _sink_of_path(os.fspath(target), entry, {"overwrite": overwrite, "resume": resume, **options})
    if overwrite or resume or options:
        given = ", ".join(options) or "overwrite and resume"
        raise ValueError(f"{given}: for a path, not for a {type(target).__name__}")
    if isinstance(target, Sink):
        return target
    entry = registry.find_target(target)
    if entry is None:
        raise TypeError(f"a sink is a path, a list, a buffer or a Sink, got {type(target).__name__}")
    cls: Callable[..., Sink] = registry.sink_class(entry)
    return cls(target)


def format_of_target(path: str | os.PathLike[str]) -> Format:
    """What a path becomes where nobody says it: by its suffix, or else a buffer.

    Raises:
        ValueError: the suffix is of files that are not written, or it is an address.

    >>> format_of_target("hopper-buffer").name, format_of_target("hopper.hdf5").name
    ('buffer', 'd4rl')
    """
    refuse_address(path)
    name = os.fspath(path)
    base = os.path.basename(name).lower()
    suffix = os.path.splitext(base)[1]
    suffixes = {base[place:] for place in range(1, len(base)) if base[place] == "."}  # ".zarr.zip" and ".zip"
    means = next((entry for entry in registry.BUILT_IN if suffixes & set(entry.target_suffixes)), None)
    if means is not None:
        return means
    what = _UNKNOWN.get(suffix) or next((entry.what for entry in registry.BUILT_IN if suffix in entry.suffixes), None)
    if what is None:
        return registry.USUAL_TARGET
    written = ", ".join(registry.target_names())
    raise ValueError(
        f"{name}: {suffix} means {what}, which is not written; choose another name, or say what to write there "
        f"with to=: {written} (a buffer is a folder, whatever its name)"
    )


_UNKNOWN: Final[Mapping[str, str]] = {
    ".npy": "a numpy array",
    ".arrow": "Arrow tables",
    ".feather": "Arrow tables",
    ".pkl": "a pickle",
    ".pickle": "a pickle",
    ".pt": "a PyTorch file",
    ".mat": "a MATLAB file",
    ".zip": "an archive",
    ".tar": "an archive",
    ".gz": "a compressed file",
}
"""What other names mean to people, so that no folder is called so unasked."""


def _writable(name: str) -> Format:
    entry = registry.by_name(name, SinkError)
    if entry is None or not entry.is_target:
        raise ValueError(f"to must be one of {', '.join(registry.target_names())}, got {name!r}")
    return entry


def _sink_of_path(path: str, entry: Format, options: dict[str, Any]) -> Sink:
    cls = registry.sink_class(entry)
    absent = {"overwrite", "resume"} - registry.takes_of_sink(entry)
    if "resume" in absent and options["resume"]:
        raise ValueError(f"{entry.name} is written in one go: resume is not for it")
    options = {name: value for name, value in options.items() if name not in absent}
    _check_known(entry.name, registry.sink_options(entry), options, ("overwrite", "resume"))
    check_types(cls, options)
    where, why = cls.usual_target(path)
    create: Callable[..., Sink] = cls
    sink = create(where, **options)
    sink.notes = (why,) if why else ()
    return sink


def _is_paths(uri: Any) -> bool:
    return isinstance(uri, list | tuple) and bool(uri) and all(isinstance(one, str | os.PathLike) for one in uri)


def _one_after_another(paths: Sequence[Any], name: str | None, options: dict[str, Any]) -> Source:
    """Several paths as one source; nothing is added to the steps."""
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
    check_types(Transformation, changes)
    changed = TransformedSource(source, **changes)
    return changed if changed.does_something else source


def _changes(entry: Format, options: dict[str, Any]) -> dict[str, Any]:
    """Take out of `options` what is done to the episodes of any format; what the format does itself stays in."""
    if "columns" in entry.takes and options.get("map") is not None and "columns" not in options:
        options["columns"] = options.pop("map")
    changes = {name: options.pop(name) for name in OPTIONS if name in options}
    if "reward_shift" in entry.takes and "reward_shift" in changes and not changes.keys() & {"map", "alignment"}:
        options["reward_shift"] = changes.pop("reward_shift")  # the same, and batches stay fast
    return changes


def _may_be_absent(entry: Format, changes: dict[str, Any]) -> list[str]:
    """The fields without which a log is no log, unless they are dropped; `changes` then has a list of what is."""
    if "optional" not in entry.takes or not changes.get("drop"):
        return []
    dropped = changes["drop"]
    changes["drop"] = [dropped] if isinstance(dropped, str) else list(dropped)
    return [name for name in ("observation", "action") if name in changes["drop"]]


def _has(spec: StepSpec, name: str) -> bool:
    return getattr(spec, name) is not None


def _choose(uri: Any, name: str | None) -> tuple[Format, Any]:
    """The format, and what its source is to be made from."""
    named = None if name is None else registry.by_name(name)
    if name is not None and (named is None or named.source is None):
        raise ValueError(f"unknown format {name!r}; it is one of {', '.join(registry.source_names())}")
    failed: list[str] = []
    if isinstance(uri, str) and (match := _SCHEME.match(uri)):
        scheme = match[1].lower()
        entry = registry.find_scheme(scheme, failed)
        if entry is None:
            known = ", ".join(registry.schemes())
            raise SourceError(f"{uri}: {scheme}:// is not read; name a local path ({known}:// is known){_also(failed)}")
        return entry, uri
    if isinstance(uri, str | os.PathLike):
        return _of_path(uri, named)
    if named is not None and named.is_path:
        raise TypeError(f"{named.what} is read from a path, got {type(uri).__name__}")
    entry = registry.find_object(uri, failed) if named is None or named.fits_object is None else named
    if entry is None:
        raise TypeError(
            "a source is a path or a list of paths, an address, a tf.data.Dataset, a dict of arrays, or a list of "
            "episodes, of lists of step dicts or of dicts of arrays, "
            f"got {type(uri).__name__}{_also(failed)}"
        )
    return entry, uri


def _also(failed: Sequence[str]) -> str:
    """What to say of plug-ins that could not be asked."""
    return "".join(f"; {text}" for text in failed)


def _of_path(uri: str | os.PathLike[str], chosen: Format | None) -> tuple[Format, Path]:
    if not os.fspath(uri):
        raise SourceNotFound("an empty name is no dataset's")
    path = Path(os.path.expanduser(os.fspath(uri)))
    if chosen is not None and not chosen.is_path:
        raise TypeError(f"{chosen.what} is not read from a path")
    return chosen or _by_looking(path), path


def _by_looking(path: Path) -> Format:
    look = Look(path)
    if not look.exists:
        raise SourceNotFound(f"{path}: no such file or directory{_neighbour(path)}")
    failed: list[str] = []
    try:
        if entry := registry.find(look, failed):
            rivals = [entry.name, *registry.rivals(look, entry)]
            if len(rivals) > 1:
                raise SourceFormatError(
                    f"{path}: it may be {' or '.join(rivals)}; format={rivals[0]!r} (--format) says which it is"
                )
            return entry
        if why := registry.refusal(look):
            raise SourceFormatError(f"{path}: {why}{_also(failed)}")
        inside = list(itertools.islice(_datasets(look), _MAX_INSIDE))
        if inside:
            what = "a folder of several datasets; name one of them" if len(inside) > 1 else "a folder; name the dataset"
            more = f" and {len(inside) - _MAX_LISTED} more" if len(inside) > _MAX_LISTED else ""
            raise SourceFormatError(f"{path}: {what}: {', '.join(inside[:_MAX_LISTED])}{more}{_also(failed)}")
        found = f"found {look.describe()}{registry.closest(look)}; format= overrides detection{_also(failed)}"
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
        found = registry.find(child, [])
        if found is not None and not (found.by_name and before):
            yield f"{before}{name}"
        elif depth > 1 and child.is_folder and not child.path.is_symlink():
            yield from _datasets(child, depth - 1, f"{before}{name}/")


def _neighbour(path: Path) -> str:
    try:
        near = difflib.get_close_matches(path.name, Look(path.parent).names, n=1)
    except OSError:
        near = []
    return f"; is it {path.parent / near[0]}?" if near else ""


def _check_options(entry: Format, cls: Any, options: dict[str, Any]) -> None:
    hidden = ["split"] * entry.has_splits + ["optional"] * ("optional" in entry.takes)
    _check_known(entry.what, registry.source_options(entry), options, hidden)
    check_types(cls, options)


def _check_known(what: str, known: Sequence[Option] | None, options: Mapping[str, Any], hidden: Sequence[str]) -> None:
    """Raise for an option that is neither known nor among the `hidden` ones, which come from elsewhere."""
    if known is None:
        return
    names = {option.name for option in known} - set(hidden)
    unknown = sorted(options.keys() - names - set(hidden))
    if unknown:
        offered = ", ".join(sorted(names)) or "none"
        raise TypeError(f"{what} takes no option {unknown[0]!r}; its options: {offered}")
