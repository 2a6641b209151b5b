"""The folder of a sweep: one file per result, read and written so that nothing is half there."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from planner.instance.errors import InputError
from planner.instance.text import LARGEST_DOCUMENT, read_json
from planner.report.output import OutputError, check_writable, json_text, write_atomically
from planner.sweeps.task import Result

_KEYS = {"key", "status", "reason", "limit", "solve", "run"}


class Store:
    """The folder ``DIR`` of ``planner sweep``; several processes may write to it.

    Parameters
    ----------
    folder
        Made where it is missing.

    Raises
    ------
    InputError
        If the folder cannot be made or written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.points = folder / "points"
        try:
            self.points.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            reason = error.strerror or str(error)
            raise InputError(str(folder), f"cannot be made: {reason}") from None
        for place in (self.points / "point.json", self.sweep_path, self.csv_path):
            check_writable(place)

    @property
    def sweep_path(self) -> Path:
        """The sweep as it was read."""
        return self.folder / "sweep.json"

    @property
    def csv_path(self) -> Path:
        """The table."""
        return self.folder / "results.csv"

    @property
    def parquet_path(self) -> Path:
        """The table with types."""
        return self.folder / "results.parquet"

    def write_sweep(self, document: dict[str, Any]) -> None:
        """Write what the folder is about.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        write_atomically(self.sweep_path, json_text(document))

    def write(self, result: Result) -> None:
        """Write the result of a point, whole or not at all.

        Raises
        ------
        OutputError
            If it cannot be written.
        """
        write_atomically(_path(self.folder, result["key"]), json_text(result, indent=None))

    def read(self, key: str) -> Result | None:
        """The result of a point, or None.

        Raises
        ------
        InputError
            If the file is no result.
        """
        return find_result(self.folder, key)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time read all results and write the table.

        Raises
        ------
        OutputError
            If the folder is gone.
        """
        try:
            handle = os.open(self.folder, os.O_RDONLY)
        except OSError as error:
            raise OutputError(str(self.folder), error) from error
        try:
            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


def find_result(folder: Path, key: str) -> Result | None:
    """The result of a point in the folder of a sweep, which may be missing, or None.

    Raises
    ------
    InputError
        If the file is no result.
    """
    path = _path(folder, key)
    if not path.is_file():
        return None
    result = read_json(path, largest=LARGEST_DOCUMENT)
    if not isinstance(result, dict) or not result.keys() >= _KEYS or result["key"] != key:
        raise InputError(str(path), "is no result of this point; delete it to solve it again")
    return result


def _path(folder: Path, key: str) -> Path:
    return folder / "points" / f"{key}.json"
