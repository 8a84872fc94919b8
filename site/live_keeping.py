"""What a live site and the live grid have in common: jobs that are kept from the queue, and what follows for them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from gridweave.site.eligibility import Eligibility, past_of
from gridweave.site.program import EndedJobs, JobRecord, Noted, RecordEnded, by_whom


class KeepsJobs(ABC):
    """A core with users' jobs, some of which are kept from its queue (docs/live.md, "Held").

    Attributes
    ----------
    records : dict from int to JobRecord
        By number, ascending: of the jobs that have not ended, and of those that ended last.
    eligibility : Eligibility
        Which of them are kept from the queue.
    """

    def __init__(self) -> None:
        self.records: dict[int, JobRecord] = {}
        self.eligibility = Eligibility()
        self._ended = EndedJobs()
        # What is decided at this instant, and the keys of the jobs that were handed in at it.
        self._out: list[Any] = []
        self._fresh: dict[int, str] = {}

    @property
    def n_open(self) -> int:
        """Jobs of users that have not ended."""
        return len(self.records) - len(self._ended.job_ids)

    @abstractmethod
    def _let_in(self, record: JobRecord, attempt: int) -> None:
        """Have the core told of a job that goes into the queue; its last attempt had this number."""

    @abstractmethod
    def _end_in_vain(self, record: JobRecord, reason: str) -> None:
        """End a job that waits for what can happen no more."""

    def _wished(self, job_id: int) -> JobRecord | None:
        """Return what is known of a job that a user wants something of, if anything can become of it."""
        record = self.records.get(job_id)
        # Of one that was handed in at this very instant nobody knows the number: it was guessed.
        over = record is None or job_id in self._fresh or record.state in ("ended", "refused")
        return None if over else record

    def _wish_held(self, job_id: int, origin: str) -> None:
        """Take note that a user wants a job held."""
        self._out.append(Noted(job_id, "hold", f"by wish{by_whom(origin)}"))
        self.eligibility.hold(job_id)

    def _release(self, job_id: int, origin: str) -> bool:
        """Take note that a user does not want a job held any more; return whether it was to be."""
        if self._wished(job_id) is None or not self.eligibility.is_wished(job_id):
            return False
        self._out.append(Noted(job_id, "release", f"by wish{by_whom(origin)}"))
        self.eligibility.release(job_id)
        return True

    def _settle_kept(self) -> None:
        """Do what follows for the jobs that are kept from the queue."""
        while True:
            settled = self.eligibility.settle()
            for job_id, reason in settled.hopeless:
                self._end_in_vain(self.records[job_id], reason)
            for job_id, reason in settled.kept:
                record = self.records[job_id]
                if record.reason != reason:
                    record.reason = reason
                    self._out.append(Noted(job_id, "kept", reason))
            for job_id, attempt in settled.let_in:
                record = self.records[job_id]
                record.state, record.reason = "waiting", ""
                self._out.append(Noted(job_id, "queued"))
                self._let_in(record, attempt)
            if not settled.hopeless:
                return

    def _keep_ended(self, record: JobRecord) -> None:
        """Keep what is known of a job that is over, and have others go on that wait for it."""
        self.eligibility.over(past_of(record), record.request)
        self._out.append(RecordEnded(record))
        self._ended.add(record.job_id, self.records)

    def _check_kept(self) -> None:
        """Raise AssertionError if what is held is not what is kept from the queue."""
        self.eligibility.check_invariants()
        held = {job_id for job_id, record in self.records.items() if record.state == "held"}
        assert held == {job_id for job_id in self.records if job_id in self.eligibility}, "what is held is not kept"
        assert len(held) == len(self.eligibility), "a job is kept that is over"
