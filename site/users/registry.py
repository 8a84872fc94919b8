"""The registry of users' jobs, for the live grid and for live sites.

The registry accepts, holds, admits and ends jobs, and records their histories. Its owner keeps the queue and decides
which jobs start. No clock, no I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from gridweave.site.admission import Bound, group_set_of
from gridweave.site.eligibility import Eligibility, EligibilityState, after_problem, past_of, pasts_of
from gridweave.site.explain import nodes_text, really_text, took_text
from gridweave.site.job import (
    Accepted,
    Declined,
    Job,
    JobRecord,
    JobRequest,
    Noted,
    RecordEnded,
    RecordUsage,
    Resources,
    request_problem,
)
from gridweave.site.launch import Used
from gridweave.site.lifecycle import JOB, OVER, JobCause, JobState, Lifecycle
from gridweave.site.messages import JobAction, UserSubmitted
from gridweave.site.needs.beside import AloneRuns, KnownAlone
from gridweave.site.needs.estimates import KnownNeeds, NeedsExperience, UsualNeeds
from gridweave.site.quotas import node_s_of
from gridweave.site.times import end_of_processes_ms, run_time_ms, when_text

KEEP_ENDED = 5_000
"""Maximum number of ended jobs kept in memory; the journal has all of them."""


def job_of(job_id: int, request: JobRequest, users: dict[str, int], assumed: Resources | None = None) -> Job:
    """Convert a request to the scheduler's job.

    `users` maps user names to numbers; a new user is added. `assumed` is the default need for resources, which
    applies if the request specifies none.
    """
    return Job(
        job_id=job_id,
        width=request.nodes,
        estimate_ms=request.limit_ms,
        user=users.setdefault(request.user, len(users)),
        priority=request.priority,
        weight=request.weight,
        resources=request.resources,
        user_name=request.user,
        class_name=request.job_class,
        forms=request.forms,
        if_evicted=request.program.if_evicted,
        assumed=None if request.resources else assumed,
        chunk=request.chunk,
    )


class RegistryState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state of a `JobRegistry` between two instants."""

    records: list[JobRecord]
    eligibility: EligibilityState
    n_ended: int
    next_id: int
    users: dict[str, int]
    ended: list[int]
    alone: list[AloneRuns] = []  # run times of jobs that did not share nodes
    needs: list[NeedsExperience] = []  # resource use by job class


class JobRegistry:
    """The jobs of the users of a site or of the grid (docs/live.md, "Held").

    Parameters
    ----------
    first_id : int
        Id of the first job.
    site : str
        Name of the site; empty for the grid.
    can_hold : tuple of str
        The states in which a user can hold a job.
    needs : UsualNeeds, optional
        Default needs of jobs that specify no resources.

    Attributes
    ----------
    records : dict of int to JobRecord
        The open jobs and the last `KEEP_ENDED` ended jobs, by id.
    out : list
        The commands issued at the current instant.
    n_ended : int
        Number of accepted jobs that have ended, including refused jobs.
    """

    def __init__(
        self, first_id: int, *, site: str = "", can_hold: tuple[JobState, ...], needs: UsualNeeds | None = None
    ) -> None:
        self.records: dict[int, JobRecord] = {}
        self.eligibility = Eligibility()
        self.out: list[Any] = []
        self.n_ended = 0
        self._life = Lifecycle(JOB)
        self._site, self._can_hold = site, can_hold
        self._alone, self.needs = KnownAlone(), KnownNeeds(needs or UsualNeeds())
        self._now_ms = 0
        self._next_id = first_id
        self._users: dict[str, int] = {}
        # The ids of the ended jobs in `records`, oldest first.
        self._ended: list[int] = []
        # The idempotency keys of the jobs submitted at the current instant, by job id.
        self._fresh: dict[int, str] = {}

    @property
    def next_id(self) -> int:
        """Id of the next job."""
        return self._next_id

    @property
    def n_open(self) -> int:
        """Number of jobs that have not ended."""
        return len(self.records) - len(self._ended)

    def open_jobs(self) -> set[int]:
        """Return the ids of the jobs that have not ended."""
        return self.records.keys() - set(self._ended)

    def next_wakeup_ms(self, core_ms: int | None) -> int | None:
        """Return when a held job or, at `core_ms`, the core is next due without an event; None if never."""
        here_ms = self.eligibility.next_wakeup_ms()
        if here_ms is None or core_ms is None:
            return core_ms if here_ms is None else max(here_ms, self._now_ms + 1)
        return max(min(here_ms, core_ms), self._now_ms + 1)

    def begin(self, now_ms: int) -> None:
        """Advance to a new instant, and clear the commands."""
        self._now_ms, self.out, self._fresh = now_ms, [], {}
        self.eligibility.begin(now_ms)

    def accept(self) -> list[int]:
        """Confirm the jobs submitted at this instant to their submitters; return the jobs' ids."""
        self.out += [Accepted(key, job_id) for job_id, key in self._fresh.items()]
        return list(self._fresh)

    def note(self, job_id: int, kind: str, detail: str = "", at_ms: int | None = None) -> None:
        """Add an event to a job's history, at the current instant unless `at_ms` is given."""
        self.out.append(Noted(job_id, kind, detail, at_ms))

    def change(self, record: JobRecord, cause: JobCause) -> bool:
        """Change a job's state according to the table `JOB`; return whether the state has changed."""
        return self._life.change(record.job_id, record, cause)

    # -- submissions and actions of users -----------------------------------------------------------------------------

    def submit(self, event: UserSubmitted, why_never: Callable[[Job], str | None]) -> Job | None:
        """Accept or decline a submitted job; return the job if it enters the queue at once.

        `why_never` returns why a job can never run here, or None. It is called even for jobs that will be held, so that
        no job waits for a start that is impossible.
        """
        request = event.request
        past = pasts_of(request, self.records, event.past)
        reason = request_problem(request) or self.eligibility.admission.refusal(request) or after_problem(request, past)
        if reason is None:
            job = job_of(self._next_id, request, self._users, self.needs.of(request).needs)
            reason = why_never(job)
        if reason is not None:
            self.out.append(Declined(event.key, reason))
            return None
        self._next_id += 1
        is_eligible = self.eligibility.add(job.job_id, request, past)
        state = self._life.begin(job.job_id, "submit" if is_eligible else "keep")
        self.records[job.job_id] = JobRecord(job_id=job.job_id, request=request, state=state, submit_ms=self._now_ms)
        self._fresh[job.job_id] = event.key
        to = f"to {self._site}, " if self._site else ""
        self.note(job.job_id, "submitted", f"{to}{nodes_text(request.nodes)}{_by_whom(event.origin)}")
        return job if is_eligible else None

    def apply_action(self, action: JobAction) -> Iterator[JobRecord]:
        """Apply a user's action to jobs; yield the queued and running jobs, on which the caller must act."""
        for job_id in action.job_ids:
            record = self.records.get(job_id)
            # No user can know the id of a job that was submitted at this instant, so the id was guessed.
            if record is None or job_id in self._fresh or record.state in OVER:
                continue
            how = "on request"
            match action.kind:
                case "cancel" | "kill":
                    how = f"at {self._site}" if self._site else how
                    how += ", at once" if action.kind == "kill" else ""
                case "signal":
                    if record.state != "running" or action.signal is None:
                        continue
                    how = f"{action.signal} {how}"
                case "requeue":
                    if not record.can_be_requeued:
                        continue
                case "hold":
                    if record.state not in self._can_hold or self.eligibility.is_wished(job_id):
                        continue
                    self.eligibility.hold(job_id)
                case "release":
                    if not self.eligibility.is_wished(job_id):
                        continue
                    self.eligibility.release(job_id)
            is_end = action.kind in ("cancel", "kill")
            self.note(job_id, "cancelled" if is_end else action.kind, how + _by_whom(action.origin))
            if job_id not in self.eligibility:
                yield record
            elif is_end:
                self.end(record, "cancelled", "")

    def why_kept(self, job_id: int, now_ms: int) -> str:
        """Return why a job is held, and until when if known; empty if the job is not held."""
        bounds = self.eligibility.bounds(job_id)
        if not bounds:
            return self.eligibility.reason(job_id)
        return "; ".join(f"{bound.words}, until {self._until(bound, now_ms)}" for bound in bounds)

    def refusal(self, request: JobRequest) -> str | None:
        """Return the one-line reason why a job cannot be submitted, or None."""
        return request_problem(request) or self.eligibility.admission.refusal(request)

    def why_it_would_wait(self, request: JobRequest, now_ms: int) -> str:
        """Return a description of the quotas that would make a job submitted now wait; empty if there are none."""
        bounds = self.eligibility.admission.bound(now_ms, *group_set_of(request))
        return "; ".join(f"{bound.words}, until {self._until(bound, now_ms)}" for bound in bounds)

    def _until(self, bound: Bound, now_ms: int) -> str:
        """Describe when a quota will have capacity at the latest, judged by the running jobs' time limits."""
        if bound.until_ms is not None:
            return f"older use leaves the window, {when_text(bound.until_ms, now_ms)} at the latest"
        if bound.what == "node-hours":
            return "queued or running jobs have ended early, or their use has left the window"
        ends = sorted(
            (record.start_ms + record.request.limit_ms, record.request.nodes if bound.what == "nodes" else 1)
            for record in self.records.values()
            if record.state == "running"
            and record.start_ms is not None
            and bound.group in group_set_of(record.request)[0]
        )
        missing = bound.missing
        for end_ms, count in ends:
            missing -= count
            if missing <= 0:
                return f"one ends, {when_text(max(end_ms, now_ms), now_ms)} at the latest"
        return "one ends; none of them runs yet, so the time is unknown" if not ends else "enough of them have ended"

    def take_out(self, record: JobRecord, attempt: int) -> None:
        """Hold a job that was in the queue; `attempt` is the number of the job's last attempt."""
        self.change(record, "hold")
        self.eligibility.left_queue(record.job_id, record.request, attempt)

    def settle(self) -> list[tuple[Job, int]]:
        """Admit the held jobs that can enter the queue, and cancel the held jobs that never can.

        Return the admitted jobs, each with the number of its last attempt.
        """
        let_in: list[tuple[Job, int]] = []
        while True:
            settled = self.eligibility.settle()
            for job_id, reason in settled.unplaceable:
                self.end(self.records[job_id], "cancelled", reason)
            for job_id, reason in settled.kept:
                record = self.records[job_id]
                if record.reason != reason:
                    record.reason = reason
                    self.note(job_id, "kept", reason)
            for job_id, attempt in settled.let_in:
                record = self.records[job_id]
                self.change(record, "admit")
                record.reason = ""
                self.note(job_id, "queued")
                let_in.append((self.job(record), attempt))
            if not settled.unplaceable:
                return let_in

    def job(self, record: JobRecord) -> Job:
        """Return the scheduler's job for a record."""
        return job_of(record.job_id, record.request, self._users, self.needs.of(record.request).needs)

    def next_job(self, request: JobRequest) -> Job:
        """Return the job that a request would become if submitted now, without changing the registry."""
        return job_of(self._next_id, request, dict(self._users), self.needs.of(request).needs)

    # -- how jobs end -------------------------------------------------------------------------------------------------

    def decline(self, job_id: int, reason: str) -> bool:
        """Decline a job that was submitted at this instant; return False for any other job."""
        key = self._fresh.pop(job_id, None)
        if key is None:
            return False
        record = self.records.pop(job_id)
        self.change(record, "refuse")
        self.eligibility.over(past_of(record), record.request)
        self.out.append(Declined(key, reason))
        return True

    def last_ended(self, count: int) -> list[JobRecord]:
        """Return the records of the last `count` jobs to end, in the order in which they ended."""
        return [self.records[job_id] for job_id in self._ended[-count:]]

    def refuse(self, record: JobRecord, reason: str) -> None:
        """Record that an accepted job can never run."""
        self.note(record.job_id, "refused", reason)
        self.change(record, "refuse")
        record.reason, record.end_ms = reason, self._now_ms
        self._keep(record)

    def end_attempt(self, record: JobRecord, *, is_retried: bool = True) -> None:
        """Record that an attempt has ended, but not its job; count the attempt's resource use towards the quotas.

        If the job will not be retried (`is_retried` is False), its state stays the same until all fragments have ended.
        """
        self.eligibility.used(record.request, _used_s(record, self._now_ms))
        record.start_ms = None
        if is_retried:
            self.change(record, "retry")

    def end(self, record: JobRecord, outcome: str, reason: str) -> None:
        """Record the outcome of a job, and its resource use."""
        self.change(record, "end")
        record.outcome, record.reason, record.end_ms = outcome, reason, self._now_ms
        request, nodes = record.request, _nodes_of(record)
        self.note_end(record.job_id, request, outcome, reason, run_time_ms(record), nodes, record.used)
        run_ms = _processes_ran_ms(record)
        self.needs.ended(record, run_ms)
        if self.needs.of(request).needs is not None:
            record.sharing = self._alone.ended(record, run_ms)
        if record.sharing is not None and (took := took_text(record)):
            self.note(record.job_id, "took", f"{took}, {record.sharing.text}; {really_text(record.sharing)}")
        self._keep(record)

    def note_end(
        self,
        job_id: int,
        request: JobRequest,
        outcome: str,
        reason: str,
        run_ms: int | None,
        width: int,
        used: Used,
    ) -> None:
        """Add the end of a job or fragment to its history; record its resource use if it finished or hit its limit."""
        at = f"at {self._site}: " if self._site else ""
        self.note(job_id, "ended", at + outcome + (f": {reason}" if reason else ""))
        if outcome in ("finished", "limit") and run_ms is not None:
            self.out.append(RecordUsage(job_id, request, width, run_ms, used))

    def _keep(self, record: JobRecord) -> None:
        """Keep an ended job's record, release its dependents, and drop the oldest records if there are too many."""
        self.eligibility.over(past_of(record), record.request, _used_s(record, record.end_ms))
        self.out.append(RecordEnded(record))
        self.n_ended += 1
        self._ended.append(record.job_id)
        if len(self._ended) > KEEP_ENDED:
            for job_id in self._ended[: KEEP_ENDED // 10]:
                self.records.pop(job_id, None)
            del self._ended[: KEEP_ENDED // 10]

    def state(self) -> RegistryState:
        """Return the state between two instants."""
        return RegistryState(
            records=list(self.records.values()),
            eligibility=self.eligibility.state(),
            n_ended=self.n_ended,
            next_id=self._next_id,
            users=self._users,
            ended=self._ended,
            alone=self._alone.state(),
            needs=self.needs.state(),
        )

    def restore(self, state: RegistryState) -> None:
        """Restore this new registry from another registry's state."""
        self.records = {record.job_id: record for record in state.records}
        self.eligibility.restore(state.eligibility)
        self.n_ended, self._next_id = state.n_ended, state.next_id
        self._users, self._ended = state.users, state.ended
        self._alone.restore(state.alone)
        self.needs.restore(state.needs)

    def check_invariants(self) -> None:
        """Raise AssertionError unless the held jobs are exactly the jobs that `Eligibility` keeps out of the queue."""
        self.eligibility.check_invariants()
        held = {job_id for job_id, record in self.records.items() if record.state == "held"}
        assert held == {job_id for job_id in self.records if job_id in self.eligibility}, "a held job may be queued"
        assert len(held) == len(self.eligibility), "an ended job is kept out of the queue"


def _used_s(record: JobRecord, end_ms: int | None) -> int:
    """Return the node-seconds used by the attempt that ended at `end_ms`.

    The end of a lost attempt is unknown, so at most its time limit counts, even if the outage lasted longer.
    """
    if record.start_ms is None or end_ms is None:
        return 0
    if record.ran_ms is None:
        end_ms = min(end_ms, record.start_ms + record.request.limit_ms)
    ended_ms = end_of_processes_ms(record.start_ms, record.ran_ms, end_ms)
    return node_s_of(_nodes_of(record), max(0, ended_ms - record.start_ms))


def _processes_ran_ms(record: JobRecord) -> int:
    """Return the run time of a job's processes, excluding startup if known; 0 if the run time is unknown."""
    if record.ran_ms is None:
        return run_time_ms(record) or 0
    return record.ran_ms[1] - record.ran_ms[0]


def _nodes_of(record: JobRecord) -> int:
    """Return a job's number of nodes, which can differ from the request if the job has several forms."""
    return sum(nodes for _, nodes in record.places) or record.request.nodes


def _by_whom(origin: str) -> str:
    """Return the last words of a history note, which say who requested an action; empty if unknown."""
    return f", by {origin}" if origin else ""
