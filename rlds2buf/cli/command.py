"""A command of ours: help in sections that ends with examples, and options that take several values."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import click
from click.shell_completion import CompletionItem

__all__ = ["Command", "FormatName", "SectionOption", "path_argument", "spread"]


class SectionOption(click.Option):
    """An option with the heading that it stands under in the help.

    Args:
        section: the heading.
        several: whether further ``NAME=VALUE`` may follow the first: ``--map a=b c=d``.
    """

    def __init__(self, *args: Any, section: str, several: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.section = section
        self.several = several


class FormatName(click.ParamType):
    """A name of a format: built in, or an installed plug-in's, which is not loaded for that.

    Args:
        which: the function of :mod:`rlds2buf.formats.registry` that gives the names; asked when they are needed.
    """

    name = "format"

    def __init__(self, which: str) -> None:
        self._which = which

    def _choice(self) -> click.Choice[str]:
        from rlds2buf.formats import registry

        return click.Choice(getattr(registry, self._which)())

    def get_metavar(self, *arguments: Any, **options: Any) -> str | None:
        """All the names, as of a choice."""
        return self._choice().get_metavar(*arguments, **options)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The name, if it is one."""
        return self._choice().convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """The names that begin so."""
        return self._choice().shell_complete(ctx, param, incomplete)


def path_argument(name: str, **settings: Any) -> Any:
    """An argument for which a shell completes file names."""

    def complete(_context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(incomplete, type="file")]

    return click.argument(name, shell_complete=complete, **settings)


class Command(click.Command):
    """A click command whose options may be :class:`SectionOption`.

    Args:
        examples: command lines and what each does, which the help ends with.
    """

    def __init__(self, *args: Any, examples: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = examples

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, each under what it does; never wrapped, so that they can be copied."""
        with formatter.section("Examples"):
            for line, what in self.examples.items():
                formatter.write(f"{'':{formatter.current_indent}}# {what}\n{'':{formatter.current_indent}}{line}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The plain options first, then a section for each heading."""
        sections: dict[str, list[tuple[str, str]]] = {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None and not isinstance(parameter, click.Argument):
                sections.setdefault(getattr(parameter, "section", "Options"), []).append(record)
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Repeat the flag of an option with several values before each of them, as click wants it."""
        flags = [
            flag
            for parameter in self.params
            if isinstance(parameter, SectionOption) and parameter.several
            for flag in parameter.opts
        ]
        return super().parse_args(ctx, spread(args, flags))


_PAIR = re.compile(r"[\w./*?\[\]-]+=.")


def spread(arguments: Sequence[str], flags: Sequence[str]) -> list[str]:
    """``--map a=b c=d`` as ``--map a=b --map c=d``.

    What looks like ``NAME=VALUE`` behind a first value is one more, unless it is a path that exists.

    >>> spread(["SRC", "--map", "a=b", "c=d", "DST", "e=f"], ["--map"])
    ['SRC', '--map', 'a=b', '--map', 'c=d', 'DST', 'e=f']
    """
    out: list[str] = []
    flag = ""
    is_value = False  # the next argument is the flag's own
    for position, argument in enumerate(arguments):
        if argument == "--":
            return [*out, *arguments[position:]]
        if is_value:
            is_value = False
        elif argument in flags:
            flag, is_value = argument, True
        elif flag and _PAIR.match(argument) and not argument.startswith("-") and not os.path.exists(argument):
            out.append(flag)
        else:
            flag = argument.partition("=")[0] if argument.partition("=")[0] in flags else ""
        out.append(argument)
    return out
