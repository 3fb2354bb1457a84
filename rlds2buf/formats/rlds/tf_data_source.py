"""RLDS episodes in a ``tf.data.Dataset``, as ``tfds.load`` gives them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode
from rlds2buf.core.fields import DATA_FIELDS, FLAG_FIELDS, STEP_FIELDS
from rlds2buf.core.spec import FieldSpec, StepSpec, spec_of
from rlds2buf.errors import EmptyEpisode, EpisodeError, MissingDependency, SourceFormatError
from rlds2buf.formats.rlds.leaf_reader import cut_rows
from rlds2buf.io.source import Source

__all__ = ["RldsDatasetSource"]

_STEPS = "steps"
# More rows than any episode has: its steps become one batch.
_WHOLE = 1 << 40


class RldsDatasetSource(Source):
    """A ``tf.data.Dataset`` whose elements are RLDS episodes.

    An element is a dict with ``steps``: a nested dataset of step dicts (or, as RLDS's own
    transformations may leave it, the steps batched already), and any metadata.  TensorFlow puts the
    steps of an episode into one batch, several episodes at a time; no step is touched in Python.
    Where the shape of a field varies from step to step, its column is an object array of arrays;
    bfloat16 becomes float32.

    Args:
        dataset: the dataset; it is iterated anew on every read.
        name: what messages and provenance call it.

    Raises:
        SourceFormatError: the elements are no RLDS episodes, or there is no end of them.
        MissingDependency: TensorFlow is not installed.

    With TFDS::

        source = RldsDatasetSource(tfds.load("d4rl_mujoco_hopper/v2-medium", split="train"))
        source.spec.observation  # float32[11]
    """

    format: ClassVar[str] = "tf.data"

    def __init__(self, dataset: Any, *, name: str = "tf.data.Dataset") -> None:
        try:
            import tensorflow as tf
        except ImportError as cause:
            raise MissingDependency('a tf.data.Dataset needs TensorFlow: pip install "rlds2buf[tf-agents]"') from cause
        self._tf = tf
        self._dataset = dataset
        self.name = name
        cardinality = int(dataset.cardinality())
        if cardinality == tf.data.INFINITE_CARDINALITY:
            raise SourceFormatError(f"{name}: it has no end; is there a repeat() too many?")
        self._num_episodes = None if cardinality < 0 else cardinality
        self._elements = _check(dataset.element_spec, name)
        self._batched = dataset.map(self._batch, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        self._spec = self._find_spec()

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int | None:
        return self._num_episodes

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode | EpisodeError]:
        """See :meth:`Source.read`.

        Raises:
            SourceFormatError: TensorFlow fails to produce an episode; its message is quoted.
        """
        index = start
        elements = self._batched.skip(start)
        if stop is not None:
            elements = elements.take(max(stop - start, 0))
        iterator = iter(elements)
        while True:
            try:
                element = next(iterator, None)
                if element is None:
                    return
                columns = {key: self._columns(value) for key, value in element.items()}
            except self._tf.errors.OpError as cause:
                raise SourceFormatError(f"{self.name}: episode {index}: {cause.message}") from cause
            yield self._episode(columns, index)
            index += 1

    def details(self) -> dict[str, Any]:
        return {"elements": {key: str(value) for key, value in sorted(self._elements.items())}}

    def fingerprint(self) -> str:
        """Of what the elements look like and how many there are: their values would take a full pass."""
        what = f"{self.name} {sorted(self.details()['elements'].items())} {self._num_episodes}"
        return hashlib.sha256(what.encode()).hexdigest()

    def _batch(self, episode: Mapping[str, Any]) -> dict[str, Any]:
        """In TensorFlow's graph: every nested dataset of an episode as one batch, or none if it is empty."""
        tf = self._tf

        def one_batch(value: Any) -> Any:
            if not isinstance(value, tf.data.Dataset):
                return value
            batches = self._batch_ragged(value) if self._varying(value) else value.batch(_WHOLE)
            some = batches.map(tf.experimental.Optional.from_value)
            none = tf.data.Dataset.from_tensors(tf.experimental.Optional.empty(batches.element_spec))
            return some.concatenate(none).take(1).get_single_element()

        return {key: one_batch(value) for key, value in episode.items()}

    def _varying(self, rows: Any) -> set[int]:
        """Which leaves of the nested dataset are dense tensors of a shape not known beforehand."""
        specs = self._tf.nest.flatten(rows.element_spec)
        return {
            i
            for i, spec in enumerate(specs)
            if isinstance(spec, self._tf.TensorSpec) and spec.shape.rank and not spec.shape.is_fully_defined()
        }

    def _batch_ragged(self, rows: Any) -> Any:
        """One batch of rows whose shapes may differ: those leaves become ragged tensors."""
        tf = self._tf
        varying = self._varying(rows)
        is_tuple = isinstance(rows.element_spec, tuple)

        def each(change: Any) -> Any:
            def change_leaves(*parts: Any) -> Any:
                structure = parts if is_tuple else parts[0]
                leaves = [change(leaf) if i in varying else leaf for i, leaf in enumerate(tf.nest.flatten(structure))]
                return tf.nest.pack_sequence_as(structure, leaves)

            return change_leaves

        def as_ragged(tensor: Any) -> Any:
            # As one row of one, for a ragged tensor needs an axis in front of the one that varies.
            unknown = [axis for axis, length in enumerate(tensor.shape.as_list(), 1) if length is None]
            return tf.RaggedTensor.from_tensor(tensor[None], ragged_rank=max(unknown))

        # The prefetch keeps TensorFlow from fusing map and batch, after which it plans for the size
        # of the batch instead of for the rows that are there.
        batches = rows.map(each(as_ragged)).prefetch(1).batch(_WHOLE)
        return batches.map(each(lambda ragged: ragged.merge_dims(0, 1)))

    def _columns(self, value: Any) -> nest.Nest:
        if isinstance(value, self._tf.experimental.Optional):
            value = value.get_value() if value.has_value() else None
        return nest.map_structure(self._column, value)

    def _column(self, tensor: Any) -> Any:
        if tensor is None:
            return None
        if isinstance(tensor, self._tf.RaggedTensor):
            values = self._column(tensor.flat_values)
            for lengths in reversed(tensor.nested_row_lengths()):
                values = cut_rows(values, lengths.numpy())
            return values
        column = tensor.numpy()
        return column.astype(np.float32) if tensor.dtype == self._tf.bfloat16 else column

    def _episode(self, columns: dict[str, nest.Nest], index: int) -> Episode | EpisodeError:
        steps = columns.pop(_STEPS)
        if steps is None:
            return EmptyEpisode("the episode has no steps", source=self.name, episode=index, rule="empty-episode")
        known = {field: steps[field] for field in STEP_FIELDS if field in steps}
        extras = {key: value for key, value in steps.items() if key not in STEP_FIELDS}
        try:
            return Episode(**known, extras=extras, metadata=columns, source=self.name, index=index)
        except EpisodeError as error:
            return error

    def _find_spec(self) -> StepSpec:
        steps = self._elements[_STEPS]
        nested = isinstance(steps, self._tf.data.DatasetSpec)
        specs = steps.element_spec if nested else steps
        if any(spec.shape.rank is None for spec in self._tf.nest.flatten(specs)):
            # Shapes that TensorFlow does not know beforehand: those of the first episode.
            return next((spec_of(item) for item in self.read() if isinstance(item, Episode)), StepSpec())

        def field(spec: Any) -> FieldSpec:
            is_float = spec.dtype == self._tf.bfloat16
            dtype = np.float32 if is_float else object if spec.dtype == self._tf.string else spec.dtype.as_numpy_dtype
            shape = spec.shape.as_list()
            return FieldSpec(tuple(shape if nested else shape[1:]), np.dtype(dtype))

        fields = nest.map_structure(field, specs)
        data = {name: fields.get(name) for name in DATA_FIELDS}
        flags = {name: fields[name] for name in FLAG_FIELDS if name in fields}
        extras = {key: value for key, value in fields.items() if key not in STEP_FIELDS}
        return StepSpec(**data, **flags, extras=extras)


def _check(elements: Any, name: str) -> dict[str, Any]:
    steps = elements.get(_STEPS) if isinstance(elements, Mapping) else None
    inner = getattr(steps, "element_spec", steps)
    if not isinstance(inner, Mapping) or not inner:
        raise SourceFormatError(f"{name}: its elements are no RLDS episodes with a dataset of step dicts: {elements}")
    return dict(elements)
