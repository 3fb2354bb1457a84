"""RLlib's batches: the real files, batches of every kind, and what is refused."""

from __future__ import annotations

import base64
import itertools
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlds2buf import Episode, EpisodeBatch, SourceFormatError, SourceNotFound, SpecMismatch, open_source, transitions
from rlds2buf.errors import Rlds2bufError
from rlds2buf.formats.rllib.episode_joiner import EpisodeJoiner
from rlds2buf.formats.rllib.source import RllibSource
from tests.contracts.source import MakeSource, SourceContract, assert_same_episode
from tests.data import DATA, RLLIB
from tests.reference.msgpack import pack

LZ4 = base64.b64encode(b"\x04\x22\x4d\x18\x60\x40\x82" + pickle.dumps([1.0])).decode()


def steps(episode: int, length: int, *, first: int = 0, end: str = "dones", **more: Any) -> list[dict[str, Any]]:
    """Rows of RLlib's: observation ``[episode, t]``, action t, reward t / 2; the last one flagged by `end`."""
    return [
        {
            "obs": [float(episode), float(t)],
            "new_obs": [float(episode), t + 1.0],
            "actions": t,
            "rewards": t / 2,
            "eps_id": 1000 + episode,
            "t": t,
            "agent_index": 0,
            **({end: t == length - 1} if end in ("dones", "terminateds") else {}),
            **({"terminateds": False, "truncateds": t == length - 1} if end == "truncateds" else {}),
            **more,
        }
        for t in range(first, length)
    ]


def batch(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "SampleBatch", **{key: [row[key] for row in rows] for key in rows[0]}}


def lines(path: Path, values: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, values)) + "\n")
    return path


def parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def lengths(source: Any) -> list[int]:
    return [episode.num_steps for episode in source]


class TestRealFiles:
    @pytest.mark.parametrize("name", RLLIB)
    def test_values(self, name: str) -> None:
        source = open_source(DATA / name)
        assert type(source) is RllibSource
        episodes = list(source)
        assert lengths(episodes) == [57, 27, 21] and all(episode.end == "terminated" for episode in episodes)
        for episode in episodes:
            assert episode.observation.shape[1:] == (4,) and episode.action.dtype == np.int64
            assert transitions(episode).reward.tolist() == [1.0] * episode.num_transitions
        assert episodes[0].metadata == {"eps_id": 241561760, "agent_index": 0}
        assert sorted(episodes[0].extras) == ["action_prob", "prev_actions", "prev_rewards", "q_values", "weights"]
        assert source.details()["ends"] == ["dones"]
        assert "dones do not tell time limits" in source.details()["notes"][0]

    def test_the_two_forms_hold_the_same(self) -> None:
        for one, other in zip(*(RllibSource(DATA / name) for name in RLLIB), strict=True):
            np.testing.assert_allclose(one.observation, other.observation, atol=1e-9)
            np.testing.assert_array_equal(one.action, other.action)

    def test_as_the_file_says(self) -> None:
        """A naive walk along the rows of the row-wise file."""
        rowwise = DATA / RLLIB[0]
        rows = [json.loads(line) for line in rowwise.read_text().splitlines()]
        found = [row for episode in RllibSource(rowwise) for row in episode.observation[:-1].tolist()]
        assert found == [row["obs"] for row in rows]
        ends = [episode.observation[-1].tolist() for episode in RllibSource(rowwise)]
        assert ends == [row["new_obs"] for row in rows if row["dones"]]


KINDS = ("batches", "rows", "parquet", "parquet-batches")


def write(folder: Path, kind: str, episodes: list[list[dict[str, Any]]], cuts: list[int]) -> Path:
    """Episodes as one kind of file, cut into pieces behind these rows; every second piece in another file."""
    rows = [row for episode in episodes for row in episode]
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(rows)}), len(rows)]
    pieces = [rows[a:b] for a, b in itertools.pairwise(edges)]
    for i in range(0, len(pieces), 2):
        name, two = folder / f"output-{i:04d}", pieces[i : i + 2]
        if kind == "batches":
            lines(name.with_suffix(".json"), [batch(piece) for piece in two])
        elif kind == "rows":
            lines(name.with_suffix(".json"), [row for piece in two for row in piece])
        elif kind == "parquet":
            parquet(name.with_suffix(".parquet"), [row for piece in two for row in piece])
        else:
            parquet(name.with_suffix(".parquet"), [batch(piece) for piece in two])
    return folder


@pytest.mark.parametrize("kind", KINDS)
class TestContract(SourceContract):
    @pytest.fixture
    def folder(self, kind: str, tmp_path: Path) -> Path:
        episodes = [steps(0, 4), steps(1, 2), steps(2, 5), steps(3, 3)[:2]]
        return write(tmp_path / "out", kind, episodes, [2, 5, 7])

    @pytest.fixture
    def make_source(self, folder: Path) -> MakeSource:  # type: ignore[override]
        return lambda: open_source(folder)

    @pytest.fixture
    def change(self, folder: Path, kind: str) -> Callable[[], None]:
        return lambda: write(folder, kind, [steps(8, 3)], []) and None


@pytest.mark.parametrize("kind", KINDS)
class TestPieces:
    @given(data=st.data())
    @settings(max_examples=20, deadline=None)
    def test_cut_anywhere(self, kind: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
        sizes = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=6))
        cuts = data.draw(st.lists(st.integers(1, sum(sizes)), max_size=6))
        folder = write(tmp_path_factory.mktemp("out"), kind, [steps(i, n) for i, n in enumerate(sizes)], cuts)
        found = list(RllibSource(folder))
        assert lengths(found) == [n + 1 for n in sizes]
        for i, episode in enumerate(found):
            assert episode.observation.tolist() == [[i, t] for t in range(sizes[i] + 1)]
            assert episode.action.tolist() == [*range(sizes[i]), 0]
            assert episode.reward.tolist() == [*(t / 2 for t in range(sizes[i])), 0]
            assert episode.end == "terminated" and episode.discount[-2:].tolist() == [0, 0]

    def test_interleaved_episodes(self, kind: str, tmp_path: Path) -> None:
        """Several environments at a time: each batch goes on with each of their episodes."""
        one, two = steps(1, 5), steps(2, 4)
        rows = [*one[:2], *two[:1], *one[2:4], *two[1:3], *one[4:], *two[3:]]
        found = list(RllibSource(write(tmp_path / "out", kind, [rows], [3, 7])))
        assert lengths(found) == [6, 5]
        assert [episode.metadata["eps_id"] for episode in found] == [1001, 1002]

    def test_an_episode_of_which_the_middle_is_there(self, kind: str, tmp_path: Path) -> None:
        (episode,) = RllibSource(write(tmp_path / "out", kind, [steps(1, 9, first=4)[:3]], []))
        assert episode.num_steps == 4 and episode.end == "truncated"
        assert episode.metadata == {"eps_id": 1001, "agent_index": 0, "first_t": 4, "open_tail": True}

    def test_the_same_id_anew(self, kind: str, tmp_path: Path) -> None:
        rows = [*steps(1, 9)[:3], *steps(1, 2)]
        assert lengths(RllibSource(write(tmp_path / "out", kind, [rows], []))) == [4, 3]

    @pytest.mark.parametrize(("end", "wanted"), [("terminateds", "terminated"), ("truncateds", "truncated")])
    def test_ends_of_the_new_stack(self, kind: str, tmp_path: Path, end: str, wanted: str) -> None:
        source = RllibSource(write(tmp_path / "out", kind, [steps(1, 3, end=end)], []))
        (episode,) = source
        assert episode.end == wanted and "open_tail" not in episode.metadata
        assert episode.discount[-2] == (0 if wanted == "terminated" else 1)
        assert not any("dones" in note for note in source.details()["notes"])

    def test_what_a_done_means(self, kind: str, tmp_path: Path) -> None:
        folder = write(tmp_path / "out", kind, [steps(1, 3), steps(2, 5)], [])
        assert [e.end for e in RllibSource(folder)] == ["terminated"] * 2
        assert [e.end for e in RllibSource(folder, dones="truncated")] == ["truncated"] * 2
        assert [e.end for e in RllibSource(folder, max_episode_steps=5)] == ["terminated", "truncated"]

    def test_without_the_next_observation(self, kind: str, tmp_path: Path) -> None:
        def cut(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
            return [{key: value for key, value in row.items() if key != "new_obs"} for row in rows]

        done, open_ = RllibSource(write(tmp_path / "out", kind, [cut(steps(1, 3)), cut(steps(2, 9))[:4]], []))
        assert done.observation.tolist() == [[1, 0], [1, 1], [1, 2], [0, 0]]
        assert done.metadata["placeholder_final_row"] is True and done.end == "terminated"
        assert open_.num_steps == 4 and open_.metadata["open_tail"] is True

    def test_extras_and_infos(self, kind: str, tmp_path: Path) -> None:
        rows = steps(1, 3, action_logp=-0.5, infos={"lives": 3}, unroll_id=4)
        folder = write(tmp_path / "out", kind, [rows], [])
        (episode,) = RllibSource(folder)
        assert episode.extras["action_logp"].tolist() == [-0.5, -0.5, -0.5, 0]
        assert sorted(episode.extras) == ["action_logp", "unroll_id"]
        (episode,) = RllibSource(folder, infos=True)
        assert [json.loads(text) for text in episode.extras["infos"][:3]] == [{"lives": 3}] * 3

    def test_nested_observations(self, kind: str, tmp_path: Path) -> None:
        rows = steps(1, 3)
        for row in rows:
            for name in ("obs", "new_obs"):
                row[name] = {"x": row[name], "deep": {"y": row[name][1]}}
        (episode,) = RllibSource(write(tmp_path / "out", kind, [rows], []))
        assert episode.observation["x"].shape == (4, 2) and episode.observation["deep"]["y"].tolist() == [0, 1, 2, 3]

    def test_packed_columns_are_refused(self, kind: str, tmp_path: Path) -> None:
        rows = steps(1, 3)
        for row in rows:
            row["obs"] = LZ4
        with pytest.raises(SourceFormatError, match=r"'obs' is packed .* never loaded; .*output_compress_columns=\[\]"):
            open_source(write(tmp_path / "out", kind, [rows], []))

    def test_several_policies(self, kind: str, tmp_path: Path) -> None:
        if "batches" in kind:
            both = {"type": "MultiAgentBatch", "count": 3, "policy_batches": {}}
            for policy, rows in (("left", steps(1, 3)), ("right", steps(2, 2))):
                both["policy_batches"][policy] = {key: [row[key] for row in rows] for key in rows[0]}  # type: ignore[index]
            path = tmp_path / "out/a.json"
            (lines if kind == "batches" else lambda p, v: parquet(p.with_suffix(".parquet"), v))(path, [both])
        else:
            rows = [{**row, "module_id": name} for name, n in (("left", 3), ("right", 2)) for row in steps(n - 2, n)]
            if kind == "rows":
                lines(tmp_path / "out/a.json", rows)
            else:
                parquet(tmp_path / "out/a.parquet", rows)
        with pytest.raises(SourceFormatError, match="several policies; name one with policy=: 'left', 'right'"):
            RllibSource(tmp_path / "out")
        assert lengths(RllibSource(tmp_path / "out", policy="left")) == [4]
        with pytest.raises(SourceFormatError, match=r"no steps of the policy 'up'; .*: 'left', 'right'"):
            RllibSource(tmp_path / "out", policy="up")

    def test_a_policy_where_there_is_one(self, kind: str, tmp_path: Path) -> None:
        folder = write(tmp_path / "out", kind, [steps(1, 2)], [])
        assert lengths(RllibSource(folder, policy="default_policy")) == [3]
        with pytest.raises(SourceFormatError, match="'x' is not one of its policies: 'default_policy'"):
            RllibSource(folder, policy="x")


class TestParquetOfRay:
    def test_tensors_of_ray_data(self, tmp_path: Path) -> None:
        """Arrays of more than one axis have a type of Ray's own, which reads as lists with the shape beside it."""
        rows = steps(1, 3)
        frames = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(3, 12)
        table = pa.Table.from_pylist(rows)
        notes = {"ARROW:extension:name": "ray.data.arrow_tensor", "ARROW:extension:metadata": "[2, 2, 3]"}
        for name in ("obs", "new_obs"):
            column = pa.array(frames.tolist(), pa.list_(pa.uint8()))
            place = table.column_names.index(name)
            table = table.set_column(place, pa.field(name, column.type, metadata=notes), column)
        pq.write_table(table, tmp_path / "a.parquet")
        (episode,) = RllibSource(tmp_path / "a.parquet")
        assert episode.observation.shape == (4, 2, 2, 3) and episode.observation.dtype == np.uint8

    @pytest.mark.parametrize("vary", [False, True])
    def test_batches_with_tensors_of_ray_data(self, tmp_path: Path, vary: bool) -> None:
        """Batches of equal length are tensors of one shape, others have each its own."""
        batches = [batch(steps(1, 3)), batch(steps(2, 2 if vary else 3))]
        table = pa.Table.from_pylist(batches)
        for name in ("obs", "new_obs"):
            values = [np.asarray(one[name]) for one in batches]
            if vary:
                told = "ray.data.arrow_variable_shaped_tensor", "2"
                column = pa.array([{"data": v.ravel().tolist(), "shape": list(v.shape)} for v in values])
            else:
                told = "ray.data.arrow_tensor", "[3, 2]"
                column = pa.array([v.ravel().tolist() for v in values])
            notes = {"ARROW:extension:name": told[0], "ARROW:extension:metadata": told[1]}
            place = table.column_names.index(name)
            table = table.set_column(place, pa.field(name, column.type, metadata=notes), column)
        pq.write_table(table, tmp_path / "a.parquet")
        found = [episode.observation.tolist() for episode in RllibSource(tmp_path / "a.parquet")]
        assert found == [[[1, t] for t in range(4)], [[2, t] for t in range(3 if vary else 4)]]

    def test_names_that_are_null(self, tmp_path: Path) -> None:
        rows = steps(1, 3, end="terminateds", agent_id=None, module_id=None)
        for row in rows:
            row["eps_id"] = "abc"
            del row["t"]
        (episode,) = RllibSource(parquet(tmp_path / "a.parquet", rows))
        assert episode.metadata == {"eps_id": b"abc", "agent_index": 0} and episode.num_steps == 4


def state(
    number: int, steps: int, *, first: int = 0, whole: bool = False, lookback: int = 0, **more: Any
) -> dict[str, Any]:
    """The state of a SingleAgentEpisode of Ray 2.44: observation ``[number, t]``, action t, reward t / 2."""

    def buffer(values: list[Any], back: list[Any]) -> dict[str, Any]:
        held = [*back[len(back) - lookback :], *values]
        return {"data": np.array(held) if whole else held, "lookback": lookback, "finalized": whole, "space": None}

    def seen(t: int) -> np.ndarray:
        return np.array([number, t], np.float32)

    before, after = range(first), range(first, first + steps)
    return {
        "id_": f"episode {number}",
        "agent_id": None,
        "module_id": None,
        "observations": buffer([seen(t) for t in [*after, first + steps]], [seen(t) for t in before]),
        "actions": buffer(list(after), list(before)),
        "rewards": buffer([t / 2 for t in after], [t / 2 for t in before]),
        "infos": {"data": [{"t": t} for t in range(first - lookback, first + steps + 1)], "lookback": lookback},
        "extra_model_outputs": {"logp": buffer([np.float32(0.5)] * steps, [np.float32(0.5)] * first)},
        "is_terminated": True,
        "is_truncated": False,
        "t_started": first,
        **more,
    }


class TestWholeEpisodes:
    """What the new API stack writes by default, one binary a row."""

    def write(self, path: Path, states: list[dict[str, Any]]) -> Path:
        return parquet(path, [{"item": pack(one)} for one in states])

    @pytest.mark.parametrize("whole", [False, True])
    def test_values(self, tmp_path: Path, whole: bool) -> None:
        path = self.write(tmp_path / "a.parquet", [state(i, 2 + i, whole=whole) for i in range(3)])
        source = open_source(path)
        assert type(source) is RllibSource
        for i, episode in enumerate(source):
            assert episode.observation.tolist() == [[i, t] for t in range(3 + i)]
            assert episode.observation.dtype == np.float32 and episode.action.tolist() == [*range(2 + i), 0]
            assert episode.extras["logp"].tolist() == [0.5] * (2 + i) + [0] and episode.end == "terminated"
            assert episode.metadata == {"eps_id": f"episode {i}".encode()}
        (first, *_) = RllibSource(path, infos=True)
        if not whole:
            assert [json.loads(text) for text in first.extras["infos"][:2]] == [{"t": 1}, {"t": 2}]

    @pytest.mark.parametrize("lookback", [0, 1, 3])
    def test_parts_are_joined(self, tmp_path: Path, lookback: int) -> None:
        open_ = {"is_terminated": False}
        states = [
            state(1, 4, **open_),
            state(2, 2),
            state(1, 3, first=4, lookback=lookback, is_terminated=False, is_truncated=True),
        ]
        other, joined = RllibSource(self.write(tmp_path / "a.parquet", states))
        assert other.num_steps == 3
        assert joined.observation.tolist() == [[1, t] for t in range(8)] and joined.end == "truncated"
        assert joined.action.tolist() == [*range(7), 0] and "open_tail" not in joined.metadata

    def test_nested_observations(self, tmp_path: Path) -> None:
        nested = {"data": [{"x": np.float32(t), "y": {"z": np.zeros(2)}} for t in range(3)], "lookback": 0}
        (episode,) = RllibSource(self.write(tmp_path / "a.parquet", [state(1, 2, observations=nested)]))
        assert episode.observation["x"].tolist() == [0, 1, 2] and episode.observation["y"]["z"].shape == (3, 2)

    @pytest.mark.parametrize(
        ("more", "message"),
        [
            (
                {"observations": {"data": np.array([{}, {}, {}], object)}},
                "observations: an array of objects, which is a pickle",
            ),
            ({"observations": {"data": [np.zeros(2)] * 2}}, r"observations of \(2, 2\) beside 2 rewards"),
            (
                {"observations": {"data": [np.zeros(2), np.zeros(3), np.zeros(2)]}},
                "observations: values of different shapes",
            ),
            ({"observations": {"data": ["a", "b", "c"]}}, "observations: its values are no numbers"),
            ({"observations": [1, 2, 3]}, "observations: not the state of a buffer"),
            ({"actions": {"data": [1, 2], "lookback": "x"}}, "actions: a lookback of 'x'"),
            ({"extra_model_outputs": {"logp": {"data": [0.5]}}}, "logp has not one row for each of 2 steps"),
        ],
    )
    def test_what_is_refused(self, tmp_path: Path, more: dict[str, Any], message: str) -> None:
        path = self.write(tmp_path / "a.parquet", [state(1, 2, **more)])
        with pytest.raises(SourceFormatError, match=f"row 0: .*{message}.*output_write_episodes=False"):
            RllibSource(path)

    def test_infos_that_are_a_pickle(self, tmp_path: Path) -> None:
        """Some versions make an array of objects of them; they stay closed, and the rest is read."""
        infos = {"data": np.array([{}, None, {}], object), "lookback": 0}
        path = self.write(tmp_path / "a.parquet", [state(1, 2, infos=infos)])
        assert lengths(RllibSource(path)) == [3]
        with pytest.raises(SourceFormatError, match="the infos are a pickle, which is never loaded"):
            RllibSource(path, infos=True)

    @pytest.mark.parametrize("item", [b"", b"\xc1", pack([["id_", 1]]), pack({"agent_episodes": {}})])
    def test_other_items(self, tmp_path: Path, item: bytes) -> None:
        with pytest.raises(SourceFormatError, match="row 0: "):
            RllibSource(parquet(tmp_path / "a.parquet", [{"item": item}]))

    def test_damage(self, tmp_path: Path) -> None:
        whole = pack(state(1, 4))
        rng = np.random.default_rng(0)
        for _ in range(300):
            data = bytearray(whole)
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
            path = parquet(tmp_path / "a.parquet", [{"item": bytes(data)}])
            try:
                list(RllibSource(path))
            except Rlds2bufError:
                continue


class TestRefusals:
    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1], "a.json:1: a JSON list, not an object"),
            ({"type": "Other"}, "a Other, where RLlib writes SampleBatch or MultiAgentBatch"),
            ({"type": "MultiAgentBatch"}, "a MultiAgentBatch without policy_batches"),
            ({**batch(steps(1, 2)), "obs": [[1.0], [1.0, 2.0]]}, "obs: rows of different lengths"),
            ({**batch(steps(1, 2)), "obs": [[1.0]]}, "'obs' has 1 rows, but .* 2"),
            ({**batch(steps(1, 2)), "obs": [None, 1.0]}, "obs: its values are neither all numbers nor all texts"),
            ({**batch(steps(1, 2)), "dones": [[True], [False]]}, "'dones' should hold one number a step"),
            ({**batch(steps(1, 2)), "eps_id": [[1], [1]]}, "'eps_id' should hold one number or text a step"),
            ({k: v for k, v in batch(steps(1, 2)).items() if k != "dones"}, "none of dones, terminateds, truncateds"),
            ({k: v for k, v in batch(steps(1, 2)).items() if k != "rewards"}, "no column 'rewards'; there are"),
            ({**batch(steps(1, 2)), "obs": [{"a": 1}, {"b": 1}]}, "obs: its objects have different keys"),
            ({**batch(steps(1, 2)), "obs": [10**400, 1]}, "obs: "),
        ],
    )
    def test_lines(self, tmp_path: Path, value: Any, message: str) -> None:
        with pytest.raises(SourceFormatError, match=message):
            list(RllibSource(lines(tmp_path / "a.json", [value])))

    @pytest.mark.parametrize("text", ["{", '{"a": ', "\x00\x01", '{"a": ' * 100_000])
    def test_what_is_no_json(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "a.json").write_text(text)
        with pytest.raises(SourceFormatError, match=r"a\.json:1: not readable as JSON"):
            RllibSource(tmp_path / "a.json")

    def test_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(SourceNotFound, match=r"no files of \.json"):
            RllibSource(tmp_path)
        (tmp_path / "a.json").write_text("\n\n")
        with pytest.raises(SourceFormatError, match="no steps in 1 files"):
            RllibSource(tmp_path)

    @pytest.mark.parametrize("options", [{"dones": "over"}, {"max_episode_steps": 0}])
    def test_wrong_options(self, tmp_path: Path, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            RllibSource(lines(tmp_path / "a.json", [batch(steps(1, 2))]), **options)

    def test_an_episode_of_other_columns_leaves_the_others(self, tmp_path: Path) -> None:
        odd = steps(2, 3)
        for row in odd:
            row["obs"], row["new_obs"] = row["obs"] * 2, row["new_obs"] * 2
        more = [{**row, "extra": 1.0} for row in steps(3, 2)]
        values = [batch(rows) for rows in (steps(1, 2), odd, more, steps(4, 2))]
        found = list(RllibSource(lines(tmp_path / "a.json", values)).read())
        assert [type(item) for item in found] == [Episode, SpecMismatch, SpecMismatch, Episode]
        assert [getattr(item, "episode", None) for item in found] == [None, 1, 2, None]

    def test_whole_numbers_among_others(self, tmp_path: Path) -> None:
        """JSON writes 1.0 as 1 in some languages; the first episode tells the type."""
        whole = steps(2, 2)
        for row in whole:
            row["obs"], row["new_obs"] = [2, 0], [2, 1]
        found = list(RllibSource(lines(tmp_path / "a.json", [batch(steps(1, 2)), batch(whole)])))
        assert [episode.observation.dtype for episode in found] == [np.float64] * 2


@pytest.mark.parametrize("kind", KINDS)
def test_damage(tmp_path: Path, kind: str) -> None:
    """Cut short, or with bytes changed, a file gives a typed error or episodes; nothing else."""
    folder = write(tmp_path / "out", kind, [steps(0, 3), steps(1, 2)], [])
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for trial in range(150):
        data = bytearray(whole)
        if trial % 2:
            del data[int(rng.integers(len(data))) :]
        else:
            data[int(rng.integers(len(data)))] = int(rng.integers(256))
        file.write_bytes(data)
        try:
            list(RllibSource(folder))
        except Rlds2bufError:
            refused += 1
    assert refused > 60


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("obs", {"x": 1}, "where a list with a value for each row belongs"),
        ("new_obs", [[[0.5]]] * 6, "differ in structure"),
    ],
)
def test_columns_that_are_none(name: str, value: Any, said: str, tmp_path: Path) -> None:
    columns: dict[str, Any] = {
        "type": "SampleBatch",
        "obs": [[0.5, 1.0]] * 6,
        "new_obs": [[0.5, 1.0]] * 6,
        "actions": [0, 1] * 3,
        "rewards": [1.0] * 6,
        "terminateds": [False, False, True] * 2,
        "truncateds": [False] * 6,
        "eps_id": [7, 7, 7, 8, 8, 8],
        name: value,
    }
    path = tmp_path / "batches.json"
    path.write_text(json.dumps(columns) + "\n")
    with pytest.raises((SourceFormatError, SpecMismatch), match=said):
        list(open_source(path))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_whole_episodes_together_are_what_each_is_alone(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Episodes that a batch holds whole are made at once; here each is made alone, too."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=12), "sizes")
    end = data.draw(st.sampled_from(["dones", "terminateds", "truncateds"]), "end")
    without = set(
        data.draw(st.lists(st.sampled_from(["new_obs", "eps_id", "t", "agent_index"]), max_size=3), "without")
    )
    ids = data.draw(st.lists(st.integers(0, 3), min_size=len(sizes), max_size=len(sizes)), "ids")
    firsts = data.draw(st.lists(st.integers(0, 1), min_size=len(sizes), max_size=len(sizes)), "first t")
    rows = [
        {key: value for key, value in row.items() if key not in without}
        for i, n, first in zip(ids, sizes, firsts, strict=True)
        for row in steps(i, n + first, first=first, end=end, note=f"{i}")
    ]
    cuts = data.draw(st.lists(st.integers(1, len(rows)), max_size=4), "cuts")
    kind = data.draw(st.sampled_from(KINDS), "kind")
    folder = write(tmp_path_factory.mktemp("out"), kind, [rows], cuts)
    options: Any = {
        "dones": data.draw(st.sampled_from(["terminated", "truncated"]), "dones"),
        "max_episode_steps": data.draw(st.sampled_from([None, 4]), "limit"),
    }
    limit = data.draw(st.sampled_from([1, 7, 1 << 14]), "rows")
    start, stop = data.draw(st.integers(0, 5), "start"), data.draw(st.none() | st.integers(0, 12), "stop")
    found: list[Any] = []
    for item in RllibSource(folder, **options).read_batches(start, stop, rows=limit):
        assert not isinstance(item, EpisodeBatch) or len(item) == 1 or item.num_steps <= limit
        found.extend(item if isinstance(item, EpisodeBatch) else [item])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EpisodeJoiner, "_whole", lambda self, keys, closed: [False] * len(keys))
        alone = list(RllibSource(folder, **options).read())
    for one, other in zip(found, alone[start:stop], strict=True):
        assert isinstance(other, Episode)
        assert_same_episode(one, other)
        assert (one.source, one.index, one.metadata) == (other.source, other.index, other.metadata)
        assert [type(value) for value in one.metadata.values()] == [type(value) for value in other.metadata.values()]
