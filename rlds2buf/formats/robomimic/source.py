"""robomimic's HDF5 files: one group of columns a demonstration."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from rlds2buf.codecs.hdf5.reading import Hdf5File, describe_value, is_group, open_hdf5
from rlds2buf.core.arguments import choice
from rlds2buf.core.budget import BUDGET, Budget
from rlds2buf.core.episode import Episode
from rlds2buf.core.episode_batch import EpisodeBatch
from rlds2buf.core.json_text import parse_json
from rlds2buf.core.spec import StepSpec
from rlds2buf.errors import EpisodeError, SourceFormatError
from rlds2buf.files.fingerprint import fingerprint_files
from rlds2buf.formats.robomimic.demonstration import TERMINALS, plain, read_demo
from rlds2buf.formats.robomimic.family import flipped, instruction, libero_warnings
from rlds2buf.formats.robomimic.together import Together
from rlds2buf.io.blocks import blocks_of
from rlds2buf.io.source import Source, spec_of_first
from rlds2buf.io.splits import pieces_of_split

__all__ = ["RobomimicHdf5Source", "demonstrations"]

_DEMO = re.compile(r"demo_?(\d+)")
_MOST_KEYS = 1000


class RobomimicHdf5Source(Source):
    """Demonstrations of a robomimic file (https://robomimic.github.io/docs/datasets/overview.html).

    A demonstration ``data/demo_<k>`` of N samples has actions, rewards and dones of N rows, and
    pictures and numbers below ``obs``.  Here it is an episode:

    ===================  ==========================================================================
    the file             the episode
    ===================  ==========================================================================
    with ``next_obs``    N + 1 rows, the last observation being the last of ``next_obs``; action,
                         reward and extras of that row are zeros
    without              N rows: the last sample's action and reward are on the final row, which
                         starts no transition, so one transition is lost (`details` warns)
    ``rewards`` missing  the reward is None
    ``dones``            as `terminals` says
    ===================  ==========================================================================

    **What a done is.**  robomimic's tasks do not end by themselves.  Its own conversion writes a done
    where the next state solves the task (``--done_mode 0``), at the end of each demonstration (1) or
    both (2).  Published machine-generated files are of mode 0, human ones of mode 2, and its conversion of
    D4RL writes a done at time-outs too.  So a done at the last sample may be a success or a mere end;
    robomimic's own losses take each done as terminal.  `terminals` chooses:

    ==========  ===================================================================================
    ``"last"``  the last row is terminal if the sample that led there is done; earlier dones (the
                task is solved and the demonstration goes on) are left in the extra ``dones``
    ``"dones"`` every row that a done led to is terminal, as in the RLDS files that TFDS makes of
                these; rows within an episode may be, which validation reports and repair clears
    ``"none"``  no row is terminal: demonstrations are cut, and learners bootstrap at their ends
    ==========  ===================================================================================

    The discount is 1 (float32), and 0 on the step into a terminal row and on that row.  Demonstrations
    come in the order of their numbers.  Every other dataset of N rows is an extra (``action_dict``,
    ``states``).  An episode's metadata are its name (``demo``), its attributes, the file's ``env_args``
    (JSON text), and ``mask``: for each filter key whether the demonstration is in it.  Filter keys are
    the splits.

    The same layout is LIBERO's, MimicGen's and RoboCasa's.  The instruction is the metadata
    ``language_instruction``: LIBERO has it in ``problem_info``, RoboCasa in each demonstration's
    ``ep_meta``.  LIBERO's pictures are upside down, as OpenGL has them, unless its attribute
    ``macros_image_convention`` is "opencv", and its ``create_dataset.py`` stores beside each action
    the observation that it *led to* (``alignment="ars"`` moves the actions).  `details` warns of both.

    Args:
        path: the file.
        split: a filter key, with TFDS's slices and sums (``"train"``, ``"train[:10%]+valid"``); ``"all"``
            or None for every demonstration.  The order is that of the numbers within each part.
        terminals: as above.
        states: whether to read simulator states and each demonstration's model: the extra ``states``,
            the metadata ``model_file``.
        flip_images: turn pictures below ``obs`` (``[T, height, width, 1, 3 or 4]``) the other way up.
        external: data that the file has in other files, by links, external storage or virtual datasets:
            ``"refuse"`` those outside of its folder, or ``"allow"`` any.
        budget: see :class:`~rlds2buf.core.budget.Budget`.

    Raises:
        SourceNotFound: nothing is there, or no such filter key.
        SourceFormatError: it is no such file, or holds no observations.
        ValueError: an option is out of range.

    >>> import h5py, tempfile
    >>> path = os.path.join(tempfile.mkdtemp(), "low_dim.hdf5")
    >>> with h5py.File(path, "w") as file:
    ...     for name in ("obs", "next_obs"):
    ...         file[f"data/demo_0/{name}/eef"] = np.zeros((3, 2))
    ...     file["data/demo_0/actions"] = np.zeros((3, 7))
    ...     file["data/demo_0/dones"] = np.array([0, 0, 1])
    >>> list(RobomimicHdf5Source(path))
    [<Episode 0: 4 steps, terminated>]
    """

    format: ClassVar[str] = "robomimic"

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        split: str | None = None,
        terminals: str = "last",
        states: bool = True,
        flip_images: bool = False,
        external: str = "refuse",
        budget: Budget = BUDGET,
    ) -> None:
        choice("terminals", terminals, TERMINALS)
        self.path = Path(path)
        self._options = (terminals, states)
        self._flip = flip_images
        self._open = functools.partial(open_hdf5, self.path, budget=budget, external=external)
        with self._open() as file:
            demos = demonstrations(file)
            if not demos:
                raise SourceFormatError(f"{path}: a robomimic file needs demonstrations, data/demo_0 and so on")
            if not any(name in file for name in ("data/" + demo + "/obs" for demo in demos)):
                raise SourceFormatError(
                    f"{path}: none of its {len(demos)} demonstrations has observations (`obs`); "
                    "robomimic's dataset_states_to_obs.py makes them from simulator states"
                )
            self._attributes = plain(dict(file.get("data").attrs))
            self._keys = self._filter_keys(file)
        self._all = demos
        self._demos = demos if split is None else self._chosen(split)
        self.name = str(path) if split is None else f"{path} [{split}]"

    @property
    def spec(self) -> StepSpec:
        return self._spec

    @property
    def num_episodes(self) -> int:
        return len(self._demos)

    @property
    def num_steps(self) -> int:
        return sum(self._rows)

    def read_batches(
        self, start: int = 0, stop: int | None = None, *, rows: int = 1 << 14, bytes: int = 64 << 20
    ) -> Iterator[EpisodeBatch | EpisodeError]:
        stop = len(self._demos) if stop is None else min(stop, len(self._demos))
        terminals, states = self._options
        with self._open() as file:
            together = Together(
                file,
                self._demos,
                terminals=terminals,
                states=states,
                alone=functools.partial(self._episode, file),
                facts=self._facts,
                source=self.name,
            )
            for item in blocks_of(together.read(start, stop, rows, bytes), rows, bytes):
                yield flipped(item) if self._flip and isinstance(item, EpisodeBatch) else item

    def details(self) -> dict[str, Any]:
        attributes = {key: _short(value) for key, value in self._attributes.items()}
        return {
            **attributes,
            "env_args": _env_args(self._attributes),
            "splits": {name: len(demos) for name, demos in self._keys.items()},
            "demonstrations": len(self._all),
            "next_obs": self._has_next,
            "fields": {path: [str(shape), str(dtype)] for path, (shape, dtype) in self._first.items()},
            "warnings": self._warnings(),
        }

    def fingerprint(self) -> str:
        chosen = ",".join(str(demo) for demo in self._demos) if self._demos != self._all else "all"
        return f"robomimic:{fingerprint_files([self.path])}:{self._options}:{chosen}{':flipped' * self._flip}"

    def _filter_keys(self, file: Hdf5File) -> dict[str, list[str]]:
        """The demonstrations of each filter key, in the order of their numbers."""
        known = {name: number for number, name in enumerate(demonstrations(file))}
        found: dict[str, list[str]] = {}
        group = file.get("mask")
        for key in sorted(group or ())[:_MOST_KEYS] if is_group(group) else ():
            dataset = file.get(key, group)
            if not getattr(dataset, "shape", None):
                continue
            texts = file.read(dataset)
            names = {name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name) for name in texts}
            missing = sorted(names - set(known))
            if missing:
                raise SourceFormatError(f"{self.path}: mask/{key} names {missing[0]}, which is not under data/")
            found[key] = sorted(names, key=known.__getitem__)
        return found

    def _chosen(self, split: str) -> list[str]:
        parts = {"all": self._all, **self._keys}
        pieces = pieces_of_split(split, {name: [len(demos)] for name, demos in parts.items()})
        return [demo for piece in pieces for demo in parts[piece.split][piece.start : piece.stop]]

    def _episode(self, file: Hdf5File, index: int) -> Episode | EpisodeError:
        terminals, states = self._options
        file.new_record()
        group = file.get(f"data/{self._demos[index]}")
        if group is None:
            raise SourceFormatError(f"{self.path}: data/{self._demos[index]} is gone; did the file change?")
        try:
            episode = read_demo(file, group, terminals=terminals, states=states, source=self.name, index=index)
        except EpisodeError as error:
            return error
        except SourceFormatError as cause:
            raise cause.at(f"{self.name}, episode {index}") from cause
        episode.metadata = self._facts(index, group)
        return episode

    def _facts(self, index: int, group: Any) -> dict[str, Any]:
        """What is known of a demonstration, of whose group the attributes are."""
        demo, (_, states) = self._demos[index], self._options
        own = {key: value for key, value in plain(dict(group.attrs)).items() if states or key != "model_file"}
        mask = {key: demo in members for key, members in self._members.items()}
        told = {key: value for key, value in self._attributes.items() if key == "env_args"}
        spoken = instruction(self._attributes, own)
        return {
            "demo": demo,
            **own,
            **told,
            **({"mask": mask} if mask else {}),
            **({} if spoken is None else {"language_instruction": spoken}),
        }

    @functools.cached_property
    def _members(self) -> dict[str, frozenset[str]]:
        return {key: frozenset(demos) for key, demos in self._keys.items()}

    @functools.cached_property
    def _spec(self) -> StepSpec:
        return spec_of_first(self, "demonstrations")

    @functools.cached_property
    def _rows(self) -> list[int]:
        """How many rows each episode has, from the shapes alone."""
        rows = []
        with self._open() as file:
            for demo in self._demos:
                shape = getattr(file.get(f"data/{demo}/actions"), "shape", None) or (0,)
                rows.append(int(shape[0]) + int(f"data/{demo}/next_obs" in file))
        return rows

    @functools.cached_property
    def _first(self) -> dict[str, tuple[Any, Any]]:
        """Shape and dtype of each dataset of the first demonstration."""
        found: dict[str, tuple[Any, Any]] = {}
        with self._open() as file:
            file.get(f"data/{self._all[0]}").visititems(
                lambda name, item: found.update({name: (item.shape, item.dtype)} if hasattr(item, "shape") else {})
            )
        return found

    @functools.cached_property
    def _has_next(self) -> bool:
        return any(path.startswith("next_obs/") for path in self._first)

    def _warnings(self) -> list[str]:
        warnings = []
        if not self._has_next:
            warnings.append("no `next_obs`: the last sample of each demonstration starts no transition")
        if "dones" not in self._first:
            warnings.append("no `dones`: nothing tells a success from a cut; every end is a cut")
        elif self._options[0] == "last":
            warnings.append("`dones` mark solved tasks or ends of demonstrations, not always ends of the environment")
        warnings += libero_warnings(self._attributes, flip=self._flip)
        total = self._attributes.get("total")
        if len(self._demos) == len(self._all) and isinstance(total, int):
            samples = sum(self._rows) - len(self._rows) * self._has_next
            if samples != total:
                warnings.append(f"the attribute `total` says {total} samples, there are {samples}")
        return warnings


def demonstrations(file: Hdf5File) -> list[str]:
    """The names of the demonstrations in an open file, ``demo_2`` before ``demo_10``; [] if there are none."""
    group = file.get("data")
    if not is_group(group):
        return []
    numbers = {name: int(match[1]) for name in group if (match := _DEMO.fullmatch(name))}
    return sorted(numbers, key=lambda name: (numbers[name], name))


def _env_args(attributes: dict[str, Any]) -> Any:
    try:
        # What is no JSON value by the standard (Infinity) is text in `details`.
        return parse_json(attributes["env_args"], parse_constant=str)
    except (KeyError, TypeError, ValueError):
        return None


def _short(value: Any) -> Any:
    described = describe_value(value)
    if isinstance(described, float) and not np.isfinite(described):
        return str(described)
    if isinstance(described, str) and len(described) > 200:
        return described[:200] + "..."
    return described
