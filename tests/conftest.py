"""What is collected where: tests/full needs TensorFlow and Reverb, tests/minari Minari, tests/torch PyTorch,
tests/jax JAX."""

from __future__ import annotations

import importlib.util
import os

from hypothesis import settings

# A busy machine is no failure.  The examples are the same in every run, so that a run which fails has found a
# change; RLDS2BUF_HYPOTHESIS=random looks for new ones.
settings.register_profile("same", deadline=None, derandomize=True)
settings.register_profile("random", deadline=None)
settings.load_profile(os.environ.get("RLDS2BUF_HYPOTHESIS", "same"))

collect_ignore_glob = []
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("full/*")
if importlib.util.find_spec("minari") is None:
    collect_ignore_glob.append("minari/*")
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob.append("torch/*")
if importlib.util.find_spec("jax") is None:
    collect_ignore_glob.append("jax/*")
