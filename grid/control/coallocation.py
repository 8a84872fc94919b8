"""Co-allocation: reserve nodes on every site of a job, then commit all or release all (docs/contract.md).

A single fragment needs no second phase. Whatever is lost or crashes on the way, no fragment does work without the
others, and no node is reserved past its lease: the reasons are in docs/contract.md, "Why no part of a job runs alone".
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
"""(site, width) of each fragment."""

MOST_MARGINS = 16
"""The margin grows to so many times the least one."""

REFUSED, MOVED, PART_ENDED, ENDED, FAILED = "refused", "moved", "part ended", "ended", "failed"


class Attempt(msgspec.Struct, gc=False):
    """One try to run a job on certain nodes.

    Attributes
    ----------
    job : Job
    number : int
        Of the try, from 1.
    fragments : tuple of (int, int)
    length_ms : int
        How long it runs at most.
    start_ms : int
        The agreed start; for a single fragment the instant at which it was asked for.
    state : str
    missing : set of int
        Sites that have not answered the request.
    ended : dict from int to str
        Sites whose fragment is over, with the outcome.
    ending : bool
        Whether the sites have been asked to end it.
    cancelled : bool
        Whether that was the user's wish.
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
    # Whether the start is agreed on when all sites have the nodes, for which each waits in its queue.
    ahead: bool = False

    @property
    def outcome(self) -> str | None:
        """What became of the whole: None if it is to be tried again."""
        others = set(self.ended.values()) - {"finished"}
        if others & {"lost", "unmet", "lease-ended"}:
            return None
        # Where one has failed, the others were ended for that.
        return min(others, key=("failed", "limit", "cancelled").index, default="finished")

    @property
    def left(self) -> list[int]:
        """The sites whose fragment is not over."""
        return [site for site, _ in self.fragments if site not in self.ended]


class AttemptChange(msgspec.Struct, frozen=True, gc=False):
    """What has become of an attempt: refused by a site, moved (its start is another than thought), ended or failed.

    Of one that has ended in a part, the sites are those of this part: they have its nodes back.

    `never` is why that site can never run the job, if it can not; `refusal` is why the site refused it.
    """

    kind: str
    attempt: Attempt
    sites: tuple[int, ...] = ()
    never: str | None = None
    refusal: str = ""


class AttemptsState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The attempts that are under way, and the jobs of those that not all sites have granted."""

    attempts: list[Attempt]
    asking: list[int]
    margin_ms: int | None = None  # the present one; None: the least


class CoAllocator:
    """All attempts that are under way.

    Parameters
    ----------
    margin_ms : int
        How far ahead the start of a job with several fragments is agreed at least: long enough for a request, its
        answer and the commitment to travel, with what may be lost on the way.

    Attributes
    ----------
    margin_ms : int
        The present margin. It is doubled when an agreed start comes too soon, to `MOST_MARGINS` times the least one,
        and shrinks by a quarter when all sites have granted one in time.
    attempts : dict from int to Attempt
        By job.
    asking : dict from int to Attempt
        Those of them that not all of their sites have granted.
    """

    def __init__(self, margin_ms: int) -> None:
        self.margin_ms = self._least_margin_ms = margin_ms
        self.attempts: dict[int, Attempt] = {}
        self.asking: dict[int, Attempt] = {}
        self._life = Lifecycle(ATTEMPT)

    def state(self) -> AttemptsState:
        """Return the attempts that are under way."""
        return AttemptsState(list(self.attempts.values()), list(self.asking), self.margin_ms)

    def restore(self, state: AttemptsState) -> None:
        """Take in the attempts that were under way."""
        self.attempts = {attempt.job.job_id: attempt for attempt in state.attempts}
        self.asking = {job_id: self.attempts[job_id] for job_id in state.asking}
        self.margin_ms = self._least_margin_ms if state.margin_ms is None else state.margin_ms

    def reconsider(self) -> None:
        """Begin with the least margin again, which may be another now."""
        self.margin_ms = self._least_margin_ms

    def copy(self) -> CoAllocator:
        """Return the same attempts, apart from these."""
        twin = CoAllocator(self._least_margin_ms)
        twin.margin_ms = self.margin_ms
        for job_id, attempt in self.attempts.items():
            sets = {"missing": set(attempt.missing), "ended": dict(attempt.ended)}
            twin.attempts[job_id] = msgspec.structs.replace(attempt, **sets)
        for job_id in self.asking:
            twin.asking[job_id] = twin.attempts[job_id]
        return twin

    @property
    def asked(self) -> list[Fragments]:
        """The fragments of the attempts that not all sites have answered, and are to at once."""
        return [attempt.fragments for attempt in self.asking.values() if not attempt.ahead]

    @property
    def ahead(self) -> Attempt | None:
        """The attempt for which sites reserve nodes ahead: of two each could have what the other waits for."""
        return next((attempt for attempt in self.asking.values() if attempt.ahead), None)

    def begin_ahead(
        self, job: Job, number: int, fragments: Fragments, length_ms: int, lease_until_ms: int
    ) -> list[GridCommand]:
        """Have sites reserve the nodes of a job as each gets them, under a lease; parameters as for `begin`."""
        missing = {site for site, _ in fragments}
        state = self._life.begin(job.job_id, "ask")
        attempt = Attempt(job, number, fragments, length_ms, int(NEVER_MS), state, missing, ahead=True)
        self.attempts[job.job_id] = self.asking[job.job_id] = attempt
        asked, length = (job.job_id, number), (length_ms, lease_until_ms)
        return [
            ToSite(site, ReserveNodes(*asked, width, *length, evictions=job.evictions, ahead=True))
            for site, width in fragments
        ]

    def begin(
        self, now_ms: int, job: Job, number: int, fragments: Fragments, length_ms: int, *, is_told: bool = False
    ) -> list[GridCommand]:
        """Ask for the nodes of a job.

        Parameters
        ----------
        number : int
            Of the attempt; higher than of any before.
        length_ms : int
            How long the job takes at most when it is placed like that.
        is_told : bool
            Whether a single site is told what the job needs of its nodes: then others may share them.
        """
        if len(fragments) == 1:
            ((site, width),) = fragments
            job_id = job.job_id
            state = self._life.begin(job_id, "ask one")
            self.attempts[job_id] = Attempt(job, number, fragments, length_ms, now_ms, state, set())
            told = job if is_told else None
            asked = ReserveNodes(job_id, number, width, length_ms, job=told, evictions=job.evictions)
            return [ToSite(site, asked)]
        return self._ask_all(job, number, fragments, length_ms, now_ms + self.margin_ms)

    def begin_beside(
        self, now_ms: int, job: Job, number: int, site: int, work_ms: int, slowdown: float, end_ms: int
    ) -> list[GridCommand]:
        """Ask a site to start a job beside others, at most so many times as long as its work takes alone."""
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
            ToSite(site, ReserveNodes(*asked, width, length_ms, start_ms, evictions=job.evictions))
            for site, width in fragments
        ]

    def answered(self, now_ms: int, site: int, answer: Answer) -> tuple[list[GridCommand], AttemptChange | None]:
        """Take in what a site says of an attempt; return what is to be sent and what has changed, if anything."""
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
                    # A lease ends at the instant at which the attempt expires; then the silent sites are to blame.
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
        """Agree on later starts from now on: messages take longer than thought."""
        self.margin_ms = min(2 * self.margin_ms, MOST_MARGINS * self._least_margin_ms)

    def _give_up(self, attempt: Attempt, but: int | None) -> list[GridCommand]:
        """Release what other sites have reserved, or will have when the request reaches them; nothing has started."""
        job_id = attempt.job.job_id
        self._life.change(job_id, attempt, "give up")
        del self.attempts[job_id]
        self.asking.pop(job_id, None)
        return [ToSite(s, ReleaseNodes(job_id, attempt.number)) for s, _ in attempt.fragments if s != but]

    def _over(self, attempt: Attempt, site: int, outcome: str) -> tuple[list[GridCommand], AttemptChange | None]:
        """Note the end of a fragment; one that failed, or thought itself alone, takes the others with it."""
        is_news = site not in attempt.ended
        attempt.ended[site] = outcome
        if len(attempt.ended) < len(attempt.fragments):
            commands = self._end(attempt, attempt.left) if outcome in ("lost", "failed", "unmet") else []
            return commands, AttemptChange(PART_ENDED, attempt, (site,)) if is_news else None
        self._life.change(attempt.job.job_id, attempt, "end")
        del self.attempts[attempt.job.job_id]
        return [], AttemptChange(ENDED, attempt)

    def cancel(self, job_id: int) -> list[GridCommand]:
        """Ask for the end of an attempt, whatever it has come to; its `AttemptChange` tells when it has ended."""
        attempt = self.attempts[job_id]
        attempt.cancelled = True
        return self._end(attempt, attempt.left)

    def _end(self, attempt: Attempt, sites: list[int]) -> list[GridCommand]:
        if attempt.ending:
            return []
        attempt.ending = True
        # Its sites answer that their leases have ended.
        if self._life.change(attempt.job.job_id, attempt, "cancel"):
            del self.asking[attempt.job.job_id]
        return [ToSite(site, CancelJob(attempt.job.job_id, attempt.number)) for site in sites]

    def expire(self, now_ms: int) -> tuple[list[GridCommand], list[AttemptChange]]:
        """Give up the attempts that not all sites have granted by the agreed start; name those that are silent."""
        requests: list[GridCommand] = []
        changes: list[AttemptChange] = []
        for job_id in sorted(job_id for job_id, a in self.asking.items() if now_ms > a.start_ms):
            attempt = self.asking[job_id]
            self._came_too_soon()
            requests += self._give_up(attempt, None)
            changes.append(AttemptChange(FAILED, attempt, tuple(sorted(attempt.missing))))
        return requests, changes

    def next_wakeup_ms(self) -> int | None:
        """Return when `expire` may have something to give up."""
        starts = [attempt.start_ms for attempt in self.asking.values() if not attempt.ahead]
        return min(starts) + 1 if starts else None
