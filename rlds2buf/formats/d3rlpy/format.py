"""The files of both versions of d3rlpy; the older ones have D4RL's columns and a flag or a scalar of their own."""

from __future__ import annotations

from rlds2buf.formats.d4rl.format import has_columns
from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]


def _fits(look: Look) -> bool:
    return {"columns", "num_episodes", "version"} <= set(look.hdf5 or ())


def _is_pickle(look: Look) -> bool:
    return look.head.startswith(b"\x80") and b"d3rlpy" in look.head


def _fits_v1(look: Look) -> bool:
    return has_columns(look) and bool({"episode_terminals", "discrete_action"} & set(look.hdf5 or ()))


FORMATS = (
    Format(
        "d3rlpy",
        "a dataset file of d3rlpy 2",
        source="rlds2buf.formats.d3rlpy.source_v2:D3rlpyH5Source",
        sink="rlds2buf.formats.d3rlpy.sink:D3rlpySink",
        fits=_fits,
        takes=("budget",),
        refusals=(
            Refusal(
                _is_pickle,
                lambda look: (
                    "a pickle of d3rlpy's, and pickles are never loaded; ReplayBuffer.dump writes an .h5 that is read"
                ),
            ),
        ),
    ),
    Format(
        "d3rlpy-v1",
        "a dataset file of d3rlpy 1",
        source="rlds2buf.formats.d3rlpy.source_v1:D3rlpyV1Source",
        over=("d4rl",),
        fits=_fits_v1,
        takes=("budget",),
    ),
)
