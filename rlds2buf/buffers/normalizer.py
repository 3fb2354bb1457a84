"""Numbers of sampled batches on the scale that policies are trained on."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from rlds2buf.core import nest
from rlds2buf.core.arguments import choice, guess
from rlds2buf.core.sample import Trajectory
from rlds2buf.core.spec import FieldSpec, StepSpec
from rlds2buf.numbers.dataset_numbers import Statistics
from rlds2buf.numbers.normalizing import WAYS, Scaling, as_statistics, field_and_part

__all__ = ["Normalizer"]

_PARTS: Final = ("observation", "action", "reward", "extras")
_DEFAULT: Final = "q01_q99"


class Normalizer:
    """Which fields of a batch are brought to one scale, and by which numbers; for ``sample(normalize=...)``.

    Next observations go with the observations.  What is normalised becomes float32, float64 stays.  Zeros behind the
    end of a sequence stay zeros; what pads windows is normalised as the rest is.

    Args:
        stats: what :func:`rlds2buf.statistics` gives, its JSON, the path of a file with that, or the folder that
            ``convert --normalize`` has written.
        fields: field, or nest of fields, to ``"q01_q99"``, ``"mean_std"`` or ``"min_max"``, as
            ``{"observation": "mean_std", "action[:-1]": "q01_q99"}``; or one of these for all
            floating-point fields of observation and action, but pictures, that there are statistics of.

    Raises:
        ValueError: `stats` are none, or a wrong way.
        SourceError: the file can't be read.

    >>> import numpy as np
    >>> import rlds2buf
    >>> episode = rlds2buf.Episode(observation=np.arange(5.0), action=np.arange(5.0) * 10, reward=np.ones(5))
    >>> buffer = rlds2buf.make_circular(rlds2buf.spec_of(episode), 100, seed=0)
    >>> keys = buffer.add(episode)
    >>> scale = rlds2buf.Normalizer(rlds2buf.statistics([episode]), {"action": "min_max"})
    >>> sorted(set(buffer.sample(64, normalize=scale).data.action.round(2).tolist()))
    [-1.0, -0.33, 0.33, 1.0]
    """

    def __init__(
        self,
        stats: Statistics | Mapping[str, Any] | str | os.PathLike[str],
        fields: Mapping[str, str] | str = _DEFAULT,
    ) -> None:
        self.statistics = as_statistics(stats)
        self.fields = fields if isinstance(fields, str) else dict(fields)
        for way in [fields] if isinstance(fields, str) else fields.values():
            choice("normalize", way, WAYS)
        self._last: tuple[StepSpec, Callable[[Any], Any]] | None = None

    def of(self, spec: StepSpec) -> Callable[[Any], Any]:
        """What normalises the data of batches of such rows.

        Raises:
            ValueError: there is no such field, it holds no numbers, or there are no statistics that fit it.
        """
        if self._last is None or self._last[0] is not spec:
            self._last = spec, _Scaled(self._scalings(spec))
        return self._last[1]

    def _scalings(self, spec: StepSpec) -> dict[nest.Path, Scaling]:
        leaves = {nest.path_name(path): (path, field) for path, field in spec.fields() if path[0] in _PARTS}
        if isinstance(self.fields, str):
            names = [
                name
                for name, (path, field) in leaves.items()
                if path[0] in ("observation", "action") and field.dtype.kind == "f"
                if len(field.shape) < 3 and name in self.statistics
            ]
            if not names:
                raise ValueError("normalize: there are statistics of no floating-point field of observation or action")
            return {leaves[name][0]: self._scaling(name, leaves[name][1], self.fields, None) for name in names}
        found: dict[nest.Path, Scaling] = {}
        for text, way in self.fields.items():
            wanted, part = field_and_part(text)
            names = [name for name in leaves if name == wanted or name.startswith(f"{wanted}/")]
            names = [name for name in names if len(names) == 1 or leaves[name][1].dtype.kind in "biuf"]
            if not names:
                raise ValueError(f"normalize: no field {wanted!r}; {guess(wanted, leaves)}")
            if part is not None and len(names) > 1:
                raise ValueError(f"normalize: {wanted!r} is several fields; dimensions are chosen of one")
            for name in names:
                path, field = leaves[name]
                if path in found:
                    raise ValueError(f"normalize: {name!r} is named twice")
                found[path] = self._scaling(name, field, way, part)
        return found

    def _scaling(self, name: str, field: FieldSpec, way: str, part: slice | int | None) -> Scaling:
        if field.dtype.kind not in "biuf" or None in field.shape:
            raise ValueError(f"normalize: {name!r} holds no numbers to normalise")
        try:
            known = self.statistics[name]
            if known.mean.shape != field.shape:
                raise ValueError(f"the statistics are of the shape {list(known.mean.shape)}, the data {field}")
            return Scaling.of(known, way, part)
        except KeyError as cause:
            raise ValueError(f"normalize: {cause.args[0]}") from cause
        except ValueError as cause:
            raise ValueError(f"normalize: {name}: {cause}") from cause


class _Scaled:
    """Changes these fields of batches."""

    def __init__(self, scalings: Mapping[nest.Path, Scaling]) -> None:
        self._scalings = scalings

    def __call__(self, data: Any) -> Any:
        held = None
        if isinstance(data, Trajectory):
            held = data.mask if data.burn_in is None else data.mask | data.burn_in
            held = None if held.all() else held
        for path, scaling in self._scalings.items():
            parts = ("observation", "next_observation") if path[0] == "observation" else (str(path[0]),)
            for part in parts:
                there = getattr(data, part, None)
                if there is None:
                    continue
                values = scaling.forward(nest.get(there, path[1:]))
                if held is not None:
                    values[~held] = 0
                data = data._replace(**{part: nest.replaced(there, path[1:], values)})
        return data
