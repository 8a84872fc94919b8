"""The jobs that wait on a level of priority."""

from __future__ import annotations

import bisect

from gridweave.site.disciplines.heterogeneous.lengths import JobKind
from gridweave.site.disciplines.heterogeneous.running import WaitingJob


class LevelQueue:
    """Jobs in the order of submission, and the kind of each; an evicted job stands where it stood.

    Attributes
    ----------
    jobs : list of WaitingJob
    kinds : list of JobKind
    """

    def __init__(self) -> None:
        self.jobs: list[WaitingJob] = []
        self.kinds: list[JobKind] = []
        self._places: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self.jobs)

    def add(self, one: WaitingJob, kind: JobKind) -> None:
        """Put a job where it belongs."""
        place = one.submit_ms, one.job.job_id
        at = bisect.bisect(self._places, place)
        self._places.insert(at, place)
        self.jobs.insert(at, one)
        self.kinds.insert(at, kind)

    def remove(self, one: WaitingJob) -> None:
        """Take out a job that is here."""
        at = bisect.bisect_left(self._places, (one.submit_ms, one.job.job_id))
        del self._places[at], self.jobs[at], self.kinds[at]

    def numbered_kinds(self) -> tuple[list[JobKind], list[int]]:
        """Return the kinds that are here, and which of them each job is."""
        number_of: dict[JobKind, int] = {}
        numbers = [number_of.setdefault(kind, len(number_of)) for kind in self.kinds]
        return list(number_of), numbers

    def check_invariants(self) -> None:
        """Raise AssertionError if the jobs are not in their order."""
        places = [(one.submit_ms, one.job.job_id) for one in self.jobs]
        assert self._places == places == sorted(places), "the jobs of a level are out of order"
        assert len(self.kinds) == len(places), "jobs and kinds of a level differ"
