"""Many users at once, each with many jobs and maxima of their own, on two sites that map them to different Unix users.

Five users with eight jobs each, if nothing else is said; ``GRIDWEAVE_MANY_USERS=100x100`` is what is to hold at large.
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
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from gridweave.grid.api import JobQuery
from gridweave.site.job import Accepted, ArrayPlace, Declined, JobRecord, JobRequest, Program
from gridweave.site.launch import Limits, MachineRules
from gridweave.site.machine.cgroups import open_cgroups
from gridweave.site.machine.folders import task_folder
from gridweave.site.quotas import Quota, Quotas
from support.live_grids import LocalGrid

USERS, JOBS = (int(part) for part in os.environ.get("GRIDWEAVE_MANY_USERS", "5x8").split("x"))
SITES = ("north", "south")
NODES, MEMORY_MB, OPEN_FILES = 8, 64, 321
PATIENCE_S = 300.0 + USERS * JOBS
PLAIN = min(JOBS - 1, 5)
"""So many of the jobs of each user are jobs by themselves; the others are the elements of one packed array."""

SCRIPT = """
touch made && stat -c 'file %U' made
grep ^Uid /proc/self/status; sh -c 'grep ^Uid /proc/self/status'
echo open $(ulimit -n)
group=$(grep -E ':memory:|^0::/.' /proc/self/cgroup | head -n 1)
echo group $group
cat /sys/fs/cgroup/memory${group##*:}/memory.limit_in_bytes /sys/fs/cgroup${group##*:}/memory.max 2>/dev/null
true
"""


class Place(NamedTuple):
    """A folder, and the rules of the machines of each site."""

    folder: Path
    rules: dict[str, MachineRules]


def unix_name(site: str, user: int) -> str:
    """Return who a user is on the machines of a site."""
    return f"gwm{site[0]}{user}"


@pytest.fixture
def place() -> Iterator[Place]:
    """Make a Unix user for each user and site, and a launcher for each site; take all of it away again."""
    if os.getuid() != 0:
        pytest.skip("only root can make users, and run jobs as them")
    names = [unix_name(site, user) for site in SITES for user in range(USERS)]
    lines = "".join(f"{name}:x:::of a test:/:/bin/sh\n" for name in names)
    subprocess.run(["newusers"], input=lines, text=True, check=True, capture_output=True)
    folder = Path(tempfile.mkdtemp(prefix="gridweave-test-", dir="/run"))
    folder.chmod(0o711)
    launchers: list[subprocess.Popen[bytes]] = []
    try:
        rules = {}
        for site in SITES:
            launchers.append(start_launcher(folder, site))
            limits = Limits(memory_bytes=MEMORY_MB << 20)
            rules[site] = MachineRules(launcher=str(folder / f"{site}.socket"), limits=limits)
        yield Place(folder, rules)
    finally:
        for launcher in launchers:
            launcher.terminate()
            launcher.wait()
        for site in SITES:
            open_cgroups(f"gridweave-test-{site}").parent.remove()
        shutil.rmtree(folder, ignore_errors=True)
        for name in names:
            subprocess.run(["userdel", name], check=False, capture_output=True)


def start_launcher(folder: Path, site: str) -> subprocess.Popen[bytes]:
    """Start the launcher of a site, with a map of its own."""
    users = "\n".join(f'user{user} = "{unix_name(site, user)}"' for user in range(USERS))
    file = folder / f"{site}.toml"
    file.write_text(
        f'service = "root"\nsocket = "{folder / site}.socket"\ncgroup = "gridweave-test-{site}"\n'
        f"[users]\n{users}\n[limits]\nnofile = {OPEN_FILES}\n"
    )
    file.chmod(0o600)
    with (folder / f"{site}.log").open("wb") as log:
        return subprocess.Popen([sys.executable, "-P", "-m", "gridweave.site.machine.launcher", str(file)], stderr=log)


async def listening(place: Place) -> None:
    """Return when both launchers listen."""
    async with asyncio.timeout(PATIENCE_S):
        while not all(Path(rules.launcher).exists() for rules in place.rules.values()):
            await asyncio.sleep(0.02)


def requests(user: int) -> list[tuple[str, JobRequest]]:
    """Return the jobs of a user: some by themselves, and a packed array."""
    request = JobRequest(
        program=Program(argv=("sh", "-c", SCRIPT)), limit_ms=600_000, user=f"user{user}", account=f"account{user % 2}"
    )
    plain = [(f"{user} {number}", request) for number in range(PLAIN)]
    array = ArrayPlace(name="all", index=0, array_tasks=((0, JOBS - PLAIN),))
    return [*plain, (f"{user} array", JobRequest(**{**fields(request), "array": array}))]


def fields(request: JobRequest) -> dict[str, object]:
    """Return what a request says."""
    return {name: getattr(request, name) for name in request.__struct_fields__}


def most_jobs(user: int) -> int:
    """Return how many jobs of a user may run at one time."""
    return 1 + user % 3


async def ended(grid: LocalGrid, count: int) -> list[JobRecord]:
    """Return the records of all jobs, when they are over."""
    async with asyncio.timeout(PATIENCE_S):
        while grid.driver.grid.registry.n_ended < count:
            await asyncio.sleep(0.1)
    records: list[JobRecord] = []
    below: int | None = None
    while page := (await grid.backend.jobs(JobQuery(limit=500, below=below))).jobs:
        records += page
        below = page[-1].job_id
    return records


@pytest.mark.timeout(PATIENCE_S + 300)
@pytest.mark.asyncio
async def test_every_file_process_and_limit_is_right(place: Place) -> None:
    """Each job is its user's own Unix user at the site where it ran, within the limits; no maximum is exceeded."""
    named = {f"user{user}": Quota(running_jobs=most_jobs(user)) for user in range(USERS)}
    quotas = Quotas(users=named, each_account=Quota(running_nodes=NODES))
    await listening(place)
    sites = tuple((site, (NODES,)) for site in SITES)
    async with LocalGrid(place.folder, sites, rules=place.rules, quotas=quotas) as grid:
        jobs = [job for user in range(USERS) for job in requests(user)]
        stranger = JobRequest(program=Program(argv=("true",)), limit_ms=1_000, user="nobody-here")
        async with asyncio.timeout(PATIENCE_S):
            while len(grid.driver.grid._takes) < len(SITES):
                await asyncio.sleep(0.02)
        (refused,) = await grid.backend.submit([("stranger", stranger)], site=None, origin="test")
        assert isinstance(refused, Declined)
        assert refused.reason.startswith(
            "no site accepts jobs of 'nobody-here': north: it has no account for 'nobody-here'"
        )
        answers = await grid.backend.submit(jobs, site=None, origin="test")
        assert all(isinstance(answer, Accepted) for answer in answers)
        records = await ended(grid, len(jobs))
        said = {record.job_id: said_by(place.folder, record) for record in records}
    assert {record.outcome for record in records} == {"finished"}, [record.reason for record in records][:3]
    for record in records:
        check_output(record, said[record.job_id])
    for user in range(USERS):
        mine = [record for record in records if record.request.user == f"user{user}"]
        assert len(mine) == PLAIN + 1
        assert most_at_once(mine) <= most_jobs(user)
    for account in range(2):
        assert most_at_once([r for r in records if r.request.account == f"account{account}"]) <= NODES
    assert {record.places[0][0] for record in records} == set(SITES)


def said_by(folder: Path, record: JobRecord) -> str:
    """Return what a job has written, and the owner of each of its files, as seen from outside."""
    ((site, _),) = record.places
    piece = task_folder(folder / site / "m0", (record.job_id, record.attempt))
    user = int(record.request.user.removeprefix("user"))
    for path in (piece / "own").rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            assert pwd.getpwuid(path.lstat().st_uid).pw_name == unix_name(site, user), path
    outputs = sorted(piece.glob("rank-*.out"))
    assert outputs, piece
    for path in outputs:
        assert pwd.getpwuid(path.stat().st_uid).pw_name == unix_name(site, user), path
    return "".join(path.read_text() for path in outputs)


def check_output(record: JobRecord, said: str) -> None:
    """See that all that a job says of itself is right."""
    ((site, _),) = record.places
    name = unix_name(site, int(record.request.user.removeprefix("user")))
    uid = pwd.getpwnam(name).pw_uid
    times = JOBS - PLAIN if record.request.array else 1
    lines = said.splitlines()
    assert lines.count(f"file {name}") == times, said
    assert lines.count(f"Uid:\t{uid}\t{uid}\t{uid}\t{uid}") == 2 * times, said
    assert lines.count(f"open {OPEN_FILES}") == times, said
    assert lines.count(str(MEMORY_MB << 20)) == times, said
    groups = [line for line in lines if line.startswith("group ")]
    assert len(groups) == times
    assert all(f"gridweave-test-{site}" in line and f"-{record.job_id}." in line for line in groups), groups[:2]


def most_at_once(records: list[JobRecord]) -> int:
    """Return how many of these jobs ran at one time at most; they have one node each."""
    changes = sorted(
        change for r in records for change in ((r.start_ms or 0, 1), (r.end_ms or 0, -1)) if r.start_ms is not None
    )
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most
