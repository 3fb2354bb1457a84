"""Addresses of Reverb servers."""

from __future__ import annotations

from typing import Any

import pytest

from rlds2buf.formats.reverb.protocol.connection import address_of


@pytest.mark.parametrize(
    ("given", "address"),
    [
        ("localhost:8000", "localhost:8000"),
        ("reverb://localhost:8000", "localhost:8000"),
        ("grpc://10.0.0.7:1/", "10.0.0.7:1"),
        ("my-host_2.example.org:65535", "my-host_2.example.org:65535"),
        ("[::1]:8000", "[::1]:8000"),
        ("[fe80::1%eth0]:8000", "[fe80::1%eth0]:8000"),
    ],
)
def test_host_and_port(given: str, address: str) -> None:
    assert address_of(given) == address


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("localhost", "no port"),
        ("localhost:", "no port"),
        ("", "no port"),
        ("[::1]", "no port"),
        (":8000", "no host"),
        ("host name:8000", "no host"),
        ("localhost:http", "'http' is no port"),
        ("localhost:+80", "no port"),
        ("localhost:-1", "no port"),
        ("localhost:٣", "no port"),  # a digit, to str.isdigit
        ("localhost:0", "not from 1 to 65535"),
        ("localhost:65536", "not from 1 to 65535"),
        ("localhost:" + "9" * 400, "not from 1 to 65535"),
        ("::1:8000", "brackets"),
        ("localhost:8000/replay", "/ in it"),
        ("http://localhost:8000", "/ in it"),
    ],
)
def test_what_is_wrong_with_an_address(given: str, why: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT") as caught:
        address_of(given)
    assert why in str(caught.value)


@pytest.mark.parametrize("given", [None, 8000, ["localhost:8000"]])
def test_an_address_is_text(given: Any) -> None:
    with pytest.raises(TypeError, match="text"):
        address_of(given)
