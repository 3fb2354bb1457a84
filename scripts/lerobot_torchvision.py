"""Lets torchvision be imported beside PyTorch's CPU build; scripts/envs puts it into the environment with lerobot.

PyPI's torchvision is made for CUDA. Its compiled operators do not load without it, and its Python code, which lerobot
needs the picture transforms of, then asks for operators that nobody has named. Here they get their names, no more: when
torchvision is imported, and not before, for that takes PyTorch.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

KEPT: list[Any] = []
"""The names of a library are gone when it is."""


def name_operators(package: Path) -> None:
    """Define the operators that torchvision describes."""
    import torch

    described = (package / "_meta_registrations.py").read_text(encoding="utf-8")
    names = re.findall(r'register_(?:meta|fake)\("(?:torchvision::)?(\w+)"', described)
    library = torch.library.Library("torchvision", "DEF")
    for name in dict.fromkeys(names):
        library.define(f"{name}(Tensor a) -> Tensor")
    KEPT.append(library)


class BeforeTorchvision:
    """An import hook that finds nothing, but knows when torchvision is about to be imported."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name == "torchvision":
            sys.meta_path.remove(self)
            spec = PathFinder.find_spec(name)
            if spec is not None and spec.origin is not None:
                name_operators(Path(spec.origin).parent)
        return None


sys.meta_path.insert(0, BeforeTorchvision())
