"""Five pushes and an actor at once, ten times a push is killed: every item is in the table, once."""

from __future__ import annotations

import random

from rlds2buf import open_source
from tests.full.quiet import reverb
from tests.full.servers import ServerProcess
from tests.full.together import Together, first_numbers


def test_five_pushers_an_actor_and_ten_kills(tmp_path):
    with ServerProcess([{"name": "replay"}], checkpoint=str(tmp_path / "checkpoints")) as server:
        work = Together(tmp_path, server.address, "replay")
        work.run(10, random.Random(14))
        assert work.kills == 10 and set(work.codes) == {0}
        assert all(report["agrees"] for report in work.reports)
        client = reverb.Client(server.address)
        items = 5 * sum(250 - episode % 7 - 1 for episode in range(40))
        assert work.actor_items > 0
        assert client.server_info()["replay"].current_size == items + work.actor_items
        client.checkpoint()
    with open_source(tmp_path / "checkpoints") as source:
        assert first_numbers(source.store()) == work.expected
