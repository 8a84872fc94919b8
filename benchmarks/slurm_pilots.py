"""Measure short jobs on a real Slurm cluster, in pilots and by sbatch; print it and write results/slurm_pilots.json.

    python benchmarks/slurm_pilots.py [JOBS]

Must be run as root, with slurm-wlm and munge installed. A cluster of four nodes on this machine, new for each way; jobs
of one node that write a line. Prints for each way the time from the first submission until the last job has written its
line, and the requests to slurmctld until the nodes are given back, as `sdiag` counts them. By `sbatch` the jobs are
submitted one by one, as by a script, or as one array. Targets: pilots are several times faster than sbatch one by one,
with a tenth of the requests to slurmctld or fewer.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from measuring import write_results

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from gridweave.site.job import JobRequest, Program  # noqa: E402
from gridweave.slurm.policy import BatchPolicy, PilotRules  # noqa: E402
from support.slurm import BatchSite, SlurmCluster, running_cluster  # noqa: E402

JOBS, NODES, PATIENCE_S = 1_000, 4, 1_800.0
PILOTS = BatchPolicy(pilots=PilotRules(length_ms=1_200_000, job_ms=600_000, idle_ms=2_000))


def request_counts(cluster: SlurmCluster) -> dict[str, int]:
    """Return the number of requests to slurmctld by type since the last reset, without those for the counters."""
    text = cluster.run("sdiag").partition("by message type")[2].partition("by user")[0]
    counts = {name: int(count) for name, count in re.findall(r"(\w+)\s+\(\s*\d+\)\s+count:(\d+)", text)}
    return {name: count for name, count in counts.items() if not name.startswith("REQUEST_STATS")}


def lines(path: Path) -> int:
    """Return how many jobs have written their line."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def report_way(way: str, jobs: int, seconds: float, counts: dict[str, int]) -> dict[str, object]:
    """Print the results of one way, and return them."""
    most = ", ".join(f"{name} {count}" for name, count in sorted(counts.items(), key=lambda one: -one[1])[:4])
    print(f"{way:16} {seconds:7.1f} s, {jobs / seconds:6.1f} jobs/s, {sum(counts.values()):6} requests ({most})")
    return {"way": way, "jobs": jobs, "s": round(seconds, 2), "questions": sum(counts.values()), "counts": counts}


def plain(way: str, folder: Path, jobs: int, submit: Callable[[SlurmCluster, str], None]) -> dict[str, object]:
    """Run the jobs by sbatch."""
    with running_cluster(folder / "slurm", "plain", NODES, "120") as cluster:
        written = folder / "written"
        cluster.run("sdiag", "--reset")
        begin_s = time.monotonic()
        submit(cluster, f"echo >> {written}")
        cluster.wait(lambda: lines(written) == jobs, "the last line", PATIENCE_S)
        seconds = time.monotonic() - begin_s
        cluster.wait(lambda: cluster.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == str(NODES), "idle nodes")
        return report_way(way, jobs, seconds, request_counts(cluster))


async def in_pilots(folder: Path, jobs: int) -> dict[str, object]:
    """Run the jobs in pilots."""
    with running_cluster(folder / "slurm", "pilots", NODES, "120") as cluster:
        written = folder / "written"
        site = BatchSite(cluster, folder, PILOTS)
        site.plan = msgspec.structs.replace(site.plan, poll_s=3.0)
        await site.start()
        cluster.run("sdiag", "--reset")
        program = Program(argv=("sh", "-c", f"echo >> {written}"))
        request = JobRequest(program=program, nodes=1, limit_ms=60_000, user="anna")
        begin_s = time.monotonic()
        await site.driver.submit([(f"key {number}", request) for number in range(jobs)])
        await site.until(lambda: lines(written) == jobs, "the last line", PATIENCE_S)
        seconds = time.monotonic() - begin_s
        core = site.driver.site.core.site
        await site.until(lambda: core.free == 0, "pilots that are given back")
        result = report_way("pilots", jobs, seconds, request_counts(cluster))
        await site.until(lambda: not site.queue(), "an empty queue")
        await site.kill()
        return result


def main(jobs: int) -> None:
    """Run the jobs each way, and save the results."""

    def one_by_one(cluster: SlurmCluster, script: str) -> None:
        for _ in range(jobs):
            cluster.run("sbatch", "-N1", "--exclusive", "-t1", "-o/dev/null", "--wrap", script)

    def as_array(cluster: SlurmCluster, script: str) -> None:
        cluster.run("sbatch", "-N1", "--exclusive", "-t1", "-o/dev/null", f"--array=1-{jobs}", "--wrap", script)

    results = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        places = [Path(name) / way for way in ("pilots", "plain", "array")]
        for place in places:
            place.mkdir()
        results.append(asyncio.run(in_pilots(places[0], jobs)))
        results.append(plain("sbatch", places[1], jobs, one_by_one))
        results.append(plain("sbatch --array", places[2], jobs, as_array))
    write_results("slurm_pilots", results)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS)
