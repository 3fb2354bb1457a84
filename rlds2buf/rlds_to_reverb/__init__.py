"""TF-Agents' ``rlds_to_reverb`` as a drop-in: :mod:`rlds2buf.rlds_to_reverb.api` says what it does."""

from rlds2buf.rlds_to_reverb.api import (
    convert_rlds_to_trajectories,
    create_trajectory_data_spec,
    get_rlds_step_features,
    push_rlds_to_reverb,
)

__all__ = [
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "get_rlds_step_features",
    "push_rlds_to_reverb",
]
