"""How long a site on a batch system keeps output: by age and by size for each user, and it says what it removed."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from gridweave.site.launch import Launch, NodeTaskState, OutputLimits, Rank
from gridweave.site.machine.folders import LAUNCH, task_folder, write_state, write_whole
from gridweave.site.machine.kept import DAY_MS
from gridweave.site.messages import ENCODER
from gridweave.slurm.service.folder import NODES, Owner, SharedFolder, remove_left
from gridweave.slurm.service.retention import KeptOutput

NOW_MS = 1_000 * DAY_MS
ME = pwd.getpwuid(os.geteuid()).pw_name
LARGE = 100_000
LIMITS = OutputLimits(days=90, bytes_per_user=250_000)


@pytest.fixture
def shared(tmp_path: Path) -> SharedFolder:
    """Return the folder of a site."""
    return SharedFolder(tmp_path / "shared", "x")


@pytest.fixture
def output(shared: SharedFolder) -> Iterator[KeptOutput]:
    """Return the output of the site's jobs: of each user two large ones fit."""
    output = KeptOutput(shared, LIMITS)
    yield output
    output.close()


def ran(
    shared: SharedFolder, job: int, user: str = "anna", *, name: str = "", size: int = LARGE, ended_ms: int = NOW_MS
) -> None:
    """Leave what a job leaves that ran on a node of an allocation: of its own, if no other is named."""
    name = name or f"{shared.prefix}{job}-1"
    folder = task_folder(shared.node(name, 0), (job, 1))
    folder.mkdir(parents=True)
    launch = Launch(job_id=job, attempt=1, ranks=(Rank(0),), argv=("true",), user=user)
    write_whole(folder / LAUNCH, ENCODER.encode(launch))
    write_state(
        folder, NodeTaskState(job_id=job, attempt=1, phase="ended", boot_id="", started_ms=1, ended_ms=ended_ms)
    )
    (folder / "rank-0.out").write_bytes(b"x" * size)
    shared.log(name).write_text("said")


def readable(output: KeptOutput, *jobs: int) -> list[int]:
    """Return of which jobs the output is there."""
    return [job for job in jobs if output.read(job, 1, 0, "out", 0, 10).is_here]


def test_a_user_who_floods_loses_only_their_own_oldest_output(shared: SharedFolder, output: KeptOutput) -> None:
    """It is said when and why it went; its nodes go, with what their scripts have printed."""
    ran(shared, 1, "bert", ended_ms=NOW_MS - 9)
    for job in range(2, 6):
        ran(shared, job, ended_ms=NOW_MS + job - 9)
    assert output.tidy(shared.left(), (), NOW_MS) == {}
    assert readable(output, 1, 2, 3, 4, 5) == [1, 4, 5]
    removal = output.read(2, 1, 0, "out", 0, 10).removal
    assert removal is not None
    assert removal.at_ms == NOW_MS
    assert "exceeded 250,000 bytes in the folder of the site (output_bytes)" in removal.reason
    assert sorted(node.name for node in shared.left().nodes) == [f"gw-x-{job}-1.0" for job in (1, 4, 5)]
    assert sorted(path.stem for path in shared.path.glob("*.log")) == [f"gw-x-{job}-1" for job in (1, 4, 5)]


def test_small_output_stays_however_many_jobs_there_were(shared: SharedFolder, output: KeptOutput) -> None:
    """The number of nodes is no reason to remove any."""
    output = KeptOutput(shared, OutputLimits())
    for job in range(1, 1_102):
        ran(shared, job, size=1)
    output.tidy(shared.left(), (), NOW_MS)
    assert len(shared.left().nodes) == 1_101
    output.close()


def test_output_goes_when_it_is_too_old(shared: SharedFolder, output: KeptOutput) -> None:
    """After 90 days, not before; a later process of the site knows it."""
    ran(shared, 1)
    output.tidy(shared.left(), (), NOW_MS + 90 * DAY_MS)
    assert readable(output, 1) == [1]
    output.tidy(shared.left(), (), NOW_MS + 90 * DAY_MS + 1)
    output.close()
    removal = KeptOutput(shared, LIMITS).read(1, 1, 0, "out", 0, 10).removal
    assert removal is not None
    assert removal.reason == "the job ended more than 90 days earlier (output_days)"


def test_nothing_goes_from_allocations_that_are_there(shared: SharedFolder, output: KeptOutput) -> None:
    """Not from a pilot that runs, and no part of a job that also ran in one that is over."""
    running, over = f"{shared.prefix}0-1", f"{shared.prefix}0-2"
    for job in range(1, 6):
        ran(shared, job, name=running)
    for job in (1, 6, 7, 8):
        ran(shared, job, name=over)
    output.tidy(shared.left(), {running}, NOW_MS)
    assert readable(output, *range(1, 9)) == [1, 2, 3, 4, 5, 7, 8]
    assert task_folder(shared.node(over, 0), (1, 1)).exists()
    output.tidy(shared.left(), (), NOW_MS)
    assert readable(output, *range(1, 9)) == [7, 8]


def test_a_node_that_is_not_listed_stays(shared: SharedFolder, output: KeptOutput) -> None:
    """It has come since it was asked which allocations are wanted."""
    left = shared.left()
    shared.node(f"{shared.prefix}1-1", 0).mkdir(parents=True)
    output.tidy(left, (), NOW_MS)
    assert len(shared.left().nodes) == 1
    output.tidy(shared.left(), (), NOW_MS)
    assert not shared.left().nodes


def test_what_a_users_account_has_its_next_node_removes(shared: SharedFolder, output: KeptOutput) -> None:
    """The site says that it was removed; whose it is follows from its own notes, not from the user's files."""
    for job in range(1, 4):
        shared.note(f"{shared.prefix}{job}-1", Owner("anna", ME))
        shared.base(ME).mkdir(exist_ok=True)
        ran(shared, job, "bert", ended_ms=NOW_MS + job - 9)
    ran(shared, 4, "bert")
    told = output.tidy(shared.left(), (), NOW_MS)
    assert told == {ME: (f"{NODES}/gw-x-1-1.0",)}
    assert readable(output, 1, 2, 3, 4) == [2, 3, 4]
    assert output.tidy(shared.left(), (), NOW_MS) == told, "until it has done so"
    remove_left(shared.base(ME), told[ME])
    assert output.tidy(shared.left(), (), NOW_MS) == {}
    assert sorted(path.name for path in (shared.path / "owners").iterdir()) == ["gw-x-2-1", "gw-x-3-1"]
    assert sorted(path.stem for path in shared.base(ME).glob("*.log")) == ["gw-x-2-1", "gw-x-3-1"]


def test_folders_that_a_user_made_cost_nobody_else_anything(shared: SharedFolder, output: KeptOutput) -> None:
    """Neither parts of others' jobs, nor nodes of others, nor links are taken for output of that account."""
    shared.note(f"{shared.prefix}1-1", Owner("anna", ME))
    shared.base(ME).mkdir()
    ran(shared, 1)
    nodes = shared.base(ME) / NODES
    task_folder(nodes / "gw-x-1-1.0", (2, 1)).mkdir()
    task_folder(nodes / "gw-x-1-1.0", (1, 2)).symlink_to("/")
    task_folder(nodes / "gw-x-2-1.0", (2, 1)).mkdir(parents=True)
    (nodes / "gw-x-1-1.1").symlink_to("/")
    (nodes / "gw-x-1-1.2").mkdir()
    (nodes / "gw-x-1-1.2" / "jobs").symlink_to(nodes / "gw-x-1-1.0" / "jobs")
    left = shared.left()
    assert [shared.keys_of(node) for node in sorted(left.nodes)] == [((1, 1),), ()]
    ran(shared, 2, "bert", ended_ms=NOW_MS - DAY_MS)
    output.tidy(shared.left(), (), NOW_MS)
    assert readable(output, 1, 2) == [1, 2]


def test_notes_stay_whose_nodes_cannot_be_looked_for(shared: SharedFolder, output: KeptOutput) -> None:
    """Without them nobody could read that output any more, nor would it be its user's."""
    shared.note(f"{shared.prefix}1-1", Owner("anna", ME))
    shared.note(f"{shared.prefix}2-1", Owner("bert", ME))
    shared.base(ME).mkdir()
    (shared.base(ME) / NODES).symlink_to(NODES)  # it leads to itself, so that even root cannot open it
    (shared.path / "owners" / f"{shared.prefix}2-1").write_bytes(b"damaged")
    output.tidy(shared.left(), (), NOW_MS)
    assert sorted(path.name for path in (shared.path / "owners").iterdir()) == ["gw-x-1-1", "gw-x-2-1"]


def test_what_an_earlier_journal_has_left_goes_by_its_age_alone(shared: SharedFolder, output: KeptOutput) -> None:
    """No job of this one has its number, so nobody can ask for it."""
    earlier = SharedFolder(shared.path, "y")
    for job, age_days in ((1, 91), (2, 89)):
        ran(earlier, job)
        changed_s = (NOW_MS - age_days * DAY_MS) / 1000
        os.utime(earlier.node(f"gw-y-{job}-1", 0), (changed_s, changed_s))
    output.tidy(shared.left(), (), NOW_MS)
    assert [node.name for node in shared.left().nodes] == ["gw-y-2-1.0"]


def test_registers_are_closed_to_others(shared: SharedFolder, output: KeptOutput) -> None:
    """Names of users are in them."""
    ran(shared, 1)
    output.tidy(shared.left(), (), NOW_MS)
    folder = shared.path / "kept"
    assert {path.stat().st_mode & 0o077 for path in (folder, *folder.rglob("*"))} == {0}
