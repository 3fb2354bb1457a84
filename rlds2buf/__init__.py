"""Turn logged RL data into replay buffers you can train from: validated, fast, no TensorFlow.

Public names load on first use (PEP 562), so that ``import rlds2buf`` stays light.
"""

from __future__ import annotations

import importlib
from typing import Any

from rlds2buf.version import __version__

_HOME = {
    "Buffer": "buffers.buffer",
    "ConvertReport": "pipeline.conversion",
    "CostReplay": "buffers.vectorized.cost_replay",
    "Episode": "core.episode",
    "EpisodeBatch": "core.episode_batch",
    "FieldSpec": "core.spec",
    "Format": "io.format",
    "GoalMap": "views.goals",
    "MixedBuffers": "buffers.mixed",
    "MultiAgentBuffer": "buffers.multi_agent.buffer",
    "MultiAgentSample": "core.sample",
    "Normalizer": "buffers.normalizer",
    "OnPolicyBuffer": "buffers.vectorized.on_policy",
    "RandomCrop": "buffers.augment",
    "RandomShift": "buffers.augment",
    "Resize": "buffers.augment",
    "Sample": "core.sample",
    "SampleInfo": "core.sample",
    "Sink": "io.sink",
    "Source": "io.source",
    "StepPairs": "core.sample",
    "Statistics": "numbers.dataset_numbers",
    "StepSpec": "core.spec",
    "Trajectory": "core.sample",
    "Transition": "core.sample",
    "Windows": "core.sample",
    "convert": "pipeline.conversion",
    "errors": "errors",
    "item_spec": "views.signature",
    "load_buffer": "buffers.loading",
    "make_circular": "buffers.factories",
    "make_hindsight": "buffers.factories",
    "make_hindsight_prioritized": "buffers.factories",
    "make_prioritized": "buffers.factories",
    "make_reservoir": "buffers.factories",
    "make_cost_replay": "buffers.vectorized.cost_replay",
    "make_multi_agent": "buffers.multi_agent.buffer",
    "make_on_policy": "buffers.vectorized.on_policy",
    "normalize": "numbers.normalizing",
    "open_mixture": "pipeline.opening",
    "open_source": "pipeline.opening",
    "returns": "returns",
    "push": "reverb.push",
    "serve": "reverb.serve",
    "write_checkpoint": "reverb.push",
    "PushReport": "reverb.push",
    "rlds_to_reverb": "rlds_to_reverb",
    "sample_min_n_steps": "buffers.learner",
    "spec_of": "core.spec",
    "statistics": "summaries.statistics_of",
    "step_pairs": "views.pairs",
    "transitions": "views.transitions",
    "unnormalize": "numbers.normalizing",
    "update_priorities_from_learner": "buffers.learner",
    "validate": "pipeline.validation",
    "windows": "views.windows",
}
_ERRORS = (
    "BoundaryError CountsDisagree EmptyEpisode EpisodeError FilteredOut InvalidPriority LimitExceeded "
    "MissingDependency NotEnoughItems ReplayError Rlds2bufError ServerUnavailable SignatureMismatch SinkError "
    "SnapshotCorrupt SnapshotError SnapshotExists SnapshotTooNew SourceError SourceFormatError SourceNotFound "
    "SpecMismatch TooLarge UnknownKey WriteTimeout"
).split()
_HOME.update(dict.fromkeys(_ERRORS, "errors"))

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'rlds2buf' has no attribute {name!r}")
    module = importlib.import_module(f"rlds2buf.{home}")
    # errors, returns and rlds_to_reverb are modules themselves.
    value = getattr(module, name, module)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
