"""Behaviour cloning with a PyTorch DataLoader over a saved buffer: the majority of a careless teacher's actions.

pip install rlds2buf torch gymnasium
python examples/torch_bc.py
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import cartpole
import numpy as np
import torch
from torch.utils.data import DataLoader

from rlds2buf.adapters.torch import MapDataset


def main(epochs: int = 5) -> tuple[float, float]:
    """Mean returns before and after."""
    torch.manual_seed(0)
    folder = Path(tempfile.mkdtemp()) / "cartpole"
    cartpole.log().save(folder)
    # Each worker opens the folder by itself; a batch is gathered by one call.
    loader = DataLoader(MapDataset(folder), batch_size=64, shuffle=True, num_workers=2, persistent_workers=True)
    network = torch.nn.Sequential(torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 2))
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)

    def policy(seen: np.ndarray) -> int:
        with torch.no_grad():
            return int(network(torch.from_numpy(seen)).argmax())

    before = cartpole.mean_return(policy)
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(network(batch.observation), batch.action).backward()
            optimizer.step()
    after = cartpole.mean_return(policy)
    print(f"mean return {before:.0f} before, {after:.0f} after {epochs} epochs")
    return before, after


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
