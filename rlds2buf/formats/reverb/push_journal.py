"""The journal of a push: which episodes a server has acknowledged, on disk.

One JSON object per line, appended and fsynced.  The first line says what is pushed where; a file
with another first line is refused, and not a byte of it is changed.  A line that a kill cut short is
dropped.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rlds2buf.errors import SinkError
from rlds2buf.files.local_path import refuse_address

__all__ = ["Journal", "ServerRecord"]

_VERSION = 1
_SYNC_SECONDS = 0.25
_MARK = b'{"rlds2buf_push":'
_LONGEST_HEADER = 1 << 20


class ServerRecord:
    """What the journal knows of one server.

    Attributes:
        state: the server's state id as hexadecimal text, or None before the first connection.
        size, inserted: items in the table, and ever inserted into it, before the push began.
        seen: items ever inserted into the table when it was last looked at.
        episodes: numbers of the acknowledged episodes.
        items: how many items they are.
    """

    def __init__(self) -> None:
        self.state: str | None = None
        self.size = self.inserted = self.seen = self.items = 0
        self.episodes: set[int] = set()

    def begin(self, state: str, size: int, inserted: int) -> None:
        """Start over with a server that knows nothing of earlier acknowledgements."""
        self.__init__()  # type: ignore[misc]
        self.state, self.size, self.inserted, self.seen = state, size, inserted, inserted


class Journal:
    """The journal of one push to one or several servers.

    Args:
        path: of the file, or None to keep it in memory only.
        header: plain JSON values that must not change between runs.
        servers: how many there are.

    Attributes:
        servers: one ServerRecord each.
        progress: the last :meth:`checkpoint`'s, or None.

    Raises:
        SinkError: the file can't be used, or is another push's.
        ValueError: `path` is an address.

    >>> journal = Journal(None, {"table": "replay"}, 1)
    >>> journal.begin(0, "a1", size=0, inserted=0)
    >>> journal.acknowledge(0, [(0, 99), (1, 49)])
    >>> sorted(journal.servers[0].episodes), journal.servers[0].items
    ([0, 1], 148)
    """

    def __init__(self, path: str | os.PathLike[str] | None, header: Mapping[str, Any], servers: int) -> None:
        self.servers = [ServerRecord() for _ in range(servers)]
        self.progress: Mapping[str, Any] | None = None
        self._file: Any = None
        self._unsynced = 0.0
        if path is None:
            return
        refuse_address(path)
        self._path = os.fspath(path)
        first = {"rlds2buf_push": _VERSION, **header}
        try:
            # Without O_NONBLOCK, opening a named pipe would wait for whoever writes to it.
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
            self._file = open(self._path, "a+b", buffering=0, opener=lambda path, _: os.open(path, flags, 0o666))
            self._read(first)
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

    def acknowledge(self, server: int, episodes: Sequence[tuple[int, int]]) -> None:
        """Note acknowledged episodes, as (number, items)."""
        if not episodes:
            return
        record = self.servers[server]
        record.episodes.update(number for number, _ in episodes)
        items = sum(items for _, items in episodes)
        record.items += items
        self._write({"server": server, "episodes": _runs([number for number, _ in episodes]), "items": items})

    def look(self, server: int, inserted: int) -> None:
        """Note how many items the server says were ever inserted."""
        self.servers[server].seen = inserted
        self._write({"server": server, "seen": inserted})

    def checkpoint(self, progress: Mapping[str, Any]) -> None:
        """Note how far the conversion has come; everything before it is acknowledged."""
        self.progress = dict(progress)
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

    def _read(self, first: Mapping[str, Any]) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise SinkError(f"{self._path}: the journal can't be used: not a regular file; name another")
        self._file.seek(0)
        header = self._file.readline(_LONGEST_HEADER)
        if not header.endswith(b"\n"):
            self._begin_file(header, first)
            return
        try:
            self._refuse_changes(json.loads(header), first)
            whole, newline, torn = self._file.read().rpartition(b"\n")
            for line in whole.splitlines():
                self._replay(json.loads(line))
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as cause:
            raise self._not_ours(str(cause)) from cause
        if torn:  # a kill came in the middle of a line
            self._file.truncate(len(header) + len(whole) + len(newline))

    def _begin_file(self, found: bytes, first: Mapping[str, Any]) -> None:
        """Write the first line into a file that is empty, or holds what a kill left of this very line."""
        ours = not found or found.startswith(_MARK)
        if not ours or not _line(first).startswith(found):
            raise self._not_ours("its first line is not a journal's")
        if found:
            self._file.truncate(0)
        self._write(first, sync=True)

    def _not_ours(self, why: str) -> SinkError:
        return SinkError(f"{self._path}: not the journal of a push ({why}); it is left as it is: name another file")

    def _refuse_changes(self, found: Any, expected: Mapping[str, Any]) -> None:
        if not isinstance(found, dict) or "rlds2buf_push" not in found:
            raise ValueError("its first line is not a journal's")
        # Through JSON, so that tuples and numbers compare as they were written.
        wanted = json.loads(json.dumps(expected))
        changed = [
            f"{name}: {json.dumps(found.get(name))} there, {json.dumps(wanted.get(name))} now"
            for name in sorted({*found, *wanted})
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
            return
        record = self.servers[line["server"]]
        if "state" in line:
            record.begin(line["state"], line["size"], line["inserted"])
            self.progress = None
        elif "seen" in line:
            record.seen = line["seen"]
        else:
            for start, stop in line["episodes"]:
                record.episodes.update(range(start, stop))
            record.items += line["items"]


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
