"""The discipline of a site with different machines, run event by event (docs/heterogeneous.md).

Every pass maps all waiting jobs again, level by level from the highest down. A job whose mapped start is now starts
on machines that are free or whose jobs may be evicted. All other jobs wait for the next pass.

If no machine is ready for a level or any level below it, no job of these levels can start. Those levels are then mapped
only when a caller asks for planned starts.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.random import PCG64, Generator
from typing_extensions import override

from gridweave.site.disciplines.base import NOTHING, Decisions, Discipline, Eviction, ExpectedRun, Rate, Start
from gridweave.site.disciplines.heterogeneous.by_level import EVICTS, KEEPS_OFF, AtWork, LevelQueue
from gridweave.site.disciplines.heterogeneous.experience import (
    ExperienceDatabase,
    LearnedTimes,
    Lengths,
    RunTimes,
)
from gridweave.site.disciplines.heterogeneous.machines import Inventory, Team
from gridweave.site.disciplines.heterogeneous.mapping import Mapped, map_to
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.heterogeneous.running import (
    JobOnMachines,
    WaitingJob,
    expect_resumptions,
    stand_in_order,
    those_that_go_on,
    those_that_may_stay,
    work_limit_ms,
)
from gridweave.site.disciplines.levels.rights import level_of, why_not_allowed
from gridweave.site.explain import SiteReason, ahead_text, evicted_text, with_evictions
from gridweave.site.job import ASKED_ID, Job, JobForm, NodeIntervals, Running
from gridweave.site.kernels.limits import FROM_MONDAY, WeekClock
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.known_times import EXPERIENCE, read_times
from gridweave.site.state import CoreState
from gridweave.site.times import when_text

IntArray = npt.NDArray[np.int64]

_NEVER = int(NEVER_MS)


class LevelJobs(NamedTuple):
    """A level's waiting jobs, and the expected run time of each kind of job on each machine class and team.

    Attributes
    ----------
    level : int
    jobs : list of WaitingJob
        In the order of submission.
    kinds : list of int
        The kind of each job, as a row of `alone_ms` and `team_ms`.
    alone_ms, team_ms : numpy.ndarray of int64, shapes (kinds, classes + 1) and (kinds, teams)
    teams : tuple of (int, int)
        Ascending.
    """

    level: int
    jobs: list[WaitingJob]
    kinds: list[int]
    alone_ms: IntArray
    team_ms: IntArray
    teams: tuple[Team, ...]

    def team_of(self, number: int) -> Team | None:
        """Return the team with this number in the mapping; None for -1, which means a single machine."""
        return self.teams[number] if number >= 0 else None


class HeterogeneousState(CoreState, frozen=True, kw_only=True, tag="Heterogeneous 1"):
    """The saved state of a site: its jobs, learned run times and totals."""

    waiting: list[WaitingJob]
    running: list[JobOnMachines]
    experience: list[RunTimes]
    totals: dict[str, float]


class Heterogeneous(Discipline):
    """Schedules jobs on machines that differ in speed, cores and memory.

    Parameters
    ----------
    nodes : int
        Machines of the site.
    policy : HeterogeneousPolicy
    week : WeekClock
        Ignored.
    """

    state_type = HeterogeneousState

    def __init__(self, nodes: int, policy: HeterogeneousPolicy, week: WeekClock = FROM_MONDAY) -> None:
        super().__init__(nodes)
        self._policy = policy
        self._site = Inventory(policy.classes, policy.clusters, policy.forms, policy.out_of_service)
        self._waiting: dict[int, WaitingJob] = {}
        self._runs: dict[int, JobOnMachines] = {}
        self.experience = ExperienceDatabase()
        self.experience.edit(policy.experience)
        self._lengths = Lengths(
            self._site, self.experience, only_limits=policy.predict == "estimate", deviations=policy.deviations
        )
        # The waiting jobs by level and the running jobs by machine, in addition to `_waiting` and `_runs`.
        self._queues = [LevelQueue() for _ in policy.levels]
        self._at_work = AtWork(nodes, policy.levels)
        # The mappings of the last pass that are not recorded in the jobs yet. If that pass left out levels: its time,
        # the first level left out, and when each machine is ready after the jobs of the levels above.
        self._planned: list[tuple[list[WaitingJob], Mapped]] = []
        self._put_off: tuple[int, int, IntArray] | None = None
        self._totals = {"evictions": 0.0, "lost_machine_ms": 0.0}
        # The decisions of the current pass so far.
        self._evictions: list[Eviction] = []
        self._rates: dict[int, int] = {}

    # Events.

    @override
    def why_never(self, job: Job) -> str | None:
        speeds = self._site.speeds_of(job)
        if not any(speeds.alone) and not speeds.teams:
            return self._site.why_nowhere(job)
        return why_not_allowed(self._policy.levels, job.priority, job.user_name or job.user)

    @override
    def submit(self, now_ms: int, job: Job) -> None:
        self._wait(WaitingJob(job=job, submit_ms=now_ms, evictions=job.evictions))

    @override
    def withdraw(self, now_ms: int, job_id: int) -> None:
        waiting_job = self._waiting.pop(job_id)
        self._queues[self._level_of(waiting_job)].remove(waiting_job)

    @override
    def ended(self, now_ms: int, job_id: int) -> None:
        self._at_work.leave(self._runs.pop(job_id))

    @override
    def learn(self, now_ms: int, job_id: int) -> None:
        """Learn a successful job's run time if the job did all its work in this run, within its time limit."""
        run = self._runs[job_id]
        worked_ms = run.worked_ms(now_ms)
        is_whole = now_ms < run.limit_ms and run.paused_ms is None and not (run.was.done_ms or run.was.job.in_step)
        if is_whole and worked_ms:
            self.experience.learn(run.was.job, run.resource, run.rate, worked_ms)

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Move the time limit of a running job to `end_ms`, and shift its expected end by the same amount."""
        self._note_plans()
        run = self._runs[job_id]
        run.expected_ms, run.limit_ms = max(now_ms + 1, run.expected_ms + end_ms - run.limit_ms), end_ms
        if run.paused_ms is None:
            self._at_work.work(run, self._level_of(run.was))

    def _wait(self, waiting_job: WaitingJob) -> None:
        self._waiting[waiting_job.job.job_id] = waiting_job
        self._queues[self._level_of(waiting_job)].add(waiting_job, self._lengths.kind_of(waiting_job))

    # The pass.

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        """Map all waiting jobs, start those whose mapped start is now, and evict the jobs on their machines."""
        self._evictions, self._rates = [], {}
        for job_id in self._at_work.due(now_ms):
            # The job is past its expected end, so expect it to run until its limit.
            run = self._runs[job_id]
            run.expected_ms = max(run.limit_ms, now_ms + 1)
            self._at_work.work(run, self._level_of(run.was))
        self._planned.clear()
        started = self._map_levels(now_ms, 0, np.full(self._site.nodes, now_ms, np.int64))
        if self._at_work.standing:
            for run in those_that_go_on(self._runs.values(), self._standing()):
                run.go_on(now_ms)
                self._at_work.work(run, self._level_of(run.was))
                self._rates[run.was.job.job_id] = run.rate
            expect_resumptions(now_ms, self._runs.values(), self._standing())
        if not (started or self._evictions or self._rates):
            return NOTHING
        starts = [Start(job, self._nodes_of(job.job_id)) for job in started]
        return Decisions(starts, self._evictions, rates=[Rate(*change) for change in sorted(self._rates.items())])

    def _nodes_of(self, job_id: int) -> NodeIntervals:
        """Return the machines of a running job, which uses all their hardware threads."""
        return tuple((machine, machine + 1) for machine in self._runs[job_id].machines)

    def _map_levels(self, now_ms: int, level: int, claimed: IntArray, *, all_levels: bool = False) -> list[Job]:
        """Map the waiting jobs of a level and all levels below it, one level at a time; return the started jobs.

        An eviction may raise a job to the level that has just been mapped; that level is then mapped again. Levels
        on which no job can start are mapped later, unless `all_levels` is set.
        """
        started: list[Job] = []
        while level < len(self._queues) and (all_levels or self._may_start(now_ms, level, claimed)):
            claimed_above, n_evictions = claimed.copy(), len(self._evictions)
            if queue := self._queues[level]:
                kinds, numbers = queue.numbered_kinds()
                jobs = LevelJobs(level, queue.jobs.copy(), numbers, *self._lengths.table_of(kinds))
                started += self._run_level(now_ms, jobs, claimed)
            if any(
                self._level_of(self._waiting[eviction.job_id]) == level for eviction in self._evictions[n_evictions:]
            ):
                claimed = claimed_above
            else:
                level += 1
        self._put_off = now_ms, level, claimed
        return started

    def _may_start(self, now_ms: int, level: int, claimed: IntArray) -> bool:
        """Whether this or a lower level has waiting jobs and a machine ready for them; true while any job is paused."""
        levels = [at for at in range(level, len(self._queues)) if self._queues[at]]
        ready = (self._at_work.ready_ms(claimed, self._at_work.held(at)) <= now_ms for at in levels)
        # The expected resumption of paused jobs depends on the mapping, so map every level while any job is paused.
        return bool(self._at_work.standing) or any((is_ready & self._site.is_in_service).any() for is_ready in ready)

    def _note_plans(self) -> None:
        """Record each waiting job's planned start, run time and width, as mapped by the last pass."""
        if self._put_off is not None:
            started = self._map_levels(*self._put_off, all_levels=True)
            assert not started, "a job starts on a level that was left out because none could start"
            self._put_off = None
        for jobs, mapped in self._planned:
            lengths_ms = mapped.end_ms - mapped.start_ms
            for row, waiting_job in enumerate(jobs):
                if self._waiting.get(waiting_job.job.job_id) is waiting_job:
                    waiting_job.planned_ms, waiting_job.planned_length_ms = (
                        int(mapped.start_ms[row]),
                        int(lengths_ms[row]),
                    )
                    waiting_job.planned_on = len(mapped.machines_of(row))
        self._planned.clear()

    def _standing(self) -> list[JobOnMachines]:
        """Return the paused jobs, in the order in which they resume."""
        return stand_in_order((self._runs[job_id] for job_id in self._at_work.standing), self._level_of)

    def _run_level(self, now_ms: int, queue: LevelJobs, claimed: IntArray) -> list[Job]:
        """Map a level's jobs after the higher levels' jobs; start and return the jobs whose mapped start is now."""
        if self._at_work.standing:
            expect_resumptions(now_ms, self._runs.values(), self._standing())
        mapped = self._best_mapping(now_ms, queue, claimed)
        claimed[mapped.is_given] = mapped.ready_ms[mapped.is_given]
        self._planned.append((queue.jobs, mapped))
        rows: list[int] = np.flatnonzero(mapped.start_ms == now_ms).tolist()
        # Check this before any eviction: an eviction may raise a job to a level where it could no longer be evicted.
        holders = [self._holders(mapped.machines_of(row)) for row in rows]
        may = (self._may_evict(queue.level, self._runs[job_id]) for holder in holders for job_id in holder)
        assert all(may), "a machine would have two jobs"
        started = []
        for row, held_by in zip(rows, holders, strict=True):
            waiting_job, machines, team = queue.jobs[row], mapped.machines_of(row), queue.team_of(int(mapped.team[row]))
            self._evict_for(now_ms, waiting_job, machines, team, held_by)
            started.append(self._start(now_ms, waiting_job, machines, team, int(mapped.end_ms[row])))
        return started

    def _best_mapping(self, now_ms: int, queue: LevelJobs, claimed: IntArray) -> Mapped:
        """Map a level's jobs so that no job is evicted for a gain of less than `least_gain_ms`."""
        least_ms = self._policy.least_gain_ms
        without = self._mapped(queue, claimed, set(self._runs)) if least_ms else None
        protected: set[int] = set()
        while True:
            mapped = self._mapped(queue, claimed, protected)
            if without is None:
                return mapped
            spared = {
                victim
                for row in np.flatnonzero(mapped.start_ms == now_ms).tolist()
                if without.end_ms[row] - mapped.end_ms[row] < least_ms
                for victim in self._holders(mapped.machines_of(row))
            }
            if not spared:
                return mapped
            protected |= spared

    def _mapped(self, queue: LevelJobs, claimed: IntArray, protected: set[int]) -> Mapped:
        """Map a level's jobs; machines whose jobs may be evicted count as free, but idle machines are preferred."""
        is_held = self._at_work.held(queue.level, protected)
        ready_ms, trouble = self._at_work.ready_ms(claimed, is_held), EVICTS * is_held
        for job_id in self._at_work.standing:
            run = self._runs[job_id]
            at = list(run.machines)
            if job_id in protected or not self._may_evict(queue.level, run):
                ready_ms[at] = np.maximum(ready_ms[at], run.ends_ms)
            else:
                trouble[at] = np.maximum(trouble[at], KEEPS_OFF)
        return map_to(
            self._site.arrays(queue.teams),
            ready_ms,
            queue.kinds,
            queue.alone_ms,
            queue.team_ms,
            trouble=trouble,
            algorithm=self._policy.algorithm,
            profit=self._policy.profit,
            rng=Generator(PCG64(self._policy.seed)) if self._policy.algorithm == "gsa" else None,
        )

    def _start(
        self, now_ms: int, waiting_job: WaitingJob, machines: tuple[int, ...], team: Team | None, end_ms: int
    ) -> Job:
        """Start a waiting job, expected to end at `end_ms`, on machines on which no other job is running."""
        speeds = self._site.speeds_of(waiting_job.job)
        if team is not None:
            rate, resource = speeds.teams[team], self._site.name_of(team)
        else:
            number = int(self._site.class_of[machines[0]])
            rate, resource = speeds.alone[number], self._site.classes[number].name
        form, is_in = self._site.form_at(waiting_job.job, machines[0], team)
        self.withdraw(now_ms, waiting_job.job.job_id)
        waiting_job.planned_ms, waiting_job.planned_length_ms, waiting_job.planned_on = (
            None,
            end_ms - now_ms,
            len(machines),
        )
        run = self._runs[waiting_job.job.job_id] = JobOnMachines(
            was=waiting_job,
            start_ms=now_ms,
            expected_ms=end_ms,
            limit_ms=now_ms + work_limit_ms(waiting_job, rate),
            machines=machines,
            rate=rate,
            resource=resource,
            is_team=team is not None,
            form=form,
            memory_mb=is_in.memory_mb,
        )
        self._at_work.work(run, self._level_of(waiting_job))
        if rate != RATE_ONE:
            self._rates[waiting_job.job.job_id] = rate
        return waiting_job.job

    def _evict_for(
        self, now_ms: int, waiting_job: WaitingJob, machines: tuple[int, ...], team: Team | None, held_by: Sequence[int]
    ) -> None:
        """Evict the jobs on the machines that a job needs, or pause them if the policy and the free memory allow it."""
        holders = sorted(
            (self._runs[job_id] for job_id in held_by if job_id in self._runs),
            key=lambda run: (self._level_of(run.was), run.was.job.job_id),
        )
        staying: list[JobOnMachines] = []
        if self._policy.pauses_jobs:
            memory_mb = self._site.form_at(waiting_job.job, machines[0], team)[1].memory_mb
            pausable = [run for run in holders if not run.was.job.in_step]
            staying = those_that_may_stay(pausable, machines, memory_mb, self._site.free_mb)
        for run in holders:
            if run not in staying:
                self._evict(now_ms, run.was.job.job_id, waiting_job)
            elif run.paused_ms is None:
                run.paused_ms = now_ms
                self._at_work.stand(run)
                self._count_eviction(now_ms, run.was, waiting_job)
                self._rates[run.was.job.job_id] = 0

    def _evict(self, now_ms: int, job_id: int, by: WaitingJob) -> None:
        """Return a running or paused job to the queue, because another job needs its machines."""
        run = self._runs.pop(job_id)
        self._at_work.leave(run)
        keeps = (run.was.job.if_evicted or self._policy.evicted) == "checkpoint"
        worked_ms = run.worked_ms(now_ms)
        if keeps:
            run.was.done_ms += worked_ms * run.rate // RATE_ONE
        else:
            self._totals["lost_machine_ms"] += worked_ms * len(run.machines)
        reason = self._count_eviction(now_ms, run.was, by)
        self._wait(run.was)
        self._evictions.append(Eviction(job_id, keeps, by.job.job_id, reason))
        # Another job may have paused the evicted job earlier in this pass.
        self._rates.pop(job_id, None)

    def _count_eviction(self, now_ms: int, evicted: WaitingJob, by: WaitingJob) -> str:
        """Count the eviction or pause of a job; return the reason, which names the job that caused it."""
        levels = self._policy.levels
        reason = (
            f"job {by.job.job_id} of level {levels[self._level_of(by)].name!r} takes machines of level "
            f"{levels[self._level_of(evicted)].name!r}"
        )
        self._totals["evictions"] += 1
        evicted.evictions += 1
        evicted.evicted_ms, evicted.why_evicted = now_ms, reason
        return reason

    # Levels.

    def _base_level(self, job: Job) -> int:
        return level_of(self._policy.levels, job.priority)

    def _level_of(self, waiting_job: WaitingJob) -> int:
        """Return a job's current level; every `raise_after` evictions raise the job by one level."""
        base, after = self._base_level(waiting_job.job), self._policy.raise_after
        return base if after is None else max(0, base - waiting_job.evictions // after)

    def _may_evict(self, level: int, run: JobOnMachines) -> bool:
        return self._at_work.may_evict(level, run, self._level_of(run.was))

    def _holders(self, machines: Sequence[int]) -> list[int]:
        """Return the ids of the jobs that are running or paused on any of these machines, ascending."""
        machine_set = set(machines)
        standing = {
            job_id for job_id in self._at_work.standing if not machine_set.isdisjoint(self._runs[job_id].machines)
        }
        return sorted(self._at_work.jobs_on(machines) | standing)

    # Queries.

    @override
    def is_paused(self, job_id: int) -> bool:
        return self._runs[job_id].paused_ms is not None

    @override
    def pause_reason(self, now_ms: int, job_id: int) -> str:
        run = self._runs[job_id]
        if run.paused_ms is None:
            return ""
        since, until = when_text(run.paused_ms, now_ms), when_text(max(now_ms, run.resumes_ms), now_ms)
        return f"it was paused {since}: {run.was.why_evicted}; it is expected to resume {until}"

    @property
    @override
    def free(self) -> int:
        """Number of machines without a job; machines that are out of service count as free."""
        is_free = self._at_work.is_free
        for job_id in self._at_work.standing:
            is_free[list(self._runs[job_id].machines)] = False
        return int(is_free.sum())

    @override
    def form_of(self, job_id: int) -> JobForm | None:
        run = self._runs[job_id]
        return run.was.job.forms[run.form] if run.was.job.forms else None

    @override
    def rate_of(self, job_id: int) -> int:
        return self._runs[job_id].rate

    @override
    def next_wakeup_ms(self) -> int | None:
        """Return the earliest expected end of a running job; if the job overruns, waiting jobs can be mapped elsewhere.

        None if no job is waiting or no job is running.
        """
        first_ms = self._at_work.first_expected_ms
        return first_ms if self._waiting and first_ms != _NEVER else None

    @override
    def next_end_ms(self) -> int | None:
        """Return the earliest time limit of a running job that is not paused."""
        first_ms = self._at_work.first_limit_ms
        return first_ms if first_ms != _NEVER else None

    @override
    def running(self) -> Iterator[Running]:
        """Yield the running jobs by time limit, ties by job id; a paused job's time limit includes its pause."""
        limits = ((run.limit_ms + run.put_off_ms, job_id, run) for job_id, run in self._runs.items())
        for end_ms, _, run in sorted(limits, key=lambda limit: limit[:2]):
            yield Running(run.was.job, run.start_ms, end_ms)

    @override
    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in order of submission; no start times are promised."""
        for waiting_job in sorted(
            self._waiting.values(), key=lambda waiting_job: (waiting_job.submit_ms, waiting_job.job.job_id)
        ):
            yield waiting_job.job, None

    @override
    def startable(self, now_ms: int, length_ms: int) -> int:
        for width in range(self.free if not self._waiting else 0, 0, -1):
            if self.earliest_start_ms(now_ms, width, length_ms) == now_ms:
                return width
        return 0

    @override
    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job on the lowest level would start, without checking which users that level accepts."""
        asked = Job(job_id=ASKED_ID, width=width, estimate_ms=length_ms, priority=self._policy.levels[-1].priority)
        expected = self._run_behind_all(now_ms, asked)
        return None if expected is None else expected.start_ms

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run, found by submitting it to a copy of the site."""
        return None if self.why_never(job) is not None else self._run_behind_all(now_ms, job)

    def _run_behind_all(self, now_ms: int, job: Job) -> ExpectedRun | None:
        """Return how a job would run, without checking its user's access to levels; None if no machine can run it."""
        trial = self.copy()
        trial.submit(now_ms, msgspec.structs.replace(job, job_id=ASKED_ID))
        trial.run_pass(now_ms)
        run = trial._runs.get(ASKED_ID)
        if run is not None:
            evicts = trial._totals["evictions"] > self._totals["evictions"]
            return ExpectedRun(now_ms, len(run.machines), run.expected_ms - now_ms, evicts=evicts)
        trial._note_plans()
        waiting_job = trial._waiting[ASKED_ID]
        if waiting_job.planned_ms is None or waiting_job.planned_ms == _NEVER:
            return None
        return ExpectedRun(waiting_job.planned_ms, waiting_job.planned_on, waiting_job.planned_length_ms)

    @override
    def nodes_ready(self, now_ms: int, free: int) -> list[tuple[int, int]]:
        """Return (time, machines) pairs: how many of the machines in service become free at each time."""
        ends_ms = dict.fromkeys((machine for machine in range(self._site.nodes) if machine not in self._site.out), 0)
        for run in self._runs.values():
            if run.paused_ms is None:
                ends_ms.update(dict.fromkeys(run.machines, max(run.expected_ms, now_ms + 1)))
        return sorted(Counter(max(end_ms, now_ms) for end_ms in ends_ms.values()).items())

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        self._note_plans()
        waiting_job = self._waiting[job_id]
        level = self._level_of(waiting_job)
        keys = [(self._level_of(other), other.submit_ms, other.job.job_id) for other in self._waiting.values()]
        ahead = sum(place < (level, waiting_job.submit_ms, job_id) for place in keys)
        name = self._policy.levels[level].name
        reason = "the machines on which it would end first are not free"
        if ahead:
            reason += f"; {ahead_text(ahead)} of level {name!r} or above"
        if waiting_job.evicted_ms is not None:
            reason = with_evictions(
                reason, evicted_text(waiting_job.evictions, waiting_job.evicted_ms, now_ms, waiting_job.why_evicted)
            )
        return SiteReason(start_ms=waiting_job.planned_ms, ahead=ahead, reason=reason)

    @override
    def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
        """Return a job's priority level, number of machines, whether it ran on a team, and number of evictions."""
        run = self._runs[job_id]
        return (self._base_level(run.was.job), len(run.machines), run.is_team, run.was.evictions)

    @override
    def totals(self) -> Mapping[str, float]:
        return self._totals.copy()

    @override
    def report(
        self,
        switches: Sequence[tuple[int, int]],
        columns: Mapping[str, npt.NDArray[np.float64]],
        has_started: npt.NDArray[np.bool_],
    ) -> LearnedTimes:
        return LearnedTimes(self.experience.times())

    @override
    def answer(self, question: str) -> list[dict[str, Any]] | None:
        """Return the learned run times as builtin types for the question `EXPERIENCE`; None for other questions."""
        return [msgspec.to_builtins(times) for times in self.experience.times()] if question == EXPERIENCE else None

    @override
    def edit_problem(self, changes: Any) -> str | None:
        try:
            edits = read_times(changes)
        except msgspec.ValidationError as error:
            return f"the changes to the learned run times cannot be read: {error}"
        return next((problem for edit in edits if (problem := edit.edit_problem())), None)

    @override
    def edit(self, changes: Any) -> None:
        """Replace the run times for each change's class, user and resource; a change with 0 runs deletes them."""
        self.experience.edit(read_times(changes))

    @override
    def copy(self) -> Self:
        self._note_plans()
        new = copy.copy(self)
        new.experience = self.experience.copy()
        new._lengths = self._lengths.copy(new.experience, self._waiting.values())
        new._take_in(
            (msgspec.structs.replace(waiting_job) for waiting_job in self._waiting.values()),
            (msgspec.structs.replace(run, was=msgspec.structs.replace(run.was)) for run in self._runs.values()),
        )
        new._totals = self._totals.copy()
        return new

    def _take_in(self, waiting: Iterable[WaitingJob], running: Iterable[JobOnMachines]) -> None:
        """Replace the discipline's jobs with these waiting and running jobs."""
        self._planned, self._put_off = [], None
        self._waiting, self._queues = {}, [LevelQueue() for _ in self._policy.levels]
        for waiting_job in waiting:
            self._wait(waiting_job)
        self._runs = {run.was.job.job_id: run for run in running}
        self._at_work = AtWork(self._site.nodes, self._policy.levels)
        for run in self._runs.values():
            if run.paused_ms is None:
                self._at_work.work(run, self._level_of(run.was))
            else:
                self._at_work.standing.add(run.was.job.job_id)

    @override
    def state(self) -> HeterogeneousState:
        self._note_plans()
        return HeterogeneousState(
            waiting=list(self._waiting.values()),
            running=list(self._runs.values()),
            experience=self.experience.rows(),
            totals=self._totals,
        )

    @override
    def restore(self, state: HeterogeneousState) -> None:
        self._take_in(state.waiting, state.running)
        self.experience.restore(state.experience)
        self._totals = dict(state.totals)

    @override
    def check_invariants(self) -> None:
        taken = [machine for run in self._runs.values() if run.paused_ms is None for machine in run.machines]
        assert len(taken) == len(set(taken)), "a machine has two jobs"
        assert self._site.out.isdisjoint(taken), "a job is on a machine out of service"
        assert not self._waiting.keys() & self._runs.keys(), "a job both runs and waits"
        for level, queue in enumerate(self._queues):
            queue.check_invariants()
            assert all(self._level_of(waiting_job) == level for waiting_job in queue.jobs), (
                "a job waits on a wrong level"
            )
        queued = {waiting_job.job.job_id for queue in self._queues for waiting_job in queue.jobs}
        assert queued == self._waiting.keys(), "the jobs in the queues of the levels are not the waiting jobs"
        self._at_work.check_invariants(self._runs, self._level_of)
