from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.formats.reverb.item_keys import EpisodeKeys, KeyMaker, checksum, checksums, keys_of, seed_of

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


def maker(**changes):
    made = {"fingerprint": "1", "table": "replay", "pattern": "pairs", "chunk_length": 16, "final": "drop", **changes}
    provenance = {"fingerprint": made["fingerprint"], "options": {"final_transition": made["final"]}}
    return KeyMaker(provenance, made["table"], made["pattern"], made["chunk_length"])


@given(fingerprint=st.text(), shards=st.integers(1, 5))
def test_shards_are_even(fingerprint, shards):
    keys = maker(fingerprint=fingerprint)
    counts = np.bincount(keys.shards(np.arange(400), shards).astype(np.int64), minlength=shards)
    assert len(counts) == shards and (abs(counts - 400 / shards) < 100).all()


def keys(tensors=None, number=0, **changes):
    tensors = [np.zeros((3, 2))] if tensors is None else tensors
    made = maker(**changes).episodes(np.array([number]), tensors, np.array([0, len(tensors[0])]))
    of = np.zeros(2, np.int64)
    return made.items(of, np.arange(2)).tolist(), made.chunks(of, np.arange(2)).tolist(), made.episode_ids.tolist()


def test_everything_that_makes_an_item_goes_into_its_key():
    base = keys()
    assert keys() == base
    for changes in [
        dict(fingerprint="2"),
        dict(table="other"),
        dict(pattern="triples"),
        dict(final="keep"),
        dict(number=1),
        dict(tensors=[np.zeros((2, 3))]),
        dict(tensors=[np.zeros((3, 2), np.int64)]),
        dict(tensors=[np.array([[0, 0], [0, 0], [0, 1.0]])]),
        dict(tensors=[np.zeros((3, 2)), np.zeros(3)]),
    ]:
        other = keys(**changes)
        assert not set(other[0]) & set(base[0]) and not set(other[1]) & set(base[1]), changes
    # Chunks of another length hold other rows; the items are the same.
    assert keys(chunk_length=8)[0] == base[0] and not set(keys(chunk_length=8)[1]) & set(base[1])


def test_checksums_see_strings_and_order():
    def of(*texts):
        return checksum([np.array([*texts, None], object)[:-1]])

    assert len({of(b"ab", b"c"), of(b"a", b"bc"), of(b"c", b"ab"), of(b"abc", b"")}) == 4
    column = np.arange(12.0).reshape(3, 4)
    assert checksum([column]) == checksum([np.asfortranarray(column)]) != checksum([column[::-1]])


@given(
    rows=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    dtypes=st.lists(st.sampled_from(["f4", "f8", "i1", "?", "f2", object]), min_size=1, max_size=4),
    width=st.sampled_from([0, 1, 3, 900]),
)
def test_checksums_of_many_episodes_are_those_of_each(rows, dtypes, width):
    rng = np.random.default_rng(sum(rows))
    edges = np.append(0, np.cumsum(rows))
    tensors = []
    for dtype in dtypes:
        if dtype is object:
            column = np.empty(edges[-1], object)
            column[:] = [b"x" * int(n) for n in rng.integers(0, 4, edges[-1])]
        else:
            column = (rng.normal(size=(edges[-1], width)) * 9).astype(dtype)
        tensors.append(column)
    apart = [[tensor[start:stop] for tensor in tensors] for start, stop in itertools.pairwise(edges)]
    assert checksums(tensors, edges).tolist() == [checksum(one) for one in apart]


@given(seeds=st.lists(SEEDS, min_size=1, max_size=5), numbers=st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_keys_of_many_episodes_are_those_of_each(seeds, numbers):
    of = np.arange(len(numbers)) % len(seeds)
    many = np.array(seeds, np.uint64)
    keys = EpisodeKeys(many, many, many, np.arange(len(seeds)) * 3)
    expected = [keys_of(seeds[i], 3 * int(i), np.array([n]))[0] for i, n in zip(of, numbers, strict=True)]
    assert keys.items(of, np.array(numbers)).tolist() == keys.chunks(of, np.array(numbers)).tolist() == expected
