"""Rows added behind terminal ones, and returns, in whole batches, against their episodes one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch
from rlds2buf.check.repair import keep_final_transition, keep_final_transition_batch
from rlds2buf.returns.annotate import annotate, annotate_batch
from tests.reference.final_row import annotated, with_final_row
from tests.transform.test_batches import same


def episodes(kinds: list[tuple[int, bool, bool]], seed: int, discount: bool = True) -> list[Episode]:
    """Of so many rows, terminal or not, marked as having a placeholder or not."""
    rng = np.random.default_rng(seed)
    made = []
    for index, (rows, terminal, marked) in enumerate(kinds):
        made.append(
            Episode(
                observation={
                    "q": rng.normal(size=(rows, 2)),
                    "word": np.array([b"w%d" % t for t in range(rows)], object),
                },
                action=(rng.integers(1, 9, rows).astype(np.int8), rng.normal(size=(rows, 1, 2)).astype(np.float32)),
                reward=rng.normal(size=(rows,)).astype([np.float32, np.float64, np.float16][seed % 3]),
                discount=rng.random(rows) if discount else None,
                is_first=np.arange(rows) == 0,
                is_last=np.arange(rows) == rows - 1,
                is_terminal=(np.arange(rows) == rows - 1) & terminal,
                extras={"cost": rng.normal(size=(rows, 2)), "name": np.full(rows, "ab")},
                metadata={"at": index, **({"placeholder_final_row": True} if marked else {})},
                source="made",
                index=index * 2,
            )
        )
    return made


KINDS = st.lists(
    st.tuples(st.integers(1, 50), st.booleans(), st.sampled_from([False, False, True])), min_size=1, max_size=9
)


@given(KINDS, st.integers(0, 9), st.booleans())
def test_rows_are_added_to_those_that_end(kinds: list[tuple[int, bool, bool]], seed: int, discount: bool) -> None:
    given = episodes(kinds, seed, discount)
    batch = EpisodeBatch.of(given)
    before = [(path, column.copy()) for path, column in batch.rows.flatten()]
    found, changes = keep_final_transition_batch(batch)
    expected = [with_final_row(episode) for episode in given]
    assert changes == Counter(rule for _, rule in expected if rule)
    for one, (other, rule), origin in zip(found, expected, given, strict=True):
        same(one, other)
        alone, counted = keep_final_transition(origin)
        same(alone, other)
        assert counted == Counter([rule] if rule else [])
        assert (alone is origin) == (rule != "final-transition-kept")
    assert (found is batch) == ("final-transition-kept" not in changes)
    for (_, column), (_, kept) in zip(batch.rows.flatten(), before, strict=True):
        assert column.tolist() == kept.tolist()


@given(
    KINDS, st.integers(0, 9), st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.lists(st.sampled_from(["return_to_go", "discounted_return", "cost_to_go"]), min_size=1, unique=True),
)  # fmt: skip
def test_returns_are_those_of_each_episode(
    kinds: list[tuple[int, bool, bool]], seed: int, gamma: float, add: list[str]
) -> None:
    given = episodes(kinds, seed)
    for one, origin in zip(annotate_batch(EpisodeBatch.of(given), add=add, gamma=gamma), given, strict=True):
        other = annotated(origin, add, gamma)
        same(one, other)
        same(annotate(origin, add=add, gamma=gamma), other)
