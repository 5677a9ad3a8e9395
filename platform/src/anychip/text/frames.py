"""Frames over a socket between a process and its helper: 8 bytes of length, big-endian, and as many bytes.

Knows no content.
"""

from __future__ import annotations

import socket

MAX_FRAME_BYTES = 128 * 2**20


def send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(len(body).to_bytes(8, "big"))
    connection.sendall(body)


def receive(connection: socket.socket) -> bytes | None:
    """The next frame; None at the end.

    Raises:
        ValueError: it is longer than any may be.
    """
    head = _exactly(connection, 8)
    if head is None:
        return None
    nbytes = int.from_bytes(head, "big")
    if nbytes > MAX_FRAME_BYTES:
        message = f"a frame of {nbytes:,} bytes, expected at most {MAX_FRAME_BYTES:,}"
        raise ValueError(message)
    return _exactly(connection, nbytes)


def _exactly(connection: socket.socket, nbytes: int) -> bytes | None:
    body = bytearray(nbytes)
    view = memoryview(body)
    while view:
        count = connection.recv_into(view)
        if not count:
            return None
        view = view[count:]
    return bytes(body)


__all__ = ["MAX_FRAME_BYTES", "receive", "send"]
