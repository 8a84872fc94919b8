"""Whatever users want, and whomever sites take: no job is lost, and no node, and nothing wakes the grid forever."""

from __future__ import annotations

from collections import defaultdict
from functools import partial
from typing import Any

import numpy as np
import pytest

from gridweave.grid.messages import (
    FromSite,
    GridJobCancelled,
    GridJobExclusions,
    GridJobHeld,
    GridJobReleased,
    GridJobSubmitted,
    ReportDone,
    ReportHeld,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    CommitNodes,
    DrainSite,
    FragmentsMet,
    JobFinished,
    JobSubmitted,
    KillJob,
    ResumeSite,
    SiteRestarted,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.contract import ContractCore
from gridweave.site.state import dump_state, read_state
from support.checks import differences

RETRY_MS, LEASE_MS, MARGIN_MS = 1_000, 5_000, 100
MOST_INSTANTS = 2_000

WHAT_HAPPENS = {"submit": 0.3, "bar": 0.15, "hold": 0.1, "release": 0.1, "cancel": 0.05, "site": 0.15, "": 0.15}


class Grid:
    """A meta-scheduler and its sites, between which messages take some time, and whose users want anything."""

    def __init__(self, seed: int, **policy: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes = self.rng.integers(1, 7, self.rng.integers(1, 5)).tolist()
        times = {"margin_ms": MARGIN_MS, "retry_ms": RETRY_MS, "lease_ms": LEASE_MS}
        self._new_core = partial(MetaCore, self.nodes, GridPolicy(**policy), **times)
        self.core = self._new_core()
        self.sites = [ContractCore(nodes, SitePolicy()) for nodes in self.nodes]
        self.now_ms = 0
        # What happens when: (where, event), where -1 is the grid. What one tells another comes in order.
        self._calendar: dict[int, list[tuple[int, Any]]] = defaultdict(list)
        self._last_ms: dict[tuple[int, int], int] = defaultdict(int)
        self._parts: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._begun: dict[tuple[int, int], set[int]] = defaultdict(set)
        self._jobs: dict[int, Job] = {}
        self.open: set[int] = set()
        self.held: dict[int, int] = {}

    def _send(self, origin: int, target: int, event: Any) -> None:
        at_ms = max(self.now_ms + int(self.rng.integers(0, 30)), self._last_ms[origin, target])
        self._last_ms[origin, target] = at_ms
        self._calendar[at_ms].append((target, event))

    def next_ms(self) -> int | None:
        """Return when something happens by itself."""
        wakeups = [core.next_wakeup_ms() for core in (self.core, *self.sites)]
        return min([*self._calendar, *(wakeup_ms for wakeup_ms in wakeups if wakeup_ms is not None)], default=None)

    def go_on(self, now_ms: int, *wishes: Any) -> None:
        """Let happen what happens at an instant."""
        self.now_ms = now_ms
        events = self._calendar.pop(now_ms, [])
        for command in self.core.handle(now_ms, *wishes, *(event for where, event in events if where < 0)):
            self._carry_out(command)
        self.core.check_invariants()
        for site, core in enumerate(self.sites):
            told = [event for where, event in events if where == site]
            if SiteRestarted() in told:
                told = [event for event in told if not isinstance(event, JobFinished)]
                self._forget_ends(site)
            while told is not None:
                commands = core.handle(now_ms, *told)
                core.check_invariants()
                told = [ended for command in commands if (ended := self._at_site(site, command))] or None

    def restart(self) -> None:
        """Have the meta-scheduler go on from what it has written down, of which nothing is forgotten."""
        again = self._new_core()
        again.restore(read_state(again, dump_state(self.core)))
        assert list(differences(self.core, again)) == []
        self.core = again

    def _carry_out(self, command: Any) -> None:
        if isinstance(command, ToSite):
            if isinstance(command.request, CommitNodes):
                self._parts[command.request.job_id, command.request.attempt].add(command.site)
            self._send(-1, command.site, command.request)
        elif isinstance(command, ReportHeld):
            self.held[command.job_id] = command.attempt
        elif isinstance(command, ReportDone | ReportRefused):
            self.open.remove(command.job_id)

    def _at_site(self, site: int, command: Any) -> Any:
        """Do what a site commands; return what it hears at once."""
        if isinstance(command, ToGrid):
            self._send(site, -1, FromSite(site, command.answer))
            if isinstance(command.answer, Started):
                self._meet(site, command.answer)
        elif isinstance(command, StartJob):
            self._calendar[self.now_ms + int(self.rng.integers(1, 100))].append((site, JobFinished(command.job_id)))
        elif isinstance(command, KillJob):
            self._forget_ends(site, command.job_id)
            return JobFinished(command.job_id, succeeded=False)
        return None

    def _forget_ends(self, site: int, job_id: int | None = None) -> None:
        """Have a job of a site not end by itself any more; all of them, if none is named."""
        for events in self._calendar.values():
            ends = [each for where, each in events if where == site and isinstance(each, JobFinished)]
            gone = [(site, end) for end in ends if job_id in (None, end.job_id)]
            events[:] = [each for each in events if each not in gone]

    def _meet(self, site: int, started: Started) -> None:
        """Tell the parts of a job of each other when all of them run."""
        job = started.job_id, started.attempt
        self._begun[job].add(site)
        if self._begun[job] == self._parts[job]:
            for each in self._parts[job]:
                self._send(-1, each, FragmentsMet(*job))

    def apply_action(self) -> Any:
        """Return what somebody wants, if anybody wants something."""
        rng = self.rng
        kind = rng.choice(list(WHAT_HAPPENS), p=list(WHAT_HAPPENS.values()))
        if kind == "site":
            self._calendar[self.now_ms + 1].append(self._at_random_site())
            return None
        if kind == "submit" or not self.open:
            job = Job(job_id=len(self._jobs) + 1, width=int(rng.integers(1, max(self.nodes) + 3)), estimate_ms=100)
            self._jobs[job.job_id] = job
            self.open.add(job.job_id)
            return GridJobSubmitted(job, excluded=self._excluded(0.15))
        job = self._jobs[int(rng.choice(sorted(self.open)))]
        if job.job_id in self.held:
            return GridJobSubmitted(job, attempt=self.held.pop(job.job_id), excluded=self._excluded(0.15))
        wishes = {"hold": GridJobHeld, "release": GridJobReleased, "cancel": GridJobCancelled}
        if kind == "bar":
            return GridJobExclusions(GridJobSubmitted(job, excluded=self._excluded(0.5)))
        return wishes[kind](job.job_id) if kind in wishes else None

    def _at_random_site(self) -> tuple[int, Any]:
        """Return what happens at a site: it is drained or resumed, comes back, or has a job of its own users."""
        site = int(self.rng.integers(len(self.sites)))
        width = int(self.rng.integers(1, self.nodes[site] + 1))
        own = Job(job_id=1_000_000 + self.now_ms, width=width, estimate_ms=50)
        events = DrainSite(), ResumeSite(), SiteRestarted(), JobSubmitted(own), JobSubmitted(own)
        return site, events[int(self.rng.integers(len(events)))]

    def end_all(self) -> None:
        """Cancel all jobs that are in the grid, and have all sites resumed."""
        self._calendar[self.now_ms + 1] += [(site, ResumeSite()) for site in range(len(self.sites))]
        self.go_on(self.now_ms, *(GridJobCancelled(job_id) for job_id in sorted(self.open - self.held.keys())))

    def _excluded(self, part: float) -> tuple[int, ...]:
        return tuple(site for site in range(len(self.sites)) if self.rng.random() < part)


@pytest.mark.parametrize(
    "policy",
    [
        {"control": "full", "mode": "adaptive"},
        {"control": "full", "mode": "multi-site", "backfill": "conservative"},
        {"control": "limited", "mode": "multi-site"},
        {"control": "limited", "mode": "multi-site", "selection": "pjs"},
        {"control": "none", "mode": "sharing"},
    ],
    ids=str,
)
def test_nothing_is_lost(policy: dict[str, Any]) -> None:
    """When all is cancelled in the end every job has left, all nodes are free, and the grid sleeps."""
    for seed in range(15):
        grid = Grid(seed, **policy)
        for _ in range(60):
            if grid.rng.random() < 0.1:
                grid.restart()
            action = grid.apply_action()
            next_ms = grid.next_ms()
            quiet_ms = grid.now_ms + int(grid.rng.integers(1, 40))
            grid.go_on(quiet_ms if next_ms is None else min(next_ms, quiet_ms), *([] if action is None else [action]))
        grid.end_all()
        for _ in range(MOST_INSTANTS):
            if (next_ms := grid.next_ms()) is None:
                break
            grid.go_on(next_ms)
        assert grid.next_ms() is None, "something happens forever"
        assert (grid.open - grid.held.keys(), list(grid.core.waiting())) == (set(), [])
        queue = grid.core.queue_copy()
        assert queue is None or [queue.free(site) for site in range(len(grid.nodes))] == grid.nodes
