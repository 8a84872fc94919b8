"""Control groups: what is written where, and that limits of a job end that job."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from gridweave.site.launch import Launch, Limits, MachineRules, Rank
from gridweave.site.machine.cgroups import Cgroups, ControlGroup, around_of, missing_groups, mounted, open_cgroups
from gridweave.site.machine.output import RankOutput
from gridweave.site.machine.supervisor import CLOSED, RankProcess, Supervisor

if TYPE_CHECKING:
    from conftest import Machine

ALL = Limits(memory_bytes=64 << 20, cpus=0.5, processes=20)


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    """Return the control groups of this machine, or skip."""
    found = open_cgroups(f"gridweave-test-{uuid.uuid4().hex[:8]}")
    if "memory" not in found.paths or "pids" not in found.paths:
        found.parent.remove()
        pytest.skip("limits are not tested: no control group for memory and processes may be made here")
    yield found
    assert found.parent.remove()


def test_version_2_is_written_as_the_kernel_wants_it(tmp_path: Path) -> None:
    """Limits of version 2 are in its own files and units; None lifts them."""
    (tmp_path / "cgroup.controllers").touch()
    group = ControlGroup(dict.fromkeys(("memory", "cpu", "pids", "unified"), tmp_path))
    group.limit(ALL)
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "cpu.max", "pids.max")
    assert [(tmp_path / name).read_text() for name in names] == [str(64 << 20), "0", "1", "50000 100000", "20"]
    group.limit(Limits())
    assert [(tmp_path / name).read_text() for name in ("memory.max", "cpu.max", "pids.max")] == [
        "max",
        "max 100000",
        "max",
    ]
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\n")
    assert group.oom_kills() == 2


def test_both_versions_are_found(tmp_path: Path) -> None:
    """What version 2 lacks is taken from version 1, each below the group that this process is in."""
    (tmp_path / "cgroup").write_text("4:memory:/a\n3:cpu,cpuacct:/\n0::/b\n")
    unified = tmp_path / "unified"
    (unified / "b").mkdir(parents=True)
    (unified / "b" / "cgroup.controllers").write_text("pids io\n")
    mounts = [f"1 1 0:1 / {unified} rw - cgroup2 cgroup2 rw", "2 1 0:2 / /v1/memory rw - cgroup cgroup rw,memory"]
    mounts.append("3 1 0:3 / /v1/cpu rw - cgroup cgroup rw,cpu,cpuacct")
    (tmp_path / "mountinfo").write_text("\n".join(mounts))
    assert mounted(str(tmp_path)) == {
        "unified": (unified / "b", True),
        "pids": (unified / "b", True),
        "memory": (Path("/v1/memory/a"), False),
        "cpu": (Path("/v1/cpu"), False),
    }


def test_groups_that_cannot_be_found(tmp_path: Path) -> None:
    """A mount of any name is passed over, and what the kernel does not tell, or tells otherwise, is no group."""
    assert around_of("memory", str(tmp_path)) == {}
    (tmp_path / "cgroup").write_bytes(b"4:memory:/\xe9\n")
    mount = b"1 1 0:1 / /mnt/\xe9 rw - ext4 /dev/\xe9 rw\n2 1 0:2 / /v1/memory rw - cgroup cgroup rw,memory\n"
    (tmp_path / "mountinfo").write_bytes(mount)
    assert around_of("memory", str(tmp_path)) == {"memory": Path("/v1/memory", os.fsdecode(b"\xe9"))}
    (tmp_path / "mountinfo").write_bytes(b"1 1 - cgroup\n")
    assert around_of("memory", str(tmp_path)) == {}


@pytest.mark.parametrize(("status", "is_told"), [(9, True), (137 << 8, True), (1 << 8, False), (15, False)])
def test_whose_end_is_one_for_want_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, is_told: bool
) -> None:
    """When others around the job are killed for it: that of a rank that was killed too, or whose command was."""
    (tmp_path / "cgroup.controllers").touch()
    (tmp_path / "memory.events").write_text("oom_kill 2\n")
    monkeypatch.setattr("gridweave.site.machine.supervisor.around_of", lambda _: {"memory": tmp_path})
    launch = Launch(job_id=1, attempt=1, ranks=(Rank(0),), argv=("true",))
    shim = Supervisor(tmp_path, launch, {})
    rank = RankProcess(0, 1, 1, CLOSED, RankOutput(tmp_path, 0, 1000, lambda _: None))
    rank.status = status
    assert "out of memory" not in shim._why(rank)
    (tmp_path / "memory.events").write_text("oom_kill 3\n")
    assert ("out of memory: the jobs on this machine" in shim._why(rank)) == is_told


def test_a_group_is_paused_killed_and_removed(groups: Cgroups) -> None:
    """A paused group holds still, and is killed all the same."""
    group = groups.make("1.0", ALL)
    with subprocess.Popen(["sleep", "1000"]) as process:
        group.add(process.pid)
        assert group.pids() == [process.pid]
        group.freeze(frozen=True)
        group.kill()
        assert process.wait() == -9
    assert group.remove()


@pytest.mark.asyncio
async def test_memory_ends_a_job_of_the_service_itself(machine: Machine, groups: Cgroups) -> None:
    """Under `self`, too, a job over its memory ends with that reason, and its group goes."""
    launch = machine.launch(*machine.python("b = bytearray(300 << 20)"), limits=ALL, groups=groups.paths)
    ended = await machine.run(launch)
    assert (ended.outcome, ended.reason.partition(":")[0]) == ("failed", "out of memory")
    assert not [name for name in os.listdir(groups.paths["memory"]) if name.endswith("-1.0")]


def test_limits_that_cannot_hold_are_told() -> None:
    """A machine without the control group says so in one line."""
    launch = Launch(job_id=1, attempt=0, ranks=(Rank(0),), argv=("true",), limits=ALL, groups={"cpu": "/x"})
    assert "no usable control group for memory, pids" in (missing_groups(launch) or "")
    assert missing_groups(msgspec.structs.replace(launch, limits=None)) is None


def test_the_owner_is_asked_for_by_name() -> None:
    """Jobs of others are refused by a machine of one owner; those of nobody known are the owner's."""
    rules = MachineRules(owner="anna")
    assert rules.refusal("anna") is None
    assert rules.refusal("") is None
    assert "only runs jobs of 'anna'" in (rules.refusal("bert") or "")
