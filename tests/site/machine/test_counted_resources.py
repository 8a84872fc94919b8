"""A job at a site that counts resources gets its own cores, memory and GPUs of the machine, and no others."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from gridweave.site.launch import Launch, Limits, Rank, RankResources
from gridweave.site.machine.agent import AgentDriver
from gridweave.site.machine.cgroups import CONFINING, ControlGroup, open_cgroups, unconfined
from gridweave.site.machine.environment import rank_environment
from gridweave.site.messages import ENCODER, REPORTS, RunEnded, StartRun
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Machine

THREADS = sorted(os.sched_getaffinity(0))


class Agent:
    """An agent of a machine with two nodes, each with one real core and two fake GPUs."""

    def __init__(self, machine: Machine, devices: dict[int, tuple[int, int]], cores: Sequence[Any] = ()) -> None:
        self.machine, self.ends = machine, asyncio.Queue[RunEnded]()
        self.driver = AgentDriver(
            "m0",
            machine.root,
            self.report,
            cores=cores,
            gpus=((0, 1), (2, 3)),
            gpu_devices=devices,
            nodes=2,
            environment=machine.environment,
        )

    async def report(self, data: bytes) -> None:
        """Keep the ends of jobs."""
        for report in REPORTS.decode(data):
            if isinstance(report, RunEnded):
                self.ends.put_nowait(report)

    async def run(self, *ranks: tuple[int, RankResources], argv: tuple[str, ...], **more: Any) -> RunEnded:
        """Run a job with these ranks, each given as its node on this machine and what it has there, to its end."""
        of_job = tuple(Rank(number, resources=resources) for number, (_, resources) in enumerate(ranks))
        launch = msgspec.structs.replace(self.machine.launch(*argv, **more), ranks=of_job)
        await self.driver.open()
        running = asyncio.ensure_future(self.driver.run())
        try:
            async with asyncio.timeout(PATIENCE_S):
                await self.driver.order(ENCODER.encode([StartRun("m0", launch, tuple(slot for slot, _ in ranks))]))
                return await self.ends.get()
        finally:
            running.cancel()
            await self.driver.close()


@pytest.fixture
def controllers() -> Iterator[dict[str, str]]:
    """Return the control groups for jobs of this process, or skip if cores and devices cannot be confined."""
    groups = open_cgroups("gridweave", controllers=("memory", *CONFINING)).paths
    if not {"memory", *CONFINING} <= groups.keys():
        pytest.skip("confinement is not tested: no version 1 control group for cpuset and devices may be made here")
    yield groups
    left = [name for group in groups.values() for name in os.listdir(group) if name.endswith("-1.0")]
    assert left == [], "the job's control groups are left"


@pytest.fixture
def fake_gpus(tmp_path: Path) -> dict[int, tuple[int, int]]:
    """Return the device numbers of GPUs 0 to 3, whose files behave like /dev/zero and others that can be opened."""
    numbers = dict(enumerate([(1, 5), (1, 7), (1, 8), (1, 9)]))
    for gpu, (major, minor) in numbers.items():
        try:
            os.mknod(tmp_path / f"gpu{gpu}", stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:
            pytest.skip("device files are not tested: only root can make them")
    return numbers


OPEN_ALL = """
import os, sys
for gpu in range(4):
    try:
        os.close(os.open(f"{sys.argv[1]}/gpu{gpu}", os.O_RDONLY))
        print(gpu)
    except PermissionError:
        pass
"""


@pytest.mark.asyncio
async def test_a_job_can_only_open_its_own_gpus(
    machine: Machine, tmp_path: Path, controllers: dict[str, str], fake_gpus: dict[int, tuple[int, int]]
) -> None:
    """A job on two nodes opens GPU 1 of the first and GPU 0 of the second, which are 1 and 2 on the machine."""
    agent = Agent(machine, fake_gpus)
    ranks = ((0, RankResources(cores=(0,), gpus=(1,))), (1, RankResources(cores=(0,), gpus=(0,))))
    ended = await agent.run(*ranks, argv=(*machine.python(OPEN_ALL), str(tmp_path)))
    assert ended.outcome == "finished", ended.reason
    assert machine.output(rank=0).split() == machine.output(rank=1).split() == ["1", "2"]
    os.close(os.open(tmp_path / "gpu0", os.O_RDONLY))  # other processes of the machine are not restricted


@pytest.mark.asyncio
async def test_a_job_without_gpus_opens_none(
    machine: Machine, tmp_path: Path, controllers: dict[str, str], fake_gpus: dict[int, tuple[int, int]]
) -> None:
    agent = Agent(machine, fake_gpus)
    ended = await agent.run((0, RankResources(cores=(0,))), argv=(*machine.python(OPEN_ALL), str(tmp_path)))
    assert (ended.outcome, machine.output()) == ("finished", "")


ESCAPE = """
import os
print(sorted(os.sched_getaffinity(0)))
try:
    os.sched_setaffinity(0, range(64))
except OSError:
    pass
print(sorted(os.sched_getaffinity(0)))
"""


@pytest.mark.asyncio
async def test_a_job_cannot_leave_its_cores(machine: Machine, controllers: dict[str, str]) -> None:
    """A job with the core of the second node asks the kernel for all processors, and gets no other."""
    if len(THREADS) < 2:
        pytest.skip("cores are not tested: this process may only use one processor")
    agent = Agent(machine, {}, cores=(((THREADS[0],),), ((THREADS[1],),)))
    ended = await agent.run((1, RankResources(cores=(0,))), argv=machine.python(ESCAPE))
    assert ended.outcome == "finished", ended.reason
    assert machine.output().splitlines() == [f"[{THREADS[1]}]"] * 2


@pytest.mark.asyncio
async def test_ranks_of_a_job_have_different_cores(machine: Machine) -> None:
    """Affinity alone binds them, wherever control groups are not available."""
    if len(THREADS) < 2:
        pytest.skip("cores are not tested: this process may only use one processor")
    agent = Agent(machine, {}, cores=(((THREADS[0],), (THREADS[1],)),))
    show = machine.python("import os; print(os.sched_getaffinity(0))")
    ended = await agent.run((0, RankResources(cores=(0,))), (0, RankResources(cores=(1,))), argv=show)
    assert ended.outcome == "finished", ended.reason
    assert [machine.output(rank=rank).strip() for rank in (0, 1)] == [f"{{{thread}}}" for thread in THREADS[:2]]


@pytest.mark.asyncio
async def test_memory_of_the_chunks_is_the_limit_of_the_job(machine: Machine, controllers: dict[str, str]) -> None:
    """Two chunks of 60 MB have 120 MB together; a job that uses more fails and says so."""
    ranks = ((0, RankResources(cores=(0,), memory_mb=60)), (1, RankResources(cores=(0,), memory_mb=60)))
    ended = await Agent(machine, {}).run(*ranks, argv=machine.python("b = bytearray(300 << 20)"))
    assert (ended.outcome, ended.reason.partition(":")[0]) == ("failed", "out of memory")
    assert f"all of its {120 * 10**6 >> 20} MiB" in ended.reason


def counted(agent: AgentDriver, launch: Launch, groups: dict[str, str]) -> Launch:
    """Return what the agent adds to a launch if these control groups are there."""
    return agent._counted(msgspec.structs.replace(launch, groups=groups))


def test_what_no_control_group_enforces_is_left_out(machine: Machine) -> None:
    agent = Agent(machine, {0: (195, 0), 1: (195, 1)}).driver
    resources = RankResources(cores=(0,), memory_mb=100, devices=(1,))
    launch = machine.launch("true")
    launch = msgspec.structs.replace(launch, ranks=(Rank(0, threads=(4, 5), resources=resources),))
    assert counted(agent, launch, {}).limits == Limits()
    assert counted(agent, launch, {"memory": "/m", "cpuset": "/s", "cpu": "/c"}).limits == Limits(memory_bytes=10**8)
    assert counted(agent, launch, {"cpu": "/c"}).limits == Limits(cpus=2)
    assert counted(agent, launch, {}).denied == ((195, 0),)
    # The site's own limits stay, where they are lower.
    strict = msgspec.structs.replace(launch, limits=Limits(memory_bytes=10**7, cpus=0.5, processes=9))
    assert counted(agent, strict, {"memory": "/m", "cpu": "/c"}).limits == strict.limits


def test_version_2_confines_to_cores_and_leaves_devices_alone(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").touch()
    ControlGroup({"cpuset": tmp_path, "unified": tmp_path}).confine({3, 1}, [(195, 0)])
    assert (tmp_path / "cpuset.cpus").read_text() == "1,3"
    assert not (tmp_path / "devices.deny").exists()


def variables(rank: Rank, **of_job: str) -> dict[str, str]:
    launch = Launch(job_id=1, attempt=1, ranks=(rank,), argv=("true",), environment=of_job)
    return rank_environment(launch, Path("/x"), rank, 0, "token", {"NVIDIA_VISIBLE_DEVICES": "all"})


def test_the_variables_name_what_a_rank_has() -> None:
    rank = Rank(0, resources=RankResources(cores=(2, 3), gpus=(0, 1), memory_mb=500, devices=(4, 5)))
    assert (
        variables(rank).items()
        >= {
            "GRIDWEAVE_CORES": "2,3",
            "GRIDWEAVE_GPUS": "0,1",
            "GRIDWEAVE_MEMORY_MB": "500",
            "OMP_NUM_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "4,5",
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "ROCR_VISIBLE_DEVICES": "4,5",
            "NVIDIA_VISIBLE_DEVICES": "4,5",
        }.items()
    )


def test_a_users_own_variables_show_no_gpu_of_others() -> None:
    """Neither a list of GPUs of their own nor another order of the GPUs counts; the number of threads is theirs."""
    others = {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "CUDA_DEVICE_ORDER": "FASTEST_FIRST", "ROCR_VISIBLE_DEVICES": "0"}
    without = variables(Rank(0, resources=RankResources(cores=(0,))), **others, OMP_NUM_THREADS="7")
    assert {name: without[name] for name in others} == {
        "CUDA_VISIBLE_DEVICES": "",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "ROCR_VISIBLE_DEVICES": "",
    }
    assert without["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert without["OMP_NUM_THREADS"] == "7"
    assert without["GRIDWEAVE_MEMORY_MB"] == ""


def test_whole_nodes_leave_the_variables_alone() -> None:
    plain = variables(Rank(0), CUDA_VISIBLE_DEVICES="1")
    assert plain["CUDA_VISIBLE_DEVICES"] == "1"
    assert plain["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert "GRIDWEAVE_CORES" not in plain
    assert "OMP_NUM_THREADS" not in plain


@pytest.mark.parametrize(
    ("groups", "cores", "gpus", "missing"),
    [
        ({}, True, True, "memory, cpuset, devices"),
        ({"memory": "/m"}, False, False, None),
        ({"memory": "/m", "cpuset": "/c"}, True, True, "devices"),
        ({"cpuset": "/c"}, True, False, "memory"),
    ],
)
def test_a_machine_names_what_it_does_not_enforce(
    groups: dict[str, str], cores: bool, gpus: bool, missing: str | None
) -> None:
    warning = unconfined(groups, cores=cores, gpus=gpus)
    assert warning is None if missing is None else f"control group for {missing};" in (warning or "")
