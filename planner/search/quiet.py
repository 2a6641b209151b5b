"""Keep what compiled code prints off the standard output of the process."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_STDOUT, _STDERR = 1, 2


class _Redirection:
    """Descriptor 1 points at stderr from the first thread that enters to the last that leaves."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._saved = -1

    def enter(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                _flush()
                self._saved = os.dup(_STDOUT)
                os.dup2(_STDERR, _STDOUT)

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if self._users == 0:
                _flush()
                os.dup2(self._saved, _STDOUT)
                os.close(self._saved)


_redirection = _Redirection()


@contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Send to stderr what is written to descriptor 1 meanwhile, by any thread.

    Nothing is lost, and nothing stays in a buffer: C and Python buffers are flushed at both ends.
    Without a standard output or error stream nothing is changed.
    """
    if not (_is_open(_STDOUT) and _is_open(_STDERR)):
        yield
        return
    _redirection.enter()
    try:
        yield
    finally:
        _redirection.leave()


def _flush() -> None:
    with suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
