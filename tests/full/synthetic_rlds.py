"""A dataset that TFDS itself prepares."""

from __future__ import annotations

import numpy as np

from tests.full.quiet import tf, tfds

F = tfds.features
IN_ORDER = tfds.ReadConfig(interleave_cycle_length=1)
LENGTHS = [3, 1, 5, 2, 4, 1, 3]
NUMBERS = [
    "bool",
    "int8",
    "uint8",
    "int16",
    "uint16",
    "int32",
    "uint32",
    "int64",
    "uint64",
    "float16",
    "float32",
    "float64",
]


def numbers(dtype: str, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """The extremes of the dtype, and something in between."""
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "f":
        pool = np.array([0.0, -0.0, 1 / 3, -6e4, np.inf, np.nan, 6e-8], dtype)
    else:
        limits = np.iinfo(dtype)
        pool = np.array([limits.min, limits.max, 0, 1, 127 % limits.max, limits.max // 3], dtype)
    return rng.choice(pool, shape)


STEP = {
    **{f"{dtype}_{encoding}": F.Tensor(shape=(2,), dtype=np.dtype(dtype).type, encoding=encoding)
       for dtype in NUMBERS for encoding in ("none", "bytes", "zlib")
       if dtype != "uint32" or encoding == "none"},  # TFDS writes the others but can't read them
    "complex64_bytes": F.Tensor(shape=(2,), dtype=np.complex64, encoding="bytes"),
    "bfloat16_bytes": F.Tensor(shape=(2,), dtype=tf.bfloat16, encoding="bytes"),
    "scalar": F.Scalar(dtype=np.float64),
    "rows": F.Tensor(shape=(None, 2), dtype=np.float32, encoding="zlib"),
    "any": F.Tensor(shape=(None, None), dtype=np.int16, encoding="bytes"),
    "cube": F.Tensor(shape=(2, 1, 3), dtype=np.int32),
    "strings": F.Tensor(shape=(2,), dtype=np.str_),
    "text": F.Text(),
    "label": F.ClassLabel(num_classes=3),
    "box": F.BBoxFeature(),
    "ragged": F.Sequence(np.float32),
    "ragged_even": F.Sequence(F.Tensor(shape=(2,), dtype=np.uint8)),
    "ragged_text": F.Sequence(F.Text()),
    "ragged_zlib": F.Sequence(F.Tensor(shape=(2,), dtype=np.float64, encoding="zlib")),
    "ragged_dict": F.Sequence({"a": np.int32, "b": F.Text()}),
    "ragged_deep": F.Sequence(F.Sequence(np.int64)),
    "video": F.Video(shape=(None, 4, 3, 3)),
    "png": F.Image(shape=(4, 5, 3)),
    "png_gray": F.Image(shape=(4, 5, 1)),
    "png_rgba": F.Image(shape=(4, 5, 4)),
    "png_any_size": F.Image(),
    "depth": F.Image(shape=(4, 5, 1), dtype=np.uint16),
    "depth_float": F.Image(shape=(4, 5, 1), dtype=np.float32),
    "jpeg": F.Image(shape=(18, 21, 3), encoding_format="jpeg"),
    "jpeg_gray": F.Image(shape=(18, 21, 1), encoding_format="jpeg"),
}  # fmt: skip
META = {
    "seed": np.uint64,
    "name": F.Text(),
    "goal": F.Tensor(shape=(2,), dtype=np.float64),
    "map": F.Image(shape=(None, None, 1)),
    "path": F.Sequence(F.Tensor(shape=(2,), dtype=np.float32)),
    "notes": F.Sequence(F.Sequence(F.Text())),
    "box": F.Tensor(shape=(None, None), dtype=np.uint8, encoding="zlib"),
    "nested": {"level": np.int8, "deep": {"flag": np.bool_}},
    "maybe": F.Scalar(dtype=np.int32, optional=True),
    "maybe_text": F.Scalar(dtype=np.str_, optional=True),
    "maybe_float": F.Tensor(shape=(2,), dtype=np.float32, optional=True),
}


def synthetic_step(t: int, length: int, rng: np.random.Generator) -> dict:
    import ml_dtypes

    def pixels(*shape: int, dtype: type = np.uint8) -> np.ndarray:
        return rng.integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)

    observation = {name: numbers(name.split("_")[0], rng, (2,)) for name in STEP if name.split("_")[0] in NUMBERS}
    words = [f"word {i}" for i in range(int(rng.integers(0, 3)))]
    observation |= {
        "complex64_bytes": rng.normal(size=2).astype(np.complex64),
        "bfloat16_bytes": rng.normal(size=2).astype(ml_dtypes.bfloat16),
        "scalar": rng.normal(),
        "rows": rng.normal(size=(t, 2)).astype(np.float32),
        "any": rng.integers(-9, 9, (t % 2, 3), np.int16),
        "cube": rng.integers(-9, 9, (2, 1, 3), np.int32),
        "strings": ["", "ü" * t],
        "text": f"step {t}",
        "label": t % 4 - 1,
        "box": F.BBox(0.1, 0.2, 0.3, 0.4),
        "ragged": list(rng.normal(size=int(rng.integers(0, 4)))),
        "ragged_even": pixels(3, 2),
        "ragged_text": words,
        "ragged_zlib": [rng.normal(size=2) for _ in words],
        "ragged_dict": [{"a": i, "b": word} for i, word in enumerate(words)],
        "ragged_deep": [[1] * t, [], [2, 3]],
        "video": pixels(1 + t % 2, 4, 3, 3),
        "png": pixels(4, 5, 3),
        "png_gray": pixels(4, 5, 1),
        "png_rgba": pixels(4, 5, 4),
        "png_any_size": pixels(2 + t % 3, 3, 3),
        "depth": pixels(4, 5, 1, dtype=np.uint16),
        "depth_float": rng.normal(size=(4, 5, 1)).astype(np.float32),
        "jpeg": pixels(18, 21, 3),
        "jpeg_gray": pixels(18, 21, 1),
    }
    return {
        "observation": observation,
        "action": np.array([t, -t], np.float32),
        "reward": np.float64(t),
        "discount": np.float32(1),
        "is_first": t == 0,
        "is_last": t == length - 1,
        "is_terminal": t == length - 1,
        "extra": t,
    }


class SyntheticRlds(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Every dtype, encoding and kind of feature that TFDS can write and read in a step."""

    VERSION = tfds.core.Version("1.2.3")
    code_path = None  # else TFDS looks for checksum files, with a package that it does not require

    def _info(self):
        step = {
            "observation": STEP, "action": F.Tensor(shape=(2,), dtype=np.float32), "reward": np.float64,
            "discount": np.float32, "is_first": np.bool_, "is_last": np.bool_, "is_terminal": np.bool_,
            "extra": np.int64,
        }  # fmt: skip
        return tfds.core.DatasetInfo(builder=self, features=F.FeaturesDict({"steps": F.Dataset(step), **META}))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(LENGTHS), "test": self._generate_examples([2, 2, 1])}

    def _generate_examples(self, lengths):
        for number, length in enumerate(lengths):
            rng = np.random.default_rng(number)
            yield (
                number,
                {
                    "steps": [synthetic_step(t, length, rng) for t in range(length)],
                    "seed": np.uint64(2**64 - 1 - number),
                    "name": f"episode {number}",
                    "goal": rng.normal(size=2),
                    "map": rng.integers(0, 255, (number + 1, 2, 1), np.uint8),
                    "path": rng.normal(size=(number, 2)).astype(np.float32),
                    "notes": [["a"] * number, ["b"]],
                    "box": rng.integers(0, 255, (number, 2), np.uint8),
                    "nested": {"level": -number, "deep": {"flag": bool(number % 2)}},
                    "maybe": number if number % 2 else None,
                    "maybe_text": "yes" if number % 2 else None,
                    "maybe_float": np.ones(2, np.float32) if number % 2 else None,
                },
            )
