"""TF-Agents' ``tf_agents.replay_buffers.rlds_to_reverb``, as a drop-in: change the import, keep the code.

Same four names, arguments, results, exception types and messages.  Faster, because the graph
handles batches of rows; and right where TF-Agents' util is not:

* every leaf of a nested dict or tuple observation or action is split into current and next step;
* a first step that is followed by a first step without having ended its episode raises, as does a
  dataset that starts in the middle of an episode;
* errors about steps name episode and step, both counted from 0;
* discounts of any numeric dtype are cast to float32, which the data spec promises;
* a table whose signature includes policy_info is accepted when `policy_info_fn` fits it, and one made of an agent's
  ``collect_data_spec``, whose actions are bounded;
* ``push_rlds_to_reverb`` makes the items of TF-Agents' own observers itself, many at a time;
* ``terminal_discount="transition"`` keeps learners from bootstrapping through terminal states.

Needs TensorFlow and TF-Agents: ``pip install "rlds2buf[tf-agents]"``.
"""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias

from rlds2buf.core import nest
from rlds2buf.core.fields import STEP_FIELDS
from rlds2buf.errors import MissingDependency, SignatureMismatch

if TYPE_CHECKING:
    import tensorflow as tf
    from tf_agents.trajectories import trajectory

    from rlds2buf.core.episode import Episode
    from rlds2buf.core.spec import FieldSpec
    from rlds2buf.io.source import Source

    RldsData: TypeAlias = tf.data.Dataset | Source | str | os.PathLike[str] | Iterable[Episode]

__all__ = [
    "convert_rlds_to_trajectories",
    "create_trajectory_data_spec",
    "get_rlds_step_features",
    "push_rlds_to_reverb",
]

PolicyInfoFn = Callable[[dict[str, Any], dict[str, Any]], Any]

_log = logging.getLogger(__name__)


def get_rlds_step_features() -> list[str]:
    """The seven fields that every RLDS step needs.

    >>> get_rlds_step_features()
    ['observation', 'action', 'reward', 'discount', 'is_first', 'is_last', 'is_terminal']
    """
    return list(STEP_FIELDS)


def create_trajectory_data_spec(rlds_data: RldsData) -> trajectory.Trajectory:
    """The spec of the trajectories that the data give, for tables and ``ReverbReplayBuffer``.

    Args:
        rlds_data: see :func:`convert_rlds_to_trajectories`.

    Returns:
        A TF-Agents Trajectory of specs without batch axis: step types int32, observation, action
        and reward as in the data, discount float32 in [0, 1], policy_info ``()``.

    Raises:
        ValueError: the elements have no ``steps``, or a step lacks one of the seven fields.
        MissingDependency: TensorFlow or TF-Agents is not installed.

    ::

        signature = tensor_spec.add_outer_dim(create_trajectory_data_spec(data))
        table = reverb.Table("replay", ..., signature=signature)
    """
    _need_tf_agents()
    from tf_agents.trajectories import policy_step, time_step, trajectory

    step_spec = _checked_step_spec(_as_dataset(rlds_data))
    time_step_spec = time_step.time_step_spec(step_spec["observation"], step_spec["reward"])
    action_spec = policy_step.PolicyStep(step_spec["action"])
    return trajectory.from_transition(time_step_spec, action_spec, time_step_spec)


def convert_rlds_to_trajectories(
    rlds_data: RldsData,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    terminal_discount: str = "boundary",
    check_finite: bool = False,
) -> tf.data.Dataset:
    """RLDS episodes as a dataset of TF-Agents trajectories, one per step, episode borders included.

    The steps of all episodes form one stream; the trajectory of step t holds its observation,
    action, reward, discount and step type, and the step type of step t+1.  After the last step
    comes an artificial first one.  A one-step episode gives one trajectory of two last step types.

    Args:
        rlds_data: a ``tf.data.Dataset`` of RLDS episodes: dicts whose ``"steps"`` are a dataset of
            step dicts.  Or what :func:`rlds2buf.open_source` takes, or a source that it gave.
        policy_info_fn: called (in the graph) with the step dicts t and t+1, extra fields included;
            its result becomes policy_info.  It may call Python (``tf.numpy_function``, ``tf.py_function``);
            its results have the same shapes for all steps.
        terminal_discount: where an episode that terminates has its discount 0.  ``"boundary"``:
            on the terminal step's own trajectory, as TF-Agents does; learners mask that one, so
            unless the data hold a 0 one step earlier they bootstrap through the terminal state,
            and a warning is logged.  ``"transition"``: on the trajectory whose *next* step is
            terminal, which is where learners look.
        check_finite: NaN and infinity in observations, and in actions, rewards and discounts of
            steps that are not last, are errors too.

    Returns:
        A ``tf.data.Dataset`` of TF-Agents Trajectory, in the order of the data.  Its ``batch``
        method is fast: rows are never taken apart for it.

    Raises:
        ValueError: the elements have no ``steps``, a step lacks one of the seven fields, or an
            argument is not one of those above.
        MissingDependency: TensorFlow or TF-Agents is not installed.

    Iterating the result raises ``tf.errors.InvalidArgumentError`` at the first step that breaks the
    grammar (first, any number of mid, last; terminal on the last only), after the trajectories
    before it.

    ::

        data = tfds.load("d4rl_mujoco_hopper/v0-medium", split="train")
        for batch in convert_rlds_to_trajectories(data, terminal_discount="transition").batch(256):
            agent.train(batch)
    """
    from rlds2buf.rlds_to_reverb.graph import unbatched

    return unbatched(_trajectory_batches(rlds_data, policy_info_fn, terminal_discount, check_finite))


def push_rlds_to_reverb(
    rlds_data: RldsData,
    reverb_observer: Any,
    policy_info_fn: PolicyInfoFn | None = None,
    *,
    terminal_discount: str = "boundary",
    check_finite: bool = False,
) -> int:
    """Write RLDS episodes to a Reverb server through one of TF-Agents' observers.

    The observer decides which items the trajectories make.  TF-Agents' own ones make them by settings, which are
    taken from them (server, tables, sequence length, stride, padding, priority), so the same items are sent at once,
    many times as fast; they are there on return, and the observer then holds what it would hold, had it been called.
    Any other one, classes derived from theirs too, is called with tensors, once per trajectory in the order of the
    data, and as in TF-Agents nothing is flushed at the end.

    TF-Agents' observers too are called step by step, with numpy values, where only that gives the same: to the end
    of an episode that they are in the middle of, for episodes longer than ``max_sequence_length``, from where a
    table's rate limiter would make a push wait for samples, for fields whose shape is not known, and where the
    observer's client, its writer or a setting is not of the kind that TF-Agents makes.

    Args:
        rlds_data, policy_info_fn, terminal_discount, check_finite: see
            :func:`convert_rlds_to_trajectories`.
        reverb_observer: ``ReverbAddTrajectoryObserver``, ``ReverbAddEpisodeObserver``,
            ``ReverbTrajectorySequenceObserver``, or whatever has their ``__call__`` and
            ``get_table_signature``.

    Returns:
        How many trajectories the observer was called with; items there may be fewer.

    Raises:
        SignatureMismatch: (a ValueError) the first table's signature is neither the data spec with
            an outer axis, nor that with policy_info as `policy_info_fn` returns it, in structure, dtypes and
            shapes; the fields that differ are logged.
        ValueError: as in :func:`convert_rlds_to_trajectories`, or from the observer.
        WriteTimeout, ServerUnavailable, SinkError: the server does not take the items; how many it has is said.
        tf.errors.InvalidArgumentError: a step breaks the grammar; the items before it are written.
        MissingDependency: TensorFlow or TF-Agents is not installed.

    ::

        observer = reverb_utils.ReverbAddTrajectoryObserver(client, "replay", sequence_length=2)
        push_rlds_to_reverb(tfds.load("d4rl_mujoco_hopper/v0-medium", split="train"), observer)
    """
    _need_tf_agents()
    from rlds2buf.rlds_to_reverb.observers import bulk_push, is_stock

    data = _as_dataset(rlds_data)
    spec = create_trajectory_data_spec(data)
    batches = _trajectory_batches(data, policy_info_fn, terminal_discount, check_finite)
    trajectories = batches.unbatch()
    _check_signature(reverb_observer.get_table_signature(), spec, trajectories.element_spec.policy_info)
    in_bulk = bulk_push(reverb_observer, batches.element_spec)
    steps = 0
    if in_bulk is not None:
        steps = in_bulk.push(batches)
    else:
        for frame in _numpy_frames(batches) if is_stock(reverb_observer) else trajectories:
            reverb_observer(frame)
            steps += 1
    _log.info("Successfully wrote %d steps to Reverb.", steps)
    return steps


def _trajectory_batches(
    rlds_data: RldsData, policy_info_fn: PolicyInfoFn | None, terminal_discount: str, check_finite: bool
) -> tf.data.Dataset:
    """Trajectories ``[n, ...]`` of a dataset's own choice of n; all rows before a fault come before its error."""
    _need_tf_agents()
    from rlds2buf.rlds_to_reverb.graph import frame_batches, policy_infos, step_batches

    if terminal_discount not in ("boundary", "transition"):
        raise ValueError(f"terminal_discount must be 'boundary' or 'transition', got {terminal_discount!r}")
    data = _as_dataset(rlds_data)
    step_spec = _checked_step_spec(data)
    batches = frame_batches(
        step_batches(data, step_spec, all_fields=policy_info_fn is not None),
        terminal_discount=terminal_discount,
        check_finite=check_finite,
        with_pairs=policy_info_fn is not None,
        warn=_terminal_discount_warning(),
    )
    return batches if policy_info_fn is None else policy_infos(batches, policy_info_fn)


def _numpy_frames(batches: tf.data.Dataset) -> Iterator[Any]:
    from rlds2buf.rlds_to_reverb.observers import packer

    pack = packer(batches.element_spec)
    for batch in batches.as_numpy_iterator():
        for row in zip(*(column for _, column in nest.flatten(batch)), strict=True):
            yield pack(iter(row))


def _checked_step_spec(data: tf.data.Dataset) -> dict[str, Any]:
    """The spec of one step; the two messages are TF-Agents' own, which callers may compare."""
    import tensorflow as tf

    episode_spec = data.element_spec
    steps = episode_spec.get("steps") if isinstance(episode_spec, dict) else None
    if isinstance(steps, tf.data.DatasetSpec):
        step_spec = steps.element_spec
    elif isinstance(steps, dict):
        step_spec = tf.nest.map_structure(lambda column: tf.TensorSpec(column.shape[1:], column.dtype), steps)
    else:
        raise ValueError("No dataset representing RLDS steps exist in the data.")
    found = list(step_spec) if isinstance(step_spec, dict) else []
    if not set(STEP_FIELDS) <= set(found):
        expected = get_rlds_step_features()
        raise ValueError(f"Invalid RLDS step spec. Features expected are {expected}, but found {found}")
    return dict(step_spec)


def _check_signature(signature: Any, data_spec: trajectory.Trajectory, policy_info: Any) -> None:
    """Raise unless the table holds such data, without policy_info (as in TF-Agents) or with it."""
    from tf_agents.specs import tensor_spec

    expected = tensor_spec.add_outer_dim(data_spec)
    if signature == expected:
        return
    batched = tensor_spec.add_outer_dim(policy_info)
    differences = _differences(signature, expected._replace(policy_info=batched))
    if not differences:  # names and bounds say nothing about what is stored
        return
    error = SignatureMismatch("Replay buffer table signature spec should match RLDS data spec.")
    for line in differences:
        _log.error("%s", line)
        if hasattr(error, "add_note"):
            error.add_note(line)
    raise error


def _differences(signature: Any, expected: Any) -> list[str]:
    """What differs in structure, dtype or shape, one line a field; names and bounds are not compared."""
    # A signature comes from the server as a named tuple of its own class.
    if getattr(signature, "_fields", None) != expected._fields:
        return [f"the table's signature is {signature!r}, not a Trajectory"]
    table = {path: leaf for name in expected._fields for path, leaf in nest.flatten(getattr(signature, name), (name,))}
    data = {path: leaf for name in expected._fields for path, leaf in nest.flatten(getattr(expected, name), (name,))}
    lines = []
    for path in sorted({*table, *data}, key=nest.path_name):
        have, want = (_spec_text(side.get(path)) for side in (table, data))
        if have != want and not _may_fit(path, table.get(path), data.get(path)):
            lines.append(f"{nest.path_name(path)}: the table has {have}, the data {want}")
    return lines


def _may_fit(path: nest.Path, table: Any, data: Any) -> bool:
    """A function that calls Python doesn't say its results' shapes; what the observer gets then shows them."""
    if path[0] != "policy_info" or table is None or data is None or table.dtype != data.dtype:
        return False
    return not data.shape[1:].is_fully_defined() and bool(table.shape.is_compatible_with(data.shape))


def _spec_text(spec: Any) -> str:
    if spec is None:
        return "nothing"
    return f"{spec.dtype.name}{'[...]' if spec.shape.rank is None else spec.shape.as_list()}"


def _terminal_discount_warning() -> Callable[[int, int, float], None]:
    told = False

    def warn(episode: int, step: int, discount: float) -> None:
        nonlocal told
        if not told:
            told = True
            _log.warning(
                "episode %d, step %d: the discount is %g, though the next step is terminal, so learners will "
                'bootstrap through the terminal state; terminal_discount="transition" makes it 0.',
                episode,
                step,
                discount,
            )

    return warn


def _as_dataset(data: RldsData) -> tf.data.Dataset:
    """The data as a dataset of RLDS episodes; a source's come as columns."""
    import tensorflow as tf

    if isinstance(data, tf.data.Dataset):
        return data
    from rlds2buf.pipeline.opening import open_source

    source = open_source(data)
    step = source.spec
    fields = {name: getattr(step, name) for name in STEP_FIELDS} | step.extras
    fields = {name: spec for name, spec in fields.items() if spec is not None}

    def spec_of_column(field: FieldSpec) -> tf.TensorSpec:
        return tf.TensorSpec([None, *field.shape], tf.string if field.is_string else tf.as_dtype(field.dtype))

    def columns() -> Iterator[dict[str, Any]]:
        for episode in source:
            steps = {name: getattr(episode, name) if name in STEP_FIELDS else episode.extras[name] for name in fields}
            yield {"steps": steps}

    signature = {"steps": nest.map_structure(spec_of_column, fields)}
    return tf.data.Dataset.from_generator(columns, output_signature=signature)


def _need_tf_agents() -> None:
    try:
        importlib.import_module("tf_agents.trajectories")
    except ImportError as cause:
        raise MissingDependency(
            f"TF-Agents trajectories need {cause.name}: pip install 'rlds2buf[tf-agents]'"
        ) from cause
