"""A whole grid on a Ray cluster: the plan of its actors, and where each of them is."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from gridweave.errors import InputError, OptionError, UnavailableError
from gridweave.grid.client.requests import login_name
from gridweave.grid.config.checks import grid_policy, owner_policy, site_policy, usual_communication, usual_needs
from gridweave.grid.config.journals import JournalSpec, grid_place, site_place
from gridweave.grid.config.reading import ReadGrid
from gridweave.grid.config.tables import GridFile, LauncherTable, LiveGridTable, LiveSiteTable, ServedGrid
from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.control.links import GridNetwork
from gridweave.grid.kernels.links import BLOCKING, NO_DATA
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.actors import START_S, RunningActors, Spot, actor_names
from gridweave.grid.settings import GridSettings
from gridweave.netmodel.model import NetworkModel
from gridweave.site.batch.entry import SlurmTable
from gridweave.site.batch.policy import NAME
from gridweave.site.batch.service.actor import BatchSiteActor
from gridweave.site.batch.service.site import check_plan
from gridweave.site.batch.system import BatchPlan
from gridweave.site.contract import ALONE_MS
from gridweave.site.disciplines.dictionary import deciding
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest
from gridweave.site.launch import ANY_JOBS, KEEP_OUTPUT, MachineRules, OutputLimits
from gridweave.site.maxima import NO_MAXIMA, Maxima
from gridweave.site.messages import Machine
from gridweave.site.needs.known import UsualNeeds
from gridweave.site.policy import SitePolicy
from gridweave.site.runs import SiteSettings
from gridweave.site.service.actor import SiteActor
from gridweave.site.service.agent_actor import AgentActor
from gridweave.site.service.calls import (
    GRID_ACTOR,
    MACHINE_LABEL,
    NAMESPACE,
    SITE_LABEL,
    LiveActor,
    agent_actor,
    encode,
    site_actor,
)
from gridweave.site.service.clock import HISTORY_DAYS, Clock
from gridweave.site.service.probes.prober import ProbePlan
from gridweave.site.service.zones import live_week
from gridweave.site.users.owner import OwnerPolicy

logger = logging.getLogger("gridweave.live")

FIRST_PORT = 20_000
PORTS_EACH = 200
"""So many ports for the ranks of jobs to meet at are kept for each machine of the grid, from the first on."""

PORTS_OF_A_NODE = 4
"""So many of them a node of a batch system has."""

Answer = Accepted | Declined


class SitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A site as it is to be started."""

    name: str
    nodes: int
    machines: int = 1  # on how many Ray nodes; the nodes are divided among them as evenly as possible
    virtual: bool = True  # whether nodes are only counted; otherwise the cores of a machine are divided among its nodes
    policy: Policy = SitePolicy()
    timezone: str | None = None  # IANA name, for windows of the week; None: UTC
    owner: OwnerPolicy = OwnerPolicy()
    journal: str = ""  # URL of its journal; empty: a file in its folder
    rules: MachineRules = ANY_JOBS  # whose jobs its machines start, as whom
    batch: BatchPlan | None = None  # the batch system that its nodes belong to, if they belong to one

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= self.nodes:
            raise OptionError("machines", f"is {self.machines} at {self.name}; from 1 to its {self.nodes} nodes")


class GridPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A grid as it is to be started."""

    folder: str  # where journals, jobs and their output are, on every machine
    sites: tuple[SitePlan, ...]
    policy: GridPolicy
    namespace: str = NAMESPACE  # of its actors
    # Whether the Ray nodes carry labels that say which site they belong to; otherwise all is put anywhere.
    labelled: bool = True
    grid_id: str = ""  # by which its actors know those of another grid
    logs: str = ""  # folder for the logs of its actors, on every machine; empty: Ray keeps what they say
    journal: str = ""  # URL of the meta-scheduler's journal; empty: a file in the folder
    # As for `GridSettings`.
    seed: int = 0
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    network: GridNetwork | None = None
    usual: UsualCommunication = UsualCommunication()
    needs: UsualNeeds = UsualNeeds()  # also as for `SiteSettings`
    start_ms: int | None = None
    end_ms: int | None = None
    maxima: Maxima = NO_MAXIMA  # of users and accounts, at the grid and at each site for its own users
    history_days: int = HISTORY_DAYS  # so long journals keep what they know of jobs that are over
    probes: ProbePlan | None = None  # how often the ways between sites are measured; None: never
    # As for `SiteSettings`.
    rendezvous_ms: int = 30_000
    alone_ms: int = ALONE_MS
    # From which on ports are kept for the ranks of jobs to meet at; grids on the same machine have others each.
    first_port: int = FIRST_PORT
    grid_labels: dict[str, str] = {}  # what a Ray node must have for the meta-scheduler to be there
    grid_host: str = ""  # the IP address of the machine that it must be on; empty: any
    clock: Clock = Clock()  # of all its actors; all times above are times of this clock

    def settings(self) -> GridSettings:
        """Return what its meta-scheduler is made of."""
        sites = tuple((site.name, site.owner.nodes_for_grid(site.nodes)) for site in self.sites)
        return GridSettings(
            sites=sites,
            policy=self.policy,
            seed=self.seed,
            margin_ms=self.margin_ms,
            alone_ms=self.alone_ms,
            retry_ms=self.retry_ms,
            lease_ms=self.lease_ms,
            network=self.network,
            usual=self.usual,
            needs=self.needs,
            start_ms=self.start_ms,
            end_ms=self.end_ms,
        )

    def journals(self) -> list[JournalSpec]:
        """Return the journals of its actors: that of the meta-scheduler, then those of the sites."""
        from gridweave.grid.service.driver import identity_of

        sites = [
            JournalSpec(site_place(self.folder, site.name, site.journal), self.site_settings(number))
            for number, site in enumerate(self.sites)
        ]
        return [JournalSpec(grid_place(self.folder, self.journal), identity_of(self.settings())), *sites]

    def probing(self, number: int) -> tuple[ProbePlan | None, tuple[tuple[str, str], ...]]:
        """Return how a site of it probes, and which other sites: those after it, on their first machines."""
        later = range(number + 1, len(self.sites))
        return self.probes, tuple((self.sites[k].name, self.site_settings(k).machines[0].name) for k in later)

    def site_settings(self, number: int) -> SiteSettings:
        """Return what a site of it is made of."""
        site = self.sites[number]
        before = sum(other.machines for other in self.sites[:number])
        return SiteSettings(
            name=site.name,
            number=number,
            machines=machines_of(site, self.first_port + before * PORTS_EACH),
            policy=site.policy,
            owner=site.owner,
            rendezvous_ms=self.rendezvous_ms,
            alone_ms=self.alone_ms,
            week=live_week(site.timezone) if deciding(site.policy)[1].week else (),
            needs=self.needs,
        )


class RunningGrid(RunningActors):
    """A grid that runs on Ray; made by `start_grid`."""

    def __init__(self, plan: GridPlan) -> None:
        super().__init__(plan.namespace, grid_id=plan.grid_id, logs=plan.logs)
        self.plan = plan

    def submit(
        self, requests: Sequence[tuple[str, JobRequest]], *, site: str | None = None
    ) -> list[Accepted | Declined]:
        """Hand in jobs, to the grid or to a site as one of its own users; return what became of each.

        UnavailableError if there was no answer; the same keys may be handed in again.
        """
        actor = GRID_ACTOR if site is None else site_actor(site)
        try:
            data = self.call(actor, "submit", encode(list(requests)))
        except UnavailableError as error:
            raise UnavailableError(f"{error}; submit the same again") from error
        return msgspec.msgpack.decode(data, type=list[Answer])

    def records(self, job_ids: Sequence[int], *, site: str | None = None) -> list[JobRecord]:
        """Return what the grid, or a site, knows of jobs."""
        actor = GRID_ACTOR if site is None else site_actor(site)
        return msgspec.msgpack.decode(self.call(actor, "records", list(job_ids)), type=list[JobRecord])


class Kinds(NamedTuple):
    """The classes of actors; others than these are for tests and measurements."""

    grid: type[LiveActor] = MetaActor
    site: type[LiveActor] = SiteActor
    machine: type[LiveActor] = AgentActor


USUAL = Kinds()


def start_grid(plan: GridPlan, *, timeout_s: float = START_S, kinds: Kinds = USUAL) -> RunningGrid:
    """Start the actors of a grid on the Ray cluster that this process is connected to; those that run stay.

    UnavailableError if one is not ready in time: no node has its label, or its journal is not to be had.
    """
    grid = make_grid(plan, kinds=kinds)
    grid.wait(timeout_s)
    return grid


def make_grid(plan: GridPlan, *, kinds: Kinds = USUAL) -> RunningGrid:
    """Make the actors of a grid, as `start_grid`, and do not wait for them: each starts when there is a node for it."""
    grid = RunningGrid(plan)
    grid.find(actor_names([(site.name, site.machines) for site in plan.sites]))
    journal = grid_place(plan.folder, plan.journal)
    # It takes longest to start, and so comes first.
    machines = tuple(tuple(each.name for each in plan.site_settings(n).machines) for n in range(len(plan.sites)))
    what = (plan.settings(), journal, plan.clock, machines)
    kept: dict[str, Any] = {"maxima": plan.maxima, "history_days": plan.history_days}
    grid.add(kinds.grid, GRID_ACTOR, Spot(labels=plan.grid_labels, ip=plan.grid_host), *what, **kept)
    place = Place(folder=plan.folder, labelled=plan.labelled, clock=plan.clock)
    for number, site in enumerate(plan.sites):
        add_site(
            grid,
            site,
            plan.site_settings(number),
            place,
            kinds=kinds,
            probing=plan.probing(number),
            **kept,
        )
    return grid


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where the actors of sites are made."""

    # As for `GridPlan`.
    folder: str
    labelled: bool = True
    host: str = ""  # by which name other sites reach a machine; empty: that which Ray has
    clock: Clock = Clock()


def _add_machines(
    found: RunningActors,
    site: SitePlan,
    settings: SiteSettings,
    place: Place,
    kinds: Kinds,
    probing: tuple[ProbePlan | None, tuple[tuple[str, str], ...]],
) -> None:
    for each in settings.machines:
        probes = probing if each is settings.machines[0] else (None, ())
        what = (site.name, each, str(Path(place.folder) / site.name / each.name), site.virtual, *probes, place.clock)
        named: dict[str, Any] = {"host": place.host} if place.host else {}
        if site.rules != ANY_JOBS:
            named["rules"] = site.rules
        spot = _spot(place.labelled, site, each.name)
        found.add(kinds.machine, agent_actor(site.name, each.name), spot, *what, **named)


def add_site(
    found: RunningActors,
    site: SitePlan,
    settings: SiteSettings,
    place: Place,
    *,
    kinds: Kinds = USUAL,
    probing: tuple[ProbePlan | None, tuple[tuple[str, str], ...]] = (None, ()),
    **options: Any,
) -> None:
    """Add the actors of a site: those of its machines, and its own, with the options of `SiteActor`."""
    kind = kinds.site
    if site.batch is None:
        _add_machines(found, site, settings, place, kinds, probing)
    else:
        for note in batch_notes(site):
            logger.warning("%s", note)
        kind, options = BatchSiteActor, options | {"batch": site.batch}
    journal = site_place(place.folder, site.name, site.journal)
    spot = _spot(place.labelled, site, settings.machines[0].name)
    found.add(kind, site_actor(site.name), spot, settings, journal, place.clock, **options)


def batch_notes(site: SitePlan) -> tuple[str, ...]:
    """Return what an operator should know of a site's batch system, in a line each; nothing if it has none.

    A batch system that does not answer is only a line: it may answer later.

    Raises
    ------
    InputError
        If the batch system can give the site nothing, in one line.
    """
    if site.batch is None:
        return ()
    try:
        notes = asyncio.run(check_plan(site.batch, site.nodes))
    except InputError as error:
        raise InputError(f"site {site.name}: {error}") from None
    except UnavailableError as error:
        notes = (str(error),)
    return tuple(f"site {site.name}: {note}" for note in notes)


def _spot(labelled: bool, site: SitePlan, machine: str) -> Spot:
    if not labelled:
        return Spot()
    labels = {SITE_LABEL: site.name}
    return Spot(labels=labels | {MACHINE_LABEL: machine} if site.machines > 1 else labels)


def machines_of(site: SitePlan, first_port: int) -> tuple[Machine, ...]:
    """Return the machines of a site, each with its nodes and ports of its own.

    Where the nodes belong to a batch system, each is the place of one node, whichever the batch system gives.
    """
    if site.batch is not None:
        room = PORTS_EACH // PORTS_OF_A_NODE
        firsts = [first_port + PORTS_OF_A_NODE * (number % room) for number in range(site.nodes)]
        return tuple(
            Machine(name=f"n{number}", nodes=1, ports=(low, low + PORTS_OF_A_NODE)) for number, low in enumerate(firsts)
        )
    machines = []
    for machine in range(site.machines):
        nodes = site.nodes // site.machines + (machine < site.nodes % site.machines)
        low = first_port + machine * PORTS_EACH
        ports = (low, low + PORTS_EACH) if low + PORTS_EACH <= 65_536 else (0, 0)
        machines.append(Machine(name=f"m{machine}", nodes=nodes, ports=ports))
    return tuple(machines)


def plan_of(read: ReadGrid, *, folder: str, namespace: str, labelled: bool, first_port: int, secret: bytes) -> GridPlan:
    """Return the grid that is to be started; by the secret the sites know each other when they probe."""
    table = read.grid
    times = ("journal", "seed", "margin_ms", "retry_ms", "lease_ms", "rendezvous_ms", "alone_ms", "history_days")
    return GridPlan(
        folder=folder,
        sites=tuple(site_plan(site, table) for site in read.sites),
        policy=grid_policy(table),
        namespace=namespace,
        labelled=labelled,
        network=_network(read),
        usual=usual_communication(read.grid),
        needs=usual_needs(read.grid),
        maxima=read.file.maxima,
        probes=_probes(read, secret),
        first_port=first_port,
        start_ms=read.live.start_ms,
        end_ms=read.live.end_ms,
        **{name: getattr(table, name) for name in times},
    )


def site_plan(site: LiveSiteTable, grid: LiveGridTable) -> SitePlan:
    """Return a site as it is to be started; what it leaves open is as for the grid."""
    policy = site_policy(site, grid)
    return SitePlan(
        name=site.name,
        nodes=site.nodes,
        machines=site.machines,
        virtual=site.virtual,
        policy=policy,
        timezone=site.timezone,
        owner=owner_policy(site),
        journal=site.journal,
        rules=machine_rules(site.launcher, gives_parts=deciding(policy)[1].fractions, output=grid.output),
        batch=batch_plan(site, grid.output),
    )


def batch_plan(site: LiveSiteTable, output: OutputLimits) -> BatchPlan | None:
    """Return which batch system a site has, and how it is asked; None if its nodes are its own."""
    table: SlurmTable | None = site.options.get("slurm")
    if table is None:
        return None
    return BatchPlan(
        system=NAME,
        settings=table.settings,
        folder=str(Path(table.folder) / site.name),
        host=table.host,
        python=table.python,
        poll_s=table.poll_s,
        lease_s=table.lease_s,
        rules=table.rules(machine_rules(site.launcher, output=output)),
        users=table.batch_users,
    )


def machine_rules(
    table: LauncherTable, *, gives_parts: bool = False, output: OutputLimits = KEEP_OUTPUT
) -> MachineRules:
    """Return what the machines of a site hold jobs to; the owner of the grid is who runs this process."""
    limits = table.limits
    return MachineRules(
        owner=(login_name() or f"uid {os.getuid()}") if table.kind == "self" and table.trust == "owner" else "",
        launcher=table.socket if table.kind == "user" else "",
        limits=limits if limits.controllers else None,
        gives_parts=gives_parts,
        output=output,
    )


def _network(read: ReadGrid) -> GridNetwork | None:
    if read.network is None:
        return None
    model = NetworkModel.of_table(read.network.table, read.network.topology)
    grid = read.grid
    # Starts that are reserved count no data.
    staging = NO_DATA if grid.backfill == "conservative" else BLOCKING
    return GridNetwork(model, grid.split == "earliest-end", staging, grid.exact_up_to, grid.max_split_factor)


def _probes(read: ReadGrid, secret: bytes) -> ProbePlan | None:
    probes = read.file.probes if isinstance(read.file, GridFile | ServedGrid) else None
    if probes is None:
        return None
    return ProbePlan(secret=secret, every_s=probes.every_s, bandwidth_every_s=probes.bandwidth_every_s)
