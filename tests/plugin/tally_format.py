"""Tallies: a text file that begins with TALLY, and an empty line before each episode.

A row is an observation, the action taken there and its reward; the last row is an observation and how it ended.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlds2buf import Episode, Format, Sink, SnapshotExists, Source, StepSpec, spec_of


class TallySource(Source):
    """Reads a tally.

    Args:
        path: the file.
        scale: what every reward is multiplied by.
    """

    format = "tally"

    def __init__(self, path: Path, *, scale: float = 1.0) -> None:
        self.name = str(path)
        self._scale = scale
        self._blocks = Path(path).read_text().rstrip().split("\n\n")[1:]

    @property
    def spec(self) -> StepSpec:
        return spec_of(next(iter(self)))

    def read(self, start: int = 0, stop: int | None = None) -> Iterator[Episode]:
        for index, block in enumerate(self._blocks[start:stop], start):
            *rows, (last, end) = [line.split() for line in block.splitlines()]
            yield Episode(
                observation=[float(row[0]) for row in rows] + [float(last)],
                action=[int(row[1]) for row in rows] + [0],
                reward=[float(row[2]) * self._scale for row in rows] + [0.0],
                is_terminal=[False] * len(rows) + [end == "terminated"],
                source=self.name,
                index=index,
            )


class TallySink(Sink):
    """Writes a tally.

    Args:
        path: the file to make.
        digits: of each number behind the point.
        overwrite: replace a file that is there.
    """

    def __init__(self, path: str, *, digits: int = 6, overwrite: bool = False) -> None:
        self.name, self._digits, self._overwrite = path, digits, overwrite

    def open(self, spec: StepSpec, provenance: Mapping[str, Any]) -> None:
        if Path(self.name).exists() and not self._overwrite:
            raise SnapshotExists(f"{self.name}: it is there already")
        self._blocks = ["TALLY"]

    def write(self, episode: Episode) -> int:
        steps = zip(episode.observation, episode.action, episode.reward, strict=True)
        *rows, last = [f"{o:.{self._digits}f} {a} {r:.{self._digits}f}" for o, a, r in steps]
        self._blocks.append("\n".join([*rows, f"{last.split()[0]} {episode.end}"]))
        return len(rows)

    def commit(self) -> None:
        part = Path(f"{self.name}.partial")
        part.write_text("\n\n".join(self._blocks) + "\n")
        part.replace(self.name)

    def abort(self) -> None:
        self._blocks = []


FORMAT = Format(
    name="tally",
    what="a tally",
    source="tally_format:TallySource",
    sink="tally_format:TallySink",
    fits=lambda look: look.head.startswith(b"TALLY\n"),
)
