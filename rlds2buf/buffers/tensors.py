"""NumPy arrays and PyTorch tensors: what buffers for live rollouts take and hand out."""

from __future__ import annotations

from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.errors import MissingDependency

__all__ = ["Device", "to_numpy"]


def to_numpy(value: Any) -> Any:
    """A tensor (any device, with or without gradient) as an array; everything else as it is."""
    if hasattr(value, "detach"):
        return value.detach().cpu().numpy()
    return value


class Device:
    """Where batches go: nowhere (arrays stay arrays), or to a PyTorch device.

    Args:
        device: None, or what ``torch.device`` takes (``"cpu"``, ``"cuda:0"``).

    Raises:
        MissingDependency: a device is named and PyTorch is not installed.
        ValueError: PyTorch knows no such device.

    >>> Device(None).put({"a": np.zeros(2)})
    {'a': array([0., 0.])}
    """

    def __init__(self, device: Any = None) -> None:
        self._torch: Any = None
        self.device: Any = None
        if device is None:
            return
        try:
            import torch
        except ImportError as cause:
            raise MissingDependency(f"device={device!r} needs PyTorch: pip install torch") from cause
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as cause:
            raise ValueError(f"no PyTorch device {device!r}: {cause}") from cause
        self._torch = torch

    def put(self, batch: nest.Nest) -> nest.Nest:
        """A nest of fresh arrays as tensors on the device; strings stay arrays."""
        return batch if self._torch is None else nest.map_structure(self._tensor, batch)

    def _tensor(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype == np.dtype(object):
            return array
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            # Wide unsigned numbers are barely supported in PyTorch; keys and ids fit in int64.
            array = array.astype(np.int64)
        return self._torch.from_numpy(np.ascontiguousarray(array)).to(self.device)
