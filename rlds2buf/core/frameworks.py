"""NumPy arrays and the tensors of PyTorch, TensorFlow and JAX: what buffers take and hand out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from rlds2buf.core import nest
from rlds2buf.errors import MissingDependency

__all__ = ["FRAMEWORKS", "Device", "converter"]

FRAMEWORKS = ("numpy", "torch", "tf", "jax")
"""What batches can be handed out as."""

_ALIGNED = 64
"""TensorFlow ends the process over a borrowed array that does not start at such an address, and JAX copies it."""


class Device:
    """Where batches go: nowhere (arrays stay arrays), or to a PyTorch device.

    To a GPU they are copied from page-locked memory, in the background: the call returns before the copy is
    there, and what is done with the tensors on the GPU waits for it.

    Args:
        device: None, or what ``torch.device`` takes (``"cpu"``, ``"cuda:0"``).
        pin_memory: put tensors that stay in memory into page-locked memory too (where CUDA is there).

    Raises:
        MissingDependency: a device is named and PyTorch is not installed.
        ValueError: PyTorch knows no such device.

    >>> Device(None).put({"a": np.zeros(2)})
    {'a': array([0., 0.])}
    """

    def __init__(self, device: Any = None, *, pin_memory: bool = False) -> None:
        self._given = device, pin_memory
        self._torch: Any = None
        self._pin = self._here = False
        self.device: Any = None
        if device is None:
            return
        try:
            import torch
        except ImportError as cause:
            raise MissingDependency("batches of PyTorch tensors need PyTorch: pip install torch") from cause
        try:
            self.device = torch.device(device)
        except (RuntimeError, TypeError) as cause:
            raise ValueError(f"no PyTorch device {device!r}: {cause}") from cause
        self._torch = torch
        self._pin = (pin_memory or self.device.type == "cuda") and torch.cuda.is_available()
        self._here = self.device.type == "cpu" and not self._pin

    @property
    def name(self) -> str | None:
        """The PyTorch device's, or None."""
        return None if self._given[0] is None else str(self._given[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return _device, (self.name, self._given[1])

    def put(self, batch: nest.Nest) -> nest.Nest:
        """A nest of fresh arrays as tensors on the device; strings stay arrays."""
        return batch if self._torch is None else nest.map_structure(self._tensor, batch)

    def _tensor(self, array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype == np.dtype(object):
            return array
        if array.dtype.kind == "u" and array.dtype.itemsize > 1:
            # Wide unsigned numbers are barely supported in PyTorch; keys and ids fit in int64.
            array = array.astype(np.int64)
        tensor = self._torch.from_numpy(np.ascontiguousarray(array))
        if self._here:
            return tensor
        if self._pin:
            tensor = tensor.pin_memory()
        return tensor.to(self.device, non_blocking=self._pin)


def _device(device: str | None, pin_memory: bool) -> Device:
    return Device(device, pin_memory=pin_memory)


def converter(to: str, *, device: Any = None, pin_memory: bool = False) -> Callable[[nest.Nest], nest.Nest]:
    """What turns nests of fresh arrays into another framework's tensors, without copying where it can.

    Args:
        to: ``"numpy"`` (as they are), ``"torch"``, ``"tf"`` or ``"jax"``, imported here and not before.
        device: where tensors go: for PyTorch as for :class:`Device`; for JAX a device of its own, or
            ``"cpu"``, ``"gpu"`` or ``"gpu:1"``; for TensorFlow what ``tf.device`` takes (``"/GPU:0"``).
        pin_memory: as for :class:`Device`; for PyTorch only.

    Returns:
        A function; arrays of strings, and what is no array, pass through it.  PyTorch gets wide
        unsigned integers as int64.  JAX without 64-bit types gets none of them: uint64 (keys) stays
        an array, the others become 32-bit.

    Raises:
        MissingDependency: the framework is not installed.
        ValueError: there is no such framework, or it has no such device.

    >>> converter("numpy")({"a": np.zeros(2)})
    {'a': array([0., 0.])}
    """
    if to not in FRAMEWORKS:
        raise ValueError(f"to must be one of {', '.join(FRAMEWORKS)}, got {to!r}")
    if to == "torch":
        return Device("cpu" if device is None else device, pin_memory=pin_memory).put
    if pin_memory:
        raise ValueError(f"pin_memory is for to='torch', not for {to!r}")
    if to == "numpy":
        if device is not None:
            raise ValueError("device is for to='torch', 'jax' or 'tf': arrays of NumPy are in memory")
        return lambda batch: batch
    leaf = _tensorflow(device) if to == "tf" else _jax(device)
    return lambda batch: nest.map_structure(leaf, batch)


def _tensorflow(device: Any) -> Callable[[Any], Any]:
    try:
        import tensorflow as tf
    except ImportError as cause:
        raise MissingDependency("to='tf' needs TensorFlow: pip install tensorflow") from cause

    def tensor(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype == np.dtype(object):
            return array
        if array.dtype == np.dtype(np.bool_) or not _lendable(array):
            return tf.convert_to_tensor(array)  # which copies
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def placed(array: Any) -> Any:
        made = tensor(array)
        if made is array:
            return array
        with tf.device(device):
            return tf.identity(made)

    if device is None:
        return tensor
    _require_tensorflow_device(tf, device)
    return placed


def _require_tensorflow_device(tf: Any, device: Any) -> None:
    """Raise ValueError unless there is one: TensorFlow itself takes another one in silence."""
    name = getattr(device, "name", device)
    have = [tf.DeviceSpec.from_string(one.name) for one in tf.config.list_logical_devices()]
    try:
        wanted = tf.DeviceSpec.from_string(name)
    except (ValueError, TypeError, AttributeError) as cause:
        raise ValueError(f"no TensorFlow device {device!r}: {cause}") from cause
    kinds = [one for one in have if wanted.device_type in (None, one.device_type)]
    if not any(wanted.device_index in (None, one.device_index) for one in kinds):
        known = ", ".join(f"{one.device_type}:{one.device_index}" for one in have)
        raise ValueError(f"no TensorFlow device {device!r}; there are {known}")


def _jax(device: Any) -> Callable[[Any], Any]:
    try:
        import jax
    except ImportError as cause:
        raise MissingDependency("to='jax' needs JAX: pip install jax") from cause
    wide = bool(jax.config.jax_enable_x64)

    def tensor(array: Any) -> Any:
        if not isinstance(array, np.ndarray) or array.dtype == np.dtype(object):
            return array
        if array.dtype.itemsize == 8 and not wide:
            return array if array.dtype == np.uint64 else jax.numpy.asarray(array)
        return jax.dlpack.from_dlpack(array) if _lendable(array) else jax.numpy.asarray(array)

    if device is None:
        return tensor
    target = _jax_device(jax, device)

    def placed(array: Any) -> Any:
        made = tensor(array)
        return array if made is array else jax.device_put(made, target)

    return placed


def _jax_device(jax: Any, device: Any) -> Any:
    """A device of JAX's as it is, or the one of a name such as ``"gpu:1"``."""
    if not isinstance(device, str):
        return device
    platform, _, number = device.partition(":")
    try:
        return jax.devices(platform)[int(number or 0)]
    except (RuntimeError, ValueError, IndexError) as cause:
        raise ValueError(f"no JAX device {device!r}: {cause}") from cause


def _lendable(array: np.ndarray) -> bool:
    return array.size > 0 and array.flags.c_contiguous and array.ctypes.data % _ALIGNED == 0
