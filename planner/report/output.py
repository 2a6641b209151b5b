"""Files and standard output: atomic writes, early refusal, a reader that went away."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

from planner.instance.errors import InputError, one_line


class OutputError(Exception):
    """Something could not be written; ``str()`` is one line."""

    def __init__(self, target: str, error: OSError) -> None:
        reason = error.strerror or str(error)
        super().__init__(one_line(f"{target}: cannot be written: {reason}"))


def json_text(document: Any, *, indent: int | None = 2) -> str:
    """Return a JSON document as text that ends with a newline; on one line without ``indent``."""
    separators = (",", ":") if indent is None else None
    return json.dumps(document, indent=indent, separators=separators, allow_nan=False) + "\n"


def check_writable(path: Path, *, not_over: str | None = None) -> None:
    """Refuse a path that could not be written later.

    Parameters
    ----------
    path
        Where a document will go.
    not_over
        A file that must not be overwritten.

    Raises
    ------
    InputError
        If the path is a directory, its folder is missing or refuses new files, or the file
        itself is read-only or is ``not_over``.
    """
    where = str(path)
    try:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if stat.S_ISDIR(os.stat(path).st_mode):
                raise InputError(where, "is a directory, not a file to write")
            if not_over is not None and os.path.exists(not_over) and path.samefile(not_over):
                raise InputError(where, "is the instance itself")
        target = _resolved(path)
        if not target.parent.is_dir():
            raise InputError(where, f"no such folder: {target.parent}")
        if target.exists() and not os.access(target, os.W_OK):
            raise InputError(where, "cannot be written: the file is read-only")
        if _is_replaceable(target):
            with tempfile.TemporaryFile(dir=target.parent):
                pass
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(where, f"cannot be written: {reason}") from None


def same_file(path: Path, other: Path) -> bool:
    """Whether two paths name one file, present or not."""
    return _resolved(path) == _resolved(other)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a whole file or leave what was there.

    The content, text as UTF-8, goes to a temporary file in the same folder, which then takes the
    place of the old one; on any failure the temporary file is removed. A device or a pipe is
    written directly.

    Raises
    ------
    OutputError
        If the file cannot be written.
    """
    try:
        target = _resolved(path)
        data = content.encode("utf-8") if isinstance(content, str) else content
        if _is_replaceable(target):
            _replace(target, data)
        else:
            target.write_bytes(data)
    except OSError as error:
        raise OutputError(str(path), error) from error


def _resolved(path: Path) -> Path:
    """The file that a path names, behind symbolic links."""
    return Path(os.path.realpath(path))


def _is_replaceable(target: Path) -> bool:
    return not target.exists() or target.is_file()


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, _mode(target))
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _mode(target: Path) -> int:
    """The permissions of the file that is replaced, or those of a new file."""
    try:
        return stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask


def write_stdout(text: str) -> None:
    """Write to standard output; a reader that has gone away is no error.

    Raises
    ------
    OutputError
        If standard output cannot be written for another reason, such as a full disk.
    """
    if sys.stdout is None:
        return
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        _discard_stdout()
        if not (isinstance(error, BrokenPipeError) or error.errno == errno.EPIPE):
            raise OutputError("standard output", error) from error


def _discard_stdout() -> None:
    """Let what is still buffered go nowhere, so that the interpreter can end quietly."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
