"""``scripts/campaign``: what a bad disk, an attacker and a power switch would do to rlds2buf, for as long as one likes.

kills      commands killed (SIGKILL) at random moments: nothing lost, nothing doubled, nothing half that looks whole
mutants    files of every format with one thing wrong: a typed error, in time and within memory
faults     full disks, input/output errors, short writes, read-only folders, sources that shrink, threads and forks
pushers    five pushes (killed ten times a case) and an actor at once into one Reverb table (needs dm-reverb)
soak       everything again and again in one process: memory, files and threads stay as they are

Cases have numbers; the same seed and number are the same case. Exits with 1 if there are faults.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.campaign.cases import Findings, run_cases, run_here
from tests.campaign.mutants import Mutants, fast_folder


def main() -> int:
    """The command line; the exit code."""
    parser = argparse.ArgumentParser(
        prog="scripts/campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("kind", choices=["kills", "mutants", "faults", "pushers", "soak"])
    parser.add_argument("--minutes", type=float, default=2.0, help="how long (default 2)")
    parser.add_argument("--count", type=int, help="how many cases, however long that takes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--case", type=int, help="this case alone, without a fork")
    parser.add_argument("--jobs", type=int, default=1, help="cases side by side, each in a process")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    started = time.monotonic()

    def enough(findings: Findings) -> bool:
        if options.count is not None:
            return findings.cases >= options.count
        return time.monotonic() - started > 60 * options.minutes

    with tempfile.TemporaryDirectory(dir=fast_folder(), prefix="campaign-") as folder:
        cases = made(options.kind, Path(folder), options.seed)
        chunk = cases.CHUNK
        if options.count is not None:
            chunk = max(1, min(chunk, options.count // options.jobs))
        try:
            if options.case is not None:
                print(cases.one(options.case))
                return 0
            if options.kind in ("soak", "pushers"):  # what grows, grows in one process; TensorFlow does not fork
                findings = run_here(cases.one, options.first, enough)
            else:
                findings = run_cases(cases.one, options.first, enough, jobs=options.jobs, chunk=chunk)
        finally:
            cases.close()
    show(options, findings, time.monotonic() - started)
    return 1 if findings.faults else 0


def made(kind: str, folder: Path, seed: int) -> Any:
    """The cases of a kind."""
    if kind == "mutants":
        return Mutants(folder, seed)
    if kind == "kills":
        from tests.campaign.kills import Kills

        return Kills(folder, seed)
    if kind == "faults":
        from tests.campaign.faults import Faults

        return Faults(folder, seed)
    if kind == "pushers":
        from tests.campaign.pushers import Pushers

        return Pushers(folder, seed)
    from tests.campaign.soak import Soak

    return Soak(folder, seed)


def show(options: argparse.Namespace, findings: Findings, seconds: float) -> None:
    """What came of it."""
    if options.json:
        print(json.dumps({"kind": options.kind, "seed": options.seed, "seconds": seconds, **findings.to_json()}))
        return
    print(f"{options.kind}, seed {options.seed}: {findings.cases:,} cases in {seconds:.0f} s")
    for outcome, count in findings.outcomes.most_common():
        print(f"  {count:9,}  {outcome}")
    print(f"{len(findings.faults)} faults")
    alike: dict[str, list[int]] = {}
    for fault in findings.faults:
        alike.setdefault(fault["fault"], []).append(fault["case"])
    for text, cases in alike.items():
        print(f"  {len(cases)}, case {', '.join(map(str, cases[:5]))}: {text}")
    if findings.faults:
        print(f"again: scripts/campaign {options.kind} --seed {options.seed} --case {findings.faults[0]['case']}")


if __name__ == "__main__":
    sys.exit(main())
