"""The two services of ``gridweave serve``: a meta-scheduler with remote sites, and a single site.

Each runs as actors on its own Ray or on an existing Ray cluster, with its own gateway.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.config.gateway import GatewaySettings, is_loopback
from gridweave.grid.config.journals import JournalSpec, check_journals, forget_jobs, grid_place, site_place
from gridweave.grid.config.local_state import HEAD, LOGS, RAY_TOKEN, end_jobs, locked, make_private
from gridweave.grid.config.reading import ReadGrid
from gridweave.grid.config.tables import EndTable, FarSiteTable, GatewayTable, ServedGrid, ServedSite
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.service.actor import GatewayActor, MetaActor
from gridweave.grid.service.actor_status import ActorStatus, look_at_actors
from gridweave.grid.service.actors import RunningActors, Spot
from gridweave.grid.service.cluster import FIRST_PORT, Place, SitePlan, add_site, machines_of, plan_of, shares_of_host
from gridweave.grid.service.doors import FarSite, LinksDoor, SiteDoor, open_links
from gridweave.grid.service.gateway_process import REQUESTS, Say, prepare_tokens
from gridweave.grid.service.local import MARKER, kept_secret
from gridweave.grid.service.ray import (
    EXPOSURE,
    LOOPBACK,
    MOST_NODES,
    STORE_BYTES,
    OwnRay,
    RayMachine,
    RayState,
    connected,
    own_host,
    probe,
    with_token,
)
from gridweave.grid.service.signals import ended_in_order, signals_held
from gridweave.site.machine.folders import write_whole
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.calls import (
    GATEWAY_ACTOR,
    GRID_ACTOR,
    NAMESPACE,
    SITE_LABEL,
    agent_actor,
    site_actor,
)
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.link import Link, LinkEnd, Secrets
from gridweave.site.service.prober import ProbePlan

PORTS_OF_A_SITE = 1_000
"""Number of rendezvous ports per site."""

_MOST_PLACES = 44

STOP_S = 3.0
"""Time allowed for requests in progress after the process is asked to stop, in seconds."""


def check_service(service: GridService | SiteService) -> list[str]:
    """Return the settings that a start would change; InputError if a change is forbidden or the journal is invalid."""
    try:
        return check_journals([service.journal_spec])
    except InputError as error:
        right = "go back to those settings, or name another folder"
        raise InputError(f"{error}; {right} (docs/journal.md)") from None


def warn_of_plain(ends: Sequence[LinkEnd], say: Say) -> None:
    """Warn about each link whose secret crosses the network unencrypted."""
    for end in ends:
        if end.url.startswith("http:") and not is_loopback(urlsplit(end.url).hostname or ""):
            say(f"warning: {end.url} is not encrypted: others on the network can read the secret of its link")


class GridService(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for serving a meta-scheduler with its gateway."""

    folder: str  # folder of the tokens, and of the journal if that is a file
    settings: GridSettings
    sites: tuple[FarSite, ...]  # in site order
    gateway: GatewayTable
    journal: str  # path or URL of the journal
    password_file: str = ""  # file of the database password; empty: none
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts
    history_days: int = HISTORY_DAYS
    probes: ProbePlan | None = None  # how often to measure the network between sites; None: never
    address: str | None = None  # address of an existing Ray cluster; None: its own Ray
    # Used only if the service runs its own Ray.
    ray_port: int = 0
    store_bytes: int = STORE_BYTES

    @property
    def journal_spec(self) -> JournalSpec:
        """The journal and the settings that it must match."""
        from gridweave.grid.service.driver import identity_of

        return JournalSpec(self.journal, identity_of(self.settings), self.password_file)


def grid_service(read: ReadGrid) -> GridService:
    """Return the service that runs the meta-scheduler of a GRID.toml."""
    file = read.file
    assert isinstance(file, ServedGrid), "a site is not a grid"
    plan = plan_of(read, folder=read.folder, namespace="", labelled=False, first_port=FIRST_PORT, secret=b"")
    return GridService(
        folder=read.folder,
        settings=plan.settings(),
        sites=tuple(_far_site(table, site, read) for table, site in zip(file.sites, plan.sites, strict=True)),
        gateway=read.gateway,
        journal=grid_place(read.folder, plan.journal),
        password_file=_password_file(file.grid.journal_password_file, read),
        quotas=file.quotas,
        history_days=plan.history_days,
        probes=plan.probes,
        address=file.ray.address,
        ray_port=file.ray.port,
        store_bytes=file.ray.store_bytes,
    )


def _far_site(table: FarSiteTable, site: SitePlan, read: ReadGrid) -> FarSite:
    return FarSite(
        end=_link_end(table, table.name, read),
        accepts_file=read.placed(table.accepts_file),
        machines=tuple(machine.name for machine in machines_of(site, FIRST_PORT)),
    )


def _link_end(table: EndTable, site: str, read: ReadGrid) -> LinkEnd:
    end = read.with_places(table)
    names = ("token_file", "ca", "cert", "key")
    return LinkEnd(site=site, url=end.url.rstrip("/"), **{name: getattr(end, name) for name in names})


def _password_file(path: str | None, read: ReadGrid) -> str:
    return "" if path is None else read.placed(path)


def serve_grid(service: GridService, say: Say) -> None:
    """Run the meta-scheduler, its gateway and its links to the sites until SIGINT or SIGTERM."""
    folder = make_private(Path(service.folder))
    taken = f"another process serves the grid in {folder}; end it, or name another folder"
    with locked(folder / _LOCK, taken), ended_in_order():
        settings = _settings(service)
        open_links(service.sites)  # report a bad file before anything starts
        changes = _changes(service, say)
        warn_of_plain([site.end for site in service.sites], say)
        place = RayPlace(folder=folder, address=service.address, port=service.ray_port, store_bytes=service.store_bytes)
        _run_on(place, lambda labelled, here: _make_grid(service, settings, here, changes, say), say, keep_jobs=False)


def _changes(service: GridService | SiteService, say: Say) -> list[str]:
    """Report and return the settings that this start changes."""
    changes = check_service(service)
    for change in changes:
        say(change)
    return changes


def _make_grid(
    service: GridService, settings: GatewaySettings, here: Spot, changes: Sequence[str], say: Say
) -> RunningActors:
    actors = _found(Path(service.folder), NAMESPACE, [GRID_ACTOR, GATEWAY_ACTOR], changes)
    actors.add(
        MetaActor,
        GRID_ACTOR,
        here,
        service.settings,
        service.journal,
        Clock(),
        tuple(site.machines for site in service.sites),
        far=True,
        password_file=service.password_file,
        quotas=service.quotas,
        history_days=service.history_days,
    )
    actors.add(GatewayActor, GATEWAY_ACTOR, here, settings, LinksDoor(service.sites, service.probes))
    return _ready(actors, say)


def _found(folder: Path, namespace: str, names: Sequence[str], changes: Sequence[str]) -> RunningActors:
    """Find the running actors of a service, so that the caller can add the missing actors.

    Raise InputError if settings have changed while actors with the old settings are still running.
    """
    actors = RunningActors(namespace, grid_id=kept_secret(folder, MARKER), logs=str(folder / LOGS))
    actors.find(names)
    if actors.actors and changes:
        right = "start once more with the old settings, end that with TERM, then change them"
        raise InputError(f"the actors in {folder} still run with other settings; {right}; {'; '.join(changes)}")
    return actors


def _ready(actors: RunningActors, say: Say) -> RunningActors:
    """Wait until all actors of a service are ready, then return them."""
    say("waiting for the actors (the first start on a machine compiles code, which takes a minute)")
    actors.wait()
    say(f"the gateway listens at {actors.call(GATEWAY_ACTOR, 'ready')}")
    return actors


def _runs_as_others(service: GridService | SiteService) -> bool:
    """Whether jobs run as other users, who must be able to reach folders inside the service's folder."""
    return isinstance(service, SiteService) and bool(service.plan.rules.launcher)


def _settings(service: GridService | SiteService) -> GatewaySettings:
    tokens = prepare_tokens(service.gateway, Path(service.folder), passable=_runs_as_others(service))
    log = str(make_private(Path(service.folder) / LOGS) / REQUESTS)
    return msgspec.structs.replace(service.gateway.settings(tokens), stop_s=STOP_S, log=log)


_LOCK, _RAY = "serve.lock", "ray.json"
_LOOK_S = 1.0
_ACTORS_S = 6.0
"""Time allowed for actors on an existing cluster to stop, in seconds."""


class SiteService(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for serving a single site with its gateway."""

    folder: str  # folder of the journal, jobs, output and tokens
    plan: SitePlan
    settings: SiteSettings
    namespace: str  # Ray namespace of the actors
    gateway: GatewayTable
    uplink: LinkEnd | None = None  # link to the grid; None: the site belongs to no grid
    accepts_file: str = ""  # file of the secrets accepted from the grid
    # Address at which other sites reach this machine. Empty: the address from which this machine reaches the grid or,
    # on an existing cluster, its address in Ray.
    host: str = ""
    password_file: str = ""  # file of the password of the journal's database; empty: none
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts, for jobs of the site's own users
    history_days: int = HISTORY_DAYS
    address: str | None = None  # address of an existing Ray cluster; None: its own Ray
    # Used only if the service runs its own Ray.
    ray_port: int = 0
    store_bytes: int = STORE_BYTES

    @property
    def journal_spec(self) -> JournalSpec:
        """The journal and the settings that it must match."""
        return JournalSpec(
            site_place(self.folder, self.plan.name, self.plan.journal), self.settings, self.password_file
        )


def site_service(read: ReadGrid) -> SiteService:
    """Return the service that runs the site of a GRID.toml."""
    file = read.file
    assert isinstance(file, ServedSite), "the grid's side is not a site"
    own, ray, uplink = file.site, file.ray, file.uplink
    first_port = ray.first_port or FIRST_PORT + own.number % _MOST_PLACES * PORTS_OF_A_SITE
    plan = plan_of(read, folder=read.folder, namespace="", labelled=False, first_port=first_port, secret=b"")
    return SiteService(
        folder=read.folder,
        plan=plan.sites[0],
        settings=msgspec.structs.replace(plan.site_settings(0), number=own.number),
        namespace=f"{NAMESPACE}-{own.name}",
        gateway=read.gateway,
        uplink=None if uplink is None else _link_end(uplink, own.name, read),
        accepts_file="" if uplink is None else read.placed(uplink.accepts_file),
        host=own.host or "",
        password_file=_password_file(own.journal_password_file, read),
        quotas=file.quotas,
        history_days=plan.history_days,
        address=ray.address,
        ray_port=ray.port,
        store_bytes=ray.store_bytes,
    )


def serve_site(service: SiteService, say: Say, *, keep_jobs: bool = False) -> None:
    """Run a site until SIGINT or SIGTERM, then stop everything started for it, including its jobs unless `keep_jobs`.

    If the head node of the site's own Ray ends, the jobs continue, as they do if this process is killed.
    """
    folder = make_private(Path(service.folder), passable=_runs_as_others(service))
    taken = f"another process serves the site in {folder}; end it, or name another folder"
    with locked(folder / _LOCK, taken), ended_in_order():
        settings = _settings(service)
        _check_files(service)
        changes = _changes(service, say)
        if service.uplink is not None:
            warn_of_plain([service.uplink], say)
        place = RayPlace(
            folder=folder,
            site=service.settings.name,
            machines=service.plan.machines,
            address=service.address,
            port=service.ray_port,
            store_bytes=service.store_bytes,
        )
        _run_on(
            place,
            lambda labelled, here: _make_site(service, settings, labelled, here, changes, say),
            say,
            keep_jobs=keep_jobs,
        )


def served_actors(service: GridService | SiteService) -> list[ActorStatus]:
    """Return the state of a service's actors; raise UnavailableError if the service's Ray is not running."""
    folder, namespace = Path(service.folder), service.namespace if isinstance(service, SiteService) else NAMESPACE
    if service.address is not None:
        return look_at_actors(service.address, namespace)
    ray = own_ray(RayPlace(folder=folder), lambda what: None) if (folder / _RAY).exists() else None
    if ray is None or ray.process(HEAD) is None:
        raise UnavailableError(f"nothing serves {folder}; start it with: gridweave serve FILE.toml")
    with with_token(folder / RAY_TOKEN):
        return look_at_actors(ray.address, namespace)


def start_over(service: GridService | SiteService) -> None:
    """Delete the jobs of a stopped service and their output; keep its tokens and links.

    Raise UnavailableError if the service is running, or a file cannot be deleted.
    """
    folder = make_private(Path(service.folder), passable=_runs_as_others(service))
    if "://" in service.journal_spec.place:
        raise OptionError("--fresh", f"the journal is at {service.journal_spec.place}; drop its tables there instead")
    with locked(folder / _LOCK, f"another process serves {folder}; end it first"):
        if own_ray(RayPlace(folder=folder), lambda what: None).process(HEAD) is not None:
            raise UnavailableError(f"the actors in {folder} still run; start them once more, and end them with TERM")
        end_jobs(folder, "the site starts over")
        forget_jobs(folder)


def _check_files(service: SiteService) -> None:
    """Raise OptionError if a file of the link to the grid is unusable; called before anything starts."""
    if service.uplink is None:
        return
    try:
        Link(service.uplink)
        Secrets(service.accepts_file)
    except OptionError as error:
        raise OptionError("uplink", f"{error.option}: {error.problem}") from None


class RayPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a service runs: on its own Ray or on an existing Ray cluster."""

    folder: Path
    site: str = ""  # name of the site; empty: a meta-scheduler
    machines: int = 1  # machines of the site
    address: str | None = None  # address of the cluster; None: its own Ray
    # Used only if the service runs its own Ray.
    port: int = 0
    store_bytes: int = STORE_BYTES


def own_ray(place: RayPlace, say: Say) -> OwnRay:
    """Restore a service's own Ray from its state file: a head node and, for several machines, a node per machine."""
    kept = place.folder / _RAY
    try:
        state = msgspec.json.decode(kept.read_bytes(), type=RayState)
    except FileNotFoundError:
        state = RayState()
    except (OSError, msgspec.MsgspecError) as error:
        raise UnavailableError(f"{kept}: cannot be read: {error}") from None
    several = 1 < place.machines <= MOST_NODES
    nodes = [RayMachine(place.site, f"m{number}", alone=False) for number in range(place.machines)]
    return OwnRay(
        place.folder,
        nodes if several else [],
        marker=kept_secret(place.folder, MARKER),
        store_bytes=place.store_bytes,
        port=place.port,
        state=state,
        changed=lambda now: write_whole(kept, msgspec.json.encode(now)),
        report=say,
    )


MakeActors = Callable[[bool, Spot], RunningActors]
"""Creates the actors of a service, given whether Ray nodes have labels, and this host as a `Spot`."""


def _run_on(place: RayPlace, make: MakeActors, say: Say, *, keep_jobs: bool) -> None:
    """Create the actors of a service and run them until SIGINT or SIGTERM."""
    try:
        if place.address is None:
            _run_on_own_ray(place, make, say, keep_jobs)
        else:
            _run_on_cluster(place, make, say, keep_jobs)
    except SystemExit:
        say("ended during the start; nothing of it remains")


def _run_on_own_ray(place: RayPlace, make: MakeActors, say: Say, keep_jobs: bool) -> None:
    ray = own_ray(place, say)
    say("Ray runs already; looking at the actors" if ray.process(HEAD) is not None else "starting Ray")
    say(EXPOSURE)
    is_asked = False
    try:
        ray.start()
        with ray.connected():
            ray.wait()
            make(ray.labelled, Spot())
        asyncio.run(_until_asked([_watch(ray)], say))
        is_asked = True
    except SystemExit:
        is_asked = True
        raise
    finally:
        with signals_held():
            goes_on = keep_jobs or not is_asked
            count = ray.end(place.folder, "the site was asked to end", keep_jobs=goes_on)
            if count:
                say(f"running node tasks: {count}; {'they continue' if goes_on else 'they were ended'}")


def _run_on_cluster(place: RayPlace, make: MakeActors, say: Say, keep_jobs: bool) -> None:
    address = place.address or ""
    probe(address)
    with connected(address) as ray:
        labels = {node["Labels"].get(SITE_LABEL) for node in ray.nodes() if node["Alive"]} - {None}
        if place.site and labels and place.site not in labels:
            right = "give one to the nodes of this site, or to none"
            raise UnavailableError(f"no node of the Ray cluster has the label {SITE_LABEL}={place.site}; {right}")
        actors = make(bool(labels), Spot(ip=own_host(ray)))
        is_asked = False
        try:
            asyncio.run(_until_asked([], say))
            is_asked = True
        finally:
            with signals_held():
                actors.stop(end_jobs=is_asked and not keep_jobs, timeout_s=_ACTORS_S)


async def _until_asked(works: Sequence[Coroutine[Any, Any, None]], say: Say) -> None:
    """Run coroutines until SIGINT or SIGTERM, or until one of them ends or fails."""
    loop, is_over = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, is_over.set)
    loop.add_signal_handler(signal.SIGHUP, say, "the gateway checks its certificate every 30 s anyway")
    waiting = [asyncio.ensure_future(work) for work in (is_over.wait(), *works)]
    try:
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        say("asked to end")
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _watch(ray: OwnRay) -> None:
    """Keep restarting Ray nodes that have ended; raise UnavailableError if the head node ends."""
    while True:
        await asyncio.to_thread(ray.repair)
        await asyncio.sleep(_LOOK_S)


def _make_site(
    service: SiteService, settings: GatewaySettings, labelled: bool, here: Spot, changes: Sequence[str], say: Say
) -> RunningActors:
    """Create a site's actors, except those already running, and wait until all of them are ready."""
    name, machines = service.settings.name, tuple(machine.name for machine in service.settings.machines)
    host = service.host
    if service.address is None:
        host = host or own_address(service.uplink.url if service.uplink is not None else "")
    names = [*(agent_actor(name, machine) for machine in machines), site_actor(name), GATEWAY_ACTOR]
    actors = _found(Path(service.folder), service.namespace, names, changes)
    options: dict[str, Any] = {
        "uplink": service.uplink,
        "password_file": service.password_file,
        "quotas": service.quotas,
        "history_days": service.history_days,
    }
    shares = shares_of_host([(service.plan, service.settings)]) if service.address is None else {}
    place = Place(folder=service.folder, labelled=labelled, host=host, shares=shares)
    add_site(actors, service.plan, service.settings, place, **options)
    door = SiteDoor(name, machines, service.accepts_file if service.uplink is not None else "")
    actors.add(GatewayActor, GATEWAY_ACTOR, here, settings, door)
    return _ready(actors, say)


def own_address(url: str) -> str:
    """Return the address from which this machine would reach a URL, without sending anything.

    If the URL is empty or its host is unknown, return the default route's address, or `LOOPBACK` if there is no route.

    Examples
    --------
    >>> own_address("http://127.0.0.1:8765")
    '127.0.0.1'
    """
    # This address is reserved for documentation, so no host has it.
    for host in (urlsplit(url).hostname, "192.0.2.1"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
            if host:
                way.connect((host, 9))
                return str(way.getsockname()[0])
    return LOOPBACK
