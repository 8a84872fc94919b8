"""The actual state of the jobs in a simulated world: their nodes, start and end times, and rates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.sends import Sends
from gridweave.scenarios.batch.stepped import RunningWork
from gridweave.scenarios.world.history import History
from gridweave.scenarios.world.traffic import JobRate, LinkTraffic
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
from gridweave.site.scheduler.contract import OWN, ContractCore, ContractEvent

_NEVER = int(NEVER_MS)


class WorldJob(msgspec.Struct, frozen=True, gc=False):
    """A job that a user at site ``home`` submits to the grid or to this site.

    Only the world knows ``run_ms``, the run time on one site; the job is killed at its limit. The user cancels the job
    at ``cancel_ms`` (-1: never) if it is still waiting at that time.
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
    """The actual state of an attempt; ``missing`` is the number of its fragments that have not started yet.

    A job runs at the rate of its slowest fragment times its rate on the links. ``needs`` is None if the grid reserved
    the nodes, since it reserves whole nodes.
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
    ahead: bool = False  # whether the start is agreed on later; leases are renewed until then

    @property
    def rate(self) -> int:
        """The rate that both the sites and the links allow; 0 if the job is paused."""
        rate = RATE_ONE if self.rates is None else min(self.rates.values())
        return rate * self.on_links // RATE_ONE


class Ran(msgspec.Struct, frozen=True, gc=False):
    """The begin and end of a finished job, and the number of its nodes on each site (``fragments``)."""

    begun_ms: int
    end_ms: int
    fragments: dict[int, int]


class WorldLengths(NamedTuple):
    """The run time of a split job, and the time for which a job holds its nodes before and after its work."""

    split_length_ms: Callable[[int, int, float], int]
    around_ms: int = 0


class Works:
    """The submitted jobs and their attempts; ``slowest`` is the lowest rate above 0 of any job so far.

    ``lengths`` determines the run times of split jobs unless links are simulated (``traffic``).
    """

    def __init__(
        self,
        sites: Sequence[ContractCore],
        lengths: WorldLengths,
        traffic: LinkTraffic | None,
        history: History,
        notify: Callable[[int, ContractEvent], None],
    ) -> None:
        self._sites = sites
        self._split_length_ms, self._around_ms = lengths
        self._traffic = traffic
        self._history = history
        self._notify = notify
        self._jobs: dict[int, WorldJob] = {}
        self._attempts: dict[tuple[int, int], WorldAttempt] = {}
        self._running = RunningWork()
        # The working attempt of each job.
        self._working: dict[int, WorldAttempt] = {}
        # The remaining run time of evicted jobs that keep their progress.
        self._left_ms: dict[int, int] = {}
        self.finished: dict[int, Ran] = {}
        self.slowest = RATE_ONE

    def next_ms(self) -> int:
        """Return the time when the next job ends or the next transfer arrives, or `NEVER_MS`."""
        end_ms = self._running.next_end_ms()
        next_ms = _NEVER if end_ms is None else end_ms
        return next_ms if self._traffic is None else min(next_ms, self._traffic.next_ms)

    @property
    def longest_ms(self) -> int:
        """The maximum of all job estimates and all lengths requested for current attempts."""
        estimates_ms = (handed_in.job.estimate_ms for handed_in in self._jobs.values())
        return max(max(estimates_ms, default=0), max((work.length_ms for work in self._attempts.values()), default=0))

    def hand_in(self, job: WorldJob) -> None:
        """Record a submitted job."""
        job_id = job.job.job_id
        self._jobs[job_id] = job
        self._history.accepted(job_id)

    # -- requests from the grid ------------------------------------------------------------------------------------

    def ask(self, site: int, request: ReserveNodes) -> None:
        """Record the request for a fragment; the grid requests all fragments of an attempt in one step."""
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
        """Record that the grid has delegated a job to one site, which decides when to start it."""
        job, attempt = request.job, request.attempt
        handed_in = self._jobs[job.job_id]
        work = WorldAttempt(job.job_id, attempt, handed_in, {site: job.width}, job.estimate_ms, None, 1)
        work.needs = job.resources
        self._attempts[job.job_id, attempt] = work
        if self._traffic is not None:
            self._traffic.asked(job.job_id, attempt)

    def commit(self, now_ms: int, request: CommitNodes) -> None:
        """Record that an attempt is committed. Each of its sites receives a commit message; only the first counts."""
        key = (request.job_id, request.attempt)
        if request.start_ms is not None:
            work = self._attempts[key]
            work.start_ms, work.ahead = request.start_ms, False
            for site in work.fragments:
                self._history.extended(site, *key, request.start_ms)
        if not self._history.is_committed(*key):
            self._history.committed(now_ms, *key, tuple(self._attempts[key].fragments.items()))

    def renew(self, site: int, request: RenewLeases) -> None:
        """Extend a site's leases for all attempts whose start time has not been agreed on yet."""
        for (job_id, attempt), work in self._attempts.items():
            if work.ahead and site in work.fragments:
                work.start_ms = request.until_ms
                self._history.extended(site, job_id, attempt, request.until_ms)

    def granted(self, site: int, job_id: int, attempt: int) -> None:
        """Record that a site has reserved a fragment's nodes until the agreed start."""
        start_ms = self._attempts[job_id, attempt].start_ms
        assert start_ms is not None, "a site reserves nodes for a job that starts at once"
        self._history.reserved(site, job_id, attempt, start_ms)

    # -- commands from the sites -----------------------------------------------------------------------------------

    def start(self, now_ms: int, site: int, command: StartJob) -> None:
        """Start a fragment on its nodes; the job begins to work when its last fragment has started."""
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
        if len(fragments) == 1:
            # The site may have chosen a different width from the one requested.
            fragments[site] = sum(high - low for low, high in command.nodes)
        asked = fragments[site], command.threads, work.needs, work.handed_in.job.chunk
        history.occupied(now_ms, site, job_id, attempt, command.nodes, *asked)
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
                self._notify(other, FragmentsMet(job_id, attempt))
        # A job with one fragment has just been placed on its nodes, so there is nothing to check.
        history.began(now_ms, job_id, attempt, placed)
        work.begun_ms = now_ms
        run_ms = self._run_ms(now_ms, work)
        if run_ms is not None:
            self._begin(now_ms, work, run_ms)

    def _run_ms(self, now_ms: int, work: WorldAttempt) -> int | None:
        """Return the run time that a job still needs at rate 1; None if the job has to wait for data first."""
        job, fragments = work.handed_in, work.fragments
        if work.attempt == OWN:
            return self._left_ms.get(work.job_id, job.run_ms)
        if self._traffic is not None:
            return self._traffic.begins(now_ms, work.job_id, work.attempt, tuple(fragments.items()), job.run_ms)
        return job.run_ms if len(fragments) == 1 else self._split_length_ms(job.run_ms, len(fragments), job.sensitivity)

    def _begin(self, now_ms: int, work: WorldAttempt, run_ms: int) -> None:
        """Begin the work of a job that has its nodes and data."""
        self._working[work.job_id] = work
        # A site ends a job at its limit, even if its processes started late.
        held_ms = min(run_ms + self._around_ms, max(run_ms, work.length_ms))
        self._running.begin(now_ms, work.job_id, held_ms, work.rate)

    def slow(self, now_ms: int, site: int, command: ChangeRate) -> None:
        """Change a fragment's rate and therefore its job's rate."""
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
        """Move a job to other nodes of its site."""
        self._history.moved(now_ms, site, command.job_id, command.nodes)

    def _set_rate(self, now_ms: int, work: WorldAttempt) -> None:
        """Apply a job's current rate if the job is working."""
        if self._working.get(work.job_id) is work:
            self._running.change_rate(now_ms, work.job_id, work.rate)

    def kill(self, now_ms: int, site: int, job_id: int) -> None:
        """Kill a job that has begun to work; otherwise, end the fragment on this site, so the attempt never begins."""
        core = self._sites[site]
        attempt = core.attempt_of(job_id)
        work = self._attempts[job_id, attempt]
        if work.begun_ms >= 0:
            self._stop(work)
            self._leave(now_ms, work, completed=False)
            return
        work.is_dead = True
        self._history.gave_up(now_ms, site, job_id, core.rendezvous_ms)
        self._notify(site, JobFinished(job_id, succeeded=False))

    def evict(self, now_ms: int, site: int, command: EvictJob) -> None:
        """Evict a job from its nodes. A site's own job goes back to the queue; a grid job leaves all of its sites."""
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
        """Drop all fragments on a crashed site, and these jobs' fragments on other sites."""
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
                    self._notify(other, JobFinished(job_id, succeeded=False))
        self._history.site_failed(now_ms, site)

    # -- links -----------------------------------------------------------------------------------------------------

    def change_rates(self, now_ms: int) -> None:
        """Apply the new rates that result from dividing the bandwidth of the links among the jobs."""
        assert self._traffic is not None, "no links are simulated"
        for job_rate in self._traffic.rates(now_ms):
            self.slowest = min(self.slowest, job_rate.rate) or self.slowest
            if job_rate.works:
                work = self._attempts[job_rate.job_id, job_rate.attempt]
                work.on_links = job_rate.rate
                self._set_rate(now_ms, work)
            self._report_rate(job_rate)

    def _report_rate(self, job_rate: JobRate) -> None:
        """Report a job's rate to its sites."""
        for site in self._attempts[job_rate.job_id, job_rate.attempt].fragments:
            self._notify(site, RateMeasured(job_rate.job_id, job_rate.attempt, job_rate.rate, job_rate.left))

    # -- ends ------------------------------------------------------------------------------------------------------

    def go_on(self, now_ms: int) -> None:
        """Process the transfers that arrive at this instant, and then the jobs that end."""
        if self._traffic is not None and self._traffic.next_ms == now_ms:
            self._serve_data(now_ms, self._traffic)
        for job_id in self._running.ended(now_ms):
            self._end(now_ms, self._working.pop(job_id))

    def _serve_data(self, now_ms: int, traffic: LinkTraffic) -> None:
        """Start the jobs whose input has arrived, and end the jobs whose output has arrived."""
        for job_rate, run_ms in traffic.served(now_ms):
            work = self._attempts[job_rate.job_id, job_rate.attempt]
            if run_ms is None:
                self._leave(now_ms, work, completed=True)
            else:
                self._begin(now_ms, work, run_ms)
                self._report_rate(job_rate)

    def _end(self, now_ms: int, work: WorldAttempt) -> None:
        """Handle the end of a job's work: end the job, unless it has output to send first."""
        job_rate = None
        if self._traffic is not None and work.attempt != OWN:
            job_rate = self._traffic.delivers(now_ms, work.job_id)
        if job_rate is None:
            self._leave(now_ms, work, completed=True)
        else:
            self._report_rate(job_rate)

    def _stop(self, work: WorldAttempt) -> None:
        """Stop the work of a job early, if the job is working."""
        if self._working.get(work.job_id) is work:
            del self._working[work.job_id]
            self._running.leave(work.job_id)

    def _leave(self, now_ms: int, work: WorldAttempt, *, completed: bool) -> None:
        """Remove a job that has finished or was killed from all of its nodes."""
        job_id, fragments, history = work.job_id, work.fragments, self._history
        if completed:
            self.finished[job_id] = Ran(work.begun_ms, now_ms, fragments)
        self._forget(work)
        history.stopped(now_ms, job_id, completed=completed)
        notify = self._notify
        for site in fragments:
            history.left(now_ms, site, job_id)
            notify(site, JobFinished(job_id, completed))
        if completed and work.attempt == OWN:
            history.reported(now_ms, job_id, "finished")

    def _forget(self, work: WorldAttempt) -> None:
        """Drop an attempt that has ended, together with its flows."""
        del self._attempts[work.job_id, work.attempt]
        if self._traffic is not None:
            self._traffic.ends(work.job_id)
