"""TensorFlow, TF-Agents, Reverb and TFDS, imported without the warnings they raise about themselves."""

from __future__ import annotations

import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import reverb
    import tensorflow as tf
    import tensorflow_datasets as tfds
    from tf_agents.replay_buffers import reverb_replay_buffer, reverb_utils
    from tf_agents.replay_buffers import rlds_to_reverb as tf_agents_rlds_to_reverb
    from tf_agents.specs import tensor_spec
    from tf_agents.trajectories import trajectory

__all__ = [
    "reverb",
    "reverb_replay_buffer",
    "reverb_utils",
    "tensor_spec",
    "tf",
    "tf_agents_rlds_to_reverb",
    "tfds",
    "trajectory",
]
