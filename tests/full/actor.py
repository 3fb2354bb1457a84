"""An actor as a process of its own: ``python -m tests.full.actor ADDRESS TABLE NUMBER``.

Writes two-step items of the columns of ``rlds2buf push`` with dm-reverb's TrajectoryWriter, until its standard
input ends; then it prints how many.
"""

from __future__ import annotations

import select
import sys

import numpy as np

from tests.full.quiet import reverb

ROWS = 20


def main():
    address, table, number = sys.argv[1:]
    written = 0
    with reverb.Client(address).trajectory_writer(num_keep_alive_refs=2) as writer:
        print("ready", flush=True)
        while not select.select([sys.stdin], [], [], 0.02)[0]:
            for t in range(ROWS):
                last = t == ROWS - 1
                observation = np.array([float(number) + written + t, 0.0])
                kinds = np.int32(0 if t == 0 else 2 if last else 1), np.int32(0 if last else 1 + (t == ROWS - 2))
                frame = kinds[0], observation, np.zeros(1, np.float32), kinds[1], np.float32(1), np.float32(1)
                writer.append(frame)
                if t:
                    writer.create_item(table, 1.0, tuple(column[-2:] for column in writer.history))
            writer.end_episode()
            written += ROWS
        writer.flush()
    print(written // ROWS * (ROWS - 1), flush=True)


if __name__ == "__main__":
    main()
