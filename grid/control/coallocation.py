"""Co-allocation: reserve a job's nodes on all its sites, then commit all or release all (docs/contract.md).

A single fragment needs no second phase. Even if messages are lost or processes crash, no fragment does work without the
job's other fragments, and no node stays reserved after its lease (docs/contract.md, "Why no part of a job runs alone").
"""

from __future__ import annotations

import msgspec

from gridweave.grid.lifecycle import ASKED, ATTEMPT
from gridweave.grid.messages import GridCommand, ToSite
from gridweave.site.job import Job
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.lifecycle import Lifecycle
from gridweave.site.messages import (
    Answer,
    CancelJob,
    CommitNodes,
    Ended,
    LeaseEnded,
    Quoted,
    Refused,
    ReleaseNodes,
    Reserved,
    ReserveNodes,
    SiteChanged,
    Started,
)

Fragments = tuple[tuple[int, int], ...]
"""The site and the width (number of nodes, or of chunks if the job asks for chunks) of each fragment."""

MOST_MARGINS = 16
"""The largest margin, as a multiple of the smallest margin."""

REFUSED, MOVED, PART_ENDED, ENDED, FAILED = "refused", "moved", "part ended", "ended", "failed"


class Attempt(msgspec.Struct, gc=False):
    """An attempt to run a job on certain nodes.

    Attributes
    ----------
    job : Job
    number : int
        The number of the attempt, from 1.
    fragments : tuple of (int, int)
        The site and the width of each fragment.
    length_ms : int
        The job's maximum run time.
    start_ms : int
        The agreed start. For a single fragment, the time of the request, until the site reports the actual start.
    state : str
        A state of `gridweave.grid.lifecycle.ATTEMPT`.
    missing : set of int
        The sites that have not answered the request.
    ended : dict of int to str
        The outcome of each fragment that has ended, by site.
    ending : bool
        Whether the sites have been asked to end their fragments.
    cancelled : bool
        Whether the user cancelled the job.
    """

    job: Job
    number: int
    fragments: Fragments
    length_ms: int
    start_ms: int
    state: str
    missing: set[int]
    ended: dict[int, str] = {}
    ending: bool = False
    cancelled: bool = False
    # Whether each site reserves its nodes as soon as they are free; the start is agreed once all are reserved.
    ahead: bool = False

    @property
    def outcome(self) -> str | None:
        """The outcome of the whole job; None if the job needs another attempt."""
        others = set(self.ended.values()) - {"finished"}
        if others & {"lost", "unmet", "lease-ended"}:
            return None
        # If one fragment failed, the grid ended the others, so "failed" comes first.
        return min(others, key=("failed", "limit", "cancelled").index, default="finished")

    @property
    def left(self) -> list[int]:
        """The sites whose fragment of the job has not ended."""
        return [site for site, _ in self.fragments if site not in self.ended]


class AttemptChange(msgspec.Struct, frozen=True, gc=False):
    """A change in an attempt that the level of control must handle.

    Attributes
    ----------
    kind : str
        `REFUSED` if a site refused the attempt, `MOVED` if the start differs from the expected start, `PART_ENDED` if
        one fragment ended, `ENDED` if all fragments ended, `FAILED` if the attempt was given up before the commit.
    attempt : Attempt
    sites : tuple of int
        Depending on `kind`, the sites that refused, the sites that did not answer, or the ended fragment's site.
    never : str, optional
        Why the site that refused can never run the job.
    refusal : str
        Why the site refused.
    """

    kind: str
    attempt: Attempt
    sites: tuple[int, ...] = ()
    never: str | None = None
    refusal: str = ""


class AttemptsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempts in progress, and the jobs whose attempt has not yet been granted by every site involved."""

    attempts: list[Attempt]
    asking: list[int]
    margin_ms: int | None = None  # the current margin, or None for the smallest


def sent(job: Job) -> Job | None:
    """Return what a request for a fragment says about its job: what its chunks ask for; None for whole nodes."""
    if not job.chunk:
        return None
    return Job(job_id=job.job_id, width=job.width, estimate_ms=job.estimate_ms, chunk=job.chunk)


class CoAllocator:
    """Run the attempts of all jobs: reserve nodes, then commit or release.

    Parameters
    ----------
    margin_ms : int
        The smallest margin: how far in advance sites agree on the start of a split job. The margin must be long
        enough for a request, its answer and the commit to arrive, even if some messages are lost and sent again.

    Attributes
    ----------
    margin_ms : int
        The current margin. It doubles when an agreed start comes too soon, up to `MOST_MARGINS` times the smallest
        margin, and shrinks by a quarter when all sites grant a start in time.
    attempts : dict of int to Attempt
        The attempts in progress, by job.
    asking : dict of int to Attempt
        The attempts that have not yet been granted by every site involved, by job.
    """

    def __init__(self, margin_ms: int) -> None:
        self.margin_ms = self._least_margin_ms = margin_ms
        self.attempts: dict[int, Attempt] = {}
        self.asking: dict[int, Attempt] = {}
        self._life = Lifecycle(ATTEMPT)

    def state(self) -> AttemptsState:
        """Return the state: the attempts in progress and the margin."""
        return AttemptsState(list(self.attempts.values()), list(self.asking), self.margin_ms)

    def restore(self, state: AttemptsState) -> None:
        """Restore the attempts and the margin."""
        self.attempts = {attempt.job.job_id: attempt for attempt in state.attempts}
        self.asking = {job_id: self.attempts[job_id] for job_id in state.asking}
        self.margin_ms = self._least_margin_ms if state.margin_ms is None else state.margin_ms

    def reconsider(self) -> None:
        """Reset the margin to the smallest one, after a change of settings."""
        self.margin_ms = self._least_margin_ms

    def copy(self) -> CoAllocator:
        """Return an independent copy."""
        new = CoAllocator(self._least_margin_ms)
        new.margin_ms = self.margin_ms
        for job_id, attempt in self.attempts.items():
            sets = {"missing": set(attempt.missing), "ended": dict(attempt.ended)}
            new.attempts[job_id] = msgspec.structs.replace(attempt, **sets)
        for job_id in self.asking:
            new.asking[job_id] = new.attempts[job_id]
        return new

    @property
    def asked(self) -> list[Attempt]:
        """The attempts that are waiting for sites' answers, except the `ahead` attempt."""
        return [attempt for attempt in self.asking.values() if not attempt.ahead]

    @property
    def ahead(self) -> Attempt | None:
        """The attempt for which sites reserve nodes ahead, or None.

        There is at most one such attempt, because two could wait for each other's nodes.
        """
        return next((attempt for attempt in self.asking.values() if attempt.ahead), None)

    def begin_ahead(
        self, job: Job, number: int, fragments: Fragments, length_ms: int, lease_until_ms: int
    ) -> list[GridCommand]:
        """Ask each site to lease nodes to a job as soon as the nodes are free; for the parameters see `begin`."""
        missing = {site for site, _ in fragments}
        state = self._life.begin(job.job_id, "ask")
        attempt = Attempt(job, number, fragments, length_ms, int(NEVER_MS), state, missing, ahead=True)
        self.attempts[job.job_id] = self.asking[job.job_id] = attempt
        asked, length = (job.job_id, number), (length_ms, lease_until_ms)
        return [
            ToSite(site, ReserveNodes(*asked, width, *length, job=sent(job), evictions=job.evictions, ahead=True))
            for site, width in fragments
        ]

    def begin(
        self, now_ms: int, job: Job, number: int, fragments: Fragments, length_ms: int, *, includes_job: bool = False
    ) -> list[GridCommand]:
        """Request a job's nodes from the sites.

        Parameters
        ----------
        number : int
            The number of the attempt, higher than the number of any earlier attempt of the job.
        length_ms : int
            The job's maximum run time on these fragments.
        includes_job : bool
            Whether a request to a single site includes the job's needs per node, so that other jobs can share them.
            A request for chunks always includes the job.
        """
        if len(fragments) == 1:
            ((site, width),) = fragments
            job_id = job.job_id
            state = self._life.begin(job_id, "ask one")
            self.attempts[job_id] = Attempt(job, number, fragments, length_ms, now_ms, state, set())
            sent_job = job if includes_job else sent(job)
            asked = ReserveNodes(job_id, number, width, length_ms, job=sent_job, evictions=job.evictions)
            return [ToSite(site, asked)]
        return self._ask_all(job, number, fragments, length_ms, now_ms + self.margin_ms)

    def begin_beside(
        self, now_ms: int, job: Job, number: int, site: int, work_ms: int, slowdown: float, end_ms: int
    ) -> list[GridCommand]:
        """Ask a site to start a job on shared nodes if other jobs slow it down by a factor of at most `slowdown`."""
        fragments = ((site, job.width),)
        state = self._life.begin(job.job_id, "ask one")
        self.attempts[job.job_id] = Attempt(job, number, fragments, end_ms - now_ms, now_ms, state, set())
        asked = ReserveNodes(job.job_id, number, job.width, work_ms, job=job, evictions=job.evictions, beside=slowdown)
        return [ToSite(site, asked)]

    def _ask_all(self, job: Job, number: int, fragments: Fragments, length_ms: int, start_ms: int) -> list[GridCommand]:
        missing = {site for site, _ in fragments}
        state = self._life.begin(job.job_id, "ask")
        attempt = Attempt(job, number, fragments, length_ms, start_ms, state, missing)
        self.attempts[job.job_id] = self.asking[job.job_id] = attempt
        asked = job.job_id, number
        return [
            ToSite(site, ReserveNodes(*asked, width, length_ms, start_ms, sent(job), job.evictions))
            for site, width in fragments
        ]

    def answered(self, now_ms: int, site: int, answer: Answer) -> tuple[list[GridCommand], AttemptChange | None]:
        """Apply a site's answer; return the commands to send and the change in the attempt, if any."""
        if isinstance(answer, (Quoted, SiteChanged)):
            return [], None
        attempt = self.attempts.get(answer.job_id)
        if attempt is None or attempt.number != answer.attempt:
            return [], None
        match answer:
            case Started(start_ms=start_ms) if len(attempt.fragments) == 1 and start_ms != attempt.start_ms:
                attempt.start_ms = start_ms
                return [], AttemptChange(MOVED, attempt)
            case Ended(outcome=outcome):
                return self._over(attempt, site, outcome)
            case Reserved():
                return self._held(now_ms, site, attempt), None
            case Refused(reason=reason, cause=cause):
                if len(attempt.fragments) > 1 and now_ms >= attempt.start_ms:
                    self._came_too_soon()
                never = reason if cause == "never" else None
                refusal = reason or "it gave no reason"
                return self._give_up(attempt, site), AttemptChange(REFUSED, attempt, (site,), never, refusal)
            case LeaseEnded():
                if attempt.state == ASKED:
                    # The lease ends when the attempt expires, so the sites that have not answered are the cause.
                    silent = tuple(sorted(attempt.missing)) if now_ms > attempt.start_ms else ()
                    return self._give_up(attempt, site), AttemptChange(FAILED, attempt, silent)
                if not attempt.ending:
                    self._came_too_soon()
                return self._over(attempt, site, "lease-ended")
            case _:
                return [], None

    def _held(self, now_ms: int, site: int, attempt: Attempt) -> list[GridCommand]:
        attempt.missing.discard(site)
        if attempt.missing or attempt.state != ASKED or now_ms > attempt.start_ms:
            return []
        self._life.change(attempt.job.job_id, attempt, "commit")
        self.margin_ms = max(self._least_margin_ms, self.margin_ms * 3 // 4)
        del self.asking[attempt.job.job_id]
        agreed_ms = None
        if attempt.ahead:
            agreed_ms = attempt.start_ms = now_ms + self.margin_ms
        commit = CommitNodes(attempt.job.job_id, attempt.number, start_ms=agreed_ms)
        return [ToSite(site, commit) for site, _ in attempt.fragments]

    def _came_too_soon(self) -> None:
        """Double the margin, because messages take longer than the current margin."""
        self.margin_ms = min(2 * self.margin_ms, MOST_MARGINS * self._least_margin_ms)

    def _give_up(self, attempt: Attempt, but: int | None) -> list[GridCommand]:
        """Drop an attempt that has not started; release its nodes at all sites except `but`, answered or not."""
        job_id = attempt.job.job_id
        self._life.change(job_id, attempt, "give up")
        del self.attempts[job_id]
        self.asking.pop(job_id, None)
        return [ToSite(s, ReleaseNodes(job_id, attempt.number)) for s, _ in attempt.fragments if s != but]

    def _over(self, attempt: Attempt, site: int, outcome: str) -> tuple[list[GridCommand], AttemptChange | None]:
        """Record a fragment's end; end the other fragments if this one failed, was lost or missed the common start."""
        is_news = site not in attempt.ended
        attempt.ended[site] = outcome
        if len(attempt.ended) < len(attempt.fragments):
            commands = self._end(attempt, attempt.left) if outcome in ("lost", "failed", "unmet") else []
            return commands, AttemptChange(PART_ENDED, attempt, (site,)) if is_news else None
        self._life.change(attempt.job.job_id, attempt, "end")
        del self.attempts[attempt.job.job_id]
        return [], AttemptChange(ENDED, attempt)

    def cancel(self, job_id: int) -> list[GridCommand]:
        """Ask all sites to end a job's attempt; an `AttemptChange` follows once all fragments have ended."""
        attempt = self.attempts[job_id]
        attempt.cancelled = True
        return self._end(attempt, attempt.left)

    def _end(self, attempt: Attempt, sites: list[int]) -> list[GridCommand]:
        if attempt.ending:
            return []
        attempt.ending = True
        # If not all sites have granted it, they answer with the ends of their leases.
        if self._life.change(attempt.job.job_id, attempt, "cancel"):
            del self.asking[attempt.job.job_id]
        return [ToSite(site, CancelJob(attempt.job.job_id, attempt.number)) for site in sites]

    def expire(self, now_ms: int) -> tuple[list[GridCommand], list[AttemptChange]]:
        """Give up attempts not granted by the agreed start; the changes name the sites that did not answer."""
        requests: list[GridCommand] = []
        changes: list[AttemptChange] = []
        for job_id in sorted(job_id for job_id, a in self.asking.items() if now_ms > a.start_ms):
            attempt = self.asking[job_id]
            self._came_too_soon()
            requests += self._give_up(attempt, None)
            changes.append(AttemptChange(FAILED, attempt, tuple(sorted(attempt.missing))))
        return requests, changes

    def next_wakeup_ms(self) -> int | None:
        """Return when the next attempt expires, or None."""
        starts = [attempt.start_ms for attempt in self.asking.values() if not attempt.ahead]
        return min(starts) + 1 if starts else None
