"""The tf.data graph behind :mod:`rlds2buf.rlds_to_reverb`: RLDS steps in, frames out, whole batches at a time.

A *frame* is what TF-Agents calls a single-step Trajectory: row t with the step type of row t+1 of
the flattened data.  The graph holds each batch of rows back until the next one has come, because
the last row's successor is there.  Everything about a frame that depends on flags is looked up in
tables over all pairs of flag patterns, so data columns pass through uncopied.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.fields import DATA_FIELDS, STEP_FIELDS
from rlds2buf.rlds_to_reverb.flag_pairs import (
    EDGE_KIND,
    FAULTS,
    FIRST_BIT,
    FIRST_FIRST,
    KINDS,
    LAST_BIT,
    MID_FIRST,
    STARTS_INSIDE,
    TERMINAL_BIT,
    pair_tables,
)

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["frame_batches", "policy_infos", "step_batches", "unbatched"]

MAX_ROWS = 1024
"""Most rows in one batch; past that nothing is gained."""

BATCH_BYTES = 4 << 20
"""Most bytes in one batch of large rows (images), so that the few batches in flight stay small."""


class _Rows(NamedTuple):
    """A batch of n rows: step fields ``[n, ...]``, kinds ``[n] int32``, and where each row was, ``[n] int64``."""

    fields: dict[str, Any]
    kind: Any
    episode: Any
    step: Any


class _State(NamedTuple):
    """What is carried from one batch to the next: the batch held back, and scalars."""

    held: _Rows
    error: Any
    warned: Any


def step_batches(rlds_data: tf.data.Dataset, step_spec: dict[str, Any], *, all_fields: bool) -> tf.data.Dataset:
    """The steps of all episodes in order, as batches of rows numbered by episode and step.

    Args:
        rlds_data: a dataset of RLDS episodes, whose ``"steps"`` are a dataset of step dicts, or a
            dict of columns ``[N, ...]``.
        step_spec: the specs of one step.
        all_fields: keep all step fields; else only the four of data.
    """
    import tensorflow as tf

    kept = list(step_spec) if all_fields else list(DATA_FIELDS)
    size = _rows_per_batch({name: step_spec[name] for name in kept})
    as_columns = not isinstance(rlds_data.element_spec["steps"], tf.data.DatasetSpec)
    # What can't be stacked (ragged or of varying length) has to go before the rows are stacked.
    extras = [spec for name in step_spec if name not in STEP_FIELDS for spec in tf.nest.flatten(step_spec[name])]
    stackable = all(isinstance(spec, tf.TensorSpec) and spec.shape.is_fully_defined() for spec in extras)
    prune_first = not (all_fields or as_columns or stackable)

    @tf.autograph.experimental.do_not_convert
    def of_episode(number: tf.Tensor, episode: dict[str, Any]) -> tf.data.Dataset:
        steps = episode["steps"]
        if prune_first:
            steps = steps.map(prune)
        steps = tf.data.Dataset.from_tensors(steps) if as_columns else steps.batch(size)
        # No map in here: calling up its function for every episode costs as much as 500 rows.
        first_steps = tf.data.Dataset.range(0, tf.int64.max, size)
        return tf.data.Dataset.zip((steps, tf.data.Dataset.from_tensors(number).repeat(), first_steps))

    @tf.autograph.experimental.do_not_convert
    def prune(step: dict[str, Any]) -> dict[str, Any]:
        return {name: step[name] for name in STEP_FIELDS}

    @tf.autograph.experimental.do_not_convert
    def place(columns: dict[str, Any], number: tf.Tensor, first_step: tf.Tensor) -> _Rows:
        flags = (("is_first", FIRST_BIT), ("is_last", LAST_BIT), ("is_terminal", TERMINAL_BIT))
        kind = tf.add_n([bit * tf.cast(_flag(columns[name]), tf.int32) for name, bit in flags])
        count = tf.size(kind, tf.int64)
        fields = {name: columns[name] for name in kept}
        fields["discount"] = tf.cast(fields["discount"], tf.float32)
        return _Rows(fields, kind, tf.fill([count], number), first_step + tf.range(count))

    # Short episodes come as short batches; rebatching joins them, and passes full ones through.
    return rlds_data.enumerate().flat_map(of_episode).map(place).rebatch(size)


def frame_batches(
    batches: tf.data.Dataset,
    *,
    terminal_discount: str,
    check_finite: bool,
    with_pairs: bool,
    warn: Callable[[int, int, float], None],
) -> tf.data.Dataset:
    """Turn batches of rows into batches of frames; rows and order are kept.

    Args:
        batches: from :func:`step_batches`.
        terminal_discount, check_finite: as in ``convert_rlds_to_trajectories``.
        with_pairs: yield ``(frames, current, following)`` with the step dicts of rows t and t+1.
        warn: called with episode, step and discount of a frame through which a learner would
            bootstrap into a terminal state; once per pass over the data.

    Returns:
        A dataset of TF-Agents Trajectory ``[n, ...]`` (or of triples), policy_info empty.  Where a
        step breaks the grammar, the frames before it come first, then the
        ``tf.errors.InvalidArgumentError`` that names it.
    """
    import tensorflow as tf
    from tf_agents.trajectories import trajectory

    tables = pair_tables()
    names = _float_leaves(batches.element_spec.fields) if check_finite else []
    messages = [*FAULTS, *(f"{nest.path_name(name)} is not finite." for name in names)]
    at_boundary = terminal_discount == "boundary"
    zero_table = tables.zero_boundary if at_boundary else tables.zero_transition

    @tf.autograph.experimental.do_not_convert
    def advance(state: _State, incoming: _Rows) -> tuple[_State, Any]:
        # A fault is raised one batch late, when the frames before it have been handed out.
        with tf.control_dependencies([tf.debugging.Assert(tf.equal(state.error, ""), [state.error])]):
            held = state.held._replace(kind=tf.identity(state.held.kind))
        pair = held.kind * KINDS + _shift(held.kind, incoming.kind)
        fault = tf.gather(tables.fault, pair)
        for i, name in enumerate(names):
            fault = tf.where((fault == 0) & _not_finite(held, name), len(FAULTS) + i, fault)
        discount = held.fields["discount"]
        through = tf.zeros_like(pair, tf.bool)
        if at_boundary:
            through = tf.gather(tables.zero_transition, pair) & (_per_row(discount) != 0) & ~state.warned

        def notice() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            good = tf.reduce_min(tf.where(fault > 0, tf.range(tf.size(fault)), tf.size(fault)))
            error = _describe(messages, fault, held, incoming, tf.minimum(good, tf.size(fault) - 1))
            return good, error, state.warned | _warned(warn, through[:good], held)

        good, error, warned = tf.cond(
            tf.reduce_any((fault > 0) | through), notice, lambda: (tf.size(fault), "", state.warned)
        )
        frames = trajectory.Trajectory(
            step_type=tf.gather(tables.step_type, pair),
            observation=held.fields["observation"],
            action=held.fields["action"],
            policy_info=(),
            next_step_type=tf.gather(tables.next_step_type, pair),
            reward=held.fields["reward"],
            discount=tf.where(_like(tf.gather(zero_table, pair), discount), tf.constant(0, tf.float32), discount),
        )
        out: Any = frames
        if with_pairs:
            out = (frames, held.fields, tf.nest.map_structure(_shift, held.fields, incoming.fields))
        return _State(incoming, error, warned), tf.nest.map_structure(lambda column: column[:good], out)

    # The artificial row behind the data gives the last row its successor, as in TF-Agents.  The
    # second one pushes that batch out.  The one before the data tells whether they start well.
    edge = _edge(batches.element_spec)
    start = _State(edge, tf.constant(""), tf.constant(False))
    ended = batches.concatenate(tf.data.Dataset.from_tensors(edge).repeat(2))
    return ended.scan(start, advance).prefetch(2)


def policy_infos(batches: tf.data.Dataset, policy_info_fn: Callable[[Any, Any], Any]) -> tf.data.Dataset:
    """Give frames their policy_info, from :func:`frame_batches` with pairs; shapes have to agree between steps."""
    import tensorflow as tf

    def rehearse(frame: Any, current: dict[str, Any], following: dict[str, Any]) -> Any:
        return frame.step_type, policy_info_fn(current, following)

    # This one is never run, only built, to see what the function returns.
    spec = batches.unbatch().map(rehearse).element_spec[1]
    leaves = tf.nest.flatten(spec)

    def of_step(pair: tuple[dict[str, Any], dict[str, Any]]) -> list[Any]:
        return [tf.convert_to_tensor(leaf) for _, leaf in nest.flatten(policy_info_fn(*pair))]

    # The function is the user's and made for one step, so it alone runs step by step, one after the
    # other.  Not shielded from AutoGraph, which would be passed on: it may have Python's if and while.
    def with_policy_info(frames: Any, current: dict[str, Any], following: dict[str, Any]) -> Any:
        columns = tf.map_fn(of_step, (current, following), fn_output_signature=leaves, parallel_iterations=1)
        return frames._replace(policy_info=tf.nest.pack_sequence_as(spec, columns))

    def without(frames: Any, current: dict[str, Any], following: dict[str, Any]) -> Any:
        return frames._replace(policy_info=spec)

    # Batches may be empty, and where the function doesn't tell its results' shapes no result can't be stacked.
    filled = batches.filter(lambda frames, current, following: tf.size(frames.step_type) > 0)
    return filled.map(with_policy_info if leaves else without)


def unbatched(batches: tf.data.Dataset) -> tf.data.Dataset:
    """The frames one by one, as a dataset whose ``batch`` regroups the batches instead of stacking single frames."""
    import tensorflow as tf

    class Frames(tf.data.Dataset):
        def __init__(self) -> None:
            self._rows = batches.unbatch()
            super().__init__(self._rows._variant_tensor)

        @property
        def element_spec(self) -> Any:
            return self._rows.element_spec

        def _inputs(self) -> list[tf.data.Dataset]:
            return [self._rows]

        def batch(
            self,
            batch_size: Any,
            drop_remainder: bool = False,
            num_parallel_calls: Any = None,
            deterministic: Any = None,
            name: str | None = None,
        ) -> tf.data.Dataset:
            # Nothing is left to do in parallel.
            del num_parallel_calls, deterministic
            return batches.rebatch(batch_size, drop_remainder=drop_remainder, name=name)

    return Frames()


def _describe(messages: list[str], fault: tf.Tensor, held: _Rows, incoming: _Rows, row: tf.Tensor) -> tf.Tensor:
    """The message of the fault at `row`, with episode and step; of a pair that doesn't fit, both; "" if it is none."""
    import tensorflow as tf

    def place(episode: tf.Tensor, step: tf.Tensor) -> tf.Tensor:
        return tf.strings.join(["episode ", tf.strings.as_string(episode), ", step ", tf.strings.as_string(step)])

    code = fault[row]
    here = place(held.episode[row], held.step[row])
    then_episode = _shift(held.episode, incoming.episode)[row]
    then = place(then_episode, _shift(held.step, incoming.step)[row])
    then_or_end = tf.where(then_episode < 0, "the end of the data", then)
    pair = tf.strings.join([here, ", followed by ", then_or_end])
    where = tf.where(code == STARTS_INSIDE, then, tf.where((code >= MID_FIRST) & (code <= FIRST_FIRST), pair, here))
    message = tf.gather(tf.constant(messages), code)
    return tf.where(message == "", message, tf.strings.join([message, " (", where, ")"]))


def _warned(warn: Callable[[int, int, float], None], through: tf.Tensor, held: _Rows) -> tf.Tensor:
    """Call `warn` about the first row that is marked in `through`, if any; whether it was called."""
    import tensorflow as tf

    rows = tf.where(through)[:, 0]

    def call(episode: np.ndarray, step: np.ndarray, discount: np.ndarray) -> np.ndarray:
        warn(int(episode), int(step), float(discount))
        return np.array(True)

    def tell() -> tf.Tensor:
        row = rows[0]
        discount = _per_row(held.fields["discount"])[row]
        return tf.ensure_shape(tf.numpy_function(call, [held.episode[row], held.step[row], discount], tf.bool), [])

    return tf.cond(tf.size(rows) > 0, tell, lambda: False)


def _not_finite(held: _Rows, name: nest.Path) -> tf.Tensor:
    """``[n] bool``; action, reward and discount of a last row are padding and may be anything."""
    import tensorflow as tf

    column = nest.get(held.fields, name)
    bad = tf.reduce_any(~tf.math.is_finite(column), axis=list(range(1, column.shape.rank)))
    if name[0] == "observation":
        return bad
    return bad & (tf.bitwise.bitwise_and(held.kind, LAST_BIT) == 0)


def _float_leaves(spec: dict[str, Any]) -> list[nest.Path]:
    leaves = (leaf for field in DATA_FIELDS for leaf in nest.flatten(spec[field], (field,)))
    return [path for path, leaf in leaves if leaf.dtype.is_floating]


def _shift(column: tf.Tensor, incoming: tf.Tensor) -> tf.Tensor:
    """Row t+1 for every row t."""
    import tensorflow as tf

    return tf.concat([column[1:], incoming[:1]], 0)


def _flag(column: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.cast(tf.reshape(column, [-1]), tf.bool)


def _per_row(discount: tf.Tensor) -> tf.Tensor:
    """``[n]``: a discount is a scalar; of a vector the first element stands for it."""
    import tensorflow as tf

    return discount if discount.shape.rank == 1 else tf.reshape(discount, [tf.shape(discount)[0], -1])[:, 0]


def _like(mask: tf.Tensor, column: tf.Tensor) -> tf.Tensor:
    import tensorflow as tf

    return tf.reshape(mask, [-1] + [1] * (column.shape.rank - 1))


def _edge(spec: _Rows) -> _Rows:
    """One artificial row: zeros (unknown axes are 0 long), flagged first, at no place."""
    import tensorflow as tf

    def zeros(leaf: tf.TensorSpec) -> tf.Tensor:
        return tf.zeros([1, *(n or 0 for n in leaf.shape[1:])], leaf.dtype)

    fields = tf.nest.map_structure(zeros, spec.fields)
    if "is_first" in fields:
        fields["is_first"] = tf.ones_like(fields["is_first"])
    nowhere = tf.constant([-1], tf.int64)
    return _Rows(fields, tf.constant([EDGE_KIND]), nowhere, nowhere)


def _rows_per_batch(step_spec: dict[str, Any]) -> int:
    import tensorflow as tf

    leaves = tf.nest.flatten(step_spec)
    if not all(leaf.shape.is_fully_defined() for leaf in leaves):
        return 64
    row_bytes = sum(leaf.shape.num_elements() * leaf.dtype.size for leaf in leaves)
    return int(min(MAX_ROWS, max(16, BATCH_BYTES // max(1, row_bytes))))
