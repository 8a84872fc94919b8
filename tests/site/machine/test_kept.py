"""How long a machine keeps the folders of ended pieces: by age and by size for each user."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridweave.site.launch import OutputLimits, Removal
from gridweave.site.machine import kept
from gridweave.site.machine.folders import remove_folder, task_folder
from gridweave.site.machine.kept import DAY_MS, KEPT, KeptNodeTask, KeptNodeTasks, UserUse, excess, folder_bytes
from gridweave.site.machine.runner import Runner
from support.machine import PATIENCE_S

if TYPE_CHECKING:
    from conftest import Machine

NOW_MS = 1_000 * DAY_MS


def node_task(job_id: int, user: str = "anna", size_bytes: int = 10, ended_ms: int = NOW_MS) -> KeptNodeTask:
    """Return an ended piece."""
    return KeptNodeTask((job_id, 1), user, ended_ms, size_bytes)


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(0, 500))
def test_only_the_oldest_go_until_the_rest_fits(sizes: list[int], limit: int) -> None:
    """What stays fits, or is the newest piece alone; and one piece less would not have been enough."""
    pieces = [node_task(number, size_bytes=size) for number, size in enumerate(sizes)]
    gone = excess(pieces, UserUse(len(pieces), sum(sizes)), limit)
    assert gone == pieces[: len(gone)]
    assert sum(sizes[len(gone) :]) <= limit or len(gone) >= len(sizes) - 1
    assert not gone or sum(sizes[len(gone) - 1 :]) > limit


@pytest.fixture
def register(tmp_path: Path) -> Iterator[KeptNodeTasks]:
    """Return a register with room for 1,000 bytes of each user."""
    register = KeptNodeTasks(tmp_path, OutputLimits(days=90, bytes_per_user=1_000))
    yield register
    register.close()


def test_closing_waits_for_a_registration(tmp_path: Path) -> None:
    """What is being registered is kept; later registrations are errors, and the register opens again."""
    register = KeptNodeTasks(tmp_path, OutputLimits())
    closer = threading.Thread(target=register.close)

    def pieces() -> Iterator[KeptNodeTask]:
        yield node_task(1)
        closer.start()
        yield node_task(2)

    assert register.register(pieces(), NOW_MS) == []
    closer.join(PATIENCE_S)
    with pytest.raises(OSError, match="closed"):
        register.register([node_task(3)], NOW_MS)
    again = KeptNodeTasks(tmp_path, OutputLimits())
    assert again.registered() == {(1, 1), (2, 1)}
    again.close()


def test_a_user_who_floods_loses_only_their_own_oldest_output(register: KeptNodeTasks) -> None:
    """20,000 jobs of ten users: nine of them lose nothing, and of the tenth the newest 1,000 bytes are kept."""
    owners = {job: f"user{job % 10}" if job % 250 < 10 and job % 10 else "flood" for job in range(20_000)}
    for first in range(0, 20_000, 100):
        jobs = range(first, first + 100)
        register.register([node_task(job, owners[job], 10, NOW_MS + job) for job in jobs], NOW_MS)
    left = {key[0] for key in register.registered()}
    modest = {job for job, owner in owners.items() if owner != "flood"}
    flood = sorted(set(owners) - modest)
    assert left == modest | set(flood[-100:])
    removal = register.removal((flood[0], 1))
    assert removal is not None
    assert "exceeded 1,000 bytes on the machine (output_bytes)" in removal.reason
    assert all(register.removal((job, 1)) is None for job in left)


def test_output_goes_when_it_is_too_old(register: KeptNodeTasks) -> None:
    """After 90 days, not before, whether anything new has ended or not."""
    register.register([node_task(1, ended_ms=NOW_MS), node_task(2, ended_ms=NOW_MS + DAY_MS)], NOW_MS)
    assert register.register([], NOW_MS + 90 * DAY_MS) == []
    assert register.register([], NOW_MS + 90 * DAY_MS + 1) == [(1, 1)]
    reason = "the job ended more than 90 days earlier (output_days)"
    assert register.removal((1, 1)) == Removal(NOW_MS + 90 * DAY_MS + 1, reason)
    assert register.registered() == {(2, 1)}


def test_a_piece_that_is_registered_twice_counts_once(register: KeptNodeTasks) -> None:
    """An end that is reported again after a failure does not cost its user room."""
    for _ in range(3):
        assert register.register([node_task(1, size_bytes=600)], NOW_MS) == []
    assert register.register([node_task(2, size_bytes=400)], NOW_MS) == []


def test_what_was_kept_and_removed_is_known_after_a_restart(tmp_path: Path) -> None:
    """Sizes, ages and removals are on the disk."""
    limits = OutputLimits(bytes_per_user=1_000)
    first = KeptNodeTasks(tmp_path, limits)
    first.register([node_task(1, size_bytes=700, ended_ms=NOW_MS - 1), node_task(2, size_bytes=700)], NOW_MS)
    first.close()
    again = KeptNodeTasks(tmp_path, limits)
    assert again.registered() == {(2, 1)}
    assert again.removal((1, 1)) is not None
    assert again.register([node_task(3, size_bytes=700, ended_ms=NOW_MS + 1)], NOW_MS) == [(2, 1)]
    again.close()


def test_the_register_is_closed_to_others(register: KeptNodeTasks, tmp_path: Path) -> None:
    """So are the files that the database has beside it: names of users are in them."""
    register.register([node_task(1)], NOW_MS)
    files = list(tmp_path.glob(f"{KEPT}*"))
    assert {path.name for path in files} >= {KEPT, f"{KEPT}-wal"}
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}


def test_old_removals_are_forgotten(register: KeptNodeTasks, monkeypatch: pytest.MonkeyPatch) -> None:
    """The register stays small, however many jobs there were."""
    monkeypatch.setattr(kept, "MOST_REMOVALS", 2)
    for job_id in range(5):
        register.register([node_task(job_id, size_bytes=700, ended_ms=NOW_MS + job_id)], NOW_MS + job_id)
    assert [job_id for job_id in range(5) if register.removal((job_id, 1))] == [2, 3]


def test_a_damaged_register_is_begun_again(tmp_path: Path) -> None:
    """It is put aside; what lies on the disk is reported and registered once more."""
    (tmp_path / KEPT).write_bytes(b"no database" * 1_000)
    register = KeptNodeTasks(tmp_path, OutputLimits())
    assert register.register([node_task(1)], NOW_MS) == []
    register.close()
    assert (tmp_path / f"{KEPT}.damaged").exists()


def test_a_register_that_cannot_be_written_counts_what_it_has(
    register: KeptNodeTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk nothing is registered and nothing removed; later all of it is."""
    register.register([node_task(1, size_bytes=600)], NOW_MS)

    def full(now_ms: int) -> dict[tuple[int, int], str]:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(register, "_too_old", full)
        with pytest.raises(OSError, match="disk is full"):
            register.register([node_task(2, size_bytes=600, ended_ms=NOW_MS + 1)], NOW_MS)
    assert register.registered() == {(1, 1)}
    assert register.register([node_task(2, size_bytes=300, ended_ms=NOW_MS + 1)], NOW_MS) == []


def test_each_file_counts_as_a_block_at_least(tmp_path: Path) -> None:
    """So the number of files is bounded as well; links are not followed."""
    (tmp_path / "one").mkdir()
    for number in range(10):
        (tmp_path / "one" / str(number)).touch()
    (tmp_path / "root").symlink_to("/")
    small, is_whole = folder_bytes(tmp_path)
    assert is_whole
    assert 4_096 * 13 <= small < 4_096 * 20
    (tmp_path / "large").write_bytes(b"x" * 100_000)
    assert folder_bytes(tmp_path)[0] >= small + 100_000


def test_what_cannot_be_looked_into_counts_by_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that a user has closed to the service; the rest is counted."""
    (tmp_path / "closed").mkdir()
    (tmp_path / "closed" / "large").write_bytes(b"x" * 1_000_000)
    (tmp_path / "open").write_bytes(b"x" * 100_000)
    look = os.scandir

    def refused(path: str) -> object:
        if path.endswith("/closed"):  # root may look into any
            raise PermissionError(path)
        return look(path)

    monkeypatch.setattr(os, "scandir", refused)
    size_bytes, is_whole = folder_bytes(tmp_path)
    assert (100_000 <= size_bytes < 200_000, is_whole) == (True, False)


@pytest.mark.parametrize("mode", [0o000, 0o400, 0o100, 0o300])
def test_folders_that_a_user_has_closed_are_counted_and_removed(mode: int) -> None:
    """The service runs as that user, and opens them first; what a link leads to stays as it is."""
    place = Path(tempfile.mkdtemp())
    kept, inner = place / "kept", place / "piece" / "closed" / "inner"
    inner.mkdir(parents=True)
    kept.mkdir(mode=0o500)
    (inner / "large").write_bytes(b"x" * 1_000_000)
    (inner / "link").symlink_to(kept)
    inner.chmod(mode)
    inner.parent.chmod(mode)
    if os.getuid() == 0:  # whom no mode stops
        for path in (place, kept, place / "piece", inner.parent, inner):
            os.chown(path, NOBODY, NOBODY)
    found = place / "found"
    child = os.fork()
    if not child:
        os.setresgid(*[NOBODY] * 3) if os.getuid() == 0 else None
        os.setresuid(*[NOBODY] * 3) if os.getuid() == 0 else None
        size_bytes, is_whole = folder_bytes(place / "piece")
        found.write_text(f"{size_bytes >= 1_000_000} {is_whole}")
        remove_folder(place / "piece")
        os._exit(0)
    os.waitpid(child, 0)
    assert found.read_text() == "True True"
    assert not (place / "piece").exists()
    assert stat.S_IMODE(kept.stat().st_mode) == 0o500
    shutil.rmtree(place)


NOBODY = 65_534


async def removed(runner: Runner, job_id: int) -> Removal:
    """Wait until a piece was removed."""
    async with asyncio.timeout(PATIENCE_S):
        while (removal := runner.removal(job_id, 0)) is None or task_folder(runner.root, (job_id, 0)).exists():
            await asyncio.sleep(0.01)
    return removal


@pytest.mark.asyncio
async def test_a_released_piece_is_kept_as_long_as_the_limits_allow(machine: Machine) -> None:
    """The newest of each user stays; a later runner reports no end again, and a late order starts nothing."""
    limits = OutputLimits(bytes_per_user=1)
    async with Runner(machine.root, machine.environment, output=limits) as runner:
        for job_id, user in ((1, "anna"), (2, "anna"), (3, "bert")):
            await runner.start(machine.launch("echo", "said", job_id=job_id, user=user))
            await machine.ended(runner, job_id)
            runner.release(job_id, 0)
        await removed(runner, 1)
        assert machine.output(2) == machine.output(3) == "said\n"
        async with asyncio.timeout(PATIENCE_S):
            while runner.task_keys():
                await asyncio.sleep(0.01)
    async with Runner(machine.root, machine.environment, output=limits) as runner:
        assert await runner.adopt() == ()
        assert runner.task_keys() == ()
        await runner.start(machine.launch("echo", "again", job_id=1, user="anna"))
        ended = await machine.ended(runner, 1)
        assert (ended.outcome, ended.started_ms) == ("lost", None)
        assert not task_folder(runner.root, (1, 0)).exists()
        await runner.report_again(2, 0)
        assert (await machine.ended(runner, 2)).outcome == "finished"


@pytest.mark.asyncio
async def test_a_piece_whose_end_was_not_recorded_is_never_removed(machine: Machine) -> None:
    """What the site does not know yet is reported by the next runner, however little room there is."""
    limits = OutputLimits(bytes_per_user=1)
    for job_id in (1, 2):
        async with Runner(machine.root, machine.environment, output=limits) as runner:
            await runner.start(machine.launch("true", job_id=job_id))
            await machine.ended(runner, job_id)
    async with Runner(machine.root, machine.environment, output=limits) as runner:
        await runner.adopt()
        for job_id in (1, 2):
            assert (await machine.ended(runner, job_id)).outcome == "finished"
