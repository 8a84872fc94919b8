"""The jobs of a site with different machines: waiting jobs by level, running and paused jobs by machine."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from gridweave.site.disciplines.heterogeneous.experience import JobKind
from gridweave.site.disciplines.heterogeneous.running import JobOnMachines, WaitingJob
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.kernels.state import NEVER_MS


class LevelQueue:
    """A level's waiting jobs in order of submission, with their kinds. An evicted job returns to its old position.

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

    def add(self, waiting_job: WaitingJob, kind: JobKind) -> None:
        """Insert a job in order of submit time; ties are broken by job id."""
        place = waiting_job.submit_ms, waiting_job.job.job_id
        at = bisect.bisect(self._places, place)
        self._places.insert(at, place)
        self.jobs.insert(at, waiting_job)
        self.kinds.insert(at, kind)

    def remove(self, waiting_job: WaitingJob) -> None:
        """Remove a job, which must be in the queue."""
        at = bisect.bisect_left(self._places, (waiting_job.submit_ms, waiting_job.job.job_id))
        del self._places[at], self.jobs[at], self.kinds[at]

    def numbered_kinds(self) -> tuple[list[JobKind], list[int]]:
        """Return the distinct kinds of jobs in the queue, and for each job the index of its kind in that list."""
        number_of: dict[JobKind, int] = {}
        numbers = [number_of.setdefault(kind, len(number_of)) for kind in self.kinds]
        return list(number_of), numbers

    def check_invariants(self) -> None:
        """Raise AssertionError if the jobs are out of order."""
        keys = [(waiting_job.submit_ms, waiting_job.job.job_id) for waiting_job in self.jobs]
        assert self._places == keys == sorted(keys), "the jobs of a level are out of order"
        assert len(self.kinds) == len(keys), "jobs and kinds of a level differ"


_NOBODY = -1

KEEPS_OFF, EVICTS = np.int64(1), np.int64(2)
"""How using a machine harms other jobs: a paused job resumes later, or a running job is evicted."""


class AtWork:
    """The running jobs of a site by machine, and the ids of its paused jobs.

    Parameters
    ----------
    nodes : int
        Machines of the site.
    levels : sequence of Level
    """

    def __init__(self, nodes: int, levels: Sequence[Level]) -> None:
        # Two columns after the levels: jobs that are never evicted, and machines on which no job is running.
        self._never, self._free = len(levels), len(levels) + 1
        self._may_evict = np.zeros((len(levels), len(levels) + 2), np.bool_)
        for row, level in enumerate(levels):
            self._may_evict[row, : self._never] = [below.name in level.evicts for below in levels]
        self._job, self._level = np.full(nodes, _NOBODY), np.full(nodes, self._free)
        self._expected_ms, self._limit_ms = np.full((2, nodes), NEVER_MS)
        self.standing: set[int] = set()
        """Ids of the paused jobs."""

    def work(self, run: JobOnMachines, level: int) -> None:
        """Record that a job is running on its machines, or that its expected end, time limit or level has changed."""
        at = list(run.machines)
        self._job[at], self._level[at] = run.was.job.job_id, self._row_of(run, level)
        self._expected_ms[at], self._limit_ms[at] = run.expected_ms, run.limit_ms
        self.standing.discard(run.was.job.job_id)

    def leave(self, run: JobOnMachines) -> None:
        """Remove a job; if it is paused, keep its machines' records, because other jobs may be running on them."""
        job_id = run.was.job.job_id
        if job_id in self.standing:
            self.standing.remove(job_id)
            return
        at = list(run.machines)
        self._job[at], self._level[at] = _NOBODY, self._free
        self._expected_ms[at], self._limit_ms[at] = NEVER_MS, NEVER_MS

    def stand(self, run: JobOnMachines) -> None:
        """Record that a running job is paused."""
        self.leave(run)
        self.standing.add(run.was.job.job_id)

    def may_evict(self, level: int, run: JobOnMachines, its_level: int) -> bool:
        """Whether jobs of `level` may evict a running job of level `its_level`."""
        return bool(self._may_evict[level, self._row_of(run, its_level)])

    def _row_of(self, run: JobOnMachines, level: int) -> int:
        return self._never if run.was.job.if_evicted == "never" else level

    @property
    def is_free(self) -> npt.NDArray[np.bool_]:
        """For each machine, whether no job is running on it."""
        free: npt.NDArray[np.bool_] = self._job == _NOBODY
        return free

    @property
    def first_expected_ms(self) -> int:
        """The earliest expected end of a job that is not paused; `NEVER_MS` if there is no such job."""
        return int(self._expected_ms.min())

    @property
    def first_limit_ms(self) -> int:
        """The earliest time limit of a job that is not paused; `NEVER_MS` if there is no such job."""
        return int(self._limit_ms.min())

    def due(self, now_ms: int) -> list[int]:
        """Return the ids of the jobs that have reached their expected end and are not paused, ascending."""
        if self.first_expected_ms > now_ms:
            return []
        due: list[int] = np.unique(self._job[self._expected_ms <= now_ms]).tolist()
        return due

    def jobs_on(self, machines: Sequence[int]) -> set[int]:
        """Return the ids of the jobs that are running on any of these machines; paused jobs are not included."""
        jobs: list[int] = self._job[list(machines)].tolist()
        return set(jobs) - {_NOBODY}

    def held(self, level: int, protected: Collection[int] = ()) -> npt.NDArray[np.bool_]:
        """Return, for each machine, whether jobs of this level may evict its job; protected jobs are never evicted."""
        is_held: npt.NDArray[np.bool_] = self._may_evict[level, self._level]
        if protected:
            is_held &= ~np.isin(self._job, list(protected))
        return is_held

    def ready_ms(self, from_ms: npt.NDArray[np.int64], is_held: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
        """Return when each machine is ready for a level's jobs; a machine whose job they may evict counts as free.

        Parameters
        ----------
        from_ms : numpy.ndarray of int64, shape (nodes,)
            Earliest time at which each machine can be ready.
        is_held : numpy.ndarray of bool, shape (nodes,)
            Whether the level's jobs may evict the job on each machine, as returned by `held`.
        """
        return np.where(is_held | self.is_free, from_ms, np.maximum(from_ms, self._expected_ms))

    def check_invariants(self, runs: Mapping[int, JobOnMachines], level_of: Callable[[WaitingJob], int]) -> None:
        """Raise AssertionError if these records contradict the site's running jobs."""
        expected = np.full((4, len(self._job)), [[_NOBODY], [self._free], [NEVER_MS], [NEVER_MS]])
        for job_id, run in runs.items():
            if run.paused_ms is None:
                level = self._row_of(run, level_of(run.was))
                expected[:, list(run.machines)] = [[job_id], [level], [run.expected_ms], [run.limit_ms]]
        recorded = np.stack((self._job, self._level, self._expected_ms, self._limit_ms))
        assert (recorded == expected).all(), (
            "the jobs, levels or ends of the machines differ from those of the running jobs"
        )
        standing = {job_id for job_id, run in runs.items() if run.paused_ms is not None}
        assert self.standing == standing, "the recorded paused jobs differ from the jobs that are paused"
