"""Carry out the runs of a sweep in this process, or with Ray on this machine or a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from gridweave.errors import OptionError, UnavailableError, not_installed
from gridweave.grid.service.ray import join, probe, quietly
from gridweave.scenarios.sweep.identity import code_stamp
from gridweave.scenarios.sweep.plan import PlannedRun
from gridweave.scenarios.sweep.work import Outcome, perform, problem_of

Outcomes = Generator[tuple[PlannedRun, Outcome], None, None]
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

_STORE_BYTES = 128 << 20  # size of Ray's shared memory; the default is a third of all memory, but results are small


def carry_out(runs: Sequence[PlannedRun], *, address: str | None = None, workers: int | None = None) -> Outcomes:
    """Carry out runs, and yield each outcome as soon as it is known; closing the generator stops the remaining runs.

    Without an address, use this machine, by default with one worker per core. With one worker and no address, carry out
    all runs in this process, without Ray.
    """
    if workers is not None and workers < 1:
        raise OptionError("--workers", f"is {workers}; expected at least 1")
    if address is not None and not address.strip():
        raise OptionError("--address", "is empty; write auto, ray://host:10001, or leave it out for this machine")
    if not runs:
        return
    stamp = code_stamp()
    if address is None and (workers or os.cpu_count() or 1) == 1:
        for run in runs:
            yield run, perform(run, stamp)
        return
    with _ray(address, workers) as (ray, is_own):
        yield from _on_ray(ray, runs, stamp, workers, is_own=is_own)


def in_threads(run: Callable[[TaskT], ResultT], tasks: Iterable[TaskT]) -> Iterator[tuple[TaskT, ResultT]]:
    """Run a function in threads on all cores; this is parallel because kernels release the interpreter lock.

    Yield (task, result) pairs in the order in which tasks finish. An exception in a task is raised again, and tasks
    that have not started are dropped.
    """
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        try:
            futures = {pool.submit(run, task): task for task in tasks}
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextlib.contextmanager
def _ray(address: str | None, workers: int | None) -> Iterator[tuple[Any, bool]]:
    """Start Ray or join a cluster, unless already connected; yield Ray, and whether this sweep has started it."""
    try:
        with quietly():
            import ray
    except ImportError:
        raise UnavailableError(f"{not_installed('ray', 'sweep')}, or give --workers 1 to do without it") from None
    if ray.is_initialized():
        yield ray, False
        return
    if address is not None:
        probe(address)
    # A plain local Ray ends with this process; an `OwnRay` would outlive it.
    own = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": _STORE_BYTES}
    try:
        join(address or "this machine", address=address or "local", **({} if address else own))
        yield ray, address is None
    finally:
        ray.shutdown()


def _outcome(ray: Any, reference: Any) -> Outcome:
    try:
        outcome: Outcome = ray.get(reference)
    except ray.exceptions.RayError as error:
        return Outcome(None, problem_of(error))
    return outcome


def _on_ray(ray: Any, runs: Sequence[PlannedRun], stamp: str, workers: int | None, *, is_own: bool) -> Outcomes:
    """Keep all workers busy with a bounded number of tasks in flight."""
    # If we started Ray, queue one extra task per worker; on a shared cluster, the number of workers is a limit.
    limit = workers if workers and not is_own else 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    contents = {} if is_own else _put_files(ray, runs)
    # Retry a run once if its worker dies; if a second worker dies, blame the run.
    task = ray.remote(num_cpus=1, max_retries=1)(_perform_there)
    left = iter(runs)
    in_flight: dict[Any, PlannedRun] = {}
    try:
        while True:
            while len(in_flight) < limit and (run := next(left, None)) is not None:
                contents_of_run = {file.digest: contents.get(file.digest) for file in run.files}
                in_flight[task.remote(run, stamp, contents_of_run)] = run
            if not in_flight:
                return
            ended, _ = ray.wait(list(in_flight), num_returns=1)
            for reference in ended:
                yield in_flight.pop(reference), _outcome(ray, reference)
    finally:
        # If we started Ray, it stops with all its tasks. On a shared cluster, cancel without force, because forcing a
        # task that is just ending can crash this process.
        for reference in () if is_own else in_flight:
            with contextlib.suppress(Exception):  # the cluster may be gone
                ray.cancel(reference, force=False)


def _put_files(ray: Any, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Store each file's content in the cluster, for machines that do not have the file."""
    paths = {file.digest: file.path for run in runs for file in run.files}
    return {digest: ray.put(Path(path).read_bytes()) for digest, path in paths.items()}


def _perform_there(run: PlannedRun, stamp: str, contents: dict[str, Any]) -> Outcome:
    """Carry out a run in a Ray worker; fetch missing files from the cluster's object store."""
    import ray

    if any(reference is None for reference in contents.values()):
        return perform(run, stamp)
    return perform(run, stamp, lambda digest: bytes(ray.get(contents[digest])))
