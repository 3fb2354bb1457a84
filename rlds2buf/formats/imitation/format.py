"""Rollouts of experts: imitation's .npz files, and those of Stable-Baselines 2, told by the names of their arrays."""

from __future__ import annotations

from rlds2buf.io.format import Format, Refusal
from rlds2buf.io.look import Look

__all__ = ["FORMATS"]


def _has(look: Look, *names: str) -> bool:
    return look.archive is not None and {f"{name}.npy" for name in names} <= look.archive


FORMATS = (
    Format(
        "imitation",
        "an imitation rollout file",
        source="rlds2buf.formats.imitation.source:ImitationSource",
        fits=lambda look: _has(look, "obs", "acts", "indices", "terminal"),
        takes=("budget",),
        told_by="an .npz of obs, acts, indices and terminal",
    ),
    Format(
        "sb2",
        "a Stable-Baselines 2 expert file",
        source="rlds2buf.formats.imitation.sb2_source:Sb2Source",
        fits=lambda look: _has(look, "obs", "actions", "rewards", "episode_returns", "episode_starts"),
        takes=("budget",),
        told_by="an .npz of obs, actions, rewards, episode_returns and episode_starts",
        refusals=(
            Refusal(
                lambda look: look.head.startswith(b"\x80") and b"stable_baselines3" in look.head,
                lambda look: (
                    "a pickle of Stable-Baselines 3's (save_replay_buffer), and pickles are never loaded; load it "
                    "there, and give convert() a dict of its arrays: observations, next_observations, actions, "
                    "rewards, terminals and timeouts"
                ),
            ),
        ),
    ),
)
