"""From a dataset to a Reverb table, a TF-Agents replay buffer, and the spec of its trajectories.

The one module of the push that needs dm-reverb and TensorFlow: ``pip install 'rlds2buf[server]'``,
and TF-Agents for :func:`trajectory_spec` and :func:`replay_buffer`: ``pip install 'rlds2buf[tf-agents]'``.
"""

from __future__ import annotations

import collections
import contextlib
import importlib
import warnings
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.spec import FieldSpec
from rlds2buf.errors import MissingDependency
from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.formats.reverb.patterns.trajectories import TrajectoryPattern
from rlds2buf.formats.reverb.table_spec import TableSpec
from rlds2buf.io.source import Source
from rlds2buf.pipeline.opening import open_source
from rlds2buf.reverb.push import push

__all__ = ["count_items", "load", "make_table", "replay_buffer", "trajectory_spec"]


def make_table(source: Any, table: TableSpec | str = "replay", pattern: Pattern | None = None) -> Any:
    """A ``reverb.Table`` shaped by a dataset: its signature, and room for every item.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: its settings, or just its name; a `max_size` of None makes room for the whole dataset.
        pattern: what items it will hold; TF-Agents' trajectories unless told otherwise.

    Raises:
        MissingDependency: dm-reverb is not installed.
        SourceError: the source can't be read.
        ValueError: the data lack a field that the items need.
    """
    settings = TableSpec(table) if isinstance(table, str) else table
    pattern = TrajectoryPattern() if pattern is None else pattern
    reverb = load("reverb", "server")
    with _opened(source) as opened:
        signature = _tensor_specs(pattern.table_signature(opened.spec), pattern.type_name)
        max_size = max(1, count_items(opened, pattern)) if settings.max_size is None else settings.max_size
    samples_per_insert, min_diff, max_diff, min_size = settings.limiter
    return reverb.Table(
        name=settings.name,
        sampler=_selector(reverb, settings.sampler, settings),
        remover=_selector(reverb, settings.remover, settings),
        max_size=max_size,
        max_times_sampled=settings.max_times_sampled,
        rate_limiter=reverb.rate_limiters.RateLimiter(samples_per_insert, min_size, min_diff, max_diff),
        signature=signature,
    )


def trajectory_spec(source: Any, *, policy_info: str | None = None) -> Any:
    """TF-Agents' ``Trajectory`` of tensor specs of one frame: what its replay buffers and agents take.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        policy_info: the extra step field that is to be the ``policy_info``.

    Raises:
        MissingDependency: TF-Agents is not installed.
        SourceError: the source can't be read.
        ValueError: the data lack a field.
    """
    trajectory = load("tf_agents.trajectories.trajectory", "tf-agents")
    pattern = TrajectoryPattern(policy_info=policy_info)
    with _opened(source) as opened:
        frames = _tensor_specs(pattern.table_signature(opened.spec), pattern.type_name)
    tf = load("tensorflow", "server")
    return trajectory.Trajectory(*tf.nest.map_structure(_without_steps, tuple(frames)))


def replay_buffer(
    source: Any,
    table: TableSpec | str = "replay",
    *,
    sequence_length: int = 2,
    stride: int = 1,
    server_address: str | None = None,
    **options: Any,
) -> Any:
    """A TF-Agents ``ReverbReplayBuffer`` that holds the dataset.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: the table's settings, or just its name.
        sequence_length, stride: of the trajectories.
        server_address: ``host:port`` of a server that has the table; None starts one in this process
            (``buffer.local_server``; stop it when done).
        options: for :func:`rlds2buf.push`, which fills the table.

    Raises:
        MissingDependency: TF-Agents is not installed.
        Further, what :func:`rlds2buf.push` raises.
    """
    buffers = load("tf_agents.replay_buffers.reverb_replay_buffer", "tf-agents")
    settings = TableSpec(table) if isinstance(table, str) else table
    pattern = TrajectoryPattern(sequence_length, stride)
    with _opened(source) as opened:
        spec = trajectory_spec(opened, policy_info=options.get("policy_info"))
        server = None
        address = server_address
        if address is None:
            reverb = load("reverb", "server")
            server = reverb.Server([make_table(opened, settings, pattern)])
            address = f"localhost:{server.port}"
        try:
            push(opened, address, settings.name, sequence_length=sequence_length, stride=stride, **options)
            where = {"server_address": address} if server is None else {"local_server": server}
            return buffers.ReverbReplayBuffer(spec, table_name=settings.name, sequence_length=sequence_length, **where)
        except BaseException:
            if server is not None:
                server.stop()
            raise


def count_items(source: Source, pattern: Pattern) -> int:
    """How many items a dataset becomes; reads it through where its counts don't tell.

    Raises:
        SourceError: the source can't be read.
    """
    if source.num_steps is not None and source.num_episodes is not None:
        known = pattern.count(source.num_steps, source.num_episodes)
        if known is not None:
            return known
    pattern.reset()
    total = sum(len(pattern.lay(batch).numbers) for batch in source.batches())
    pattern.reset()
    return total


def _opened(source: Any) -> contextlib.AbstractContextManager[Source]:
    return contextlib.nullcontext(source) if isinstance(source, Source) else open_source(source)


def _selector(reverb: Any, kind: str, settings: TableSpec) -> Any:
    name = "".join(part.capitalize() for part in kind.split("_"))
    made = getattr(reverb.selectors, name)
    return made(settings.priority_exponent) if kind == "prioritized" else made()


def _tensor_specs(signature: Any, type_name: str) -> Any:
    """TensorFlow's specs for ours, named as TF-Agents names them."""
    tf = load("tensorflow", "server")
    bounded = load("tensorflow.python.framework.tensor_spec", "server").BoundedTensorSpec
    names = {"step_type": "step_type", "next_step_type": "step_type", "discount": "discount"}

    def convert(field: FieldSpec, name: str | None) -> Any:
        dtype = tf.string if field.dtype == np.dtype(object) else tf.as_dtype(field.dtype)
        if name == "discount" and field.low is not None:
            return bounded(field.shape, dtype, field.low, field.high, name=name)
        return tf.TensorSpec(field.shape, dtype, name=name)

    kind = collections.namedtuple(type_name, signature._fields)  # type: ignore[misc]  # a table's own type name
    named = names if type_name == "Trajectory" else {}
    return kind(
        *(
            nest.map_structure(lambda field, key=key: convert(field, named.get(key)), part)
            for key, part in zip(signature._fields, signature, strict=True)
        )
    )


def _without_steps(spec: Any) -> Any:
    """A tensor spec without its leading axis."""
    shape = spec.shape[1:]
    if hasattr(spec, "minimum"):
        return type(spec)(shape, spec.dtype, spec.minimum, spec.maximum, name=spec.name)
    return type(spec)(shape, spec.dtype, name=spec.name)


def load(module: str, extra: str) -> Any:
    """Import a module of an optional package, without the warnings it has about itself.

    Raises:
        MissingDependency: it is not installed; the message names our `extra` that brings it.
    """
    try:
        with warnings.catch_warnings():  # these packages warn about themselves when they are loaded
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as cause:
        name = module.partition(".")[0]
        raise MissingDependency(
            f"this needs {name} (Linux, Python 3.10 or 3.11): pip install 'rlds2buf[{extra}]'", name=name
        ) from cause
