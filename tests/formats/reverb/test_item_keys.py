from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlds2buf.errors import SinkError
from rlds2buf.formats.reverb import item_keys
from rlds2buf.formats.reverb.content_hash import content_hashes
from rlds2buf.formats.reverb.item_keys import ContentKeys, EpisodeKeys, KeyMaker, checksum, checksums, keys_of, seed_of
from tests.formats.reverb.several import DTYPES, LENGTHS, WIDTHS, several

SEEDS = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1

CONTENTS = [16661848519950720418, 11089866390289935772]
ITEMS = [184469764845384812, 3710248036596827334]


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
    rows, edges = [np.arange(400.0)], np.arange(401)
    made = (maker(fingerprint=fingerprint), by_content(source=fingerprint, distinct_by="source"))
    for keys in (one.episodes(np.arange(400), rows, edges) for one in made):
        counts = np.bincount(keys.owners(shards).astype(np.int64), minlength=shards)
        assert len(counts) == shards and (abs(counts - 400 / shards) < 100).all()


def by_content(source="memory", table="replay", pattern="pairs", chunk_length=16, **how):
    return ContentKeys({"source": source}, table, pattern, chunk_length, **how)


def all_keys(made, rows):
    """Of episodes of so many rows each: the keys of two items and a chunk of each, and its id."""
    of = np.repeat(np.arange(len(made)), 2)
    items = made.items(of, np.tile([0, rows - 1], len(made)))
    return [*items.tolist(), *made.chunks(np.arange(len(made)), np.arange(len(made)) * 0).tolist()], made.episode_ids


def test_keys_by_content_never_change():
    """Tables that were filled by an earlier version are found again."""
    columns = [np.arange(12, dtype=np.float32).reshape(6, 2), np.arange(6), np.array([b"a", b"", b"c"] * 2, object)]
    made = by_content().episodes(np.arange(2), columns, np.array([0, 4, 6]))
    assert made.names["name"].tolist() == CONTENTS
    assert made.items(np.arange(2), np.array([0, 3])).tolist() == ITEMS


def test_what_reaches_the_table_makes_the_keys_by_content_and_nothing_else():
    rng = np.random.default_rng(3)
    episodes = [[rng.normal(size=(5, 2)), rng.integers(0, 9, 5)] for _ in range(6)]

    def made(order, **how):
        columns = [np.concatenate(column) for column in zip(*(episodes[i] for i in order), strict=True)]
        keys = by_content(**how).episodes(np.arange(len(order)) + 100, columns, np.arange(len(order) + 1) * 5)
        return [all_keys(keys.take([i]), 5)[0] for i in range(len(order))]

    base = made(range(6))
    assert len(set(itertools.chain(*base))) == 18
    assert made([5, 2, 0], source="another") == [base[5], base[2], base[0]]
    twice = made([1, 1, 0, 1])
    assert twice[0] == base[1] and twice[2] == base[0] and len(set(itertools.chain(*twice))) == 12
    assert made([0, 1, 1, 1])[1:] == [twice[0], twice[1], twice[3]], "the n-th of equal episodes, wherever it is"
    for how in [{"table": "other"}, {"pattern": "triples"}, {"distinct_by": "source"}]:
        assert not set(itertools.chain(*made(range(6), **how))) & set(itertools.chain(*base)), how
    shorter = made(range(6), chunk_length=8)
    assert [one[:2] for one in shorter] == [one[:2] for one in base]
    assert not {one[2] for one in shorter} & {one[2] for one in base}


def test_sources_that_are_kept_apart_go_by_their_whole_path(tmp_path, monkeypatch):
    (tmp_path / "a.hdf5").touch()
    monkeypatch.chdir(tmp_path)
    row = [np.zeros(3)], np.array([0, 3])

    def key(source, distinct_by="source"):
        made = by_content(source=source, distinct_by=distinct_by)
        return made.episodes(np.arange(1), *row).items(np.array([0]), np.array([0])).tolist()

    assert key("a.hdf5") == key(str(tmp_path / "a.hdf5")) == key("a.hdf5 [train]") != key("b.hdf5")
    assert key("a.hdf5", "content") == key("b.hdf5", "content") != key("a.hdf5")


def test_parts_of_a_source_have_the_keys_of_the_whole():
    numbers = np.array([3, 1, 3, 2, 1, 3, 3])
    columns = [np.repeat(numbers, 4).astype(np.float64)]
    whole = by_content().episodes(np.arange(7), columns, np.arange(8) * 4)
    before = {i: n for i, n in enumerate(whole.names["occurrence"].tolist()) if n}
    assert before == {2: 1, 4: 1, 5: 2, 6: 3}
    for start, stop in [(0, 7), (4, 7), (2, 5)]:
        part = by_content(occurrences=before).episodes(
            np.arange(start, stop), [columns[0][start * 4 : stop * 4]], np.arange(stop - start + 1) * 4
        )
        assert all_keys(part, 4)[0] == all_keys(whole.take(slice(start, stop)), 4)[0]


def test_episodes_that_are_taken_back_are_not_counted():
    made = by_content()
    row = [np.zeros(6)], np.array([0, 3, 6])
    first = made.episodes(np.arange(2), *row)
    made.take_back(first.take(slice(1, None)))
    again = made.episodes(np.array([1, 2]), *row)
    assert (first.names["occurrence"].tolist(), again.names["occurrence"].tolist()) == ([0, 1], [1, 2])
    on = by_content()
    on.go_on_from(first.names)
    assert on.episodes(np.array([2]), [np.zeros(3)], np.array([0, 3])).names["occurrence"].tolist() == [2]


def test_episodes_whose_hashes_collide_are_named(monkeypatch):
    monkeypatch.setattr(item_keys, "_NAME_MASK", np.uint64(7))
    rows = [np.arange(60.0)], np.arange(0, 61, 3)
    with pytest.raises(SinkError, match=r"memory: episode \d+ and episode \d+ differ") as caught:
        by_content().episodes(np.arange(20), *rows)
    first, second = map(int, re.findall(r"episode (\d+)", str(caught.value)))
    names = content_hashes(*rows)[:, 0] & np.uint64(7)
    assert first < second and names[first] == names[second]
    equal = by_content().episodes(np.arange(20), [np.tile([1.0, 2, 3], 20)], rows[1])
    assert equal.names["occurrence"].tolist() == list(range(20))


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


@given(rows=LENGTHS, dtypes=DTYPES, width=WIDTHS)
def test_checksums_of_many_episodes_are_those_of_each(rows, dtypes, width):
    tensors, edges, apart = several(rows, dtypes, width)
    assert checksums(tensors, edges).tolist() == [checksum(one) for one in apart]


@given(seeds=st.lists(SEEDS, min_size=1, max_size=5), numbers=st.lists(st.integers(0, 2**40), min_size=1, max_size=9))
def test_keys_of_many_episodes_are_those_of_each(seeds, numbers):
    of = np.arange(len(numbers)) % len(seeds)
    many = np.array(seeds, np.uint64)
    keys = EpisodeKeys(many, many, many, np.arange(len(seeds)) * 3)
    expected = [keys_of(seeds[i], 3 * int(i), np.array([n]))[0] for i, n in zip(of, numbers, strict=True)]
    assert keys.items(of, np.array(numbers)).tolist() == keys.chunks(of, np.array(numbers)).tolist() == expected
