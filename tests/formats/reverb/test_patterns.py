from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, EpisodeError, spec_of
from rlds2buf.core import nest
from rlds2buf.formats.reverb.patterns.make import make_pattern
from rlds2buf.formats.reverb.patterns.trajectories import EpisodePattern, TrajectoryPattern
from rlds2buf.formats.reverb.patterns.transitions import TransitionItem, TransitionPattern
from rlds2buf.formats.reverb.protocol.signature import flatten_spec
from tests.formats.reverb.numbered import numbered
from tests.reference.reverb_observers import episode_items, trajectory_items
from tests.reference.views import steps_of
from tests.reference.views import transitions as naive_transitions
from tests.views.episodes import episodes


def frames_of(pattern, lengths):
    """Per episode, its items as lists of (episode, row); padding is row -1."""
    pattern.reset()
    out = []
    for number, rows in enumerate(lengths):
        laid = pattern.lay(numbered(number, rows))
        observed = laid.tensors[1]
        assert len(set(laid.numbers.tolist())) == len(laid.numbers)
        assert all(0 <= row < rows for row in laid.rows.tolist())
        span = laid.spans[0]
        assert (np.diff(span.starts) >= 0).all() and (np.diff(span.stops) >= 0).all()
        out.append(
            [
                [(number, -1) if value == 0 else divmod(int(value) - 1, 100) for value in observed[start:stop]]
                for start, stop in zip(*span, strict=True)
            ]
        )
    return out


LENGTHS = [3, 1, 4]


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        (TrajectoryPattern(2), 5),
        (TrajectoryPattern(2, 2), 3),
        (TrajectoryPattern(5), 0),
        (TrajectoryPattern(2, cross=True), 7),
        (EpisodePattern(), 3),
    ],
)
def test_counts_of_tf_agents_observers(pattern, count):
    assert sum(map(len, frames_of(pattern, LENGTHS))) == count


@pytest.mark.parametrize(("tile", "count"), [(False, 1), (True, 3)])
def test_counts_of_padding(tile, count):
    assert len(frames_of(TrajectoryPattern(4, pad=True, tile=tile), [3])[0]) == count


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    length=st.integers(1, 6),
    stride=st.integers(1, 4),
    kind=st.sampled_from([{}, {"pad": True}, {"pad": True, "tile": True}, {"cross": True}]),
)
def test_trajectories_are_the_observers(lengths, length, stride, kind):
    pattern = TrajectoryPattern(length, stride, **kind)
    found = frames_of(pattern, lengths)
    assert found == trajectory_items(lengths, length, stride, **kind)
    expected = pattern.count(sum(lengths), len(lengths))
    assert expected is None or expected == sum(map(len, found))


@settings(deadline=None)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
def test_whole_episodes_are_the_observers(lengths):
    assert frames_of(EpisodePattern(), lengths) == episode_items(lengths)


def test_padding_frames_are_border_frames():
    laid = TrajectoryPattern(5, pad=True).lay(numbered(0, 3))
    step_type, observed, action, following, reward, discount = laid.tensors
    assert step_type.tolist() == [0, 1, 2, 2, 2]
    assert following.tolist() == [1, 2, 0, 0, 0]
    assert observed.tolist() == [1, 2, 3, 0, 0]
    assert not action[3:].any() and not reward[3:].any() and not discount[3:].any()


def test_padding_of_byte_strings_is_empty():
    ep = numbered(0, 2)
    ep = ep.replace(observation=np.array([b"a", b"b"], object))
    assert TrajectoryPattern(4, pad=True).lay(ep).tensors[1].tolist() == [b"a", b"b", b"", b""]


@pytest.mark.parametrize(("mode", "discounts"), [("transition", [1, 0, 1]), ("boundary", [1, 1, 0])])
def test_the_terminal_discount(mode, discounts):
    pattern = TrajectoryPattern(2, terminal_discount=mode)
    assert pattern.lay(numbered(0, 3, "terminated")).tensors[-1].tolist() == discounts


@pytest.mark.parametrize("pattern", [TrajectoryPattern(2), EpisodePattern()])
def test_discounts_that_are_not_the_logged_ones_are_noted(pattern):
    given = [numbered(0, 3, "terminated"), numbered(1, 3), numbered(2, 1, "terminated")]
    assert pattern.note == ""
    for ep in [*given, given[0].replace(discount=np.array([1.0, 0, 1])), given[0].replace(discount=None)]:
        pattern.lay(ep)
    assert pattern.note.startswith("2 discounts into a terminal step")
    pattern.reset()
    assert pattern.note == ""


def test_an_episode_of_one_row_is_last_on_both_sides():
    tensors = EpisodePattern().lay(numbered(0, 1)).tensors
    assert tensors[0].tolist() == [2] and tensors[3].tolist() == [2]


@settings(deadline=None)
@given(episode=episodes(), n_step=st.integers(1, 5), gamma=st.sampled_from([1.0, 0.9, 0.0]))
def test_transitions_are_the_naive_ones(episode, n_step, gamma):
    names = tuple(episode.extras)
    pattern = TransitionPattern(n_step=n_step, gamma=gamma, extras=names)
    laid = pattern.lay(episode)
    expected = naive_transitions(steps_of(episode), n_step, gamma)
    columns = pattern.columns(spec_of(episode))
    assert len(laid.numbers) == len(expected)
    for i, step in enumerate(expected):
        got = [laid.tensors[column.tensor][laid.spans[column.span].starts[i]] for column in columns]
        extras = {name: step["extras"][name] for name in names}
        want = TransitionItem(
            *(step[name] for name in ("observation", "action", "reward", "discount", "next_observation")), extras or ()
        )
        for one, (path, other) in zip(got, nest.flatten(tuple(want)), strict=True):
            if np.asarray(other).dtype.kind == "f":
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6, err_msg=str(path))
            else:
                assert np.array_equal(one, other), path


@settings(deadline=None)
@given(
    episode=episodes(max_rows=8),
    pattern=st.sampled_from(
        [
            TrajectoryPattern(3),
            TrajectoryPattern(4, pad=True),
            EpisodePattern(),
            TransitionPattern(n_step=2),
            TrajectoryPattern(2, cross=True),
        ]
    ),
)
def test_signature_columns_and_items_agree_with_the_tensors(episode, pattern):
    pattern.reset()
    spec = spec_of(episode)
    fields = flatten_spec(pattern.signature(spec))
    columns = pattern.columns(spec)
    laid = pattern.lay(episode)
    assert len(fields) == len(columns)
    whole = [leaf for _, leaf in nest.flatten(tuple(laid.items()))]
    for (path, field), column, items in zip(fields, columns, whole, strict=True):
        tensor, span = laid.tensors[column.tensor], laid.spans[column.span]
        for i in range(len(laid.numbers)):
            rows = tensor[span.starts[i] : span.stops[i]]
            value = rows[0] if column.squeeze else rows
            assert np.array_equal(items[i], value), path
            assert field.accepts(np.shape(value), tensor.dtype), (path, field, np.shape(value))


def test_policy_info_and_extras_come_from_the_extra_fields():
    ep = numbered(0, 3)
    ep = Episode(
        observation=ep.observation, action=ep.action, reward=ep.reward, extras={"log_prob": np.arange(3.0)}, index=0
    )
    laid = TrajectoryPattern(2, policy_info="log_prob").lay(ep)
    assert laid.items().policy_info.tolist() == [[0, 1], [1, 2]]
    assert TransitionPattern(extras=("log_prob",)).lay(ep).items().extras["log_prob"].tolist() == [0, 1]
    for pattern in (TrajectoryPattern(2, policy_info="other"), TransitionPattern(extras=("other",))):
        with pytest.raises(ValueError, match="no extra field 'other'"):
            pattern.signature(spec_of(ep))
        with pytest.raises(EpisodeError, match="extras/other"):
            pattern.lay(ep)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (dict(sequence_length=0), "at least 1"),
        (dict(stride=0), "at least 1"),
        (dict(tile=True), "tile needs pad"),
        (dict(pad=True, cross_episodes=True), "never padded"),
        (dict(terminal_discount="none"), "terminal_discount"),
        (dict(kind="transition", n_step=0), "n_step"),
        (dict(kind="transition", gamma=1.5), "gamma"),
        (dict(kind="nonsense"), "pattern must be"),
    ],
)
def test_arguments_out_of_range(arguments, words):
    with pytest.raises(ValueError, match=words):
        make_pattern(**arguments)


def test_texts_tell_patterns_apart():
    texts = {
        make_pattern(kind, **arguments).text
        for kind, arguments in [
            ("trajectory", {}),
            ("trajectory", {"sequence_length": 3}),
            ("trajectory", {"stride": 2}),
            ("trajectory", {"pad": True}),
            ("trajectory", {"pad": True, "tile": True}),
            ("trajectory", {"cross_episodes": True}),
            ("trajectory", {"terminal_discount": "boundary"}),
            ("trajectory", {"policy_info": "x"}),
            ("transition", {}),
            ("transition", {"n_step": 2}),
            ("transition", {"gamma": 0.5}),
            ("transition", {"extras": ("x",)}),
            ("episode", {}),
        ]
    }
    assert len(texts) == 13


PATTERNS = [
    TrajectoryPattern(2),
    TrajectoryPattern(3, 2),
    TrajectoryPattern(4, pad=True),
    TrajectoryPattern(3, 2, pad=True, tile=True, terminal_discount="boundary"),
    TrajectoryPattern(3, 2, cross=True),
    TrajectoryPattern(2, policy_info="note"),
    EpisodePattern(),
    TransitionPattern(),
    TransitionPattern(n_step=3, gamma=0.9, extras=("note",)),
]


@settings(deadline=None)
@given(
    pattern=st.sampled_from(PATTERNS),
    kinds=st.lists(st.tuples(st.integers(1, 50), st.sampled_from(["terminated", "truncated", "open"])), min_size=1),
    chosen=st.integers(0, 2**12),
)
def test_a_batch_is_laid_out_as_its_episodes_are(pattern, kinds, chosen):
    def given(number, rows, end):
        one = numbered(number, rows, "terminated" if end == "terminated" else "truncated")
        last = one.is_last & (end != "open")
        words = np.array([b"w%d" % (t % 7) for t in range(rows)], object)
        return one.replace(is_last=last, extras={"note": words}, discount=np.linspace(1, 0.5, rows))

    episodes = [given(number, *kind) for number, kind in enumerate(kinds)]
    pattern.reset()
    apart = [pattern.lay(episode) for episode in episodes]
    said = pattern.note
    pattern.reset()
    laid = pattern.lay(EpisodeBatch.of(episodes))
    assert pattern.note == said
    pattern.take_back(EpisodeBatch.of(episodes))
    assert pattern.note == ""
    whole = laid.first_items()
    for i, one in enumerate(apart):
        items = nest.flatten(tuple(laid.items(slice(whole[i], whole[i + 1])))) if laid.counts[i] else ()
        for (_, column), (_, other) in zip(
            items, nest.flatten(tuple(one.items())) if laid.counts[i] else (), strict=True
        ):
            assert column.dtype == other.dtype and column.tolist() == other.tolist()
    which = np.array([chosen >> i & 1 for i in range(len(kinds))], np.bool_)
    for wanted in (np.ones(len(kinds), np.bool_), which):
        if not wanted.any():
            continue
        part, some = laid.take(wanted), [one for one, want in zip(apart, wanted, strict=True) if want]
        starts = [0, *np.cumsum([len(one.tensors[0]) for one in some]).tolist()]
        assert part.edges.tolist() == starts
        assert part.counts.tolist() == [len(one.numbers) for one in some]
        for name in ("numbers", "rows"):
            assert getattr(part, name).tolist() == [n for one in some for n in getattr(one, name).tolist()]
        for column, others in zip(part.tensors, zip(*(one.tensors for one in some), strict=True), strict=True):
            assert column.dtype == others[0].dtype
            assert column.tolist() == [row for other in others for row in other.tolist()]
        for span, others in zip(part.spans, zip(*(one.spans for one in some), strict=True), strict=True):
            for side in (0, 1):
                expected = [
                    row + start for one, start in zip(others, starts, strict=False) for row in one[side].tolist()
                ]
                assert span[side].tolist() == expected
