"""Structure-aware changes to files: what is framed, checksummed or typed stays so, but for the change."""

from __future__ import annotations

import io
import json
import random
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import crc32c
import h5py
import numpy as np

from rlds2buf.buffers.disk.manifest import write_manifest

__all__ = ["mutate_file", "packed"]

ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, -(2**63), 1e308, float("inf"), float("nan"), 0.5, "", "a" * 300,
    "0", "-1", "nan", "float32", "f4,(", "O", "<U1073741824", "V8", "datetime64[ns]", "../../etc/passwd", "/etc/passwd",
    "a/b", "..", "\0", "é", [], {}, [[]], [None], [1, 2, 3], {"a": 1}, [-1], [10**9], [1, "x"],
]  # fmt: skip
"""Values in places where others belong."""


def mutate_file(path: Path, rng: random.Random) -> str:
    """Change a file in place; says how.  By what the file is, and now and then as plain bytes."""
    how = _of(path) if rng.random() < 0.85 else plain
    try:
        return how(path, rng)
    except (
        ValueError, IndexError, KeyError, OSError, EOFError, RuntimeError, TypeError, struct.error, zipfile.BadZipFile,
    ):  # fmt: skip
        return plain(path, rng)  # the file is not what it seems, or the library won't write that


def _of(path: Path) -> Callable[[Path, random.Random], str]:
    head = path.read_bytes()[:8]
    if path.name == "manifest.json":
        return manifest
    if path.suffix == ".json" and head[:1] in (b"{", b"["):
        return whole_json
    if path.suffix in (".jsonl", ".ndjson"):
        return json_lines
    if path.suffix in (".csv", ".tsv"):
        return cells
    if head.startswith(b"\x89HDF"):
        return hdf5
    if head.startswith(b"\x93NUMPY"):
        return npy
    if head.startswith(b"PK"):
        return npz
    if "tfrecord" in path.name:
        return records
    if head.startswith(b"PAR1"):
        return parquet
    return plain


def plain(path: Path, rng: random.Random) -> str:
    """Bytes cut, flipped, scattered, zeroed, moved or added."""
    path.write_bytes(changed_bytes(path.read_bytes(), rng))
    return "bytes"


def changed_bytes(data: bytes, rng: random.Random) -> bytes:
    """Some bytes with a change or a few."""
    out = bytearray(data)
    if not out:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(1, 20)))
    how = rng.randrange(7)
    at, other = rng.randrange(len(out)), rng.randrange(len(out))
    if how == 0:
        del out[at:]
    elif how in (1, 2):
        out[at] ^= 1 << rng.randrange(8)
    elif how == 3:
        for _ in range(rng.randrange(2, 20)):
            out[rng.randrange(len(out))] = rng.choice((0, 255, 127, 128, rng.randrange(256)))
    elif how == 4:
        del out[min(at, other) : max(at, other)]
    elif how == 5:
        out[at:at] = out[other : other + rng.randrange(1, 64)]
    else:
        out += bytes(rng.randrange(256) for _ in range(rng.randrange(1, 64)))
    return bytes(out)


def changed_value(value: Any, rng: random.Random) -> Any:
    """A JSON value with one change somewhere in it."""
    places = list(_places(value))
    if not places or rng.random() < 0.02:
        return _deep(rng) if rng.random() < 0.3 else rng.choice(ODD)
    holder, key = rng.choice(places)
    how = rng.randrange(6)
    if how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, list):
        holder.insert(key, holder[key])
    elif how == 2 and isinstance(holder, dict):
        holder[rng.choice(["", "x", "../x", *map(str, holder)])] = holder.pop(key)
    elif how == 3:
        other, at = rng.choice(places)
        if (isinstance(other, dict) and at in other) or (isinstance(other, list) and at < len(other)):
            holder[key] = json.loads(json.dumps(other[at]))
    elif how == 4 and isinstance(holder[key], int | float) and not isinstance(holder[key], bool):
        holder[key] = rng.choice([holder[key] + 1, -holder[key], holder[key] * 10**9, float(holder[key])])
    else:
        holder[key] = json.loads(json.dumps(rng.choice(ODD)))
    return value


def _places(value: Any) -> Any:
    items = (
        list(value.items()) if isinstance(value, dict) else list(enumerate(value)) if isinstance(value, list) else []
    )
    for key, child in items:
        yield value, key
        yield from _places(child)


def _deep(rng: random.Random) -> Any:
    deep: Any = 0
    for _ in range(rng.choice([50, 500])):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    return deep


def whole_json(path: Path, rng: random.Random) -> str:
    """A JSON document with a few nodes changed."""
    value = json.loads(path.read_text())
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        value = changed_value(value, rng)
    text = json.dumps(value)
    if rng.random() < 0.02:
        text = "[" * 100_000
    path.write_text(text)
    return "JSON"


def manifest(path: Path, rng: random.Random) -> str:
    """A saved buffer's manifest, its checksum right again."""
    body = json.loads(path.read_text())
    body.pop("checksum", None)
    body = changed_value(body, rng)
    if not isinstance(body, dict):
        return whole_json(path, rng)
    write_manifest(path.parent, body)
    return "manifest"


def json_lines(path: Path, rng: random.Random) -> str:
    """One line's value changed, or lines moved, doubled or left out."""
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    how = rng.randrange(5)
    if how == 0:
        lines.insert(rng.randrange(len(lines)), lines[at])
    elif how == 1:
        del lines[at]
    else:
        lines[at] = json.dumps(changed_value(json.loads(lines[at]), rng))
    path.write_text("\n".join(lines) + "\n")
    return "JSON lines"


def cells(path: Path, rng: random.Random) -> str:
    """A cell, a row or the header changed."""
    rows = [line.split(",") for line in path.read_text().splitlines()]
    row = rng.choice([0, rng.randrange(len(rows))])
    at = rng.randrange(len(rows[row]))
    how = rng.randrange(5)
    if how == 0:
        del rows[row][at]
    elif how == 1:
        rows[row].append(rows[row][at])
    elif how == 2:
        rows[row][at] = rng.choice(rows[0])
    else:
        rows[row][at] = rng.choice(
            ["", "nan", "1e999", "-1", '"', '"a', "True", "é", "\0", "[1, 2]", "a" * 5000, "1_0"]
        )
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    return "cells"


def records(path: Path, rng: random.Random) -> str:
    """A TFRecord file whose frames and checksums are right: a message changed, or records moved or left out."""
    data, found, at = path.read_bytes(), [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 12 : at + 12 + size])
        at += size + 16
    number = rng.randrange(len(found))
    how = rng.randrange(10)
    if how == 0:
        del found[number]
    elif how == 1:
        found.insert(rng.randrange(len(found) + 1), found[number])
    elif how == 2:
        found[number] = changed_bytes(found[number], rng)
    else:
        found[number] = message(found[number], rng)
    path.write_bytes(b"".join(map(_framed, found)))
    return "record"


def _framed(payload: bytes) -> bytes:
    length = struct.pack("<Q", len(payload))
    return length + _masked(length) + payload + _masked(payload)


def _masked(data: bytes) -> bytes:
    crc = crc32c.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def message(data: bytes, rng: random.Random, depth: int = 0) -> bytes:
    """A protocol buffer message with one change, the lengths around it right again."""
    fields = _fields(data)
    if not fields or depth > 8:
        return picture(data, rng) if data[:3] in (b"\xff\xd8\xff", b"\x89PN") else changed_bytes(data, rng)
    at = rng.randrange(len(fields))
    number, kind, value = fields[at]
    how = rng.randrange(8)
    if how == 0:
        del fields[at]
    elif how == 1:
        fields.insert(rng.randrange(len(fields) + 1), fields[at])
    elif how == 2:
        fields[at] = (rng.choice([1, 2, 3, 4, 15, 536870911]), kind, value)
    elif kind == 2:
        inner = _fields(value) and rng.random() < 0.9
        fields[at] = (number, 2, message(value, rng, depth + 1) if inner else changed_bytes(value, rng))
    else:
        fields[at] = (number, kind, rng.choice([0, 1, 2**31, 2**63, 2**64 - 1, int(value) ^ 1 << rng.randrange(32)]))
    return b"".join(_field(*field) for field in fields)


def _fields(data: bytes) -> list[tuple[int, int, Any]]:
    """The fields of a message; none where it is no message."""
    found: list[tuple[int, int, Any]] = []
    at = 0
    try:
        while at < len(data):
            tag, at = _read_varint(data, at)
            number, kind = tag >> 3, tag & 7
            if number == 0 or kind not in (0, 1, 2, 5):
                return []
            if kind == 2:
                size, at = _read_varint(data, at)
                if at + size > len(data):
                    return []
                value: Any = data[at : at + size]
                at += size
            elif kind == 0:
                value, at = _read_varint(data, at)
            else:
                size = 8 if kind == 1 else 4
                value = int.from_bytes(data[at : at + size], "little")
                at += size
            found.append((number, kind, value))
    except IndexError:
        return []
    return found


def _field(number: int, kind: int, value: Any) -> bytes:
    tag = _varint(number << 3 | kind)
    if kind == 2:
        return tag + _varint(len(value)) + value
    if kind == 0:
        return tag + _varint(value)
    size = 8 if kind == 1 else 4
    return tag + (value & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
        if shift > 70:
            raise IndexError("no end")


def _varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def picture(data: bytes, rng: random.Random) -> bytes:
    """A picture file that says another size, has a bomb in it, or changed bytes."""
    if data[:4] == b"\x89PNG" and rng.random() < 0.7:
        size = struct.pack(">II", rng.choice([0, 1, 8, 65535, 2**31 - 1]), rng.choice([0, 1, 8, 65535, 2**31 - 1]))
        kind, rest = data[12:16], data[24:29]
        header = kind + (size if rng.random() < 0.5 else data[16:24]) + rest
        changed = data[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + data[33:]
        if rng.random() < 0.5:
            bomb = zlib.compress(bytes(1 << 20))
            text = b"zTXt" + b"a\0\0" + bomb
            chunk = struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))
            changed = changed[:33] + chunk * rng.choice([1, 20]) + changed[33:]
        return changed
    if data[:2] == b"\xff\xd8" and rng.random() < 0.5:
        at = data.find(b"\xff\xc0")
        if at >= 0:
            height, width = rng.choice([0, 1, 8, 65535]), rng.choice([0, 1, 8, 65535])
            return data[: at + 5] + struct.pack(">HH", height, width) + data[at + 9 :]
    return changed_bytes(data, rng)


def npy(path: Path, rng: random.Random) -> str:
    """An array file whose header says something else."""
    path.write_bytes(changed_npy(path.read_bytes(), rng))
    return "npy"


def changed_npy(data: bytes, rng: random.Random) -> bytes:
    """The bytes of an array file, its header's text changed, padded as it should be."""
    size = struct.unpack("<H", data[8:10])[0]
    header, body = data[10 : 10 + size].decode("latin1"), data[10 + size :]
    odd = ["'O'", "'<f4,('", "'|S0'", "'<U4294967295'", "'V7'", "[('a', '<f4')]", "((((", "{}", "True", "'<f8'", "None"]
    how = rng.randrange(4)
    if how == 0:
        header = header.replace(header[header.find("'descr': ") + 9 : header.find(", 'fortran")], rng.choice(odd))
    elif how == 1:
        shape = rng.choice(["(-1,)", "(10**9,)", "(1000000000000,)", "(3, 1.5)", "()", "(2147483648, 2147483648)", "3"])
        header = header[: header.find("'shape'")] + f"'shape': {shape}, }}"
    elif how == 2:
        header = header.replace("False", "True")
    else:
        header = changed_bytes(header.encode("latin1"), rng).decode("latin1")
    header = header.rstrip() + " " * (-(len(header.rstrip()) + 11) % 64) + "\n"
    return data[:8] + struct.pack("<H", len(header)) + header.encode("latin1") + body


def npz(path: Path, rng: random.Random) -> str:
    """An archive of arrays, one of which is changed, its checksum right."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    how = rng.randrange(5)
    if how == 0:
        del members[name]
    elif how == 1:
        members[rng.choice(["x.npy", "../x.npy", "observation.npy", "nonsense"])] = members.pop(name)
    elif how == 2:
        other = io.BytesIO()
        np.save(other, rng.choice([np.zeros(0), np.zeros((3, 0)), np.array("a"), np.array(1j), np.zeros(14, "M8[s]")]))
        members[name] = other.getvalue()
    else:
        members[name] = changed_npy(members[name], rng)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.3 else zipfile.ZIP_STORED) as archive:
        for member, data in members.items():
            archive.writestr(member, data)
    return "npz"


def parquet(path: Path, rng: random.Random) -> str:
    """A table, written by its own library, with a column that is missing, doubled, of another type, or has gaps."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    at, rows = rng.randrange(table.num_columns), table.num_rows
    name = table.column_names[at]
    how = rng.randrange(5)
    if how == 0:
        table = table.remove_column(at)
    elif how == 1:
        table = table.append_column(rng.choice([name, "", "observation", "a/b", "../x"]), table.column(at))
    elif how == 2:
        table = table.slice(0, rng.choice([0, 1, max(0, rows - 1)]))
    else:
        values = rng.choice(
            [
                [None] * rows,
                ["x"] * rows,
                [[1.0] * (row % 3) for row in range(rows)],
                [{"a": row} for row in range(rows)],
                [2**62] * rows,
                [float("nan")] * rows,
                [b"\xff"] * rows,
                [[[]]] * rows,
                [True, None] * (rows // 2) + [True] * (rows % 2),
            ]
        )
        table = table.set_column(at, name, pa.array(values))
    pq.write_table(table, path, compression=rng.choice(["none", "gzip", "zstd"]))
    return "Parquet"


def packed(data: bytes, rng: random.Random) -> bytes:
    """MessagePack with a value of another kind, or of another size than it says, or nested without end."""
    at = rng.randrange(len(data))
    how = rng.randrange(4)
    if how == 0:
        return changed_bytes(data, rng)
    if how == 1:  # maps, lists, texts, bytes and extensions that say how long they are
        head = rng.choice([b"\xdf", b"\xdd", b"\xdb", b"\xc6", b"\xc9"]) + struct.pack(
            ">I", rng.choice([0, 1, 2**32 - 1])
        )
        return data[:at] + head + data[at:]
    if how == 2:
        return data[:at] + rng.choice([b"\x91", b"\x81\xa1a", b"\x81"]) * rng.choice([3, 100, 100_000]) + data[at:]
    return (
        data[:at]
        + rng.choice([b"\xc0", b"\xc1", b"\xc3", b"\xcb" + b"\xff" * 8, b"\xd3" + b"\x80" * 8])
        + data[at + 1 :]
    )


def hdf5(path: Path, rng: random.Random) -> str:
    """An HDF5 file, written by its own library, with an object or a link that is something else."""
    if rng.random() < 0.3:
        return plain(path, rng)
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        how = rng.randrange(9)
        if how == 0:
            del file[name]
        elif how == 1:
            _attribute(file[name], rng)
        elif how == 2:
            del file[name]
            file[name] = h5py.SoftLink(rng.choice(["/", f"/{name}", "/nowhere", f"/{rng.choice(names)}"]))
        elif how == 3:
            del file[name]
            file[name] = h5py.ExternalLink(rng.choice(["/etc/passwd", "nowhere.hdf5", path.name]), f"/{name}")
        elif how == 4:
            other = file[rng.choice(names)]
            del file[name]
            file[name] = other
        elif how == 5:
            del file[name]
            file.create_group(name)
        else:
            _replace(file, name, rng)
    return "HDF5"


def _attribute(place: Any, rng: random.Random) -> None:
    keys = [*place.attrs, "total_steps", "id", "seed", "env_args"]
    value = rng.choice([0, -1, 2**62, "x", "{", "[" * 1000, 0.5, np.zeros(3), b"\xff\xfe", np.float32("nan")])
    place.attrs[rng.choice(keys)] = value


def _replace(file: Any, name: str, rng: random.Random) -> None:
    """Another dataset under a name: of another type, shape, layout, or with its bytes elsewhere."""
    old = file[name]
    shape = old.shape if isinstance(old, h5py.Dataset) and (old.size or 0) < 10**6 else (5,)
    del file[name]
    how = rng.randrange(8)
    if how == 0:
        file.create_dataset(name, shape=(10**9, 10), dtype="f8", chunks=(1000, 10), compression="gzip")
    elif how == 1:
        file.create_dataset(name, shape=(3, 40), dtype="u1", external=[("/etc/passwd", 0, 120)])
    elif how == 2:
        layout = h5py.VirtualLayout(shape=(10**8,), dtype="f4")
        layout[:5] = h5py.VirtualSource("/nowhere.hdf5", "x", shape=(5,))
        file.create_virtual_dataset(name, layout)
    elif how == 3:
        file[name] = np.zeros(shape, rng.choice(["f2", "f8", "i1", "u8", "S3", "c8", "?"]))
    elif how == 4:
        file[name] = np.zeros(tuple(n + rng.choice([0, 1, -1]) for n in shape if n > 0) or (1,), "f4")
    elif how == 5:
        file[name] = rng.choice(["text", 5, float("nan"), h5py.Empty("f4")])
    elif how == 6:
        file[name] = np.full(shape, np.nan, "f4")
    else:
        kind = rng.choice(
            [h5py.vlen_dtype("f4"), h5py.string_dtype(), np.dtype([("a", "f4"), ("b", "i8")]), h5py.ref_dtype]
        )
        file.create_dataset(name, shape=shape[:1] or (1,), dtype=kind)
