"""What goes wrong on a real Slurm cluster, drilled: no job is lost, none runs twice, nothing is left there."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from gridweave.site.lifecycle import OVER
from gridweave.site.service.clock import Clock
from support.machine import PATIENCE_S
from support.slurm import BY_JOBS, NODES, URGENT, BatchSite, GridOfClusters, SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

PROCESS = """
import asyncio, sys
from pathlib import Path
from types import SimpleNamespace
from support.slurm import BY_JOBS, BatchSite, GridOfClusters

async def main():
    cluster, folder = SimpleNamespace(conf=Path(sys.argv[2]), name="drill"), Path(sys.argv[3])
    found = BatchSite(cluster, folder) if sys.argv[1] == "site" else GridOfClusters((cluster,), folder, BY_JOBS)
    await (found.start() if sys.argv[1] == "site" else found.__aenter__())
    print(*[await found.submit(*sys.argv[4:], nodes=nodes) for nodes in (3, 4)], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of four nodes."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "drill", NODES, "120", URGENT) as found:
        yield found


def why(site: BatchSite, job_id: int) -> str:
    """Return why a job waits, as it is explained."""
    forecast = site.driver.site.forecast(site.driver.clock.now_ms(), job_id)
    return "" if forecast is None else forecast.reason


def counting(tmp_path: Path, then: str) -> tuple[str, ...]:
    """Return a command that records the number of its job, then runs another command."""
    return "sh", "-c", f"echo $GRIDWEAVE_JOB_ID >> {tmp_path / 'runs'}; {then}"


def waiting(tmp_path: Path) -> str:
    """Return a command that waits until the test has created the file ``go``."""
    return f"while [ ! -e {tmp_path / 'go'} ]; do sleep 0.1; done"


def runs(tmp_path: Path) -> list[int]:
    """Return the jobs whose ranks have run, each as often as it has."""
    return sorted(map(int, (tmp_path / "runs").read_text().split()))


@pytest.mark.asyncio
async def test_a_node_that_is_drained(site: BatchSite, cluster: SlurmCluster) -> None:
    """A job that needs it waits, and is told why; it starts when the node is back."""
    cluster.run("scontrol", "update", f"NodeName={cluster.name}4", "State=DRAIN", "Reason=drill")
    job = await site.submit("true", nodes=NODES)
    await site.until(lambda: "down, drained or reserved" in why(site, job), "the reason of Slurm")
    # 22.05 names the nodes, 24.11 and 26.05 do not.
    words = f" ({cluster.name}4) (ReqNodeNotAvail)", " reserved (ReqNodeNotAvail)", " (Nodes_required_for_job_are_DOWN)"
    assert why(site, job).endswith(words)
    cluster.run("scontrol", "update", f"NodeName={cluster.name}4", "State=RESUME")
    assert (await site.over(job)).outcome == "finished"


@pytest.mark.asyncio
async def test_a_daemon_of_a_node_that_dies_under_a_job(site: BatchSite, cluster: SlurmCluster, tmp_path: Path) -> None:
    """Its ranks go on, and end once; the node works again when its daemon is back."""
    job = await site.submit(*counting(tmp_path, waiting(tmp_path)), nodes=NODES)
    await site.until(site.running(job), "a running job")
    cluster.kill_node(0)
    (tmp_path / "go").touch()
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 1)
    cluster.start_node(0)
    again = await site.submit(*counting(tmp_path, "true"), nodes=NODES)
    assert (await site.over(again)).outcome == "finished"
    assert runs(tmp_path) == sorted([job] * NODES + [again] * NODES)


@pytest.mark.asyncio
async def test_a_queue_that_is_full(site: BatchSite, cluster: SlurmCluster, tmp_path: Path) -> None:
    """Slurm takes no more jobs; what was handed in waits, says why, and runs when there is room, once."""
    plain = cluster.conf.read_text()
    cluster.run("sbatch", "--hold", "--wrap", "true")
    known = len(cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%i").split())
    cluster.stop_controller()
    cluster.conf.write_text(f"{plain}MaxJobCount={known + 2}\n")
    cluster.start_controller()
    jobs = [await site.submit(*counting(tmp_path, "true"), key=f"{number}") for number in range(6)]
    await site.until(lambda: any("Slurm accepts no jobs now" in why(site, job) for job in jobs), "a full queue")
    cluster.stop_controller()
    cluster.conf.write_text(plain)
    cluster.start_controller()
    assert [(await site.over(job)).outcome for job in jobs] == ["finished"] * 6
    assert runs(tmp_path) == jobs


@pytest.mark.asyncio
async def test_a_controller_that_is_down_for_a_site(site: BatchSite, cluster: SlurmCluster, tmp_path: Path) -> None:
    """What runs ends meanwhile, what waits says why; when the controller is back it runs, each once."""
    runs_on = await site.submit(*counting(tmp_path, waiting(tmp_path)), nodes=3)
    await site.until(site.running(runs_on), "a running job")
    waits = await site.submit(*counting(tmp_path, "true"), nodes=NODES)
    await site.until(lambda: "(Resources)" in why(site, waits), "the reason of Slurm")
    cluster.kill_controller()
    comes = await site.submit(*counting(tmp_path, "true"), key="while it is down")
    await site.until(lambda: "squeue fails" in why(site, comes), "what is wrong")
    (tmp_path / "go").touch()
    assert (await site.over(runs_on)).outcome == "finished"
    cluster.start_controller()
    assert [(await site.over(job)).starts for job in (waits, comes)] == [1, 1]
    assert runs(tmp_path) == sorted([runs_on] * 3 + [waits] * NODES + [comes])


@pytest.mark.asyncio
async def test_a_controller_that_does_not_answer_in_time(
    site: BatchSite, cluster: SlurmCluster, tmp_path: Path
) -> None:
    """It hears, and does later what it was asked for; the site has given up by then, and asks for nothing twice."""
    cluster.hold_controller()
    try:
        job = await site.submit(*counting(tmp_path, "true"))
        await site.until(lambda: "Socket timed out" in why(site, job), "what is wrong")
    finally:
        cluster.release_controller()
    record = await site.over(job)
    assert (record.outcome, record.starts) == ("finished", 1)
    assert runs(tmp_path) == [job]
    asked = cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%j").split()
    assert len([name for name in asked if name.startswith(site.shared.prefix)]) == 1


@pytest.mark.asyncio
async def test_a_time_limit_of_slurm(site: BatchSite, cluster: SlurmCluster) -> None:
    """An administrator who shortens a job ends it at its limit; the reason says whose limit it was."""
    job = await site.submit("sleep", "600", limit_ms=900_000)
    await site.until(site.running(job), "a running job")
    number = cluster.run("squeue", "-h", "-t", "R", "-o", "%i").strip()
    cluster.run("scontrol", "update", f"JobId={number}", "EndTime=now+1seconds")
    record = await site.over(job)
    assert (record.outcome, record.reason) == ("limit", "it reached its time limit in Slurm (TIMEOUT)")


@pytest.mark.asyncio
async def test_a_clock_that_differs(site: BatchSite, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site's is four minutes behind those of Slurm and its nodes; munge refuses who is off by more than five."""
    await site.kill()
    own = cluster.run("sbatch", "--parsable", f"-N{NODES}", "--exclusive", "-t", "30", "--wrap", "sleep 600").strip()
    cluster.wait(lambda: "R" in cluster.run("squeue", "-h", "-j", own, "-o", "%t"), "the cluster's own user")
    monkeypatch.setattr("support.slurm.Clock", partial(Clock, epoch_ms=240_000))
    await site.start()
    job = await site.submit("true", nodes=2)
    await site.until(lambda: "(Resources)" in why(site, job), "the reason of Slurm")
    cluster.run("scancel", own)
    record = await site.over(job)
    assert (record.outcome, record.starts) == ("finished", 1)
    assert record.start_ms is not None
    assert record.start_ms < Clock().now_ms() - 240_000


async def killed(what: str, cluster: SlurmCluster, tmp_path: Path) -> list[int]:
    """Start a process with a site, or with a grid of one, hand it two jobs, and kill it when the first runs.

    Return the numbers of the jobs, of three nodes and of four.
    """
    command = counting(tmp_path, "sleep 4")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROCESS, what, str(cluster.conf), str(tmp_path), *command),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE_S):
            jobs = [int(number) for number in (await process.stdout.readline()).split()]
            while not (tmp_path / "runs").exists():
                await asyncio.sleep(0.05)
    finally:
        process.send_signal(signal.SIGKILL)
        await process.wait()
    return jobs


@pytest.mark.asyncio
async def test_the_process_of_a_site_is_killed(site: BatchSite, cluster: SlurmCluster, tmp_path: Path) -> None:
    """By SIGKILL, while jobs run and wait; the next process reads its journal and ends them, each once."""
    await site.kill()
    jobs = await killed("site", cluster, tmp_path)
    await site.start()
    assert [(await site.over(job)).outcome for job in jobs] == ["finished"] * 2
    assert runs(tmp_path) == sorted([jobs[0]] * (NODES - 1) + [jobs[1]] * NODES)


@pytest.mark.asyncio
async def test_a_journal_that_is_lost(site: BatchSite, tmp_path: Path) -> None:
    """A site that is begun again counts its jobs from the start, and takes nothing old in its folder for theirs."""
    first = await site.submit(*counting(tmp_path, "true"))
    assert (await site.over(first)).outcome == "finished"
    await site.kill()
    for path in site.folder.glob("journal*"):
        path.unlink()
    await site.start()
    second = await site.submit(*counting(tmp_path, "echo second"))
    record = await site.over(second)
    assert (second, record.outcome, site.output(record)) == (first, "finished", "second\n")
    assert runs(tmp_path) == [first, second]


@pytest.mark.asyncio
async def test_the_process_of_a_grid_is_killed(site: BatchSite, cluster: SlurmCluster, tmp_path: Path) -> None:
    """By SIGKILL, with its sites, while jobs that it has delegated run and wait in Slurm; each ends once."""
    await site.kill()
    folder = tmp_path / "grid"
    folder.mkdir()
    jobs = await killed("grid", cluster, folder)
    async with GridOfClusters((cluster,), folder, BY_JOBS) as grid:
        await site.until(lambda: all(grid.record(job).state in OVER for job in jobs), "the end of both jobs")
        assert [(grid.record(job).outcome, grid.record(job).starts) for job in jobs] == [("finished", 1)] * 2
    assert runs(folder) == sorted([jobs[0]] * (NODES - 1) + [jobs[1]] * NODES)


@pytest.mark.asyncio
async def test_nodes_that_are_taken_for_a_job_that_goes_first(site: BatchSite, cluster: SlurmCluster) -> None:
    """The job is lost (PREEMPTED), waits for what took its nodes, and runs again."""
    job = await site.submit("sh", "-c", 'if [ "$GRIDWEAVE_ATTEMPT" = 1 ]; then sleep 600; fi', limit_ms=900_000)
    await site.until(site.running(job), "a running job")
    (name,) = site.queue()
    cluster.run("sbatch", "-purgent", f"-N{NODES}", "--exclusive", "-t1", "-o/dev/null", "--wrap", "sleep 1")
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 2)
    assert cluster.run("squeue", "-h", "-a", "-tPREEMPTED", "-o", "%j").split() == [name]


@pytest.mark.asyncio
async def test_an_administrator_holds_a_job_and_closes_the_partition(site: BatchSite, cluster: SlurmCluster) -> None:
    """Both wait, and are told why; they run when they may, once."""
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = await site.submit("true")
    await site.until(lambda: "an administrator of Slurm has to open it" in why(site, job), "the reason of Slurm")
    (name,) = site.queue()
    number = cluster.run("squeue", "-h", f"--name={name}", "-o", "%i").strip()
    cluster.run("scontrol", "hold", number)
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    await site.until(lambda: "it is held by an administrator of Slurm" in why(site, job), "the reason of Slurm")
    cluster.run("scontrol", "release", number)
    record = await site.over(job)
    assert (record.outcome, record.starts) == ("finished", 1)
