"""The state of a local grid, from its processes on this machine and the gateway's answers.

The processes of the grid's actors are identified by the journals that they have locked.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gridweave.errors import GridweaveError, UnavailableError
from gridweave.grid.api import Queue, SiteInfo
from gridweave.grid.config.local_state import (
    DEFAULT_NAME,
    GATEWAY,
    HEAD,
    LOGS,
    RAY_TOKEN,
    WATCHDOG,
    LocalGridState,
    LocalSite,
    count_running,
    node_of,
    read_grid_state,
    state_folder,
)
from gridweave.grid.service.actor_status import ActorStatus, look_at_actors, namespace_of
from gridweave.grid.service.ray import resolved, with_token
from gridweave.grid.service.watchdog import LOG, read_kept
from gridweave.site.lifecycle import OPEN
from gridweave.site.machine.processes import PROC, process_stat
from gridweave.site.service.calls import GATEWAY_ACTOR, GRID_ACTOR, agent_actor, log_name, site_actor
from gridweave.site.service.faults import fault_in, fault_text, recent

ASK_S = 5.0
"""Timeout of a request to the gateway, in seconds; the gateway itself waits at most `LOOK_S` for a site."""


class PartStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one component of a grid."""

    name: str
    well: bool
    pid: int | None = None  # None: no such process, or unknown
    since_ms: int | None = None  # Unix time at which the process started
    detail: str = ""  # remark for the user


class LocalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a grid on this machine."""

    name: str
    up: bool  # whether any component is running
    url: str = ""  # URL of its gateway
    folder: str = ""
    parts: tuple[PartStatus, ...] = ()
    # Number of the grid's jobs in each state; None: the gateway did not answer.
    waiting: int | None = None
    held: int | None = None
    starting: int | None = None
    running: int | None = None
    kept: int = 0  # job parts with processes on this machine
    actors: tuple[ActorStatus, ...] = ()  # as reported by Ray; empty if Ray was not asked

    @property
    def well(self) -> bool:
        """Whether every component is running and responding."""
        return self.up and not self.missing

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the components and actors that are not running or not responding."""
        parts = [part.name for part in self.parts if not part.well]
        return (*parts, *(actor.name for actor in self.actors if not actor.well))


class _GatewayAnswers(msgspec.Struct, frozen=True):
    """The gateway's answers, or the reason why it did not answer."""

    sites: list[SiteInfo] = []
    queue: Queue | None = None
    problem: str = ""
    queue_problem: str = ""  # why the queue is unknown


_COUNTED = tuple(state for state in OPEN if state in LocalStatus.__struct_fields__)


def look(name: str, *, ask_ray: bool = False) -> LocalStatus:
    """Return the state of a grid on this machine; with `ask_ray`, include its actors as reported by Ray.

    If a component is missing on an external cluster, always ask Ray, because an actor may be waiting for a node.
    """
    state = read_grid_state(name)
    if state is None:
        return _on_this_cluster(name)
    status = _look_here(name, state)
    is_unclear = status.up and not state.own_ray and not status.well
    if not status.up or not (ask_ray or is_unclear):
        return status
    try:
        with with_token(state_folder(state.name) / RAY_TOKEN if state.own_ray else None):
            actors = look_at_actors(state.address, state.namespace)
    except UnavailableError as error:
        part = PartStatus(name="Ray", well=False, detail=str(error))
        return msgspec.structs.replace(status, parts=(part, *status.parts[1:]))
    return msgspec.structs.replace(status, actors=tuple(actors))


def _on_this_cluster(name: str) -> LocalStatus:
    """Return the state of a grid that was started from another host of this host's Ray cluster."""
    address = resolved("auto")
    if address != "auto":
        with contextlib.suppress(UnavailableError):
            actors = look_at_actors(address, namespace_of(name, DEFAULT_NAME))
            return LocalStatus(name=name, up=bool(actors), actors=tuple(actors))
    return LocalStatus(name=name, up=False)


def _look_here(name: str, state: LocalGridState) -> LocalStatus:
    kept = count_running(Path(state.folder))
    if not state.runs:
        return LocalStatus(name=name, up=False, folder=state.folder, kept=kept)
    answers = _ask(state)
    queue = answers.queue or Queue()
    counts: dict[str, Any] = {key: getattr(queue, key) if answers.queue else None for key in _COUNTED}
    return LocalStatus(
        name=name,
        up=True,
        url=state.url,
        folder=state.folder,
        parts=tuple(_parts(state, answers)),
        kept=kept,
        **counts,
    )


def _ask(state: LocalGridState) -> _GatewayAnswers:
    """Ask the gateway for the sites and then for the queue; keep the sites if the second request fails."""
    from gridweave.grid.client.client import Client
    from gridweave.grid.client.transport import BriefTransport, Patience, run_brief

    async def ask() -> _GatewayAnswers:
        once = Patience(total_s=0.0, connect_s=0.0, try_s=ASK_S)
        allowed: dict[str, Any] = {"ca": state.cert or None, "plain_http": state.plain_http}
        async with Client(state.url, token=state.token, patience=once, transport=BriefTransport, **allowed) as grid:
            try:
                sites = await grid.sites()
            except GridweaveError as error:
                return _GatewayAnswers(problem=str(error))
            try:
                return _GatewayAnswers(sites=sites, queue=await grid.queue(1))
            except GridweaveError as error:
                return _GatewayAnswers(sites=sites, queue_problem=str(error))

    return run_brief(ask()) if state.has_gateway else _GatewayAnswers(problem="it does not run")


def _parts(state: LocalGridState, answers: _GatewayAnswers) -> list[PartStatus]:
    info_by_site = {site.name: site for site in answers.sites}
    parts = []
    if state.own_ray:
        parts.append(_process(state, HEAD, state.address))
    else:
        parts.append(PartStatus(name="Ray", well=True, detail=f"{state.address}, which runs by itself"))
    for site in state.sites:
        nodes = [node_of(site.name if site.machines == 1 else f"{site.name}/m{n}") for n in range(site.machines)]
        parts += [_process(state, node, "") for node in nodes if node in state.parts]
        parts.append(_site(state, site, info_by_site.get(site.name), bool(answers.problem)))
    parts.append(_meta(state, answers))
    gateway = _gateway(state)
    if answers.problem and gateway.well:
        gateway = msgspec.structs.replace(gateway, well=False, detail=f"{state.url}: {answers.problem}")
    return [*(_with_fault(state, part) for part in [*parts, gateway]), _watchdog(state)]


def _with_fault(state: LocalGridState, part: PartStatus) -> PartStatus:
    """Append the latest fault from a component's actor logs to the component's details if the fault is recent."""
    actors = [_ACTORS[part.name]] if part.name in _ACTORS else []
    for site in state.sites:
        if part.name == f"site {site.name}":
            actors = [site_actor(site.name), *(agent_actor(site.name, f"m{n}") for n in range(site.machines))]
    faults = [fault_in(state_folder(state.name) / LOGS / log_name(actor)) for actor in actors]
    recent_faults = [fault for fault in faults if fault is not None and recent(fault)]
    if not recent_faults:
        return part
    last = fault_text(max(recent_faults, key=lambda fault: fault.at_ms))
    return msgspec.structs.replace(part, detail=f"{part.detail}; {last}" if part.detail else last)


_ACTORS = {"meta-scheduler": GRID_ACTOR, GATEWAY: GATEWAY_ACTOR}


def _site(state: LocalGridState, site: LocalSite, info: SiteInfo | None, is_unasked: bool) -> PartStatus:
    """Return the state that a site reports, or infer it from the process if the site does not answer."""
    name, folder = f"site {site.name}", Path(state.folder) / site.name
    process = _writer(folder / "site.journal")
    if info is None or not info.answers:
        seen = _part_state(process, is_unasked)
        kept = count_running(folder, "*")
        why = f": {info.problem}" if info is not None and info.problem else ""
        return _part(name, seen.well, process, f"{seen.detail}{why}; {parts_run(kept)} on this machine")
    detail = f"{info.free} of {info.nodes} nodes free, {_jobs_run(info.running)}, {info.waiting} waiting"
    detail += "".join(f"; {words}" for words in (site.launcher, info.users) if words)
    away = [machine.name for machine in info.machines if not machine.here]
    detail += (
        f"; machine {', '.join(away)} is away (gone for good? gridweave give-up)" * bool(away)
        + "; draining" * info.draining
    )
    detail += "".join(f"; {machine.problem}" for machine in info.machines if machine.problem)
    if info.problem:
        return _part(name, False, process, f"{info.problem}; {detail}")
    well = all(machine.here and not machine.problem for machine in info.machines)
    return _part(name, well, process, detail)


def _meta(state: LocalGridState, answers: _GatewayAnswers) -> PartStatus:
    process, queue = _writer(Path(state.folder) / "grid.journal"), answers.queue
    if queue is None:
        seen = _part_state(process, bool(answers.problem))
        why = f": {answers.queue_problem}" if answers.queue_problem else ""
        return _part("meta-scheduler", seen.well, process, seen.detail + why)
    detail = f"{_jobs_run(queue.running)}, {queue.starting} starting, {queue.waiting} waiting, {queue.held} held"
    if queue.problem:
        return _part("meta-scheduler", False, process, f"takes no jobs: {queue.problem}; {detail}")
    return _part("meta-scheduler", True, process, detail)


def _gateway(state: LocalGridState) -> PartStatus:
    process = state.process(GATEWAY)
    if process is not None:
        return _part(GATEWAY, True, (process.pid, process.start_ticks), state.url)
    if state.gateway_elsewhere:
        return PartStatus(name=GATEWAY, well=True, detail=f"{state.url}, on another host")
    return PartStatus(name=GATEWAY, well=False, detail="does not run; Ray restarts it")


def _watchdog(state: LocalGridState) -> PartStatus:
    """Return the state of the watchdog, with its record of restarts."""
    kept = read_kept(state.name)
    process = next(iter(state.watchdog), None)
    if process is None:
        detail = f"does not run, so nothing restarts what ends; {_up(state)} starts it"
        if kept is not None and kept.gave_up:
            why = f": {kept.problem}" if kept.problem else ""
            message = f"gave up {', '.join(kept.missing)} after {kept.gave_up_after}{why}"
            detail = f"{message}; see logs/{LOG}, fix the problem, and run {_up(state)}"
        return PartStatus(name=WATCHDOG, well=False, detail=detail)
    place = process.pid, process.start_ticks
    if _is_stopped(place):
        return _part(WATCHDOG, False, place, f"its process was stopped (SIGSTOP); kill -CONT {process.pid} resumes it")
    detail = "restarts what ends"
    if state.missing:
        detail = f"is restarting: {', '.join(state.missing)}"
        detail += f"; the last try failed: {kept.problem}" if kept is not None and kept.problem else ""
    elif kept is not None and kept.mended:
        times = "once" if kept.mended == 1 else f"{kept.mended} times"
        detail += f"; {times} so far, the last time: {', '.join(kept.missing)}"
    return _part(WATCHDOG, True, place, detail)


def _up(state: LocalGridState) -> str:
    """Return the command that starts a grid's missing components."""
    return "`gridweave up`" if state.name == DEFAULT_NAME else f"`gridweave up --name {state.name}`"


def _is_stopped(process: tuple[int, int]) -> bool:
    stat = process_stat(process[0])
    return stat is not None and stat.state == "T"


def parts_run(count: int) -> str:
    """Format the number of job parts that are running.

    Examples
    --------
    >>> parts_run(1), parts_run(1_200)
    ('1 part of a job runs', '1,200 parts of jobs run')
    """
    return "1 part of a job runs" if count == 1 else f"{count:,} parts of jobs run"


def _jobs_run(count: int) -> str:
    return "1 job runs" if count == 1 else f"{count:,} jobs run"


class _PartState(NamedTuple):
    well: bool
    detail: str


def _part_state(process: tuple[int, int] | None, is_unasked: bool) -> _PartState:
    """Infer the state of an unresponsive component from its process."""
    if process is None:
        what = "does not run, or its state is unknown without the gateway" if is_unasked else "does not answer"
        return _PartState(False, what)
    if _is_stopped(process):
        return _PartState(False, "does not answer: its process was stopped (SIGSTOP)")
    if is_unasked:
        return _PartState(True, "runs; its state is unknown without the gateway")
    return _PartState(False, "runs, but does not answer")


def _writer(journal: Path) -> tuple[int, int] | None:
    """Return the pid and start ticks of the process that holds a journal's lock, or None."""
    try:
        lock_stat = os.stat(f"{journal}.lock")
        lines = Path(f"{PROC}/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    device = f"{os.major(lock_stat.st_dev):02x}:{os.minor(lock_stat.st_dev):02x}:{lock_stat.st_ino}"
    for fields in map(str.split, lines):
        # NUMBER: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE 0 EOF; a waiting process has an arrow before FLOCK.
        if fields[1] == "FLOCK" and fields[5] == device:
            stat = process_stat(int(fields[4]))
            return None if stat is None else (stat.pid, stat.start_ticks)
    return None


def _process(state: LocalGridState, name: str, detail: str) -> PartStatus:
    process = state.process(name)
    if process is None:
        right = "the watchdog restarts it" if state.watchdog else f"{_up(state)} starts it again"
        return PartStatus(name=name, well=False, detail=f"does not run; {right}")
    return _part(name, True, (process.pid, process.start_ticks), detail)


def _part(name: str, well: bool, process: tuple[int, int] | None, detail: str) -> PartStatus:
    pid, since = (None, None) if process is None else (process[0], _since_ms(process[1]))
    return PartStatus(name=name, well=well, pid=pid, since_ms=since, detail=detail)


def _since_ms(start_ticks: int) -> int:
    """Convert clock ticks since boot to Unix time in milliseconds."""
    ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - ago_s) * 1000)
