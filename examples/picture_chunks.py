"""Behaviour cloning from pictures in PyTorch: two frames and the state give the next four actions, as ACT has them.

pip install rlds2buf[images] torch
python examples/picture_chunks.py bridge_dataset/1.0.0 300        # any robot's episodes in RLDS, here Bridge's
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

import rlds2buf

CAMERA, HISTORY, CHUNK = "image_0", [-1, 0], range(4)


class Policy(nn.Module):
    """Actions ``[B, 4, A]`` of pictures ``[B, 2, H, W, 3] uint8`` and states ``[B, 2, S]``."""

    def __init__(self, states: int, actions: int) -> None:
        super().__init__()
        layers = [nn.Conv2d(6, 32, 5, 2), nn.ReLU(), nn.Conv2d(32, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)]
        self.see = nn.Sequential(*layers, nn.Flatten())
        self.act = nn.Sequential(nn.Linear(512 + 2 * states, 256), nn.ReLU(), nn.Linear(256, len(CHUNK) * actions))
        self.shape = len(CHUNK), actions

    def forward(self, pictures: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
        seen = self.see(pictures.permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255)
        return self.act(torch.cat([seen, states.flatten(1)], 1)).unflatten(1, self.shape)


def main(path: str, steps: int = 300) -> tuple[float, float]:
    """Mean losses of the first and the last batches."""
    torch.manual_seed(0)
    with rlds2buf.open_source(Path(path), images="encoded") as source:  # pictures stay files until they are drawn
        view = {"offsets": {"observation": HISTORY, "action": CHUNK}}
        buffer = rlds2buf.make_circular(source.spec, 100_000, seed=0, view=view)
        rlds2buf.convert(source, buffer, on_invalid="repair")  # Bridge never sets is_last
    policy = Policy(*(field.shape[0] for field in (buffer.spec.observation["state"], buffer.spec.action)))
    optimizer, losses = torch.optim.Adam(policy.parameters(), 1e-3), []
    for batch in buffer.batches(64, steps=steps, to="torch"):
        data = batch.data
        wanted, real = data.action, ~data.is_pad["action"]
        error = (policy(data.observation[CAMERA], data.observation["state"]) - wanted)[real]
        loss = error.abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    first, last = (sum(some) / len(some) for some in (losses[:10], losses[-10:]))
    print(f"mean loss {first:.3f} at first, {last:.3f} after {steps} batches of {len(buffer)} steps")
    return first, last


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
