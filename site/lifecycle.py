"""State tables for jobs, for a site's parts of grid jobs, and for how a job's run ends.

A state and a cause determine the next state. `Lifecycle.change` is the only code in ``site/`` and ``grid/`` that
changes a record's state. The tables for the grid's own records are in ``grid/lifecycle.py``; see also docs/states.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Generic, Literal, Protocol, TypeVar, cast

from gridweave.errors import GridweaveError

KEEP_MOVES = 2_000
"""Number of state changes that a `Lifecycle` remembers, over all its records."""

JobState = Literal["held", "waiting", "starting", "running", "ending", "ended", "refused"]
JobCause = Literal[
    "submit", "keep", "admit", "hold", "place", "delegate", "move", "run", "stop", "retry", "end", "refuse"
]

PartState = Literal["waiting", "reserved", "committed", "running", "evicted", "over"]
PartCause = Literal[
    "enqueue", "reserve", "reserve ahead", "grant", "commit", "start", "evict", "withdraw", "release", "refuse", "end"
]

RunEnd = Literal["lost", "limit", "cancelled"]
RunEndCause = Literal["evict", "requeue", "hand back", "limit", "kill", "cancel"]

S = TypeVar("S", bound=str)
C = TypeVar("C", bound=str)


@dataclass(frozen=True)
class StateTable(Generic[S, C]):
    """A state machine as data.

    Attributes
    ----------
    record : str
        The kind of record that has these states, for error messages.
    states, causes : mapping to str
        The meaning of each state and cause.
    first : mapping from cause to state
        The first state of a record, by the cause that creates the record.
    rows : mapping from state to mapping from cause to state
        The next state for each cause that is possible in a state. A cause that changes nothing leads back to the same
        state. A state without causes is final.
    """

    record: str
    states: Mapping[S, str]
    causes: Mapping[C, str]
    first: Mapping[C, S]
    rows: Mapping[S, Mapping[C, S]]

    @cached_property
    def over(self) -> tuple[S, ...]:
        """The final states."""
        return tuple(state for state, row in self.rows.items() if not row)

    @cached_property
    def open(self) -> tuple[S, ...]:
        """The states that are not final."""
        return tuple(state for state, row in self.rows.items() if row)

    def after(self, state: str, cause: C) -> S | None:
        """Return the next state, or None if the cause is impossible; pass '' as the state of a new record."""
        if not state:
            return self.first.get(cause)
        return self.rows.get(cast("S", state), {}).get(cause)

    def states_before(self, cause: C) -> tuple[S, ...]:
        """Return the states in which a cause is possible."""
        return tuple(state for state, row in self.rows.items() if cause in row)


JOB: Final = StateTable[JobState, JobCause](
    "job",
    states={
        "held": "Not in the queue yet: held by its user, or waiting for another job, an array limit or a quota.",
        "waiting": "In the queue of the grid or of a site.",
        "starting": "It has nodes, but not all of its processes have started.",
        "running": "Running on all its sites.",
        "ending": "Its processes were asked to end, but some may still run.",
        "ended": "Over. The record has the outcome.",
        "refused": "Accepted first, and later found to be impossible.",
    },
    causes={
        "submit": "A user submits the job, and it enters the queue.",
        "keep": "A user submits the job, and it has to wait before it enters the queue.",
        "admit": "The job enters the queue.",
        "hold": "The user takes the job out of the queue.",
        "place": "The scheduler gives the job nodes.",
        "delegate": "The grid puts the job into the queues of sites.",
        "move": "The site moves the job to other nodes.",
        "run": "All processes of the job have started.",
        "stop": "The user cancels the job, or it reaches its limit.",
        "retry": "The attempt is over, but not the job: it waits for the next attempt.",
        "end": "The job is over.",
        "refuse": "No site can run the job.",
    },
    first={"submit": "waiting", "keep": "held"},
    rows={
        "held": {"admit": "waiting", "end": "ended"},
        "waiting": {
            "hold": "held",
            "place": "starting",
            "delegate": "waiting",
            "run": "running",  # at the grid, for a delegated job
            "stop": "waiting",  # the site whose queue has the job is asked to remove it
            "retry": "waiting",
            "end": "ended",
            "refuse": "refused",
        },
        "starting": {
            "place": "starting",
            "delegate": "waiting",
            "move": "starting",
            "run": "running",
            "stop": "ending",
            "retry": "waiting",
            "end": "ended",
            "refuse": "refused",
        },
        "running": {
            "move": "starting",
            "run": "running",
            "stop": "ending",
            "retry": "waiting",
            "end": "ended",
        },
        "ending": {
            # Late reports of decisions made before the job was stopped.
            "place": "ending",
            "delegate": "ending",
            "run": "ending",
            "stop": "ending",
            "retry": "waiting",  # lost at its limit
            "end": "ended",
            "refuse": "refused",
        },
        "ended": {},
        "refused": {},
    },
)

OPEN, OVER = JOB.open, JOB.over
"""The states of jobs that have not ended, and the states of jobs that have ended."""

WITHOUT_NODES: Final[tuple[JobState, ...]] = ("held", "waiting")
"""The states in which a job has no nodes yet."""

PENDING: Final[tuple[JobState, ...]] = ("waiting", "starting")
"""The states in which a job has entered the queue but is not running yet."""

PLACED: Final[tuple[JobState, ...]] = ("starting", "running", "ending")
"""The states in which a job may have nodes."""

BEGUN: Final[tuple[JobState, ...]] = ("running", "ending")
"""The states in which a job may have processes on all its sites."""

WAITING: Final = "waiting"
RESERVED: Final = "reserved"
COMMITTED: Final = "committed"
RUNNING: Final = "running"
EVICTED: Final = "evicted"

PART: Final = StateTable[PartState, PartCause](
    "part of job",
    states={
        WAITING: "In the site's queue: a delegated job, or one whose nodes are to be reserved ahead.",
        RESERVED: "It has nodes under a lease.",
        COMMITTED: "It has nodes, and will start at the agreed time.",
        RUNNING: "Running, or waiting at the gate for the other sites.",
        EVICTED: "Another job gets its nodes, but some of its processes may still run.",
        "over": "Gone from the site.",
    },
    causes={
        "enqueue": "The grid delegates the job.",
        "reserve": "The grid asks for nodes.",
        "reserve ahead": "The grid asks for nodes as soon as they are free.",
        "grant": "The nodes that were to be reserved ahead are free.",
        "commit": "The grid commits the reserved nodes.",
        "start": "The site starts the part.",
        "evict": "The site gives the nodes to another job.",
        "withdraw": "The part leaves the queue.",
        "release": "The lease ends.",
        "refuse": "The site finds that it cannot run the part.",
        "end": "The part has left its nodes.",
    },
    first={"enqueue": WAITING, "reserve": RESERVED, "reserve ahead": WAITING},
    rows={
        WAITING: {"grant": RESERVED, "start": RUNNING, "withdraw": "over", "refuse": "over"},
        RESERVED: {"commit": COMMITTED, "start": RUNNING, "release": "over", "evict": "over", "refuse": "over"},
        COMMITTED: {"start": RUNNING, "release": "over", "evict": "over", "refuse": "over"},
        RUNNING: {"evict": EVICTED, "end": "over"},
        EVICTED: {"end": "over"},
        "over": {},
    },
)

LEASED: Final = (WAITING, RESERVED)
"""The states in which a part has a lease, which expires unless the grid renews it or commits the nodes."""

GRANTED: Final = (RESERVED, COMMITTED)
"""The states in which a part has nodes but has not started."""

STARTED: Final = (RUNNING, EVICTED)
"""The states in which a part may have processes."""


_OTHER_CAUSES: Final[tuple[RunEndCause, ...]] = ("evict", "requeue", "hand back", "limit", "kill")

RUN_END: Final = StateTable[RunEnd, RunEndCause](
    "end of the run of job",
    states={
        "lost": "The job runs again: here, or where the grid places it.",
        "limit": "The job has reached its limit.",
        "cancelled": "The job does not run again.",
    },
    causes={
        "evict": "Another job gets the nodes.",
        "requeue": "A user or the site wants the job to run again.",
        "hand back": "The machines cannot start the job now, and the grid may place it elsewhere.",
        "limit": "The job has reached its limit.",
        "kill": "The site or the grid no longer needs the run.",
        "cancel": "A user cancels the job.",
    },
    first={
        "evict": "lost",
        "requeue": "lost",
        "hand back": "lost",
        "limit": "limit",
        "kill": "cancelled",
        "cancel": "cancelled",
    },
    # The first cause determines the end, unless the user cancels the job.
    rows={
        "lost": {**dict.fromkeys(_OTHER_CAUSES, "lost"), "cancel": "cancelled"},
        "limit": {**dict.fromkeys(_OTHER_CAUSES, "limit"), "cancel": "cancelled"},
        "cancelled": {**dict.fromkeys(_OTHER_CAUSES, "cancelled"), "cancel": "cancelled"},
    },
)


class TransitionError(GridweaveError):
    """A state change that the table does not allow: a bug in gridweave.

    Parameters
    ----------
    record : str
        The kind of record, such as ``job``.
    job_id : int
    state : str
        The state of the record.
    cause : str
        The cause that is impossible in this state.
    possible : sequence of str
        The states in which the cause is possible.
    history : sequence of (str, str)
        The cause and new state of each remembered earlier change, oldest first.
    """

    def __init__(
        self,
        record: str,
        job_id: int,
        state: str,
        cause: str,
        possible: tuple[str, ...],
        history: tuple[tuple[str, str], ...],
    ) -> None:
        self.job_id, self.state, self.cause, self.history = job_id, state, cause, history
        right = f"it is possible when {' or '.join(possible)}" if possible else "it is possible in no state"
        before = ", ".join(f"{cause}: {state}" for cause, state in history) or "none since the process started"
        super().__init__(f"{record} {job_id} is {state!r}: {cause!r} is impossible; {right}; history: {before}")


class _Stateful(Protocol):
    """A record with a state; the state's type is `Any` because it depends on the kind of record."""

    state: Any


class Lifecycle(Generic[S, C]):
    """Changes the states of its owner's records according to a table, and remembers recent changes for errors.

    The remembered changes are not part of the owner's state, so a restart loses them.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> life = Lifecycle(PART)
    >>> part = SimpleNamespace(state=life.begin(7, "reserve"))
    >>> life.change(7, part, "start"), part.state
    (True, 'running')
    >>> life.change(7, part, "commit")
    Traceback (most recent call last):
    gridweave.site.lifecycle.TransitionError: part of job 7 is 'running': 'commit' is impossible; it is possible when \
reserved; history: reserve: reserved, start: running
    """

    def __init__(self, table: StateTable[S, C]) -> None:
        self.table = table
        self._rows: Mapping[Any, Mapping[C, S]] = table.rows
        # Job, cause and new state of each change, in one flat sequence, so that a change creates no lasting object.
        self._moves: deque[Any] = deque(maxlen=3 * KEEP_MOVES)

    def begin(self, job_id: int, cause: C) -> S:
        """Return the first state of a new record; raise TransitionError if the cause cannot create a record."""
        state = self.table.first.get(cause)
        if state is None:
            raise TransitionError(self.table.record, job_id, "new", cause, (), self.history(job_id))
        self._moves += job_id, cause, state
        return state

    def change(self, job_id: int, record: _Stateful, cause: C) -> bool:
        """Move a record to its next state; return whether the state changed.

        Raises
        ------
        TransitionError
            If the cause is impossible in the current state. The record stays unchanged.
        """
        before = record.state
        row = self._rows.get(before)
        after = None if row is None else row.get(cause)
        if after is None:
            possible = self.table.states_before(cause)
            raise TransitionError(self.table.record, job_id, before, cause, possible, self.history(job_id))
        if after == before:
            return False
        record.state = after
        self._moves += job_id, cause, after
        return True

    def history(self, job_id: int) -> tuple[tuple[str, str], ...]:
        """Return the cause and new state of each remembered change of a job, oldest first."""
        moves = iter(self._moves)
        return tuple((cause, state) for moved, cause, state in zip(moves, moves, moves, strict=True) if moved == job_id)
