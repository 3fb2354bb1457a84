"""Formats of other packages: entry points of the group ``rlds2buf.formats``.

The entry point's name is the format's name, and its value a :class:`~rlds2buf.io.format.Format`.  What goes wrong in a
plug-in is raised as an error that names it.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Set
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any, Final

from rlds2buf.errors import EpisodeError, Rlds2bufError, SinkError, SourceError
from rlds2buf.io.format import Format

if TYPE_CHECKING:  # they load numpy, and the help and completion ask for nothing but names
    from rlds2buf.io.sink import Sink
    from rlds2buf.io.source import Source

__all__ = ["GROUP", "every", "find", "load", "names", "sink_class", "source_class"]

GROUP: Final = "rlds2buf.formats"


def names() -> set[str]:
    """Of the formats that are installed; nothing is loaded."""
    return set(entry_points(group=GROUP).names)


def load(name: str, error: type[Rlds2bufError] = SourceError) -> Format | None:
    """The plug-in's format of that name; None if none is installed.

    Raises:
        error: it can't be loaded, or is no Format of that name.
    """
    found = next(iter(entry_points(group=GROUP, name=name)), None)
    return None if found is None else _loaded(found, error)


def every(but: Set[str], failed: list[str]) -> list[Format]:
    """All that are installed, in the order of their names.

    Args:
        but: names that are taken.
        failed: gets a sentence for each that can't be loaded.
    """
    return list(_each(lambda entry: True, but, failed))


def find(fits: Callable[[Format], bool], but: Set[str], failed: list[str]) -> Format | None:
    """The first plug-in's format that fits, in the order of their names.

    Args:
        fits: asked about each.
        but: names that are taken.
        failed: gets a sentence for each that could not be asked before one fits.
    """
    return next(_each(fits, but, failed), None)


def _each(fits: Callable[[Format], bool], but: Set[str], failed: list[str]) -> Iterator[Format]:
    points = {point.name: point for point in reversed(list(entry_points(group=GROUP)))}  # the first of a name
    for point in (points[name] for name in sorted(points.keys() - but)):
        try:
            entry = _loaded(point, SourceError)
            if _calling(SourceError, entry.plugin, functools.partial(fits, entry)):
                yield entry
        except SourceError as error:
            failed.append(str(error))


def source_class(entry: Format) -> type[Source]:
    """The class that reads a plug-in's format, whose methods raise SourceErrors that name the plug-in.

    Raises:
        SourceError: it can't be loaded, or is no Source.
    """
    from rlds2buf.io.source import Source

    return _guarded(_class(entry.plugin, str(entry.source), Source, SourceError), Source, entry.plugin, SourceError)


def sink_class(entry: Format) -> type[Sink]:
    """The class that writes a plug-in's format, likewise with SinkErrors.

    Raises:
        SinkError: it can't be loaded, or is no Sink.
    """
    from rlds2buf.io.sink import Sink

    return _guarded(_class(entry.plugin, str(entry.sink), Sink, SinkError), Sink, entry.plugin, SinkError)


def _loaded(point: EntryPoint, error: type[Rlds2bufError]) -> Format:
    home = f"{point.dist.name} {point.dist.version}" if point.dist is not None else "an unknown distribution"
    plugin = f"the plug-in {point.name} (entry point {point.value} of {home})"
    entry = _calling(error, plugin, point.load)
    if not isinstance(entry, Format) or entry.name != point.name:
        what = f"the Format {entry.name!r}" if isinstance(entry, Format) else type(entry).__name__
        raise error(f"{plugin} should be the Format {point.name!r}, and is {what}")
    return dataclasses.replace(entry, plugin=plugin)


def _class(plugin: str, name: str, base: type[Any], error: type[Rlds2bufError]) -> type[Any]:
    module, _, path = name.partition(":")
    found = _calling(error, plugin, lambda: getattr(importlib.import_module(module), path))
    if not inspect.isclass(found) or not issubclass(found, base):
        raise error(f"{plugin}: {name} is no {base.__name__}")
    return found


def _calling(error: type[Rlds2bufError], plugin: str, function: Callable[[], Any], name: str = "") -> Any:
    """What the function gives; what it raises, unless that is an error of ours, as `error` that names the plug-in."""
    try:
        return function()
    except Rlds2bufError:
        raise
    except Exception as cause:
        raise _named(error, plugin, cause, name) from cause


def _named(error: type[Rlds2bufError], plugin: str, cause: Exception, name: str) -> Rlds2bufError:
    return error(f"{f'{name}: ' if name else ''}{plugin} failed: {type(cause).__name__}: {cause}")


def _guarded(cls: type[Any], base: type[Any], plugin: str, error: type[Rlds2bufError]) -> type[Any]:
    """The class with everything that `base` asks for guarded, where the class has its own."""
    guard = _Guard(plugin, error)
    names = ("__init__", *(name for name in dir(base) if not name.startswith("_")))
    own = {name: inspect.getattr_static(cls, name) for name in names}
    body = {
        name: guard.attribute(value) for name, value in own.items() if value is not inspect.getattr_static(base, name)
    }

    def create(one: type[Any], *args: Any, **options: Any) -> Any:
        return _calling(error, plugin, lambda: cls.__new__(one, *args, **options))

    body |= {"__new__": create, "__signature__": inspect.signature(cls), "__module__": cls.__module__}
    return types.new_class(cls.__name__, (cls,), exec_body=lambda space: space.update(body))


class _Guard:
    """Makes functions of a plug-in raise `error`, naming the plug-in, for whatever is no error of ours."""

    def __init__(self, plugin: str, error: type[Rlds2bufError]) -> None:
        self._plugin = plugin
        self._error = error

    def attribute(self, value: Any) -> Any:
        """An attribute of a class, as it should stand in a class derived from that."""
        if isinstance(value, property | functools.cached_property):
            return property(self._function(lambda one: value.__get__(one, type(one))))
        if isinstance(value, classmethod):
            return classmethod(self._function(value.__func__))
        return self._function(value) if inspect.isfunction(value) else value

    def _function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(one: Any, *args: Any, **options: Any) -> Any:
            name = str(getattr(one, "name", ""))
            result = _calling(self._error, self._plugin, lambda: function(one, *args, **options), name)
            if not isinstance(result, Iterator):
                return result
            return self._items(result, name, _READ.get(function.__name__))

        return call

    def _items(self, items: Iterator[Any], name: str, is_right: Callable[[Any], bool] | None) -> Iterator[Any]:
        try:
            for item in items:
                if is_right is not None and not is_right(item):
                    raise TypeError(f"it gave a {type(item).__name__}, which is no Episode")
                yield item
        except Rlds2bufError:
            raise
        except Exception as cause:
            raise _named(self._error, self._plugin, cause, name) from cause


def _is_episode(item: Any) -> bool:
    from rlds2buf.core.episode import Episode

    return isinstance(item, Episode | EpisodeError)


_READ: Final = {"read": _is_episode}
"""Methods that yield, and whether that is right."""
