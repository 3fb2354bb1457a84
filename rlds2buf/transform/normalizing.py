"""Fields of a dataset brought to one scale."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.numbers.dataset_numbers import Statistics
from rlds2buf.numbers.normalizing import WAYS, Scaling, field_and_part
from rlds2buf.transform.tree import batch_of, find, near_miss, spec_of_tree, tree_of

__all__ = ["Normalizing", "fields_to_normalize"]

Part = slice | int | None


def fields_to_normalize(spec: StepSpec, wanted: Mapping[str, str]) -> dict[str, tuple[nest.Path, str, Part]]:
    """Which fields are meant, by name: each one's path, how it is normalised, and which of its dimensions.

    Args:
        spec: of the data.
        wanted: field to way, as of :class:`Normalizing`.

    Raises:
        TypeError: it is no mapping.
        ValueError: there is no such field or way, it holds no numbers, or it is named twice.

    >>> spec = StepSpec(action=FieldSpec((7,), np.float32))
    >>> fields_to_normalize(spec, {"action[:-1]": "q01_q99"})
    {'action': (('action',), 'q01_q99', slice(None, -1, None))}
    """
    if not isinstance(wanted, Mapping):
        raise TypeError(f"normalize: expected a dict of field to way, as {{'action': 'q01_q99'}}, got {wanted!r}")
    tree = tree_of(spec)
    found: dict[str, tuple[nest.Path, str, Part]] = {}
    for text, how in wanted.items():
        choice("normalize", how, WAYS)
        name, part = field_and_part(text)
        top = find(tree, name)
        if top is None:
            raise ValueError(f"normalize: no field {name!r}{near_miss(tree, name)}")
        leaves = list(nest.flatten(nest.get(tree, top), top))
        numbers = [path for path, field in leaves if _has_numbers(field)]
        if not numbers or (part is not None and len(leaves) > 1):
            what = "is several fields; dimensions are chosen of one" if numbers else "holds no numbers to normalise"
            raise ValueError(f"normalize: {name!r} {what}")
        for path in numbers:
            full = nest.path_name(path)
            if full in found:
                raise ValueError(f"normalize: {full!r} is named twice")
            found[full] = (path, how, part)
    return found


class Normalizing:
    """Fields brought to one scale by the statistics of a dataset: a column operation.

    They become float32, float64 stays.  Their limits are -1 and 1 where values beyond are cut, and else unknown.

    Args:
        spec: of the episodes that come in.
        wanted: field, or nest of fields, to ``"q01_q99"``, ``"mean_std"`` or ``"min_max"``
            (:mod:`rlds2buf.numbers.normalizing`); ``"action[:-1]"`` leaves the last dimension as it is.
        statistics: of these fields.

    Attributes:
        spec: of the episodes that come out.
        description: what is done, as plain JSON values: ``normalize`` and ``normalize_statistics``.

    Raises:
        TypeError, ValueError: as from :func:`fields_to_normalize`, or there are no statistics of a field, or of
            another shape.

    >>> from rlds2buf.core.episode import Episode
    >>> from rlds2buf.core.spec import spec_of
    >>> import rlds2buf
    >>> episode = Episode(action=np.array([0.0, 1.0, 4.0, 0.0]))
    >>> change = Normalizing(spec_of(episode), {"action": "min_max"}, rlds2buf.statistics([episode]))
    >>> change.apply(EpisodeBatch.of_one(episode)).rows.action.round(6).tolist()
    [-1.0, -0.5, 1.0, -1.0]
    """

    def __init__(self, spec: StepSpec, wanted: Mapping[str, str], statistics: Statistics) -> None:
        fields = fields_to_normalize(spec, wanted)
        self._scalings: dict[nest.Path, Scaling] = {}
        for name, (path, how, part) in fields.items():
            field = nest.get(tree_of(spec), path)
            try:
                known = statistics[name]
                if known.mean.shape != field.shape:
                    raise ValueError(f"the statistics are of the shape {list(known.mean.shape)}, the data {field}")
                self._scalings[path] = Scaling.of(known, how, part)
            except KeyError as cause:
                raise ValueError(f"normalize: {cause.args[0]}") from cause
            except ValueError as cause:
                raise ValueError(f"normalize: {name}: {cause}") from cause
        self.spec = spec_of_tree(_changed(tree_of(spec), self._scalings, _field))
        self.description: dict[str, Any] = {
            "normalize": dict(wanted),
            "normalize_statistics": statistics.only(list(fields)).to_json(),
        }

    def apply(self, batch: EpisodeBatch) -> EpisodeBatch:
        """The episodes with these fields on their new scale; final rows too, whatever they hold."""
        tree = _changed(tree_of(batch.rows), self._scalings, lambda column, scaling: scaling.forward(column))
        return batch_of(tree, batch)


def _has_numbers(field: FieldSpec | None) -> bool:
    return field is not None and field.dtype.kind in "biuf" and None not in field.shape


def _changed(tree: Any, scalings: Mapping[nest.Path, Scaling], change: Any, path: nest.Path = ()) -> Any:
    """The tree with these leaves changed."""
    if path in scalings:
        return change(tree, scalings[path])
    if not any(known[: len(path)] == path for known in scalings):
        return tree
    if isinstance(tree, Mapping):
        return {key: _changed(child, scalings, change, (*path, key)) for key, child in tree.items()}
    parts = [_changed(child, scalings, change, (*path, i)) for i, child in enumerate(tree)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)


def _field(field: FieldSpec, scaling: Scaling) -> FieldSpec:
    dtype = field.dtype if field.dtype == np.float64 else np.dtype(np.float32)
    cut = scaling.is_range and bool(scaling.chosen.all())
    limits = {"low": -1.0, "high": 1.0} if cut else {"low": None, "high": None}
    return dataclasses.replace(field, dtype=dtype, values=None, **limits)
