"""A replay buffer as a list of rows, one row at a time: the naive twin of the circular buffer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.core.episode import Episode

__all__ = ["ListReplay", "Row", "goes_on"]

CONTINUE, TERMINATED, TRUNCATED, FINAL_ROW = 0, 1, 2, 3


@dataclasses.dataclass
class Row:
    """One stored row.

    `serial` counts rows over the buffer's life; `episode` is a number shared by the rows of one
    added Episode, None for explicit transitions.  `next_observation` is the row's own one for
    explicit transitions; for a row of an episode it is found in the row behind it.
    """

    serial: int
    observation: Any
    action: Any
    reward: Any
    discount: float
    extras: dict[str, Any]
    is_done: int
    source: int
    episode: int | None
    next_observation: Any = None
    flags: tuple[bool, bool, bool] = (False, False, False)
    ids: dict[str, Any] = dataclasses.field(default_factory=dict)


class ListReplay:
    """Rows oldest first; `unit` says what `capacity` counts: rows, transitions or episodes.

    The transition after a row is the next stored one of the same source, unless the ids that both
    have say otherwise; rows of an added episode form a chain of their own, which ends with it.
    """

    def __init__(self, capacity: int, unit: str = "rows") -> None:
        self.capacity = capacity
        self.unit = unit
        self.rows: list[Row] = []
        self.added = 0
        self._serial = 0
        self._episodes = 0

    # -- adding ---------------------------------------------------------------------------------

    def add_episode(self, episode: Episode, source: int = 0) -> list[int]:
        """Serials of the N-1 transitions of an episode of N rows."""
        serials = []
        number = self._episodes
        self._episodes += 1
        last = episode.num_steps - 1
        for t in range(episode.num_steps):
            if t == last:
                code = FINAL_ROW
            elif t == last - 1 and episode.is_terminal[last]:
                code = TERMINATED
            elif t == last - 1 and episode.is_last[last]:
                code = TRUNCATED
            else:
                code = CONTINUE
            discount = 1.0 if episode.discount is None else float(episode.discount[t])
            row = self._row(
                observation=_at(episode.observation, t),
                action=_at(episode.action, t),
                reward=np.asarray(episode.reward)[t],
                discount=0.0 if code == TERMINATED else discount,
                extras=_at(episode.extras, t),
                is_done=code,
                source=source,
                episode=number,
                flags=(bool(episode.is_first[t]), bool(episode.is_last[t]), bool(episode.is_terminal[t])),
            )
            if code != FINAL_ROW:
                serials.append(row.serial)
        self._evict()
        return serials

    def add_transitions(self, items: Sequence[Mapping[str, Any]], sources: int | Sequence[int] = 0) -> list[int]:
        """Serials of explicit transitions, each a dict of one step's values."""
        serials = []
        for i, item in enumerate(items):
            code = int(item.get("is_done", CONTINUE))
            row = self._row(
                observation=item["observation"],
                action=item["action"],
                reward=item["reward"],
                discount=0.0 if code == TERMINATED else float(item.get("discount", 1.0)),
                extras=item.get("extras", {}),
                is_done=code,
                source=sources if isinstance(sources, int) else int(sources[i]),
                episode=None,
                next_observation=item["next_observation"],
                ids={name: item[name] for name in ("episode_id", "t", "agent_index") if name in item},
            )
            serials.append(row.serial)
        self._evict()
        return serials

    def _row(self, **fields: Any) -> Row:
        row = Row(serial=self._serial, **fields)
        self._serial += 1
        self.added += 1
        self.rows.append(row)
        return row

    # -- what is held ---------------------------------------------------------------------------

    def _used(self) -> int:
        if self.unit == "rows":
            return len(self.rows)
        if self.unit == "transitions":
            return len(self.keys())
        return len({row.episode for row in self.rows})

    def _evict(self) -> None:
        while self.rows and self._used() > self.capacity:
            oldest = self.rows.pop(0)
            if self.unit == "episodes":
                while self.rows and self.rows[0].episode == oldest.episode:
                    self.rows.pop(0)

    def resize(self, capacity: int) -> None:
        self.capacity = capacity
        self._evict()

    def clear(self) -> None:
        self.rows.clear()

    def keys(self) -> list[int]:
        """Serials of the held transitions, oldest first."""
        return [row.serial for row in self.rows if row.is_done != FINAL_ROW]

    def __len__(self) -> int:
        return len(self.keys())

    # -- views ----------------------------------------------------------------------------------

    def _position(self, serial: int) -> int:
        for i, row in enumerate(self.rows):
            if row.serial == serial and row.is_done != FINAL_ROW:
                return i
        raise KeyError(serial)

    def _after(self, i: int) -> int | None:
        """The position of the transition that follows the one at `i`, or None."""
        row = self.rows[i]
        if row.is_done != CONTINUE:
            return None
        for j in range(i + 1, len(self.rows)):
            other = self.rows[j]
            if row.episode is not None:
                return None if other.is_done == FINAL_ROW else j
            if other.source == row.source:
                # The first row of a whole episode follows nothing.
                return j if other.episode is None and goes_on(row.ids, other.ids) else None
        return None

    def _next_observation(self, i: int) -> Any:
        row = self.rows[i]
        return row.next_observation if row.episode is None else self.rows[i + 1].observation

    def transition(self, serial: int, n_step: int = 1, gamma: float = 1.0) -> dict[str, Any]:
        """The n-step transition that starts at a held one."""
        first = i = self._position(serial)
        reward: Any = np.float64(0.0)
        product = 1.0
        for steps in range(1, n_step + 1):
            row = self.rows[i]
            reward = reward + product * np.asarray(row.reward, np.float64)
            discount = product * row.discount
            product = discount * gamma
            after = self._after(i)
            if steps == n_step or after is None:
                break
            i = after
        start = self.rows[first]
        return {
            "observation": start.observation,
            "action": start.action,
            "reward": reward,
            "discount": discount,
            "next_observation": self._next_observation(i),
            "extras": start.extras,
            "is_done": self.rows[i].is_done,
            "steps": steps,
            "bootstrap_discount": gamma * discount,
            "last": self.rows[i].serial,
        }

    def sequence(self, serial: int, length: int) -> list[dict[str, Any]]:
        """Up to `length` consecutive one-step transitions from a held one on; what is missing is padding."""
        i: int | None = self._position(serial)
        out = []
        while i is not None and len(out) < length:
            row = self.rows[i]
            out.append({**self.transition(row.serial), "flags": row.flags, "from_episode": row.episode is not None})
            i = self._after(i)
        return out

    def of_source(self, source: int) -> list[int]:
        """Serials of the held transitions of one source."""
        return [row.serial for row in self.rows if row.is_done != FINAL_ROW and row.source == source]


def goes_on(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the step with the second ids may be the one behind the step with the first."""
    if other.get("t") == 0:
        return False
    for name in ("episode_id", "agent_index"):
        if name in one and name in other and one[name] != other[name]:
            return False
    return "t" not in one or "t" not in other or other["t"] - one["t"] == 1


def _at(columns: Any, t: int) -> Any:
    return nest.map_structure(lambda column: None if column is None else column[t], columns)
