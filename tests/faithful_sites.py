"""Sites that grant every request at once, and run every job for its whole estimate."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from gridweave.grid.messages import FromSite, GridCommand, GridEvent, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.site.messages import CommitNodes, Ended, Refused, Reserved, ReserveNodes, Started

Start = tuple[int, tuple[tuple[int, int], ...], int]
"""A start: the instant, the (site, nodes) of the job, and its run time, in ms."""


class FaithfulSites:
    """A meta-scheduler and its sites, in virtual time.

    Parameters
    ----------
    core : MetaCore
    refusals : sequence of int
        Numbers of the requests for nodes to refuse, counted from 0.
    """

    def __init__(self, core: MetaCore, refusals: Sequence[int] = ()) -> None:
        self.core = core
        self.now_ms = 0
        self.starts: dict[int, Start] = {}
        self._calendar: dict[int, list[GridEvent]] = defaultdict(list)
        self._asked: dict[tuple[int, int], list[tuple[int, ReserveNodes]]] = {}
        self.refusals = set(refusals)
        self._n_asked = 0

    def tell(self, now_ms: int, *events: GridEvent) -> None:
        """Handle events, and everything that follows from them at the same instant."""
        self.now_ms = now_ms
        told = list(events)
        while told:
            commands = self.core.handle(now_ms, *told)
            self.core.check_invariants()
            told = [answer for command in commands for answer in self._answers(command)]

    def next_ms(self) -> int | None:
        """Return the instant of the next event, or None."""
        wakeup_ms = self.core.next_wakeup_ms()
        instants = [*self._calendar, *([] if wakeup_ms is None else [wakeup_ms])]
        return min(instants, default=None)

    def go_on(self, until_ms: int) -> Iterator[int]:
        """Run all events up to an instant; yield each instant that had events."""
        while (next_ms := self.next_ms()) is not None and next_ms <= until_ms:
            self.now_ms = next_ms
            events = self._calendar.pop(next_ms, [])
            if events:
                self.tell(next_ms, *events)
            else:
                commands = self.core.handle(next_ms)
                self.tell(next_ms, *(answer for command in commands for answer in self._answers(command)))
            yield next_ms

    def _answers(self, command: GridCommand) -> list[GridEvent]:
        """Return a site's immediate answers to a command, and schedule its later ones."""
        if not isinstance(command, ToSite):
            return []
        site, request = command.site, command.request
        if isinstance(request, ReserveNodes):
            self._n_asked += 1
            if self._n_asked - 1 in self.refusals:
                return [FromSite(site, Refused(request.job_id, request.attempt, "not now"))]
            if request.start_ms is None:
                self._start([(site, request)], self.now_ms)
                return [FromSite(site, Started(request.job_id, request.attempt, self.now_ms))]
            self._asked.setdefault((request.job_id, request.attempt), []).append((site, request))
            return [FromSite(site, Reserved(request.job_id, request.attempt))]
        if isinstance(request, CommitNodes):
            parts = self._asked.pop((request.job_id, request.attempt), None)
            if parts is not None:
                start_ms = parts[0][1].start_ms
                assert start_ms is not None, "a split has no agreed start"
                self._start(parts, start_ms)
        return []

    def _start(self, parts: list[tuple[int, ReserveNodes]], start_ms: int) -> None:
        job_id, attempt, length_ms = parts[0][1].job_id, parts[0][1].attempt, parts[0][1].length_ms
        self.starts[job_id] = start_ms, tuple((site, hold.width) for site, hold in parts), length_ms
        for site, _ in parts:
            end_ms = start_ms + length_ms
            self._calendar[end_ms].append(FromSite(site, Ended(job_id, attempt, end_ms, "finished")))
