"""The kernels of reserved starts, told event by event, against the slow reference and against what they promise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.kernels.grid_plan import grid_plan_pass, planned_job_ended, planned_job_withdrawn
from gridweave.grid.kernels.reservations import empty_grid_plan, enlarged
from gridweave.grid.kernels.running import running_slots
from gridweave.grid.kernels.state import FRAGMENT, empty_grid
from gridweave.grid.policy import GridPolicy
from gridweave.site.disciplines.compiled import fill_jobs
from gridweave.site.kernels.state import NEVER_MS, enqueue
from reference.grid import Fragments, Rules
from reference.grid_conservative import Reserved, free, simulate_reserved
from reference.ordering import ORDERS
from support.builders import GridCase, cancellation_lists, grid_cases, grid_options, random_grid_jobs, to_workload

MODES = ("sharing", "multi-site", "adaptive")


@dataclass
class Grid:
    """Kernels and what was told them; slots are the rows of the workload, in which jobs stand as they are submitted."""

    case: GridCase
    options: Mapping[str, Any]
    room: int
    start: dict[int, int] = field(default_factory=dict)
    fragments: dict[int, Fragments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        workload = to_workload(self.case.jobs)
        policy = GridPolicy(**self.options | {"max_fragments": tuple(self.options["max_fragments"] or ())})
        self.ids = workload.job_id.tolist()
        self.jobs = {job.id: job for job in self.case.jobs}
        self.codes = policy.codes()
        state = empty_grid(np.array(self.case.nodes, np.int64), slots=len(workload))
        most = len(workload) * len(self.case.nodes) + sum(self.case.nodes)
        self.state = state._replace(fragments=np.zeros(most, FRAGMENT))
        fill_jobs(self.state.jobs, workload, np.arange(len(workload)), policy.order)
        self.state.draw[:] = [self.case.draws[job_id] for job_id in self.ids]
        self.state.sensitivity[:] = [self.case.sensitivity[job_id] for job_id in self.ids]
        self.plan = empty_grid_plan(self.state, self.codes, capacity=self.room)
        self.rules = Rules(self.case.nodes, sensitivity=self.case.sensitivity, overhead=self.options["overhead"])

    @property
    def next_start(self) -> int | None:
        """The next reserved start."""
        instant = int(self.plan.counters[0]["next_start_ms"])
        return None if instant == NEVER_MS else instant

    def waiting(self) -> list[int]:
        """Return the slots in the queue."""
        return self.state.waiting[: self.state.counters[0]["n_waiting"]].tolist()

    def step(self, now: int, ended: Sequence[int], cancelled: Sequence[int], submitted: Sequence[int]) -> None:
        """Tell of the jobs that end, are cancelled and are submitted at an instant, and make the pass."""
        instant = np.int64(now)
        for job_id in ended:
            assert planned_job_ended(self.state, self.plan, np.int64(self.ids.index(job_id)), instant)
        for job_id in cancelled:
            slot = self.ids.index(job_id)
            if slot in self.waiting():
                planned_job_withdrawn(self.state, self.plan, np.int64(self.waiting().index(slot)))
            else:
                planned_job_ended(self.state, self.plan, np.int64(slot), instant)
        for job_id in submitted:
            counters = self.state.counters[0]
            if counters["n_waiting"] + counters["n_running"] + len(submitted) > len(self.plan.reserved):
                self.plan = enlarged(self.plan)
            enqueue(self.state, np.int64(self.ids.index(job_id)))
        grid_plan_pass(self.state, self.codes, self.plan, instant)
        for slot in self.state.started[: self.state.counters[0]["n_started"]].tolist():
            first = self.state.first_fragment[slot]
            parts = self.state.fragments[first : first + self.state.n_fragments[slot]]
            self.start[self.ids[slot]] = now
            self.fragments[self.ids[slot]] = tuple((int(site), int(width)) for site, width in parts)

    def end_of(self, job_id: int) -> int:
        """Return when a job that has started ends if nobody cancels it."""
        job = self.jobs[job_id]
        return self.start[job_id] + self.rules.takes(job, job.length, self.fragments[job_id])

    def reserved(self) -> dict[int, Reserved]:
        """Return what is reserved for the jobs that wait."""
        found = {}
        for slot in self.waiting():
            row = self.plan.row[slot]
            start, held = int(self.state.jobs[slot]["promised_ms"]), self.plan.reserved[row]
            parts = self.plan.fragments[row, : held["n_fragments"]]
            fragments = tuple((int(site), int(width)) for site, width in parts)
            found[self.ids[slot]] = Reserved(start, start + int(held["length_ms"]), fragments)
        return found

    def running(self) -> list[Reserved]:
        """Return what the running jobs are expected to hold."""
        slots = running_slots(self.state).tolist()
        return [Reserved(0, int(self.state.end_ms[slot]), self.fragments[self.ids[slot]]) for slot in slots]


def play(grid: Grid, cancellations: Sequence[tuple[int, int]] = ()) -> Iterator[tuple[int, dict[int, Reserved]]]:
    """Step a grid through its case; yield each instant, after its pass, and what is reserved then."""
    ends: dict[int, int] = {}
    widest = {job.id for job in grid.case.jobs if GridPolicy(mode="adaptive").why_never(grid.state.nodes, job.width)}
    assert not widest, "the cases here have no job that must be refused"
    calendar = {job.submit for job in grid.case.jobs} | {when for when, _ in cancellations}
    now = -1
    while upcoming := [one for one in [*calendar, *ends.values(), grid.next_start] if one is not None and one > now]:
        now = min(upcoming)
        ended = sorted(job_id for job_id, end in ends.items() if end == now)
        cancelled = [job_id for when, job_id in cancellations if when == now and job_id not in ended]
        submitted = sorted(job.id for job in grid.case.jobs if job.submit == now)
        grid.step(now, ended, cancelled, submitted)
        gone = {*ended, *cancelled}
        ends = {job_id: end for job_id, end in ends.items() if job_id not in gone}
        ends |= {job_id: grid.end_of(job_id) for job_id, start in grid.start.items() if start == now}
        yield now, grid.reserved()
    assert not grid.waiting()


def options_of(data: st.DataObject, modes: Sequence[str] = MODES) -> dict[str, Any]:
    """Draw a policy that refuses no job."""
    options = data.draw(grid_options(modes, backfills=["conservative"], orders=ORDERS))
    return options | {"max_fragments": None if options["max_fragments"] is None else [(3, 1), (6, 2)]}


def case_of(data: st.DataObject, options: dict[str, Any]) -> GridCase:
    """Draw jobs of which none must be refused."""
    limited = options["mode"] == "sharing" or options["max_fragments"] is not None
    return data.draw(grid_cases(for_one_site=limited))


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_reservation_is_the_one_of_the_reference(data: st.DataObject) -> None:
    """After each pass, with cancellations of jobs that wait or run, both have the same reservations and fragments."""
    options = options_of(data)
    case = case_of(data, options)
    cancellations = data.draw(cancellation_lists(case.jobs))
    plain = {name: value for name, value in options.items() if name != "backfill"}
    want = simulate_reserved(
        case.jobs, case.nodes, cancellations=cancellations, draws=case.draws, sensitivity=case.sensitivity, **plain
    )
    grid = Grid(case, options, room=data.draw(st.integers(1, 20)))
    got = list(play(grid, cancellations))
    kept = [
        (one.now, {job_id: held for job_id, held in one.plan.items() if job_id not in one.started})
        for one in want.moments
    ]
    assert got == kept
    assert (grid.start, grid.fragments) == (want.start, want.fragments)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_reserved_end_is_never_moved_later(data: st.DataObject) -> None:
    """Whatever ends early, is cancelled or comes in, every waiting job keeps its end or gets an earlier one."""
    options = options_of(data)
    case = case_of(data, options)
    before: dict[int, Reserved] = {}
    grid = Grid(case, options, room=4)
    for now, reserved in play(grid, data.draw(cancellation_lists(case.jobs))):
        for job_id, held in reserved.items():
            assert held.start > now
            assert held.end <= before.get(job_id, held).end
        for job_id in before.keys() - reserved.keys():
            if grid.start.get(job_id) == now:
                slot = grid.ids.index(job_id)
                assert grid.state.end_ms[slot] <= before[job_id].end
        before = reserved


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_site_is_overbooked_at_any_instant(data: st.DataObject) -> None:
    """What runs and what is reserved never needs more nodes than a site has, and the profiles say what is left."""
    options = options_of(data)
    case = case_of(data, options)
    grid = Grid(case, options, room=4)
    for now, reserved in play(grid, data.draw(cancellation_lists(case.jobs))):
        held = [*grid.running(), *reserved.values()]
        bounds = sorted({now} | {max(now, edge) for one in held for edge in (one.start, one.end)})
        left = [free(grid.rules, held, instant) for instant in bounds]
        assert min(min(nodes) for nodes in left) >= 0
        for row, steps in enumerate(grid.plan.n_steps.tolist()):
            at = np.searchsorted(grid.plan.step_ms[row, :steps], bounds, side="right") - 1
            of_row = [sum(nodes) if row == len(case.nodes) else nodes[row] for nodes in left]
            assert grid.plan.step_free[row, at].tolist() == of_row


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_with_perfect_estimates_every_job_is_given_its_first_reservation(data: st.DataObject) -> None:
    """Nothing ends early, so no later job and no time that passes changes where and when a job runs."""
    options = options_of(data)
    limited = options["mode"] == "sharing" or options["max_fragments"] is not None
    case = data.draw(grid_cases(perfect=True, for_one_site=limited))
    first: dict[int, Reserved] = {}
    grid = Grid(case, options, room=4)
    for _, reserved in play(grid):
        first = reserved | first
    assert all((grid.start[one], grid.fragments[one]) == (held.start, held.fragments) for one, held in first.items())


def test_rows_of_the_plan_are_used_again() -> None:
    """A thousand jobs that come and go take no more rows than ever waited at once, and all are spare at the end."""
    case = random_grid_jobs(np.random.default_rng(5), 1000, (8, 8, 4), load=0.9)
    options = {"mode": "adaptive", "overhead": 0.3, "backfill": "conservative", "max_fragments": None}
    grid = Grid(case, options, room=1)
    most = max(len(reserved) for _, reserved in play(grid))
    assert most > 8
    assert len(grid.plan.reserved) < 1000
    spare = grid.plan.spare[: grid.plan.counters[0]["n_spare"]].tolist()
    assert sorted(spare) == list(range(len(grid.plan.reserved)))
