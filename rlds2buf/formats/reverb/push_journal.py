"""The journal of pushes: which episodes a server has acknowledged, on disk.

One JSON object per line, appended and fsynced.  The first line says into what is pushed and how; a file
with another first line is refused, and not a byte of it is changed.  A line that a kill cut short is
dropped.

Since version 2 episodes are called by their content, so that a journal serves any source: one that grew, another
split, a copy in another format.  A line per run says what is read then.  Journals of version 1, which number
the episodes of one dataset, are continued as they are.
"""

from __future__ import annotations

import base64
import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from rlds2buf.errors import SinkError
from rlds2buf.files.local_path import refuse_address
from rlds2buf.formats.reverb.item_keys import CONTENT, EpisodeKeys, keys_of

__all__ = ["BY_CONTENT_VERSION", "BY_NUMBER_VERSION", "Journal", "ServerRecord"]

BY_NUMBER_VERSION, BY_CONTENT_VERSION = 1, 2
_SYNC_SECONDS = 0.25
_MARK = b'{"rlds2buf_push":'
_LONGEST_HEADER = 1 << 20


class ServerRecord:
    """What the journal knows of one server.

    Attributes:
        state: the server's state id as hexadecimal text, or None before the first connection.
        size, inserted: items in the table, and ever inserted into it, before the push began.
        seen: items ever inserted into the table when it was last looked at.
        episodes: what the acknowledged episodes are called.
        items: how many items they are.
    """

    def __init__(self, version: int = BY_NUMBER_VERSION) -> None:
        self._version = version
        self.state: str | None = None
        self.size = self.inserted = self.seen = self.items = 0
        self.episodes: Any = _VERSIONS[version]()

    def begin(self, state: str, size: int, inserted: int) -> None:
        """Start over with a server that knows nothing of earlier acknowledgements."""
        self.__init__(self._version)  # type: ignore[misc]
        self.state, self.size, self.inserted, self.seen = state, size, inserted, inserted


class _Numbers(set[int]):
    """Episodes by their numbers."""

    def add_all(self, names: Sequence[int]) -> None:
        self.update(names)

    def holds(self, names: np.ndarray) -> np.ndarray:
        return np.array([number in self for number in names.tolist()], np.bool_)

    @staticmethod
    def encode(names: Sequence[int]) -> Any:
        return _runs(names)

    @staticmethod
    def decode(line: Any) -> list[int]:
        return [number for start, stop in line for number in range(start, stop)]


class _Contents:
    """Episodes by their content; what is added shows once the journal is opened again."""

    def __init__(self) -> None:
        self._added: list[np.ndarray] = []
        self._sorted: np.ndarray | None = None

    def add_all(self, names: np.ndarray) -> None:
        if self._sorted is None:
            self._added.append(names)

    def all(self) -> np.ndarray:
        """``[K]`` records of CONTENT."""
        return np.concatenate([np.empty(0, CONTENT), *self._added])

    def holds(self, names: np.ndarray) -> np.ndarray:
        """``[E] bool``: which of these episodes it has.

        Raises:
            ValueError: one of them has the name of another episode.
        """
        if self._sorted is None:
            held = self.all()
            # In the order of a number that follows from name and occurrence, so that one search finds both.
            order = np.argsort(_place(held), kind="stable")
            self._sorted, self._places, self._added = held[order], _place(held)[order], []
        if not len(self._sorted):
            return np.zeros(len(names), np.bool_)
        found = np.searchsorted(self._places, _place(names)).clip(max=len(self._places) - 1)
        there = self._sorted[found]
        same = (there["name"] == names["name"]) & (there["occurrence"] == names["occurrence"])
        other = np.flatnonzero(same & (there["check"] != names["check"]))
        if len(other):
            raise CollisionInJournal(int(other[0]))
        return same

    @staticmethod
    def encode(names: np.ndarray) -> str:
        return base64.b64encode(names.tobytes()).decode()

    @staticmethod
    def decode(line: str) -> np.ndarray:
        return np.frombuffer(base64.b64decode(line, validate=True), CONTENT)


class CollisionInJournal(ValueError):
    """The episode at `position` differs from one that was acknowledged under its name."""

    def __init__(self, position: int) -> None:
        super().__init__(position)
        self.position = position


def _place(names: np.ndarray) -> np.ndarray:
    return keys_of(names["name"], names["occurrence"], np.zeros(1))


_VERSIONS: Final[dict[int, Any]] = {BY_NUMBER_VERSION: _Numbers, BY_CONTENT_VERSION: _Contents}


class Journal:
    """The journal of pushes into a table of one or several servers.

    Args:
        path: of the file, or None to keep it in memory only.
        header: plain JSON values that must not change between runs.
        servers: how many there are.
        old_header: likewise, of journals of version 1; None refuses these.
        free: what may change of a header all the same.
        version: of a new file.

    Attributes:
        version: of the file; decides what episodes are called.
        servers: one ServerRecord each.
        progress: the last :meth:`checkpoint`'s, or None.

    Raises:
        SinkError: the file can't be used, or is another push's.
        ValueError: `path` is an address.

    >>> journal = Journal(None, {"table": "replay"}, 1)
    >>> journal.begin(0, "a1", size=0, inserted=0)
    >>> names = np.array([(5, 6, 0), (7, 8, 0)], CONTENT)
    >>> journal.acknowledge(0, [(names[0].tobytes(), 99), (names[1].tobytes(), 49)])
    >>> journal.servers[0].items, journal.servers[0].episodes.holds(names).tolist()
    (148, [True, True])
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        header: Mapping[str, Any],
        servers: int,
        *,
        old_header: Mapping[str, Any] | None = None,
        free: Sequence[str] = (),
        version: int = BY_CONTENT_VERSION,
    ) -> None:
        self.version = version
        self._headers = {BY_CONTENT_VERSION: header, BY_NUMBER_VERSION: old_header}
        self._free = free
        self.servers = [ServerRecord(self.version) for _ in range(servers)]
        self.progress: Mapping[str, Any] | None = None
        self.sources: list[Mapping[str, Any]] = []
        self._come: list[np.ndarray] = []  # episodes of the source, in this run and those that it goes on from
        self._come_by_progress = 0  # the first so many of those arrays are behind the last checkpoint
        self._passed: list[np.ndarray] = []  # passed over since then
        self._file: Any = None
        self._unsynced = 0.0
        if path is None:
            return
        refuse_address(path)
        self._path = os.fspath(path)
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for whoever writes to it.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = open(self._path, "a+b", buffering=0, opener=lambda path, _: os.open(path, flags, 0o666))
            self._read(servers)
        except OSError as cause:
            self._let_go()
            raise SinkError(f"{self._path}: the journal can't be used: {cause.strerror}") from cause
        except BaseException:
            self._let_go()
            raise

    def begin(self, server: int, state: str, *, size: int, inserted: int) -> None:
        """Note a server process that knows nothing of what was acknowledged before."""
        self.servers[server].begin(state, size, inserted)
        self.progress = None
        self._write({"server": server, "state": state, "size": size, "inserted": inserted}, sync=True)

    def run(self, source: Mapping[str, Any], *, from_start: bool = False) -> np.ndarray:
        """After the servers' states: note what is read now, and whether it goes on from :attr:`progress`.

        Args:
            source: plain JSON values; those of the run before, or everything is read from the start.
            from_start: read everything anyway.

        Returns:
            Episodes of the source that came before that progress, records of CONTENT.
        """
        if self.version == BY_NUMBER_VERSION:
            return np.empty(0, CONTENT)
        source = json.loads(json.dumps(source))
        goes_on = self.progress is not None and not from_start and self.sources[-1:] == [source]
        self._begin_run(source, goes_on)
        self._write({"source": source, "goes_on": goes_on}, sync=True)
        return np.concatenate([np.empty(0, CONTENT), *self._come])

    def _begin_run(self, source: Mapping[str, Any], goes_on: bool) -> None:
        self._passed = []
        if not goes_on:
            self.progress = None
            self._come_by_progress = 0
        self._come = self._come[: self._come_by_progress]
        if source not in self.sources[-1:]:
            self.sources.append(source)

    def acknowledge(self, server: int, episodes: Sequence[tuple[Any, int]]) -> None:
        """Note acknowledged episodes, as (name, items): of :attr:`EpisodeKeys.marks`."""
        if not episodes:
            return
        record = self.servers[server]
        names: Any = [name for name, _ in episodes]
        if self.version == BY_CONTENT_VERSION:
            names = np.frombuffer(b"".join(names), CONTENT)
        record.episodes.add_all(names)
        items = sum(items for _, items in episodes)
        record.items += items
        self._write({"server": server, "episodes": record.episodes.encode(names), "items": items})

    def known(self, keys: EpisodeKeys, owners: np.ndarray) -> np.ndarray:
        """``[E] bool``: which episodes are acknowledged by the servers that they belong to.

        Raises:
            CollisionInJournal: one has the name of another that is.
        """
        found = np.zeros(len(keys), np.bool_)
        for number, record in enumerate(self.servers):
            mine = np.flatnonzero(owners == number)
            try:
                found[mine] = record.episodes.holds(keys.names[mine])
            except CollisionInJournal as collision:
                raise CollisionInJournal(int(mine[collision.position])) from None
        return found

    def pass_over(self, keys: EpisodeKeys) -> None:
        """Note that these episodes of the source came, and were not sent, for they are acknowledged."""
        if self._file is not None and self.version == BY_CONTENT_VERSION and len(keys):
            self._passed.append(keys.names)

    def look(self, server: int, inserted: int) -> None:
        """Note how many items the server says were ever inserted."""
        self.servers[server].seen = inserted
        self._write({"server": server, "seen": inserted})

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Note how far the conversion has come; everything before it is acknowledged."""
        self.progress = dict(progress)
        if self._passed:
            self._write({"passed": _Contents.encode(np.concatenate(self._passed))})
            self._passed = []
        self._write({"progress": self.progress}, sync=True)

    def close(self) -> None:
        """Sync and close; idempotent.

        Raises:
            SinkError: it can't be written.
        """
        try:
            if self._file is not None:
                self._sync()
        except OSError as cause:
            raise self._unwritable(cause) from cause
        finally:
            self._let_go()

    def _write(self, line: Mapping[str, Any], *, sync: bool = False) -> None:
        if self._file is None:
            return
        try:
            self._file.write(_line(line))
            # A kill of this process loses nothing that is written; a power cut may lose the last lines,
            # which costs sending their episodes again, so they are synced a few times a second.
            if sync or time.monotonic() - self._unsynced > _SYNC_SECONDS:
                self._sync()
        except OSError as cause:
            raise self._unwritable(cause) from cause

    def _let_go(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _unwritable(self, cause: OSError) -> SinkError:
        return SinkError(f"{self._path}: the journal can't be written: {cause.strerror}")

    def _sync(self) -> None:
        os.fsync(self._file.fileno())
        self._unsynced = time.monotonic()

    def _read(self, servers: int) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise SinkError(f"{self._path}: the journal can't be used: not a regular file; name another")
        self._file.seek(0)
        header = self._file.readline(_LONGEST_HEADER)
        if not header.endswith(b"\n"):
            self._begin_file(header)
            return
        try:
            self._take_version(json.loads(header))
            self.servers = [ServerRecord(self.version) for _ in range(servers)]
            whole, newline, torn = self._file.read().rpartition(b"\n")
            for line in whole.splitlines():
                self._replay(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as cause:
            raise self._not_ours(str(cause)) from cause
        if torn:  # a kill came in the middle of a line
            self._file.truncate(len(header) + len(whole) + len(newline))

    def _take_version(self, found: Any) -> None:
        """Take the file's version, and refuse it if it is not this push's."""
        if not isinstance(found, dict) or "rlds2buf_push" not in found:
            raise ValueError("its first line is not a journal's")
        expected = self._headers.get(found["rlds2buf_push"])
        if expected is not None:
            self.version = found["rlds2buf_push"]
        self._refuse_changes(found, self._first(self.version))

    def _first(self, version: int) -> dict[str, Any]:
        return {"rlds2buf_push": version, **(self._headers[version] or {})}

    def _begin_file(self, found: bytes) -> None:
        """Write the first line into a file that is empty, or holds what a kill left of this very line."""
        expected = [self._first(version) for version, header in self._headers.items() if header is not None]
        ours = found.startswith(_MARK) and any(_line(first).startswith(found) for first in expected)
        if found and not ours:
            raise self._not_ours("its first line is not a journal's")
        if found:
            self._file.truncate(0)
        self._write(self._first(self.version), sync=True)

    def _not_ours(self, why: str) -> SinkError:
        return SinkError(f"{self._path}: not the journal of a push ({why}); it is left as it is: name another file")

    def _refuse_changes(self, found: Any, expected: Mapping[str, Any]) -> None:
        # Through JSON, so that tuples and numbers compare as they were written.
        wanted = json.loads(json.dumps(expected))
        changed = [
            f"{name}: {json.dumps(found.get(name))} there, {json.dumps(wanted.get(name))} now"
            for name in sorted({*found, *wanted} - {*self._free})
            if found.get(name) != wanted.get(name)
        ]
        if changed:
            raise SinkError(
                f"{self._path}: the journal is of another push ({'; '.join(changed)}); "
                "name another file, or remove this one to push everything again"
            )

    def _replay(self, line: Mapping[str, Any]) -> None:
        if "progress" in line:
            self.progress = line["progress"]
            self._come_by_progress = len(self._come)
            return
        if "source" in line:
            self._begin_run(line["source"], line["goes_on"])
            return
        if "passed" in line:
            self._come.append(_Contents.decode(line["passed"]))
            return
        record = self.servers[line["server"]]
        if "state" in line:
            record.begin(line["state"], line["size"], line["inserted"])
            self.progress = None
        elif "seen" in line:
            record.seen = line["seen"]
        else:
            names = record.episodes.decode(line["episodes"])
            record.episodes.add_all(names)
            record.items += line["items"]
            if self.version == BY_CONTENT_VERSION:
                self._come.append(names)


def _line(values: Mapping[str, Any]) -> bytes:
    return json.dumps(values).encode() + b"\n"


def _runs(numbers: Sequence[int]) -> list[list[int]]:
    """Numbers as half-open ranges.

    >>> _runs([3, 4, 5, 9])
    [[3, 6], [9, 10]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, number + 1])
    return runs
