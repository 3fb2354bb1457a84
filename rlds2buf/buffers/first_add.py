"""A buffer that was made without a spec, until it takes the one of what is added first."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rlds2buf.buffers.add.intake import Intake
from rlds2buf.buffers.engine import Engine, Prepared
from rlds2buf.core import forks, nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.sample import Transition
from rlds2buf.core.spec import FieldSpec, StepSpec, spec_of
from rlds2buf.errors import NotEnoughItems, SnapshotError, SpecMismatch

__all__ = ["EngineToBe", "begun", "spec_of_first"]


def _nothing_yet(kind: str) -> NotEnoughItems:
    return NotEnoughItems(
        "the buffer is empty and has no spec yet: it takes that of what is added first, or give one: "
        f"make_{kind}(spec, ...)"
    )


class _Empty:
    """What can be said of rows that are not there."""

    count = num_rows = 0

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def clear(self) -> None:
        """Drop them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise _nothing_yet(self._kind)


class EngineToBe:
    """Stands for an engine until there is a spec, and takes the first data.

    Args:
        make: the engine for a spec.
        become: what to do with it once something was added.
        kind, capacity, capacity_unit, storage_unit: as the engine will have them.

    Attributes:
        lock: that the engine will have.

    All that an engine has and this one lacks raises NotEnoughItems, which says what is missing.
    """

    def __init__(
        self,
        make: Callable[[StepSpec], Engine],
        become: Callable[[Engine], None],
        *,
        kind: str,
        capacity: int,
        capacity_unit: str,
        storage_unit: str,
    ) -> None:
        self._make, self._become = make, become
        self.kind, self.capacity, self.capacity_unit, self.storage_unit = kind, capacity, capacity_unit, storage_unit
        self.sampler = self.contents = _Empty(kind)
        self.provenance: dict[str, Any] = {}
        self.lock: Any = threading.RLock()
        self._trial: Engine | None = None
        self._engine: Engine | None = None
        forks.register(self, EngineToBe._forked, lock=lambda engine: engine.lock)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if self._engine is not None:  # of somebody who held on to this one
            return getattr(self._engine, name)
        raise _nothing_yet(self.kind)

    def touch(self) -> None:
        """Nothing is saved that a change could make another one than what is here."""

    def begin(self, spec: StepSpec) -> Engine:
        """Have a spec from now on; the buffer gets the engine, which is returned."""
        with self.lock:
            return self._engine or self._begun(self._of(spec))

    def prepare(self, data: Any, *args: Any, **kwargs: Any) -> Prepared:
        """As :meth:`Engine.prepare`, under the spec that the data have; there is no engine before :meth:`add`.

        Raises:
            SpecMismatch, EpisodeError, ValueError, TypeError: as there; also SpecMismatch where a mapping does not
                tell whether it is one transition or several.
        """
        if self._engine is not None:
            return self._engine.prepare(data, *args, **kwargs)
        spec = spec_of_first(data)
        return Prepared([], None) if spec is None else self._of(spec).prepare(data, *args, **kwargs)

    def add(self, prepared: Prepared) -> np.ndarray:
        """As :meth:`Engine.add`; if there is anything, the buffer has an engine from now on."""
        if self._engine is not None:
            return self._engine.add(prepared)
        if self._trial is None or not (prepared.blocks or prepared.error):
            return np.zeros(0, np.uint64)
        return self._begun(self._trial).add(prepared)

    def set_state(self, state: Mapping[str, Any]) -> None:
        """As :meth:`Engine.set_state`, with the state's spec."""
        if self._engine is None:
            try:
                spec = StepSpec.from_json(state["spec"])
            except (KeyError, TypeError, ValueError) as cause:
                raise SnapshotError(f"this is no state of a buffer: {cause!r}") from cause
            trial = self._of(spec)
            trial.set_state(state)
            self._begun(trial)
        else:
            self._engine.set_state(state)

    def _of(self, spec: StepSpec) -> Engine:
        if self._trial is None or self._trial.spec != spec:
            self._trial = self._make(spec)
        return self._trial

    def _begun(self, engine: Engine) -> Engine:
        engine.lock, engine.provenance = self.lock, self.provenance
        self._engine, self._trial = engine, None
        self._become(engine)
        return engine

    def _forked(self, number: int) -> None:
        """This is a child now: see core/forks.py."""
        self.lock = threading.RLock()


def begun(engine: Engine | EngineToBe, data: Any) -> Engine:
    """An engine with a spec, that of the data if there was none yet.

    Raises:
        SpecMismatch, TypeError: as :func:`spec_of_first` says; or TypeError where there are no data.
    """
    if isinstance(engine, Engine):
        return engine
    spec = spec_of_first(data)
    if spec is None:
        raise TypeError("there are no data, and the buffer has no spec")
    return engine.begin(spec)


def spec_of_first(data: Any) -> StepSpec | None:
    """The spec of what ``Buffer.add`` was given; of a list that of its first element; None if there is nothing.

    Transitions have the dtypes of their arrays; numbers of Python's own are float32, int64 and bool.

    Raises:
        SpecMismatch: a mapping does not tell whether it is one transition or several.
        TypeError: a buffer takes no such thing.

    >>> spec_of_first({"observation": np.zeros(3), "action": 1, "reward": 0.5, "next_observation": np.ones(3)}).reward
    FieldSpec(float32[])
    """
    if isinstance(data, Episode):
        return spec_of(data)
    if isinstance(data, EpisodeBatch):
        return spec_of(data.rows) if len(data) else None
    if isinstance(data, Transition):
        data = data._asdict()
    if isinstance(data, Mapping):
        return _of_transitions(data) if data else None
    if isinstance(data, list | tuple):
        return next((spec for spec in map(spec_of_first, data) if spec is not None), None)
    Intake(StepSpec()).blocks(data)  # which says what a buffer takes
    return None


def _of_transitions(data: Mapping[str, Any]) -> StepSpec:
    told = [data.get(name) for name in ("is_done", "terminated", "truncated", "reward")]
    axes = [np.ndim(value) for value in told if value is not None and not isinstance(value, Mapping | tuple)]
    if not axes:
        raise SpecMismatch(
            "neither this nor is_done is there to tell whether it is one transition or several: give the buffer a spec",
            path="reward",
            rule="spec",
        )
    parts = {name: _fields(data.get(name), axes[0] > 0) for name in ("observation", "action", "reward", "discount")}
    return StepSpec(**parts, extras=_fields(data.get("extras") or {}, axes[0] > 0))


def _fields(value: nest.Nest, is_batch: bool) -> nest.Nest:
    return None if value is None else nest.map_structure(lambda leaf: _field(leaf, is_batch), value)


def _field(leaf: Any, is_batch: bool) -> FieldSpec:
    column = leaf.detach().cpu().numpy() if hasattr(leaf, "detach") else np.asarray(leaf)
    dtype = column.dtype
    if dtype.kind in "SU":
        dtype = np.dtype(object)
    elif dtype == np.float64 and not isinstance(leaf, np.ndarray | np.generic) and not hasattr(leaf, "detach"):
        dtype = np.dtype(np.float32)
    return FieldSpec(column.shape[1:] if is_batch else column.shape, dtype)
