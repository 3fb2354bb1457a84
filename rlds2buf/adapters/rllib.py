"""RLlib: what its ``offline_data`` reads, written from a buffer or a dataset. Neither needs Ray."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlds2buf.adapters.held import all_episodes
from rlds2buf.buffers.buffer import Buffer
from rlds2buf.pipeline.conversion import convert

__all__ = ["offline_data"]


def offline_data(data: Any, path: str | os.PathLike[str], *, overwrite: bool = False, **options: Any) -> dict[str, Any]:
    """Write RLlib's columns, and give the arguments with which its new API stack reads them.

    Source: rllib/offline/offline_prelearner.py, https://github.com/ray-project/ray, versions 2.40 and later.

        config = BCConfig().environment(...).offline_data(**offline_data(buffer, "hopper.parquet"))

    What has no place in the columns is left out, as :class:`~rlds2buf.formats.rllib.sink.RllibSink` says.

    Args:
        data: a :class:`~rlds2buf.Buffer`, or what :func:`rlds2buf.convert` takes.
        path: the file to make, whose name ends in ``.parquet``.
        overwrite: replace a Parquet file that is there.
        options: for :func:`rlds2buf.convert`, such as ``map`` or ``select``.

    Returns:
        A new dict: ``input_`` (the file's address), ``input_read_method``.

    Raises:
        ValueError: the path ends in something else, which RLlib's readers pass over.
        SinkError: the file can't be written, or observation or action is nested or text.
        MissingDependency: pyarrow is not installed.

    >>> import tempfile
    >>> import numpy as np
    >>> from rlds2buf import Episode
    >>> from rlds2buf.adapters.rllib import offline_data
    >>> ep = Episode(observation=np.zeros((5, 3)), action=np.zeros(5), reward=np.ones(5))
    >>> sorted(offline_data([ep], tempfile.mkdtemp() + "/log.parquet"))
    ['input_', 'input_read_method']
    """
    target = Path(path)
    if target.suffix != ".parquet":
        raise ValueError(f"RLlib reads files whose names end in .parquet, and this one is {target.name!r}")
    source: Any = list(all_episodes(data)) if isinstance(data, Buffer) else data
    given: Mapping[str, Any] = {"overwrite": overwrite, **options}
    convert(source, target, to="rllib", **given)
    return {"input_": [f"local://{target.resolve()}"], "input_read_method": "read_parquet"}
