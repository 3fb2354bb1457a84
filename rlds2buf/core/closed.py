"""Objects that take no attributes but those they have."""

from __future__ import annotations

import difflib
from typing import Any, ClassVar

__all__ = ["Closed"]


class Closed:
    """A base class: to set an attribute that there is not raises, for by a slip it would be without effect.

    Attributes are what the class has or declares; names that start with ``_`` are its own affair.
    Classes that users derive may set what they like.

    >>> class Door(Closed):
    ...     __module__ = "rlds2buf.doors"
    ...     width: int
    >>> Door().widht = 3
    Traceback (most recent call last):
    AttributeError: a Door has no attribute 'widht'; did you mean width?
    """

    _other_names: ClassVar[dict[str, str]] = {}
    """What other libraries call an attribute, to its name here."""

    def __setattr__(self, name: str, value: Any) -> None:
        kind = type(self)
        if not (name in self.__dict__ or name.startswith("_") or not kind.__module__.startswith("rlds2buf.")):
            names = _names(kind)
            if name not in names:
                near = self._other_names.get(name) or next(iter(difflib.get_close_matches(name, names, n=1)), None)
                meant = f"; did you mean {near}?" if near else ""
                raise AttributeError(f"a {kind.__name__} has no attribute {name!r}{meant}")
        super().__setattr__(name, value)


def _names(kind: type) -> set[str]:
    """The public attributes that a class has or declares."""
    declared = (name for base in kind.__mro__ for name in (*vars(base), *vars(base).get("__annotations__", ())))
    return {name for name in declared if not name.startswith("_")}
