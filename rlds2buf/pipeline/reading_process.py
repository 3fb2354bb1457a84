"""What a process does that reads blocks of a dataset for another."""

from __future__ import annotations

import contextlib
import signal
from multiprocessing.connection import Connection

from rlds2buf.errors import Rlds2bufError
from rlds2buf.io.source import LANES
from rlds2buf.pipeline.opening import open_source

__all__ = ["main", "serve"]


def serve(connection: Connection) -> None:
    """Open the dataset that is asked for, then answer each span of episodes by its blocks and None.

    An error takes the place of what it prevents, and is the last answer; when the asking end is closed, this ends.
    """
    path, options, lanes = connection.recv()
    try:
        with open_source(path, **options) as opened:
            source = opened
            for lane in lanes:
                source = LANES[lane](source)
            while (span := connection.recv()) is not None:
                start, stop, sizes = span
                for item in source.read_batches(start, stop, **sizes):
                    connection.send(item)
                connection.send(None)
    except (Rlds2bufError, ValueError, TypeError, OSError) as error:
        if not isinstance(error, BrokenPipeError | ConnectionResetError):
            connection.send(error)


def main(descriptor: int) -> None:
    """Serve who holds the other end of this pipe, until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that asks hears it, too, and ends this one
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError), Connection(descriptor) as connection:
        serve(connection)
