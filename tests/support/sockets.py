"""Raw sockets: requests byte by byte, and what comes back."""

from __future__ import annotations

import json
import socket

from tests.support.serving import PATIENCE, Running


def connect(server: Running) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.port), PATIENCE)


def everything(raw: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    try:
        while part := raw.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found


def one_answer(raw: socket.socket) -> bytes:
    """A whole answer on a connection that stays open."""
    found = b""
    while b"\r\n\r\n" not in found:
        part = raw.recv(65536)
        assert part, "it was closed"
        found += part
    head, _, body = found.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += raw.recv(65536)
    return head + b"\r\n\r\n" + body


def error_type(answer: bytes) -> str:
    return str(json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["type"])
