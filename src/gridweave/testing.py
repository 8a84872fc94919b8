"""Checks for code that plugs into gridweave: `check_discipline` is the conformance suite of all disciplines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gridweave.errors import OptionError
from gridweave.site.allocation import bits_of
from gridweave.site.disciplines.base import Discipline, Traits
from gridweave.site.disciplines.dictionary import DISCIPLINES
from gridweave.site.disciplines.entry import Entry, Policy
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
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state

STEPS = 60
"""Steps of each random run, before the site is left to finish its jobs."""

MOST_STEPS = 2_000
"""Steps in which a site must have finished its jobs."""

NEEDED_BY: dict[str, tuple[str, ...]] = {
    "reserves": ("reserve", "unreserve"),
    "learns": ("learn", "known_times", "edit_times"),
    "counts_work": ("progress",),
    "pauses": ("is_paused", "pause_reason"),
    "forms": ("form_of", "rate_of"),
    "columns": ("figures",),
}
"""The methods that a discipline with a trait must override."""

ONLY_WITH = ("learns", "counts_work", "forms", "columns")
"""Traits without which nothing calls these methods: overriding one would have no effect."""


def check_discipline(entry: Entry, policies: Sequence[Policy] = (), *, nodes: int = 6, seeds: int = 3) -> None:
    """Check that a discipline keeps the laws that the rest of gridweave relies on.

    Random jobs are submitted, cancelled and ended at a `SiteCore`, under each policy. The laws:

    - **Options.** An unknown option is refused; the policy is of the discipline of that name, and has a label.
    - **Invariants.** The site never contradicts itself, and an idle site leaves no job waiting.
    - **Traits match behaviour.** The discipline does nothing that its traits rule out, and overrides the methods that
      its traits call for.
    - **Replay.** A second site that hears the same events gives the same commands.
    - **State.** A fresh site that is restored from the encoded state gives the same commands from then on.
    - **Copies leave no trace.** What is done to a copy, questions included, does not change the original.
    - **A pass is idempotent.** A second pass at one instant changes nothing.
    - **A quote is kept.** A job that could start now, by the quote, starts when it is submitted; and a job starts no
      later than a promise that binds the site, if jobs end by their limits and nothing else comes.

    Parameters
    ----------
    entry : Entry
        It need not be installed.
    policies : sequence of Policy, optional
        Under which to check it; by default the one that is read from no options.
    nodes : int
        Nodes of the site; what the policies ask for, where they ask for a number.
    seeds : int
        Random runs for each policy.

    Raises
    ------
    AssertionError
        With the law that is broken, the policy and the seed.

    Examples
    --------
    >>> from gridweave.site.disciplines.queue import ENTRY
    >>> check_discipline(ENTRY, seeds=1)
    """
    assert entry.lender is None, f"{entry.name} names a source of nodes; check the disciplines that decide on these"
    with _known(entry):
        _check_options(entry, nodes)
        for policy in policies or (entry.read(nodes, {}, {}),):
            assert (policy.discipline, bool(policy.label)) == (entry.name, True), (
                "a policy has no label, or not this name"
            )
            _check_methods(entry.make(nodes, policy, FROM_MONDAY), entry.traits_of(policy))
            for seed in range(seeds):
                run = _Run(entry, policy, nodes, seed)
                try:
                    run.play()
                except AssertionError as error:
                    where = f"{entry.name}, policy {policy.label!r}, seed {seed}, {run.now_ms} ms"
                    raise AssertionError(f"{where}: {error}") from error
            _check_elastic(entry, policy, nodes)


@contextmanager
def _known(entry: Entry) -> Iterator[None]:
    """Have an entry in the dictionary while it is checked."""
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
    raise AssertionError(f"{entry.name} takes an option that it cannot know: no_such_option")


def _check_methods(discipline: Discipline, traits: Traits) -> None:
    for trait, methods in NEEDED_BY.items():
        for method in methods if getattr(traits, trait) else ():
            assert getattr(type(discipline), method) is not getattr(Discipline, method), (
                f"the trait {trait} is declared, and {type(discipline).__name__} has no method {method}"
            )
    for trait in ONLY_WITH:
        for method in () if getattr(traits, trait) else NEEDED_BY[trait]:
            assert getattr(type(discipline), method) is getattr(Discipline, method), (
                f"{type(discipline).__name__} has a method {method}, and the trait {trait} is not declared"
            )
    fits_ms = discipline.copy().reserve(0, 1, 1_000_000, 1_000, 1)
    assert (fits_ms == 1_000_000) == traits.reserves, "the trait reserves is wrong"


def _check_elastic(entry: Entry, policy: Policy, nodes: int) -> None:
    """Check that a discipline which stands that nodes come and go uses none that have left."""
    traits, discipline = entry.traits_of(policy), entry.make(nodes, policy, FROM_MONDAY)
    if not traits.elastic:
        return
    everything, job = (1 << nodes) - 1, Job(job_id=1, width=1, estimate_ms=1_000)
    _resize(discipline, traits, 0, -nodes)
    discipline.submit(0, job)
    assert not discipline.run_pass(0).starts, "a job starts though no node is there"
    _resize(discipline, traits, everything, nodes)
    assert discipline.run_pass(1).starts, "no job starts though all nodes are back"


def _resize(discipline: Discipline, traits: Traits, nodes: int, by: int) -> None:
    if traits.chooses_nodes:
        discipline.serve(0, nodes)
    else:
        discipline.resize(by)


_LATER = week_of([(0, 123_456_789)])
"""Another time of the week than `FROM_MONDAY`, for disciplines that do not depend on it."""

_NEEDS = ((1.0, 0.0, 0.0), (0.1, 0.8, 0.1), (0.1, 0.1, 0.8))
"""Use of CPU, network and disk by random jobs."""


class _Run:
    """A random run of one site, and of a second one that hears the same and is restored now and then."""

    def __init__(self, entry: Entry, policy: Policy, nodes: int, seed: int) -> None:
        self._entry, self._policy, self._nodes = entry, policy, nodes
        self._traits = entry.traits_of(policy)
        self._rng = np.random.default_rng(seed)
        self.now_ms = self._number = 0
        self._site = SiteCore(nodes, policy)
        # By its traits the discipline may not depend on the week, so the second site has another one.
        self._second = SiteCore(nodes, policy, week=FROM_MONDAY if self._traits.week else _LATER)
        self._jobs: dict[int, Job] = {}
        self._rate: dict[int, int] = {}

    def play(self) -> None:
        """Run random steps, and then let all jobs end."""
        for _ in range(STEPS):
            self.now_ms += int(self._rng.choice([0, 1, 7, 50, 400]))
            self._step(self._events())
            if self._rng.random() < 0.3:
                self._ask()
            if self._rng.random() < 0.1:
                fresh = SiteCore(self._nodes, self._policy)
                fresh.restore(read_state(fresh, dump_state(self._site)))
                self._second = fresh
        for _ in range(MOST_STEPS):
            wakeup_ms = self._site.next_wakeup_ms()
            working = [job_id for job_id, rate in self._rate.items() if rate]
            assert wakeup_ms is None or wakeup_ms > self.now_ms, "a pass is due at an instant that has passed"
            if not working and wakeup_ms is None:
                break
            self.now_ms = wakeup_ms or self.now_ms + 1
            self._step([JobFinished(job_id) for job_id in working if self._rng.random() < 0.7])
        assert not list(self._site.waiting()), "jobs wait for ever on an idle site"
        assert not self._rate, "jobs pause for ever on an idle site"

    def _step(self, events: list[Event]) -> None:
        """Tell both sites what happens, compare their commands, and check them against the traits."""
        bystander = self._site.copy()
        before = dump_state(bystander)
        for event in events:
            if isinstance(event, JobFinished):
                n_figures = len(self._site.figures(self.now_ms, event.job_id))
                assert n_figures == len(self._traits.columns), f"{n_figures} figures of a job, for the columns declared"
                self._rate.pop(event.job_id)
        commands = self._site.handle(self.now_ms, *events)
        assert dump_state(bystander) == before, "a copy changes when the original does"
        assert self._second.handle(self.now_ms, *events) == commands, "a site that heard the same decides otherwise"
        self._site.check_invariants()
        for command in commands:
            self._carry_out(command)
        self._check_running()
        again = self._site.copy().source.discipline.run_pass(self.now_ms)
        assert not again, f"a second pass at one instant decides more: {again}"

    def _carry_out(self, command: Command) -> None:
        """Apply a command, if the traits allow it."""
        traits = self._traits
        match command:
            case StartJob(job_id, nodes, threads):
                self._rate[job_id] = RATE_ONE
                count = sum(stop - start for start, stop in nodes)
                assert count == self._jobs[job_id].width or traits.forms, "a job has more or fewer nodes than its width"
                assert count == bits_of(nodes).bit_count() or traits.fractions, "a start names a node twice"
                assert bool(threads) == traits.assigns_threads, "threads are named, or are not, against the traits"
            case MoveJob():
                assert traits.moves, "a job moves, against the traits"
            case EvictJob(job_id, keeps_work):
                assert traits.evicts, "a job is evicted, against the traits"
                assert traits.saves_work or not keeps_work, "an evicted job keeps its work, against the traits"
                self._rate.pop(job_id)
            case ChangeRate(job_id, rate):
                pauses = traits.slices_time or traits.shares_time or traits.pauses
                assert rate or pauses, "a job pauses, against the traits"
                assert rate == RATE_ONE or pauses or traits.shares_nodes or traits.forms, "a rate changes, against them"
                self._rate[job_id] = rate

    def _check_running(self) -> None:
        """Compare what the site says about its running jobs with what it has commanded."""
        running, nodes_of = list(self._site.running()), self._site.source.nodes_of
        assert {run.job.job_id for run in running} == self._rate.keys(), "other jobs run than were started"
        ends = [(run.end_by_estimate_ms, run.job.job_id) for run in running]
        assert ends == sorted(ends), "the running jobs are not in the order of their ends"
        held, n_held = self._site.source.held(), sum(map(int.bit_count, nodes_of.values()))
        assert held.bit_count() == n_held or self._traits.overlaps, "two jobs have one node, against the traits"
        for job_id, speed, work_ms in self._site.progress(self.now_ms):
            assert speed == self._rate[job_id] / RATE_ONE, "a job works at another speed than was commanded"
            assert work_ms >= 0, "a job has done less than nothing"

    def _job(self) -> Job:
        """Return a random job."""
        self._number += 1
        cpu, network, disk = _NEEDS[self._rng.integers(3)]
        memory, need = float(self._rng.choice([0.1, 0.3, 0.9])), float(self._rng.choice([0.1, 0.5, 1.0]))
        return Job(
            job_id=self._number,
            width=int(self._rng.choice([1, 1, 2, 3, self._nodes, self._nodes + 1])),
            estimate_ms=int(self._rng.choice([1, 50, 300, 5_000])),
            user=int(self._rng.integers(3)),
            priority=float(self._rng.integers(3)),
            behind=bool(self._rng.random() < 0.1),
            resources=Resources(cpu=cpu, network=network, disk=disk, memory=memory, cpu_need=need),
        )

    def _events(self) -> list[Event]:
        """Return what happens at an instant."""
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
        """Ask a copy all questions, and have the copy continue; that leaves no trace in the site."""
        before, copy, job = dump_state(self._site), self._site.copy(), self._job()
        keeps_limits = all(run.end_by_estimate_ms > self.now_ms for run in self._site.running())
        for waiting, _ in self._site.waiting():
            said = copy.explain(self.now_ms, waiting.job_id)
            assert said.reason, "a waiting job has no reason"
            if keeps_limits and said.is_bound and said.start_ms is not None:
                start_ms = _start_by_limits(self._site.copy(), self.now_ms, waiting.job_id)
                assert start_ms <= said.start_ms, f"job {waiting.job_id} starts later than a promise that binds"
        copy.quote(self.now_ms, job)
        copy.sharing_offered(self.now_ms, job)
        copy.nodes_ready(self.now_ms)
        if keeps_limits:
            self._check_quote(copy, job)
        self._check_moved_limit(copy)
        copy.handle(self.now_ms, JobSubmitted(job), *(JobFinished(job_id) for job_id in self._rate))
        assert dump_state(self._site) == before, "a question, or a copy that continues, leaves a trace"

    def _check_quote(self, copy: SiteCore, job: Job) -> None:
        """Check that what could start now does when it is submitted."""
        run, why_never = copy.expected_run(self.now_ms, job), copy.why_never(job)
        assert run is None or why_never is None, f"a quote for a job that can never run: {why_never}"
        assert run is None or run.start_ms >= self.now_ms, "a quote is for an instant that has passed"
        if run is not None and run.start_ms == self.now_ms:
            commands = self._site.copy().handle(self.now_ms, JobSubmitted(job))
            starts = {command.job_id for command in commands if isinstance(command, StartJob)}
            assert job.job_id in starts, "a job does not start though its quote was for now"
        width = copy.startable(self.now_ms, job.estimate_ms)
        assert 0 <= width <= copy.free, "more nodes could be had at once than are free"
        if width:
            start_ms = copy.earliest_start_ms(self.now_ms, width, job.estimate_ms)
            assert start_ms == self.now_ms, f"{width} nodes could be had at once, and yet not before {start_ms} ms"

    def _check_moved_limit(self, copy: SiteCore) -> None:
        """Check that the limit of a running job moves, where limits are instants."""
        for job_id, nodes in self._site.source.nodes_of.items():
            shared = any(nodes & other for other_id, other in self._site.source.nodes_of.items() if other_id != job_id)
            if self._traits.counts_work or shared or not self._rate[job_id]:
                continue
            end_ms = self.now_ms + 12_345
            copy.source.discipline.expect_end(self.now_ms, job_id, end_ms)
            ends = {run.job.job_id: run.end_by_estimate_ms for run in copy.running()}
            assert ends[job_id] == end_ms, "a limit that was moved is where it was"


def _start_by_limits(site: SiteCore, now_ms: int, job_id: int) -> float:
    """Return when a waiting job starts if all jobs end by their limits and nothing else comes; inf if it does not."""
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
