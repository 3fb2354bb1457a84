"""Servers that are no Reverb that we know: what they answer is told, and nothing is sent to them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from rlds2buf import ServerUnavailable, SourceError, SourceFormatError, open_source, push
from rlds2buf.cli.main import main
from rlds2buf.formats.reverb.protocol.messages import METHODS, message
from tests.buffers.numbered import episode


class Server:
    """A gRPC server with one table ``replay``, which says what a test wants; a context manager.

    Args:
        told: further fields of the table's ``TableInfo``.
        samples: what ``SampleStream`` answers, encoded; None: it has no such call.

    Attributes:
        received: messages of ``InsertStream``.
    """

    def __init__(self, told: dict[str, Any], samples: list[bytes] | None = None) -> None:
        table = message("TableInfo", name="replay", current_size=3, max_size=100, **told)
        table.rate_limiter_info.samples_per_insert = 1.0
        table.rate_limiter_info.max_diff = 1e300
        info = message("ServerInfoResponse", table_info=[table]).SerializeToString()
        self.received: list[bytes] = []

        def insert(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
            for request in requests:
                self.received.append(request)
                yield b""

        name, _, _ = METHODS["ServerInfo"].strip("/").partition("/")
        calls = {
            "ServerInfo": grpc.unary_unary_rpc_method_handler(lambda _, __: info),
            "InsertStream": grpc.stream_stream_rpc_method_handler(insert),
        }
        if samples is not None:
            calls["SampleStream"] = grpc.stream_stream_rpc_method_handler(lambda _, __: iter(samples))
        self._pool = futures.ThreadPoolExecutor(4)
        self._server = grpc.server(self._pool)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, calls),))
        self.address = f"localhost:{self._server.add_insecure_port('localhost:0')}"

    def __enter__(self) -> Server:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait(10)
        self._pool.shutdown()


TODAY = {"table_worker_time": {}}
"""What every Reverb since 0.5 says of a table."""


def test_a_server_before_0_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server({}) as server:
        with pytest.raises(ServerUnavailable, match=r"of a Reverb before 0\.5.*install dm-reverb 0\.5 or newer"):
            push([episode(0, 5)], server.address, "replay", timeout=0.5)
        assert not server.received
        with pytest.raises(SourceError, match=r"of a Reverb before 0\.5"):
            open_source(f"reverb://{server.address}/replay")
        assert main(["convert", f"reverb://{server.address}/replay", str(tmp_path / "out"), "--json"]) == 3
        assert "before 0.5" in json.dumps(capsys.readouterr().err)
        assert not (tmp_path / "out").exists()


def test_samples_of_another_form() -> None:
    # SampleStreamResponse of 0.3: SampleInfo in field 1, with the item in its own field 1.
    item = message("PrioritizedItem", key=7, table="replay", priority=1.0)
    old = b"\x0a" + bytes([item.ByteSize() + 2]) + b"\x0a" + bytes([item.ByteSize()]) + item.SerializeToString()
    with Server(TODAY, [old]) as server:
        with open_source(f"reverb://{server.address}/replay") as source, pytest.raises(SourceFormatError, match="form"):
            list(source)


@pytest.mark.parametrize(
    ("samples", "why"),
    [
        ([b"\xff\xff"], "no SampleStreamResponse"),
        ([], "the server ended the stream with 3 items to come"),
        (None, "UNIMPLEMENTED"),
    ],
)
def test_answers_that_are_none(samples: list[bytes] | None, why: str) -> None:
    with Server(TODAY, samples) as server:
        with open_source(f"reverb://{server.address}/replay") as source:
            with pytest.raises(SourceError, match=why):
                list(source)
            with pytest.raises(SourceError, match=why.replace("3 items", "1024 items")):
                list(source.as_episodes())


def test_a_server_that_writes_no_checkpoint() -> None:
    with Server(TODAY, []) as server:
        with open_source(f"reverb://{server.address}/replay", checkpoint=True, join=True) as source:
            with pytest.raises(SourceError, match=r"no checkpoint was written.*UNIMPLEMENTED"):
                list(source)
