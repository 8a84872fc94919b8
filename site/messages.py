"""What a site is told (events, in the past tense) and what it answers (commands, in the imperative)."""

from __future__ import annotations

import msgspec

# Messages hold no cycles, so the garbage collector need not look at them (``gc=False``).

MAX_WIDTH = 10**7
MAX_TIME_MS = 10**14
"""A value beyond these (ten million nodes, three thousand years) is a broken record, not a big machine."""

NodeIntervals = tuple[tuple[int, int], ...]
"""Nodes as half-open intervals of their numbers, ascending."""


class Resources(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a job needs beside nodes, for sites whose nodes are shared (docs/lomarc.md, "The fractions of a job").

    Attributes
    ----------
    cpu, network, disk : float
        Parts of its run time; they sum to 1.
    memory : float
        Part of a node's, above 0 and at most 1.
    cpu_kind : int
        Of its work on the CPU: 0 integer, 1 floating point, or as the site's table numbers them.
    cores : int
        On how many cores of each of its nodes it runs.
    cache_bytes : int
        Data that it uses in the cache; for measured slowdowns.
    message_bytes : int, optional
        Size of its messages; for measured slowdowns. Large ones, if it is not known.
    """

    cpu: float = 1.0
    network: float = 0.0
    disk: float = 0.0
    memory: float = 1.0
    cpu_kind: int = 0
    cores: int = 1
    cache_bytes: int = 0
    message_bytes: int | None = None


class Job(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a site knows of a job; its run time is known to nobody before it has ended.

    Attributes
    ----------
    job_id : int
        Unique, >= 0.
    width : int
        Nodes.
    estimate_ms : int
        The limit at which it is killed.
    user : int, optional
    job_class : int, optional
    priority : float
        For the order ``priority``.
    weight : float
        For the orders ``weight`` and ``smith``; above 0.
    behind : bool
        Whether it stands behind all jobs of which this is not said, whatever the order of the queue; among themselves
        such jobs stand in the order of submission.
    resources : Resources, optional
        A job of which they are not known shares its nodes with none.
    """

    job_id: int
    width: int
    estimate_ms: int
    user: int | None = None
    job_class: int | None = None
    priority: float = 0.0
    weight: float = 1.0
    behind: bool = False
    resources: Resources | None = None


class Running(msgspec.Struct, frozen=True, gc=False):
    """A running job, when it started, and when it ends by estimate."""

    job: Job
    start_ms: int
    end_by_estimate_ms: int


class JobSubmitted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user, or the grid, has submitted a job to this site.

    Attributes
    ----------
    job : Job
    now_or_never : bool
        Whether the job is refused rather than queued if it does not start in this very pass.
    """

    job: Job
    now_or_never: bool = False


class JobFinished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A job has left its nodes, by itself or killed."""

    job_id: int


class JobCancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user wants a job no more, whether it waits or runs."""

    job_id: int


class ReservationRequested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user has asked for nodes at a fixed time (Streit, section 3.1: a Fix-Time request)."""

    reservation_id: int
    start_ms: int
    length_ms: int
    width: int


class ReservationCancelled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A user gives a reservation back, before it begins or while it lasts."""

    reservation_id: int


Event = JobSubmitted | JobFinished | JobCancelled | ReservationRequested | ReservationCancelled


class StartJob(msgspec.Struct, frozen=True, tag=True, gc=False, repr_omit_defaults=True):
    """Start a job, now, on these nodes.

    Attributes
    ----------
    job_id : int
    nodes : tuple of (int, int)
    threads : tuple of (int, int)
        The hardware threads that it has, counted through node by node, where nodes are shared; empty if all are its.
    """

    job_id: int
    nodes: NodeIntervals
    threads: NodeIntervals = ()


class ChangeRate(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Expect a running job to go on at another rate, as who shares its nodes has changed.

    Attributes
    ----------
    job_id : int
    rate : int
        In units of `gridweave.site.kernels.rates.RATE_ONE`; that is also the rate at which every job starts.
    """

    job_id: int
    rate: int


class KillJob(msgspec.Struct, frozen=True, tag=True, gc=False):
    """End a running job; its nodes are free when it is reported as finished."""

    job_id: int
    reason: str


class RefuseJob(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tell the user that a job can never run here, and why."""

    job_id: int
    reason: str


class AcceptReservation(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tell the user that the nodes are reserved."""

    reservation_id: int


class RefuseReservation(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Tell the user that the nodes are not free then, and when they are (``None``: never, and why)."""

    reservation_id: int
    reason: str
    earliest_start_ms: int | None = None


class OpenReservation(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Hand these nodes to the holder of a reservation, now."""

    reservation_id: int
    nodes: NodeIntervals


class CloseReservation(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take the nodes of a reservation back, now."""

    reservation_id: int


JobCommand = StartJob | ChangeRate | KillJob | RefuseJob

Command = JobCommand | AcceptReservation | RefuseReservation | OpenReservation | CloseReservation
