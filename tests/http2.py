"""gRPC calls as the bytes of HTTP/2, so that what no client library would send can be made of them."""

import socket
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END_STREAM, END_HEADERS = 1, 4
LIMIT_S = 0.1
"""How long an answer is waited for: some damage makes the server wait for more."""


def frame(kind: int, payload: bytes, *, flags: int = 0, stream: int = 0) -> bytes:
    """Return one frame."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def header(name: str, value: str) -> bytes:
    """Return a header as a literal that no table keeps; name and value are shorter than 127 bytes."""
    return bytes([0, len(name)]) + name.encode() + bytes([len(value)]) + value.encode()


def call(method: str, message: bytes) -> bytes:
    """Return a connection's bytes with one call of ``SERVICE/METHOD``."""
    fields: Sequence[tuple[str, str]] = (
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/{method}"),
        (":authority", "localhost"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    )
    head = b"".join(header(name, value) for name, value in fields)
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return (
        PREFACE
        + frame(SETTINGS, b"")
        + frame(HEADERS, head, flags=END_HEADERS, stream=1)
        + frame(DATA, body, flags=END_STREAM, stream=1)
    )


def exchange(address: str, data: bytes) -> bytes:
    """Send a connection's bytes to ``HOST:PORT`` and return what comes back until it ends, or rests."""
    host, _, port = address.rpartition(":")
    came = b""
    with socket.create_connection((host, int(port)), 20.0) as client:
        client.settimeout(LIMIT_S)
        try:
            client.sendall(data)
            while more := client.recv(65536):
                came += more
        except OSError:  # it rests, or was reset
            pass
    return came
