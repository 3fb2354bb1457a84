"""Tables of a running server as a source."""

from __future__ import annotations

import numpy as np
import pytest

from rlds2buf import SourceError, SourceNotFound, open_source, push
from rlds2buf.pipeline.summary import summarize
from tests.full.pushed import episodes, trajectory_signature
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess


@pytest.fixture(scope="module")
def server():
    tables = [
        {"name": "typed", "signature": trajectory_signature()},
        {"name": "plain"},
        {"name": "once", "sampler": "fifo", "max_times_sampled": 1},
        {"name": "slow", "limiter": ["MinSize", 1000]},
        {"name": "empty"},
    ]
    with ServerProcess(tables) as process:
        given = episodes(30, 20, terminal=True)
        for table in ("typed", "plain", "once", "slow"):
            push(given, process.address, table)
        yield process


def test_items_are_episodes(server):
    with open_source(f"reverb://{server.address}/typed", num_items=300) as source:
        assert source.num_episodes == 300 and source.details()["items"] == 48
        found = list(source)
        assert len(found) == 300
        starts = {float(one.observation[0, 0]) for one in found}
        assert len(starts) > 30 and starts <= {*map(float, range(29)), *map(float, range(1000, 1019))}
        for one in found:
            assert one.num_steps == 2
            np.testing.assert_array_equal(one.action[:, 0], one.observation[:, 0])
            assert one.is_first[0] == (one.observation[0, 0] % 1000 == 0)
            assert one.is_terminal[1] == (one.observation[1, 0] in (29, 1019))
        source.spec.check(found[0])
        summary = summarize(source)
        assert summary.episodes == 300 and summary.fields["observation"]["shape"] == [3]


def test_without_a_signature_columns_are_extras(server):
    with open_source(f"reverb://{server.address}/plain") as source:
        assert source.num_episodes == 48
        one = next(iter(source))
        assert {name: column.shape for name, column in one.extras.items()}["column_1"] == (1, 2, 3)


def test_looking_must_not_remove_unasked(server):
    with pytest.raises(SourceError, match="removes an item after 1 samples"):
        open_source(f"reverb://{server.address}/once")
    source = open_source(f"reverb://{server.address}/once", consume=True, num_items=5)
    assert [float(one.extras["column_1"][0, 0, 0]) for one in source] == [0, 1, 2, 3, 4]
    assert reverb.Client(server.address).server_info()["once"].current_size == 43


def test_a_limiter_that_lets_nothing_out(server):
    with pytest.raises(SourceError, match=r"no item came within 0.5 s; table 'slow': 48 of at most"):
        list(open_source(f"reverb://{server.address}/slow", timeout=0.5))


def test_an_empty_table(server):
    source = open_source(f"reverb://{server.address}/empty")
    assert list(source) == [] and source.num_episodes == 0
    with pytest.raises(SourceError, match="empty"):
        _ = source.spec


def test_what_is_not_there(server):
    with pytest.raises(SourceNotFound, match="no table 'other'"):
        open_source(f"reverb://{server.address}/other")
    with pytest.raises(SourceError, match="localhost:1"):
        open_source("reverb://localhost:1/replay", timeout=0.5)
    for address in ("reverb://localhost/x", f"reverb://{server.address}", f"reverb://{server.address}/"):
        with pytest.raises(ValueError, match="address"):
            open_source(address)
    with pytest.raises(ValueError, match="num_items"):
        open_source(f"reverb://{server.address}/plain", num_items=-1)
