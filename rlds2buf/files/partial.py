"""An output in the making: a hidden folder beside its place, which a killed run leaves and a later one resumes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlds2buf.errors import SinkError, SnapshotCorrupt, SnapshotError, SnapshotExists
from rlds2buf.files.durable import replace_text, sync_file, sync_folder
from rlds2buf.files.local_path import refuse_address
from rlds2buf.files.renaming import exchange, rename_new

__all__ = ["PartialFolder", "is_empty_folder", "plain_json"]

_JOURNAL = "journal.json"
_LOCK = "lock"
_OWN = frozenset({_JOURNAL, f"{_JOURNAL}.new", _LOCK})
_WHOLE = "whole"
_REPLACED = "replaced"
_NOTHING: dict[str, Any] = {"state": None}
_ATTEMPTS = 100


class PartialFolder:
    """``.NAME.partial`` beside a target ``NAME``: locked by this process, journaled, moved into place at the end.

    ::

        open -> (write files, write_journal)* -> publish     the target is there, whole
        open -> ...                           -> close       nothing is there, or with keep the part
        open -> ... killed; open(resume=True) -> `journal` is what the last write_journal was given

    From its first moment to its last the folder holds ``journal.json`` and ``lock``: these tell that it is
    ours.  A folder without them, or a link in its place, is refused and left alone, and so is a target that
    is a link.  What is replaced goes into this folder, too, by one exchange of names where the system can,
    or else by two renames; the next run undoes the first of them if the second did not come.  Whatever is
    found of an earlier run is dealt with under the lock.

    Args:
        target: the file or folder that will be there.
        provenance: what is written and how, as plain JSON values; a run only resumes one with
            an equal provenance.
        overwrite: replace what is at the target, once the new one is whole.
        resume: continue what a killed run left; from the start if it left nothing.
        replaceable: whether something at the target may be overwritten (it is of the kind that is
            being written, not a folder of holiday pictures), or a text that says why it may not.
        what: what is being written, for messages: "a saved buffer".

    Attributes:
        folder: the hidden folder, to write files in.
        journal: the state to resume from, or None.
        notes: sentences on what was found of earlier runs and done about it.

    Raises:
        SnapshotExists: the target is there already, another process is writing it, or something that is not
            ours lies where the part would.
        SnapshotError: what was interrupted had another provenance.
        SnapshotCorrupt: its journal can't be read.
        SinkError: the folder can't be made.
        ValueError: the target is an address.

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
        replaceable: Callable[[Path], bool | str] = lambda path: True,
        what: str,
    ) -> None:
        refuse_address(target)
        self.target = target
        self.folder = target.parent / f".{target.name}.partial"
        self.journal: dict[str, Any] | None = None
        self.notes: list[str] = []
        self._overwrite, self._replaceable, self._what = overwrite, replaceable, what
        self._provenance = plain_json(provenance or {})
        self._lock = -1
        self._state: dict[str, Any] | None = None
        if not os.path.lexists(self.folder):
            self._refuse_target()  # before anything is made
        keep = True  # until it is known what there is; and a mistaken resume must not destroy that
        try:
            self._enter()
            self._settle()
            keep = resume
            self._begin(resume)
        except OSError as cause:
            self.close(keep=keep)
            raise self._failed(cause) from cause
        except BaseException:
            self.close(keep=keep)
            raise

    def write_journal(self, state: Mapping[str, Any]) -> None:
        """Note how far the files are; they must be synced before.

        Args:
            state: plain JSON values, which `journal` of a later run will be.
        """
        self._write_journal(dict(state))

    def forget_journal(self) -> None:
        """From here on a killed run can't be resumed: its files are being moved."""
        self._write_journal(None)

    def fresh(self, name: str) -> Path:
        """A place in the folder; what another run left there is removed."""
        path = self.folder / name
        try:
            _remove(path)
        except OSError as cause:
            raise self._failed(cause) from cause
        return path

    def require_replaceable(self) -> None:
        """Look again before something is moved: all this has taken its time.

        Raises:
            SnapshotExists: something is at the target that may not be replaced.
        """
        why = self._why_not()
        if why is not None:
            raise SnapshotExists(f"{self.target}: {why}")

    def publish(self, file: str | None = None) -> None:
        """Sync what was written, and move it to the target: the whole folder, or one `file` or folder in it.

        Raises:
            SnapshotExists: something has come to the target meanwhile that may not be replaced.
            SinkError: it can't be moved.
        """
        try:
            part = self._gather() if file is None else self.folder / file
            sync_file(part)
            for child in part.rglob("*"):
                sync_file(child)
            self._move(part)
        except OSError as cause:
            raise self._failed(cause) from cause
        self.close()

    def close(self, *, keep: bool = False) -> None:
        """Let go; without `keep` remove the part.  Idempotent."""
        if self._lock >= 0:
            if not keep:
                self._remove()
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> PartialFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, cause: OSError) -> SinkError:
        where = cause.filename if isinstance(cause.filename, str) else str(self.folder)
        beside = f" ({where})" if where != str(self.target) else ""
        return SinkError(f"{self.target}: {cause.strerror or cause}{beside}")

    def _why_not(self) -> str | None:
        """Why nothing may come to the target; None if it may."""
        if not os.path.lexists(self.target) or is_empty_folder(self.target):
            return None
        if not self._overwrite:
            return "is there already; choose another name or overwrite it (overwrite=True)"
        if self.target.is_symlink():
            leads = os.path.realpath(self.target)
            return f"is a symbolic link, so it is not overwritten; name what it leads to, {leads}, or remove the link"
        found = self._replaceable(self.target)
        if isinstance(found, str):
            return found
        return None if found else f"is not {self._what}, so it is not overwritten"

    def _refuse_target(self) -> None:
        """Raise if the target is taken, or its earlier self may have been put beside it."""
        self.require_replaceable()
        aside = self.target.parent / f".{self.target.name}.replaced"
        if not os.path.lexists(aside):
            return
        if not os.path.lexists(self.target):
            raise SnapshotExists(
                f"{self.target}: is not there, but {aside} is, where version 0.1.0 put what it was about to replace; "
                "move it back or elsewhere, or remove it"
            )
        self.notes.append(f"{aside}: left as it is; version 0.1.0 put there what it replaced")

    def _enter(self) -> None:
        """Make the hidden folder, or take the one that another run has left, and lock it."""
        self.target.parent.mkdir(parents=True, exist_ok=True)
        for _ in range(_ATTEMPTS):
            made = False
            with contextlib.suppress(FileExistsError):
                self.folder.mkdir()
                made = True
            # Whoever had the folder may be about to remove it: then there is nothing to open, or to lock.
            with contextlib.suppress(FileNotFoundError):
                folder = _open_folder(self.folder)
                try:
                    if folder < 0 or not (made or self._is_ours(folder)):
                        raise self._foreign()
                    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
                    self._lock = os.open(_LOCK, flags, 0o644, dir_fd=folder)
                finally:
                    if folder >= 0:
                        os.close(folder)
                if self._holds():
                    return
        raise SnapshotExists(f"{self.target}: other processes are writing it")

    def _holds(self) -> bool:
        """Whether the lock is held, and is that of the folder which is there."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as cause:
            os.close(self._lock)
            self._lock = -1
            raise SnapshotExists(f"{self.target}: another process is writing it") from cause
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(self._lock), os.lstat(self.folder / _LOCK)):
                return True
        os.close(self._lock)
        self._lock = -1
        return False

    def _is_ours(self, folder: int) -> bool:
        """Whether an open folder has our mark, or nothing in it that could be lost, and is no other user's."""
        names = set(os.listdir(folder))
        for name in names & _OWN:
            if not stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                return False
        begun = names <= {_LOCK, f"{_JOURNAL}.new"}
        return (begun or {_JOURNAL, _LOCK} <= names) and self._is_mine(os.fstat(folder).st_uid)

    def _is_mine(self, owner: int) -> bool:
        if owner == os.geteuid():
            return True
        # File systems of other machines have owners of their own.
        with tempfile.TemporaryFile(dir=self.target.parent) as file:
            return os.fstat(file.fileno()).st_uid == owner

    def _foreign(self) -> SnapshotExists:
        why = self._why_not()
        if why is not None:
            return SnapshotExists(f"{self.target}: {why}")
        found = "a symbolic link" if self.folder.is_symlink() else "a file"
        if self.folder.is_dir() and not self.folder.is_symlink():
            found = f"a folder without the {_JOURNAL} and {_LOCK} of this user's conversions"
        return SnapshotExists(
            f"{self.folder}: lies where {self.target} would be made, and is {found}; it is left as it is: move or "
            "remove it, or choose another name"
        )

    def _settle(self) -> None:
        """Deal with what a run has left that was killed while it published."""
        left = self._peek()
        self._put_back(left)
        if _is_at(left, self.target):
            self._clear()
            (self.folder / _JOURNAL).unlink()
            left = _NOTHING
            self.notes.append(f"{self.folder}: removed, an interrupted run that had already written {self.target}")
        try:
            self._refuse_target()
        except SnapshotExists as refusal:
            if left is None or left["state"] is not None:
                raise
            self._remove()  # nothing can be resumed from it
            raise SnapshotExists(f"{refusal} ({self.folder}, left by an interrupted run, is removed)") from None

    def _put_back(self, left: Mapping[str, Any] | None) -> None:
        """Undo the first of two renames, where the second did not come."""
        replaced = self.folder / _REPLACED
        if not os.path.lexists(replaced) or _is_at(left, self.target):
            return
        if os.path.lexists(self.target):
            raise SnapshotExists(
                f"{replaced}: is what {self.target} was before an interrupted run was about to replace it; move it "
                "elsewhere, or remove it"
            )
        os.rename(replaced, self.target)
        sync_folder(self.target.parent)
        self.notes.append(f"{self.target}: put back, an interrupted run had set it aside")

    def _begin(self, resume: bool) -> None:
        left = self._read_journal() if resume else None
        if left is not None and _without_versions(left.get("provenance")) != _without_versions(self._provenance):
            raise SnapshotError(
                f"{self.target}: the interrupted run had another source or other options; "
                "start over without resume=True"
            )
        self.journal = left["state"] if left is not None else None
        if self.journal is not None:
            _refuse_links(self.folder)
            self._state = self.journal
            return
        if not resume and (self._peek() or {}).get("state") is not None:
            self.notes.append(f"{self.target}: started over, what an interrupted run had left is removed")
        self._clear()
        # So that a run which is killed before its first checkpoint is not resumed as another one.
        self._write_journal(None)

    def _write_journal(self, state: dict[str, Any] | None, **more: Any) -> None:
        self._state = state
        replace_text(self.folder / _JOURNAL, json.dumps({"provenance": self._provenance, "state": state, **more}))

    def _read_journal(self) -> dict[str, Any] | None:
        path = self.folder / _JOURNAL
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as cause:
            raise SnapshotCorrupt(f"{path}: the journal can't be read ({cause}); start over") from cause
        if not isinstance(found, dict) or not isinstance(found.get("state"), dict | None):
            raise SnapshotCorrupt(f"{path}: not a journal; start over")
        return {**_NOTHING, **found}

    def _peek(self) -> dict[str, Any] | None:
        """The journal; None if it can't be read."""
        try:
            return self._read_journal() or _NOTHING
        except SnapshotCorrupt:
            return None

    def _gather(self) -> Path:
        """Everything that was written in a folder of its own; from here on nothing can be resumed."""
        self.forget_journal()
        whole = self.fresh(_WHOLE)
        children = [child for child in self.folder.iterdir() if child.name not in _OWN]
        whole.mkdir()
        for child in children:
            os.rename(child, whole / child.name)
        return whole

    def _move(self, part: Path) -> None:
        """A file or folder to the target, in whose place another may be."""
        self.require_replaceable()
        # By its number it is known again at the target, whatever is in its own place then.
        self._write_journal(self._state, publishing=os.lstat(part).st_ino)
        if is_empty_folder(self.target):
            self.target.rmdir()
        if not os.path.lexists(self.target):
            rename_new(part, self.target)
        elif not part.is_dir():
            os.replace(part, self.target)
        elif not exchange(part, self.target):
            os.rename(self.target, self.fresh(_REPLACED))
            os.rename(part, self.target)
        sync_folder(self.target.parent)

    def _clear(self) -> None:
        """Remove everything in the folder but the mark."""
        for child in self.folder.iterdir():
            if child.name not in (_JOURNAL, _LOCK):
                _remove(child)

    def _remove(self) -> None:
        """Remove the folder, the mark last, so that what can't be removed now is known for ours later."""
        with contextlib.suppress(OSError):
            self._clear()
            for name in (_JOURNAL, _LOCK):
                (self.folder / name).unlink(missing_ok=True)
            self.folder.rmdir()


def _open_folder(path: Path) -> int:
    """A folder, open; -1 if it is none, or a link."""
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        raise
    except OSError:
        if path.is_symlink() or not path.is_dir():
            return -1
        raise


def _is_at(journal: Mapping[str, Any] | None, target: Path) -> bool:
    """Whether what a run was about to publish is at the target."""
    number = None if journal is None else journal.get("publishing")
    try:
        return number is not None and os.lstat(target).st_ino == number
    except OSError:
        return False


def _refuse_links(folder: Path) -> None:
    """Raise if a resumed run would write through links, which no run makes."""
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            mode = os.lstat(os.path.join(place, name)).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise SnapshotCorrupt(f"{os.path.join(place, name)}: a link or a device; start over")


def _remove(path: Path) -> None:
    """A file, a link (not what it leads to), or a folder and all in it; or nothing."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def is_empty_folder(path: Path) -> bool:
    """Whether it is a folder with nothing in it, and no link to one, so that nothing is lost in its place."""
    try:
        return not os.path.islink(path) and not os.listdir(path)
    except OSError:
        return False


def _without_versions(provenance: Any) -> Any:
    """A run may be resumed by another version than began it, so which one wrote what is not compared."""
    if not isinstance(provenance, dict):
        return provenance
    return {name: _without_versions(value) for name, value in provenance.items() if name != "rlds2buf"}


def plain_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """As it will be read back, so that two runs can be compared."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(values)))
    return plain
