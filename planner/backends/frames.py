"""Length-prefixed pickles over a pipe, between an engine and its child process."""

from __future__ import annotations

import os
import pickle
import struct
from typing import Any

READY = "ready"
PROGRESS = "progress"
RESULT = "result"
FAILED = "failed"
OUT_OF_MEMORY = "out_of_memory"
"""The first item of each message from the child."""

_HEADER = struct.Struct("<Q")
_CHUNK = 1 << 16


def encode(message: object) -> bytes:
    """Return a message as one frame."""
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(len(body)) + body


def write(descriptor: int, message: object) -> None:
    """Write a whole frame to a blocking descriptor.

    Raises:
        OSError: The other end is closed.
    """
    view = memoryview(encode(message))
    while view:
        view = view[os.write(descriptor, view) :]


def read(descriptor: int) -> Any:
    """Read a whole frame from a blocking descriptor.

    Raises:
        EOFError: The other end is closed.
    """
    frames = FrameBuffer()
    while True:
        # No more than the frame is read, so that the next call starts at a header.
        chunk = os.read(descriptor, min(frames.wanted(), _CHUNK))
        if not chunk:
            raise EOFError("the pipe is closed")
        for message in frames.feed(chunk):
            return message


class FrameBuffer:
    """Cuts a byte stream into messages."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def wanted(self) -> int:
        """Return how many bytes are needed to complete the frame at hand."""
        if len(self._bytes) < _HEADER.size:
            return _HEADER.size - len(self._bytes)
        (length,) = _HEADER.unpack_from(self._bytes)
        return int(_HEADER.size + length - len(self._bytes))

    def feed(self, chunk: bytes) -> list[Any]:
        """Add bytes and return the messages that they complete."""
        self._bytes += chunk
        messages: list[Any] = []
        while len(self._bytes) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._bytes)
            end = _HEADER.size + length
            if len(self._bytes) < end:
                break
            messages.append(pickle.loads(bytes(self._bytes[_HEADER.size : end])))
            del self._bytes[:end]
        return messages
