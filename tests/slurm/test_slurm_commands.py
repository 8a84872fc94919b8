"""A real Slurm cluster, asked by its commands."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from gridweave.errors import InputError, UnavailableError
from gridweave.slurm.cluster.asking import Commands, environment_of
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.cluster.look import LookByCommands
from gridweave.slurm.cluster.settings import SlurmSettings
from gridweave.slurm.system import Allocation, AllocationRequest, BatchUser, BatchView
from support.machine import PATIENCE_S
from support.slurm import SlurmCluster, running_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of three nodes that gives them for an hour at most."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "one", 3, "60") as found:
        yield found


def slurm_of(cluster: SlurmCluster, **settings: object) -> Slurm:
    """Return the plug for a cluster."""
    values = {"partition": "main", "conf": str(cluster.conf)} | settings
    return Slurm(SlurmSettings(**values))  # type: ignore[arg-type]


async def seen(slurm: Slurm, name: str, state: str) -> Allocation:
    """Return an allocation as soon as it is in a state."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            found = {each.name: each for each in (await slurm.view("gw-")).allocations}
            if name in found and found[name].state == state:
                return found[name]
            await asyncio.sleep(0.2)


def asked(name: str, script: str, nodes: int = 1, **options: object) -> AllocationRequest:
    """Return a request for nodes for a minute."""
    values: dict[str, object] = {"length_ms": 60_000, "folder": "/tmp"} | options
    return AllocationRequest(name=name, nodes=nodes, script=f"#!/bin/sh\n{script}\n", **values)  # type: ignore[arg-type]


@pytest.mark.asyncio
async def test_allocations_from_the_request_to_the_end(cluster: SlurmCluster) -> None:
    """Nodes are asked for, had, waited for, given back and taken away, and each is found by its name."""
    slurm = slurm_of(cluster)
    await slurm.check()
    before = await slurm.view("gw-")
    assert (before.nodes, before.idle, before.longest_ms) == (3, 3, 3_600_000)
    first = await slurm.submit(asked("gw-1", "sleep 600", 2, comment="gridweave: job 1 of anna"))
    running = await seen(slurm, "gw-1", "running")
    assert running.number == first
    assert running.start_ms is not None
    await slurm.submit(asked("gw-2", "true", 3))
    waits = await seen(slurm, "gw-2", "waiting")
    cluster.wait(lambda: "Resources" in cluster.run("squeue", "-h", "-o", "%r"), "a reason")
    view: BatchView = await slurm.view("gw-")
    waits = next(each for each in view.allocations if each.name == "gw-2")
    assert waits.reason == "Slurm has no nodes free for it now (Resources)"
    assert view.busy[0] == (running.start_ms, running.start_ms + 60_000, 2)
    assert "anna" in cluster.run("squeue", "-h", "-o", "%k")
    await slurm.cancel((running, msgspec.structs.replace(running, number="999999")))
    assert (await seen(slurm, "gw-1", "ended")).reason == "it was cancelled in Slurm (CANCELLED)"
    assert (await seen(slurm, "gw-2", "ended")).reason == "its nodes were given back (COMPLETED)"
    await slurm.submit(asked("gw-3", "exit 3"))
    assert (await seen(slurm, "gw-3", "ended")).reason == "its script in Slurm failed (FAILED)"


@pytest.mark.asyncio
async def test_what_slurm_will_not_have(cluster: SlurmCluster, tmp_path: Path) -> None:
    """One line says what was wrong; nobody waits for what can never be."""
    with pytest.raises(InputError, match=r"partition 'gpu' does not exist on this cluster"):
        await slurm_of(cluster, partition="gpu").check()
    with pytest.raises(InputError, match=r"^sbatch is not on the path; install Slurm's commands here, name"):
        await slurm_of(cluster, bin=str(tmp_path)).check()
    with pytest.raises(InputError, match=r"^Slurm rejects the job: .*licen[cs]e"):
        await slurm_of(cluster, options=("licenses=nope:1",)).check()
    for command, prints in (("sbatch", ""), ("squeue", ""), ("scancel", ""), ("sinfo", "slurm 20.11.9")):
        (tmp_path / command).write_text(f"#!/bin/sh\necho {prints}\n")
        (tmp_path / command).chmod(0o755)
    with pytest.raises(InputError, match=r"^this Slurm is 20\.11; expected at least 22\.05, the oldest"):
        await slurm_of(cluster, bin=str(tmp_path)).check()


ACCOUNTING = """#!/bin/sh
cat > /dev/null
case "$*" in
*--account=closed*)
  echo "allocation failure: Invalid account or account/partition combination specified" >&2
  exit 1 ;;
*--test-only*)
  echo "sbatch: Job 1 to start at 2026-11-23T17:52:03 using 1 processors on nodes acct1 in partition main" >&2
  exit 0 ;;
esac
echo "sbatch: error: AssocMaxSubmitJobLimit" >&2
echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size \
and/or time limits)" >&2
exit 1
"""
"""A user who is in the account physics alone, at the limit of jobs: as Slurm 22.05 with slurmdbd has said it."""


@pytest.mark.asyncio
async def test_accounts_and_limits_under_slurmdbd(tmp_path: Path) -> None:
    """An account that may not submit is told before anything starts; a limit that is reached is waited for."""
    prints = {
        "squeue": "",
        "scancel": "",
        "sinfo": "case $1 in --version) echo slurm 22.05.8;; *) echo '2|idle|1:00|n[1-2]';; esac",
    }
    for command, text in prints.items():
        (tmp_path / command).write_text(f"#!/bin/sh\n{text}\n")
    (tmp_path / "sbatch").write_text(ACCOUNTING)
    for path in tmp_path.iterdir():
        path.chmod(0o755)
    slurm = Slurm(SlurmSettings(partition="main", bin=f"{tmp_path}:/bin"))
    await slurm.check([BatchUser(account="physics")])
    said = "account closed: Slurm rejects the job: Invalid account or account/partition combination specified; sacctmgr"
    with pytest.raises(InputError, match=f"^{said} show associations lists the valid ones$"):
        await slurm.check([BatchUser(account="physics"), BatchUser(account="closed")])
    with pytest.raises(UnavailableError, match=r"^Slurm accepts no jobs now: AssocMaxSubmitJobLimit; Batch job"):
        await slurm.submit(asked("gw-1", "true", account="physics"))


@pytest.mark.parametrize(("private", "user", "sees"), [
    ("none", "exit 1", "all"), ("usage,nodes", "exit 1", "all"), ("jobs,usage", "exit 1", "own"),
    ("jobs", "echo 'Operator|'", "all"), ("jobs", "echo 'Administrator|'", "all"), ("jobs", "echo 'None|'", "own"),
    ("jobs", "echo 'None|physics'", "unsure"), ("jobs", "", "unsure"),
])  # fmt: skip
@pytest.mark.asyncio
async def test_whose_jobs_are_seen(tmp_path: Path, private: str, user: str, sees: str) -> None:
    """By PrivateData, and the rights of the site's account; without sacctmgr these are not known."""
    prints = {"scontrol": f"echo 'PrivateData             = {private}'; echo 'SlurmUser               = slurm(64030)'"}
    for command, text in (prints | ({"sacctmgr": user} if user else {})).items():
        (tmp_path / command).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / command).chmod(0o755)
    settings = SlurmSettings(partition="main", bin=str(tmp_path))
    assert await LookByCommands(settings, Commands(settings), "gridweave").sight() == sees
    # Root sees all, and so does the account of Slurm itself.
    for own in ("root", "slurm"):
        assert await LookByCommands(settings, Commands(settings), own).sight() == "all"


@pytest.mark.asyncio
async def test_a_line_that_cannot_be_read_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The jobs of the other lines are seen at each look; the log does not fill as long as the line is there."""
    mark = "for last; do :; done; mark=${last#*=}; mark=${mark%%|*}"
    lines = 'echo "$mark|main|n1|7|RUNNING|1|N/A|1|anna|None|gw-1"; echo "$mark|x"'
    prints = {"squeue": f"{mark}\n{lines}", "sinfo": "echo '1|mixed|1:00|n1'"}
    for command, text in prints.items():
        (tmp_path / command).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / command).chmod(0o755)
    settings = SlurmSettings(partition="main", bin=str(tmp_path))
    look = LookByCommands(settings, Commands(settings), "gridweave")
    for _ in range(3):
        assert [job.name for job in (await look.look())[1]] == ["gw-1"]
    assert caplog.text.count("a line of squeue cannot be parsed and is ignored: 'x\\n'") == 1


@pytest.mark.asyncio
async def test_a_controller_that_is_down_and_comes_back(cluster: SlurmCluster) -> None:
    """Whoever asks hears that it is not to be had now; what waited there is found again by its name."""
    slurm = slurm_of(cluster)
    number = await slurm.submit(asked("gw-4", "sleep 600", 3))
    await seen(slurm, "gw-4", "running")
    cluster.kill_controller()
    impatient = slurm_of(cluster, conf=str(_impatient(cluster)))
    with pytest.raises(UnavailableError, match="squeue fails: "):
        await impatient.view("gw-")
    with pytest.raises(UnavailableError, match="Slurm accepts no jobs now: "):
        await impatient.submit(asked("gw-5", "true"))
    cluster.start_controller()
    assert (await seen(slurm, "gw-4", "running")).number == number
    await slurm.cancel((await seen(slurm, "gw-4", "running"),))


def _impatient(cluster: SlurmCluster) -> Path:
    """Return the same settings with a shorter wait for the controller."""
    path = cluster.folder / "impatient.conf"
    path.write_text(cluster.conf.read_text() + "MessageTimeout=2\n")
    return path


LEFT_ALONE = """#!/bin/sh
cat > /dev/null
echo "sbatch: error: Slurm temporarily unable to accept job, sleeping and retrying" >&2
until [ -e {folder}/end ]; do sleep 0.05; done
"""
"""A sudo whose sbatch finds the queue full, and asks again and again until a test lets it end."""


@pytest.mark.parametrize("patience_s", [30.0, 0.0])
@pytest.mark.asyncio
async def test_what_sudo_runs_cannot_be_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, patience_s: float
) -> None:
    """It is left alone when it tries again, or takes too long; nothing more is asked for as that user until it ends."""

    def denied(_process: object, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    for command, text in (("sudo", LEFT_ALONE.format(folder=tmp_path)), ("sbatch", "")):
        (tmp_path / command).write_text(text)
        (tmp_path / command).chmod(0o755)
    monkeypatch.setattr("asyncio.subprocess.Process.send_signal", denied)
    monkeypatch.setattr("gridweave.slurm.cluster.asking.COMMAND_S", patience_s)
    settings = SlurmSettings(partition="main", bin=str(tmp_path), submit="sudo")
    slurm = Slurm(settings, os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    said = "Slurm accepts no jobs now: Slurm temporarily unable" if patience_s else "sudo has not answered for 0 s"
    with pytest.raises(UnavailableError, match=f"^{said}"):
        await slurm.submit(asked("gw-1", "true", runs_as="anna"))
    with pytest.raises(UnavailableError, match=r"^the previous command of anna, run by sudo, has not ended yet$"):
        await slurm.submit(asked("gw-2", "true", runs_as="anna"))
    with pytest.raises(UnavailableError, match=f"^{said}"):
        await slurm.submit(asked("gw-3", "true", runs_as="bert"))
    (tmp_path / "end").touch()
    (tmp_path / "sudo").write_text("#!/bin/sh\necho 7\n")
    monkeypatch.setattr("gridweave.slurm.cluster.asking.COMMAND_S", 30.0)
    numbers: list[str] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(numbers) < 2:
            with contextlib.suppress(UnavailableError):
                numbers.append(await slurm.submit(asked("gw-2", "true", runs_as=("anna", "bert")[len(numbers)])))
            await asyncio.sleep(0)
    assert numbers == ["7", "7"]


@pytest.mark.parametrize(("prints", "number"), [
    ("71", "71"), ("71;north", "71"), ("Welcome to north, 24 nodes\n71\nhave fun", "71"),
    ("", None), ("Welcome to north", None), ("job 71", None), ("71\n72", None), ("-71", None),
])  # fmt: skip
@pytest.mark.asyncio
async def test_the_number_of_a_job_is_a_line_that_is_a_number(tmp_path: Path, prints: str, number: str | None) -> None:
    """Without one line that is a number, whether and as what the job was taken is not known."""
    (tmp_path / "out").write_text(prints)
    (tmp_path / "sbatch").write_text(f"#!/bin/sh\ncat {tmp_path}/out\n")
    (tmp_path / "sbatch").chmod(0o755)
    slurm = Slurm(SlurmSettings(partition="main", bin=str(tmp_path)), {"PATH": "/usr/bin:/bin"})
    if number is not None:
        assert await slurm.submit(asked("gw-1", "true")) == number
        return
    with pytest.raises(UnavailableError, match=r"^sbatch printed .*; expected a job number$"):
        await slurm.submit(asked("gw-1", "true"))


NO_HOST = "#!/bin/sh\necho 'sudo: unable to resolve host head: Name or service not known' >&2\n{then} >&2\nexit 1\n"
"""A sudo on a machine that does not know its own name: it says so, and goes on."""


@pytest.mark.parametrize(("then", "kind", "said"), [
    ("echo 'sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)'",
     UnavailableError, "^Slurm accepts no jobs now: "),
    ("echo 'sudo: a password is required'", InputError, "^sudo does not allow the site to run sbatch as anna: "),
])  # fmt: skip
@pytest.mark.asyncio
async def test_what_sudo_warns_of_is_no_refusal(tmp_path: Path, then: str, kind: type[Exception], said: str) -> None:
    """What the command behind it says counts; if that says nothing sudo has refused."""
    for command, text in (("sudo", NO_HOST.format(then=then)), ("sbatch", "")):
        (tmp_path / command).write_text(text)
        (tmp_path / command).chmod(0o755)
    settings = SlurmSettings(partition="main", bin=str(tmp_path), submit="sudo")
    with pytest.raises(kind, match=said):
        await Slurm(settings, {"PATH": f"{tmp_path}:/bin"}).submit(asked("gw-1", "true", runs_as="anna"))


@pytest.mark.asyncio
async def test_jobs_have_the_environment_of_the_site_as_it_is(tmp_path: Path) -> None:
    """How times are written to the site, and in which language, is for the commands that it reads, and for no job."""
    prints = 'echo "${SLURM_TIME_FORMAT-none} $LC_ALL"'
    for command, text in (("squeue", prints), ("sbatch", f"{prints} >>{tmp_path}/heard; echo 7")):
        (tmp_path / command).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / command).chmod(0o755)
    settings = SlurmSettings(partition="main", bin=str(tmp_path))
    given = {"PATH": "/bin", "LC_ALL": "de_DE.UTF-8"}
    commands = Commands(settings, given)
    assert await commands.run("squeue") == "%s C.UTF-8\n"
    assert await Slurm(settings, given).submit(asked("gw-1", "true")) == "7"
    assert (tmp_path / "heard").read_text() == "none de_DE.UTF-8\n"
    of_others = environment_of(pwd.getpwuid(os.geteuid()), commands.environment)
    assert (of_others["LC_ALL"], "SLURM_TIME_FORMAT" in of_others) == ("de_DE.UTF-8", False)


@pytest.mark.asyncio
async def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    """One line says which; whoever asks tries again."""
    (tmp_path / "squeue").write_text("#!/no/such/shell\n")
    (tmp_path / "squeue").chmod(0o755)
    settings = SlurmSettings(partition="main", bin=str(tmp_path))
    with pytest.raises(UnavailableError, match=f"^{tmp_path}/squeue cannot be run: No such file or directory$"):
        await Commands(settings).run("squeue")


SACCT = """#!/bin/sh
echo "$*" > {folder}/asked
echo '73|anna|gw-x-1-1|CANCELLED by 1000'
echo '71|{own}|gw-x-1-1|TIMEOUT'
echo '75|{own}|gw-x-2-4|RUNNING'
"""
"""What ``sacct`` prints with these columns."""


@pytest.mark.asyncio
async def test_the_accounting_tells_how_jobs_have_ended(tmp_path: Path) -> None:
    """One question for all names; each end with its account, the oldest first, and nothing of what has none."""
    own = pwd.getpwuid(os.geteuid()).pw_name
    (tmp_path / "sacct").write_text(SACCT.format(folder=tmp_path, own=own))
    (tmp_path / "sacct").chmod(0o755)
    slurm = Slurm(SlurmSettings(partition="main", bin=f"{tmp_path}:/bin"))
    found = await slurm.ended(["gw-x-1-1", "gw-x-2-4"])
    assert [(each.number, each.end, each.runs_as) for each in found] == [
        ("71", "limit", ""),
        ("73", "cancelled", "anna"),
    ]
    assert found[1].reason == "it was cancelled in Slurm (CANCELLED)"
    assert "--name=gw-x-1-1,gw-x-2-4" in (tmp_path / "asked").read_text()


@pytest.mark.asyncio
async def test_a_cluster_without_accounting(cluster: SlurmCluster) -> None:
    """Slurm's own sacct understands the question, and says that there is no accounting."""
    with pytest.raises(UnavailableError, match=r"^sacct fails: Slurm accounting storage is disabled$"):
        await slurm_of(cluster).ended(["gw-x-1-1"])
