"""Points on a Dask distributed cluster; needs the extra ``cluster``."""

from __future__ import annotations

import contextlib
import logging
import queue
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from planner.instance.errors import InputError
from planner.sweeps.executors import WAIT_S
from planner.sweeps.isolation import StoppedError, Supervisor
from planner.sweeps.task import Failure, Result, Task, failure

CONNECT_LIMIT_S = 10.0
WORKERS_LIMIT_S = 60.0
"""Time for the first worker to be there."""
AHEAD = 2
"""Points under way per thread of the cluster, so that none waits for the next one."""

_here = threading.local()
_supervisors: set[Supervisor] = set()


class ClusterError(Exception):
    """The cluster is gone, or lost; ``str()`` is one line."""


def solve_on_worker(task: Task) -> Result:
    """Solve a point in a process group under this Dask worker; one supervisor per thread."""
    supervisor: Supervisor | None = getattr(_here, "supervisor", None)
    if supervisor is None:
        supervisor = _here.supervisor = Supervisor()
        _supervisors.add(supervisor)
    try:
        return supervisor.solve(task)
    except StoppedError:
        del _here.supervisor
        _supervisors.discard(supervisor)
        return failure(task.key, Failure.ERROR, "stopped")


def stop_on_worker() -> None:
    """End all points of this Dask worker, with their supervisors."""
    for supervisor in list(_supervisors):
        supervisor.close()


class ClusterExecutor:
    """Points on the workers of a Dask scheduler.

    A point of a worker that is lost goes to another one; a point that loses several is a row.
    """

    def __init__(self, client: Any, resources: contextlib.ExitStack) -> None:
        self._client = client
        self._resources = resources
        self._running: dict[Any, Task] = {}
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        try:
            client.wait_for_workers(1, timeout=WORKERS_LIMIT_S)
        except TimeoutError:
            self.close()
            raise ClusterError(f"no Dask worker appeared in {WORKERS_LIMIT_S:g} s") from None
        self.slots = AHEAD * max(1, sum(client.nthreads().values()))

    def submit(self, task: Task) -> None:
        """Begin a point."""
        future = self._client.submit(
            solve_on_worker, task, key=f"planner-point-{task.key}", pure=False
        )
        self._running[future] = task
        future.add_done_callback(self._done.put)

    def finished(self) -> Iterator[Result]:
        """Wait a moment for points and return those that have ended.

        Raises
        ------
        ClusterError
            If the scheduler is gone.
        """
        wait_s = WAIT_S
        while True:
            try:
                future = self._done.get(timeout=wait_s)
            except queue.Empty:
                break
            wait_s = 0.0
            yield self._result(future)
        if self._client.status not in ("running", "connecting"):
            raise ClusterError(f"the Dask scheduler is gone (client {self._client.status})")

    def _result(self, future: Any) -> Result:
        task = self._running.pop(future)
        if future.status not in ("finished", "error"):
            raise ClusterError(f"the Dask scheduler has dropped a point ({future.status})")
        error = future.exception()
        if error is not None:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            return failure(task.key, Failure.CRASHED, reason)
        result: Result = future.result()
        future.release()
        return result

    def close(self) -> None:
        """End all processes, also those of points under way."""
        with contextlib.suppress(Exception):
            self._client.cancel(list(self._running), force=True)
            self._client.run(stop_on_worker)
        with contextlib.suppress(Exception):
            self._resources.close()


def connect(address: str) -> ClusterExecutor:
    """Use the cluster of a scheduler.

    Raises
    ------
    InputError
        If Dask is not installed or no scheduler answers.
    ClusterError
        If the scheduler has no workers.
    """
    distributed = _distributed("--scheduler")
    resources = contextlib.ExitStack()
    try:
        client = distributed.Client(address, timeout=CONNECT_LIMIT_S, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise InputError(
            "--scheduler", f"no Dask scheduler answers at {address}: {error}"
        ) from None
    resources.callback(client.close)
    return ClusterExecutor(client, resources)


def start_local(workers: int) -> ClusterExecutor:
    """Start a cluster of so many workers on this machine, each with one thread.

    Raises
    ------
    InputError
        If Dask is not installed.
    """
    distributed = _distributed("--local-cluster")
    resources = contextlib.ExitStack()
    try:
        folder = resources.enter_context(tempfile.TemporaryDirectory(prefix="planner-dask-"))
        resources.enter_context(_setting("temporary-directory", folder))
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            memory_limit=None,
            dashboard_address=None,
            local_directory=folder,
            silence_logs=logging.CRITICAL,
        )
        resources.callback(cluster.close)
        client = distributed.Client(cluster, set_as_default=False)
        resources.callback(client.close)
    except BaseException:
        resources.close()
        raise
    return ClusterExecutor(client, resources)


def _setting(name: str, value: str) -> Any:
    """A setting of Dask while the context lasts."""
    import dask

    config: Any = dask.config
    return config.set({name: value})


def _distributed(option: str) -> Any:
    try:
        import distributed
    except ImportError:
        raise InputError(
            option, "Dask is not installed; run: pip install 'scaleacross-planner[cluster]'"
        ) from None
    return distributed
