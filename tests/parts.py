"""Which files of tests run in which environment: scripts/test asks here, ``python tests/parts.py PART``.

``core`` runs all that needs no other environment. ``full`` runs what TensorFlow's pins may change: its numpy is 1.26,
its pyarrow is before 20, its protobuf is 4. So: TensorFlow's own tests, whatever reads or writes files, compiled loops,
and of each kind of buffer the contract; and not a second time what kills processes, draws many samples or lets
Hypothesis drive a machine, nor the command line's words, what is compiled when, and PyAV, which is the same one.
"""

from __future__ import annotations

import sys

PARTS = {
    "core": "rlds2buf tests -rlds2buf/adapters -tests/adapters -tests/full -tests/jax -tests/lerobot -tests/torch",
    "full": """
        tests/full tests/codecs tests/core tests/formats tests/io tests/kernels tests/returns tests/views
        -tests/formats/test_mutated_metadata.py -tests/formats/test_round_trips.py -tests/kernels/test_compiled.py
        -tests/kernels/test_waiting.py -tests/codecs/video
        tests/buffers/contents/test_circular.py tests/buffers/contents/test_reservoir.py
        tests/buffers/read/test_hindsight.py tests/buffers/select/test_prioritized.py tests/buffers/vectorized
        tests/buffers/disk/test_snapshot.py tests/buffers/rows/test_blobs.py
        tests/buffers/test_copies.py tests/buffers/test_everything_held.py tests/buffers/test_half_precision.py
        tests/buffers/test_spaces.py tests/buffers/test_specs.py
    """,
    "torch": "rlds2buf/adapters tests/adapters tests/jax tests/torch",
    # What the real lerobot writes, and what it makes of our datasets.
    "lerobot": "tests/lerobot",
    # Reads, converts and writes datasets: where a file that lies on one machine only would be missed.
    "clone": """
        tests/cli tests/codecs tests/formats tests/io tests/pipeline
        -tests/formats/test_mutated_metadata.py -tests/pipeline/test_kill_and_resume.py
    """,
}
"""Files and folders of each part; those behind a minus are left out."""

ENVIRONMENTS = ("core", "full", "torch", "lerobot")
"""The parts that together run every test."""


def files(part: str) -> list[str]:
    return [name for name in PARTS[part].split() if not name.startswith("-")]


def left_out(part: str) -> list[str]:
    return [name[1:] for name in PARTS[part].split() if name.startswith("-")]


def runs(part: str, file: str) -> bool:
    """Whether a part runs this file, named from the root of the repository."""

    def among(names: list[str]) -> bool:
        return any(f"{file}/".startswith(f"{name}/") for name in names)

    return among(files(part)) and not among(left_out(part))


if __name__ == "__main__":
    print(*files(sys.argv[1]), *(f"--ignore={name}" for name in left_out(sys.argv[1])))
