"""Acme's SequenceAdder and EpisodeAdder, one step at a time: which steps become an item.

A step is a pair (episode, row); row -1 is a step of zeros.  As in acme/adders/reverb/{base,sequence,episode}.py,
`add` completes a row and opens the next one, and at the end of an episode the open row is filled with zeros.
"""

from __future__ import annotations

__all__ = ["acme_episodes", "acme_sequences"]


def acme_sequences(lengths, length, period, end):
    """Per episode of so many rows, its items as lists of steps, in the order of writing."""
    out = []
    for episode, rows in enumerate(lengths):
        items = []
        complete = []

        def maybe_create(steps, *, force=False, complete=complete, items=items):
            first_write = len(complete) == steps
            reached = len(complete) > length and (len(complete) - length) % period == 0
            if first_write or reached or force:
                items.append(complete[-steps:])

        for row in range(rows - 1):
            complete.append((episode, row))
            maybe_create(length)
        if rows > 1:
            complete.append((episode, rows - 1))
            delta = length - len(complete)
            if delta < 0:
                delta = (period + delta) % period
            if end == "write" and len(complete) >= length:
                maybe_create(length, force=True)
            elif end == "truncate":
                maybe_create(length - delta, force=True)
            elif end == "zero_pad":
                complete.extend([(episode, -1)] * delta)
                maybe_create(length, force=True)
        out.append(items)
    return out


def acme_episodes(lengths):
    """One item per episode with a transition."""
    return [[[(episode, row) for row in range(rows)]] if rows > 1 else [] for episode, rows in enumerate(lengths)]
