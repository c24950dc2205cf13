"""What the adapters to providers share."""

from __future__ import annotations

import json

import h11
import httpcore2
import httpx2
import pytest

from bb.models.provider import from_network


class Own(httpx2.TransportError):
    """Of a transport that a program brings."""


@pytest.mark.parametrize(
    "error",
    [
        httpx2.ConnectError("refused"),
        httpx2.RemoteProtocolError("cut"),
        httpx2.ReadTimeout("slow"),
        httpx2.StreamClosed(),
        httpcore2.ReadError("cut"),
        h11.RemoteProtocolError("no HTTP"),
        type("ReadError", (Exception,), {"__module__": "httpx"})(),  # of releases before
        type("ReadError", (Exception,), {"__module__": "httpcore._exceptions"})(),
        Own("mine"),
        ConnectionResetError(),
        json.JSONDecodeError("no JSON", "x", 0),
    ],
    ids=repr,
)
def test_an_error_of_the_transport_is_one_of_the_network(error: Exception) -> None:
    assert from_network(error)


@pytest.mark.parametrize(
    "error", [ValueError("a bug"), KeyError("x"), type("E", (Exception,), {"__module__": "httpxtra"})()], ids=repr
)
def test_any_other_is_not(error: Exception) -> None:
    assert not from_network(error)
