"""robomimic's files, told by the observations of the first demonstration; raw robosuite files have none."""

from __future__ import annotations

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]


def _fits(look: Look) -> bool:
    demos = _demonstrations(look)
    return bool(demos) and look.hdf5_has(f"data/{demos[0]}/obs")


def _demonstrations(look: Look) -> list[str]:
    return [name for name in (look.hdf5 or {}).get("data", []) if name.startswith("demo")]


def _without_observations(look: Look) -> str:
    return (
        f"a robosuite or robomimic file ({len(_demonstrations(look))} or more demonstrations under data/) "
        "without observations, which is not read: raw robosuite demonstrations hold simulator states and "
        "actions, but neither observations nor rewards"
    )


FORMATS = (
    Format(
        "robomimic",
        "a robomimic file",
        source="rlds2buf.formats.robomimic.source:RobomimicHdf5Source",
        sink="rlds2buf.formats.robomimic.sink:RobomimicHdf5Sink",
        fits=_fits,
        has_splits=True,
        takes=("budget",),
        told_by="data/demo_0/obs",
        near=lambda look: 2 * (look.hdf5 is not None),
        refusals=(Refusal(lambda look: bool(_demonstrations(look)), _without_observations),),
    ),
)
