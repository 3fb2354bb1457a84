"""Files of every format with one thing wrong in them: either they are read, or a typed error says what is wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import rlds2buf
from rlds2buf import Episode, Rlds2bufError, convert
from rlds2buf.codecs.message_pack import unpack
from tests.campaign.cases import rng_of
from tests.campaign.mutate import mutate_file, packed
from tests.cli.one_of_each import MAKERS, MORE

__all__ = ["Mutants"]


def _pictures(path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = 3
    made = Episode(
        observation={
            "image": rng.integers(0, 256, (rows, 8, 8, 3), np.uint8),
            "state": np.zeros((rows, 2), np.float32),
        },
        action=np.zeros((rows, 1), np.float32),
        reward=np.ones(rows, np.float32),
        is_terminal=np.arange(rows) == rows - 1,
    )
    convert([made], path, to="rlds")


class Mutants:
    """A dataset of each format, and what happens to a case's copy of one.

    Args:
        folder: an empty one, on a fast disk; the originals and the copies lie there.
        seed: of the cases.
    """

    CHUNK = 250

    def __init__(self, folder: Path, seed: int) -> None:
        self._seed = seed
        self._folder = folder
        self._sets: dict[str, tuple[Path, dict[str, Any]]] = {}
        makers = {**MAKERS, "rlds-pictures": ("set", _pictures)}
        for name, (file, make) in makers.items():
            place = folder / "whole" / name
            place.mkdir(parents=True)
            make(place / file)
            self._sets[name] = (place / file, _options(MORE.get(name, [])))
        for name in self._sets:  # what is right is read, and everything is imported and compiled once
            self._look(self._sets[name][0], name)
        self._packed = [b"\x81\xa3obs\x93\xcb?\xf0\0\0\0\0\0\0\x01\x02", b"\xdc\0\x03\xc0\xc3\xcf" + bytes(8)]

    def one(self, case: int) -> str:
        """Run a case; says how it ended.  What is raised is a fault."""
        rng = rng_of("mutants", self._seed, case)
        if rng.random() < 0.02:
            return self._message_pack(rng)
        name = rng.choice(sorted(self._sets))
        whole, _ = self._sets[name]
        with tempfile.TemporaryDirectory(dir=self._folder) as place:
            copy = Path(place) / whole.name
            shutil.copytree(whole, copy) if whole.is_dir() else shutil.copyfile(whole, copy)
            files = sorted(file for file in ([copy] if copy.is_file() else copy.rglob("*")) if file.is_file())
            for _ in range(rng.choice([1, 1, 1, 2])):
                file = rng.choice([file for file in files if file.stat().st_size] or files)
                mutate_file(file, rng)
            try:
                self._look(copy, name)
            except Rlds2bufError as error:
                if not str(error) or ("\n" in str(error)[:-1] and len(str(error)) > 5000):
                    raise AssertionError(f"what is said: {error!r}") from error
                return type(error).__name__
        return "read"

    def close(self) -> None:
        """Nothing is held."""

    def _look(self, path: Path, name: str) -> None:
        """Everything that a user does with it: opened, counted, every episode looked at, checked; buffers sampled."""
        options = self._sets[name][1]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with rlds2buf.open_source(path, **options) as source:
                source.details(), source.facts(), source.spec, source.num_episodes
                for item in source.read():
                    if isinstance(item, Episode):
                        [np.asarray(column).tobytes() for _, column in item.flatten() if column.dtype != object]
                rlds2buf.validate(source, max_details=2)
            if name == "buffer":
                buffer = rlds2buf.load_buffer(path, seed=0)
                buffer.sample(4)
                buffer.sample(2, sequence_length=3)
                buffer.all()

    def _message_pack(self, rng: random.Random) -> str:
        try:
            unpack(packed(rng.choice(self._packed), rng))
        except Rlds2bufError as error:
            return type(error).__name__
        return "read"


def _options(arguments: list[str]) -> dict[str, Any]:
    """Command line options as those of ``open_source``."""
    found: dict[str, Any] = {}
    for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
        if flag == "--format":
            found["format"] = value
        else:
            name, _, text = value.partition("=")
            try:
                found[name] = json.loads(text)
            except ValueError:
                found[name] = text
    return found


def fast_folder() -> str:
    """Memory where the system has a place for it, else the temporary folder."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
