"""What the jobs of a simulated world really do: where they are, since when they work, at which pace, until when.

How long jobs really take in the simulated world: by a rule of thumb, or by the links between their sites.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

import msgspec

from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.sends import Sends
from gridweave.scenarios.world.history import History
from gridweave.site.contract import OWN, ContractCore, ContractEvent
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE, work_done_ms, work_left
from gridweave.site.messages import (
    ChangeRate,
    CommitHold,
    EnqueueJob,
    FragmentsMet,
    HoldNodes,
    JobFinished,
    RateMeasured,
    StartJob,
)


class Pace(NamedTuple):
    """How a job goes on from now.

    Attributes
    ----------
    job_id, attempt : int
    rate : int
        In units of `gridweave.site.kernels.work.RATE_ONE`.
    left : int or None
        By its estimate, in units of work, of all that it has still to do; None if it is what was left so far.
    works : bool
        Whether it is its work that goes on at this rate, rather than its data.
    """

    job_id: int
    attempt: int
    rate: int
    left: int | None = None
    works: bool = True


class Served(NamedTuple):
    """A job whose data has come, or has all been sent.

    Attributes
    ----------
    pace : Pace
    run_ms : int or None
        How long it works from now on at rate 1; None if its output is where it is wanted, and the job over.
    """

    pace: Pace
    run_ms: int | None


class Lengths(Protocol):
    """What the world asks when a job is placed, begins and ends."""

    are_plain: bool
    """Whether rates never change and no data is moved: nothing need be told then, and only `begins` be asked."""

    stirred: bool
    """Whether something has happened at this instant that may change the rates of jobs."""

    next_ms: int
    """When the next data arrives."""

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Take note that a job waits from now on."""

    def given_up(self, job_id: int) -> None:
        """Take note that a job waits no more, and will not run."""

    def asked(self, job_id: int, attempt: int) -> None:
        """Take note that the grid asks for the nodes of an attempt, now."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int | None:
        """Return how long a job takes at rate 1, which takes ``run_ms`` on one site and begins now on these nodes.

        None if it has to wait for its data first; `served` tells when that has come.
        """

    def served(self, now_ms: int) -> Iterable[Served]:
        """Return the jobs whose data has come, or been sent, by now."""

    def delivers(self, now_ms: int, job_id: int) -> Pace | None:
        """Return how a job goes on that has done its work; None if it has no output to send."""

    def ends(self, job_id: int) -> None:
        """Take note that a job works no more."""

    def rates(self, now_ms: int) -> Iterable[Pace]:
        """Return how those jobs go on that do so at another rate from now on."""


class PlainLengths:
    """A number of fragments, and by how much a job takes longer in them.

    Parameters
    ----------
    stretch : callable (run_ms, n_fragments, sensitivity) -> int
        How long a job that takes ``run_ms`` on one site takes in so many fragments.
    sensitivity : dict from int to float
        Of each job.
    """

    def __init__(self, stretch: Callable[[int, int, float], int], sensitivity: dict[int, float]) -> None:
        self._stretch = stretch
        self._sensitivity = sensitivity
        self.are_plain = True
        self.stirred = False
        self.next_ms = int(NEVER_MS)

    def handed_in(self, now_ms: int, job_id: int) -> None:
        """Take no note: there is no data."""

    def given_up(self, job_id: int) -> None:
        """Take no note: there is no data."""

    def asked(self, job_id: int, attempt: int) -> None:
        """Take no note: when a job was placed does not matter."""

    def begins(self, now_ms: int, job_id: int, attempt: int, fragments: Fragments, run_ms: int) -> int:
        """Return how long a job takes."""
        return run_ms if len(fragments) == 1 else self._stretch(run_ms, len(fragments), self._sensitivity[job_id])

    def served(self, now_ms: int) -> Iterable[Served]:
        """Return nothing."""
        return ()

    def delivers(self, now_ms: int, job_id: int) -> Pace | None:
        """Return None: there is no data."""
        return None

    def ends(self, job_id: int) -> None:
        """Take no note: jobs do nothing to each other."""

    def rates(self, now_ms: int) -> Iterable[Pace]:
        """Return nothing."""
        return ()


_NEVER = int(NEVER_MS)


class Submission(msgspec.Struct, frozen=True, gc=False):
    """A job that a user hands in.

    Attributes
    ----------
    submit_ms : int
    job : Job
    run_ms : int
        On one site, where it ends at its limit at the latest; known to the world alone.
    home : int
        Site of the user.
    to_grid : bool
        Whether it is handed to the grid, rather than to the user's site.
    sensitivity : float
        To the overhead of a split.
    sends : Sends, optional
        Over the links between the sites.
    """

    submit_ms: int
    job: Job
    run_ms: int
    home: int
    to_grid: bool = True
    sensitivity: float = 1.0
    sends: Sends | None = None


class Work(msgspec.Struct, gc=False):
    """An attempt as it really is: which fragments were asked for, how many are to start, since when the job works.

    A job goes at the pace of its slowest fragment, times what links leave of it; ``left`` is its work as of
    ``since_ms``. While its data moves it has no end, nor has it when it is over.
    """

    job_id: int
    attempt: int
    submission: Submission
    fragments: dict[int, int]
    length_ms: int
    start_ms: int | None = None
    missing: int = 0
    begun_ms: int = -1
    is_dead: bool = False
    rates: dict[int, int] | None = None
    on_links: int = RATE_ONE
    left: int = 0
    rate: int = RATE_ONE
    moves_data: bool = False
    since_ms: int = 0
    end_ms: int = 0


class Ran(msgspec.Struct, frozen=True, gc=False):
    """When a job that has finished began, when it ended, and how many nodes of which sites it had."""

    begun_ms: int
    end_ms: int
    fragments: dict[int, int]


class Works:
    """The jobs that were handed in, and what has become of them.

    Parameters
    ----------
    lengths : Lengths
        How long jobs take.
    history : History
        Is told what happens.
    tell : callable (site, event)
        Tells a site something.
    plan_end : callable (when_ms, work)
        Has `end` called at that instant.

    Attributes
    ----------
    finished : dict from int to Ran
        The jobs that have finished.
    slowest : int
        The lowest rate above 0 that any job had.
    """

    def __init__(
        self,
        sites: Sequence[ContractCore],
        lengths: Lengths,
        history: History,
        *,
        tell: Callable[[int, ContractEvent], None],
        plan_end: Callable[[int, Work], None],
    ) -> None:
        self._sites = sites
        self._lengths = lengths
        self._are_plain = lengths.are_plain
        self._history = history
        self._tell = tell
        self._plan_end = plan_end
        self._jobs: dict[int, Submission] = {}
        self._work: dict[tuple[int, int], Work] = {}
        self.finished: dict[int, Ran] = {}
        self.slowest = RATE_ONE

    @property
    def longest_ms(self) -> int:
        """No job that was handed in takes longer by its estimate, nor does any by what it was asked for as."""
        estimates_ms = (submission.job.estimate_ms for submission in self._jobs.values())
        return max(max(estimates_ms, default=0), max((work.length_ms for work in self._work.values()), default=0))

    def hand_in(self, submission: Submission) -> None:
        """Take note of a job."""
        job_id = submission.job.job_id
        self._jobs[job_id] = submission
        self._history.accepted(job_id)

    # -- what the grid asks for ------------------------------------------------------------------------------------

    def ask(self, site: int, request: HoldNodes) -> None:
        """Note which fragments make up a job; all of them are asked for in one step of the grid."""
        key = job_id, attempt = request.job_id, request.attempt
        work = self._work.get(key)
        if work is None:
            fragments = {site: request.width}
            submission = self._jobs[job_id]
            self._work[key] = Work(job_id, attempt, submission, fragments, request.length_ms, request.start_ms, 1)
        else:
            work.fragments[site] = request.width
            work.missing += 1
        if not self._are_plain:
            self._lengths.asked(job_id, attempt)

    def delegate(self, site: int, request: EnqueueJob) -> None:
        """Note that a job is to run on one site, which starts it when it likes."""
        job, attempt = request.job, request.attempt
        submission = self._jobs[job.job_id]
        work = Work(job.job_id, attempt, submission, {site: job.width}, job.estimate_ms, None, 1)
        self._work[job.job_id, attempt] = work
        if not self._are_plain:
            self._lengths.asked(job.job_id, attempt)

    def commit(self, now_ms: int, request: CommitHold) -> None:
        """Note that a job may start; the same is said to each of its sites, and the first time counts."""
        key = (request.job_id, request.attempt)
        if not self._history.is_committed(*key):
            self._history.committed(now_ms, *key, tuple(self._work[key].fragments.items()))

    def granted(self, site: int, job_id: int, attempt: int) -> None:
        """Note that a site holds the nodes of a fragment until the start that was agreed on."""
        start_ms = self._work[job_id, attempt].start_ms
        assert start_ms is not None, "a site holds what is to start at once"
        self._history.held(site, job_id, attempt, start_ms)

    # -- what sites do ---------------------------------------------------------------------------------------------

    def start(self, now_ms: int, site: int, command: StartJob) -> None:
        """Put a fragment on its nodes; the job works when it is the last."""
        job_id, history = command.job_id, self._history
        attempt = self._sites[site].attempt_of(job_id)
        if attempt == OWN:
            submission = self._jobs[job_id]
            job = submission.job
            self._work[job_id, OWN] = Work(job_id, OWN, submission, {site: job.width}, job.estimate_ms, None, 1)
        work = self._work[job_id, attempt]
        fragments = work.fragments
        history.occupied(now_ms, site, job_id, attempt, command.nodes, fragments[site], command.threads)
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
        run_ms: int | None = work.submission.run_ms
        if attempt != OWN and (is_split or not self._are_plain):
            run_ms = self._lengths.begins(now_ms, job_id, attempt, tuple(fragments.items()), work.submission.run_ms)
        if run_ms is None:
            work.moves_data, work.end_ms = True, _NEVER
        else:
            self._begin(now_ms, work, run_ms)

    def _begin(self, now_ms: int, work: Work, run_ms: int) -> None:
        """Let a job work that has its nodes and its data."""
        work.since_ms = now_ms
        work.left = run_ms * RATE_ONE
        work.end_ms = end_ms = now_ms + run_ms
        self._plan_end(end_ms, work)
        if work.rates is not None:
            self._set_rate(now_ms, work)

    def slow(self, now_ms: int, site: int, command: ChangeRate) -> None:
        """Have a fragment, and with it its job, go on at another rate."""
        attempt = self._sites[site].attempt_of(command.job_id)
        work = self._work.get((command.job_id, attempt))
        if work is None:
            return
        if work.rates is None:
            work.rates = dict.fromkeys(work.fragments, RATE_ONE)
        work.rates[site] = command.rate
        self.slowest = min(self.slowest, command.rate)
        if work.begun_ms >= 0:
            self._set_rate(now_ms, work)

    def _set_rate(self, now_ms: int, work: Work) -> None:
        """Let a job go on at the rate that its sites and its links leave it, which may be 0."""
        rate = min(work.rates.values()) if work.rates is not None else RATE_ONE
        if work.on_links != RATE_ONE:
            rate = rate * work.on_links // RATE_ONE
        if rate != work.rate and not work.moves_data:
            work.left = int(work_left(work.left, work.rate, work.since_ms, now_ms))
            work.rate, work.since_ms = rate, now_ms
            work.end_ms = int(work_done_ms(work.left, rate, now_ms))
            if work.end_ms < _NEVER:
                self._plan_end(work.end_ms, work)

    def kill(self, now_ms: int, site: int, job_id: int) -> None:
        """End a fragment, and with it the job if it works; one that waits for its partners will not work any more."""
        core = self._sites[site]
        attempt = core.attempt_of(job_id)
        work = self._work[job_id, attempt]
        if work.begun_ms >= 0:
            self._leave(now_ms, work, completed=False)
            return
        work.is_dead = True
        self._history.gave_up(now_ms, site, job_id, core.rendezvous_ms)
        self._tell(site, JobFinished(job_id))

    def fail(self, now_ms: int, site: int) -> None:
        """Lose what runs on a site that fails, and with that the other fragments of these jobs."""
        for job_id, attempt in self._history.running_on(site):
            work = self._work[job_id, attempt]
            if work.begun_ms < 0:
                work.is_dead = True
                continue
            self._forget(work)
            self._history.stopped(now_ms, job_id, completed=False)
            for other in work.fragments:
                if other != site:
                    self._history.left(now_ms, other, job_id)
                    self._tell(other, JobFinished(job_id))
        self._history.site_failed(now_ms, site)

    # -- what links do ---------------------------------------------------------------------------------------------

    def change_rates(self, now_ms: int) -> None:
        """Let jobs go on as their links let them."""
        for pace in self._lengths.rates(now_ms):
            self.slowest = min(self.slowest, pace.rate) or self.slowest
            if pace.works:
                work = self._work[pace.job_id, pace.attempt]
                work.on_links = pace.rate
                self._set_rate(now_ms, work)
            self._tell_pace(pace)

    def _tell_pace(self, pace: Pace) -> None:
        """Tell the sites of a job how it goes on."""
        for site in self._work[pace.job_id, pace.attempt].fragments:
            self._tell(site, RateMeasured(pace.job_id, pace.attempt, pace.rate, pace.left))

    def move_data(self, now_ms: int) -> None:
        """Let jobs work whose data has come, and end those whose output is where it is wanted."""
        for pace, run_ms in self._lengths.served(now_ms):
            work = self._work[pace.job_id, pace.attempt]
            if run_ms is None:
                self._leave(now_ms, work, completed=True)
            else:
                work.moves_data = False
                self._begin(now_ms, work, run_ms)
                self._tell_pace(pace)

    # -- ends ------------------------------------------------------------------------------------------------------

    def end(self, now_ms: int, work: Work) -> None:
        """Have a job end by itself, or send its output first; what was planned at another rate is passed over."""
        if work.end_ms != now_ms:
            return
        pace = None if self._are_plain or work.attempt == OWN else self._lengths.delivers(now_ms, work.job_id)
        if pace is None:
            self._leave(now_ms, work, completed=True)
        else:
            work.moves_data, work.end_ms = True, _NEVER
            self._tell_pace(pace)

    def _leave(self, now_ms: int, work: Work, *, completed: bool) -> None:
        """Take a job that works off all its nodes: it has finished, or was killed."""
        job_id, fragments, history = work.job_id, work.fragments, self._history
        if completed:
            self.finished[job_id] = Ran(work.begun_ms, now_ms, fragments)
        self._forget(work)
        history.stopped(now_ms, job_id, completed=completed)
        tell = self._tell
        for site in fragments:
            history.left(now_ms, site, job_id)
            tell(site, JobFinished(job_id))
        if completed and work.attempt == OWN:
            history.reported(now_ms, job_id, "finished")

    def _forget(self, work: Work) -> None:
        """Have nothing more of an attempt that works no longer; an end that is planned for it is passed over."""
        del self._work[work.job_id, work.attempt]
        work.end_ms = _NEVER
        if not self._are_plain:
            self._lengths.ends(work.job_id)
