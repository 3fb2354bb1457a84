"""The ``rlds2buf`` command: its subcommands, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import TextIO

import click

from rlds2buf.cli import convert, demo, failures, formats, inspect, output, push, sample, serve, stats, validate
from rlds2buf.errors import SinkError
from rlds2buf.pipeline.interruption import watched
from rlds2buf.version import __version__

__all__ = ["cli", "main"]


class _Commands(click.Group):
    """The commands; the help also lists what is read, and the exit codes."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from rlds2buf.formats.registry import BUILT_IN

        with formatter.section("What SRC may be, by the name that --format takes"):
            formatter.write_dl([(entry.name, entry.what) for entry in BUILT_IN if entry.is_path or entry.scheme])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in failures.MEANINGS.items()])
        formatter.write_paragraph()
        formatter.write_text("RLDS2BUF_DEBUG=1 in the environment shows where an error came from.")
        with formatter.section("Examples"):
            indent = f"{'':{formatter.current_indent}}"
            formatter.write(f"{indent}rlds2buf demo && rlds2buf inspect cartpole.hdf5\n")
            formatter.write(f"{indent}rlds2buf convert cartpole.hdf5 cartpole-buffer\n")


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="rlds2buf")
def cli() -> None:
    """Turn logged RL data into replay buffers you can train from, and from one format into another.

    SRC is a dataset: a path, or reverb://HOST:PORT/TABLE. Its format is detected automatically.
    """


_COMMANDS = (inspect, stats, validate, convert, push, serve, sample, formats, demo)
for command in (module.command for module in _COMMANDS):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; never raises, and prints no traceback.

    >>> main(["--version"])
    rlds2buf, version ...
    0
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))
    try:
        with watched():
            code = _completion() if _COMPLETE in os.environ else _run(given)
            sys.stdout.flush()
            return code
    except BrokenPipeError:
        _let_go_of(sys.stdout)
        return 128 + signal.SIGPIPE
    except OSError as error:
        _let_go_of(sys.stdout)
        _complain(f"rlds2buf: standard output can't be written: {error.strerror or error}")
        return failures.exit_code(SinkError())
    finally:
        try:
            sys.stderr.flush()
        except OSError:  # what could not be said must not change the code
            _let_go_of(sys.stderr)


_COMPLETE = "_RLDS2BUF_COMPLETE"


def _completion() -> int:
    """What a shell's completion asks for: the script to load, or the words that fit."""
    from click.shell_completion import shell_complete

    return shell_complete(cli, {}, "rlds2buf", _COMPLETE, os.environ[_COMPLETE])


def _let_go_of(stream: TextIO) -> None:
    """The reader (head, less) has gone, or the disk is full; keep the interpreter's own flush at exit quiet."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _run(given: list[str]) -> int:
    """One command line, to its exit code.

    Raises:
        OSError: standard output can't be written; BrokenPipeError, because nobody reads it any more.
    """
    try:
        with cli.make_context("rlds2buf", given) as ctx:
            cli.invoke(ctx)
        code = 0
    except BrokenPipeError:
        raise
    except click.exceptions.Exit as done:  # --help, or a command's own exit code (validate: 1)
        code = done.exit_code
    except BaseException as error:
        if isinstance(error, OSError) and _was_printing(error):
            raise
        _say(error, given[0], as_json="--json" in given)
        code = failures.exit_code(error)
    return code


def _was_printing(error: BaseException) -> bool:
    """Whether an error came of writing to standard output: out of click's echo itself, not through it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is click.echo.__code__


def _say(error: BaseException, command: str, *, as_json: bool) -> None:
    if os.environ.get("RLDS2BUF_DEBUG"):
        import traceback

        traceback.print_exception(error)
    if as_json:
        output.print_json(failures.as_json(error, command))
    if isinstance(error, click.UsageError) and error.ctx is not None:
        _complain(f"{error.ctx.get_usage()}\nTry '{error.ctx.command_path} --help' for help.")
    _complain(f"rlds2buf: {failures.message(error, command)}")


def _complain(text: str) -> None:
    """Print on standard error, if that can be written; if not, there is nobody to tell."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True)
