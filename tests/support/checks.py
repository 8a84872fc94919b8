"""Check what a grid has done: the histories of its journals and jobs, its promises, and its saved states.

`check_history` and `check_stories` are for live grids, whatever fails in them. `with_wishes` adds holds, dependencies
and arrays to the jobs of a live world; `check_waits` and `check_notes` check that the grid obeys them. `play_troubled`
simulates a world under faults and checks it at each step. `DRILLS` lists the faults during the agreement on a start.
`differences` compares two cores, to find what an encoded state omits.
"""

from __future__ import annotations

import itertools
import types
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.random import Generator

from gridweave.grid.messages import LiveGridEvent, ReportDone, ReportRefused, ToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.cluster import GridPlan
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, Network
from gridweave.scenarios.world.history import History, ViolationError
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.disciplines.entry import Policy
from gridweave.site.eligibility import has_come, past_of
from gridweave.site.job import After, ArrayPlace, JobRecord, JobRequest, NodeIntervals
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

# -- histories of live grids ------------------------------------------------------------------------------------------

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
                    self._add(now_ms, _STARTED, "started", number, command.job_id, command.nodes, site.registry.records)
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
        for job_id in sorted(self.is_own & set(site.registry.records)):
            record = site.registry.records[job_id]
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


# -- holds, dependencies and arrays -----------------------------------------------------------------------------------

CLOCKS_MS = 200
"""Tolerance between a start by a site's clock and an end by the grid's clock; each is off by less than half of it."""


def with_wishes(rng: np.random.Generator, request: JobRequest, others: Iterable[int], place: str) -> JobRequest:
    """Return a request that is perhaps held, waits for other jobs of the same place, or belongs to an array."""
    known = sorted(others)
    after = []
    if known and rng.random() < 0.3:
        for job_id in rng.choice(known, size=min(len(known), int(rng.integers(1, 3))), replace=False).tolist():
            has = str(rng.choice(["started", "ended", "finished", "finished", "failed"]))
            after.append(After(job_id=job_id, has=has))  # type: ignore[arg-type]
    array = None
    if rng.random() < 0.3:
        array = ArrayPlace(name=f"array of {place}", index=int(rng.integers(10)), at_once=int(rng.integers(0, 3)))
    hold = bool(rng.random() < 0.2)
    return msgspec.structs.replace(request, hold=hold, after=tuple(after), array=array)


def was_hopeless(record: JobRecord, records: Mapping[int, JobRecord]) -> bool:
    """Whether a job was cancelled because its condition on another job could never hold."""
    if record.outcome != "cancelled" or not record.reason.startswith("it waited until"):
        return False
    return any(has_come(after, past_of(records[after.job_id])) is False for after in record.request.after)


def check_waits(records: Mapping[int, JobRecord], notes: Iterable[Mapping[str, Any]]) -> None:
    """Raise ViolationError if a job ran before its conditions on other jobs held.

    The condition ``started`` keeps holding if the other job is requeued, so it is checked in the notes.
    """
    once = {note["job_id"] for note in notes if note["kind"] in ("starting", "runs")}
    for job_id, record in records.items():
        for after in record.request.after:
            other = records[after.job_id]
            if record.outcome == "cancelled" or record.start_ms is None:
                continue
            if not has_come(after, past_of(other)) and not (after.has == "started" and other.job_id in once):
                raise ViolationError(f"job {job_id} ran though job {after.job_id} never has {after.has}")
            since_ms = other.end_ms if after.has != "started" else None
            if since_ms is not None and record.start_ms < since_ms - CLOCKS_MS:
                raise ViolationError(f"job {job_id} ran before job {after.job_id} had {after.has}")


def check_notes(notes: Iterable[Mapping[str, Any]], records: Mapping[int, JobRecord]) -> None:
    """Raise ViolationError if a job ran while kept from the queue, or if an array exceeded its limit `at_once`."""
    kept: set[int] = set()
    inside: dict[str, set[int]] = {}
    for note in notes:
        job_id, kind = note["job_id"], note["kind"]
        record = records.get(job_id)
        if record is None:
            continue
        array = record.request.array
        if kind == "kept":
            kept.add(job_id)
        elif kind == "queued":
            kept.discard(job_id)
        elif kind in ("runs", "starting") and job_id in kept:
            raise ViolationError(f"job {job_id} runs, and is kept from the queue")
        if array is None:
            continue
        under_way = inside.setdefault(array.name, set())
        if kind in ("kept", "ended", "refused") and (kind != "refused" or record.state == "refused"):
            under_way.discard(job_id)
        elif kind == "queued":
            under_way.add(job_id)
            if 0 < array.at_once < len(under_way):
                raise ViolationError(f"{len(under_way)} jobs of {array.name} are under way, job {job_id} at last")


# -- simulated worlds -------------------------------------------------------------------------------------------------


def play_troubled(
    workload: Workload,
    nodes: Sequence[int],
    policies: Sequence[Policy],
    seed: int,
    control: str,
    selection: str = "best-fit",
) -> None:
    """Simulate jobs of the grid and of sites' own users, and check the world's invariants.

    Assert that no job is refused and that all jobs end.
    """
    rng = np.random.default_rng(seed)
    result = simulate_world(
        workload,
        nodes,
        GridPolicy(
            mode="sharing" if control == "none" else "adaptive", control=control, selection=selection, overhead=0.2
        ),
        site_policies=policies,
        to_grid=rng.random(len(workload)) < 0.7,
        home=np.where(workload.width > min(nodes), 0, np.arange(len(workload)) % len(nodes)),
        network=Network(latency_ms=50, jitter_ms=100, loss=0.1, duplicate=0.1),
        faults=Faults(crash_every_ms=9_000_000, crash_lasts_ms=60_000, cut_every_ms=9_000_000, cut_lasts_ms=30_000),
        rng=rng,
        check=True,
    )
    assert not result.refused
    assert (result.end_ms >= result.start_ms).all()


# -- faults during the agreement on a start ---------------------------------------------------------------------------

STEPS = {
    "asked": "ReserveNodes",
    "reserved": "Reserved",
    "committed": "CommitNodes",
    "started": "Started",
    "ready": "FragmentReady",
    "opened": "OpenGate",
    "begun": "FragmentOpened",
    "met": "FragmentsMet",
}
"""Maps each step of the agreement to the message that is being sent when the fault occurs."""

WHO = ("grid", "first site", "last site", "first machine", "last machine")
FAULTS = ("stop", "kill", "cut")

# A machine has no connection to the grid that could be cut.
DRILLS = [
    (step, who, fault) for step in STEPS for who in WHO for fault in FAULTS if not ("mach" in who and fault == "cut")
]


# -- states of cores --------------------------------------------------------------------------------------------------

# Attributes that are valid for one instant only, or used only in error messages.
PASSING = {"out", "over", "_out", "_inner", "_fresh", "_life"}
# Caches, which are computed again on demand.
WORKED_OUT = {"_one_job._state", "_scratch", "_whys", "_why_never", "memo", "choice", "_find"}

# Dicts whose order does not matter.
UNORDERED = {"_end_ms"}

_CODE = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def differences(mine: Any, other: Any, path: str = "it", seen: set[tuple[int, int]] | None = None) -> Iterator[str]:
    """Yield the paths at which two values differ."""
    seen = set() if seen is None else seen
    pair = id(mine), id(other)
    if mine is other or pair in seen or isinstance(mine, _CODE):
        return
    seen.add(pair)
    if type(mine) is not type(other):
        yield f"{path}: {mine!r:.200} and {other!r:.200}"
    elif isinstance(mine, np.ndarray):
        if mine.dtype != other.dtype or mine.shape != other.shape or mine.tobytes() != other.tobytes():
            yield f"{path}: {mine!r:.500} and {other!r:.500}"
    elif isinstance(mine, Generator):
        yield from differences(mine.bit_generator.state, other.bit_generator.state, path, seen)
    elif isinstance(mine, dict):
        if (sorted(mine) != sorted(other)) if path.rpartition(".")[2] in UNORDERED else (list(mine) != list(other)):
            yield f"{path}: {list(mine)!r:.200} and {list(other)!r:.200}"
        else:
            for key in mine:
                yield from differences(mine[key], other[key], f"{path}[{key!r}]", seen)
    elif isinstance(mine, tuple) and hasattr(mine, "_fields"):
        yield from _of_names(mine._fields, mine, other, path, seen)
    elif isinstance(mine, list | tuple):
        if len(mine) != len(other):
            yield f"{path}: {mine!r:.200} and {other!r:.200}"
        else:
            for number, (first, second) in enumerate(zip(mine, other, strict=True)):
                yield from differences(first, second, f"{path}[{number}]", seen)
    elif names := _names(mine):
        yield from _of_names(names, mine, other, path, seen)
    elif mine != other:
        yield f"{path}: {mine!r:.200} and {other!r:.200}"


def _names(value: Any) -> list[str]:
    """Return the names of all attributes of a value."""
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [*getattr(value, "__dict__", {}), *slots]


def _of_names(names: Any, mine: Any, other: Any, path: str, seen: set[tuple[int, int]]) -> Iterator[str]:
    for name in names:
        if not {name, f"{path.rpartition('.')[2]}.{name}"} & (PASSING | WORKED_OUT):
            yield from differences(getattr(mine, name), getattr(other, name), f"{path}.{name}", seen)
