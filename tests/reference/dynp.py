"""A self-tuning planning site, slow and plain (docs/dynp.md): every plan made again at every step, exact fractions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from reference.availability import Occupation
from reference.model import DAY, WEEK, Job, Limit, Moment, Running, State, Window
from reference.ordering import key_of
from reference.planning import Planning

THREE = ("fcfs", "sjf", "ljf")
MINUTE = 60_000


@dataclass(frozen=True)
class Tuning:
    """The options of dynP; the names are those of `gridweave.site.disciplines.dynp.policy.DynPPolicy`."""

    policies: tuple[str, ...] = THREE
    decider: str = "advanced"
    preferred: str | None = None
    metric: str = "artww"
    tuning: str = "full"
    slackness: Fraction = Fraction(0)
    first_jobs: int | None = None
    within: int | None = None
    lower: int = 0
    upper: int = 0
    calendar: tuple[tuple[Window, str], ...] = ()
    reading: str = "true"


@dataclass(frozen=True)
class Planned:
    """A waiting job and its planned start."""

    job: Job
    start: int

    @property
    def response(self) -> int:
        """From its submission to its planned end."""
        return self.start + self.job.estimate - self.job.submit


def worth(tuning: Tuning, planned: Sequence[Planned], now: int) -> Fraction | None:
    """Return what a plan is worth by the self-tuning metric; less is better, and None is worst."""
    oldest = list(planned)[: tuning.first_jobs]
    counted = [one for one in oldest if tuning.within is None or one.start - now <= tuning.within]
    if not counted:
        return None
    widths = [one.job.width for one in counted]
    areas = [one.job.width * one.job.estimate for one in counted]
    ones = [1] * len(counted)
    responses = [Fraction(one.response) for one in counted]
    slowdowns = [Fraction(one.response, one.job.estimate) for one in counted]
    per_processor = [
        max(Fraction(one.response, one.job.width * max(one.job.estimate, MINUTE)), Fraction(1)) for one in counted
    ]
    if tuning.metric == "makespan":
        return Fraction(max(one.start + one.job.estimate for one in counted) - now)
    weights, costs = {
        "art": (ones, responses),
        "artwa": (areas, responses),
        "artww": (widths, responses),
        "sld": (ones, slowdowns),
        "sldww": (widths, slowdowns),
        "ppsld60": (ones, per_processor),
    }[tuning.metric]
    return sum((weight * cost for weight, cost in zip(weights, costs, strict=True)), Fraction(0)) / sum(weights)


def chosen_by(tuning: Tuning, values: dict[str, Fraction | None], active: str) -> str:
    """Return the policy that the decider chooses."""
    known = [value for value in values.values() if value is not None]
    best = min(known) if known else None
    alike = [policy for policy in tuning.policies if values[policy] == best]
    if tuning.decider == "preferred" and tuning.preferred in alike:
        return str(tuning.preferred)
    if tuning.decider != "simple" and active in alike:
        return active
    return alike[0]


class SelfTuning(Planning):
    """All plans are made again at every tuning step, and that of the policy in force whenever something happens."""

    def __init__(self, tuning: Tuning, limits: Sequence[Limit], week_offset: int) -> None:
        super().__init__("easy", limits, week_offset)
        self.tuning = tuning
        self.active = tuning.policies[0]
        self.events: set[str] = set()
        self.listed: list[int] = []
        self.decisions = 0
        self.chosen: list[tuple[int, str]] = []

    def freed(self, state: State, *, early: bool) -> None:
        """Take note that something ended."""
        super().freed(state, early=early)
        self.events.add("end")

    def submitted(self, state: State, job: Job) -> None:
        """Take note of a new job."""
        super().submitted(state, job)
        self.events.add("submission")
        self.listed.append(job.id)

    def run_pass(self, state: State) -> tuple[list[Job], Moment]:
        """Return the jobs that start, after a tuning step if one is due, or after several."""
        follows = {"full": {"submission", "end"}, "half": {"submission"}, "starts": {"submission", "end", "start"}}
        waiting = {job.id for job in state.waiting}
        self.listed = [job_id for job_id in self.listed if job_id in waiting]
        started: list[Job] = []
        known: dict[int, int] = {}
        while True:
            if self.events & follows[self.tuning.tuning]:
                self._tune(state)
            self.events = set()
            if not self.stands:
                self.plan = self._plan_of(state, self._sorted(state, self.active))
                self.stands = True
            known |= self.plan
            now = [job for job in self._sorted(state, self.active) if self.plan[job.id] == state.now]
            for job in now:
                del self.plan[job.id]
                self.listed.remove(job.id)
            started += now
            running = [*state.running, *(Running(job, state.now) for job in now)]
            state = replace(state, running=running, waiting=[job for job in state.waiting if job not in now])
            self.events = {"start"}
            if not now or self.tuning.tuning != "starts":
                break
        self.events = set()
        return started, Moment(state.now, tuple(job.id for job in started), plan=known)

    def _tune(self, state: State) -> None:
        if len(state.waiting) < (2 if self.tuning.reading == "thesis" else 1):
            return
        self.decisions += 1
        if self.tuning.decider == "bounds":
            average = Fraction(sum(job.estimate for job in state.waiting), len(state.waiting))
            new = "sjf" if average <= self.tuning.lower else "fcfs" if average <= self.tuning.upper else "ljf"
        elif self.tuning.decider == "calendar":
            inside = [policy for window, policy in self.tuning.calendar if self._holds(window, state.now)]
            new = inside[0] if inside else self.tuning.policies[0]
        else:
            new = self._by_plans(state)
        if new != self.active:
            self.chosen.append((state.now, new))
        self.active = new
        if self.tuning.reading == "thesis":
            self.listed = [job.id for job in self._sorted(state, new)]
        self.stands = False

    def _by_plans(self, state: State) -> str:
        tried = list(self.tuning.policies)
        if self.tuning.reading == "thesis":
            tried = [self.active, *(policy for policy in ("sjf", "fcfs", "ljf") if policy != self.active)]
        values: dict[str, Fraction | None] = {}
        for policy in tried:
            queue = self._sorted(state, policy)
            if self.tuning.reading == "thesis":
                self.listed = [job.id for job in queue]
            plan = self._plan_of(state, queue)
            planned = [Planned(job, plan[job.id]) for job in state.waiting]
            value = worth(self.tuning, planned, state.now)
            if policy == self.active and value is not None:
                value *= 1 - self.tuning.slackness / 100
            values[policy] = value
        return chosen_by(self.tuning, values, self.active)

    def _sorted(self, state: State, policy: str) -> list[Job]:
        """Return the waiting jobs in the order of a policy; in the reading ``thesis`` FCFS leaves the list as it is."""
        if policy == "fcfs" and self.tuning.reading == "thesis":
            by_id = {job.id: job for job in state.waiting}
            return [by_id[job_id] for job_id in self.listed]
        return sorted(state.waiting, key=lambda job: (key_of(job, policy, state.aging), job.submit, job.id))

    def _plan_of(self, state: State, queue: list[Job]) -> dict[int, int]:
        return self._place(state, queue, self._fixed(state))

    def _place_waiting(self, state: State, occupations: list[Occupation]) -> dict[int, int]:
        """Place the waiting jobs in the order of the policy in force."""
        return self._place(state, self._sorted(state, self.active), occupations)

    def _place(self, state: State, queue: list[Job], occupations: list[Occupation]) -> dict[int, int]:
        plan: dict[int, int] = {}
        for job in queue:
            start = self._earliest(state, job, state.now, occupations)
            occupations.append(Occupation(start, start + job.estimate, job.width, job))
            plan[job.id] = start
        return plan

    def _holds(self, window: Window, now: int) -> bool:
        """Whether a window of the week holds an instant."""
        of_week = (now + self.week_offset) % WEEK
        for day in window.days:
            begin = day * DAY + window.from_ms_of_day
            end = day * DAY + window.to_ms_of_day + (DAY if window.to_ms_of_day <= window.from_ms_of_day else 0)
            if any(begin <= moment < end for moment in (of_week, of_week + WEEK)):
                return True
        return False
