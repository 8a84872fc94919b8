"""Measure the speed of the journal; print the figures and write benchmarks/results/journal.json.

    python benchmarks/journal.py [POSTGRESQL_URL]

A job is made durable as in a site: its idempotency key is looked up, and one step has the input of the core, the
answer, a message to the grid and the first entry of its history. Steps are written in batches of 500. PostgreSQL is
measured too if the URL of an empty database is given, or if its programs are installed: then with a socket in a
temporary folder. Every batch waits for the disk at least once, so a durable write is measured as well: if it takes
microseconds, the disk reports data as durable before they are, and a real disk would add its own time to every batch.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from measuring import write_results

from gridweave.site import messages as site_messages
from gridweave.site.job import Job, JobRecord, JobRequest, Program
from gridweave.site.journal.journal import Journal
from gridweave.site.journal.replay import replay
from gridweave.site.messages import ORDERS, Answer, Enqueued, JobSubmitted, RunEnded, RunStarted, StartRun
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.contract import ContractCore, ContractEvent
from gridweave.site.service.clock import Clock
from gridweave.site.service.site_driver import SiteDriver
from gridweave.site.users.owner import OwnerPolicy

TARGET = 5000
BATCH = 500
JOBS = 20_000
GROWTH = 8_000
"""Number of jobs that a site accepts, starts and ends while the growth of its journal is measured."""

REQUEST = JobRequest(
    program=Program(argv=("./solve", "input"), environment={"HOME": "/home/user-7"}), limit_ms=3_600_000, user="user-7"
)


def submit(journal: Journal, first: int, count: int) -> None:
    """Make `count` jobs durable, batch by batch."""
    for start in range(first, first + count, BATCH):
        numbers = range(start, start + BATCH)
        assert not journal.submissions(f"user-7/{number:032x}" for number in numbers)
        for number in numbers:
            job = Job(job_id=number, width=4, estimate_ms=3_600_000, user=7)
            with journal.step() as step:
                step.input(number, (JobSubmitted(job),))
                step.submission(f"user-7/{number:032x}", number, number, {"job_id": number})
                step.sent("grid", Enqueued(number, 1))
                step.received("grid")
                step.acknowledged("grid", max(0, number - BATCH))
                step.note(number, number, "submitted", "by user 7, 4 nodes for 1 h")
        assert journal.flush() == start + BATCH


def rates(place: str | Path, name: str) -> dict[str, float]:
    """Return the rate over all jobs and in the slowest tenth [jobs/s], and the processor time of this process."""
    with Journal(place, event_type=ContractEvent, message_type=Answer, batch=0) as journal:
        seconds = []
        began_cpu = time.process_time()
        for first in range(0, JOBS, JOBS // 10):
            began = time.perf_counter()
            submit(journal, first, JOBS // 10)
            seconds.append(time.perf_counter() - began)
        cpu = time.process_time() - began_cpu
    return {
        f"{name} [jobs/s]": JOBS / sum(seconds),
        f"{name}, slowest tenth [jobs/s]": JOBS / 10 / max(seconds),
        f"{name}, CPU of this process [us/job]": cpu / JOBS * 1e6,
    }


def ended_us(place: Path) -> float:
    """Return the time to record the end of a job [us], in batches, with a record of usual size."""
    with Journal(place, event_type=ContractEvent, batch=0) as journal:
        began = time.perf_counter()
        for number in range(JOBS):
            record = JobRecord(job_id=number, request=REQUEST, submit_ms=0, end_ms=number, state="ended")
            with journal.step() as step:
                step.ended(record)
            if number % BATCH == BATCH - 1:
                journal.flush()
        return (time.perf_counter() - began) / JOBS * 1e6


class Machine:
    """A machine of a site whose jobs end as soon as they have started."""

    def __init__(self) -> None:
        self.driver: SiteDriver | None = None

    async def order(self, machine: str, data: bytes) -> None:
        """Report the start and the end of every job that is ordered."""
        assert self.driver is not None
        keys = [(one.launch.job_id, one.launch.attempt) for one in ORDERS.decode(data) if isinstance(one, StartRun)]
        reports = [kind for key in keys for kind in (RunStarted(machine, *key), RunEnded(machine, *key, "finished"))]
        if reports:
            await self.driver.report(msgspec.msgpack.encode(reports))


async def growth(place: Path, *, compacts: bool, jobs: int = GROWTH) -> dict[str, float]:
    """Return how a site's journal grows with single jobs of its own users, and how long an answer takes.

    The size is measured after each tenth of the jobs. Without `compacts` the journal removes nothing.
    """

    async def nowhere(peer: str, data: bytes) -> None:
        return

    machine = Machine()
    machines = (site_messages.Machine(name="m0", nodes=4, ports=(0, 0)),)
    settings = SiteSettings(name="north", number=0, machines=machines, policy=SitePolicy(), owner=OwnerPolicy())
    driver = machine.driver = SiteDriver(settings, place, Clock(), to_grid=nowhere, to_machine=machine.order)
    driver.journal.compacts = compacts
    running = asyncio.ensure_future(driver.run())
    await driver.apply(site_messages.MachineJoined("m0", "127.0.0.1"))
    seconds, sizes = [], []
    for number in range(jobs):
        began = time.perf_counter()
        await driver.submit([(f"key {number}", REQUEST)], origin="anna, request 7")
        seconds.append(time.perf_counter() - began)
        if number % (jobs // 10) == jobs // 10 - 1:
            sizes.append(place.stat().st_size)
    running.cancel()
    await asyncio.wait([running])
    await driver.close()
    name = "compacting" if compacts else "never compacted"
    seconds.sort()
    return {
        f"{name}: bytes a job, second half": (sizes[-1] - sizes[4]) / (jobs / 2),
        f"{name}: an answer, median [ms]": 1000 * seconds[jobs // 2],
        f"{name}: an answer, 99% [ms]": 1000 * seconds[jobs * 99 // 100],
    }


def sync_us(folder: Path) -> float:
    """Return the time until a write of one page to the disk is durable [us], the median of 50."""
    seconds = []
    file = os.open(folder / "sync", os.O_RDWR | os.O_CREAT)
    for _ in range(50):
        os.pwrite(file, os.urandom(4096), 0)
        began = time.perf_counter()
        os.fdatasync(file)
        seconds.append(time.perf_counter() - began)
    os.close(file)
    return sorted(seconds)[25] * 1e6


def replay_figures(place: Path) -> dict[str, float]:
    """Return how fast a site recovers with 5,000 jobs in its queue: from its inputs, and from a snapshot."""
    figures: dict[str, float] = {}
    count = 5000
    core = ContractCore(128, SitePolicy())
    with Journal(place, event_type=ContractEvent, message_type=Answer) as journal:
        for number in range(count):
            with journal.step() as step:
                step.handle(core, number, JobSubmitted(Job(job_id=number, width=4, estimate_ms=3_600_000)))
        replay(journal, ContractCore(128, SitePolicy()))  # not measured: the first call compiles kernels, or loads them
        began = time.perf_counter()
        assert replay(journal, ContractCore(128, SitePolicy())).inputs == count
        figures["replay of inputs [inputs/s]"] = count / (time.perf_counter() - began)
        journal.snapshot(core)
        journal.flush()
        began = time.perf_counter()
        journal.snapshot(core)
        journal.flush()
        figures["snapshot of 5,000 jobs, durable [ms]"] = 1000 * (time.perf_counter() - began)
        began = time.perf_counter()
        assert replay(journal, ContractCore(128, SitePolicy())).snapshot == count
        figures["replay from it [ms]"] = 1000 * (time.perf_counter() - began)
    return figures


@contextlib.contextmanager
def postgresql() -> Iterator[str | None]:
    """Yield the URL of a database on a temporary server; None if PostgreSQL is not installed."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    user = "postgres" if os.geteuid() == 0 else pwd.getpwuid(os.geteuid()).pw_name
    if not programs or user not in {entry.pw_name for entry in pwd.getpwall()}:
        yield None
        return
    folder = Path(tempfile.mkdtemp(prefix="gw-pg-"))
    account = pwd.getpwnam(user)
    os.chown(folder, account.pw_uid, account.pw_gid)

    def run(program: str, *arguments: str) -> None:
        command = [str(programs[0] / program), "--pgdata", str(folder / "data"), *arguments]
        who = {} if os.geteuid() else {"user": account.pw_uid, "group": account.pw_gid}
        subprocess.run(command, cwd=folder, stdout=subprocess.DEVNULL, check=True, **who)  # type: ignore[call-overload]

    try:
        run("initdb", "--auth=trust", "--username", user)
        options = f"-c listen_addresses= -c unix_socket_directories={folder}"
        run("pg_ctl", "--wait", "--log", str(folder / "log"), "--options", options, "start")
        try:
            yield f"postgresql://{user}@/postgres?host={folder}"
        finally:
            run("pg_ctl", "--wait", "--mode", "fast", "stop")
    finally:
        shutil.rmtree(folder)


def main() -> None:
    """Run all measurements, print them, and save them."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        figures["load of the machine before"] = os.getloadavg()[0]
        figures["durable write of a page [us]"] = sync_us(folder)
        figures |= rates(folder / "a.journal", "SQLite")
        given = contextlib.nullcontext(sys.argv[1]) if len(sys.argv) > 1 else postgresql()
        with given as url:
            if url is not None:
                figures |= rates(url, "PostgreSQL")
        figures |= replay_figures(folder / "b.journal")
        figures["a job that is over [us]"] = ended_us(folder / "c.journal")
        for compacts in (False, True):
            figures |= asyncio.run(growth(folder / f"{compacts}.journal", compacts=compacts))
    for label, figure in figures.items():
        target = f"   target: {TARGET:,}: {'met' if figure >= TARGET else 'NOT MET'}" if "jobs/s" in label else ""
        print(f"{label:45}{figure:>12,.1f}{target}")
    write_results("journal", figures)


if __name__ == "__main__":
    main()
