#!/usr/bin/env python3
"""Robot data with pictures: RLDS records into a buffer, decoded, against TFDS decoding the same ones.

The records are those of the Bridge dataset (four 64 x 64 JPEG pictures a step, episodes of 10 steps), repeated, with
the last step flagged, which they leave out; and the same with every picture enlarged to 256 x 256 and encoded again.
That everybody decodes the same pixels is asserted first, by their sum.  Then the peak memory of converting 4x
and 32x the records to a folder, decoded and encoded.  ``pip install "rlds2buf[tf-agents]"``.

python scripts/bench_convert_images.py --bridge path/to/bridge_dataset/1.0.0
"""

from __future__ import annotations

import io
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench import Bench, Pass, turns
from bench_memory import compare
from PIL import Image

import rlds2buf
from rlds2buf.codecs.tfrecord.example import parse_example
from rlds2buf.codecs.tfrecord.frames import frame, read_records
from rlds2buf.formats.rlds.source import RldsDirSource

SPEED_BAR = 2.0
PICTURES = [f"image_{i}" for i in range(4)]


# The data


def delimited(field: int, payload: bytes) -> bytes:
    """A field of a protocol buffer, its length before it."""
    length, head = len(payload), bytearray([field << 3 | 2])
    while length >= 0x80:
        head.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes(head) + bytes([length]) + payload


def folder_of(source: Path, target: Path, times: int, size: int | None) -> Path:
    """The dataset so many times over, perhaps with pictures of another size.

    Every copy's files differ by a comment in their headers, so that nobody can store them once.
    """
    target.mkdir(parents=True)
    (shard,) = source.glob("*.tfrecord-*")
    records = [split_record(record, size) for record in read_records(shard)]
    with open(target / shard.name, "wb") as file:
        for copy in range(times):
            comment = b"\xff\xfe\x00\x0a" + copy.to_bytes(8, "big")
            for record in records:
                file.write(frame(joined_record(record, comment)))
    info = json.loads((source / "dataset_info.json").read_text())
    for split in info["splits"]:
        split["shardLengths"] = [str(int(n) * times) for n in split["shardLengths"]]
    (target / "dataset_info.json").write_text(json.dumps(info))
    features = json.loads((source / "features.json").read_text())
    (target / "features.json").write_text(json.dumps(features if size is None else with_size(features, size)))
    return target


Entry = tuple[str, int, bytes | list[bytes]]
"""Name, kind and values of a feature; pictures as the files they are."""


def split_record(record: bytes, size: int | None) -> list[Entry]:
    """The features of a record, its last step flagged, every picture in another size if one is given."""
    entries: list[Entry] = []
    for key, feature in parse_example(record).items():
        if key.rsplit("/", 1)[-1] in PICTURES:
            files = feature.strings()
            entries.append((key, feature.kind, files if size is None else [enlarged(file, size) for file in files]))
        elif key == "steps/is_last":
            steps = len(feature.ints())
            entries.append((key, feature.kind, delimited(1, bytes(steps - 1) + b"\x01")))
        else:
            entries.append((key, feature.kind, record[feature.start : feature.stop]))
    return entries


def joined_record(entries: list[Entry], comment: bytes) -> bytes:
    """The record of these features; `comment` goes into every picture, behind its first marker."""
    out = []
    for key, kind, value in entries:
        if isinstance(value, list):
            value = b"".join(delimited(1, file[:2] + comment + file[2:]) for file in value)
        out.append(delimited(1, delimited(1, key.encode()) + delimited(2, delimited(kind, value))))
    return delimited(1, b"".join(out))


def enlarged(data: bytes, size: int) -> bytes:
    image = Image.open(io.BytesIO(data)).resize((size, size), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


def with_size(value: Any, size: int) -> Any:
    """features.json with another shape of every picture."""
    if not isinstance(value, dict):
        return value
    if "image" in value and "Image" in value.get("pythonClassName", ""):
        shape = {"dimensions": [str(size), str(size), "3"]}
        return {**value, "image": {**value["image"], "shape": shape}}
    return {key: with_size(child, size) for key, child in value.items()}


# Who reads it


def convert_to_buffer(folder: Path) -> Pass:
    """The whole way: read, decode, validate every episode, store it in a circular buffer."""
    source = RldsDirSource(folder)
    steps = sum(episode.num_steps for episode in RldsDirSource(folder, images="encoded"))
    buffer = rlds2buf.make_circular(source.spec, steps)

    def run() -> int:
        buffer.clear()
        return int(rlds2buf.convert(source, buffer).steps)

    return run


def read_episodes(folder: Path) -> Pass:
    """Decoded columns, one episode after the other."""
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder))


def read_encoded(folder: Path) -> Pass:
    """Columns of files, not decoded."""
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder, images="encoded"))


def read_resized(folder: Path) -> Pass:
    """Decoded and resized to half the size."""
    height = RldsDirSource(folder).spec.observation["image_0"].shape[0]
    return lambda: sum(episode.num_steps for episode in RldsDirSource(folder, resize=height // 2))


def tfds_dataset(folder: Path, **options: Any) -> Any:
    import tensorflow_datasets as tfds

    return tfds.builder_from_directory(folder).as_dataset(split="train", **options)


def count(batches: Any) -> int:
    import tensorflow_datasets as tfds

    return sum(len(batch["is_first"]) for batch in tfds.as_numpy(batches))


def tfds_flat(folder: Path) -> Pass:
    """TFDS as its guides show it: the steps of all episodes one behind the other, in batches."""
    import tensorflow as tf

    def run() -> int:
        steps = tfds_dataset(folder).flat_map(lambda episode: episode["steps"])
        return count(steps.batch(64).prefetch(tf.data.AUTOTUNE))

    return run


def tfds_interleaved(folder: Path) -> Pass:
    """The steps of several episodes decoded at a time, in any order."""
    import tensorflow as tf

    def run() -> int:
        steps = tfds_dataset(folder).interleave(
            lambda episode: episode["steps"],
            cycle_length=16,
            num_parallel_calls=tf.data.AUTOTUNE,
            deterministic=False,
        )
        return count(steps.batch(64).prefetch(tf.data.AUTOTUNE))

    return run


def tfds_mapped(folder: Path) -> Pass:
    """Episodes left undecoded by TFDS, their pictures then decoded by hand, several episodes at a time."""
    import tensorflow as tf
    import tensorflow_datasets as tfds

    def decoded(episode: Any) -> Any:
        steps = episode["steps"]
        observation = dict(steps["observation"])
        for name in PICTURES:
            observation[name] = tf.map_fn(
                lambda file: tf.io.decode_image(file, channels=3, expand_animations=False),
                observation[name],
                fn_output_signature=tf.uint8,
            )
        return {**steps, "observation": observation}

    def run() -> int:
        episodes = tfds_dataset(folder, decoders={"steps": tfds.decode.SkipDecoding()})
        return count(episodes.map(decoded, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE))

    return run


OURS = {
    "rlds2buf, validated, into a buffer": convert_to_buffer,
    "rlds2buf, episodes": read_episodes,
    "rlds2buf, episodes, half the size": read_resized,
    "rlds2buf, episodes, kept encoded": read_encoded,
}
THEIRS = {
    "TFDS, flat_map + batch": tfds_flat,
    "TFDS, interleave + batch": tfds_interleaved,
    "TFDS, SkipDecoding + map": tfds_mapped,
}


def assert_equal_work(folder: Path) -> None:
    """The sum of all pixels is the same for us and for TFDS."""
    import tensorflow_datasets as tfds

    ours = sum(
        int(episode.observation[name].sum(dtype=np.int64)) for episode in RldsDirSource(folder) for name in PICTURES
    )
    steps = tfds_dataset(folder).flat_map(lambda episode: episode["steps"]).batch(64)
    theirs = sum(
        int(batch["observation"][name].sum(dtype=np.int64)) for batch in tfds.as_numpy(steps) for name in PICTURES
    )
    assert ours == theirs, (ours, theirs)


def speed(bench: Bench, what: str, folder: Path) -> None:
    """Everybody in turns; the best of TFDS's counts."""
    makers: dict[str, Callable[[Path], Pass]] = dict(OURS)
    if bench.has("tensorflow_datasets"):
        assert_equal_work(folder)
        makers |= THEIRS
    rates = turns({name: make(folder) for name, make in makers.items()}, bench.rounds)
    bench.show(f"Bridge, {what}, four pictures a step", rates)
    best = max((name for name in THEIRS if name in rates), key=lambda name: statistics.median(rates[name]), default="")
    bench.ratio(f"{what} decoded into a buffer", rates, next(iter(OURS)), best, least=SPEED_BAR)


def main() -> None:
    """Measure and print."""
    bench = Bench(__doc__, bridge=Path(), times=16, size=256, parts=["speed", "memory"])
    for size, times in ((64, bench.options.times), (bench.options.size, max(1, bench.options.times // 4))):
        what = f"JPEGs of {size} x {size}"
        with bench.folder() as folder:
            kept = None if size == 64 else size

            def made(times: int, folder: Path = folder, kept: int | None = kept) -> Path:
                return folder_of(bench.options.bridge, folder / str(times) / "1.0.0", times, kept)

            if "speed" in bench.options.parts:
                speed(bench, what, made(times))
            if "memory" in bench.options.parts:
                # Several blocks of 64 MiB each, or their number would be what is compared.
                both = [made(4 * times), made(32 * times)]
                for images in ("decoded", "encoded"):
                    compare(bench, f"{what} {images} to a buffer", both, "buffer", options=f", images={images!r}")
    bench.finish()


if __name__ == "__main__":
    main()
