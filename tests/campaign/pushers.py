"""Five pushes and an actor at once into one table, pushes killed all the while: every item is there, once."""

from __future__ import annotations

import importlib.util
import tempfile
from pathlib import Path

from rlds2buf import open_source
from tests.campaign import cases

__all__ = ["Pushers"]

KILLS = 10
CASE_SECONDS = 400


class Pushers:
    """A case is one such crowd, with a table that is emptied before it.

    Args:
        folder: an empty one.
        seed: of the cases.
    """

    CHUNK = 1

    def __init__(self, folder: Path, seed: int) -> None:
        if importlib.util.find_spec("reverb") is None:
            raise SystemExit("pushers: dm-reverb is not installed here; .venv/full has it")
        from tests.full.servers import ServerProcess

        cases.CASE_SECONDS = CASE_SECONDS
        self._seed = seed
        self._folder = folder
        self._checkpoints = folder / "checkpoints"
        self._server = ServerProcess([{"name": "replay"}], checkpoint=str(self._checkpoints))

    def one(self, case: int) -> str:
        """Run a case; what is raised is a fault."""
        from tests.full.quiet import reverb
        from tests.full.together import Together, first_numbers

        client = reverb.Client(self._server.address)
        client.reset("replay")
        rng = cases.rng_of("pushers", self._seed, case)
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            crowd = Together(Path(place), self._server.address, "replay")
            crowd.run(KILLS, rng)
            assert crowd.kills == KILLS and set(crowd.codes) == {0}, f"exit codes {crowd.codes}"
            disagree = [number for number, report in enumerate(crowd.reports) if report["agrees"] is False]
            assert not disagree, f"counts disagree for pushers {disagree}"
            checkpoint = client.checkpoint()
            with open_source(checkpoint) as source:
                found = first_numbers(source.store())
            lost, doubled = crowd.expected - found, found - crowd.expected
            assert not lost and not doubled, f"{lost.total()} items are lost, {doubled.total()} doubled or others'"
        return f"five pushers and an actor, {KILLS} kills"

    def close(self) -> None:
        """End the server."""
        self._server.kill()
