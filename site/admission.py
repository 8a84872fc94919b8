"""Admit jobs to the queue within the limits of arrays and the quotas of users and accounts.

Each array, user and account is a *group* with limited capacity. A job belongs to several groups and is admitted when
all of them have capacity. Jobs are admitted in order of their ids: a job never overtakes another job that is waiting
for the same group. No clock, no I/O.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import msgspec

from gridweave.site.explain import nodes_text
from gridweave.site.job import JobRequest
from gridweave.site.quotas import (
    NO_QUOTA,
    NO_QUOTAS,
    PARTS,
    Quota,
    Quotas,
    beyond,
    hours_text,
    node_s_of,
    part_text,
    parts_of,
)
from gridweave.site.resources.chunks import most_nodes
from gridweave.site.times import span_text

GroupName = tuple[str, str, str]
"""``("array", user, array name)``, ``("user", name, "")`` or ``("account", name, "")``."""

GroupSet = tuple[GroupName, ...]
"""The groups of a job; jobs with the same groups wait in one first-in-first-out queue."""

PARTS_OF_WINDOW = 100
"""Resolution of the node-hours window: used node-hours expire late, by up to a hundredth of the window's length."""


NO_PARTS = (0, 0, 0)


class Ask(msgspec.Struct, frozen=True):
    """The part of each group's limits that a job would use."""

    nodes: int
    node_s: int  # node-seconds up to its wall time limit
    at_once: int  # maximum number of jobs of its array that may be admitted at the same time; 0: no maximum
    # Cores, memory in MB, and GPUs; left out of states if there are none.
    parts: tuple[int, int, int] | msgspec.UnsetType = msgspec.UNSET

    def of(self, what: str) -> int:
        """Return how much of a limit the job would use; the limit is named as in `Bound.what`."""
        own = {"jobs": 1, "nodes": self.nodes, "node-hours": self.node_s}
        return own[what] if what in own else (self.parts or NO_PARTS)[PARTS.index(what)]


class JobGroup(msgspec.Struct):
    """A group's use of its limits: its admitted jobs (queued or running), and node-seconds used within the window."""

    inside: int = 0
    nodes: int = 0
    promised_s: int = 0  # node-seconds that the admitted jobs use if they run until their limits
    unstarted: int = 0  # jobs that have not started, admitted or not
    used: list[tuple[int, int]] = []  # (time at which the use leaves the window, node-seconds used), ascending
    # Cores, memory in MB, and GPUs of the admitted jobs; left out of states if there are none.
    parts: tuple[int, int, int] | msgspec.UnsetType = msgspec.UNSET

    def hold(self, parts: tuple[int, int, int], sign: int) -> None:
        """Add a job's cores, memory and GPUs to those of the admitted jobs; subtract them if ``sign`` is -1."""
        cores, memory_mb, gpus = (there + sign * asked for there, asked in zip(self.held, parts, strict=True))
        self.parts = (cores, memory_mb, gpus) if (cores, memory_mb, gpus) != NO_PARTS else msgspec.UNSET

    @property
    def held(self) -> tuple[int, int, int]:
        """The cores, memory in MB, and GPUs of the admitted jobs."""
        return self.parts or NO_PARTS

    def used_s(self, now_ms: int) -> int:
        """Return the node-seconds used within the window."""
        return sum(node_s for until_ms, node_s in self.used if until_ms > now_ms)

    @property
    def is_empty(self) -> bool:
        """Whether the group can be deleted."""
        return not (self.inside or self.unstarted or self.used)


class Bound(msgspec.Struct, frozen=True):
    """A limit of a group that a job would exceed."""

    group: GroupName
    what: str  # ``jobs``, ``nodes``, ``node-hours``, or a name in `PARTS`
    most: int
    there: int
    asked: int
    window_ms: int = 0
    until_ms: int | None = None  # for node-hours: when there will be capacity if no job ends

    @property
    def missing(self) -> int:
        """The amount by which the job would exceed the limit."""
        return self.there + self.asked - self.most

    @property
    def words(self) -> str:
        """A one-line message that gives the limit and by how much the job would exceed it."""
        kind, name, _ = self.group
        if kind == "array":
            are = "is" if self.most == 1 else "are"
            return f"{_jobs(self.most)} of its array {self.group[2]} {are} queued or running, the most at one time"
        whose = whose_text(kind, name)
        if self.what == "jobs":
            there = _jobs(self.there)
            return f"{whose} has {there} queued or running and may have {self.most}: {self.missing} too many"
        if self.what == "nodes":
            there = nodes_text(self.there)
            return f"{whose} uses {there} and may use {self.most}: {self.missing} too many with this job"
        if self.what in PARTS:
            there, most, missing = (part_text(self.what, number) for number in (self.there, self.most, self.missing))
            return f"{whose} uses {there} and may use {most}: {missing} too many with this job"
        there, most, missing = (hours_text(number) for number in (self.there, self.most, self.missing))
        window = span_text(self.window_ms)
        return f"{whose} has used or requested {there} node-hours in {window} and may use {most}: {missing} too many"


class AdmissionState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The saved state of an `AdmissionQueue`, which must be taken after a call to `AdmissionQueue.move`."""

    quotas: Quotas = msgspec.field(name="maxima")
    groups: list[tuple[GroupName, JobGroup]]
    standing: list[tuple[GroupSet, dict[int, Ask]]]
    started: list[int]


class AdmissionQueue:
    """The groups of all jobs that have not ended, and the admission queue.

    Examples
    --------
    >>> queue = AdmissionQueue()
    >>> queue.quotas = Quotas(each_user=Quota(running_jobs=1))
    >>> group_set, ask = (("user", "anna", ""),), Ask(1, 60, 0)
    >>> for job_id in (1, 2):
    ...     queue.stand(job_id, group_set, ask)
    >>> queue.move(0)
    [1]
    >>> queue.bound(0, group_set, ask)[0].words
    "user 'anna' has 1 job queued or running and may have 1: 1 too many"
    """

    def __init__(self) -> None:
        self.quotas = NO_QUOTAS
        self._groups: dict[GroupName, JobGroup] = {}
        # A heap of job ids for each set of groups; some of the jobs may have left the queue.
        self._lanes: dict[GroupSet, list[int]] = {}
        self._asks: dict[int, tuple[GroupSet, Ask]] = {}
        self._sets_of: dict[GroupName, set[GroupSet]] = {}
        self._started: set[int] = set()
        self._moved: set[GroupName] = set()

    def __contains__(self, job_id: int) -> bool:
        """Whether a job is in the admission queue."""
        return job_id in self._asks

    def change(self, quotas: Quotas) -> None:
        """Replace the quotas; admitted jobs stay admitted."""
        self.quotas = quotas
        self._moved.update(self._sets_of)

    def refusal(self, request: JobRequest) -> str | None:
        """Return the one-line reason why a job may not be submitted, or None."""
        for kind, name in (("user", request.user), ("account", request.account)):
            maximum = self._maximum((kind, name, ""))
            if maximum is NO_QUOTA or (kind == "account" and not name):
                continue
            group = self._groups.get((kind, name, ""))
            unstarted = 0 if group is None else group.unstarted
            problem = beyond(maximum, whose_text(kind, name), request, unstarted)
            if problem is not None:
                return problem
        return None

    # -- events of jobs -----------------------------------------------------------------------------------------------

    def came(self, group_set: GroupSet) -> None:
        """Record a submitted job."""
        for name in group_set:
            self._groups.setdefault(name, JobGroup()).unstarted += 1

    def started(self, job_id: int, group_set: GroupSet) -> None:
        """Record that a job has started; a second start has no effect."""
        if job_id not in self._started:
            self._started.add(job_id)
            for name in group_set:
                self._groups[name].unstarted -= 1

    def over(self, job_id: int, group_set: GroupSet) -> None:
        """Record that a job, which has already left its groups and the admission queue, has ended or was declined."""
        for name in group_set:
            group = self._groups.get(name)
            if group is not None:
                group.unstarted -= job_id not in self._started
                if group.is_empty:
                    del self._groups[name]
        self._started.discard(job_id)

    def has_to_stand(self, group_set: GroupSet, ask: Ask) -> bool:
        """Whether a job must pass through the admission queue, even if it is admitted at once."""
        return bool(ask.at_once) or any(name in self._sets_of or self._maximum(name).lets_wait for name in group_set)

    def enter(self, group_set: GroupSet, ask: Ask) -> None:
        """Admit a job."""
        for name in group_set:
            group = self._groups.setdefault(name, JobGroup())
            group.inside += 1
            group.nodes += ask.nodes
            group.hold(ask.parts or NO_PARTS, 1)
            group.promised_s += ask.node_s

    def leave(self, group_set: GroupSet, ask: Ask, now_ms: int, used_s: int = 0) -> None:
        """Record that an admitted job has left its groups after using ``used_s`` node-seconds."""
        for name in group_set:
            group = self._groups[name]
            group.inside -= 1
            group.nodes -= ask.nodes
            group.hold(ask.parts or NO_PARTS, -1)
            group.promised_s -= ask.node_s
            self._moved.add(name)
        self.used(group_set, now_ms, used_s)

    def used(self, group_set: GroupSet, now_ms: int, used_s: int) -> None:
        """Record the node-seconds used by a job that is or was admitted."""
        for name in group_set:
            maximum = self._maximum(name)
            if used_s and maximum.node_hours is not None:
                _charge(self._groups[name], used_s, now_ms, maximum.window_ms)

    def stand(self, job_id: int, group_set: GroupSet, ask: Ask) -> None:
        """Add a job to the admission queue."""
        self._asks[job_id] = group_set, ask
        heapq.heappush(self._lanes.setdefault(group_set, []), job_id)
        for name in group_set:
            self._sets_of.setdefault(name, set()).add(group_set)
        self._moved.update(group_set)

    def step_out(self, job_id: int) -> None:
        """Remove a job from the admission queue; do nothing if the job is not in the queue."""
        entry = self._asks.pop(job_id, None)
        if entry is not None:
            self._moved.update(entry[0])

    def move(self, now_ms: int) -> list[int]:
        """Admit all jobs that can be admitted; return their ids in the order of admission."""
        for name in [name for name in self._sets_of if name in self._groups]:
            used = self._groups[name].used
            while used and used[0][0] <= now_ms:
                used.pop(0)
                self._moved.add(name)
        let_in: list[int] = []
        while self._moved:
            moved, self._moved = self._moved, set()
            near = {name for group_set in self._sets_before(moved) for name in group_set}
            let_in += self._move(now_ms, self._sets_before(near))
        return let_in

    def _sets_before(self, names: set[GroupName]) -> set[GroupSet]:
        return {group_set for name in names for group_set in self._sets_of.get(name, ())}

    def _move(self, now_ms: int, lanes: set[GroupSet]) -> list[int]:
        """Admit jobs from the heads of several queues, one per set of groups, lowest job id first.

        If a head has to wait because some of its groups are full, no later job is admitted to these groups.
        """
        heads = [(first, group_set) for group_set in lanes if (first := self._first(group_set)) is not None]
        heapq.heapify(heads)
        let_in: list[int] = []
        shut: set[GroupName] = set()
        while heads:
            job_id, group_set = heads[0]
            _, ask = self._asks[job_id]
            full = [name for name in group_set if self._bound(now_ms, name, ask) is not None]
            shut.update(full)
            if not shut.isdisjoint(group_set):
                heapq.heappop(heads)
                continue
            del self._asks[job_id]
            self.enter(group_set, ask)
            let_in.append(job_id)
            # Other jobs may have been waiting behind this job.
            self._moved.update(group_set)
            following = self._first(group_set)
            if following is None:
                heapq.heappop(heads)
            else:
                heapq.heapreplace(heads, (following, group_set))
        return let_in

    def _first(self, group_set: GroupSet) -> int | None:
        """Return the first waiting job with this set of groups; if there is none, delete the set and return None."""
        line = self._lanes.get(group_set)
        while line:
            if line[0] in self._asks:
                return line[0]
            heapq.heappop(line)
        self._lanes.pop(group_set, None)
        for name in group_set:
            others = self._sets_of.get(name)
            if others is not None:
                others.discard(group_set)
                if not others:
                    del self._sets_of[name]
        return None

    # -- full groups --------------------------------------------------------------------------------------------------

    def bound(self, now_ms: int, group_set: GroupSet, ask: Ask) -> list[Bound]:
        """Return the limits that keep a job from being admitted; empty if the job is only waiting behind other jobs."""
        bounds = (self._bound(now_ms, name, ask) for name in group_set)
        return [bound for bound in bounds if bound is not None]

    def ahead(self, job_id: int) -> tuple[int, GroupName] | None:
        """Return the first job that is waiting ahead of this job for a group of both jobs, and this group; or None."""
        group_set, _ = self._asks[job_id]
        candidates = []
        for name in group_set:
            firsts = (self._lanes[other][0] for other in self._sets_of[name] if self._lanes.get(other))
            candidates += [(first, name) for first in firsts if first < job_id and first in self._asks]
        return min(candidates, default=None)

    def next_wakeup_ms(self) -> int | None:
        """Return the next time when node-hours leave the window of a group with waiting jobs, or None."""
        windows = (self._groups[name].used for name in self._sets_of if name in self._groups)
        return min((used[0][0] for used in windows if used), default=None)

    def _maximum(self, name: GroupName) -> Quota:
        kind, who, _ = name
        return NO_QUOTA if kind == "array" else self.quotas.of(kind, who)

    def _bound(self, now_ms: int, name: GroupName, ask: Ask) -> Bound | None:
        """Return the group's limit that a job would exceed, or None; an empty group admits jobs of any size."""
        group = self._groups.get(name)
        if group is None:
            return None
        maximum, inside = self._maximum(name), group.inside
        most_jobs = (ask.at_once or None) if name[0] == "array" else maximum.running_jobs
        if most_jobs is not None and inside + 1 > most_jobs:
            return Bound(name, "jobs", most_jobs, inside, 1)
        if maximum.running_nodes is not None and inside and group.nodes + ask.nodes > maximum.running_nodes:
            return Bound(name, "nodes", maximum.running_nodes, group.nodes, ask.nodes)
        for part, limit in maximum.parts:
            there, asked = group.held[PARTS.index(part)], ask.of(part)
            if inside and asked and there + asked > limit:
                return Bound(name, part, limit, there, asked)
        most, there = maximum.node_s, group.used_s(now_ms) + group.promised_s
        if maximum.node_hours is None or not there or there + ask.node_s <= most:
            return None
        until_ms = _less_used_ms(group, now_ms, there + ask.node_s - most)
        return Bound(name, "node-hours", most, there, ask.node_s, maximum.window_ms, until_ms)

    # -- state --------------------------------------------------------------------------------------------------------

    def state(self) -> AdmissionState:
        """Return the state in a form that `restore` accepts."""
        standing: dict[GroupSet, dict[int, Ask]] = {}
        for job_id, (group_set, ask) in self._asks.items():
            standing.setdefault(group_set, {})[job_id] = ask
        return AdmissionState(self.quotas, list(self._groups.items()), list(standing.items()), sorted(self._started))

    def restore(self, state: AdmissionState) -> None:
        """Restore a saved state; to be called on a new instance."""
        self.quotas, self._groups, self._started = state.quotas, dict(state.groups), set(state.started)
        for group_set, asks in state.standing:
            for job_id, ask in asks.items():
                self.stand(job_id, group_set, ask)
        self._moved = set()

    def check_invariants(self, now_ms: int) -> None:
        """Raise AssertionError if the state is inconsistent, e.g. a job is waiting for no reason."""
        for name, group in self._groups.items():
            least = min(group.inside, group.nodes, group.promised_s, group.unstarted, *group.held)
            assert least >= 0, f"{name} has a negative count"
        for job_id, (group_set, ask) in self._asks.items():
            is_bound = self.bound(now_ms, group_set, ask) or self.ahead(job_id)
            assert is_bound, f"job {job_id} waits for admission without a reason"


def group_set_of(request: JobRequest) -> tuple[GroupSet, Ask]:
    """Return a job's groups, and the part of their limits that the job would use."""
    nodes = most_nodes(request.nodes, request.chunk)
    at_once = 0 if request.array is None else request.array.at_once
    parts = parts_of(request) if request.chunk else msgspec.UNSET
    return tuple(_groups_of(request)), Ask(nodes, node_s_of(nodes, request.limit_ms), at_once, parts)


def _groups_of(request: JobRequest) -> Iterator[GroupName]:
    if request.array is not None:
        yield "array", request.user, request.array.name
    yield "user", request.user, ""
    if request.account:
        yield "account", request.account, ""


def whose_text(kind: str, name: str) -> str:
    """Return the holder of a quota as text for messages.

    Examples
    --------
    >>> whose_text("account", "physics"), whose_text("user", "")
    ("account 'physics'", 'the unnamed user')
    """
    return f"{kind} {name!r}" if name else f"the unnamed {kind}"


def _jobs(count: int) -> str:
    return f"{count} job{'s' * (count != 1)}"


def _less_used_ms(group: JobGroup, now_ms: int, node_s: int) -> int | None:
    """Return the time when at least ``node_s`` node-seconds will have left the window; None if fewer are in it."""
    for until_ms, used_s in group.used:
        node_s -= used_s if until_ms > now_ms else 0
        if node_s <= 0:
            return until_ms
    return None


def _charge(group: JobGroup, node_s: int, now_ms: int, window_ms: int) -> None:
    """Add used node-seconds to a group; round the time when they leave the window up to the window's resolution."""
    part_ms = max(1, window_ms // PARTS_OF_WINDOW)
    until_ms = -(-now_ms // part_ms) * part_ms + window_ms
    group.used = [used for used in group.used if used[0] > now_ms]
    if group.used and group.used[-1][0] >= until_ms:
        until_ms, before = group.used[-1]
        group.used[-1] = until_ms, before + node_s
    else:
        group.used.append((until_ms, node_s))
