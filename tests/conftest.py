"""What is collected where: tests/full needs TensorFlow and Reverb, tests/minari Minari, tests/torch PyTorch,
tests/jax JAX."""

from __future__ import annotations

import importlib.util

from hypothesis import settings

# A busy machine is no failure; pytest-xdist and CI have time-outs of their own.
settings.register_profile("rlds2buf", deadline=None)
settings.load_profile("rlds2buf")

collect_ignore_glob = []
if importlib.util.find_spec("tensorflow") is None:
    collect_ignore_glob.append("full/*")
if importlib.util.find_spec("minari") is None:
    collect_ignore_glob.append("minari/*")
if importlib.util.find_spec("torch") is None:
    collect_ignore_glob.append("torch/*")
if importlib.util.find_spec("jax") is None:
    collect_ignore_glob.append("jax/*")
