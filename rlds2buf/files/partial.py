"""An output in the making: a hidden folder beside its place, which a killed run leaves and a later one goes on from."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlds2buf.core.json_text import parse_json
from rlds2buf.errors import SinkError, SnapshotCorrupt, SnapshotError, SnapshotExists
from rlds2buf.files.durable import replace_text, sync_file, sync_folder
from rlds2buf.files.local_path import refuse_address

__all__ = ["PartialFolder", "plain_json"]

_JOURNAL = "journal.json"
_LOCK = "lock"
_OWN = frozenset({_JOURNAL, f"{_JOURNAL}.new", _LOCK})


class PartialFolder:
    """``.NAME.partial`` beside a target ``NAME``: locked by this process, journaled, moved into place at the end.

    ::

        open -> (write files, write_journal)* -> publish     the target is there, whole
        open -> ...                           -> close       nothing is there, or with keep the part
        open -> ... killed; open(resume=True) -> `journal` is what the last write_journal was given

    Args:
        target: the file or folder that will be there.
        provenance: what is written and how, as plain JSON values; a run only goes on from one with
            an equal provenance.
        overwrite: replace what is at the target, once the new one is whole.
        resume: go on from what a killed run left; from the start if it left nothing.
        replaceable: whether something at the target may be overwritten (it is of the kind that is
            being written, not a folder of holiday pictures).
        what: what is being written, for messages: "a saved buffer".

    Attributes:
        folder: the hidden folder, to write files in.
        journal: the state to go on from, or None.

    Raises:
        SnapshotExists: the target is there already, or another process is writing it.
        SnapshotError: what was interrupted had another provenance.
        SnapshotCorrupt: its journal can't be read.
        SinkError: the folder can't be made.
        ValueError: the target is an address.

    >>> import tempfile
    >>> part = PartialFolder(Path(tempfile.mkdtemp()) / "out", provenance={"source": "a"}, what="a note")
    >>> _ = (part.folder / "note.txt").write_text("hello")
    >>> part.publish()
    >>> [file.name for file in part.target.iterdir()]
    ['note.txt']
    """

    def __init__(
        self,
        target: Path,
        *,
        provenance: Mapping[str, Any] | None = None,
        overwrite: bool = False,
        resume: bool = False,
        replaceable: Callable[[Path], bool] = lambda path: True,
        what: str,
    ) -> None:
        refuse_address(target)
        self.target = target
        self.folder = target.parent / f".{target.name}.partial"
        self.journal: dict[str, Any] | None = None
        self._set_aside = target.parent / f".{target.name}.replaced"
        self._provenance = plain_json(provenance or {})
        self._lock = -1
        self._recover()
        if os.path.lexists(target):
            if not overwrite:
                raise SnapshotExists(f"{target}: is there already; choose another name or overwrite it")
            if not replaceable(target):
                raise SnapshotExists(f"{target}: is not {what}, so it is not overwritten")
        self._take_lock()
        try:
            self._begin(resume)
        except OSError as cause:
            self.close(keep=resume)
            raise SinkError(f"{self.folder}: {cause.strerror or cause}") from cause
        except BaseException:
            self.close(keep=resume)  # a mistaken resume must not destroy what is there
            raise

    def write_journal(self, state: Mapping[str, Any]) -> None:
        """Note how far the files are; they must be synced before.

        Args:
            state: plain JSON values, which `journal` of a later run will be.
        """
        self._write_journal(dict(state))

    def forget_journal(self) -> None:
        """From here on a killed run can't be gone on from: its files are being moved."""
        (self.folder / _JOURNAL).unlink(missing_ok=True)

    def publish(self, file: str | None = None) -> None:
        """Sync what was written, and move it to the target: the whole folder, or one `file` or folder in it.

        Raises:
            SinkError: it can't be moved.
        """
        try:
            if file is not None:
                self._publish_part(self.folder / file)
                shutil.rmtree(self.folder, ignore_errors=True)
            else:
                self._publish_folder()
        except OSError as cause:
            raise SinkError(f"{self.target}: {cause.strerror or cause}") from cause
        self.close(keep=True)

    def close(self, *, keep: bool = False) -> None:
        """Let go; without `keep` remove the part.  Idempotent."""
        if self._lock >= 0:
            if not keep:
                shutil.rmtree(self.folder, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> PartialFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _recover(self) -> None:
        """Undo the first of two renames of a run that was killed between them."""
        try:
            if not os.path.lexists(self.target) and self._set_aside.exists():
                os.rename(self._set_aside, self.target)
        except OSError as cause:  # a name too long is one
            raise SinkError(f"{self.target}: {cause.strerror or cause}") from cause

    def _take_lock(self) -> None:
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(exist_ok=True)
            self._lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(self._lock)
            self._lock = -1
            raise SnapshotExists(f"{self.target}: another process is writing it") from cause
        except OSError as cause:
            raise SinkError(f"{self.folder}: {cause.strerror or cause}") from cause

    def _begin(self, resume: bool) -> None:
        left = self._read_journal() if resume else None
        if left is not None and left.get("provenance") != self._provenance:
            raise SnapshotError(
                f"{self.target}: the interrupted run had another source or other options; start over without resuming"
            )
        self.journal = left["state"] if left is not None else None
        if self.journal is None:
            for child in self.folder.iterdir():
                if child.name != _LOCK:
                    shutil.rmtree(child) if child.is_dir() else child.unlink()
            # So that a run which is killed before its first checkpoint is not resumed as another one.
            self._write_journal(None)

    def _write_journal(self, state: dict[str, Any] | None) -> None:
        replace_text(self.folder / _JOURNAL, json.dumps({"provenance": self._provenance, "state": state}))

    def _read_journal(self) -> dict[str, Any] | None:
        path = self.folder / _JOURNAL
        try:
            found = parse_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as cause:
            raise SnapshotCorrupt(f"{path}: the journal can't be read ({cause}); start over") from cause
        if not isinstance(found, dict) or not isinstance(found.get("state"), dict | None):
            raise SnapshotCorrupt(f"{path}: not a journal; start over")
        return found

    def _publish_part(self, part: Path) -> None:
        """Move what is written; until then a killed run can be gone on from, for the journal stays."""
        sync_file(part)
        if not part.is_dir():
            os.replace(part, self.target)
            sync_folder(self.target.parent)
            return
        for child in part.rglob("*"):
            sync_file(child)
        self._move(part)

    def _publish_folder(self) -> None:
        for child in self.folder.rglob("*"):
            if child.name not in _OWN:
                sync_file(child)
        for name in _OWN:
            (self.folder / name).unlink(missing_ok=True)
        sync_folder(self.folder)
        self._move(self.folder)

    def _move(self, folder: Path) -> None:
        """A folder to the target, in whose place another may be."""
        replaced = os.path.lexists(self.target)
        if replaced:
            shutil.rmtree(self._set_aside, ignore_errors=True)
            os.rename(self.target, self._set_aside)
        os.rename(folder, self.target)
        sync_folder(self.target.parent)
        if replaced:
            shutil.rmtree(self._set_aside, ignore_errors=True)


def plain_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read back, so that two runs can be compared."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values)))
    return plain
