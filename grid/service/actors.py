"""Start, find and stop the actors of a grid or a single site on the Ray cluster that this process has joined."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from gridweave.errors import InputError, UnavailableError
from gridweave.site.service.calls import (
    GATEWAY_ACTOR,
    GRID_ACTOR,
    ActorCalls,
    ActorInfo,
    LiveActor,
    actor_options,
    agent_actor,
    reason_of,
    site_actor,
)
from gridweave.version import __version__

START_S = 60.0
"""How long an actor may take to answer, in seconds."""

COMPILE_S = 600.0
"""How long the first start on a machine may take, in seconds; it compiles kernels."""

GIVE_UP_S = 10.0
"""How long to wait for actors to end after the start of a grid has failed, in seconds."""

_AGAIN_S, _ABOUT_S, _REPORT_EVERY_S = 0.2, 5.0, 10.0

ReportMissing = Callable[[list[str]], None]
"""Called every 10 s with the names of the actors that are not ready yet."""


def actor_names(sites: Sequence[tuple[str, int]]) -> list[str]:
    """Return the names of all actors of a grid: agents, sites, the meta-scheduler, the gateway.

    Parameters
    ----------
    sites
        Name and number of machines of each site.

    Examples
    --------
    >>> actor_names([("north", 2), ("south", 1)])
    ['agent:north/m0', 'agent:north/m1', 'agent:south/m0', 'site:north', 'site:south', 'grid', 'gateway']
    """
    machines = [agent_actor(name, f"m{number}") for name, count in sites for number in range(count)]
    return [*machines, *(site_actor(name) for name, _ in sites), GRID_ACTOR, GATEWAY_ACTOR]


def find_actors(namespace: str, names: Sequence[str]) -> dict[str, Any]:
    """Return the handles of named actors in the order of `names`; actors unknown to Ray are left out."""
    import ray

    handles = {}
    for name in names:
        with contextlib.suppress(ValueError, ray.exceptions.RayError):
            handles[name] = ray.get_actor(name, namespace)
    return handles


def find_all_actors(namespace: str) -> dict[str, Any]:
    """Return handles of all named actors in a namespace, sorted by name."""
    import ray

    listed = ray.util.list_named_actors(all_namespaces=True)
    return find_actors(namespace, sorted(actor["name"] for actor in listed if actor["namespace"] == namespace))


def ask_about(actors: Mapping[str, Any], timeout_s: float = _ABOUT_S) -> dict[str, ActorInfo]:
    """Return each actor's report about itself; actors that do not answer in time are left out."""
    import ray

    asked = {name: handle.about.remote() for name, handle in actors.items()}
    if asked:
        ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
    infos = {}
    for name, reference in asked.items():
        with contextlib.suppress(ray.exceptions.RayError, msgspec.MsgspecError):
            infos[name] = msgspec.msgpack.decode(ray.get(reference, timeout=0), type=ActorInfo)
    return infos


def stop_actors(actors: Mapping[str, Any], *, end_jobs: bool = True, timeout_s: float = START_S) -> None:
    """Stop actors, the gateway and the agents first; with `end_jobs`, also end their jobs.

    An actor that does not answer in time is killed; its journal is consistent at every instant.
    """
    import ray

    first = [name for name in sorted(actors) if name == GATEWAY_ACTOR or name.startswith("agent:")]
    others = [name for name in sorted(actors) if name not in first]
    for names in (first, others):
        with contextlib.suppress(ray.exceptions.RayError):
            answers = [actors[name].stop.remote(*([end_jobs] if name.startswith("agent:") else [])) for name in names]
            if answers:
                ray.wait(answers, num_returns=len(answers), timeout=timeout_s)
    for actor in actors.values():
        ray.kill(actor)


class Spot(msgspec.Struct, frozen=True, kw_only=True):
    """Where to place an actor: a Ray node with these labels on the machine with this IP address (empty: any)."""

    labels: dict[str, str] = {}
    ip: str = ""


class RunningActors:
    """Actors of a grid or site on Ray; `created` lists the actors that this process has started.

    Parameters
    ----------
    namespace
        Ray namespace of the actors.
    grid_id
        Grid id, passed to every actor.
    logs
        Folder of the actors' logs on each machine; if empty, Ray keeps the actors' output.
    """

    def __init__(self, namespace: str, *, grid_id: str = "", logs: str = "") -> None:
        self.namespace, self._grid_id, self._logs = namespace, grid_id, logs
        self.actors: dict[str, Any] = {}
        self.created: set[str] = set()

    def find(self, names: Sequence[str]) -> None:
        """Find the actors that are already running.

        Raises
        ------
        UnavailableError
            If an actor belongs to another grid, or to another version of gridweave.
        """
        handles = find_actors(self.namespace, names)
        for name, info in ask_about(handles).items():
            if info.grid_id != self._grid_id:
                right = "give this grid another --name"
                where = f"the Ray namespace {self.namespace} has the actors of another grid ({name} on {info.host})"
                raise UnavailableError(f"{where}; {right}")
            if info.version != __version__:
                right = "stop the grid with that version first, or install it here"
                raise UnavailableError(
                    f"actor {name} on {info.host} runs gridweave {info.version}, but this is {__version__}; {right}"
                )
        self.actors |= handles

    def add(self, kind: type[LiveActor], name: str, spot: Spot, *arguments: object, **options: object) -> None:
        """Create an actor unless it is running; the actor starts once a suitable node has joined."""
        import ray

        if name in self.actors:
            return
        maker: Any = ray.remote(kind)
        how = actor_options(name, self.namespace, spot.labels, spot.ip)
        options |= {"calls": ActorCalls(self.namespace), "grid_id": self._grid_id, "logs": self._logs}
        self.actors[name] = maker.options(**how).remote(*arguments, **options)
        self.created.add(name)

    def call(self, actor: str, method: str, *arguments: object, timeout_s: float = START_S) -> Any:
        """Call a method of an actor; raise UnavailableError if the actor does not answer."""
        import ray

        try:
            return ray.get(getattr(self.actors[actor], method).remote(*arguments), timeout=timeout_s)
        except ray.exceptions.RayError as error:
            raise UnavailableError(f"actor {actor} does not answer: {reason_of(error)}") from error

    def wait_for(self, names: Sequence[str], timeout_s: float, report: ReportMissing | None = None) -> None:
        """Wait until actors are ready; call `report` every 10 s with the names of the actors that are not.

        Raises
        ------
        InputError
            If an actor's journal belongs to another plan, or is not a journal.
        UnavailableError
            If an actor is not ready in time. In both cases, the actors created by this process are stopped; jobs that
            were already running continue.
        """
        import ray

        until = time.monotonic() + timeout_s
        waiting = {name: self._ready(name) for name in names}
        while waiting:
            if report is not None:
                ready, _ = ray.wait(list(waiting.values()), timeout=min(_REPORT_EVERY_S, timeout_s))
                if not ready and time.monotonic() < until:
                    report(list(waiting))
                    continue
                waiting = dict(sorted(waiting.items(), key=lambda item: item[1] not in ready))
            name, reference = next(iter(waiting.items()))
            try:
                ray.get(reference, timeout=max(0.0, until - time.monotonic()))
                del waiting[name]
            except (ray.exceptions.ActorUnavailableError, UnavailableError) as error:
                # Its node or process was killed just now, and Ray is about to restart it.
                if time.monotonic() > until:
                    self._give_up(name, timeout_s, error)
                time.sleep(_AGAIN_S)
                waiting[name] = self._ready(name)
            except (ray.exceptions.RayError, TimeoutError) as error:
                self._give_up(name, timeout_s, error)

    def _ready(self, name: str) -> Any:
        return self.actors[name].ready.remote()

    def _give_up(self, name: str, timeout_s: float, error: Exception) -> NoReturn:
        """Stop the actors that this process has started, and raise an error that says why an actor is not ready."""
        reason = reason_of(error)
        self.actors = {started: self.actors[started] for started in self.created}
        self.stop(end_jobs=False, timeout_s=min(timeout_s, GIVE_UP_S))
        if isinstance(error, InputError):
            raise InputError(reason) from error
        raise UnavailableError(f"actor {name} is not ready: {reason}") from error

    def wait(self, timeout_s: float = START_S, report: ReportMissing | None = None) -> None:
        """Wait until all actors are ready; if one fails, stop the actors that this process has started."""
        agents = [name for name in self.actors if name.startswith("agent:")]
        # Agents compile nothing, so an agent that does not start soon has no node.
        self.wait_for(agents, timeout_s)
        self.wait_for([name for name in self.actors if name not in agents], max(timeout_s, COMPILE_S), report)

    def stop(self, *, end_jobs: bool = True, timeout_s: float = START_S) -> None:
        """Stop the actors, like `stop_actors`."""
        stop_actors(self.actors, end_jobs=end_jobs, timeout_s=timeout_s)
        self.actors = {}
