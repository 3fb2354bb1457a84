"""Reverb servers in processes of their own, for tests."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import Any

from tests.data import ROOT

__all__ = ["ServerProcess"]

START_SECONDS = 120.0


class ServerProcess:
    """One process with one or several Reverb servers; a context manager.

    Args:
        servers: the tables of each, as ``tests.full.server_main.table_of`` reads them.
        checkpoint: folder of the first server's checkpoints.

    Attributes:
        addresses: ``host:port`` of each.
    """

    def __init__(self, *servers: list[dict[str, Any]], checkpoint: str | None = None) -> None:
        self._tables = servers
        self._checkpoint = checkpoint
        self._ports: list[int] = [0] * len(servers)
        self._process: subprocess.Popen[str] | None = None
        self.begin()
        self.ready()

    @property
    def addresses(self) -> list[str]:
        return [f"localhost:{port}" for port in self._ports]

    @property
    def address(self) -> str:
        return self.addresses[0]

    def begin(self) -> None:
        """Start the process, on the ports it had before; does not wait."""
        config = {
            "servers": [
                {"port": port, "tables": tables, "checkpoint": self._checkpoint if number == 0 else None}
                for number, (port, tables) in enumerate(zip(self._ports, self._tables, strict=True))
            ]
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.full.server_main", json.dumps(config)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ready(self) -> None:
        """Wait until it listens."""
        assert self._process is not None and self._process.stdout is not None
        readable, _, _ = select.select([self._process.stdout], [], [], START_SECONDS)
        line = self._process.stdout.readline() if readable else ""
        if not line:
            self.kill()
            raise RuntimeError("the Reverb server did not start")
        self._ports = json.loads(line)

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(timeout=60)
            assert self._process.stdout is not None and self._process.stdin is not None
            self._process.stdout.close()
            self._process.stdin.close()
            self._process = None

    def stop(self) -> None:
        """SIGSTOP: it holds its connections and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        time.sleep(0.05)

    def go_on(self) -> None:
        """SIGCONT."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()
