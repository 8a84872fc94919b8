"""A site whose jobs evict others, as actors on Ray, which is killed while an evicted job saves what it has done.

The drill with many evictions, which takes some seconds for each:
``GRIDWEAVE_EVICTIONS=100 pytest -s -o timeout=0 -o faulthandler_timeout=0 tests/grid/service/test_ray_evictions.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import JobRecord, JobRequest, Program
from gridweave.site.journal.reader import JournalReader
from gridweave.site.messages import LiveSiteEvent, SiteMessage
from gridweave.site.resources.chunks import NodeKind
from support.machine import PATIENCE_S, until

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROUNDS = int(os.environ.get("GRIDWEAVE_EVICTIONS", "2"))

# The machine is a folder that only one job can make. At its signal a job says so, takes its time, and leaves.
WORK = """
say() { echo "$1 $GRIDWEAVE_JOB_ID $GRIDWEAVE_TRY" >> "$0/story"; }
mkdir "$0/machine" || say clash
leave() { say told; sleep 0.4; rmdir "$0/machine"; say saved; exit 0; }
trap leave USR1
say began
if [ "$GRIDWEAVE_TRY" = 1 ]; then sleep "$1" & wait; else sleep 0.1; fi
rmdir "$0/machine"
say done
"""

POLICY = HeterogeneousPolicy(
    nodes=1,
    classes=(NodeKind(name="plain", count=1),),
    levels=(Level(name="high", priority=1, evicts=("low",)), Level(name="low", priority=0)),
)


def test_a_site_that_is_killed_amid_evictions_loses_nothing(ray_cluster: None, tmp_path: Path) -> None:
    """Each low job is told to leave once, the high one follows, and it ends in its second try, as its story says."""
    from gridweave.grid.service.cluster import GridPlan, SitePlan, start_grid

    site = SitePlan(name="north", nodes=1, policy=POLICY)
    policy, folder = GridPolicy(mode="sharing", control="none"), str(tmp_path / "grid")
    plan = GridPlan(folder=folder, sites=(site,), policy=policy, namespace=tmp_path.name, labelled=False)
    told = tmp_path / "story"
    told.touch()
    grid = start_grid(plan, timeout_s=PATIENCE_S)

    def said(what: str, job_id: int) -> int:
        return sum(line.startswith(f"{what} {job_id} ") for line in told.read_text().splitlines())

    def submitted(name: str, priority: float, sleep_s: float) -> int:
        argv = "sh", "-c", WORK, str(tmp_path), str(sleep_s)
        program = Program(argv=argv, checkpoint_signal="USR1", grace_ms=300_000)
        request = JobRequest(program=program, limit_ms=7_200_000, priority=priority)
        (answer,) = until(lambda: grid.submit([(name, request)], site="north"))
        return int(answer.job_id)

    def wait_until(what: str, job_id: int) -> None:
        until(lambda: said(what, job_id), PATIENCE_S)

    def end_of(job_id: int) -> JobRecord:
        found: JobRecord = until(lambda: ended(job_id), PATIENCE_S)
        return found

    def ended(job_id: int) -> JobRecord | None:
        with contextlib.suppress(UnavailableError):
            return next((one for one in grid.records([job_id], site="north") if one.state == "ended"), None)
        return None

    jobs: list[tuple[int, int]] = []
    try:
        for number in range(ROUNDS):
            low = submitted(f"low {number}", 0, 100_000)
            wait_until("began", low)
            high = submitted(f"high {number}", 1, 0.1)
            wait_until("told", low)
            os.kill(grid.call("site:north", "process", timeout_s=PATIENCE_S), signal.SIGKILL)
            records = [end_of(job_id) for job_id in (low, high)]
            assert [(one.outcome, one.starts) for one in records] == [("finished", 2), ("finished", 1)]
            jobs.append((low, high))
    finally:
        grid.stop()
    journal = tmp_path / "grid" / "north" / "site.journal"
    with JournalReader(journal, event_type=LiveSiteEvent, message_type=SiteMessage) as read:
        for low, high in jobs:
            assert [said(what, low) for what in ("began", "told", "saved", "done", "clash")] == [2, 1, 1, 1, 0]
            assert [said(what, high) for what in ("began", "told", "saved", "done", "clash")] == [1, 0, 0, 1, 0]
            kinds = [note.kind for note in read.history(low)]
            assert [kinds.count(kind) for kind in ("evicted", "retried", "starting", "runs")] == [1, 1, 2, 2]
    print(f"{len(jobs)} evictions, the site killed amid each: no job lost, none run twice at once")
