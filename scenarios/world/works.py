"""What the jobs of a simulated world really do: where they are, since when they work, at which rate, until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.sends import Sends
from gridweave.scenarios.batch.stepped import RunningWork
from gridweave.scenarios.world.history import History
from gridweave.scenarios.world.traffic import JobRate, LinkTraffic
from gridweave.site.contract import OWN, ContractCore, ContractEvent
from gridweave.site.job import Job, Resources
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE
from gridweave.site.messages import (
    ChangeRate,
    CommitNodes,
    EnqueueJob,
    EvictJob,
    FragmentsMet,
    JobFinished,
    MoveJob,
    RateMeasured,
    RenewLeases,
    ReserveNodes,
    StartJob,
)

_NEVER = int(NEVER_MS)


class WorldJob(msgspec.Struct, frozen=True, gc=False):
    """A job that a user of site ``home`` hands in, to the grid or there.

    On one site it takes ``run_ms``, known to the world alone, and ends at its limit at the latest. If it still waits at
    ``cancel_ms`` its user takes it back; nobody does at -1.
    """

    submit_ms: int
    job: Job
    run_ms: int
    home: int
    to_grid: bool = True
    sensitivity: float = 1.0
    sends: Sends | None = None
    cancel_ms: int = -1


class WorldAttempt(msgspec.Struct, gc=False):
    """An attempt as it really is: which fragments were asked for, how many are to start, since when the job works.

    A job goes at the rate of its slowest fragment, times what links leave of it. ``needs`` are those of
    which its site knows: the grid reserves whole nodes.
    """

    job_id: int
    attempt: int
    handed_in: WorldJob
    fragments: dict[int, int]
    length_ms: int
    start_ms: int | None = None
    missing: int = 0
    begun_ms: int = -1
    is_dead: bool = False
    rates: dict[int, int] | None = None
    needs: Resources | None = None
    on_links: int = RATE_ONE
    ahead: bool = False  # whether its start is agreed on later, and its leases are renewed until then

    @property
    def rate(self) -> int:
        """The rate that its sites and its links leave it, which may be 0."""
        rate = RATE_ONE if self.rates is None else min(self.rates.values())
        return rate * self.on_links // RATE_ONE


class Ran(msgspec.Struct, frozen=True, gc=False):
    """When a job that has finished began, when it ended, and how many nodes of which sites it had."""

    begun_ms: int
    end_ms: int
    fragments: dict[int, int]


class WorldLengths(NamedTuple):
    """How long a job takes in so many fragments, and holds its nodes besides while its processes start and end."""

    split_length_ms: Callable[[int, int, float], int]
    around_ms: int = 0


class Works:
    """The jobs that were handed in, and what has become of them; ``slowest`` is the lowest rate above 0 that any had.

    ``lengths`` says how long a job takes, where no links (``traffic``) do.
    """

    def __init__(
        self,
        sites: Sequence[ContractCore],
        lengths: WorldLengths,
        traffic: LinkTraffic | None,
        history: History,
        tell: Callable[[int, ContractEvent], None],
    ) -> None:
        self._sites = sites
        self._split_length_ms, self._around_ms = lengths
        self._traffic = traffic
        self._history = history
        self._tell = tell
        self._jobs: dict[int, WorldJob] = {}
        self._attempts: dict[tuple[int, int], WorldAttempt] = {}
        self._running = RunningWork()
        # Of the jobs that work: the attempt that does.
        self._working: dict[int, WorldAttempt] = {}
        # Of jobs that were evicted and keep what they have done: what is left of their work.
        self._left_ms: dict[int, int] = {}
        self.finished: dict[int, Ran] = {}
        self.slowest = RATE_ONE

    def next_ms(self) -> int:
        """Return when the next job ends, or the next data arrives; `NEVER_MS` if none does."""
        end_ms = self._running.next_end_ms()
        next_ms = _NEVER if end_ms is None else end_ms
        return next_ms if self._traffic is None else min(next_ms, self._traffic.next_ms)

    @property
    def longest_ms(self) -> int:
        """No job that was handed in takes longer by its estimate, nor does any by what it was asked for as."""
        estimates_ms = (handed_in.job.estimate_ms for handed_in in self._jobs.values())
        return max(max(estimates_ms, default=0), max((work.length_ms for work in self._attempts.values()), default=0))

    def hand_in(self, job: WorldJob) -> None:
        """Take note of a job."""
        job_id = job.job.job_id
        self._jobs[job_id] = job
        self._history.accepted(job_id)

    # -- what the grid asks for ------------------------------------------------------------------------------------

    def ask(self, site: int, request: ReserveNodes) -> None:
        """Note which fragments make up a job; all of them are asked for in one step of the grid."""
        key = job_id, attempt = request.job_id, request.attempt
        work = self._attempts.get(key)
        if work is None:
            self._attempts[key] = WorldAttempt(
                job_id, attempt, self._jobs[job_id], {site: request.width}, request.length_ms, request.start_ms, 1
            )
            self._attempts[key].ahead = request.ahead
        else:
            work.fragments[site] = request.width
            work.missing += 1
        if self._traffic is not None:
            self._traffic.asked(job_id, attempt)

    def delegate(self, site: int, request: EnqueueJob) -> None:
        """Note that a job is to run on one site, which starts it when it likes."""
        job, attempt = request.job, request.attempt
        handed_in = self._jobs[job.job_id]
        work = WorldAttempt(job.job_id, attempt, handed_in, {site: job.width}, job.estimate_ms, None, 1)
        work.needs = job.resources
        self._attempts[job.job_id, attempt] = work
        if self._traffic is not None:
            self._traffic.asked(job.job_id, attempt)

    def commit(self, now_ms: int, request: CommitNodes) -> None:
        """Note that a job may start; the same is said to each of its sites, and the first time counts."""
        key = (request.job_id, request.attempt)
        if request.start_ms is not None:
            work = self._attempts[key]
            work.start_ms, work.ahead = request.start_ms, False
            for site in work.fragments:
                self._history.extended(site, *key, request.start_ms)
        if not self._history.is_committed(*key):
            self._history.committed(now_ms, *key, tuple(self._attempts[key].fragments.items()))

    def renew(self, site: int, request: RenewLeases) -> None:
        """Note that nodes that a site has reserved ahead, or will have, are reserved for longer."""
        for (job_id, attempt), work in self._attempts.items():
            if work.ahead and site in work.fragments:
                work.start_ms = request.until_ms
                self._history.extended(site, job_id, attempt, request.until_ms)

    def granted(self, site: int, job_id: int, attempt: int) -> None:
        """Note that a site has reserved the nodes of a fragment until the start that was agreed on."""
        start_ms = self._attempts[job_id, attempt].start_ms
        assert start_ms is not None, "a site reserves what is to start at once"
        self._history.reserved(site, job_id, attempt, start_ms)

    # -- what sites do ---------------------------------------------------------------------------------------------

    def start(self, now_ms: int, site: int, command: StartJob) -> None:
        """Put a fragment on its nodes; the job works when it is the last."""
        job_id, history = command.job_id, self._history
        attempt = self._sites[site].attempt_of(job_id)
        if attempt == OWN:
            handed_in = self._jobs[job_id]
            job = handed_in.job
            self._attempts[job_id, OWN] = WorldAttempt(
                job_id, OWN, handed_in, {site: job.width}, job.estimate_ms, None, 1, needs=job.resources
            )
        work = self._attempts[job_id, attempt]
        fragments = work.fragments
        if len(fragments) == 1 and self._sites[site].site.traits.forms:
            fragments[site] = sum(high - low for low, high in command.nodes)
        history.occupied(now_ms, site, job_id, attempt, command.nodes, fragments[site], command.threads, work.needs)
        is_split = len(fragments) > 1
        if is_split:
            history.joined(now_ms, site, job_id, attempt, work.start_ms)
        work.missing -= 1
        if work.missing > 0 or work.is_dead:
            return
        placed: Fragments = ()
        if is_split:
            placed = tuple(fragments.items())
            for other in fragments:
                self._tell(other, FragmentsMet(job_id, attempt))
        # What was put on its nodes just now need not be looked for there.
        history.began(now_ms, job_id, attempt, placed)
        work.begun_ms = now_ms
        run_ms = self._run_ms(now_ms, work)
        if run_ms is not None:
            self._begin(now_ms, work, run_ms)

    def _run_ms(self, now_ms: int, work: WorldAttempt) -> int | None:
        """Return how long a job takes at rate 1 that begins now; None if its data has to come first."""
        job, fragments = work.handed_in, work.fragments
        if work.attempt == OWN:
            return self._left_ms.get(work.job_id, job.run_ms)
        if self._traffic is not None:
            return self._traffic.begins(now_ms, work.job_id, work.attempt, tuple(fragments.items()), job.run_ms)
        return job.run_ms if len(fragments) == 1 else self._split_length_ms(job.run_ms, len(fragments), job.sensitivity)

    def _begin(self, now_ms: int, work: WorldAttempt, run_ms: int) -> None:
        """Let a job work that has its nodes and its data."""
        self._working[work.job_id] = work
        # A site ends what holds its nodes at its limit, also if its processes began late.
        held_ms = min(run_ms + self._around_ms, max(run_ms, work.length_ms))
        self._running.begin(now_ms, work.job_id, held_ms, work.rate)

    def slow(self, now_ms: int, site: int, command: ChangeRate) -> None:
        """Have a fragment, and with it its job, go on at another rate."""
        attempt = self._sites[site].attempt_of(command.job_id)
        work = self._attempts.get((command.job_id, attempt))
        if work is None:
            return
        if work.rates is None:
            work.rates = dict.fromkeys(work.fragments, RATE_ONE)
        work.rates[site] = command.rate
        self.slowest = min(self.slowest, command.rate) or self.slowest
        self._history.paced(site, command.job_id, command.rate)
        self._set_rate(now_ms, work)

    def move(self, now_ms: int, site: int, command: MoveJob) -> None:
        """Have a job go on on other nodes of its site."""
        self._history.moved(now_ms, site, command.job_id, command.nodes)

    def _set_rate(self, now_ms: int, work: WorldAttempt) -> None:
        """Let a job go on at the rate that it has now, if it works."""
        if self._working.get(work.job_id) is work:
            self._running.change_rate(now_ms, work.job_id, work.rate)

    def kill(self, now_ms: int, site: int, job_id: int) -> None:
        """End a fragment, and with it the job if it works; one that waits for its partners will not work any more."""
        core = self._sites[site]
        attempt = core.attempt_of(job_id)
        work = self._attempts[job_id, attempt]
        if work.begun_ms >= 0:
            self._stop(work)
            self._leave(now_ms, work, completed=False)
            return
        work.is_dead = True
        self._history.gave_up(now_ms, site, job_id, core.rendezvous_ms)
        self._tell(site, JobFinished(job_id, succeeded=False))

    def evict(self, now_ms: int, site: int, command: EvictJob) -> None:
        """Take a job off its nodes: an own user's waits again at its site, one of the grid leaves all its sites."""
        job_id, core = command.job_id, self._sites[site]
        attempt = core.attempt_of(job_id)
        if attempt != OWN:
            self.kill(now_ms, site, job_id)
            return
        work = self._attempts[job_id, OWN]
        if command.keeps_work:
            self._left_ms[job_id] = self._running.left_ms(now_ms, job_id)
        self._stop(work)
        self._forget(work)
        self._history.stopped(now_ms, job_id, completed=False)
        self._history.left(now_ms, site, job_id)

    def fail(self, now_ms: int, site: int) -> None:
        """Lose what runs on a site that fails, and with that the other fragments of these jobs."""
        for job_id, attempt in self._history.running_on(site):
            work = self._attempts[job_id, attempt]
            if work.begun_ms < 0:
                work.is_dead = True
                continue
            self._stop(work)
            self._forget(work)
            self._history.stopped(now_ms, job_id, completed=False)
            for other in work.fragments:
                if other != site:
                    self._history.left(now_ms, other, job_id)
                    self._tell(other, JobFinished(job_id, succeeded=False))
        self._history.site_failed(now_ms, site)

    # -- what links do ---------------------------------------------------------------------------------------------

    def change_rates(self, now_ms: int) -> None:
        """Let jobs go on as their links let them."""
        assert self._traffic is not None, "rates change by links that there are not"
        for job_rate in self._traffic.rates(now_ms):
            self.slowest = min(self.slowest, job_rate.rate) or self.slowest
            if job_rate.works:
                work = self._attempts[job_rate.job_id, job_rate.attempt]
                work.on_links = job_rate.rate
                self._set_rate(now_ms, work)
            self._tell_rate(job_rate)

    def _tell_rate(self, job_rate: JobRate) -> None:
        """Tell the sites of a job how it goes on."""
        for site in self._attempts[job_rate.job_id, job_rate.attempt].fragments:
            self._tell(site, RateMeasured(job_rate.job_id, job_rate.attempt, job_rate.rate, job_rate.left))

    # -- ends ------------------------------------------------------------------------------------------------------

    def go_on(self, now_ms: int) -> None:
        """Take in what comes by itself at an instant: first data that arrives, then jobs that have done their work."""
        if self._traffic is not None and self._traffic.next_ms == now_ms:
            self._move_data(now_ms, self._traffic)
        for job_id in self._running.ended(now_ms):
            self._end(now_ms, self._working.pop(job_id))

    def _move_data(self, now_ms: int, traffic: LinkTraffic) -> None:
        """Let jobs work whose data has come, and end those whose output is where it is wanted."""
        for job_rate, run_ms in traffic.served(now_ms):
            work = self._attempts[job_rate.job_id, job_rate.attempt]
            if run_ms is None:
                self._leave(now_ms, work, completed=True)
            else:
                self._begin(now_ms, work, run_ms)
                self._tell_rate(job_rate)

    def _end(self, now_ms: int, work: WorldAttempt) -> None:
        """Have a job end by itself, or send its output first."""
        job_rate = None
        if self._traffic is not None and work.attempt != OWN:
            job_rate = self._traffic.delivers(now_ms, work.job_id)
        if job_rate is None:
            self._leave(now_ms, work, completed=True)
        else:
            self._tell_rate(job_rate)

    def _stop(self, work: WorldAttempt) -> None:
        """Have a job work no more that has not done its work."""
        if self._working.get(work.job_id) is work:
            del self._working[work.job_id]
            self._running.leave(work.job_id)

    def _leave(self, now_ms: int, work: WorldAttempt, *, completed: bool) -> None:
        """Take a job that works off all its nodes: it has finished, or was killed."""
        job_id, fragments, history = work.job_id, work.fragments, self._history
        if completed:
            self.finished[job_id] = Ran(work.begun_ms, now_ms, fragments)
        self._forget(work)
        history.stopped(now_ms, job_id, completed=completed)
        tell = self._tell
        for site in fragments:
            history.left(now_ms, site, job_id)
            tell(site, JobFinished(job_id, completed))
        if completed and work.attempt == OWN:
            history.reported(now_ms, job_id, "finished")

    def _forget(self, work: WorldAttempt) -> None:
        """Have nothing more of an attempt that is over."""
        del self._attempts[work.job_id, work.attempt]
        if self._traffic is not None:
            self._traffic.ends(work.job_id)
