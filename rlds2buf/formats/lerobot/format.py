"""LeRobot's datasets, told by the version that their meta/info.json says, and what looks like one and is not read."""

from __future__ import annotations

from typing import Any, Final

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "INFO", "POINTER", "VERSIONS"]

INFO: Final = "meta/info.json"
VERSIONS: Final = ("v2.0", "v2.1", "v3.0")
"""Those that are read."""

POINTER: Final = b"version https://git-lfs.github.com/spec/"
"""How a file begins that stands for one in Git LFS."""

_CONVERTER: Final = "lerobot's own converters bring it to v2.1 or v3.0"


def _info(look: Look) -> dict[str, Any] | None:
    """The object in meta/info.json; None where there is none."""
    found = look.inside("meta", "info.json").json() if "meta" in look.names else None
    return found if isinstance(found, dict) else None


def _version(look: Look) -> Any:
    return (_info(look) or {}).get("codebase_version")


def _is_lance(look: Look) -> bool:
    info = _info(look) or {}
    return "codebase_version" in info and info.get("storage_format", "parquet") != "parquet"


def _fits(look: Look) -> bool:
    return _version(look) in VERSIONS and not _is_lance(look)


def _is_pointer(look: Look) -> bool:
    return "meta" in look.names and look.inside("meta", "info.json").head.startswith(POINTER)


def _near(look: Look) -> int:
    return 3 * ("meta" in look.names and bool({"data", "videos"} & set(look.names)))


FORMATS = (
    Format(
        "lerobot",
        "a LeRobot dataset",
        source="rlds2buf.formats.lerobot.source:LeRobotDirSource",
        sink="rlds2buf.formats.lerobot.sink:LeRobotDirSink",
        fits=_fits,
        takes=("budget", "repair"),
        told_by=f"{INFO} with a codebase_version",
        near=_near,
        refusals=(
            Refusal(
                _is_pointer,
                lambda look: f"its {INFO} is a Git LFS pointer, not the file; run `git lfs pull` in the clone",
            ),
            Refusal(
                _is_lance,
                lambda look: (
                    f"a LeRobot dataset stored as {(_info(look) or {}).get('storage_format')!r}, which is not read; "
                    "take its Parquet version, or let lerobot write one (storage_format 'parquet')"
                ),
            ),
            Refusal(
                lambda look: isinstance(_version(look), str),
                lambda look: (
                    f"a LeRobot dataset of version {_version(look)!r}, and only {', '.join(VERSIONS)} are read; "
                    f"{_CONVERTER}"
                ),
            ),
            Refusal(
                lambda look: _info(look) is not None,
                lambda look: f"its {INFO} has no codebase_version, so it is no LeRobot dataset, nor another one known",
            ),
        ),
        has_splits=True,
        extras={"lerobot": ""},
    ),
)
