"""Zarr groups as Diffusion Policy and UMI have them, told by `meta/episode_ends`."""

from __future__ import annotations

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]

_METADATA = (".zarray", "zarr.json")
_GROUPS = (".zgroup", ".zmetadata", "zarr.json")


def _fits(look: Look) -> bool:
    if look.archive is not None:
        return any(f"meta/episode_ends/{name}" in look.archive for name in _METADATA)
    ends = look.inside("meta", "episode_ends")
    return {"data", "meta"} <= set(look.names) and any(ends.inside(name).exists for name in _METADATA)


def _is_other_group(look: Look) -> bool:
    names = look.archive if look.archive is not None else look.names
    return any(name in names for name in _GROUPS)


def _folder_inside(look: Look) -> str | None:
    """The folder of an archive in which the group lies."""
    ends = [f"/meta/episode_ends/{name}" for name in _METADATA]
    return next((name[: -len(end)] for name in look.archive or () for end in ends if name.endswith(end)), None)


FORMATS = (
    Format(
        "zarr",
        "a Diffusion Policy Zarr group",
        source="rlds2buf.formats.zarr.source:ZarrSource",
        sink="rlds2buf.formats.zarr.sink:ZarrSink",
        fits=_fits,
        takes=("budget",),
        suffixes=(".zarr", ".zarr.zip"),
        target_suffixes=(".zarr", ".zarr.zip"),
        told_by="data/* and meta/episode_ends in a Zarr group",
        near=lambda look: 3 * (_is_other_group(look) or look.has_names(".zarr", ".zarr.zip")),
        refusals=(
            Refusal(
                lambda look: _folder_inside(look) is not None,
                lambda look: (
                    f"an archive with a Zarr group in its folder {_folder_inside(look)}; unpack it, "
                    "and name that folder"
                ),
            ),
            Refusal(
                _is_other_group,
                lambda look: (
                    "a Zarr group without meta/episode_ends, so nothing tells where episodes end; "
                    "Diffusion Policy's have data/* and meta/episode_ends"
                ),
            ),
        ),
        extras={"zarr": ""},
    ),
)
