"""One ``InsertStream`` call: messages out, keys back."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import Any, Final

from rlds2buf.formats.reverb.protocol.connection import ReverbConnection, StreamEnded
from rlds2buf.formats.reverb.protocol.messages import message

__all__ = ["OneStream"]

FINISH_SECONDS: Final = 5.0


class OneStream:
    """One gRPC call: a queue of messages going out, a thread that collects the keys coming back.

    Args:
        connection: to the server; it is closed with the stream.

    Attributes:
        error: what ended the stream (a ``grpc.RpcError`` or StreamEnded), or None while it is open.
    """

    def __init__(self, connection: ReverbConnection) -> None:
        self.error: Any = None
        self._outgoing: queue.SimpleQueue[Iterator[bytes] | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._keys: list[int] = []
        self._steps = 0  # messages handed out and answers received
        self._seen = 0
        self._connection = connection
        self._call = connection.insert_stream(self._messages())
        self._reader = threading.Thread(target=self._read, name="rlds2buf-reverb-answers", daemon=True)
        self._reader.start()

    def put(self, messages: Iterator[bytes]) -> None:
        """Send these when their turn comes; they are made one at a time, as gRPC takes them."""
        self._outgoing.put(messages)

    def answers(self) -> list[int]:
        """The keys that have come back since the last call."""
        with self._changed:
            keys, self._keys = self._keys, []
            return keys

    def wait(self, timeout: float) -> bool:
        """Wait for an answer or an error; False after `timeout` seconds in which nothing moved."""
        with self._changed:
            while not self._keys and self.error is None:
                moved = self._changed.wait_for(lambda: self._steps != self._seen or self.error is not None, timeout)
                if not moved:
                    return False
                self._seen = self._steps
        return True

    def finish(self) -> None:
        """End our side, and wait a moment for the server to end its own."""
        self._outgoing.put(None)
        self._reader.join(FINISH_SECONDS)
        self.cancel()

    def cancel(self) -> None:
        """Break the call off, and close the connection."""
        self._call.cancel()
        self._outgoing.put(None)
        # Closing waits for gRPC's pending write, which a server that has stopped reading never takes.
        threading.Thread(target=self._connection.close, name="rlds2buf-reverb-close", daemon=True).start()

    def _messages(self) -> Iterator[bytes]:
        while (messages := self._outgoing.get()) is not None:
            for encoded in messages:
                yield encoded
                with self._changed:
                    self._steps += 1
                    self._changed.notify_all()

    def _read(self) -> None:
        parse = message("InsertStreamResponse").FromString
        error: Any = None
        try:
            for answer in self._call:
                keys = list(parse(answer).keys)
                with self._changed:
                    self._keys += keys
                    self._steps += 1
                    self._changed.notify_all()
        except Exception as caught:  # a grpc.RpcError, or protobuf's DecodeError
            error = (
                caught if hasattr(caught, "code") else StreamEnded(f"an answer is no InsertStreamResponse: {caught}")
            )
        with self._changed:
            self.error = error if error is not None else StreamEnded("the server ended the stream")
            self._changed.notify_all()
