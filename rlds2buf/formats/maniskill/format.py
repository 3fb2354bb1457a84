"""ManiSkill's trajectory files, told by groups called traj_N with actions in them."""

from __future__ import annotations

import re

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS", "TRAJECTORY"]

TRAJECTORY = re.compile(r"traj_(\d+)")


def _fits(look: Look) -> bool:
    names = list(look.hdf5 or ())
    return bool(names) and all(map(TRAJECTORY.fullmatch, names)) and look.hdf5_has(f"{names[0]}/actions")


def _is_told(look: Look) -> bool:
    told = look.json() if look.path.suffix == ".json" else None
    return isinstance(told, dict) and {"env_info", "episodes"} <= told.keys()


FORMATS = (
    Format(
        "maniskill",
        "a ManiSkill trajectory file",
        source="rlds2buf.formats.maniskill.source:ManiSkillSource",
        fits=_fits,
        takes=("budget",),
        told_by="traj_0/actions",
        near=lambda look: 2 * any(map(TRAJECTORY.fullmatch, look.hdf5 or ())),
        refusals=(
            Refusal(
                _is_told,
                lambda look: f"what ManiSkill tells of its trajectories; name {look.path.with_suffix('.h5').name}",
            ),
        ),
    ),
)
