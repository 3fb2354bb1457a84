"""Opening saved buffers, whatever made them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar

from rlds2buf.buffers.disk.live_folder import LiveFolder
from rlds2buf.buffers.disk.manifest import read_manifest
from rlds2buf.buffers.disk.saved_rows import open_columns
from rlds2buf.buffers.disk.undo import settled
from rlds2buf.buffers.engine import HasEngine
from rlds2buf.core.options import check_types
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import SnapshotCorrupt, SnapshotError
from rlds2buf.files.column_file import MappedFiles

__all__ = ["empty_like", "of_columns", "open_saved", "open_state"]


class _State(Protocol):
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


_S = TypeVar("_S", bound=_State)
_B = TypeVar("_B", bound=HasEngine)

_NOT_SAVED = {"capacity", "capacity_unit", "directory", "durability", "seed", "spec"}
"""Arguments that are not among a saved buffer's options; one that names a directory would have it written."""


def open_saved(
    folder: Path,
    manifest: Mapping[str, Any],
    makers: Mapping[str, Callable[..., _B]],
    *,
    seed: Any = None,
    verify: bool | None = None,
    writable: bool = False,
    functions: Mapping[str, Any],
) -> _B:
    """A saved buffer of one agent.

    Args:
        folder: its own.
        manifest: what it says of itself.
        makers: the factories there are, by the kind of their buffers.
        seed, verify, writable, functions: as :func:`rlds2buf.load_buffer` has them.

    Raises:
        SnapshotError, SnapshotCorrupt, SnapshotExists, SinkError, TypeError: as :func:`rlds2buf.load_buffer` says.
    """
    home = None
    if writable:
        home = LiveFolder(folder, existing=True)
        folder, manifest = home.path, read_manifest(home.path)
    manifest = settled(folder, dict(manifest), locked=writable)
    arrays, mapped = open_columns(folder, manifest, verify=verify, writable=writable)
    buffer = of_columns(folder, manifest, arrays, mapped, makers, seed=seed, functions=functions)
    engine = buffer.engine
    if home is not None:
        engine.home = engine.store.home = home
        engine.store.allocate = home.allocate
        home.take_over(engine.store, manifest)
    return buffer


def of_columns(
    folder: Path,
    manifest: Mapping[str, Any],
    arrays: Mapping[str, Any],
    mapped: MappedFiles,
    makers: Mapping[str, Callable[..., _B]],
    *,
    seed: Any = None,
    functions: Mapping[str, Any],
) -> _B:
    """A saved buffer of one agent whose columns are open.

    Args:
        folder, manifest, makers, seed, functions: as for :func:`open_saved`.
        arrays, mapped: as :func:`~rlds2buf.buffers.disk.saved_rows.open_columns` gives them.

    Raises:
        SnapshotError, SnapshotCorrupt, TypeError: as :func:`rlds2buf.load_buffer` says.
    """
    try:
        spec = StepSpec.from_json(manifest["spec"])
        options = dict(manifest["options"])
        kind = manifest["kind"]
    except (KeyError, TypeError, ValueError) as cause:
        raise SnapshotCorrupt(f"{folder}: its manifest does not describe a buffer: {cause}") from cause
    try:
        buffer = empty_like(kind, spec, {**options, **functions}, makers, seed=seed)
    except SnapshotCorrupt as cause:
        raise SnapshotCorrupt(f"{folder}: {cause}") from cause
    engine = buffer.engine
    engine.restore({**manifest, "rng": None} if seed is not None else manifest, arrays)
    engine.provenance = manifest.get("provenance", {})
    engine.store.mapped = mapped
    engine.origin = folder.resolve()
    return buffer


def open_state(
    folder: Path,
    manifest: Mapping[str, Any],
    make: Callable[[Mapping[str, Any]], _S],
    *,
    seed: Any = None,
    verify: bool | None = None,
) -> _S:
    """A buffer that was saved as its state.

    Args:
        folder: its own.
        manifest: what it says of itself.
        make: makes an empty one of what it was saved with, and the seed.
        seed, verify: as :func:`rlds2buf.load_buffer` has them.

    Raises:
        SnapshotCorrupt: it is incomplete or damaged.
    """
    arrays, _ = open_columns(folder, manifest, verify=verify)
    try:
        buffer = make({**manifest["made"], "seed": seed})
        state = {**manifest["state"], "arrays": arrays}
        if seed is not None:
            state["rng"] = buffer.state_dict()["rng"]
        buffer.load_state_dict(state)
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as cause:
        raise SnapshotCorrupt(f"{folder}: its manifest and files do not fit together: {cause!r}") from cause
    return buffer


def empty_like(
    kind: str, spec: StepSpec, options: dict[str, Any], makers: Mapping[str, Callable[..., _B]], *, seed: Any = None
) -> _B:
    """An empty buffer of a saved one's kind, to be filled; `makers` are the factories there are.

    Raises:
        SnapshotCorrupt: there is no such kind, or its options don't fit.
        SnapshotError: it needs functions that were not given.
        TypeError: it takes none, and some were given.
    """
    functions = {"reward_fn", "done_fn"} & set(options)
    if functions and kind in makers and not kind.startswith("hindsight"):
        raise TypeError(f"a {kind} buffer takes no {' or '.join(sorted(functions))}: it knows no goals")
    if kind.startswith("hindsight") and len(functions) < 2:
        raise SnapshotError(
            "functions are not saved with a hindsight buffer: use load_buffer(path, reward_fn=..., done_fn=...)"
        )
    foreign = sorted(_NOT_SAVED & set(options))
    if foreign:
        raise SnapshotCorrupt(f"{foreign[0]!r} is nothing that a saved buffer says")
    try:
        check_types(makers[kind], options)
        return makers[kind](spec, 1, seed=seed, **options)
    except (KeyError, TypeError, ValueError) as cause:
        raise SnapshotCorrupt(f"no buffer of kind {kind!r} can be made: {cause}") from cause
