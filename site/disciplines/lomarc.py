"""How a site whose nodes are shared schedules, as its operator writes it down (docs/lomarc.md).

The discipline of a site whose nodes are shared, stepped event by event (docs/lomarc.md).

As `gridweave.site.disciplines.arrays`, this owns the arrays and gives every job a slot in them; kernels decide.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any, Self

import msgspec
import numpy as np
import numpy.typing as npt

from gridweave.errors import OptionError
from gridweave.site.disciplines.slowdown_tables import IntArray, SlowdownModel
from gridweave.site.explain import SiteReason, ahead_text, free_text, nodes_text
from gridweave.site.job import MAX_TIME_MS, MAX_WIDTH, Job, NodeIntervals, Resources, Running
from gridweave.site.kernels.coscheduling_state import (
    KIND,
    LONG,
    MEDIUM,
    NO_CELL,
    SHORT,
    UNKNOWN_ROW,
    average_wait_ms,
    empty_site,
    forget_changes,
    job_submitted,
    job_withdrawn,
    order_queue,
)
from gridweave.site.kernels.lomarc import lomarc_pass, reserve
from gridweave.site.kernels.nodes import MEMORY_SLACK
from gridweave.site.kernels.pairing import (
    ADJACENT,
    ALONE,
    ALWAYS,
    CONSERVATIVE,
    EASY,
    FIRST,
    LOMARC,
    NO_BACKFILL,
    RESPONSE,
    U1,
    U2,
    LomarcCodes,
)
from gridweave.site.kernels.shared_quote import idle_to_spare, slowdown_offered, start_behind_queue
from gridweave.site.kernels.slowdown import job_ended
from gridweave.site.kernels.state import NEVER_MS
from gridweave.site.kernels.work import RATE_ONE, work_of
from gridweave.site.times import when_text

HEURISTICS = {"u1": U1, "u2": U2, "response": RESPONSE, "first": FIRST}
COSCHEDULING = {"none": ALONE, "lomarc": LOMARC, "always": ALWAYS, "adjacent": ADJACENT}
BACKFILLS = {"easy": EASY, "none": NO_BACKFILL, "conservative": CONSERVATIVE}
CPUS = ("hyperthreaded", "standard")

MAX_LANES = 64
"""Hardware threads of a node."""


def _check_name(option: str, value: str, known: Sequence[str] | dict[str, int]) -> None:
    if value not in known:
        raise OptionError(option, f"{value!r} is not known; known are {', '.join(known)}")


def _check_number(option: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise OptionError(option, f"is {value:g}; a number from {low:,.6g} to {high:,.15g}")


class NodeKind(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are alike.

    Attributes
    ----------
    count : int
        How many there are.
    cores : int
    threads : int
        Hardware threads of a core; on a standard CPU the jobs that may take turns on it.
    memory : float
        In units of the memory that the jobs' fractions are parts of.
    cpu : {"hyperthreaded", "standard"}

    Raises
    ------
    OptionError
        If a value is impossible.
    """

    count: int
    cores: int = 1
    threads: int = 2
    memory: float = 1.0
    cpu: str = "hyperthreaded"

    def __post_init__(self) -> None:
        _check_number("count", self.count, 1, MAX_WIDTH)
        _check_number("cores", self.cores, 1, MAX_LANES)
        _check_number("threads", self.threads, 1, MAX_LANES)
        _check_number("cores x threads", self.cores * self.threads, 1, MAX_LANES)
        _check_number("memory", self.memory, 1e-6, 1e6)
        _check_name("cpu", self.cpu, CPUS)

    def is_usable(self, cores: npt.ArrayLike, memory: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Return whether a job, or each of several, that needs so many cores and so much memory can use such a node.

        Returns
        -------
        numpy.ndarray of bool
        """
        return np.asarray((np.asarray(cores) <= self.cores) & (np.asarray(memory) <= self.memory + MEMORY_SLACK))


class LomarcPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The discipline of a site whose nodes are shared.

    Attributes
    ----------
    coscheduling : {"lomarc", "none", "always", "adjacent"}
        Who shares nodes: who matches; nobody (PSS); always two (AC); neighbours in the queue that match (AM).
    heuristic : {"u1", "u2", "response", "first"}
        Which match is best: L-U1, L-U2, L-R, L-FM. Counts under "lomarc" alone.
    cpu : {"hyperthreaded", "standard"}
        Of the nodes, where only their number is given.
    max_slowdown : float
        MAX_SLOWDOWN, 1 or more.
    short_up_to_ms, medium_up_to_ms : int
        The longest estimate of a short and of a medium job.
    aging_ms : float or None
        T_age; None for the average wait so far, infinity for no aging.
    load_threshold : float
        The machine is weakly loaded while the waiting jobs ask for less than the idle nodes by this part of them.
    partners : int or None
        With how many jobs one may share its nodes; None for the threads of a node less one.
    backfill : {"easy", "none", "conservative"}

    Raises
    ------
    OptionError
        If a name is unknown or a number out of its bounds.

    Examples
    --------
    >>> LomarcPolicy(heuristic="response").label
    'L-R'
    >>> LomarcPolicy(max_slowdown=0.9)
    Traceback (most recent call last):
    gridweave.errors.OptionError: max_slowdown: is 0.9; a number from 1 to 1,000,000
    """

    coscheduling: str = "lomarc"
    heuristic: str = "u1"
    cpu: str = "hyperthreaded"
    max_slowdown: float = 1.6
    short_up_to_ms: int = 60_000
    medium_up_to_ms: int = 3_600_000
    aging_ms: float | None = None
    load_threshold: float = 0.2
    partners: int | None = None
    backfill: str = "easy"

    def __post_init__(self) -> None:
        _check_name("coscheduling", self.coscheduling, COSCHEDULING)
        _check_name("heuristic", self.heuristic, HEURISTICS)
        _check_name("backfill", self.backfill, BACKFILLS)
        _check_name("cpu", self.cpu, CPUS)
        _check_number("max_slowdown", self.max_slowdown, 1, 1e6)
        _check_number("short_up_to_ms", self.short_up_to_ms, 0, MAX_TIME_MS)
        _check_number("medium_up_to_ms", self.medium_up_to_ms, self.short_up_to_ms, MAX_TIME_MS)
        _check_number("load_threshold", self.load_threshold, 0, 1)
        if self.aging_ms is not None:
            _check_number("aging_ms", self.aging_ms, 1, float("inf"))
        if self.partners is not None:
            _check_number("partners", self.partners, 1, MAX_LANES)

    @property
    def label(self) -> str:
        """The paper's name of this variant, with what is not as there."""
        name = {"none": "PSS", "always": "AC", "adjacent": "AM"}.get(self.coscheduling)
        if name is None:
            name = {"u1": "L-U1", "u2": "L-U2", "response": "L-R", "first": "L-FM"}[self.heuristic]
            if self.cpu == "standard":
                name = "L-N" if self.heuristic == "u1" else f"{name} standard"
        plain = LomarcPolicy(coscheduling=self.coscheduling, heuristic=self.heuristic, cpu=self.cpu)
        fields = (*self.__struct_fields__[3:],)
        changed = [f"{one}={getattr(self, one)}" for one in fields if getattr(self, one) != getattr(plain, one)]
        return " ".join([name, *changed])

    def codes(self, kinds: Sequence[NodeKind]) -> LomarcCodes:
        """Return the policy as compiled code reads it.

        Parameters
        ----------
        kinds : sequence of NodeKind
            The nodes of the site.
        """
        age_ms = 0 if self.aging_ms is None else int(min(self.aging_ms, float(NEVER_MS)))
        most = max(kind.cores * kind.threads for kind in kinds) - 1
        return LomarcCodes(
            coscheduling=COSCHEDULING[self.coscheduling],
            heuristic=HEURISTICS[self.heuristic] if self.coscheduling == "lomarc" else FIRST,
            backfill=BACKFILLS[self.backfill],
            max_slowdown=float(self.max_slowdown),
            age_ms=age_ms,
            load_part=1.0 - self.load_threshold,
            partners=most if self.partners is None else self.partners,
        )

    def classes(self, estimate_ms: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return the class of jobs with these estimates: 0 short, 1 medium, 2 long.

        Parameters
        ----------
        estimate_ms : array_like of int, shape (n,)

        Returns
        -------
        numpy.ndarray of int64, shape (n,)

        Examples
        --------
        >>> LomarcPolicy().classes([60_000, 60_001, 3_600_001]).tolist()
        [0, 1, 2]
        """
        estimate = np.asarray(estimate_ms, np.int64)
        longer = np.where(estimate <= self.medium_up_to_ms, MEDIUM, LONG)
        return np.where(estimate <= self.short_up_to_ms, SHORT, longer).astype(np.int64)


VARIANTS: dict[str, LomarcPolicy] = {
    "PSS": LomarcPolicy(coscheduling="none"),
    "AC": LomarcPolicy(coscheduling="always"),
    "AM": LomarcPolicy(coscheduling="adjacent"),
    "L-U1": LomarcPolicy(heuristic="u1"),
    "L-U2": LomarcPolicy(heuristic="u2"),
    "L-R": LomarcPolicy(heuristic="response"),
    "L-FM": LomarcPolicy(heuristic="first"),
    "L-N": LomarcPolicy(heuristic="u1", cpu="standard"),
}
"""The paper's variants by name."""


def kind_array(kinds: Sequence[NodeKind]) -> npt.NDArray[np.void]:
    """Return kinds of nodes as compiled code reads them.

    Returns
    -------
    numpy.ndarray of KIND, shape (k,)
    """
    rows = [(kind.cores, kind.threads, kind.cpu == "hyperthreaded", kind.memory) for kind in kinds]
    return np.array(rows, KIND)


_FIRST_SLOTS = 64


class SharedNodes(msgspec.Struct, frozen=True, kw_only=True):
    """How a site schedules on nodes that jobs share: the policy of the discipline ``lomarc``.

    Attributes
    ----------
    sharing : LomarcPolicy
    kinds : tuple of NodeKind
        Together the nodes of the site; if empty, all have one core with two threads, on the CPU of the policy.
    formula : str
        Of the slowdown: a name in `gridweave.site.disciplines.slowdown_tables.FORMULAS`.

    Raises
    ------
    OptionError
        If there is no such formula.
    """

    sharing: LomarcPolicy = LomarcPolicy()
    kinds: tuple[NodeKind, ...] = ()
    formula: str = "whole"

    def __post_init__(self) -> None:
        SlowdownModel(self.formula)

    @property
    def discipline(self) -> str:
        """The name of the discipline."""
        return "lomarc"

    @property
    def label(self) -> str:
        """What tables and plots call this policy."""
        return self.sharing.label

    def kinds_of(self, nodes: int) -> tuple[NodeKind, ...]:
        """Return the kinds of a site's nodes.

        Raises
        ------
        OptionError
            If they are not so many together.
        """
        kinds = self.kinds or (NodeKind(count=nodes, cpu=self.sharing.cpu),)
        count = sum(kind.count for kind in kinds)
        if count != nodes:
            raise OptionError("kinds", f"have {count} nodes together, and the site has {nodes}")
        return kinds


class SharedDiscipline:
    """A site's jobs and hardware threads in arrays, and the kernels that decide on them.

    Parameters
    ----------
    nodes : int
        Nodes of the site.
    week_offset_ms : int
        Of no concern here.
    """

    def __init__(self, nodes: int, policy: SharedNodes, week_offset_ms: int = 0) -> None:
        self._policy = policy.sharing
        self._kinds = policy.kinds_of(nodes)
        self._codes = self._policy.codes(self._kinds)
        self._model = SlowdownModel(policy.formula)
        self._arrays = self._model.arrays()
        self._n_factors = len(self._model.cpu_factors.labels)
        self._lanes = max(kind.cores for kind in self._kinds) * max(kind.threads for kind in self._kinds)
        self._state = self._empty(_FIRST_SLOTS)
        self._jobs: dict[int, Job] = {}
        self._slot: dict[int, int] = {}
        self._unused = list(range(_FIRST_SLOTS - 1, -1, -1))
        # What the driver was told of each running job.
        self._rate: dict[int, int] = {}

    def _empty(self, slots: int):  # type: ignore[no-untyped-def]  # arrays of numpy and numba
        return empty_site(kind_array(self._kinds), [kind.count for kind in self._kinds], slots=slots, plans=True)

    def aside(self) -> Self:
        """Return what can be asked anything, and leaves no trace of that here; nothing may happen to it."""
        twin = copy.copy(self)
        twin._state = type(self._state)(*(array.copy() for array in self._state))
        return twin

    @property
    def threads_per_node(self) -> int:
        """Hardware threads of the largest node: what `place_of` counts on with from node to node."""
        return self._lanes

    @property
    def free(self) -> int:
        """Nodes on which no job is."""
        return int(self._state.counters["idle"][0])

    def why_never(self, job: Job) -> str | None:
        """Return why a job could never start here, or None."""
        needs = _resources(job, self._kinds)
        if not 0 <= needs.cpu_kind < self._n_factors:
            return f"its kind of CPU work is {needs.cpu_kind}; this site knows 0 to {self._n_factors - 1}"
        usable = sum(kind.count for kind in self._kinds if kind.is_usable(needs.cores, needs.memory))
        if job.width > usable:
            return f"it needs {job.width} nodes; {usable} of this site are usable for it"
        if self._policy.backfill == "conservative" and usable < sum(kind.count for kind in self._kinds):
            return "not all nodes have the cores and the memory for it, and conservative backfilling needs that"
        return None

    def submit(self, now_ms: int, job: Job) -> None:
        """Take in a job."""
        if not self._unused:
            self._grow()
        slot = self._unused.pop()
        self._fill(slot, now_ms, job)
        self._jobs[slot] = job
        self._slot[job.job_id] = slot
        job_submitted(self._state, np.int64(slot))

    def _fill(self, slot: int, now_ms: int, job: Job) -> None:
        """Enter what is known of a job at its submission."""
        needs = _resources(job, self._kinds)
        row = self._state.jobs[slot]
        row["submit_ms"], row["job_id"] = now_ms, job.job_id
        row["width"], row["estimate_ms"] = job.width, job.estimate_ms
        for name in ("cpu", "network", "disk", "memory", "cores"):
            row[name] = getattr(needs, name)
        for name, values in self._model.sorts_of(_columns(needs)).items():
            row[name] = values[0]
        row["job_class"] = self._policy.classes([job.estimate_ms])[0]
        if job.resources is None:
            row["row"] = UNKNOWN_ROW

    def ended(self, now_ms: int, job_id: int) -> None:
        """Take out a running job."""
        job_ended(self._state, self._arrays, np.int64(self._slot[job_id]), np.int64(now_ms))
        del self._rate[job_id]
        self._forget(job_id)

    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        """Expect a running job, one that has its nodes alone, to end at another instant."""
        row = self._state.jobs[self._slot[job_id]]
        row["left"], row["since_ms"], row["end_ms"] = work_of(end_ms - now_ms), now_ms, end_ms

    def withdraw(self, now_ms: int, job_id: int) -> None:
        """Take out a waiting job."""
        job_withdrawn(self._state, np.int64(self._slot[job_id]))
        self._forget(job_id)

    def reserve(self, now_ms: int, reservation_id: int, start_ms: int, length_ms: int, width: int) -> int | None:
        """Make no reservation: this discipline has none."""
        return None

    def unreserve(self, now_ms: int, reservation_id: int) -> None:
        """Have nothing to give back."""

    def run_pass(self, now_ms: int) -> list[Job]:
        """Start what may start now; return these jobs, in the order in which they were started."""
        if not self._state.counters["waiting_width"][0]:
            return []
        lomarc_pass(self._state, self._arrays, self._codes, np.int64(now_ms))
        slots = self._state.started[: self._state.counters["n_started"][0]].tolist()
        started = [self._jobs[slot] for slot in slots]
        self._rate.update((job.job_id, RATE_ONE) for job in started)
        return started

    def take_rates(self) -> list[tuple[int, int]]:
        """Return (job id, rate) of the running jobs whose rate is another than was told, by job id."""
        slots = self._state.changed[: self._state.counters["n_changed"][0]].tolist()
        forget_changes(self._state)
        told = []
        for slot in slots:
            job = self._jobs.get(slot)
            rate = int(self._state.jobs["rate"][slot])
            if job is not None and self._rate.get(job.job_id, rate) != rate:
                self._rate[job.job_id] = rate
                told.append((job.job_id, rate))
        return sorted(told)

    def place_of(self, job_id: int) -> tuple[NodeIntervals, NodeIntervals]:
        """Return the nodes and the hardware threads of a running job."""
        cells = []
        cell = int(self._state.jobs["first_cell"][self._slot[job_id]])
        while cell != NO_CELL:
            cells.append(cell)
            cell = int(self._state.next_cell[cell])
        return _intervals(sorted({cell // self._lanes for cell in cells})), _intervals(sorted(cells))

    def startable(self, now_ms: int, length_ms: int) -> int:
        """Return how many nodes of its own a job of this length, submitted now, could have at once."""
        room = self._state.step_ms, self._state.step_free
        return int(idle_to_spare(self._state, self._codes, *room, np.int64(now_ms), np.int64(length_ms)))

    def earliest_start_ms(self, now_ms: int, width: int, length_ms: int) -> int | None:
        """Return when a job submitted now would start alone, if estimates held and nothing else came; None: never."""
        if width > sum(kind.count for kind in self._kinds):
            return None
        if width <= self.startable(now_ms, length_ms):
            return now_ms
        room = self._state.step_ms, self._state.step_free
        times = np.int64(now_ms), np.int64(width), np.int64(length_ms)
        start_ms = int(start_behind_queue(self._state, self._codes, *room, *times))
        return None if start_ms == NEVER_MS else start_ms

    def slowdown_offered(self, now_ms: int, job: Job) -> float | None:
        """Return at which slowdown a job could start now on nodes that others use; None if there are none for it."""
        if self.why_never(job) is not None:
            return None
        if not self._unused:
            self._grow()
        slot = self._unused[-1]
        self._fill(slot, now_ms, job)
        slowdown = float(slowdown_offered(self._state, self._arrays, self._codes, np.int64(slot), np.int64(now_ms)))
        return slowdown if slowdown > 0 else None

    def next_wakeup_ms(self) -> int | None:
        """Return None: nothing starts here but when something happens."""
        return None

    def next_end_ms(self) -> int | None:
        """Return the first end by estimate of a running job, at the rates of now."""
        slots = self._running_slots()
        return int(self._state.jobs["end_ms"][slots].min()) if len(slots) else None

    def _running_slots(self) -> IntArray:
        slots: IntArray = self._state.running[: self._state.counters["n_running"][0]]
        return slots

    def running(self) -> Iterator[Running]:
        """Yield the running jobs, by their end by estimate."""
        table = self._state.jobs
        slots = sorted(self._running_slots().tolist(), key=lambda slot: (table["end_ms"][slot], table["job_id"][slot]))
        for slot in slots:
            yield Running(self._jobs[slot], int(table["start_ms"][slot]), int(table["end_ms"][slot]))

    def waiting(self) -> Iterator[tuple[Job, int | None]]:
        """Yield the waiting jobs in the order of the queue at the last pass; none has a promised start."""
        levels = self._state.jobs["job_class"]
        for kind in range(len(self._state.n_waiting)):
            for slot in self._state.waiting[kind, : self._state.n_waiting[kind]].tolist():
                assert levels[slot] == kind, "a job waits in another class than its own"
                yield self._jobs[slot], None

    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        """Return when a waiting job will start, and why not earlier."""
        state, codes = self._state, self._codes
        age_ms = average_wait_ms(state) if codes.age_ms == 0 else codes.age_ms
        order_queue(state, np.int64(age_ms), np.int64(now_ms))
        queue = state.queue[: state.counters["n_queue"][0]].tolist()
        place = queue.index(self._slot[job_id])
        job = self._jobs[self._slot[job_id]]
        reserve(state, np.int64(queue[0]), np.int64(now_ms))
        limit_ms = int(state.counters["limit_ms"][0])
        start_ms = max(limit_ms, now_ms) if place == 0 else None
        head_due = when_text(max(limit_ms, now_ms), now_ms)
        if place == 0:
            reason = (
                f"it is first in the queue; it needs {nodes_text(job.width)} without jobs, which are there {head_due}"
            )
        else:
            reason = (
                f"it needs {nodes_text(job.width)}, and {free_text(self.free)}; {ahead_text(place)} would be offered "
                f"them before it, and job {self._jobs[queue[0]].job_id} at the head, which is to start {head_due}, "
                "must not be delayed"
            )
        return SiteReason(
            start_ms=start_ms,
            ahead=place,
            waits_for=()
            if start_ms is None
            else tuple(running.job.job_id for running in self.running() if running.end_by_estimate_ms <= start_ms),
            reason=f"{reason}; and no running job matches it",
        )

    def _forget(self, job_id: int) -> None:
        slot = self._slot.pop(job_id)
        self._unused.append(slot)
        del self._jobs[slot]

    def _grow(self) -> None:
        """Move into arrays of twice the size."""
        old = self._state
        slots = 2 * len(old.jobs)
        self._state = self._empty(slots)
        for target, source in zip(self._state, old, strict=True):
            target[tuple(slice(length) for length in source.shape)] = source
        self._unused.extend(range(slots - 1, len(old.jobs) - 1, -1))

    def check_invariants(self) -> None:
        """Raise AssertionError if the state contradicts itself."""
        state = self._state
        running = self._running_slots().tolist()
        waiting = [self._slot[job.job_id] for job, _ in self.waiting()]
        assert sorted([*running, *waiting]) == sorted(self._slot.values()), "a slot is lost or doubled"
        held = dict.fromkeys(running, 0)
        for row in state.occupant.tolist():
            for slot in {slot for slot in row if slot >= 0}:
                assert slot in held, "a job that does not run holds a thread"
                held[slot] += 1
        for slot, nodes in held.items():
            assert nodes == state.jobs["width"][slot], "a job has not its nodes"
        assert self.free == sum(all(slot < 0 for slot in row) for row in state.occupant.tolist()), "idle nodes differ"
        assert set(self._rate) == {int(state.jobs["job_id"][slot]) for slot in running}, "a rate is lost"


def _resources(job: Job, kinds: tuple[NodeKind, ...]) -> Resources:
    """Return what a job needs; all of a node where nothing is known, so that nobody shares it."""
    return job.resources or Resources(memory=max(kind.memory for kind in kinds))


def _columns(needs: Resources) -> dict[str, np.ndarray[tuple[int], np.dtype[Any]]]:
    """Return what a job needs as the columns of a workload of one job."""
    columns = {f"{name}_fraction": np.array([getattr(needs, name)]) for name in ("cpu", "network", "disk")}
    columns |= {"cpu_kind": np.array([needs.cpu_kind]), "cache_bytes": np.array([needs.cache_bytes])}
    if needs.message_bytes is not None:
        columns["message_bytes"] = np.array([needs.message_bytes])
    return columns


def _intervals(numbers: list[int]) -> NodeIntervals:
    """Return ascending numbers as half-open intervals."""
    found: list[tuple[int, int]] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return tuple(found)
