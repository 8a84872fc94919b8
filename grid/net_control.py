"""Full control over sites between which links lie (docs/grid.md, "With a network")."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from numpy.random import Generator

from gridweave.grid.array_queue import GridQueue
from gridweave.grid.coallocation import Change
from gridweave.grid.full_control import FullControl
from gridweave.grid.messages import GridCommand, LinksChanged, PathsMeasured, ReportRefused
from gridweave.grid.net_links import GridNetwork
from gridweave.grid.net_queue import NetQueue
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import Sends
from gridweave.site.job import Job
from gridweave.site.messages import Answer, RunsLate


class NetFullControl(FullControl):
    """The grid queue that knows what links cost.

    Parameters
    ----------
    nodes, policy, rng, margin_ms, retry_ms
        As for `FullControl`.
    network : GridNetwork
    """

    def __init__(
        self,
        nodes: Sequence[int],
        policy: GridPolicy,
        rng: Generator | None,
        margin_ms: int,
        retry_ms: int,
        network: GridNetwork,
    ) -> None:
        self._on_links = NetQueue(nodes, policy, network)
        # Jobs that are under way, and could be placed no more if they were to be tried again; and why.
        self._hopeless: dict[int, str] = {}
        super().__init__(nodes, policy, rng, margin_ms, retry_ms)

    def _new_queue(self, nodes: Sequence[int], policy: GridPolicy) -> GridQueue:
        return self._on_links

    def copy(self) -> Self:
        """Return the same state; neither sees what is done to the other."""
        twin = super().copy()
        assert isinstance(twin._queue, NetQueue), "a network without links"
        twin._on_links, twin._hopeless = twin._queue, self._hopeless.copy()
        return twin

    def submit(
        self, now_ms: int, job: Job, sensitivity: float, sends: Sends | None = None, attempt: int = 0
    ) -> list[GridCommand]:
        """Take in a job."""
        known = job.job_id in self._number
        commands = super().submit(now_ms, job, sensitivity, attempt=attempt)
        if not known and job.job_id in self._number:
            self._on_links.send(job.job_id, sends or Sends())
        return commands

    def links_changed(self, now_ms: int, news: LinksChanged | PathsMeasured) -> list[GridCommand]:
        """Place jobs by the links as they are now."""
        self._on_links.links_changed(news)
        self._changed = True
        return []

    def hopeless(self, now_ms: int, job_id: int, reason: str) -> list[GridCommand]:
        """Refuse a job that waits; one that is under way, when it is to be tried again."""
        if job_id not in self._number:
            return []
        if job_id in self._attempts.attempts:
            self._hopeless[job_id] = reason
            return []
        return self._refuse(job_id, reason)

    def _refuse(self, job_id: int, reason: str) -> list[GridCommand]:
        self._queue.withdraw(job_id)
        del self._number[job_id]
        self._changed = True
        return [ReportRefused(job_id, reason)]

    def answered(self, now_ms: int, site: int, answer: Answer) -> list[GridCommand]:
        """Take in what a site says."""
        if isinstance(answer, RunsLate):
            # It gives nothing to decide: what waits, waits for longer.
            attempt = self._attempts.attempts.get(answer.job_id)
            if attempt is not None and attempt.number == answer.attempt:
                self._on_links.runs_late(answer)
            return []
        return super().answered(now_ms, site, answer)

    def _take_note(self, now_ms: int, change: Change) -> list[GridCommand]:
        commands = super()._take_note(now_ms, change)
        job_id = change.attempt.job.job_id
        if job_id in self._hopeless and job_id not in self._attempts.attempts:
            reason = self._hopeless.pop(job_id)
            if job_id in self._number:
                return [*commands, *self._refuse(job_id, reason)]
        return commands
