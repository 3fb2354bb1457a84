"""Which formats there are: the built-in ones in the order in which they are asked, and those of installed plug-ins."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from rlds2buf.errors import Rlds2bufError, SourceError
from rlds2buf.formats import plugins
from rlds2buf.formats.aloha import format as aloha
from rlds2buf.formats.buffer import format as buffer
from rlds2buf.formats.d3rlpy import format as d3rlpy
from rlds2buf.formats.d4rl import format as d4rl
from rlds2buf.formats.dreamer import format as dreamer
from rlds2buf.formats.imitation import format as imitation
from rlds2buf.formats.lerobot import format as lerobot
from rlds2buf.formats.maniskill import format as maniskill
from rlds2buf.formats.memory import format as memory
from rlds2buf.formats.minari import format as minari
from rlds2buf.formats.ogbench import format as ogbench
from rlds2buf.formats.reverb import format as reverb
from rlds2buf.formats.rlds import format as rlds
from rlds2buf.formats.rllib import format as rllib
from rlds2buf.formats.robomimic import format as robomimic
from rlds2buf.formats.step_log import format as step_log
from rlds2buf.formats.tf_example import format as tf_example
from rlds2buf.formats.zarr import format as zarr
from rlds2buf.io.format import Format
from rlds2buf.io.look import Look

if TYPE_CHECKING:  # they load numpy, and the help and completion ask for nothing but names
    from rlds2buf.core.options import Option
    from rlds2buf.io.sink import Sink
    from rlds2buf.io.source import Source

__all__ = [
    "BUILT_IN",
    "USUAL_TARGET",
    "by_name",
    "closest",
    "find",
    "find_object",
    "find_scheme",
    "find_target",
    "every",
    "is_resumable",
    "names",
    "summary",
    "takes_of_sink",
    "refusal",
    "rivals",
    "schemes",
    "sink_class",
    "sink_options",
    "source_class",
    "source_options",
    "source_names",
    "target_names",
]

# What is told by names alone stands behind what is told by content, and memory, which takes any iterable, last.
_ROOMS: Final = (
    buffer,
    rlds,
    minari,
    lerobot,
    rllib,
    tf_example,
    robomimic,
    d3rlpy,
    d4rl,
    reverb,
    aloha,
    maniskill,
    dreamer,
    zarr,
    ogbench,
    imitation,
    step_log,
    memory,
)

BUILT_IN: Final[tuple[Format, ...]] = tuple(itertools.chain.from_iterable(room.FORMATS for room in _ROOMS))
"""Those of this package; the first that fits is taken."""

USUAL_TARGET: Final = BUILT_IN[0]
"""What a path becomes whose name says nothing."""

_NAMED: Final = {entry.name: entry for entry in BUILT_IN}
_MOST_HINTS: Final = 3
_PASSED_ON: Final = ("split", "budget", "optional", "repair")
"""Arguments of sources that come from those of ``open_source``."""


def by_name(name: str, error: type[Rlds2bufError] = SourceError) -> Format | None:
    """The format of a name, a plug-in's too, which is then loaded; None if there is none.

    Args:
        name: as ``open_source(format=...)`` and ``convert(to=...)`` take it.
        error: what is raised for a plug-in that can't be loaded.

    >>> by_name("d4rl").what, by_name("nonsense")
    ('a D4RL HDF5 file', None)
    """
    return _NAMED.get(name) or plugins.load(name, error)


def source_names() -> list[str]:
    """What ``open_source(format=...)`` takes, sorted; plug-ins are named and not loaded."""
    own = {entry.name for entry in BUILT_IN if entry.source is not None}
    return sorted(own | (plugins.names() - _NAMED.keys()))


def target_names() -> list[str]:
    """What ``convert(to=...)`` makes of a path; plug-ins, which are not loaded for this, at the end.

    >>> target_names()[:3]
    ['buffer', 'rlds', 'minari']
    """
    own = [entry.name for entry in BUILT_IN if entry.is_target]
    return own + sorted(plugins.names() - _NAMED.keys())


def names() -> list[str]:
    """All of them, plug-ins' too, which are not loaded for this."""
    return [*_NAMED, *sorted(plugins.names() - _NAMED.keys())]


def every(failed: list[str]) -> list[Format]:
    """All of them; plug-ins are loaded.

    Args:
        failed: gets a sentence for each plug-in that can't be loaded.
    """
    return [*BUILT_IN, *plugins.every(_NAMED.keys(), failed)]


def summary(entry: Format) -> dict[str, Any]:
    """What is known of a format, as plain JSON values."""
    return {
        "name": entry.name,
        "what": entry.what,
        "read": entry.source is not None,
        "written": entry.sink is not None,
        "has_splits": entry.has_splits,
        "suffixes": list(entry.suffixes or entry.target_suffixes),
        "extras": dict(entry.extras),
        "plugin": entry.plugin or None,
    }


def schemes() -> list[str]:
    """Of the addresses that are read."""
    return [entry.scheme for entry in BUILT_IN if entry.scheme is not None]


def find_scheme(scheme: str, failed: list[str]) -> Format | None:
    """What is read from addresses of this scheme, likewise."""

    def fits(entry: Format) -> bool:
        return entry.scheme == scheme

    return next(filter(fits, BUILT_IN), None) or plugins.find(fits, _NAMED.keys(), failed)


def find(look: Look, failed: list[str]) -> Format | None:
    """What lies at a path; where no built-in format fits, plug-ins are loaded and asked.

    Args:
        look: at the path.
        failed: gets a sentence for each plug-in that could not be asked, if none fits.
    """
    return _built_in(look) or plugins.find(
        lambda entry: entry.fits is not None and entry.fits(look), _NAMED.keys(), failed
    )


def rivals(look: Look, entry: Format) -> list[str]:
    """Names of the other built-in formats that what lies at a path may be as well as `entry`, by its content.

    Of those that `entry` is a special form of (``over``), and of those told by names alone, none is.
    """
    if entry.by_name or entry.plugin:
        return []
    others = (one for one in BUILT_IN if one is not entry and not one.by_name and one.name not in entry.over)
    return [one.name for one in others if one.fits is not None and _is_whole(one, look)]


def find_object(value: Any, failed: list[str]) -> Format | None:
    """What an object in memory is, likewise."""

    def fits(entry: Format) -> bool:
        return entry.fits_object is not None and entry.fits_object(value)

    return next(filter(fits, BUILT_IN), None) or plugins.find(fits, _NAMED.keys(), failed)


def find_target(value: Any) -> Format | None:
    """What writes to an object in memory."""
    return next((entry for entry in BUILT_IN if entry.writes_to is not None and entry.writes_to(value)), None)


def _built_in(look: Look) -> Format | None:
    return next((entry for entry in BUILT_IN if entry.fits is not None and _is_whole(entry, look)), None)


def _is_whole(entry: Format, look: Look) -> bool:
    """Whether it fits, and is one dataset: nothing beside what makes it fit is a dataset, too."""
    assert entry.fits is not None
    if not entry.fits(look):
        return False
    members = entry.members(look)
    return members is None or not any(_built_in(look.inside(name)) for name in look.names if name not in members)


def refusal(look: Look) -> str | None:
    """What something is that is known and not read, and what to do; None if it is not known."""
    known = itertools.chain.from_iterable(entry.refusals for entry in BUILT_IN)
    return next((it.why(look) for it in known if it.fits(look)), None)


def closest(look: Look) -> str:
    """The few formats that may be meant where none fits, each with what it is told by; for the end of a message.

    >>> import pathlib, tempfile
    >>> closest(Look(pathlib.Path(tempfile.mkdtemp())))
    '; closest: rlds (features.json and dataset_info.json beside the shards), minari (data/main_data.hdf5)'
    """
    near = sorted(((entry.near(look), entry) for entry in BUILT_IN), key=lambda found: -found[0])
    texts = [f"{entry.name} ({entry.told_by})" for closeness, entry in near[:_MOST_HINTS] if closeness]
    return f"; closest: {', '.join(texts)}" if texts else ""


def source_class(entry: Format) -> Callable[..., Source]:
    """The class that reads a format.

    Raises:
        ValueError: it is written, not read.
        SourceError: a plug-in's can't be loaded.
    """
    if entry.source is None:
        raise ValueError(f"{entry.name} is written, not read")
    return plugins.source_class(entry) if entry.plugin else _class(entry.source)


def sink_class(entry: Format) -> type[Sink]:
    """The class that writes a format.

    Raises:
        ValueError: it is read, not written.
        SinkError: a plug-in's can't be loaded.
    """
    if entry.sink is None:
        raise ValueError(f"{entry.name} is read, not written")
    return plugins.sink_class(entry) if entry.plugin else _class(entry.sink)


def source_options(entry: Format) -> list[Option] | None:
    """The options of a format's reader; None if it takes any name."""
    from rlds2buf.core.options import options_of

    found = options_of(source_class(entry))
    return found and [option for option in found if option.name not in _PASSED_ON]


def sink_options(entry: Format) -> list[Option] | None:
    """The options of a format's writer; None if it takes any name."""
    found = _sink_arguments(entry)
    return found and [option for option in found if option.name not in ("overwrite", "resume")]


def takes_of_sink(entry: Format) -> set[str]:
    """Which of the arguments ``overwrite`` and ``resume`` a format's writer takes."""
    found = _sink_arguments(entry)
    return {"overwrite", "resume"} & ({"overwrite", "resume"} if found is None else {option.name for option in found})


def is_resumable(name: str) -> bool:
    """Whether a conversion to the format of this name can be resumed."""
    entry = by_name(name)
    return entry is not None and "resume" in takes_of_sink(entry)


def _sink_arguments(entry: Format) -> list[Option] | None:
    from rlds2buf.core.options import options_of

    return options_of(sink_class(entry))


def _class(name: str) -> Any:
    module, _, cls = name.partition(":")
    return getattr(importlib.import_module(module), cls)
