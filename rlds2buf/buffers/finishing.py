"""What a batch goes through between the gather and the learner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from rlds2buf.buffers.normalizer import Normalizer
from rlds2buf.core.frameworks import converter
from rlds2buf.core.spec import StepSpec

__all__ = ["OPTIONS", "finisher"]

OPTIONS: Final = ("to", "device", "transform", "normalize")
"""Options of ``Buffer.sample`` that are for here."""

Change = Callable[[Any], Any]


def finisher(
    spec: StepSpec,
    *,
    to: str | None = None,
    device: Any = None,
    pin_memory: bool = False,
    transform: Change | Sequence[Change] | None = None,
    normalize: Any = None,
) -> Callable[[Any], Any]:
    """A function that finishes batches: numbers are normalised, data transformed, and all moved to a framework.

    Args:
        spec: of the buffer's rows.
        to, device, pin_memory: as :func:`~rlds2buf.core.frameworks.converter` has them; None is NumPy, and
            PyTorch where there is a device.
        transform: called with a batch's `data`, gives what is to stand in its place; or several of these, in turn.
        normalize: a :class:`~rlds2buf.buffers.normalizer.Normalizer`, or statistics as that takes.

    Returns:
        ``f(sample)``, giving a sample again.

    Raises:
        MissingDependency, ValueError: as from ``converter``; ValueError too where statistics do not fit the spec.
        TypeError: a transform can't be called.
    """
    if to is None:
        to = "numpy" if device is None else "torch"
    convert = converter(to, device=device, pin_memory=pin_memory)
    changes = _changes(transform)
    if normalize is not None:
        normalizer = normalize if isinstance(normalize, Normalizer) else Normalizer(normalize)
        changes.insert(0, normalizer.of(spec))
    if not changes:
        return convert

    def finish(sample: Any) -> Any:
        data = sample.data
        for change in changes:
            data = change(data)
        return convert(sample._replace(data=data))

    return finish


def _changes(transform: Any) -> list[Change]:
    if transform is None:
        return []
    changes = list(transform) if isinstance(transform, list | tuple) else [transform]
    for change in changes:
        if not callable(change):
            raise TypeError(f"transform should be a function of a batch's data, or a list of such, got {change!r}")
    return changes
