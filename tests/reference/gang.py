"""Gang scheduling, slice by slice: the rules of docs/gang.md written a second time, slowly.

Every slice is played, and the matrix is a list of rows, each of which says who is in which column. Nothing is kept from
one decision to the next but who is placed where, who ran last when, and what has been promised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.kernels.order import order_keys


@dataclass
class _Job:
    job_id: int
    submit_ms: int
    width: int
    estimate_ms: int
    run_ms: int
    key: float
    memory: int = 0
    columns: frozenset[int] = frozenset()
    home: int = -1
    rows: set[int] = field(default_factory=set)
    ran_in: int = -1
    begun: bool = False
    works: bool = False
    switch_left: int = 0
    owed: int = 0
    worked: int = 0
    moved_in: int = 0
    start_ms: int = -1
    end_ms: int = -1

    @property
    def tasks(self) -> int:
        return self.width if self.begun else 0

    @property
    def to_gain(self) -> int:
        """What it has still to pay and to work."""
        return self.switch_left + self.owed + self.run_ms - self.worked


class GangReference:
    """A workload on a site that shares its nodes in time."""

    def __init__(self, workload: Workload, nodes: int, policy: GangPolicy) -> None:
        self.nodes, self.policy = nodes, policy
        n = len(workload)
        columns = workload.columns
        keys = order_keys(
            policy.order,
            submit_ms=workload.submit_ms,
            width=workload.width,
            estimate_ms=workload.estimate_ms,
            weight=columns.get("weight", [1.0] * n),
            priority=columns.get("priority", [0.0] * n),
        )
        told = zip(
            *(getattr(workload, name).tolist() for name in ("job_id", "submit_ms", "width", "estimate_ms", "run_ms")),
            keys.tolist(),
            strict=True,
        )
        self.jobs = [_Job(*values) for values in told]
        for job, part in zip(self.jobs, columns.get("memory_fraction", [0.0] * n), strict=True):
            job.memory = round(part * 1_000_000)
        cancel_ms = columns["cancel_ms"].tolist() if "cancel_ms" in columns else [-1] * n
        self.cancels = {job.job_id: when for job, when in zip(self.jobs, cancel_ms, strict=True) if when >= 0}
        self.queue: list[_Job] = []
        self.placed: list[_Job] = []
        self.promises: dict[int, tuple[int, int]] = {}
        self.row: int | None = None
        self.last_row = -1
        self.slice_end = 0
        self.used_then = [0] * policy.mpl
        self.decisions = 0
        self.migrations = self.tasks_migrated = 0
        self.lost = self.lost_any = self.switched = 0
        self.shares_space = False
        self.open_rows = list(range(policy.mpl))
        self.changes = 0
        self.utilisation = self.switch_part = 0.0
        self.now = self.jobs[0].submit_ms if self.jobs else 0
        self.measured = self.now, 0, 0

    # Time

    def run(self) -> GangReference:
        """Play until nothing is left."""
        arrivals = list(self.jobs)
        due: int | None = None
        while arrivals or self.queue or self.placed or due is not None:
            instants = [arrivals[0].submit_ms] if arrivals else []
            instants += [when for job in [*self.queue, *self.placed] if (when := self._cancel_of(job)) is not None]
            instants += [due] if due is not None else []
            if self.row is not None:
                instants.append(self.slice_end)
                instants += [self.now + job.to_gain for job in self._working()]
            self._pass_time(min(instants))
            now = self.now
            happened = False
            for job in sorted(self._working(), key=lambda job: job.job_id):
                if job.to_gain == 0:
                    self._end(job)
                    happened = True
            for job in [*self.queue, *self.placed]:
                if self._cancel_of(job) == now and not job.begun:
                    (self.queue if job in self.queue else self.placed).remove(job)
                    happened = True
                if self._cancel_of(job) == now:
                    del self.cancels[job.job_id]
            while arrivals and arrivals[0].submit_ms == now:
                self.queue.append(arrivals.pop(0))
                happened = True
            self.queue.sort(key=lambda job: (job.key, job.submit_ms, job.job_id))
            if happened:
                due = now if self.policy.scheduling == "continuous" else self._tick()
            if due == now:
                due = None
                self._decide()
                self._begin_slice()
            elif self.row is not None and now == self.slice_end:
                self._begin_slice()
        return self

    def _tick(self) -> int:
        slice_ms = self.policy.slice_ms
        return -(-self.now // slice_ms) * slice_ms

    def _cancel_of(self, job: _Job) -> int | None:
        return self.cancels.get(job.job_id)

    def _working(self) -> list[_Job]:
        return [job for job in self.placed if self.row in job.rows] if self.row is not None else []

    def _pass_time(self, until: int) -> None:
        span = until - self.now
        empty = self.nodes - (self.used_then[self.row] if self.row is not None else 0)
        self._lose(empty * span)
        for job in self._working():
            left = span
            paid = min(left, job.switch_left)
            job.switch_left -= paid
            left -= paid
            paid = min(left, job.owed)
            job.owed -= paid
            job.worked += left - paid
        self.now = until

    def _lose(self, node_ms: int) -> None:
        self.lost_any += node_ms
        if self.queue:
            self.lost += node_ms

    def _end(self, job: _Job) -> None:
        job.end_ms = self.now
        if self.policy.scheduling == "discrete":
            self._lose(job.width * (self._tick() - self.now))
        self.placed.remove(job)

    def _begin_slice(self) -> None:
        """Begin the slice of the next row in use."""
        if self.row is not None:
            self.last_row = self.row
        rows = [(self.last_row + 1 + step) % self.policy.mpl for step in range(self.policy.mpl)]
        self.row = next((row for row in rows if self.used_then[row] > 0), None)
        for job in self.placed:
            if self.row not in job.rows:
                job.works, job.switch_left = False, 0
                continue
            if not job.begun:
                job.begun, job.start_ms, job.works = True, self.now, True
            elif not job.works:
                job.works, job.switch_left = True, self.policy.switch_ms
                self._lose(job.width * self.policy.switch_ms)
                self.switched += job.width * self.policy.switch_ms
            job.ran_in = self.row if self.row is not None else -1
        self.slice_end = self.now + self.policy.slice_ms

    # Decisions

    def _decide(self) -> None:
        policy = self.policy
        self.decisions += 1
        if self.row is not None:
            self.last_row, self.row = self.row, None
        self.budget = 10**9 if policy.max_tasks is None else policy.max_tasks
        if policy.phases != "fill":
            for job in self.placed:
                job.rows = {job.home}
        if policy.phases == "compact":
            self._compact(migrates=False)
        if policy.window_ms is not None:
            self._adapt(policy.window_ms)
        self._schedule()
        if policy.migration == "all" and self._compact(migrates=True):
            self._schedule()
        self._fill(migrates=False)
        if policy.migration != "none":
            self._fill(migrates=True)
        self.used_then = [self._used(row) for row in range(policy.mpl)]

    def _adapt(self, window_ms: int) -> None:
        """Measure utilisation and the part of switches since the last time, and choose which rows are open."""
        since, lost, switched = self.measured
        span = self.now - since
        if span:
            useful, paid = self.nodes * span - (self.lost_any - lost), self.switched - switched
            weight = span / (window_ms + span)
            self.utilisation += weight * (useful / (self.nodes * span) - self.utilisation)
            if not self.shares_space and useful + paid > 0:
                self.switch_part += weight * (paid / (useful + paid) - self.switch_part)
        self.measured = self.now, self.lost_any, self.switched
        gain = 1.3 - 1.0
        critical = gain * (1.0 - self.switch_part) / (gain + self.switch_part)
        if self.shares_space:
            critical -= 0.03
        space = self.utilisation > critical
        self.changes += space and not self.shares_space
        self.shares_space = space
        self.open_rows = list(range(self.policy.mpl))
        if space:
            used = sorted((self._used(row), -row) for row in self.open_rows if self._used(row))
            self.open_rows = sorted(-row for _, row in used[1:] or used) or [0]

    def _in_row(self, row: int) -> list[_Job]:
        return [job for job in self.placed if row in job.rows]

    def _used(self, row: int) -> int:
        return sum(job.width for job in self._in_row(row))

    def _taken(self, row: int) -> set[int]:
        return {column for job in self._in_row(row) for column in job.columns}

    def _turns_until(self, row: int) -> int:
        return (row - self.last_row - 1) % self.policy.mpl

    def _lowest(self, taken: set[int], number: int) -> set[int]:
        return set([column for column in range(self.nodes) if column not in taken][:number])

    def _crowded(self, job: _Job) -> set[int]:
        """Return the columns that have not the memory for a job beside what others hold there, in whatever rows."""
        held = [0] * self.nodes
        for other in self.placed:
            for column in other.columns if other is not job else ():
                held[column] += other.memory
        return {column for column in range(self.nodes) if job.memory and held[column] + job.memory > 1_000_000}

    def _has_capacity(self, job: _Job, row: int) -> bool:
        return self.nodes - len(self._taken(row) | self._crowded(job)) >= job.width

    def _longest(self, job: _Job) -> int:
        return (job.estimate_ms - job.worked + job.owed) * self.policy.mpl

    def _occupations(self, row: int, *, promised: bool) -> list[tuple[int, int, int]]:
        taken = [(self.now, self.now + self._longest(job), job.width) for job in self._in_row(row)]
        for job in self.queue if promised else []:
            if job.job_id in self.promises and self.promises[job.job_id][0] == row:
                start = max(self.now, self.promises[job.job_id][1])
                taken.append((start, start + self._longest(job), job.width))
        return taken

    def _earliest(self, occupations: list[tuple[int, int, int]], width: int, length: int) -> int:
        """Return the earliest start at which so much is free throughout."""
        for start in sorted({self.now, *(end for _, end, _ in occupations)}):
            if self._is_free(occupations, start, width, length):
                return start
        raise AssertionError("a job is wider than the site")

    def _is_free(self, occupations: list[tuple[int, int, int]], start: int, width: int, length: int) -> bool:
        instants = {start, *(begin for begin, _, _ in occupations if start < begin < start + length)}
        return all(
            self.nodes - sum(held for begin, end, held in occupations if begin <= instant < end) >= width
            for instant in instants
        )

    def _compact(self, *, migrates: bool) -> bool:
        order = sorted(range(self.policy.mpl), key=lambda row: (self._used(row), row))
        moved = False
        for place, row in enumerate(order):
            for target in reversed(order[place + 1 :]):
                for job in sorted(self._in_row(row), key=lambda job: (job.width, job.job_id)):
                    moved = self._move(job, target, migrates=migrates) or moved
        return moved

    def _move(self, job: _Job, target: int, *, migrates: bool) -> bool:
        if job.width > self.nodes - self._used(target):
            return False
        if self._turns_until(target) > self._turns_until(job.ran_in):
            return False
        if self.policy.backfill != "none":
            occupations = self._occupations(target, promised=True)
            if self._earliest(occupations, job.width, self._longest(job)) != self.now:
                return False
        in_the_way = [other for other in self._in_row(target) if other.columns & job.columns]
        if in_the_way:
            if not migrates:
                return False
            cost = self.policy.migration_ms
            others = sum(other.tasks for other in in_the_way)
            all_may = all(self._may_leave(other, target) for other in in_the_way)
            if all_may and others < job.tasks and others <= self.budget:
                if not self._may_cost(job, target, in_the_way, cost // 2 if others else 0, cost):
                    return False
                job.rows = set()
                self._option_1(job, target, in_the_way)
            elif job.moved_in != self.decisions and job.tasks <= self.budget and self._has_capacity(job, target):
                if job.begun and not self._may_cost(job, target, in_the_way, cost, cost // 2):
                    return False
                job.rows = set()
                self._option_2(job, target, in_the_way)
            else:
                return False
        job.rows, job.home = {target}, target
        return True

    def _may_cost(self, job: _Job, target: int, others: list[_Job], job_ms: int, other_ms: int) -> bool:
        """Whether they may take so much longer without delaying what has been promised in the row."""
        if self.policy.backfill == "none":
            return True
        held = self._occupations(target, promised=True)
        length = self._longest(job) + job_ms * self.policy.mpl
        if self._earliest(held, job.width, length) != self.now:
            return False
        held.append((self.now, self.now + length, job.width))
        for other in others:
            begin, longer = self.now + self._longest(other), other_ms * self.policy.mpl * other.begun
            if longer and not self._is_free(held, begin, other.width, longer):
                return False
            held.append((begin, begin + longer, other.width))
        return True

    def _may_leave(self, other: _Job, row: int) -> bool:
        return other.rows == {row} and other.moved_in != self.decisions and not other.memory

    def _option_1(self, job: _Job, row: int, others: list[_Job]) -> None:
        taken = self._taken(row) - {column for other in others for column in other.columns} | job.columns
        for other in others:
            kept = other.columns - taken
            other.columns = frozenset(kept | self._lowest(taken | kept, other.width - len(kept)))
            taken |= other.columns
            self._migrated(other, self.policy.migration_ms)
        if job.begun and any(other.begun for other in others):
            job.owed += self.policy.migration_ms // 2

    def _option_2(self, job: _Job, row: int, others: list[_Job]) -> None:
        taken = self._taken(row)
        kept = job.columns - taken
        job.columns = frozenset(kept | self._lowest(taken | kept | self._crowded(job), job.width - len(kept)))
        for other in others:
            if job.begun and other.begun:
                other.owed += self.policy.migration_ms // 2
        self._migrated(job, self.policy.migration_ms)

    def _migrated(self, job: _Job, cost_ms: int) -> None:
        job.moved_in = self.decisions
        if job.begun:
            job.owed += cost_ms
            self.migrations += 1
            self.tasks_migrated += job.width
            self.budget -= job.width

    def _schedule(self) -> None:
        self.promises = {}
        for job in list(self.queue):
            fitting = [row for row in self.open_rows if self._may_start(job, row)]
            rows = [row for row in fitting if self._has_capacity(job, row)]
            if rows:
                row = min(rows, key=lambda row: (self.nodes - self._used(row), self._turns_until(row)))
                job.home = job.ran_in = row
                job.columns = frozenset(self._lowest(self._taken(row) | self._crowded(job), job.width))
                job.rows = {row}
                self.queue.remove(job)
                self.placed.append(job)
            elif fitting or self.policy.backfill == "none":
                return
            elif not self.promises or self.policy.backfill == "conservative":
                starts = [
                    (self._earliest(self._occupations(row, promised=True), job.width, self._longest(job)), row)
                    for row in self.open_rows
                ]
                start, row = min(starts)
                self.promises[job.job_id] = row, start

    def _may_start(self, job: _Job, row: int) -> bool:
        if job.width > self.nodes - self._used(row):
            return False
        if self.policy.backfill == "none":
            return True
        occupations = self._occupations(row, promised=True)
        return self._earliest(occupations, job.width, self._longest(job)) == self.now

    def _fill(self, *, migrates: bool) -> None:
        changed = True
        while changed:
            changed = False
            for job in self.placed:
                for row in range(self.policy.mpl):
                    if self._replicate(job, row, migrates=migrates):
                        changed = True
                        break

    def _replicate(self, job: _Job, row: int, *, migrates: bool) -> bool:
        if row in job.rows or self._used(row) == 0 or job.width > self.nodes - self._used(row):
            return False
        in_the_way = [other for other in self._in_row(row) if other.columns & job.columns]
        if in_the_way:
            may = all(self._may_leave(other, row) for other in in_the_way)
            if not (migrates and may) or sum(other.tasks for other in in_the_way) > self.budget:
                return False
            self._option_1(job, row, in_the_way)
        job.rows.add(row)
        return True
