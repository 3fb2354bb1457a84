#!/usr/bin/env python3
"""The chart of the README, from what scripts/bench_all measured: ``scripts/chart.py .cache/bench/results.json``.

Two bars for each work, with episodes of 20 steps and of 1000: how many times as fast as the peer.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt

ROWS = {
    ("RLDS validated into a buffer", "TFDS, flat_map + batch(1024)"): "RLDS into a buffer",
    ("RLDS read episode by episode", "TFDS, SkipDecoding"): "RLDS, episode by episode",
    ("RLDS to RLDS", "TFDS, download_and_prepare"): "RLDS to RLDS",
    ("Minari validated into a buffer", "Minari, iterate_episodes"): "Minari into a buffer",
    ("two-step items into a Reverb server", "TF-Agents"): "two-step items into Reverb",
}
"""By work and peer as the benches name them, what the chart says."""
LENGTHS = {20: "#c2410c", 1000: "#1d4ed8"}
TARGET = Path(__file__).resolve().parent.parent / "docs" / "speed.svg"


def found(results: list[dict], work: str, peer: str) -> dict[int, float]:
    """The ratios of one work by the steps of an episode."""
    out = {}
    for row in results:
        for length in LENGTHS:
            if row["against"] == peer and row["work"] == f"{work}, {length}-step episodes":
                out[length] = row["ratio"]
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path)
    results = json.loads(parser.parse_args().results.read_text(encoding="utf-8"))
    rows = {key: found(results, *key) for key in ROWS}
    rows = {key: ratios for key, ratios in rows.items() if ratios}
    plt.switch_backend("svg")
    plt.rcParams.update({"svg.hashsalt": "rlds2buf", "svg.fonttype": "none", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 0.62 * len(rows) + 1.2))
    for place, ratios in enumerate(reversed(rows.values())):
        for beside, (length, ratio) in zip((0.19, -0.19), sorted(ratios.items()), strict=False):
            axes.barh(place + beside, ratio, 0.34, color=LENGTHS[length])
            text = f"{ratio:.0f}x" if ratio >= 10 else f"{ratio:.1f}x"
            axes.annotate(text, (ratio, place + beside), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{ROWS[key]}\nagainst {key[1]}" for key in reversed(rows)], fontsize=9)
    axes.set_xscale("log")
    axes.set_xlim(left=1)
    axes.set_xlabel("times as fast as the peer, higher is better")
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in LENGTHS.values()]
    labels = [f"episodes of {length} steps" for length in LENGTHS]
    figure.legend(handles, labels, loc="upper right", ncols=2, frameon=False, fontsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.tight_layout(rect=(0, 0, 1, 0.95))
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, metadata={"Date": None})
    print(TARGET)


if __name__ == "__main__":
    main()
