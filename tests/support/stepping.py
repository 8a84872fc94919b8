"""Drive decision code step by step, and whole drivers in virtual time.

Use `step` to compare the core of a site with the reference, and `do` to send single events to any core. `meta` makes a
meta-scheduler (`limited_meta`: under limited control); `submitted` and `said` make the events of its users and sites.
Use `VirtualLoop` and `Process` for drivers: time passes without waiting, and a process can be killed or stopped between
any two awaits.
"""

from __future__ import annotations

import asyncio
import contextvars
import functools
import selectors
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.messages import FromSite, GridJobSubmitted, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    AcceptReservation,
    Answer,
    Command,
    Enqueued,
    EnqueueJob,
    Event,
    JobCancelled,
    JobFinished,
    JobSubmitted,
    Quoted,
    RefuseReservation,
    RequestQuote,
    ReservationRequested,
    StartJob,
)
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.resources.chunks import Chunk
from gridweave.site.scheduler.core import SiteCore
from reference.model import Job as PlainJob
from reference.model import Limit as PlainLimit
from reference.model import Reservation

# -- the core of a site, next to the reference ------------------------------------------------------------------------


@dataclass
class Stepped:
    """The output of a core: starts by job id, answers to requests, and all commands with their instants."""

    start: dict[int, int] = field(default_factory=dict)
    answers: dict[int, tuple[bool, int | None]] = field(default_factory=dict)
    commands: list[tuple[int, Command]] = field(default_factory=list)


def site_job(job: PlainJob, chunk: Chunk | msgspec.UnsetType = msgspec.UNSET) -> Job:
    """Convert a job of the reference to a job of a site."""
    assert not isinstance(job.user, str)
    return Job(
        job_id=job.id,
        width=job.width,
        estimate_ms=job.estimate,
        user=job.user,
        priority=float(job.priority),
        weight=job.weight,
        chunk=chunk,
    )


def site_policy(options: dict[str, Any]) -> SitePolicy:
    """Convert options of the reference to a policy; leave out `choice` where it has no meaning."""
    wanted = dict(options)
    if wanted.get("backfill") not in ("easy", "slack") or wanted["discipline"] == "planning":
        wanted.pop("choice", None)
    return SitePolicy(**wanted)


def site_limit(limit: PlainLimit) -> Limit:
    """Convert a limit of the reference to a limit of the package."""
    window = limit.window and Window(
        days=tuple(sorted(limit.window.days)), from_ms=limit.window.from_ms_of_day, to_ms=limit.window.to_ms_of_day
    )
    assert not isinstance(limit.user, str)
    return Limit(
        wider_than=limit.wider_than,
        longer_than_ms=limit.longer_than_ms,
        user=limit.user,
        window=window,
        max_nodes=limit.max_nodes,
        max_jobs=limit.max_jobs,
    )


def is_expressible(limit: PlainLimit) -> bool:
    """Whether the package accepts a limit: it refuses limits under which no job could ever start."""
    return limit.max_nodes != 0 and limit.max_jobs != 0 and (limit.window is None or bool(limit.window.days))


def step(
    core: SiteCore,
    jobs: Iterable[PlainJob],
    *,
    cancellations: Iterable[tuple[int, int]] = (),
    reservations: Iterable[Reservation] = (),
    chunks: Mapping[int, Chunk | msgspec.UnsetType] = {},
    after: Callable[[int], object] = lambda now: None,
) -> Stepped:
    """Drive a core through jobs, cancellations and requests, check its invariants and call ``after`` at every step.

    Jobs that are not in ``chunks`` ask for whole nodes. A running job that is cancelled ends at the same instant, as in
    the reference.
    """
    jobs, cancellations, requests = list(jobs), list(cancellations), list(reservations)
    length = {job.id: job.length for job in jobs}
    ends: dict[int, int] = {}
    stepped = Stepped()
    calendar = {job.submit for job in jobs} | {when for when, _ in cancellations} | {r.request for r in requests}
    now = -1
    while True:
        wakeup = core.next_wakeup_ms()
        instants = [*calendar, *ends.values(), *([] if wakeup is None else [wakeup])]
        instants = [instant for instant in instants if instant > now]
        if not instants:
            return stepped
        now = min(instants)
        done = [job_id for job_id, end in ends.items() if end == now]
        gone = [job_id for when, job_id in cancellations if when == now]
        done += [job_id for job_id in gone if ends.get(job_id, now) > now]
        events: list[Event] = [JobFinished(job_id) for job_id in done]
        events += [JobCancelled(job_id) for job_id in gone]
        events += _submissions(jobs, requests, now, chunks)
        for job_id in done:
            ends.pop(job_id, None)
        for command in core.handle(now, *events):
            stepped.commands.append((now, command))
            if isinstance(command, StartJob):
                assert command.job_id not in stepped.start, "a job was started twice"
                stepped.start[command.job_id] = now
                ends[command.job_id] = now + length[command.job_id]
            elif isinstance(command, AcceptReservation):
                stepped.answers[command.reservation_id] = (True, None)
            elif isinstance(command, RefuseReservation):
                stepped.answers[command.reservation_id] = (False, command.earliest_start_ms)
        core.check_invariants()
        after(now)


def do(core: Any, now_ms: int, *events: Any) -> list[Any]:
    """Handle events at an instant, check the invariants, and return the commands."""
    commands = list(core.handle(now_ms, *events))
    core.check_invariants()
    return commands


def _submissions(
    jobs: list[PlainJob],
    requests: list[Reservation],
    now: int,
    chunks: Mapping[int, Chunk | msgspec.UnsetType],
) -> list[Event]:
    """Return the submissions at an instant: jobs by id, and each request after `request.place` of the jobs."""
    arriving = sorted((job for job in jobs if job.submit == now), key=lambda job: job.id)
    asked = [request for request in requests if request.request == now]
    events: list[Event] = []
    for place in range(len(arriving) + 1):
        for request in asked:
            own = len(arriving) if request.place is None else min(request.place, len(arriving))
            if own == place:
                assert isinstance(request.id, int)
                events.append(ReservationRequested(request.id, request.start, request.length, request.width))
        some = arriving[place : place + 1]
        events += [JobSubmitted(site_job(job, chunks.get(job.id, msgspec.UNSET))) for job in some]
    return events


# -- a meta-scheduler -------------------------------------------------------------------------------------------------

RETRY_MS = 1000


def meta(*nodes: int, margin_ms: int = 0, **policy: Any) -> MetaCore:
    """Return a meta-scheduler for sites with these numbers of nodes."""
    rng = np.random.default_rng(1)
    return MetaCore(nodes, GridPolicy(**policy), rng=rng, margin_ms=margin_ms, retry_ms=RETRY_MS)


def submitted(job_id: int, width: int, estimate_ms: int = 100) -> GridJobSubmitted:
    """Return the submission of a plain job."""
    return GridJobSubmitted(Job(job_id=job_id, width=width, estimate_ms=estimate_ms))


def said(site: int, *answers: Answer) -> list[FromSite]:
    """Return a site's answers as events of the grid."""
    return [FromSite(site, answer) for answer in answers]


# -- a meta-scheduler under limited control ---------------------------------------------------------------------------

LATER = 10**6


def limited_meta(*nodes: int, **options: Any) -> MetaCore:
    """Return a meta-scheduler with limited control; the default mode is sharing."""
    return meta(*nodes, **{"mode": "sharing", "control": "limited", **options})


def enqueue(job_id: int, width: int, attempt: int, now_ms: int, estimate_ms: int = 100) -> EnqueueJob:
    """Return the delegation of a plain job."""
    return EnqueueJob(Job(job_id=job_id, width=width, estimate_ms=estimate_ms), attempt, now_ms + LEASE_MS)


def offered(commands: list[Any], *offers: tuple[int, int | None] | None) -> list[FromSite]:
    """Return answers to requests for quotes: (free nodes, earliest start) per site, or None for a silent site."""
    asked = [c for c in commands if isinstance(c, ToSite) and isinstance(c.request, RequestQuote)]
    answers = []
    for command in asked:
        offer = offers[command.site]
        if offer is not None:
            answers += said(command.site, Quoted(command.request.quote_id, *offer))
    return answers


def delegated(core: MetaCore, job_id: int, width: int, now_ms: int = 0, *, to: int = 0, wait_ms: int = LATER) -> None:
    """Let a job be delegated to a site, where it waits."""
    asked = do(core, now_ms, submitted(job_id, width))
    sites = sum(isinstance(command.request, RequestQuote) for command in asked)
    starts: list[tuple[int, int | None]] = [(0, now_ms + wait_ms + (site != to)) for site in range(sites)]
    (command,) = do(core, now_ms, *offered(asked, *starts))
    assert command == ToSite(to, enqueue(job_id, width, 2, now_ms))
    assert do(core, now_ms, *said(to, Enqueued(job_id, 2))) == []


# -- drivers in virtual time ------------------------------------------------------------------------------------------

CURRENT: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class _Selector(selectors.DefaultSelector):  # type: ignore[misc, valid-type]
    """A selector that advances the virtual time instead of waiting."""

    now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everybody waits, and nothing is to come")
        self.now_s += max(0.0, timeout)
        return []


class _Held:
    """A callback that is held back while its process is stopped."""

    handle: Any = None

    def __init__(self, process: Process | None, callback: Any, args: Any) -> None:
        self.process, self.callback, self.args = process, callback, args

    def __call__(self) -> None:
        if self.process is not None and self.process.is_stopped:
            self.process.held.append((contextvars.copy_context(), self))
        elif not self.handle.cancelled():
            self.callback(*self.args)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time.

    A call in an executor takes a random time, and is skipped if its process dies before.

    Parameters
    ----------
    rng : numpy.random.Generator
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)
        self._rng = rng
        # Sets the delays of calls in an executor. The result arrives after the call, so a process can die in between.
        self.slowest_s = 0.05

    def time(self) -> float:
        """Return the virtual time in s."""
        return self._virtual.now_s

    def now_ms(self) -> int:
        """Return the virtual time in ms."""
        return int(self.time() * 1000)

    def outside(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> None:
        """Call a function after a delay, outside of all processes, so that it runs even if this process dies."""
        self.call_later(delay_s, callback, *args, context=contextvars.Context())

    def call_soon(self, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call a function soon, or when its process continues if that is stopped."""
        held = _Held(self._process_of(context), callback, args)
        held.handle = super().call_soon(held, context=context)
        return held.handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> Any:
        """Call a function at an instant, or when its process continues if that is stopped."""
        held = _Held(self._process_of(context), callback, args)
        held.handle = super().call_at(when, held, context=context)
        return held.handle

    @staticmethod
    def _process_of(context: Any) -> Process | None:
        return CURRENT.get() if context is None else context.get(CURRENT)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Call a function after a random delay, and return its result after another one."""
        future = self.create_future()
        process = CURRENT.get()
        done_s, heard_s = sorted(self._rng.exponential(self.slowest_s / 4, 2))

        def do() -> None:
            if process is not None and not process.is_alive:
                return
            try:
                settle = functools.partial(future.set_result, func(*args))
            except Exception as error:
                settle = functools.partial(future.set_exception, error)
            self.call_later(heard_s, lambda: None if future.done() else settle())

        self.call_later(done_s, do)
        return future


class Process:
    """A virtual process: tasks that are stopped and killed together."""

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self.name = name
        self.is_alive = True
        self.is_stopped = False
        self.held: list[tuple[contextvars.Context, _Held]] = []
        # A dict keeps the order of starts, so that a seed gives the same history in every run.
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._on_error = on_error

    def spawn(self, work: Coroutine[Any, Any, Any], *, endless: bool = False) -> asyncio.Task[Any]:
        """Run a coroutine in this process; if an `endless` one ends while the process lives, report an error."""
        context = contextvars.copy_context()
        context.run(CURRENT.set, self)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        if endless:
            task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if self.is_alive and not task.cancelled():
            self._on_error(task.exception() or RuntimeError(f"{self.name} has ended"))

    def kill(self) -> None:
        """Cancel all tasks of the process at once."""
        self.is_alive = False
        for task in list(self._tasks):
            task.cancel()

    def stop(self) -> None:
        """Stop the process as SIGSTOP does; its callbacks wait."""
        self.is_stopped = True

    def go_on(self) -> None:
        """Continue the process as SIGCONT does, and run the callbacks that waited."""
        self.is_stopped = False
        loop = asyncio.get_running_loop()
        for context, held in self.held:
            loop.call_soon(held, context=context)
        self.held = []


class VirtualClock:
    """Replaces `gridweave.site.service.driver.Clock`; shows the time of the loop plus `off_ms`."""

    def __init__(self, loop: VirtualLoop, off_ms: int) -> None:
        self._loop, self._off_ms = loop, off_ms

    def now_ms(self) -> int:
        """Return the time that the clock shows, in ms."""
        return self._loop.now_ms() + self._off_ms

    def real_ms(self, span_ms: float) -> int:
        """Return the length of a time span, rounded up to whole ms."""
        return int(np.ceil(span_ms))

    def at(self, unix_ms: float) -> int:
        """Return the time that the clock shows at an instant of the loop."""
        return int(unix_ms) + self._off_ms

    def unix_ms(self, shown_ms: int) -> int:
        """Return the instant of the loop at which the clock shows this time."""
        return shown_ms - self._off_ms
