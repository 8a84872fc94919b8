"""Whether all of a local grid is well: its processes, as the system knows them, and what its gateway says."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import msgspec

from gridweave.errors import GridweaveError
from gridweave.grid.api import Health, Queue, SiteInfo
from gridweave.grid.service.ray import MOST_NODES
from gridweave.grid.service.state import (
    GATEWAY,
    HEAD,
    MARKER_VARIABLE,
    LocalGridState,
    count_running,
    node_of,
    read_grid_state,
)
from gridweave.site.machine.processes import PROC, strays

ASK_S = 10.0

META, SITE, MACHINE = "MetaActor", "SiteActor", "NodeAgent"


class PartStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a grid."""

    name: str
    well: bool
    pid: int | None = None  # none: there is no such process, or it cannot be told which it is
    since_ms: int | None = None  # Unix time at which that process began
    detail: str = ""  # what is to be said of it


class LocalStatus(msgspec.Struct, frozen=True, kw_only=True):
    """How a grid on this machine is."""

    name: str
    up: bool  # whether anything of it runs
    url: str = ""  # of its gateway
    folder: str = ""
    parts: tuple[PartStatus, ...] = ()
    # Jobs of the grid in each state; None: there is nobody to tell.
    waiting: int | None = None
    held: int | None = None
    starting: int | None = None
    running: int | None = None
    kept: int = 0  # parts of jobs whose processes run on this machine

    @property
    def well(self) -> bool:
        """Whether all of it runs and answers."""
        return self.up and all(part.well for part in self.parts)


class _Said(msgspec.Struct, frozen=True):
    """What the gateway has said, or why it has not."""

    health: Health | None = None
    sites: list[SiteInfo] = []
    queue: Queue | None = None
    problem: str = ""


_COUNTED = ("waiting", "held", "starting", "running")


def look(name: str) -> LocalStatus:
    """Return how a grid on this machine is."""
    state = read_grid_state(name)
    if state is None:
        return LocalStatus(name=name, up=False)
    kept = count_running(Path(state.folder))
    if not state.alive:
        return LocalStatus(name=name, up=False, folder=state.folder, kept=kept)
    said = asyncio.run(_ask(state))
    queue = said.queue or Queue()
    counts = {key: getattr(queue, key) if said.queue else None for key in _COUNTED}
    return LocalStatus(
        name=name,
        up=True,
        url=state.url,
        folder=state.folder,
        parts=tuple(_parts(state, said)),
        kept=kept,
        **counts,
    )


async def _ask(state: LocalGridState) -> _Said:
    from gridweave.grid.client.client import Client

    if not state.has_gateway:
        return _Said(problem="it does not run; `gridweave up` starts it again")
    try:
        async with asyncio.timeout(ASK_S), Client(state.url, token=state.token, ca=state.cert or None) as grid:
            health = await grid.health()
            if health.status != "ok":
                return _Said(health, problem="the meta-scheduler does not answer")
            return _Said(health, await grid.sites(), await grid.queue(1))
    except TimeoutError:
        return _Said(problem=f"it does not answer within {ASK_S:.0f} s")
    except GridweaveError as error:
        return _Said(problem=str(error))


def _parts(state: LocalGridState, said: _Said) -> list[PartStatus]:
    answering = {site.name: site for site in said.sites if site.answers}
    actors = _actors(state)
    parts = []
    if state.own_ray:
        parts.append(_process(state, HEAD, state.address))
    else:
        parts.append(PartStatus(name="Ray", well=True, detail=f"{state.address}, which runs by itself"))
    own_nodes = state.own_ray and sum(site.machines for site in state.sites) <= MOST_NODES
    for site in state.sites:
        leaders = [node_of(site.name if site.machines == 1 else f"{site.name}/m{n}") for n in range(site.machines)]
        if own_nodes:
            parts += [_process(state, leader, "") for leader in leaders]
        info = answering.get(site.name)
        detail = "does not answer" if said.queue is not None else "not known without the gateway"
        if info is not None:
            detail = f"{info.free} of {info.nodes} nodes free, {info.running} jobs run, {info.waiting} wait"
            detail += f"; {site.launcher}" * bool(site.launcher)
            away = [machine.name for machine in info.machines if not machine.here]
            detail += f"; machine {', '.join(away)} is away" * bool(away) + "; draining" * info.draining
            detail += "".join(f"; {machine.problem}" for machine in info.machines if machine.problem)
        well = info is not None and all(machine.here and not machine.problem for machine in info.machines)
        pids = [actors.get((leader, SITE)) for leader in leaders]
        parts.append(_part(f"site {site.name}", well, next(filter(None, pids), None), detail))
    queue = said.queue
    detail = "does not answer" if said.health is not None else "not known without the gateway"
    if queue is not None:
        detail = f"{queue.running} jobs run, {queue.starting} start, {queue.waiting} wait, {queue.held} are held"
    parts.append(_part("meta-scheduler", queue is not None, actors.get(("", META)), detail))
    gateway = _process(state, GATEWAY, state.url)
    if said.problem and gateway.well:
        gateway = msgspec.structs.replace(gateway, well=False, detail=f"{state.url}: {said.problem}")
    return [*parts, gateway]


def _actors(state: LocalGridState) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the processes of actors by the Ray node that they are on, and what they are; the meta-scheduler by "".

    Ray says in the title of a process what it is; the node is the one that leads its session.
    """
    if not state.own_ray:
        return {}
    leaders = {process.pid: process.name for process in state.processes}
    found = {}
    for stat in strays(state.marker, (), variable=MARKER_VARIABLE):
        try:
            title = Path(f"{PROC}/{stat.pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        for kind in (META, SITE, MACHINE):
            if title.startswith("ray::") and kind in title:
                found["" if kind == META else leaders.get(stat.session, ""), kind] = (stat.pid, stat.start_ticks)
    return found


def _process(state: LocalGridState, name: str, detail: str) -> PartStatus:
    process = state.process(name)
    if process is None:
        return PartStatus(name=name, well=False, detail="does not run; `gridweave up` starts it again")
    return _part(name, True, (process.pid, process.start_ticks), detail)


def _part(name: str, well: bool, process: tuple[int, int] | None, detail: str) -> PartStatus:
    pid, since = (None, None) if process is None else (process[0], _since_ms(process[1]))
    return PartStatus(name=name, well=well, pid=pid, since_ms=since, detail=detail)


def _since_ms(start_ticks: int) -> int:
    """Return the Unix time of so many clock ticks after the start of the machine."""
    ago_s = time.clock_gettime(time.CLOCK_BOOTTIME) - start_ticks / os.sysconf("SC_CLK_TCK")
    return int((time.time() - ago_s) * 1000)
