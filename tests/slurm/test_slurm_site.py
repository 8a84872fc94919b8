"""A live site whose nodes belong to a real Slurm cluster: its jobs from the request to the end, and what goes wrong."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from gridweave.errors import UnavailableError
from gridweave.grid.client.scripts import shipped, slurm_lines
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest, Program
from gridweave.site.launch import MachineRules
from gridweave.site.lifecycle import OVER
from gridweave.site.machine.agent import OutputRead
from gridweave.site.messages import Machine
from gridweave.site.query_messages import SiteInfo
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.calls import answer_of, encode, question
from gridweave.site.service.clock import Clock
from gridweave.slurm.cluster.commands import Slurm
from gridweave.slurm.policy import BatchPolicy
from gridweave.slurm.service.actor import BatchSiteActor
from gridweave.slurm.service.folder import output_of
from gridweave.slurm.system import AllocationRequest, BatchUser
from support.machine import PATIENCE_S
from support.slurm import NODES, BatchSite, SlurmCluster, running_cluster

pytestmark = pytest.mark.slow

NO_ANNA = "it has no account for 'anna'; ask its operator to add one"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """Return a cluster of four nodes."""
    with running_cluster(tmp_path_factory.mktemp("slurm"), "two", NODES, "120") as found:
        yield found


class NoCalls:
    """Nobody else is there."""

    async def call(self, actor: str, _method: str, *_arguments: object, timeout_s: float = 0) -> Any:
        """Fail as a call that nobody answers."""
        raise UnavailableError(f"actor {actor} does not answer within {timeout_s} s")

    async def ask(self, actor: str, method: str, data: bytes, *, timeout_s: float = 0, alone: bool = False) -> bytes:
        """Fail as a question that nobody answers."""
        raise UnavailableError(f"actor {actor} does not answer within {timeout_s} s")


@pytest_asyncio.fixture
async def actor(cluster: SlurmCluster, tmp_path: Path) -> AsyncIterator[BatchSiteActor]:
    """Return the actor of a site, made in this process; it is stopped in the end, also if the test fails."""
    plan = BatchSite(cluster, tmp_path).plan
    machines = tuple(Machine(name=f"n{k}", nodes=1) for k in range(NODES))
    settings = SiteSettings(name="two", number=0, machines=machines, policy=BatchPolicy())
    found = BatchSiteActor(settings, str(tmp_path / "journal"), Clock(), calls=NoCalls(), batch=plan)
    yield found
    await found.stop()
    cluster.run("scancel", "--partition=main")


@pytest.mark.asyncio
async def test_jobs_run_as_on_any_site(site: BatchSite) -> None:
    """Ranks on the nodes that Slurm gave, their output, exit codes and usage; and the nodes go back at once."""
    text = 'echo "$GRIDWEAVE_RANK of $GRIDWEAVE_SIZE at $SLURM_JOB_NUM_NODES"'
    wide = await site.submit("sh", "-c", text, nodes=3)
    bad = await site.submit("sh", "-c", "exit 3")
    slow = await site.submit("sleep", "60", limit_ms=1_500)
    record = await site.over(wide)
    assert (record.outcome, record.reason) == ("finished", "")
    assert [site.output(record, rank) for rank in range(3)] == [f"{rank} of 3 at 3\n" for rank in range(3)]
    assert record.used.wall_s > 0
    record = await site.over(bad)
    assert (record.outcome, record.exit_codes) == ("failed", ((0, 3, None),))
    assert (await site.over(slow)).outcome == "limit"
    await site.until(lambda: not site.queue(), "nodes that are given back")


IN_ALLOCATION = """\
echo "$SLURM_JOB_ID $SLURM_JOBID $SLURM_ARRAY_JOB_ID $SLURM_JOB_NAME"
echo "$SLURM_ARRAY_TASK_ID $SLURM_NTASKS $SLURM_PROCID $GRIDWEAVE_JOB_ID ${SLURM_STEP_ID-no step}"
"""


@pytest.mark.asyncio
async def test_a_script_in_an_allocation_can_only_cancel_itself(site: BatchSite, cluster: SlurmCluster) -> None:
    """Slurm's numbers in a job are Slurm's: with gridweave's, scancel would end a stranger's job."""
    strangers = [int(cluster.run("sbatch", "--parsable", "--hold", "--wrap", "true")) for _ in range(20)]
    environment = {"SLURM_NTASKS": "8", "GRIDWEAVE_ARRAY": "sweep", "GRIDWEAVE_ARRAY_INDEX": "3"}
    scripted = shipped((), IN_ALLOCATION, preamble=slurm_lines("own"), output=None, error=None, name="own")
    record = await site.over(await site.submit(*scripted, environment=environment))
    first, second = site.output(record).splitlines()
    number, *others, name = first.split()
    assert int(number) > max(strangers)
    assert (others, name) == ([number, number], f"{site.shared.prefix}{record.job_id}-1")
    assert second == f"3 8 0 {record.job_id} no step"
    ends = shipped(
        (), 'scancel "$SLURM_JOB_ID"; sleep 60', preamble=slurm_lines("x"), output=None, error=None, name="x"
    )
    record = await site.over(await site.submit(*ends))
    assert record.outcome in ("cancelled", "failed")
    assert len(cluster.run("squeue", "-h", "-t", "PENDING", "-o", "%i").split()) == len(strangers)
    cluster.run("scancel", *map(str, strangers))


STEPS = """\
set -e
srun sh -c 'echo "step $SLURM_PROCID on $SLURMD_NODENAME"'
srun --ntasks=1 --nodes=1 --mem=1 true
mpirun --allow-run-as-root -n 4 sh -c 'echo "rank $OMPI_COMM_WORLD_RANK"'
"""


@pytest.mark.asyncio
async def test_srun_and_mpirun_start_steps_in_a_job(site: BatchSite) -> None:
    """The agents' step leaves all of the allocation to the steps of the job."""
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not at hand (Debian, as root: apt-get install openmpi-bin)")
    record = await site.over(await site.submit("sh", "-c", STEPS, nodes=2, limit_ms=60_000, ranks="first-node"))
    errors = output_of(site.shared, record.job_id, record.attempt, 0, "err", 0, 1 << 16).data.decode()
    assert (record.outcome, record.reason) == ("finished", ""), errors
    steps = [f"step {number} on two{place}" for number, place in enumerate(site_nodes(site.output(record)))]
    assert sorted(site.output(record).splitlines()) == sorted([*steps, *(f"rank {number}" for number in range(4))])


def site_nodes(text: str) -> list[str]:
    """Return the numbers of the two nodes that steps have named, in the order of the steps."""
    found = sorted(line for line in text.splitlines() if line.startswith("step"))
    places = [line.rpartition("two")[2] for line in found]
    assert len(set(places)) == 2
    return places


@pytest.mark.asyncio
async def test_why_a_job_waits_is_told_in_plain_words(site: BatchSite, cluster: SlurmCluster) -> None:
    """Slurm's reason and expected start are what `explain` says; a job that is wanted no more is gone."""
    own = cluster.run("sbatch", "--parsable", "-N4", "--exclusive", "-t", "30", "--wrap", "sleep 600").strip()
    cluster.wait(lambda: "R" in cluster.run("squeue", "-h", "-j", own, "-o", "%t"), "the cluster's own user")
    waits = await site.submit("true", nodes=2)
    said = "there: Slurm has no nodes free for it now (Resources)"

    def why() -> str:
        forecast = site.driver.site.forecast(site.driver.clock.now_ms(), waits)
        return "" if forecast is None else forecast.reason

    await site.until(lambda: said in why(), "the reason of Slurm")
    now_ms = site.driver.clock.now_ms()
    quote = site.driver.site.quote(now_ms, JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=60_000))
    assert quote.start_ms is not None
    assert 25 * 60_000 < quote.start_ms - now_ms <= 32 * 60_000
    never = site.driver.site.quote(now_ms, JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=9_000_000))
    assert "its batch system lends nodes for at most 2 h" in never.reason
    assert "anna" in cluster.run("squeue", "-h", "-t", "PD", "-o", "%k")
    await site.driver.apply_action("cancel", [waits])
    assert (await site.over(waits)).outcome == "cancelled"
    await site.until(lambda: site.queue() == ["wrap"], "nothing of it in Slurm")
    cluster.run("scancel", own)


@pytest.mark.asyncio
async def test_who_pays_and_with_which_options(site: BatchSite, cluster: SlurmCluster) -> None:
    """As the operator's table and list say; who is in the table no more runs nothing, though nodes are given."""
    await site.kill()
    rules = MachineRules(mapped=("anna", "bert"), options=("nice",))
    site.plan = msgspec.structs.replace(
        site.plan, rules=rules, users={"anna": BatchUser(account="physics"), "bert": BatchUser()}
    )
    await site.start()
    await site.until(lambda: site.driver.site.runs.users == rules.users, "the table of users")
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    program = Program(argv=("touch", str(site.folder / "ran")))
    request = JobRequest(program=program, nodes=1, limit_ms=60_000, user="anna", batch_options=("nice=7",))
    (taken,) = await site.driver.submit([("a", request)])
    assert isinstance(taken, Accepted)
    await site.until(lambda: len(site.queue()) == 1, "a job in Slurm")
    shown = cluster.run("squeue", "-h", "-o", "%a|%y|%k").strip()
    assert shown == f"physics|7|gridweave job {taken.job_id} of anna"
    (declined,) = await site.driver.submit([("c", msgspec.structs.replace(request, user="carl"))])
    assert declined == Declined("c", "it has no account for 'carl'; ask its operator to add one")
    await site.kill()
    site.plan = msgspec.structs.replace(site.plan, rules=MachineRules(mapped=("bert",)), users={"bert": BatchUser()})
    await site.start()
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")
    record = await site.over(taken.job_id)
    assert (record.outcome, record.reason.partition(": ")[2]) == ("failed", NO_ANNA)
    assert not (site.folder / "ran").exists()


@pytest.mark.asyncio
async def test_ends_that_slurm_brings(site: BatchSite, cluster: SlurmCluster) -> None:
    """What an administrator cancels fails and says so, waiting or running; what a lost node ran is run again."""
    runs = await site.submit("sleep", "600", limit_ms=600_000)
    await site.until(site.running(runs), "a running job")
    (name,) = site.queue()
    cluster.run("scancel", f"--name={name}")
    record = await site.over(runs)
    assert (record.outcome, record.reason) == ("failed", "it was cancelled in Slurm (CANCELLED)")
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    waits = await site.submit("true")
    await site.until(lambda: len(site.queue()) == 1, "a job in Slurm")
    cluster.run("scancel", f"--name={site.queue()[0]}")
    record = await site.over(waits)
    assert (record.outcome, record.reason) == ("failed", "it was cancelled in Slurm (CANCELLED)")
    cluster.run("scontrol", "update", "PartitionName=main", "State=UP")


@pytest.mark.asyncio
async def test_nothing_is_lost_or_run_twice_when_the_site_is_killed(site: BatchSite, tmp_path: Path) -> None:
    """Killed while jobs wait, run and end, the site finds each again by its name; each has run once."""
    counted = tmp_path / "runs"
    script = f"echo $GRIDWEAVE_JOB_ID >> {counted}; sleep 4"
    jobs = [await site.submit("sh", "-c", script, nodes=nodes, key=f"key {nodes}") for nodes in (2, 3, 4)]
    await site.until(lambda: any(site.running(job)() for job in jobs), "a running job")
    await site.kill()
    site.cluster.kill_controller()
    site.cluster.start_controller()
    await site.start()
    for job in jobs:
        assert (await site.over(job)).outcome == "finished"
    assert sorted(map(int, counted.read_text().split())) == sorted([*[jobs[0]] * 2, *[jobs[1]] * 3, *[jobs[2]] * 4])
    await site.until(lambda: not site.queue(), "nodes that are given back")


@pytest.mark.asyncio
async def test_an_answer_of_sbatch_that_is_lost_asks_for_nothing_twice(site: BatchSite, tmp_path: Path) -> None:
    """The allocation is found again by its name; a second one of that name is given back, and runs nothing."""
    site.slurm.lost = 1
    job = await site.submit("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done", nodes=4)
    await site.until(site.running(job), "a running job")
    (name,) = site.queue()
    request = AllocationRequest(name=name, nodes=1, length_ms=60_000, script=site.slurm.script(("sleep", "60")))
    second = await Slurm.submit(site.slurm, request)
    (tmp_path / "go").touch()
    assert (await site.over(job)).outcome == "finished"
    await site.until(lambda: not site.queue(), "an empty queue")
    ended = site.cluster.run("squeue", "-h", "-a", "-t", "all", "-n", name, "-o", "%i %T").split("\n")
    assert f"{second} CANCELLED" in ended
    assert len([line for line in ended if line]) == 2


@pytest.mark.asyncio
async def test_nodes_give_themselves_back_while_the_site_is_away(site: BatchSite, tmp_path: Path) -> None:
    """Nodes that come when nobody wants them end with their lease; a site that is back asks again, and the job runs."""
    site.plan = msgspec.structs.replace(site.plan, lease_s=1.0)
    await site.kill()
    await site.start()
    job = await site.submit("sh", "-c", f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done", nodes=2)
    await site.until(lambda: len(site.queue()) == 1, "a job in Slurm")
    await site.kill()
    (tmp_path / "go").touch()  # on a slow machine it may run already
    await site.until(lambda: not site.queue(), "nodes that are given back")
    site.plan = msgspec.structs.replace(site.plan, lease_s=20.0)
    await site.start()
    assert (await site.over(job)).outcome == "finished"


@pytest.mark.asyncio
async def test_a_job_that_slurm_forgets_is_asked_for_again(site: BatchSite) -> None:
    """A controller that has lost its queue knows nothing of the job that waited there; it runs all the same."""
    cluster = site.cluster
    cluster.run("scontrol", "update", "PartitionName=main", "State=DOWN")
    job = await site.submit("true")
    await site.until(lambda: len(site.queue()) == 1, "a job in Slurm")
    (first,) = site.queue()
    cluster.kill_controller()
    for path in (cluster.folder / "state").glob("job_state*"):
        path.unlink()
    cluster.start_controller()
    assert (await site.over(job)).outcome == "finished"
    assert first not in cluster.run("squeue", "-h", "-a", "-t", "all", "-o", "%j").split()


@pytest.mark.asyncio
async def test_a_job_whose_node_is_lost_runs_again(site: BatchSite) -> None:
    """Slurm gives a node up that does not answer; what ran on it ends there, and begins again elsewhere."""
    job = await site.submit("sh", "-c", 'if [ "$GRIDWEAVE_ATTEMPT" = 1 ]; then sleep 600; fi', limit_ms=900_000)
    await site.until(site.running(job), "a running job")
    node = site.cluster.run("squeue", "-h", "-o", "%N").strip()
    number = int(node.removeprefix(site.cluster.name)) - 1
    site.cluster.kill_node(number)
    site.cluster.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    record = await site.over(job)
    assert (record.outcome, record.attempt) == ("finished", 2)
    site.cluster.start_node(number)
    await site.until(lambda: "idle" in site.cluster.run("sinfo", "-h", "-n", node, "-o", "%T"), "the node back")


@pytest.mark.asyncio
async def test_the_actor_of_such_a_site(actor: BatchSiteActor, cluster: SlurmCluster) -> None:
    """It takes jobs, runs them on the nodes of its cluster, and reads their output when the nodes are gone."""
    assert await actor.ready() == "site:two"
    # The rank that fails ends the other: it is the one whose output is read.
    script = 'echo hello; test "$GRIDWEAVE_RANK" = 0 && exec sleep 60; exit 4'
    request = JobRequest(program=Program(argv=("sh", "-c", script)), nodes=2, limit_ms=60_000)
    (answer,) = msgspec.msgpack.decode(await actor.submit(encode([("key", request)])), type=list[Accepted | Declined])
    async with asyncio.timeout(PATIENCE_S):
        while True:
            (record,) = msgspec.msgpack.decode(await actor.records([answer.job_id]), type=list[JobRecord])
            if record.state in OVER:
                break
            await asyncio.sleep(0.1)
    assert (record.outcome, len(record.machines)) == ("failed", 2)
    cluster.wait(lambda: not cluster.run("squeue", "-h", "-a"), "nodes that are given back")
    part = await actor.ask("part", question(answer.job_id, record.attempt, 1, "out", 0, 100))
    assert answer_of(part, msgspec.msgpack.Decoder(OutputRead)) == OutputRead(is_here=True, data=b"hello\n", size=6)
    status = answer_of(await actor.ask("status", question()), msgspec.msgpack.Decoder(SiteInfo))
    assert (status.policy, status.waiting, status.running) == ("slurm up to 100 waiting", 0, 0)
