"""What is wrong with the files and metadata of a LeRobot dataset, beyond what reading an episode says itself.

==================  ==============================================================================================
module              looks at
==================  ==============================================================================================
``dataset``         what all of them look at, and how a finding is made
``metadata``        the metadata against themselves and against which files there are; reads no rows
``videos``          each video: what it is, and how many frames its episodes need
``rows``            the rows of the data: their times, indices and tasks, each camera's frames at these times
``statistics``      the statistics in the metadata against those of the rows
==================  ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator

from rlds2buf.core.issue import Issue
from rlds2buf.formats.lerobot.findings.dataset import Scope
from rlds2buf.formats.lerobot.findings.metadata import metadata_findings, unused_files
from rlds2buf.formats.lerobot.findings.rows import row_findings
from rlds2buf.formats.lerobot.findings.videos import video_findings

__all__ = ["Scope", "findings"]


def findings(dataset: Scope, *, quick: bool) -> Iterator[Issue]:
    """Everything that is found.

    Args:
        dataset: what is looked at.
        quick: only the metadata, and which files there are.
    """
    yield from metadata_findings(dataset)
    if not quick:
        yield from unused_files(dataset)
        yield from video_findings(dataset)
        yield from row_findings(dataset)
