from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.sinks.reverb_keys import keys_of, seed_of, shard_of

SEEDS = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1


def naive_mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


@given(seed=SEEDS, episode=st.integers(0, 2**40), numbers=st.lists(st.integers(0, 2**40), max_size=5))
def test_keys_are_splitmix_of_splitmix(seed, episode, numbers):
    golden = 0x9E3779B97F4A7C15
    start = naive_mix((seed + golden * (episode + 1)) & MASK)
    expected = [naive_mix((start + golden * (number + 1)) & MASK) for number in numbers]
    assert keys_of(seed, episode, np.array(numbers, np.int64)).tolist() == expected


def test_keys_never_change():
    """Tables that were filled by an earlier version are found again."""
    assert seed_of("item", "fingerprint", "replay") == 11079103365254671945
    assert keys_of(1, 2, np.array([0, 3])).tolist() == [12017601128915079454, 1072907043932612987]


def test_keys_of_a_large_dataset_are_distinct():
    keys = np.concatenate([keys_of(7, episode, np.arange(1000)) for episode in range(1000)])
    assert len(np.unique(keys)) == len(keys)


def test_seeds_tell_parts_apart():
    seeds = {seed_of(*parts) for parts in [("ab", "c"), ("a", "bc"), ("abc",), ("abc", ""), ("", "abc"), ("\udcff",)]}
    assert len(seeds) == 6


@given(seed=SEEDS, shards=st.integers(1, 5))
def test_shards_are_even(seed, shards):
    counts = np.bincount([shard_of(seed, episode, shards) for episode in range(400)], minlength=shards)
    assert len(counts) == shards and (abs(counts - 400 / shards) < 100).all()
