"""One child process with its folder: start, exchange of messages, end."""

from __future__ import annotations

import contextlib
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import weakref
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

from planner.backends import frames

FOLDER_PREFIX = "planner-engine-"
STALE_AFTER_S = 24 * 3600.0
OUTPUT_TAIL_BYTES = 4000
EXIT_WAIT_S = 2.0

_CHUNK = 1 << 16


class ChildLostError(Exception):
    """The child ended, or closed its pipe.  Remedy: start another one."""


class ChildTimeoutError(Exception):
    """The child did not answer in time.  Remedy: end it."""


Program = str | Callable[[list[str]], int]
"""What a child runs: a module, in a new interpreter; or a function that returns an exit code, in a
copy of this process (fork), which saves the imports.  Its last two arguments are descriptors: where
it reads requests and where it writes replies."""


class Process(Protocol):
    """What a child process is waited for with; `subprocess.Popen` is one."""

    pid: int
    returncode: int | None

    def wait(self) -> int:
        """Wait for the end and return the exit code, below 0 for a signal."""
        ...


class Child:
    """A program in a session and a folder of its own.

    ``engine_version`` and ``exact`` are what the child said of its backend at the start.
    The session is ended and the folder removed by `end`, at the latest when the object
    is collected or the planner exits.
    """

    def __init__(self, program: Program, *arguments: str) -> None:
        sweep_stale_folders()
        folder = os.path.realpath(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self.output_path = Path(folder) / "output.txt"
        request_read, self._request = os.pipe()
        self._reply, reply_write = os.pipe()
        descriptors = request_read, reply_write
        process: Process
        try:
            with self.output_path.open("wb") as output:
                if isinstance(program, str):
                    process = subprocess.Popen(
                        [sys.executable, "-m", program, *arguments, *map(str, descriptors)],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=folder,
                        env=_environment(folder),
                        pass_fds=descriptors,
                        start_new_session=True,
                    )
                else:
                    process = _Copy(program, arguments, descriptors, output.fileno(), folder)
        except BaseException:
            os.close(self._request)
            os.close(self._reply)
            remove_folder(folder)
            raise
        finally:
            os.close(request_read)
            os.close(reply_write)
        self.pid = process.pid
        self.folder = Path(folder)
        self.engine_version = ""
        self.exact = False
        self._frames = frames.FrameBuffer()
        self._process = process
        os.set_blocking(self._request, False)
        self._finalizer = weakref.finalize(
            self, _end, process, (self._request, self._reply), folder, os.getpid()
        )

    def exchange(
        self, outgoing: memoryview, deadline: float | None
    ) -> tuple[memoryview, list[Any]]:
        """Send what the pipe takes and receive what is there, waiting for either.

        Returns:
            The bytes that are left to send, and the messages received.

        Raises:
            ChildLostError: The child is gone.
            ChildTimeoutError: The deadline (of `time.monotonic`) has passed.
        """
        poller = select.poll()
        poller.register(self._reply, select.POLLIN)
        if outgoing:
            poller.register(self._request, select.POLLOUT)
        timeout_ms: float | None = None
        if deadline is not None:
            timeout_ms = 1000 * (deadline - time.monotonic())
            if timeout_ms <= 0:
                raise ChildTimeoutError
        ready = dict(poller.poll(timeout_ms))
        messages: list[Any] = []
        if self._reply in ready:
            chunk = os.read(self._reply, _CHUNK)
            if not chunk:
                raise ChildLostError
            messages = self._frames.feed(chunk)
        if self._request in ready:
            try:
                outgoing = outgoing[os.write(self._request, outgoing) :]
            except OSError as error:
                raise ChildLostError from error
        return outgoing, messages

    def is_silent(self) -> bool:
        """Return whether the child is there and has said nothing, as fits an idle one."""
        poller = select.poll()
        poller.register(self._reply, select.POLLIN)
        return not poller.poll(0)

    def terminate(self, wait_s: float) -> None:
        """Ask the first process to end, and leave the rest to `end`."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGTERM)
            self._wait_for_exit(wait_s)

    def kill(self) -> None:
        """End all processes of the session, and leave the rest to `end`."""
        if self._process.returncode is None:
            kill_group(self.pid)

    def end(self) -> None:
        """End all processes of the session and remove the folder."""
        self._finalizer()

    def post_mortem(self) -> tuple[str, str]:
        """End the child and return how it had ended, and the tail of its output."""
        self._wait_for_exit(EXIT_WAIT_S)
        kill_group(self.pid)
        code = self._process.wait()
        output = self.output_tail()
        self.end()
        if code < 0:
            name = signal.Signals(-code).name
            return f"the solver process was ended by {name}", output
        return f"the solver process ended with exit code {code}", output

    def _wait_for_exit(self, wait_s: float) -> None:
        """Give the first process time to end by itself; it stays to be waited for."""
        end = time.monotonic() + wait_s
        flags = os.WEXITED | os.WNOWAIT | os.WNOHANG
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < end and os.waitid(os.P_PID, self.pid, flags) is None:
                time.sleep(0.005)

    def output_tail(self) -> str:
        """Return the last lines that the child wrote to stdout and stderr."""
        with contextlib.suppress(OSError), self.output_path.open("rb") as output:
            size = output.seek(0, os.SEEK_END)
            output.seek(max(0, size - OUTPUT_TAIL_BYTES))
            return output.read().decode(errors="replace")
        return ""


class _Copy:
    """A copy of this process that runs a function and ends; this process must have one thread."""

    def __init__(
        self,
        run: Callable[[list[str]], int],
        arguments: Sequence[str],
        descriptors: tuple[int, int],
        output: int,
        folder: str,
    ) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            enter(folder, output, keep=descriptors)
            code = run([*arguments, *map(str, descriptors)])
        except BaseException:  # noqa: BLE001 (whatever it is, it ends here)
            traceback.print_exc()
        finally:
            os._exit(code)

    def wait(self) -> int:
        """Wait for the end and return the exit code, below 0 for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def enter(folder: str, output: int, *, keep: Collection[int]) -> None:
    """Settle this process, a copy made by fork, in a folder.

    Its output goes to a descriptor, its temporary files to the folder, its input is empty, and it
    keeps no other descriptor of its parent than those given.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    low = 3
    for kept in sorted(keep):
        os.closerange(low, kept)
        low = kept + 1
    os.closerange(low, os.sysconf("SC_OPEN_MAX"))
    os.chdir(folder)
    os.environ.update(_temporary(folder))
    tempfile.tempdir = None


def kill_group(pid: int) -> None:
    """Send SIGKILL to the session of a child that was not yet waited for."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def sweep_stale_folders() -> None:
    """Remove folders of planners that are long dead (only this user's, only by our name)."""
    pattern = re.compile(re.escape(FOLDER_PREFIX) + r"(\d+)-")
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"):
        found = pattern.match(folder.name)
        with contextlib.suppress(OSError):
            status = folder.stat()
            old = time.time() - status.st_mtime > STALE_AFTER_S
            if found and old and status.st_uid == os.getuid() and not _alive(int(found[1])):
                remove_folder(str(folder))


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _environment(folder: str) -> dict[str, str]:
    environment = dict(os.environ)
    environment.update(
        PYTHONPATH=os.pathsep.join(os.path.abspath(entry or os.curdir) for entry in sys.path),
        PYTHONUTF8="1",
        LC_ALL="C",
        **_temporary(folder),
    )
    return environment


def _temporary(folder: str) -> dict[str, str]:
    return {"TMPDIR": folder, "TMP": folder, "TEMP": folder}


def _end(process: Process, descriptors: tuple[int, ...], folder: str, owner: int) -> None:
    """End a child; a copy of the planner made by fork only drops its descriptors."""
    if os.getpid() == owner:
        if process.returncode is None:
            kill_group(process.pid)
        process.wait()
        remove_folder(folder)
    for descriptor in descriptors:
        os.close(descriptor)


def remove_folder(folder: str) -> None:
    """Remove a folder, also while killed processes still finish a write to it."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not os.path.exists(folder):
            return
        time.sleep(0.05)
