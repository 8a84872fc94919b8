"""Check the history of a live grid, from its journals and its jobs' own records, as in the simulated world."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gridweave.grid.messages import LiveGridEvent, ReportDone, ReportRefused, ToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.service.cluster import GridPlan
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.site.job import NodeIntervals
from gridweave.site.journal.reader import JournalReader
from gridweave.site.messages import (
    CommitNodes,
    EnqueueJob,
    GridMessage,
    JobFinished,
    LeaseEnded,
    LiveSiteEvent,
    Reserved,
    ReserveNodes,
    SiteMessage,
    Started,
    StartJob,
    ToGrid,
)
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite

# Order of the entries at one instant: ends, accepted jobs, reserved nodes, commits, starts, reports.
_LEFT, _ACCEPTED, _HELD, _COMMITTED, _STARTED, _REPORTED = range(6)

Entry = tuple[int, int, int, str, tuple[Any, ...]]


class _Journals:
    """The events in all cores, found by replaying the inputs in their journals to new cores."""

    def __init__(self, sites: Sequence[tuple[SiteSettings, str | Path]], grid: tuple[GridSettings, str | Path]) -> None:
        self.entries: list[Entry] = []
        self.fragments: dict[tuple[int, int], dict[int, int]] = defaultdict(dict)
        self.outcomes: dict[int, str] = {}
        self.is_own: set[int] = set()
        for number, (settings, place) in enumerate(sites):
            self._site(number, LiveSite(settings), place)
        self._grid(LiveGrid(grid[0]), grid[1])
        self.entries.sort(key=lambda entry: entry[:3])

    def _add(self, now_ms: int, order: int, kind: str, *what: Any) -> None:
        self.entries.append((now_ms, order, len(self.entries), kind, what))

    def _site(self, number: int, site: LiveSite, place: str | Path) -> None:
        inner = site.core.handle

        def watched(now_ms: int, *events: Any) -> list[Any]:
            for event in events:
                if isinstance(event, JobFinished):
                    self._add(now_ms, _LEFT, "left", number, event.job_id)
            commands = inner(now_ms, *events)
            for command in commands:
                if isinstance(command, StartJob):
                    self._add(now_ms, _STARTED, "started", number, command.job_id, command.nodes, site.book.records)
                elif isinstance(command, ToGrid) and isinstance(command.answer, (Reserved, LeaseEnded, Started)):
                    self._add(now_ms, _HELD, "answered", number, command.answer)
            return commands

        site.core.handle = watched  # type: ignore[method-assign]
        with JournalReader(place, event_type=LiveSiteEvent, message_type=SiteMessage) as journal:
            for entry in journal.inputs():
                for command in site.handle(entry.now_ms, *entry.events):
                    if type(command).__name__ == "Accepted":
                        self.is_own.add(command.job_id)  # type: ignore[union-attr]
                        self._add(entry.now_ms, _ACCEPTED, "accepted", command.job_id)  # type: ignore[union-attr]
        for job_id in sorted(self.is_own & set(site.book.records)):
            record = site.book.records[job_id]
            assert record.state == "ended", f"job {job_id} of {place} is {record.state}"
            self.outcomes[job_id] = record.outcome
            self.fragments[job_id, 0][number] = record.request.nodes
            assert record.end_ms is not None
            self._add(record.end_ms, _REPORTED, "reported", job_id, record.outcome)

    def _grid(self, grid: LiveGrid, place: str | Path) -> None:
        inner = grid.core.handle

        def watched(now_ms: int, *events: Any) -> list[Any]:
            commands = inner(now_ms, *events)
            for command in commands:
                match command:
                    case ToSite(site=site, request=ReserveNodes() as hold):
                        self.fragments[hold.job_id, hold.attempt][site] = hold.width
                    case ToSite(site=site, request=EnqueueJob(job=job, attempt=attempt)):
                        self.fragments[job.job_id, attempt][site] = job.width
                    case ToSite(request=CommitNodes() as commit):
                        self._add(now_ms, _COMMITTED, "committed", commit.job_id, commit.attempt)
                    case ReportDone(job_id=job_id, outcome=outcome):
                        self.outcomes[job_id] = outcome
                        self._add(now_ms, _REPORTED, "reported", job_id, outcome)
                    case ReportRefused(job_id=job_id):
                        self._add(now_ms, _REPORTED, "refused", job_id)
            return commands

        grid.core.handle = watched  # type: ignore[method-assign]
        with JournalReader(place, event_type=LiveGridEvent, message_type=GridMessage) as journal:
            for entry in journal.inputs():
                for command in grid.handle(entry.now_ms, *entry.events):
                    if type(command).__name__ == "Accepted":
                        self._add(entry.now_ms, _ACCEPTED, "accepted", command.job_id)  # type: ignore[union-attr]


def check_history(plan: GridPlan, cancelled: set[int] = frozenset()) -> dict[int, str]:  # type: ignore[assignment]
    """Check the history in the journals of a grid by the rules of the simulated world.

    Parameters
    ----------
    plan : GridPlan
    cancelled : set of int
        The jobs that users cancelled.

    Returns
    -------
    dict from int to str
        The outcome of every job.

    Raises
    ------
    ViolationError
    """
    sites = [
        (plan.site_settings(number), site.journal or Path(plan.folder) / site.name / "site.journal")
        for number, site in enumerate(plan.sites)
    ]
    return check_journals(sites, (plan.settings(), plan.journal or Path(plan.folder) / "grid.journal"), cancelled)


def check_journals(
    sites: Sequence[tuple[SiteSettings, str | Path]],
    grid: tuple[GridSettings, str | Path],
    cancelled: set[int] = frozenset(),  # type: ignore[assignment]
) -> dict[int, str]:
    """Check the history in journals by the rules of the simulated world.

    Parameters
    ----------
    sites : sequence of (SiteSettings, str or pathlib.Path)
        The settings and the journal of each site, in the grid's order.
    grid : (GridSettings, str or pathlib.Path)
        The settings and the journal of the grid.
    cancelled : set of int
        The jobs that users cancelled.

    Returns
    -------
    dict from int to str
        The outcome of every job.

    Raises
    ------
    ViolationError
    """
    journals = _Journals(sites, grid)
    history = History([settings.nodes for settings, _ in sites])
    for job_id in sorted(cancelled):
        history.cancelled(job_id)
    told = _Told(history, journals)
    now_ms = 0
    for now_ms, _, _, kind, what in journals.entries:
        getattr(told, kind)(now_ms, *what)
    history.check_complete(now_ms)
    return journals.outcomes


class _Told:
    """Reports the entries of journals to a history."""

    def __init__(self, history: History, journals: _Journals) -> None:
        self._history, self._journals = history, journals
        self._attempt: dict[tuple[int, int], int] = {}
        self._committed: set[tuple[int, int]] = set()
        self._working: set[int] = set()
        self._there: dict[int, set[int]] = defaultdict(set)

    def accepted(self, now_ms: int, job_id: int) -> None:
        self._history.accepted(job_id)

    def answered(self, now_ms: int, site: int, answer: Reserved | LeaseEnded | Started) -> None:
        self._attempt[site, answer.job_id] = answer.attempt
        if isinstance(answer, Reserved):
            # No time limit, as a site that is down releases nodes only when it is back. `check_complete` finds leaks.
            self._history.reserved(site, answer.job_id, answer.attempt, 2**62)
        else:
            self._history.unreserved(now_ms, site, answer.job_id, answer.attempt)

    def committed(self, now_ms: int, job_id: int, attempt: int) -> None:
        if (job_id, attempt) not in self._committed:
            self._committed.add((job_id, attempt))
            self._history.committed(now_ms, job_id, attempt, tuple(self._journals.fragments[job_id, attempt].items()))

    def started(self, now_ms: int, site: int, job_id: int, nodes: NodeIntervals, records: dict[int, Any]) -> None:
        attempt = 0 if job_id in self._journals.is_own else self._attempt[site, job_id]
        fragments = self._journals.fragments[job_id, attempt]
        self._history.occupied(now_ms, site, job_id, attempt, nodes, fragments[site])
        if len(fragments) > 1:
            self._history.joined(now_ms, site, job_id, attempt, now_ms)
        self._there[job_id].add(site)
        if self._there[job_id] == set(fragments):
            self._history.began(now_ms, job_id, attempt, tuple(fragments.items()))
            self._working.add(job_id)

    def left(self, now_ms: int, site: int, job_id: int) -> None:
        if (site, job_id) in self._attempt or job_id in self._journals.is_own:
            if site not in self._there[job_id]:
                return
            self._history.left(now_ms, site, job_id)
            self._there[job_id].discard(site)
            if job_id in self._working:
                self._working.discard(job_id)
                self._history.stopped(now_ms, job_id, completed=False)

    def reported(self, now_ms: int, job_id: int, outcome: str) -> None:
        # `check_stories` checks whether the job did its work; here it must only be reported exactly once.
        self._history._completed.add(job_id)
        self._history.reported(now_ms, job_id, outcome)

    def refused(self, now_ms: int, job_id: int) -> None:
        self._history.refused(job_id)


WRITES_ITS_OWN_STORY = (
    "sh",
    "-c",
    (
        'line="$GRIDWEAVE_JOB_ID $GRIDWEAVE_TRY $GRIDWEAVE_SITE $GRIDWEAVE_RANK $GRIDWEAVE_SIZE"; '
        'echo "begin $line $(date +%s%3N)" >> "$0"; sleep "$1"; echo "end $line $(date +%s%3N)" >> "$0"'
    ),
)
"""A program that records when it begins and ends; append the file and the sleep time in seconds as arguments."""


class _Rank(msgspec.Struct):
    begin_ms: int
    end_ms: int | None = None


Ranks = dict[tuple[int, str], dict[int, _Rank]]
"""The ranks of a job: maps (attempt, site) to ranks by number."""


class Stories(NamedTuple):
    """The histories that jobs wrote: the ranks of each job, and its total number of ranks."""

    ranks: dict[int, Ranks]
    sizes: dict[int, int]

    def whole_attempts(self, job_id: int) -> list[int]:
        """Return the attempts of a job in which all ranks ended, in ascending order."""
        ended: dict[int, set[int]] = defaultdict(set)
        for (attempt, _), ranks in self.ranks.get(job_id, {}).items():
            ended[attempt] |= {number for number, rank in ranks.items() if rank.end_ms is not None}
        return sorted(attempt for attempt, numbers in ended.items() if numbers == set(range(self.sizes[job_id])))


def read_stories(file: Path) -> Stories:
    """Read the histories that jobs of `WRITES_ITS_OWN_STORY` wrote; ViolationError if a rank began twice."""
    ranks: dict[int, Ranks] = defaultdict(lambda: defaultdict(dict))
    sizes: dict[int, int] = {}
    for line in file.read_text().splitlines():
        what, job, attempt, site, rank, size, at_ms = line.split()
        place = ranks[int(job)][int(attempt), site]
        sizes[int(job)] = int(size)
        if what == "begin":
            if int(rank) in place:
                raise ViolationError(f"rank {rank} of job {job} began twice in attempt {attempt}")
            place[int(rank)] = _Rank(int(at_ms))
        else:
            place[int(rank)].end_ms = int(at_ms)
    return Stories(ranks, sizes)


def check_stories(file: Path, outcomes: dict[int, str], nodes: dict[str, int]) -> None:
    """Check the histories that the jobs wrote.

    All ranks ended in exactly one attempt of each finished job, and in at most one attempt of any other job. No attempt
    of a job began before the last one was over, and no site ever ran more ranks than it has nodes.

    Raises
    ------
    ViolationError
    """
    stories = read_stories(file)
    for job_id, outcome in outcomes.items():
        whole = stories.whole_attempts(job_id)
        if outcome == "finished" and len(whole) != 1:
            raise ViolationError(f"job {job_id} finished, and attempts {whole} came to their end")
        if len(whole) > 1:
            raise ViolationError(f"job {job_id} came to its end in attempts {whole}")
    for job_id, places in stories.ranks.items():
        _check_order(job_id, places)
    _check_counts(stories.ranks, nodes)


def _check_order(job_id: int, places: Ranks) -> None:
    """Check that the attempts of a job follow each other; a killed rank is known to have run only when it began."""
    spans: dict[int, list[int]] = defaultdict(list)
    for (attempt, _), ranks in places.items():
        spans[attempt] += [
            at_ms for rank in ranks.values() for at_ms in (rank.begin_ms, rank.end_ms) if at_ms is not None
        ]
    for (attempt, earlier), (after, later) in itertools.pairwise(sorted(spans.items())):
        if min(later) < max(earlier):
            raise ViolationError(
                f"job {job_id}: attempt {after} began {max(earlier) - min(later)} ms before {attempt} was over"
            )


def _check_counts(ranks: dict[int, Ranks], nodes: dict[str, int]) -> None:
    """Check that no site ever ran more ranks than it has nodes; killed ranks have no recorded end and do not count."""
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for places in ranks.values():
        for (_, site), numbered in places.items():
            for rank in numbered.values():
                if rank.end_ms is not None:
                    changes[site] += [(rank.begin_ms, 1), (rank.end_ms, -1)]
    for site, steps in changes.items():
        running = 0
        for at_ms, step in sorted(steps):
            running += step
            if running > nodes[site]:
                raise ViolationError(f"{at_ms} ms: {running} ranks run at {site}, which has {nodes[site]} nodes")
