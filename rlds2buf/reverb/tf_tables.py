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
from rlds2buf.formats.reverb.item_count import count_items
from rlds2buf.formats.reverb.patterns.base import Pattern
from rlds2buf.formats.reverb.patterns.make import take_pattern
from rlds2buf.formats.reverb.patterns.trajectories import TrajectoryPattern
from rlds2buf.formats.reverb.table_spec import TableSpec, take_table
from rlds2buf.io.source import Source
from rlds2buf.pipeline.opening import open_source
from rlds2buf.reverb.push import push

__all__ = ["built", "count_items", "load", "make_table", "replay_buffer", "trajectory_spec"]


def make_table(
    source: Any, table: TableSpec | str = "replay", pattern: Pattern | str = "trajectory", **options: Any
) -> Any:
    """A ``reverb.Table`` shaped by a dataset: its signature, and room for every item and as many more.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: its settings, or just its name; a `max_size` of None makes room for the whole dataset and more
            (:meth:`~rlds2buf.formats.reverb.table_spec.TableSpec.size_for`).
        pattern: what items it will hold: ``"trajectory"``, ``"transition"``, ``"episode"``, or a Pattern.
        options: of the table, where `table` is a name (``sampler``, ``remover``, ``samples_per_insert``, ...), and
            of the pattern, where that is a name (``sequence_length``, ``pad``, ``n_step``, ...).

    Raises:
        MissingDependency: dm-reverb is not installed.
        SourceError: the source can't be read.
        ValueError: an unknown option, or the data lack a field that the items need.
    """
    settings, shape = take_table(table, options), take_pattern(pattern, options)
    if options:
        raise ValueError(f"{', '.join(options)}: no option of a table or of its items")
    with _opened(source) as opened:
        return built(opened, settings, shape)


def built(source: Source, settings: TableSpec, pattern: Pattern) -> Any:
    """The ``reverb.Table`` of those settings for those items of a dataset: the one place where it is made."""
    reverb = load("reverb", "server")
    signature = _tensor_specs(pattern.table_signature(source.spec), pattern.type_name)
    items = 0 if settings.max_size is not None else count_items(source, pattern)
    samples_per_insert, min_diff, max_diff, min_size = settings.limiter
    return reverb.Table(
        name=settings.name,
        sampler=_selector(reverb, settings.sampler, settings),
        remover=_selector(reverb, settings.remover, settings),
        max_size=settings.size_for(items),
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
    pattern: str = "trajectory",
    sequence_length: int = 2,
    stride: int = 1,
    server_address: str | None = None,
    **options: Any,
) -> Any:
    """A TF-Agents ``ReverbReplayBuffer`` that holds the dataset.

    Args:
        source: a Source, or whatever :func:`rlds2buf.open_source` takes.
        table: the table's settings, or just its name.
        pattern: ``"trajectory"``; or ``"episode"``: the buffer's `sequence_length` is None then, since the items
            are as long as their episodes, so sample them with ``as_dataset(sample_batch_size=None, num_steps=None)``
            or cut them with `num_steps`.
        sequence_length, stride: of the trajectories.
        server_address: ``host:port`` of a server that has the table; None starts one in this process
            (``buffer.local_server``; stop it when done).
        options: for :func:`rlds2buf.push`, which fills the table (``pad``, ``tile``, ``cross_episodes``,
            ``policy_info``, ``priority``, ...); and the table's settings (``sampler``, ``max_size``, ...), where
            `table` is a name and the server is started here.

    Raises:
        MissingDependency: TF-Agents is not installed.
        ValueError: an unknown option, or items that are no trajectories.
        Further, what :func:`rlds2buf.push` raises.
    """
    buffers = load("tf_agents.replay_buffers.reverb_replay_buffer", "tf-agents")
    how: dict[str, Any] = {"sequence_length": sequence_length, "stride": stride, **options}
    settings, shape = take_table(table, how), take_pattern(pattern, dict(how))
    if shape.type_name != "Trajectory":
        raise ValueError(f"a ReverbReplayBuffer samples steps, and pattern={pattern!r} gives items of another kind")
    if server_address is not None and len(how) < len(options) + 2:
        raise ValueError("the table of a running server has its settings already; give its name alone")
    with _opened(source) as opened, contextlib.ExitStack() as guard:
        spec = trajectory_spec(opened, policy_info=options.get("policy_info"))
        where: dict[str, Any] = {"server_address": server_address}
        address = server_address
        if address is None:
            server = load("reverb", "server").Server([built(opened, settings, shape)])
            guard.callback(server.stop)
            address, where = f"localhost:{server.port}", {"local_server": server}
            how.setdefault("allow_eviction", settings.max_size is not None)
        push(opened, address, settings.name, pattern=pattern, **how)
        steps = sequence_length if pattern == "trajectory" else None
        buffer = buffers.ReverbReplayBuffer(spec, table_name=settings.name, sequence_length=steps, **where)
        guard.pop_all()
        return buffer


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
