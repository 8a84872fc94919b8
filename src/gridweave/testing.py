"""Checks for code that extends gridweave; `check_discipline` is the conformance suite for disciplines."""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np

from gridweave.errors import OptionError
from gridweave.site.allocation import bits_of
from gridweave.site.array_tasks import indexes_of
from gridweave.site.disciplines.base import Discipline, Traits
from gridweave.site.disciplines.dictionary import DISCIPLINES
from gridweave.site.disciplines.entry import Entry, HasKinds, Policy
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.limits import FROM_MONDAY, week_of
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    ChangeRate,
    Command,
    Event,
    EvictJob,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    MoveJob,
    StartJob,
)
from gridweave.site.resources.chunks import WHOLE_NODE, Chunk, capacity_of, columns_of, request_of
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state

STEPS = 60
"""Number of random steps in each run, after which submissions stop and the site finishes its jobs."""

MOST_STEPS = 2_000
"""Maximum number of steps that the site may take to finish its jobs."""

NEEDED_BY: dict[str, tuple[str, ...]] = {
    "reserves": ("reserve", "unreserve"),
    "learns": ("learn", "answer", "edit_problem", "edit"),
    "counts_work": ("progress",),
    "pauses": ("is_paused", "pause_reason"),
    "forms": ("form_of", "rate_of"),
    "columns": ("figures",),
}
"""Maps a trait to the methods that a discipline with this trait must override."""

ONLY_WITH = ("learns", "counts_work", "forms", "columns")
"""Traits whose methods a discipline must not override without declaring the trait, as they would never be called."""


def check_discipline(entry: Entry, policies: Sequence[Policy] = (), *, nodes: int = 6, seeds: int = 3) -> None:
    """Check that a discipline obeys the laws on which the rest of gridweave relies.

    For each policy, submit, cancel and end random jobs at a `SiteCore`. These are the laws:

    - **Options.** An unknown option is refused; the policy has the discipline's name and a label.
    - **Invariants.** The site's state is consistent, and no job waits forever at an idle site.
    - **Traits match behaviour.** The discipline does nothing that its traits rule out, and overrides the methods that
      its traits require.
    - **Commands are complete.** Jobs run on the nodes and at the rates that the commands named, and time-sliced jobs
      never work on the same node at the same time.
    - **Replay.** A second site issues the same commands for the same events.
    - **State.** A new site that is restored from an encoded state has the same encoded state, and issues the same
      commands from then on.
    - **Copies are independent.** Events and queries sent to a copy of a site do not change the original.
    - **A pass is idempotent.** A second pass at the same instant changes nothing.
    - **Quotes are kept.** A job that is quoted an immediate start starts upon submission. A job starts no later than a
      binding promise, provided that jobs end by their limits and no other events arrive.

    Parameters
    ----------
    entry : Entry
        The discipline; it need not be installed.
    policies : sequence of Policy, optional
        Policies to check; by default the policy without options.
    nodes : int
        Number of nodes of the site; must match policies that specify a number of nodes.
    seeds : int
        Number of random runs per policy.

    Raises
    ------
    AssertionError
        If a law is violated; the message says how, with the policy and the seed.

    Examples
    --------
    >>> from gridweave.site.disciplines.queue import ENTRY
    >>> check_discipline(ENTRY, seeds=1)
    """
    assert entry.lender is None, (
        f"{entry.name} lends nodes of a batch system; check the disciplines that schedule these nodes"
    )
    with _known(entry):
        _check_options(entry, nodes)
        for policy in policies or (entry.read(nodes, {}, {}),):
            assert (policy.discipline, bool(policy.label)) == (entry.name, True), (
                "a policy has no label, or another discipline's name"
            )
            traits = entry.traits_of(policy)
            assert traits.of_any_policy == entry.traits.of_any_policy, "a policy changes Traits.of_any_policy"
            _check_methods(entry.make(nodes, policy, FROM_MONDAY), traits)
            for seed in range(seeds):
                run = _Run(entry, policy, nodes, seed)
                try:
                    run.run()
                except AssertionError as error:
                    where = f"{entry.name}, policy {policy.label!r}, seed {seed}, {run.now_ms} ms"
                    raise AssertionError(f"{where}: {error}") from error
            _check_elastic(entry, policy, nodes)


@contextmanager
def _known(entry: Entry) -> Iterator[None]:
    """Register a discipline during its check; afterwards, restore any previous entry with the same name."""
    before = DISCIPLINES.get(entry.name)
    DISCIPLINES[entry.name] = entry
    try:
        yield
    finally:
        if before is None:
            del DISCIPLINES[entry.name]
        else:
            DISCIPLINES[entry.name] = before


def _check_options(entry: Entry, nodes: int) -> None:
    try:
        entry.read(nodes, {"no_such_option": 1}, {})
    except OptionError:
        return
    raise AssertionError(f"{entry.name} accepts the unknown option no_such_option")


def _check_methods(discipline: Discipline, traits: Traits) -> None:
    for trait, methods in NEEDED_BY.items():
        for method in methods if getattr(traits, trait) else ():
            assert getattr(type(discipline), method) is not getattr(Discipline, method), (
                f"the trait {trait} is declared, but {type(discipline).__name__} has no method {method}"
            )
    for trait in ONLY_WITH:
        for method in () if getattr(traits, trait) else NEEDED_BY[trait]:
            assert getattr(type(discipline), method) is getattr(Discipline, method), (
                f"{type(discipline).__name__} has a method {method}, but the trait {trait} is not declared"
            )
    fits_ms = discipline.copy().reserve(0, 1, 1_000_000, 1_000, 1)
    assert (fits_ms == 1_000_000) == traits.reserves, "the trait reserves contradicts the method reserve"


def _check_elastic(entry: Entry, policy: Policy, nodes: int) -> None:
    """Check that an elastic discipline starts no job while all nodes are gone, and starts it once they return."""
    traits, discipline = entry.traits_of(policy), entry.make(nodes, policy, FROM_MONDAY)
    if not traits.elastic:
        return
    everything, job = (1 << nodes) - 1, Job(job_id=1, width=1, estimate_ms=1_000)
    _resize(discipline, traits, 0, -nodes)
    discipline.submit(0, job)
    assert not discipline.run_pass(0).starts, "a job starts although no node is present"
    _resize(discipline, traits, everything, nodes)
    assert discipline.run_pass(1).starts, "no job starts although all nodes are back"


def _resize(discipline: Discipline, traits: Traits, nodes: int, by: int) -> None:
    if traits.chooses_nodes:
        discipline.serve(0, nodes)
    else:
        discipline.resize(by)


_LATER = week_of([(0, 123_456_789)])
"""A week clock that differs from `FROM_MONDAY`, for disciplines that must not depend on the time of the week."""

_NEEDS = ((1.0, 0.0, 0.0), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
"""Rows of CPU, network and disk use, as fractions; each random job draws one of the rows."""


class _Run:
    """A random run of two sites with the same events; the second site is sometimes restored from a state."""

    def __init__(self, entry: Entry, policy: Policy, nodes: int, seed: int) -> None:
        self._entry, self._policy, self._nodes = entry, policy, nodes
        self._traits = entry.traits_of(policy)
        self._rng = np.random.default_rng(seed)
        self.now_ms = self._number = 0
        self._site = SiteCore(nodes, policy)
        # Without the trait `week`, a discipline must not depend on the week clock, so give the second site another.
        self._second = SiteCore(nodes, policy, week=FROM_MONDAY if self._traits.week else _LATER)
        self._jobs: dict[int, Job] = {}
        self._rate: dict[int, int] = {}
        self._nodes_of: dict[int, int] = {}
        self._chunks_on: dict[int, Counter[int]] = {}

    def run(self) -> None:
        """Take `STEPS` random steps, then let all jobs end."""
        for _ in range(STEPS):
            self.now_ms += int(self._rng.choice([0, 1, 7, 50, 400]))
            self._step(self._events())
            if self._rng.random() < 0.3:
                self._ask()
            if self._rng.random() < 0.1:
                self._second = self._restored()
        for _ in range(MOST_STEPS):
            wakeup_ms = self._site.next_wakeup_ms()
            working = [job_id for job_id, rate in self._rate.items() if rate]
            assert wakeup_ms is None or wakeup_ms > self.now_ms, "a pass is due in the past"
            if not working and wakeup_ms is None:
                break
            self.now_ms = wakeup_ms or self.now_ms + 1
            self._step([JobFinished(job_id) for job_id in working if self._rng.random() < 0.7])
        assert not list(self._site.waiting()), "jobs wait forever on an idle site"
        assert not self._rate, "jobs stay paused forever on an idle site"

    def _restored(self) -> SiteCore:
        """Return a new site that is restored from the site's state."""
        fresh, state = SiteCore(self._nodes, self._policy), dump_state(self._site)
        fresh.restore(read_state(fresh, state))
        assert dump_state(fresh) == state, "a restored site differs from the state that it was restored from"
        return fresh

    def _step(self, events: list[Event]) -> None:
        """Send events to both sites, compare the sites' commands, and check the commands against the traits."""
        bystander = self._site.copy()
        before = dump_state(bystander)
        for event in events:
            if isinstance(event, JobFinished):
                n_figures = len(self._site.figures(self.now_ms, event.job_id))
                assert n_figures == len(self._traits.columns), (
                    f"{n_figures} figures of a job do not match Traits.columns"
                )
                self._rate.pop(event.job_id)
                self._nodes_of.pop(event.job_id)
        commands = self._site.handle(self.now_ms, *events)
        assert dump_state(bystander) == before, "a copy changes when the original does"
        assert self._second.handle(self.now_ms, *events) == commands, "a site with the same events decides differently"
        self._site.check_invariants()
        for command in commands:
            self._carry_out(command)
        self._check_running()
        again = self._site.copy().source.discipline.run_pass(self.now_ms)
        assert not again, f"a second pass at the same instant decides more: {again}"

    def _carry_out(self, command: Command) -> None:
        """Check a command against the traits, and record the nodes and the rate that it gives a job."""
        traits = self._traits
        match command:
            case StartJob(job_id, nodes, threads):
                self._rate[job_id], self._nodes_of[job_id] = RATE_ONE, bits_of(nodes)
                count = sum(stop - start for start, stop in nodes)
                assert count == self._jobs[job_id].width or traits.forms, "a job has more or fewer nodes than its width"
                assert count == bits_of(nodes).bit_count() or traits.fractions or traits.counts_resources, (
                    "a start names a node twice"
                )
                self._chunks_on[job_id] = Counter(indexes_of(nodes))
                assert bool(threads) == traits.assigns_threads, "the threads of a start contradict the trait threads"
            case MoveJob(job_id, nodes):
                assert traits.moves, "a job moves without the trait moves"
                self._nodes_of[job_id] = bits_of(nodes)
            case EvictJob(job_id, keeps_work):
                assert traits.evicts, "a job is evicted without the trait evicts"
                assert traits.saves_work or not keeps_work, "an evicted job keeps its work without the trait saves_work"
                self._rate.pop(job_id)
                self._nodes_of.pop(job_id)
            case ChangeRate(job_id, rate):
                pauses = traits.slices_time or traits.shares_time or traits.pauses
                assert rate or pauses, "a job pauses, but no trait allows it"
                assert rate == RATE_ONE or pauses or traits.shares_nodes or traits.forms, (
                    "a rate changes, but no trait allows it"
                )
                self._rate[job_id] = rate

    def _check_running(self) -> None:
        """Check that the running jobs that the site reports match its commands."""
        running, nodes_of = list(self._site.running()), self._site.source.nodes_of
        assert {run.job.job_id for run in running} == self._rate.keys(), (
            "the running jobs are not the jobs that were started"
        )
        assert nodes_of == self._nodes_of, "a job runs on other nodes than the commands named"
        ends = [(run.end_by_estimate_ms, run.job.job_id) for run in running]
        assert ends == sorted(ends), "the running jobs are not in the order of their ends"
        held, n_held = self._site.source.held(), sum(map(int.bit_count, nodes_of.values()))
        assert held.bit_count() == n_held or self._traits.overlaps, (
            "two jobs have the same node, but no trait allows it"
        )
        if self._traits.counts_resources:
            self._check_resources()
        if self._traits.slices_time:
            working = [nodes for job_id, nodes in nodes_of.items() if self._rate[job_id]]
            n_working = functools.reduce(operator.or_, working, 0).bit_count()
            assert n_working == sum(map(int.bit_count, working)), (
                "two time-sliced jobs work on one node at the same time"
            )
        for job_id, speed, work_ms in self._site.progress(self.now_ms):
            assert speed == self._rate[job_id] / RATE_ONE, "a job works at another speed than the commands named"
            assert work_ms >= 0, "a job has done negative work"

    def _check_resources(self) -> None:
        """Check that running jobs' chunks fit on their nodes, exclusive jobs are alone, and `per_node` is respected."""
        assert isinstance(self._policy, HasKinds), "a policy whose discipline counts resources has no kinds of nodes"
        kinds = [kind for kind in self._policy.kinds for _ in range(kind.count)]
        columns = columns_of(self._policy.kinds)
        used, jobs_on = np.zeros((len(kinds), len(columns)), np.int64), Counter[int]()
        for job_id in self._rate:
            chunk = self._jobs[job_id].chunk or WHOLE_NODE
            for node, count in self._chunks_on[job_id].items():
                assert chunk.suits(kinds[node]), "a job runs on a node that does not suit it"
                assert chunk.per_node in (0, count), "a job has not exactly per_node chunks on each of its nodes"
                used[node] += count * np.array(request_of(chunk, columns))
                jobs_on[node] += 1
        assert (used <= [capacity_of(kind, columns) for kind in kinds]).all(), "a node is overbooked"
        alone = {job_id for job_id in self._rate if (self._jobs[job_id].chunk or WHOLE_NODE).exclusive}
        assert all(jobs_on[node] == 1 for job_id in alone for node in self._chunks_on[job_id]), (
            "an exclusive job shares a node"
        )

    def _chunk(self) -> Chunk | msgspec.UnsetType:
        """Return a random chunk, if the site counts resources."""
        if not self._traits.counts_resources or self._rng.random() < 0.2:
            return msgspec.UNSET
        cores, gpus, per_node = (int(self._rng.choice(values)) for values in ((1, 1, 2, 4), (0, 0, 1), (0, 0, 1, 2)))
        return Chunk(cores=cores, gpus=gpus, per_node=per_node, exclusive=bool(self._rng.random() < 0.1))

    def _job(self) -> Job:
        """Return a random job."""
        self._number += 1
        chunk = self._chunk()
        cpu, network, disk = _NEEDS[self._rng.integers(3)]
        memory, need = float(self._rng.choice([0.1, 0.3, 0.9])), float(self._rng.choice([0.1, 0.5, 1.0]))
        return Job(
            job_id=self._number,
            width=int(self._rng.choice([1, 1, 2, 3, self._nodes, self._nodes + 1]))
            * (chunk.per_node or 1 if chunk else 1),
            estimate_ms=int(self._rng.choice([1, 50, 300, 5_000])),
            user=int(self._rng.integers(3)),
            priority=float(self._rng.integers(3)),
            behind=bool(self._rng.random() < 0.1),
            resources=Resources(cpu=cpu, network=network, disk=disk, memory=memory, cpu_need=need),
            chunk=chunk,
        )

    def _events(self) -> list[Event]:
        """Return random events for one instant: ends, cancellations and submissions of jobs."""
        part = self._rng.choice([0.0, 0.1, 0.9])
        events: list[Event] = [JobFinished(job_id) for job_id in self._rate if self._rng.random() < part]
        waiting = [job.job_id for job, _ in self._site.waiting()]
        if waiting and self._rng.random() < 0.3:
            events.append(JobCancelled(int(self._rng.choice(waiting))))
        for _ in range(int(self._rng.choice([0, 1, 3, 12], p=[0.4, 0.3, 0.2, 0.1]))):
            job = self._job()
            self._jobs[job.job_id] = job
            events.append(JobSubmitted(job, now_or_never=bool(self._rng.random() < 0.1)))
        return events

    def _ask(self) -> None:
        """Send all queries and more events to a copy of the site; check that the site itself does not change."""
        before, copy, job = dump_state(self._site), self._site.copy(), self._job()
        keeps_limits = all(run.end_by_estimate_ms > self.now_ms for run in self._site.running())
        for waiting, _ in self._site.waiting():
            site_reason = copy.explain(self.now_ms, waiting.job_id)
            assert site_reason.reason, "a waiting job has no reason"
            if keeps_limits and site_reason.is_bound and site_reason.start_ms is not None:
                start_ms = _start_by_limits(self._site.copy(), self.now_ms, waiting.job_id)
                assert start_ms <= site_reason.start_ms, f"job {waiting.job_id} starts later than its binding promise"
        copy.quote(self.now_ms, job)
        copy.sharing_offered(self.now_ms, job)
        copy.nodes_ready(self.now_ms)
        if keeps_limits:
            self._check_quote(copy, job)
        self._check_moved_limit(copy)
        copy.handle(self.now_ms, JobSubmitted(job), *(JobFinished(job_id) for job_id in self._rate))
        assert dump_state(self._site) == before, "a query, or a copy that continues, changes the site"

    def _check_quote(self, copy: SiteCore, job: Job) -> None:
        """Check that a job quoted an immediate start does start, and that `startable` and `earliest_start_ms` agree."""
        run, why_never = copy.expected_run(self.now_ms, job), copy.why_never(job)
        assert run is None or why_never is None, f"a quote for a job that can never run: {why_never}"
        assert run is None or run.start_ms >= self.now_ms, "a quoted start is in the past"
        if run is not None and run.start_ms == self.now_ms:
            commands = self._site.copy().handle(self.now_ms, JobSubmitted(job))
            starts = {command.job_id for command in commands if isinstance(command, StartJob)}
            assert job.job_id in starts, "a job that was quoted a start now does not start"
        width = copy.startable(self.now_ms, job.estimate_ms)
        assert 0 <= width <= copy.free, "more nodes are startable now than are free"
        if width:
            start_ms = copy.earliest_start_ms(self.now_ms, width, job.estimate_ms)
            assert start_ms == self.now_ms, f"{width} nodes are startable now, but the earliest start is {start_ms} ms"

    def _check_moved_limit(self, copy: SiteCore) -> None:
        """Check that `expect_end` moves a running job's expected end, unless the discipline counts work."""
        for job_id, nodes in self._site.source.nodes_of.items():
            shared = any(nodes & other for other_id, other in self._site.source.nodes_of.items() if other_id != job_id)
            if self._traits.counts_work or shared or not self._rate[job_id]:
                continue
            end_ms = self.now_ms + 12_345
            copy.source.discipline.expect_end(self.now_ms, job_id, end_ms)
            ends = {run.job.job_id: run.end_by_estimate_ms for run in copy.running()}
            assert ends[job_id] == end_ms, "expect_end did not move the limit"


def _start_by_limits(site: SiteCore, now_ms: int, job_id: int) -> float:
    """Return when a waiting job starts [ms] if all jobs end at their limits and no events arrive; inf if never."""
    for _ in range(MOST_STEPS):
        wakeup_ms = site.next_wakeup_ms()
        if wakeup_ms is None:
            break
        now_ms = max(now_ms + 1, wakeup_ms)
        over = [run.job.job_id for run in site.running() if run.end_by_estimate_ms <= now_ms]
        commands = site.handle(now_ms, *map(JobFinished, over))
        if any(isinstance(command, StartJob) and command.job_id == job_id for command in commands):
            return now_ms
    return float("inf")
