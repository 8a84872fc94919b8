"""A whole grid on a Ray cluster: which actors it has, and where each of them runs."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
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
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import UsualCommunication
from gridweave.grid.service.actor import MetaActor
from gridweave.grid.service.actors import START_S, RunningActors, Spot, actor_names
from gridweave.netmodel.model import NetworkModel
from gridweave.site.disciplines.dictionary import counted_kinds, counted_placement, deciding
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import Accepted, Declined, JobRecord, JobRequest
from gridweave.site.launch import ANY_JOBS, KEEP_OUTPUT, MachineRules, OutputLimits
from gridweave.site.machine.hardware.bind import HostShare, share_of
from gridweave.site.messages import Machine
from gridweave.site.needs.estimates import UsualNeeds
from gridweave.site.policy import SitePolicy
from gridweave.site.quotas import NO_QUOTAS, Quotas
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.numbers import kinds_by_machine
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.contract import ALONE_MS
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
from gridweave.site.service.prober import ProbePlan
from gridweave.site.service.zones import live_week
from gridweave.site.users.owner import OwnerPolicy
from gridweave.slurm.cluster.entry import SlurmTable
from gridweave.slurm.policy import NAME
from gridweave.slurm.service.actor import BatchSiteActor
from gridweave.slurm.service.site import check_plan
from gridweave.slurm.system import BatchPlan

logger = logging.getLogger("gridweave.live")

FIRST_PORT = 20_000
PORTS_EACH = 200
"""Number of rendezvous ports per machine, counted from the grid's first port."""

PORTS_OF_A_NODE = 4
"""Number of rendezvous ports of a batch system's node."""

Answer = Accepted | Declined


class SitePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A site's nodes and settings, and where its actors run."""

    name: str
    nodes: int
    machines: int = 1  # number of Ray nodes, among which the nodes are divided as evenly as possible
    virtual: bool = True  # whether nodes are only counted; otherwise the cores of a machine are divided among its nodes
    policy: Policy = SitePolicy()
    timezone: str | None = None  # IANA time zone of weekly windows; None: as on the machine that starts the grid
    owner: OwnerPolicy = OwnerPolicy()
    journal: str = ""  # URL of the site's journal; empty: a file in the site's folder
    rules: MachineRules = ANY_JOBS  # Unix users of its machines, and whose jobs they start
    batch: BatchPlan | None = None  # the batch system to which its nodes belong, if any

    def __post_init__(self) -> None:
        if not 1 <= self.machines <= self.nodes:
            raise OptionError("machines", f"is {self.machines} at {self.name}; from 1 to its {self.nodes} nodes")


class GridPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A grid's sites and settings, and where its actors run."""

    folder: str  # folder of journals, jobs and their output, on every machine
    sites: tuple[SitePlan, ...]
    policy: GridPolicy
    namespace: str = NAMESPACE  # Ray namespace of its actors
    # Whether Ray nodes have site labels; otherwise actors run on any node.
    labelled: bool = True
    grid_id: str = ""  # id by which its actors recognise each other
    logs: str = ""  # folder of its actors' logs, on every machine; empty: Ray keeps them
    journal: str = ""  # URL of the meta-scheduler's journal; empty: a file in the folder
    # As in `GridSettings`.
    seed: int = 0
    margin_ms: int = 500
    retry_ms: int = 10_000
    lease_ms: int = LEASE_MS
    network: GridNetwork | None = None
    usual: UsualCommunication = UsualCommunication()
    needs: UsualNeeds = UsualNeeds()  # as in `SiteSettings`, too
    start_ms: int | None = None
    end_ms: int | None = None
    quotas: Quotas = NO_QUOTAS  # quotas of users and accounts, at the grid and at each site for its own users
    history_days: int = HISTORY_DAYS  # how long journals keep jobs that have ended
    probes: ProbePlan | None = None  # interval of measurements between sites; None: never
    # As in `SiteSettings`.
    rendezvous_ms: int = 30_000
    alone_ms: int = ALONE_MS
    # First rendezvous port; other grids on the same machine need other ports.
    first_port: int = FIRST_PORT
    grid_labels: dict[str, str] = {}  # labels of the meta-scheduler's Ray node
    grid_host: str = ""  # IP address of its machine; empty: any
    clock: Clock = Clock()  # clock of all its actors, to which all times above refer
    is_on_one_host: bool = False  # whether all machines of its sites are on the same host

    def shares(self) -> dict[tuple[str, str], HostShare]:
        """Return which cores and GPUs each machine gets, by site and machine, if all are on one host; else empty."""
        sites = [(site, self.site_settings(number)) for number, site in enumerate(self.sites)]
        return shares_of_host(sites) if self.is_on_one_host else {}

    def settings(self) -> GridSettings:
        """Return the meta-scheduler's settings."""
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
            kinds=tuple(counted_kinds(site.policy) for site in self.sites),
            placements=tuple(counted_placement(site.policy) for site in self.sites),
        )

    def journals(self) -> list[JournalSpec]:
        """Return the actors' journals: the meta-scheduler's, then the sites'."""
        from gridweave.grid.service.driver import identity_of

        sites = [
            JournalSpec(site_place(self.folder, site.name, site.journal), self.site_settings(number))
            for number, site in enumerate(self.sites)
        ]
        return [JournalSpec(grid_place(self.folder, self.journal), identity_of(self.settings())), *sites]

    def probing(self, number: int) -> tuple[ProbePlan | None, tuple[tuple[str, str], ...]]:
        """Return a site's probe settings and targets: the first machine of each site that is listed after the site."""
        later = range(number + 1, len(self.sites))
        return self.probes, tuple((self.sites[k].name, self.site_settings(k).machines[0].name) for k in later)

    def site_settings(self, number: int) -> SiteSettings:
        """Return the settings of a site."""
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
    """A grid running on Ray; created by `start_grid`."""

    def __init__(self, plan: GridPlan) -> None:
        super().__init__(plan.namespace, grid_id=plan.grid_id, logs=plan.logs)
        self.plan = plan

    def submit(
        self, requests: Sequence[tuple[str, JobRequest]], *, site: str | None = None
    ) -> list[Accepted | Declined]:
        """Submit jobs to the grid, or to a site as jobs of its own users; return the answer for each job.

        Raise UnavailableError if there is no answer; the same keys may then be submitted again.
        """
        actor = GRID_ACTOR if site is None else site_actor(site)
        try:
            data = self.call(actor, "submit", encode(list(requests)))
        except UnavailableError as error:
            raise UnavailableError(f"{error}; submit the same again") from error
        return msgspec.msgpack.decode(data, type=list[Answer])

    def records(self, job_ids: Sequence[int], *, site: str | None = None) -> list[JobRecord]:
        """Return the records of jobs at the grid or a site."""
        actor = GRID_ACTOR if site is None else site_actor(site)
        return msgspec.msgpack.decode(self.call(actor, "records", list(job_ids)), type=list[JobRecord])


class Kinds(NamedTuple):
    """The actor classes; tests and measurements replace them by their own."""

    grid: type[LiveActor] = MetaActor
    site: type[LiveActor] = SiteActor
    machine: type[LiveActor] = AgentActor


USUAL = Kinds()


def start_grid(plan: GridPlan, *, timeout_s: float = START_S, kinds: Kinds = USUAL) -> RunningGrid:
    """Start the actors of a grid on the Ray cluster that this process has joined, unless they are running.

    Raise UnavailableError if an actor is not ready in time because its journal is unavailable or no node has its label.
    """
    grid = make_grid(plan, kinds=kinds)
    grid.wait(timeout_s)
    return grid


def make_grid(plan: GridPlan, *, kinds: Kinds = USUAL) -> RunningGrid:
    """Create the actors of a grid like `start_grid`, but without waiting; each actor starts once it has a node."""
    grid = RunningGrid(plan)
    grid.find(actor_names([(site.name, site.machines) for site in plan.sites]))
    journal = grid_place(plan.folder, plan.journal)
    # The meta-scheduler takes longest to start, so it is created first.
    machines = tuple(tuple(machine.name for machine in plan.site_settings(n).machines) for n in range(len(plan.sites)))
    what = (plan.settings(), journal, plan.clock, machines)
    kept: dict[str, Any] = {"quotas": plan.quotas, "history_days": plan.history_days}
    grid.add(kinds.grid, GRID_ACTOR, Spot(labels=plan.grid_labels, ip=plan.grid_host), *what, **kept)
    place = Place(folder=plan.folder, labelled=plan.labelled, clock=plan.clock, shares=plan.shares())
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
    """Where to create the sites' actors."""

    # As in `GridPlan`.
    folder: str
    labelled: bool = True
    host: str = ""  # name by which other sites reach a machine; empty: its name in Ray
    # Which of its host's cores and GPUs each machine gets, by site and machine; a machine not listed has its own host.
    shares: dict[tuple[str, str], HostShare] = {}
    clock: Clock = Clock()


def machines_with_kinds(settings: SiteSettings) -> Iterator[tuple[Machine, tuple[NodeKind, ...]]]:
    """Yield each machine of a site with the kinds of its nodes; without kinds if the site counts no resources."""
    yield from zip(settings.machines, kinds_by_machine(settings.machines, counted_kinds(settings.policy)), strict=True)


def shares_of_host(sites: Iterable[tuple[SitePlan, SiteSettings]]) -> dict[tuple[str, str], HostShare]:
    """Return which of a host's cores and GPUs each machine gets, by site and machine, if all are on this host."""
    machines = [
        (site.virtual, (site.name, machine.name), nodes)
        for site, settings in sites
        for machine, nodes in machines_with_kinds(settings)
    ]
    real = [node for is_virtual, _, nodes in machines if not is_virtual for node in nodes]
    shares: dict[tuple[str, str], HostShare] = {}
    before: list[NodeKind] = []
    # The GPUs of virtual nodes have numbers that no other node has.
    for _, key, nodes in sorted(machines, key=lambda machine: machine[0]):
        shares[key] = share_of(nodes, before, real[len(before) + len(nodes) :])
        before += nodes
    return shares


def _add_machines(
    actors: RunningActors,
    site: SitePlan,
    settings: SiteSettings,
    place: Place,
    kinds: Kinds,
    probing: tuple[ProbePlan | None, tuple[tuple[str, str], ...]],
) -> None:
    for machine, nodes in machines_with_kinds(settings):
        probes = probing if machine is settings.machines[0] else (None, ())
        options = (
            site.name,
            machine,
            str(Path(place.folder) / site.name / machine.name),
            site.virtual,
            *probes,
            place.clock,
        )
        named: dict[str, Any] = {"host": place.host} if place.host else {}
        if site.rules != ANY_JOBS:
            named["rules"] = site.rules
        if nodes:
            named |= {"kinds": nodes, "share": place.shares.get((site.name, machine.name))}
        spot = _spot(place.labelled, site, machine.name)
        actors.add(kinds.machine, agent_actor(site.name, machine.name), spot, *options, **named)


def add_site(
    actors: RunningActors,
    site: SitePlan,
    settings: SiteSettings,
    place: Place,
    *,
    kinds: Kinds = USUAL,
    probing: tuple[ProbePlan | None, tuple[tuple[str, str], ...]] = (None, ()),
    **options: Any,
) -> None:
    """Add the actors of a site and its machines; `options` are passed to `SiteActor`."""
    kind = kinds.site
    if site.batch is None:
        _add_machines(actors, site, settings, place, kinds, probing)
    else:
        for note in batch_notes(site):
            logger.warning("%s", note)
        kind, options = BatchSiteActor, options | {"batch": site.batch}
    journal = site_place(place.folder, site.name, site.journal)
    spot = _spot(place.labelled, site, settings.machines[0].name)
    actors.add(kind, site_actor(site.name), spot, settings, journal, place.clock, **options)


def batch_notes(site: SitePlan) -> tuple[str, ...]:
    """Return remarks for the operator on a site's batch system; empty if there are none.

    A batch system that does not answer only causes a remark, since it may answer later.

    Raises
    ------
    InputError
        If the batch system has no nodes for the site.
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
    """Return the machines of a site with their nodes and ports.

    Each node of a batch system counts as a machine; the batch system decides which node is used.
    """
    if site.batch is not None:
        capacity = PORTS_EACH // PORTS_OF_A_NODE
        firsts = [first_port + PORTS_OF_A_NODE * (number % capacity) for number in range(site.nodes)]
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
    """Return the plan of a grid; `secret` authenticates probes between its sites."""
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
        quotas=read.file.quotas,
        probes=_probes(read, secret),
        first_port=first_port,
        start_ms=read.live.start_ms,
        end_ms=read.live.end_ms,
        **{name: getattr(table, name) for name in times},
    )


def site_plan(site: LiveSiteTable, grid: LiveGridTable) -> SitePlan:
    """Return the plan of a site, with defaults from the grid."""
    policy = site_policy(site, grid)
    return SitePlan(
        name=site.name,
        nodes=site.node_count,
        machines=site.machines,
        virtual=not counted_kinds(policy) if site.virtual is None else site.virtual,
        policy=policy,
        timezone=site.timezone,
        owner=owner_policy(site),
        journal=site.journal,
        rules=machine_rules(site.launcher, gives_parts=deciding(policy)[1].fractions, output=grid.output),
        batch=batch_plan(site, grid.output),
    )


def batch_plan(site: LiveSiteTable, output: OutputLimits) -> BatchPlan | None:
    """Return a site's batch system and how to reach it; None if the site has its own nodes."""
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
    """Return the rules of a site's machines; the user of this process owns the grid."""
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
    # Reserved starts ignore data transfers.
    staging = NO_DATA if grid.backfill == "conservative" else BLOCKING
    return GridNetwork(model, grid.split == "earliest-end", staging, grid.exact_up_to, grid.max_split_factor)


def _probes(read: ReadGrid, secret: bytes) -> ProbePlan | None:
    probes = read.file.probes if isinstance(read.file, GridFile | ServedGrid) else None
    if probes is None:
        return None
    return ProbePlan(secret=secret, every_s=probes.every_s, bandwidth_every_s=probes.bandwidth_every_s)
