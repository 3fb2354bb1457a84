"""TFDS's little language for parts of a dataset: ``train``, ``train[:10%]``, ``train[5:20]+test``.

Source: https://www.tensorflow.org/datasets/splits
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rlds2buf.errors import SourceNotFound

__all__ = ["Piece", "pieces_of_split"]

_PART = re.compile(r"(?P<name>[\w-]+)(\[(?P<slice>[^\[\]]+)\])?")
_BOUND = re.compile(r"(?P<value>-?[\d_.]+)(?P<unit>%|shard)?|")


class Piece(NamedTuple):
    """Records `start` up to (not with) `stop` of one split, counted over all its shards."""

    split: str
    start: int
    stop: int


def pieces_of_split(expression: str, shard_lengths: Mapping[str, Sequence[int]]) -> list[Piece]:
    """What a split expression stands for, piece by piece in its order.

    ======================================  ====================================================
    ``name``                                the split; ``all``: every split, one behind the other
    ``name[a:b]``, ``name[a:]``, ``[:b]``   records; negative: from the end
    ``name[a%:b%]``                         per cent of the records, each bound rounded to the nearest
                                            (halves to the even one); decimals are allowed
    ``name[a shard:b shard]``               (written without blanks) whole shards
    ``name[a shard]``                       one shard
    ``x+y``                                 x, then y
    ======================================  ====================================================

    Args:
        expression: as above.
        shard_lengths: split name to the number of records in each of its shards.

    Raises:
        SourceNotFound: it is not of that form, names no split there is, reaches past its end, or
            holds no record although the split does.

    >>> pieces_of_split("train[:25%]+test", {"train": [4, 4], "test": [3]})
    [Piece(split='train', start=0, stop=2), Piece(split='test', start=0, stop=3)]
    """
    pieces = []
    for part in re.split(r"\s*\+\s*", expression.strip()):
        match = _PART.fullmatch(part)
        if match is None:
            raise _not_a_split(part, shard_lengths)
        name, text = match["name"], match["slice"]
        if name == "all" and "all" not in shard_lengths and text is None:
            pieces += [Piece(split, 0, sum(lengths)) for split, lengths in shard_lengths.items()]
        elif name not in shard_lengths:
            raise SourceNotFound(f"no split {name!r}; there are: {', '.join(shard_lengths) or 'none'}")
        elif text is None:
            pieces.append(Piece(name, 0, sum(shard_lengths[name])))
        else:
            start, stop = _bounds(part, text, shard_lengths, list(shard_lengths[name]))
            pieces.append(Piece(name, start, stop))
    return pieces


def _bounds(part: str, text: str, splits: Mapping[str, Sequence[int]], lengths: list[int]) -> tuple[int, int]:
    """First record and the one behind the last."""
    matches = [_BOUND.fullmatch(bound) for bound in text.split(":")]
    values = [match["value"] if match else None for match in matches]
    if None in matches or len(matches) > 2 or values.count(None) == len(values):
        raise _not_a_split(part, splits)
    unit = next((match["unit"] for match in matches if match and match["unit"]), "")
    try:
        numbers = [None if value is None else float(value) if unit == "%" else int(value) for value in values]
    except ValueError:
        raise _not_a_split(part, splits) from None
    if len(numbers) == 1:
        if unit != "shard":
            raise SourceNotFound(f"{part!r}: one record or per cent alone is no slice; write name[from:to]")
        numbers.append(int(numbers[0]) + 1)  # type: ignore[arg-type]
    total = sum(lengths)
    if unit == "%":
        if any(abs(number or 0) > 100 for number in numbers):
            raise SourceNotFound(f"{part!r}: per cents go from -100 to 100")
        numbers = [None if number is None else round(number * total / 100) for number in numbers]
    elif unit == "shard":
        numbers = _shards_to_records(numbers, lengths)
    start, stop = (default if n is None else int(n) for n, default in zip(numbers, (0, total), strict=True))
    if abs(start) > total or abs(stop) > total:
        raise SourceNotFound(f"{part!r} reaches past the {total} episodes of the split")
    start, stop = (n + total if n < 0 else n for n in (start, stop))
    if start >= stop and total:
        raise SourceNotFound(f"{part!r} holds none of the {total} episodes of the split")
    return start, stop


def _shards_to_records(numbers: Sequence[float | None], lengths: list[int]) -> list[float | None]:
    start, stop = (None if number is None else int(number) for number in numbers)
    if stop is not None and stop <= 0:
        stop += len(lengths)
    return [None if start is None else sum(lengths[:start]), None if stop is None else sum(lengths[:stop])]


def _not_a_split(part: str, splits: Mapping[str, Sequence[int]]) -> SourceNotFound:
    return SourceNotFound(
        f"{part!r} is no split; write for example train, train[:10%], train[5:20] or train+test; "
        f"there are: {', '.join(splits) or 'none'}"
    )
