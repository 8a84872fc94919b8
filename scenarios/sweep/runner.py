"""Where the runs of a sweep are carried out: in this process, or on Ray, on this machine or on a cluster."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

from gridweave.errors import OptionError, UnavailableError, not_installed
from gridweave.grid.service.ray import join, knock, quietly
from gridweave.scenarios.sweep.identity import code_stamp
from gridweave.scenarios.sweep.plan import PlannedRun
from gridweave.scenarios.sweep.work import Outcome, perform, problem_of

Outcomes = Generator[tuple[PlannedRun, Outcome], None, None]
TaskT = TypeVar("TaskT")
ResultT = TypeVar("ResultT")

_STORE_BYTES = 128 << 20  # for Ray's shared memory: what comes back is small, and it would take a third of all memory


def carry_out(runs: Sequence[PlannedRun], *, address: str | None = None, workers: int | None = None) -> Outcomes:
    """Carry out runs, and yield what became of each as soon as it is known; closing the generator ends what still runs.

    Without an address this machine is used by itself, and as many workers as it has cores if no number is given. With 1
    and no address, all is done in this process, and Ray is not needed.
    """
    if workers is not None and workers < 1:
        raise OptionError("--workers", f"is {workers}; at least 1 is needed")
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
    """Run a function on all cores of this process: the kernels leave the interpreter to the other threads.

    Results come in the order in which they end. What a task raises is raised here, and those not begun are dropped.
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
    """Start Ray or join a cluster, and tell whether it is this sweep's own; one that is joined already is only used."""
    try:
        with quietly():
            import ray
    except ImportError:
        raise UnavailableError(f"{not_installed('ray', 'sweep')}, or give --workers 1 to do without it") from None
    if ray.is_initialized():
        yield ray, False
        return
    if address is not None:
        knock(address)
    # Its workers end with it, so they are not of an `OwnRay`, which outlives the command that starts it.
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
    # One more for each worker lies ready; on a cluster of others, where workers is a limit, none does.
    at_once = workers if workers and not is_own else 2 * max(1, int(ray.cluster_resources().get("CPU", 1)))
    contents = {} if is_own else _put_files(ray, runs)
    # A worker that dies takes its run with it; a second death is taken for the run's fault.
    task = ray.remote(num_cpus=1, max_retries=1)(_perform_there)
    left = iter(runs)
    flying: dict[Any, PlannedRun] = {}
    try:
        while True:
            while len(flying) < at_once and (run := next(left, None)) is not None:
                there = {file.digest: contents.get(file.digest) for file in run.files}
                flying[task.remote(run, stamp, there)] = run
            if not flying:
                return
            ended, _ = ray.wait(list(flying), num_returns=1)
            for reference in ended:
                yield flying.pop(reference), _outcome(ray, reference)
    finally:
        # Our own Ray ends with all that runs in it. Tasks on another are asked to end: to force them can bring down
        # this process, when one of them ends by itself at the same moment.
        for reference in () if is_own else flying:
            with contextlib.suppress(Exception):  # the cluster may have gone
                ray.cancel(reference, force=False)


def _put_files(ray: Any, runs: Sequence[PlannedRun]) -> dict[str, Any]:
    """Give the cluster the content of each file, for machines that do not have it."""
    paths = {file.digest: file.path for run in runs for file in run.files}
    return {digest: ray.put(Path(path).read_bytes()) for digest, path in paths.items()}


def _perform_there(run: PlannedRun, stamp: str, contents: dict[str, Any]) -> Outcome:
    """Carry out a run in a worker of Ray; a file that is not at hand is fetched from the cluster's store."""
    import ray

    if any(reference is None for reference in contents.values()):
        return perform(run, stamp)
    return perform(run, stamp, lambda digest: bytes(ray.get(contents[digest])))
