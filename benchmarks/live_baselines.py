"""Measure how fast other tools run `true` on this machine; print the rates and write results/live_baselines.json.

    python benchmarks/live_baselines.py [--jobs N] [--repeat N] [--only NAME]

Rates are jobs per second end to end, from the first submission to the last end, with two CPUs each:

- `subprocess`: `subprocess.run` alone, one after the other;
- `ray-noop`: tasks of Ray that do nothing, all submitted at once; `ray-true`: tasks that run `true`;
- `ray-jobs`: `ray job submit` by its Python client, a few at once; needs `pip install 'ray[default]'`;
- `hyperqueue`: a job array of HyperQueue, without output files; needs `pip install hyperqueue`, a package that contains
  its server and worker (but not the program `hq`);
- `packed`: `gridweave submit --array 1-N --pack --wait -- true` on a grid with that many slots, from the start of the
  command to its end.

Each runs in a process of its own that ends with all its children. Ray uses the loopback address and a temporary folder.
HyperQueue's local cluster listens on all addresses without a key, so it gets its own network namespace with nothing but
loopback (`unshare`). The row of a tool that is not installed says so.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import importlib.util
import json
import logging
import os
import shutil
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from measuring import write_results

from gridweave.errors import GridweaveError, UnavailableError

CPUS = 2
SLOTS = 18
"""Tasks of HyperQueue that run at one time: as many as the grid of `gridweave up` has nodes."""
JOBS = 500
RAY_JOBS = 5
LONGEST_S = 600
_HYPERQUEUE_POLL_S = 1.0
# No usage statistics, no warning about later releases, and patience on a busy machine.
_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_raylet_start_wait_time_s": "120",
}


BASELINES = {
    "subprocess": "subprocess.run, one by one",
    "ray-noop": "Ray tasks that do nothing",
    "ray-true": "Ray tasks that run `true`",
    "ray-jobs": "ray job submit",
    "hyperqueue": "HyperQueue",
    "packed": "gridweave, a packed array",
}
"""The label of each baseline."""


def jobs_of(name: str, jobs: int) -> int:
    """Return the number of jobs for a baseline: only a few if each takes seconds."""
    return min(jobs, RAY_JOBS) if name == "ray-jobs" else jobs


def measure(jobs: int = JOBS, repeat: int = 1, names: Sequence[str] = tuple(BASELINES)) -> dict[str, float | str]:
    """Return the median rate of each baseline [jobs/s], or why it could not be measured."""
    found: dict[str, float | str] = {}
    for name in names:
        try:
            found[name] = statistics.median(rate_of(name, jobs_of(name, jobs)) for _ in range(repeat))
        except UnavailableError as error:
            found[name] = str(error)
    return found


def rate_of(name: str, jobs: int) -> float:
    """Return the rate of a baseline [jobs/s], measured in a process that ends with all its children.

    UnavailableError: a package that it needs is not installed, or it failed.
    """
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", name, "--jobs", str(jobs)]
    if name == "hyperqueue":
        command = [*_own_network(), *command]
    with tempfile.TemporaryDirectory(prefix="gw-base-", ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=os.environ | _RAY | {"TMPDIR": folder},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            text, complaint = child.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"not done after {LONGEST_S} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    last = (text.strip().splitlines() or ["{}"])[-1]
    answer = json.loads(last) if last.startswith("{") else {}
    if "rate" not in answer:
        ended = (complaint.strip().splitlines() or [f"ended with {child.returncode}"])[-1]
        raise UnavailableError(answer.get("problem", ended))
    return float(answer["rate"])


def _own_network() -> list[str]:
    """Return a command prefix that runs a command in a network with nothing but loopback."""
    command = ["unshare", "--user", "--map-root-user", "--net"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    ):
        raise UnavailableError("its server would listen on all addresses: `unshare --user --net` is not possible here")
    return command


# -- run in the child process


def _measure_subprocess(jobs: int) -> float:
    began = time.perf_counter()
    for _ in range(jobs):
        subprocess.run(["true"], check=True)
    return jobs / (time.perf_counter() - began)


def _nothing() -> None:
    pass


def _true() -> None:
    subprocess.run(["true"], check=True)


@contextlib.contextmanager
def _ray(**options: Any) -> Iterator[Any]:
    """Yield Ray, started for this process alone."""
    _need("ray", "ray")
    import ray

    folder = tempfile.mkdtemp(prefix="ray-")
    ray.init(
        address="local",
        num_cpus=CPUS,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=128 << 20,
        _temp_dir=folder,
        _node_ip_address="127.0.0.1",
        **({"include_dashboard": False} | options),
    )
    try:
        yield ray
    finally:
        ray.shutdown()


def _measure_ray_tasks(jobs: int, work: Callable[[], None]) -> float:
    with _ray() as ray:
        task = ray.remote(num_cpus=1)(work)
        ray.get([task.remote() for _ in range(20 * CPUS)])  # the workers have started
        began = time.perf_counter()
        ray.get([task.remote() for _ in range(jobs)])
        return jobs / (time.perf_counter() - began)


def _measure_ray_jobs(jobs: int) -> float:
    for module in ("aiohttp", "aiohttp_cors", "grpc", "opencensus"):
        _need(module, "ray[default]")
    port = _free_port()
    with _ray(include_dashboard=True, dashboard_host="127.0.0.1", dashboard_port=port):
        from ray.job_submission import JobStatus, JobSubmissionClient

        client = JobSubmissionClient(f"http://127.0.0.1:{port}")
        began = time.perf_counter()
        left = {client.submit_job(entrypoint="true") for _ in range(jobs)}
        while left:
            states = {job: client.get_job_status(job) for job in sorted(left)}
            if JobStatus.FAILED in states.values():
                raise UnavailableError("a job failed")
            left = {job for job, state in states.items() if state != JobStatus.SUCCEEDED}
            time.sleep(0.05)
        return jobs / (time.perf_counter() - began)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _measure_hyperqueue(jobs: int) -> float:
    """Return the rate until the last poll before the end; HyperQueue's client polls once a second."""
    _need("hyperqueue", "hyperqueue")
    _raise_loopback()
    from hyperqueue import Job, LocalCluster
    from hyperqueue.cluster import WorkerConfig

    looks: list[tuple[float, int]] = []
    with LocalCluster(server_dir=f"{os.getcwd()}/hq", worker_config=WorkerConfig(cores=SLOTS)) as cluster:
        client = cluster.client()
        _run_array(client, Job(max_fails=0), 20 * SLOTS, [])
        while len(looks) < 2:
            looks.clear()
            began = time.perf_counter()
            _run_array(client, Job(max_fails=0), jobs, looks)
            looks[:] = [(at - began, done) for at, done in looks if 0 < done < jobs and at - began > _HYPERQUEUE_POLL_S]
            jobs *= 2  # all had ended before the first usable poll
    return looks[-1][1] / looks[-1][0]


def _measure_packed(jobs: int) -> float:
    """Return the rate, including the command, the placement of its jobs, and the journals (SQLite, durable)."""
    _need("ray", "gridweave[live]")
    from weight import SITES, a_grid

    assert sum(SITES.values()) == SLOTS
    command = [sys.executable, "-m", "gridweave.cli", "submit", "--pack", "--wait", "--array"]
    with a_grid("one"):
        for array_tasks in (2 * SLOTS, jobs):
            began = time.perf_counter()
            subprocess.run([*command, f"1-{array_tasks}", "--", "true"], check=True, stdout=subprocess.DEVNULL)
    return jobs / (time.perf_counter() - began)


def _run_array(client: Any, job: Any, tasks: int, looks: list[tuple[float, int]]) -> None:
    def look(states: dict[int, dict[str, int]]) -> None:
        (state,) = states.values()
        looks.append((time.perf_counter(), state["finished"]))

    for _ in range(tasks):
        job.program(["true"], stdout=None, stderr=None)
    if client.connection.wait_for_jobs([client.submit(job).id], look):
        raise UnavailableError("tasks failed")


def _raise_loopback() -> None:
    """Bring up the loopback interface of this network namespace (netdevice(7))."""
    get_flags, set_flags, up = 0x8913, 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        flags = struct.unpack("16sh14x", fcntl.ioctl(handle, get_flags, struct.pack("16sh14x", b"lo", 0)))[1]
        fcntl.ioctl(handle, set_flags, struct.pack("16sh14x", b"lo", flags | up))


def _need(module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise UnavailableError(f"not installed; run: pip install '{package}'")


_INSIDE: dict[str, Callable[[int], float]] = {
    "subprocess": _measure_subprocess,
    "ray-noop": lambda jobs: _measure_ray_tasks(jobs, _nothing),
    "ray-true": lambda jobs: _measure_ray_tasks(jobs, _true),
    "ray-jobs": _measure_ray_jobs,
    "hyperqueue": _measure_hyperqueue,
    "packed": _measure_packed,
}


def _answer(name: str, jobs: int) -> None:
    """Measure in this process, and print the answer for the parent."""
    try:
        answer: dict[str, object] = {"rate": _INSIDE[name](jobs)}
    except GridweaveError as error:
        answer = {"problem": str(error)}
    print("\n" + json.dumps(answer), flush=True)


def main() -> None:
    """Run the selected baselines, print the rates, and save them."""
    parser = argparse.ArgumentParser(description="Measure how fast other tools run `true` on this machine.")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--repeat", type=int, default=1, help="measure each this often; the median counts")
    parser.add_argument("--only", choices=list(BASELINES), action="append")
    parser.add_argument("--inside", choices=list(BASELINES), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.jobs < 1 or options.repeat < 1:
        parser.error("--jobs and --repeat must be at least 1")
    if options.inside:
        _answer(options.inside, options.jobs)
        return
    load = os.getloadavg()[0]
    found = measure(options.jobs, options.repeat, options.only or tuple(BASELINES))
    alone = found.get("subprocess")
    for name, rate in found.items():
        label = f"{BASELINES[name]}, {jobs_of(name, options.jobs):,} jobs"
        if isinstance(rate, str):
            print(f"{label:45}{'-':>12}   {rate}")
            continue
        ratio = f"   {rate / alone:8.3f} of subprocess.run" if isinstance(alone, float) and name != "subprocess" else ""
        print(f"{label:45}{rate:>12,.1f}{ratio}")
    print(f"{'load of the machine before':45}{load:>12,.1f}")
    write_results("live_baselines", found | {"jobs": options.jobs, "load before": load})


if __name__ == "__main__":
    main()
