"""A TCP proxy that can cut every connection that goes through it."""

from __future__ import annotations

import contextlib
import select
import socket
import threading

__all__ = ["Proxy"]


class Proxy:
    """Listens on a port of its own (or on `port`) and passes bytes on to `address`; a context manager."""

    def __init__(self, address: str, port: int = 0) -> None:
        host, _, target = address.rpartition(":")
        self._target = (host, int(target))
        self._listener = socket.create_server(("localhost", port))
        self.port = self._listener.getsockname()[1]
        self.address = f"localhost:{self.port}"
        self.connections = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def cut(self) -> None:
        """Break every connection."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for one in pair:
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self.cut()
        for thread in self._threads:
            thread.join(timeout=30)
        self._listener.close()

    def _accept(self) -> None:
        while not self._done.is_set():
            if not select.select([self._listener], [], [], 0.05)[0]:
                continue
            near, _ = self._listener.accept()
            far = socket.create_connection(self._target)
            self.connections += 1
            with self._lock:
                self._pairs.append((near, far))
            thread = threading.Thread(target=self._pass_on, args=(near, far))
            self._threads.append(thread)
            thread.start()

    def _pass_on(self, near: socket.socket, far: socket.socket) -> None:
        other = {near: far, far: near}
        with near, far, contextlib.suppress(OSError):
            while not self._done.is_set():
                for one in select.select([near, far], [], [], 0.05)[0]:
                    data = one.recv(1 << 16)
                    if not data:
                        return
                    other[one].sendall(data)
