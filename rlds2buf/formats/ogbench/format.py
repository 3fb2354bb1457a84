"""OGBench's files: arrays by D4RL's names without rewards, and the simulator's state beside them."""

from __future__ import annotations

import re

from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]

_ARRAYS = {"observations", "actions", "terminals"}
_OTHERS = {"rewards", "reward", "next_observations", "timeouts", "truncations", "truncated", "dones"}
_OWN = {"qpos", "qvel", "button_states", "rlds2buf"}
_NAME = re.compile(r"-v\d+(-val)?\.npz$")


def _fits(look: Look) -> bool:
    """Three arrays alone may be a log of one's own, where a terminal says something else: there the name tells."""
    names = {name.removesuffix(".npy") for name in look.archive or ()}
    told = bool(names & _OWN) or _NAME.search(look.path.name) is not None
    return names >= _ARRAYS and not names & _OTHERS and told


FORMATS = (
    Format(
        "ogbench",
        "an OGBench file",
        source="rlds2buf.formats.ogbench.source:OgbenchSource",
        sink="rlds2buf.formats.ogbench.sink:OgbenchSink",
        fits=_fits,
        takes=("budget",),
        told_by="an .npz of observations, actions, terminals, qpos and qvel, without rewards",
    ),
)
