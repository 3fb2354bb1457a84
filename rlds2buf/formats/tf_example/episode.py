"""Episodes out of raw ``tf.train.Example`` records: one from one record, or one from many."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.codecs.images.decode import DamagedImage
from rlds2buf.codecs.tfrecord.example import Feature
from rlds2buf.core.budget import BUDGET, Budget, Tally
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.row_flags import OPEN_TAIL
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.formats.tf_example.columns import read_rows, read_steps, read_whole
from rlds2buf.formats.tf_example.feature_map import METADATA, NEXT, ExampleSpec, FieldFeature

__all__ = ["StepCutter", "field_tree", "nothing_like", "whole_episode"]

Record = Mapping[str, Feature]


def field_tree(leaves: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """A nested dict from its leaves by path.

    >>> field_tree({("observation", "x"): 1, ("action",): 2})
    {'observation': {'x': 1}, 'action': 2}
    """
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        here = tree
        for part in path[:-1]:
            here = here.setdefault(part, {})
        here[path[-1]] = leaf
    return tree


def whole_episode(
    spec: ExampleSpec, record: Record, *, encoded: bool, source: str, index: int, budget: Budget = BUDGET
) -> Episode:
    """The episode whose columns one record holds.

    Raises:
        SourceFormatError: the record is not as the spec says.
        SpecMismatch, EmptyEpisode: its columns differ in length, or have none.
        EpisodeError: a picture can't be decoded.
        LimitExceeded: they take more than the `budget`.
    """
    columns = {}
    tally = Tally(budget)
    for field in spec.fields:
        if field.path[0] != METADATA:
            try:
                columns[field.path] = read_rows(field, record, encoded=encoded, tally=tally)
            except DamagedImage as cause:
                raise _unreadable(field, cause, source, index) from cause
    return _episode(spec, columns, _metadata(spec, record), source=source, index=index)


class StepCutter:
    """Puts records of one step together to episodes, some records at a time.

    Args:
        spec: what they hold.
        episode_id: the key of a feature whose value differs between episodes, or None.
        encoded: pictures stay files.
        source, index: of the first episode.
        budget: for each episode.
        compressed: the records are not as they lie in the file.

    Attributes:
        index: of the next episode.
        num_records: how many have been given.
    """

    def __init__(
        self,
        spec: ExampleSpec,
        episode_id: str | None,
        *,
        encoded: bool,
        source: str,
        index: int,
        budget: Budget = BUDGET,
        compressed: bool = False,
    ) -> None:
        self._spec = spec
        self._id = None if episode_id is None else FieldFeature(("id",), episode_id)
        self._encoded = encoded
        self._source = source
        self.index = index
        self._budget = budget
        self._compressed = compressed
        self._tally = Tally(budget)
        self.num_records = 0
        self._waiting: list[Record] = []
        self._ended = False  # the last one waiting is the last of its episode
        self._last_id: Any = None

    @property
    def num_waiting(self) -> int:
        """How many of them belong to no episode that has been given."""
        return len(self._waiting)

    def add(self, records: Sequence[Record]) -> Iterator[Episode | EpisodeError]:
        """Take records; yield the episodes that are complete.

        Raises:
            SourceFormatError: a record is not as the spec says.
            LimitExceeded: an episode takes too much memory.
        """
        begins = self._begins(records)
        at = 0
        for border in np.flatnonzero(begins).tolist():
            self._wait(records[at:border])
            if self._waiting:
                yield self._built(open_tail=False)
            at = border
        self._wait(records[at:])
        self.num_records += len(records)

    def _wait(self, records: Sequence[Record]) -> None:
        self._waiting.extend(records)
        if self._compressed:
            size = sum(len(feature.data) for record in records for feature in list(record.values())[:1])
            self._tally.bytes(size, f"{self._source}: the records of episode {self.index}")

    def finish(self) -> Iterator[Episode | EpisodeError]:
        """Yield the episode that the file's end ends, if there is one."""
        if self._waiting:
            yield self._built(open_tail=not self._ended)

    def _begins(self, records: Sequence[Record]) -> np.ndarray:
        """``[n] bool``: which record is the first of its episode; of the very first that is no border."""
        flags = {field.path[0]: field for field in self._spec.fields if field.path[0] in FLAG_FIELDS}
        found = {name: self._read(field, records) for name, field in flags.items()}
        none = np.zeros(len(records), np.bool_)
        ends = found.get("is_last", none) | found.get("is_terminal", none)
        begins = found.get("is_first", none).copy()
        begins[1:] |= ends[:-1]
        begins[0] |= self._ended
        if self._id is not None:
            ids = [self._value(self._id, record) for record in records]
            before = [self._last_id if self._waiting else ids[0], *ids[:-1]]
            begins |= np.array([one != other for one, other in zip(ids, before, strict=True)])
            self._last_id = ids[-1]
        if not self._waiting:
            begins[0] = False
        self._ended = bool(ends[-1])
        return begins

    def _read(self, field: FieldFeature, records: Sequence[Record]) -> np.ndarray:
        try:
            return read_steps(field, records, encoded=self._encoded, tally=Tally(self._budget))
        except DamagedImage as cause:
            raise _unreadable(field, cause, self._source, self.index - 1) from cause
        except SourceFormatError as cause:
            raise cause.at(f"{self._source}: episode {self.index} or behind") from cause

    def _value(self, field: FieldFeature, record: Record) -> bytes:
        """A feature's bytes, which are enough to tell one value from another."""
        feature = record.get(field.key)
        if feature is None:
            raise SourceFormatError(f"{self._source}: episode {self.index} or behind: a record has no {field.key!r}")
        return feature.data[feature.start : feature.stop]

    def _built(self, *, open_tail: bool) -> Episode | EpisodeError:
        records, self._waiting = self._waiting, []
        self._tally = Tally(self._budget)
        metadata = _metadata(self._spec, records[0]) | ({OPEN_TAIL: True} if open_tail else {})
        index = self.index
        self.index += 1
        columns = {}
        try:
            for field in self._spec.fields:
                if field.path[0] != METADATA:
                    columns[field.path] = self._read(field, records)
            if any(path[0] == NEXT for path in columns):
                columns = _with_final_row(columns)
            else:
                _close(columns)
            return _episode(self._spec, columns, metadata, source=self._source, index=index)
        except EpisodeError as error:
            return error


def _unreadable(field: FieldFeature, cause: DamagedImage, source: str, index: int) -> EpisodeError:
    """The record is whole, so a picture that is not spoils its episode only."""
    known = field.path[0] in STEP_FIELDS or field.path[0] == NEXT
    path = field.name if known else f"extras/{field.name}"
    return EpisodeError(str(cause), source=source, episode=index, step=cause.frame, path=path, rule="unreadable")


def _metadata(spec: ExampleSpec, record: Record) -> dict[str, Any]:
    found = {field.path[1:]: read_whole(field, record) for field in spec.fields if field.path[0] == METADATA}
    return field_tree({path: value.item() if isinstance(value, np.generic) else value for path, value in found.items()})


def _episode(
    spec: ExampleSpec, columns: dict[tuple[str, ...], np.ndarray], metadata: dict[str, Any], **where: Any
) -> Episode:
    discount, terminal = columns.get(("discount",)), columns.get(("is_terminal",))
    if spec.terminal_discount and terminal is None and discount is not None and len(discount):
        terminal = np.zeros(len(discount), np.bool_)
        terminal[-1] = discount[-1] == 0
        columns = {**columns, ("is_terminal",): terminal}
    for path in list(columns):
        if path[0] in spec.shift:
            columns[path] = _moved_up(columns[path], repeat=path[0] == "discount")
    tree = field_tree(columns)
    known = {name: tree.pop(name) for name in STEP_FIELDS if name in tree}
    return Episode(**known, extras=tree, metadata=metadata, **where)


def _moved_up(column: np.ndarray, *, repeat: bool) -> np.ndarray:
    """Each row's value from the row behind it; the last row's 0, or (a discount) what it was."""
    out = np.roll(column, -1, axis=0)
    if len(out):
        out[-1] = column[-1] if repeat else (b"" if out.dtype == object else 0)
    return out


def _close(columns: dict[tuple[str, ...], np.ndarray]) -> None:
    """The episode's last row is its last, whoever said so."""
    flag = columns.get(("is_last",))
    if flag is not None and not flag[-1]:
        columns["is_last",] = np.append(flag[:-1], True)


def _with_final_row(columns: dict[tuple[str, ...], np.ndarray]) -> dict[tuple[str, ...], np.ndarray]:
    """Transitions as rows: behind them one with the last one's next observation; flags move one on."""
    out = {}
    count = len(next(iter(columns.values())))
    for path, column in columns.items():
        if path[0] == NEXT:
            continue
        if path[0] in FLAG_FIELDS:
            out[path] = np.append([False], column)
        elif path[0] == "observation":
            after = (NEXT, *path[1:])
            out[path] = np.concatenate([column, columns[after][-1:]])
        else:
            out[path] = np.concatenate([column, nothing_like(column, path[0])])
    out["is_first",] = np.arange(count + 1) == 0
    out["is_last",] = np.arange(count + 1) == count
    return out


def nothing_like(column: np.ndarray, name: str) -> np.ndarray:
    """``[1, ...]``: what stands in a final row, where a field has nothing to say."""
    if name == "discount":  # the last one, so that a terminal end is still told by it
        return column[-1:]
    if column.dtype == object:
        return np.array([b""], object)
    return np.zeros_like(column[:1])
