"""MessagePack written in the plainest way: the longest form of everything, arrays as msgpack_numpy has them."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np


def pack(value: Any) -> bytes:
    if isinstance(value, np.generic):
        return pack({b"nd": False, b"type": value.dtype.str.encode(), b"data": value.tobytes()})
    if value is None or isinstance(value, bool):
        return {None: b"\xc0", False: b"\xc2", True: b"\xc3"}[value]
    if isinstance(value, int):
        return b"\xd3" + struct.pack(">q", value)
    if isinstance(value, float):
        return b"\xcb" + struct.pack(">d", value)
    if isinstance(value, str):
        return b"\xdb" + struct.pack(">I", len(value.encode())) + value.encode()
    if isinstance(value, bytes):
        return b"\xc6" + struct.pack(">I", len(value)) + value
    if isinstance(value, list):
        return b"\xdd" + struct.pack(">I", len(value)) + b"".join(map(pack, value))
    if isinstance(value, dict):
        inner = b"".join(pack(key) + pack(child) for key, child in value.items())
        return b"\xdf" + struct.pack(">I", len(value)) + inner
    if isinstance(value, np.ndarray):
        is_object = value.dtype == object
        return pack(
            {
                b"nd": True,
                b"type": value.dtype.str.encode(),
                b"kind": b"O" if is_object else b"",
                b"shape": list(value.shape),
                b"data": pickle.dumps(value) if is_object else value.tobytes(),
            }
        )
    raise TypeError(type(value))
