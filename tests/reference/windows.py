"""Windows around a transition, found by walking the list of rows: the naive twin of the compiled gather."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.reference.replay import ListReplay
from tests.reference.runs import runs

__all__ = ["Place", "last_of", "return_to_go", "run_of", "window_of"]


class Place(NamedTuple):
    """What stands in one position of a window.

    Attributes:
        serial: of a transition.
        ahead: whether it is not what that starts from, but what it leads to.
        offset: where it really stands.
        is_pad: whether that is not where it was wanted.
    """

    serial: int
    ahead: bool
    offset: int
    is_pad: bool


def run_of(twin: ListReplay, serial: int) -> list[int]:
    """Serials of the held transitions that a transition belongs to, in the order of time."""
    return next(run for run in runs(twin) if serial in run)


def last_of(twin: ListReplay, serial: int, n_step: int) -> int:
    """The last of up to `n_step` transitions from one on."""
    return int(twin.transition(serial, n_step)["last"])


def window_of(
    run: list[int],
    serial: int,
    offsets: Iterable[int],
    ahead: bool = False,
    unrecorded: Iterable[int] = (),
    leads_to: bool = False,
) -> list[Place]:
    """The places of a window around a transition of a run.

    Args:
        run: serials of the run.
        serial: of the transition.
        offsets: in steps.
        ahead: whether the window may reach to what the last transition leads to, ...
        unrecorded: ... which it may not where its serial is here.
        leads_to: whether a step of 1 is what the transition leads to, not what the next one starts from.
    """
    here = run.index(serial)
    last = len(run) - 1 + (1 if ahead and run[-1] not in set(unrecorded) else 0)
    places = []
    for offset in offsets:
        at = min(max(here + offset, 0), last)
        behind = at == len(run) or (leads_to and at == here + 1)
        places.append(Place(run[at - behind], behind, at - here, at != here + offset))
    return places


def return_to_go(twin: ListReplay, run: list[int], serial: int) -> Any:
    """The sum of the rewards from a transition to the end of its run."""
    return sum(float(twin.transition(other)["reward"]) for other in run[run.index(serial) :])
