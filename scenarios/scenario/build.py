"""Build a scenario: the workload with each job's home, and the grid's nodes, policies and network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from gridweave.errors import GridweaveError, InputError, OptionError
from gridweave.grid.config.checks import checked, counts_resources, grid_policy, node_kinds, owner_policy, site_policy
from gridweave.grid.config.networks import ReadNetwork, beside
from gridweave.grid.config.tables import Site
from gridweave.grid.config.toml import FileReport
from gridweave.grid.policy import GridPolicy
from gridweave.netmodel.changes import Timetable, all_changes
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.tables import Problems
from gridweave.netmodel.topology import Topology, named
from gridweave.scenarios.batch.grid_network import GridNet, policy_label
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.scenario.read import (
    Draft,
    Overrides,
    chunk_ranges,
    contention_of,
    network_of,
    read_draft,
    reporting,
    sites_of,
)
from gridweave.scenarios.scenario.tables import ChunkTable, FaultsTable, Scenario, Transformation, WorkloadTable
from gridweave.scenarios.traces.chunk_files import with_chunks_from
from gridweave.scenarios.traces.load import columns_of, find_trace, load_workload
from gridweave.scenarios.traces.resources import with_mix, with_needs_from
from gridweave.scenarios.workload import transform
from gridweave.scenarios.workload.chunks import NO_CHUNK, draw_mixed_chunks
from gridweave.scenarios.workload.columns import with_communication, with_data
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.homes import assign_homes, home_of, of_sites, overlap
from gridweave.scenarios.workload.priorities import column_of, with_priorities
from gridweave.scenarios.workload.run_times import is_from_file, with_run_times
from gridweave.scenarios.workload.table import BoolArray, IntArray, Workload
from gridweave.scenarios.world.connections import Faults, LiveTimes, Network, PlannedFault, check_reach, node_of_grid
from gridweave.site.disciplines.dictionary import DISCIPLINES, traits_of
from gridweave.site.disciplines.entry import Entry, Policy
from gridweave.site.resources.chunks import Chunk
from gridweave.site.resources.refusals import most_chunks, why_never_on, why_whole_only
from gridweave.site.users.owner import OwnerPolicy


def _grid_net(scenario: Scenario, network: ReadNetwork, until_ms: int) -> GridNet:
    """Return the network for the batch driver; no random link failure begins after ``until_ms``."""
    problems, rng = Problems(network.topology.name), rng_of(scenario, STREAM_LINKS)
    changes = all_changes(network.table, network.topology, until_ms=until_ms, rng=rng, report=problems)
    problems.raise_if_any()
    return GridNet(
        model=NetworkModel.of_table(network.table, network.topology),
        timetable=Timetable.of(network.topology, changes) if changes else None,
        contention=contention_of(scenario),
        split=scenario.grid.split,
        data=scenario.grid.data,
        exact_up_to=scenario.grid.exact_up_to,
        max_split_factor=scenario.grid.max_split_factor,
    )


# Every use has its own random stream, default_rng([seed, use]), so that draws for one use do not affect another.
STREAM_GENERATOR, STREAM_HOMES, STREAM_ESTIMATES, STREAM_SELECTION, STREAM_TO_GRID, STREAM_WORLD = 1, 2, 3, 4, 5, 6
STREAM_COMMUNICATION, STREAM_DATA, STREAM_LINKS, STREAM_RESOURCES, STREAM_RUN_TIMES = 7, 8, 9, 10, 11
STREAM_PRIORITIES, STREAM_FAULTS, STREAM_CHUNKS = 12, 13, 14


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Built:
    """A scenario that is ready to run.

    Attributes
    ----------
    scenario : Scenario
    workload : Workload
        Contains only jobs that can run.
    home : numpy.ndarray of int64, shape (n,)
        The site at which each job is submitted.
    site_names : tuple of str
    nodes : numpy.ndarray of int64, shape (sites,)
    policy : GridPolicy
    site_policies : tuple of Policy
        Each site's scheduling policy.
    owners : tuple of OwnerPolicy
        The nodes that each site's owner grants the grid.
    timezones : tuple of str or None
        Each site's time zone; None for the workload's time zone.
    to_grid : numpy.ndarray of bool, shape (n,)
        Which jobs are submitted to the grid rather than to their homes; none in mode ``local``.
    network : Network
    faults : Faults
    live : LiveTimes
    remarks : tuple of str
        Remarks for the user on how the workload was prepared.
    net : GridNet or None
        The links between the sites.
    """

    scenario: Scenario
    workload: Workload
    home: IntArray
    site_names: tuple[str, ...]
    nodes: IntArray
    policy: GridPolicy
    site_policies: tuple[Policy, ...]
    owners: tuple[OwnerPolicy, ...]
    timezones: tuple[str | None, ...]
    to_grid: BoolArray
    network: Network
    faults: Faults
    live: LiveTimes
    remarks: tuple[str, ...]
    net: GridNet | None = None

    @property
    def overlaps(self) -> bool:
        """Whether several started jobs may hold the same nodes at some site (`Traits.overlaps`)."""
        return any(traits_of(policy).overlaps for policy in self.site_policies)

    @property
    def sites_with_rates(self) -> frozenset[str]:
        """The sites at which jobs may run at rates other than 1: sites with shared nodes or different machines."""
        sites = zip(self.site_names, self.site_policies, strict=True)
        return frozenset(name for name, policy in sites if traits_of(policy).varies_rates)

    @property
    def sites_that_save(self) -> frozenset[str]:
        """The sites at which evicted or moved jobs keep their progress."""
        sites = zip(self.site_names, self.site_policies, strict=True)
        return frozenset(name for name, policy in sites if traits_of(policy).saves_work)

    @property
    def label(self) -> str:
        """The policy's label in tables, including the network model."""
        return policy_label(self.policy, self.net)

    @property
    def grid_node(self) -> int | None:
        """The grid's node in the network, or None if messages do not cross the links."""
        if self.net is None or not self.needs_world:
            return None
        return node_of_grid(self.net, self.scenario.grid.at)

    @property
    def needs_world(self) -> bool:
        """Whether the scenario needs the simulated world, because the batch driver does not support all its features.

        The unsupported features are messages, faults, a live grid's delays, sites' own users, owners, less than full
        control, a tuned queue, and sites that share nodes or have different machines.
        """
        return self.policy.mode != "local" and (
            self.policy.control != "full"
            or self.policy.tuning is not None
            or self.scenario.grid.at is not None
            or bool(self.sites_with_rates)
            or self.network != Network()
            or self.faults.any
            or self.live != LiveTimes()
            or not bool(self.to_grid.all())
            or any(owner != OwnerPolicy() for owner in self.owners)
        )


def build_scenario(source: str | Path | Scenario, overrides: Overrides = ()) -> Built:
    """Read, check and build a scenario.

    Parameters
    ----------
    source, overrides
        As for `gridweave.scenarios.scenario.read.read_scenario`.

    Raises
    ------
    ScenarioError
        If the scenario is invalid; the error lists all problems.
    InputError
        If there is no such scenario.
    """
    draft = read_draft(source, overrides)
    scenario, report = draft.scenario, draft.report
    policy = grid_policy(scenario.grid, report)
    remarks = list(draft.remarks)
    network = network_of(draft)
    if network is not None:
        _check_grid_node(draft, network.topology)
    jobs = _workload(draft, policy, remarks)
    report.raise_if_any()
    assert jobs is not None, "a workload that cannot be built was reported"
    workload, to_grid = jobs
    net = None
    if network is not None:
        net = _grid_net(scenario, network, until_ms=int(workload.submit_ms[-1]))
        remarks.extend(network.remarks)
    sites = sites_of(scenario)
    built = Built(
        scenario=scenario,
        workload=workload,
        home=home_of(workload),
        site_names=tuple(site.name for site in sites),
        nodes=np.array([site.node_count for site in sites], np.int64),
        policy=policy,
        site_policies=tuple(site_policy(site, scenario.grid) for site in sites),
        owners=tuple(owner_policy(site) for site in sites),
        timezones=tuple(site.timezone for site in sites),
        to_grid=to_grid,
        network=checked(Network, scenario.network, ("network",)),
        faults=_faults(scenario),
        live=checked(LiveTimes, scenario.live, ("live",)),
        remarks=tuple(remarks),
        net=net,
    )
    _check_reach(built, report)
    return built


def _faults(scenario: Scenario) -> Faults:
    """Return the scenario's faults, with site names replaced by site numbers."""
    names = [site.name for site in sites_of(scenario)]
    faults = checked(Faults, msgspec.structs.replace(scenario.faults, planned=[]), ("faults",))
    planned = [
        PlannedFault(at_ms=fault.at_ms, action=fault.action, site=names.index(fault.site), lasts_ms=fault.lasts_ms)
        for fault in scenario.faults.planned
    ]
    return msgspec.structs.replace(faults, planned=tuple(planned))


def _check_grid_node(draft: Draft, topology: Topology) -> None:
    """Report a ``grid.at`` that is neither a node of the network nor a site."""
    at = draft.scenario.grid.at
    if at is not None and at not in topology.nodes and at not in topology.sites:
        draft.report.add(
            ("grid", "at"),
            f"{at!r} is neither a node of the network nor a site; expected one of {named(topology.nodes)}",
        )


def _check_reach(built: Built, report: FileReport) -> None:
    """Raise ScenarioError if messages cross the links and the links cut a site off from the grid forever."""
    if built.net is None or built.grid_node is None:
        return
    with reporting(report, ("net", "changes")):
        check_reach(built.net, built.grid_node)
    report.raise_if_any()


def rng_of(scenario: Scenario, stream: int) -> np.random.Generator:
    """Return the scenario's random generator for one use.

    Parameters
    ----------
    stream : int
        One of this module's ``STREAM_`` numbers.
    """
    return np.random.default_rng([scenario.header.seed, stream])


def draws_at_random(scenario: Scenario) -> bool:
    """Whether the seed may affect the result; False only if nothing is random.

    Only keys that differ from their defaults are considered, so the answer may be True although nothing is drawn.
    """
    table, network, default = scenario.workload, scenario.network, WorkloadTable()
    drawn = ("generator", "run_times", "estimates", "priorities", "communication", "data", "resources", "needs")
    return (
        any(getattr(table, name) != getattr(default, name) for name in drawn)
        or isinstance(table.chunks, list)
        or isinstance(table.home, dict)
        or 0 < table.to_grid < 1
        or bool(network.jitter_ms or network.loss or network.duplicate)
        or msgspec.structs.replace(scenario.faults, planned=[]) != FaultsTable()
        or (scenario.net is not None and scenario.net.failures is not None)
        or scenario.grid.selection == "random"
    )


def _workload(draft: Draft, policy: GridPolicy, remarks: list[str]) -> tuple[Workload, BoolArray] | None:
    """Return the jobs and whether each is submitted to the grid; report problems and return None if that fails."""
    scenario, report = draft.scenario, draft.report
    table = scenario.workload
    workload = _source(draft, remarks)
    if workload is None:
        return None
    if report.is_clean(("workload", "run_times")):
        rng = rng_of(scenario, STREAM_RUN_TIMES)
        with reporting(report, ("workload", "run_times")):
            workload = with_run_times(workload, table.run_times, rng, folder=draft.folder)
    if report.is_clean(("workload", "estimates")):
        workload = with_estimates(workload, table.estimates, rng_of(scenario, STREAM_ESTIMATES))
    if report.is_clean(("workload", "priorities")):
        with reporting(report, ("workload", "priorities")):
            workload = with_priorities(workload, table.priorities, rng_of(scenario, STREAM_PRIORITIES))
    all_read = bool(scenario.sites) and all(isinstance(site, Site) for site in scenario.sites)
    if not all_read or not report.is_clean(("workload", "transform")):
        return None
    nodes = np.array([site.node_count for site in sites_of(scenario)], np.int64)
    if not all(0 <= site.grid_share <= 1 and site.discipline in DISCIPLINES for site in sites_of(scenario)):
        return None
    transformed = _transformed(draft, workload, nodes)
    if transformed is None or not report.is_clean(("grid", "mode"), ("workload", "home")):
        return None
    transformed = _with_needs(draft, _with_traffic(draft, transformed))
    if transformed is None:
        return None
    remarks += _sharing_remarks(scenario)
    to_grid = np.zeros(len(transformed), np.bool_)
    if policy.mode != "local":
        to_grid = rng_of(scenario, STREAM_TO_GRID).random(len(transformed)) < table.to_grid
    fits, why = _fits(transformed, to_grid, sites_of(scenario), policy)
    if not fits.all() and not _report_wide(transformed, fits, why, table.drop_wide, report, remarks):
        return None
    return transformed.take(fits), to_grid[fits]


def _generated(draft: Draft, generator: str) -> Workload | None:
    """Generate the jobs, or return None if their number or the machine's size is unknown."""
    table = draft.scenario.workload
    model = load_model(beside(draft.folder, generator) or generator)
    nodes = table.nodes or sum(site.node_count for site in sites_of(draft.scenario))
    if table.jobs is None or not nodes or not draft.report.is_clean(("workload", "nodes"), ("workload", "load")):
        return None
    return generate(model, table.jobs, rng_of(draft.scenario, STREAM_GENERATOR), nodes=nodes, load=table.load)


def _with_needs(draft: Draft, workload: Workload) -> Workload | None:
    """Add the jobs' needs of node resources; report a problem and return None if that fails."""
    table, report = draft.scenario.workload, draft.report
    for key, value, apply in (("resources", table.resources, with_mix), ("needs", table.needs, with_needs_from)):
        if value is not None:
            rng = rng_of(draft.scenario, STREAM_RESOURCES)
            with reporting(report, ("workload", key)):
                workload = apply(workload, beside(draft.folder, value) or value, rng)
    if table.chunks is not None and not isinstance(table.chunks, dict):
        with reporting(report, ("workload", "chunks")):
            workload = _with_chunks(draft, table.chunks, workload)
    return workload if report.is_clean(("workload", "needs"), ("workload", "chunks")) else None


def _with_chunks(draft: Draft, chunks: str | list[ChunkTable], workload: Workload) -> Workload:
    """Set the chunks that jobs request."""
    if isinstance(chunks, str):
        return with_chunks_from(workload, beside(draft.folder, chunks) or chunks)
    names = [site.name for site in sites_of(draft.scenario)]
    mix = [chunk_ranges(table, names) for table in chunks]
    return draw_mixed_chunks(workload, mix, rng_of(draft.scenario, STREAM_CHUNKS), home=home_of(workload))


def _source(draft: Draft, remarks: list[str]) -> Workload | None:
    """Load or generate the jobs; report a problem and return None if that fails."""
    table, report = draft.scenario.workload, draft.report
    key_path = (
        "workload",
        next((name for name in ("trace", "traces") if getattr(table, name) is not None), "generator"),
    )
    try:
        if table.trace is not None:
            path = find_trace(beside(draft.folder, table.trace) or table.trace)
            if not report.is_clean(("workload", "nodes")):
                return None
            columns = _columns(draft, path)
            workload, conversion = load_workload(path, nodes=table.nodes, columns=columns, cancelled=table.cancelled)
            remarks.extend(conversion.lines())
            return workload
        if table.traces is not None:
            return _load_traces(draft, table.traces, remarks)
        return None if table.generator is None else _generated(draft, table.generator)
    except OptionError as error:
        is_field = error.option in type(table).__struct_fields__
        report.add(("workload", error.option) if is_field else key_path, error.problem if is_field else str(error))
    except GridweaveError as error:
        report.add(key_path, str(error))
    return None


def _columns(draft: Draft, path: Path) -> tuple[str, ...]:
    """Return the optional columns of a trace that the scenario needs; a column takes 8 MB per million jobs.

    Disciplines with their own options may use any column, such as a job's class or user.
    """
    table = draft.scenario.workload
    by_class = is_from_file(table.run_times) or column_of(table.priorities) is not None
    if (
        table.needs
        or table.chunks is not None
        or by_class
        or any(entry.table is not None for entry in _entries(draft.scenario))
    ):
        return columns_of(path)
    return ("partition",) if table.home == "partition" else ()


def _entries(scenario: Scenario) -> list[Entry]:
    """Return the registry entries of all sites' disciplines, leaving out unknown disciplines."""
    return [DISCIPLINES[site.discipline] for site in sites_of(scenario) if site.discipline in DISCIPLINES]


def _load_traces(draft: Draft, traces: dict[str, str], remarks: list[str]) -> Workload | None:
    """Load the trace of each site's own users, and merge the traces."""
    site_workloads = []
    for number, site in enumerate(sites_of(draft.scenario)):
        name = traces.get(site.name)
        if name is None or not draft.report.is_clean(("sites", number)):
            continue
        path = find_trace(beside(draft.folder, name) or name)
        columns, cancelled = _columns(draft, path), draft.scenario.workload.cancelled
        machine = _machine(site, draft.scenario.workload)
        jobs, conversion = load_workload(path, nodes=machine, columns=columns, cancelled=cancelled)
        remarks.extend(conversion.lines())
        with reporting(draft.report, ("workload", "chunks", site.name)):
            jobs = _with_chunks_of_site(draft, site.name, jobs)
        site_workloads.append((number, jobs))
    if not site_workloads:
        return None
    if len(site_workloads) > 1 and not overlap([jobs for _, jobs in site_workloads]):
        remarks.append("the traces have no common period, or no start dates: each begins at time 0")
    return of_sites(site_workloads, draft.scenario.header.name or "traces")


def _machine(site: Site, table: WorkloadTable) -> int:
    """Return the largest width of a job in a site's trace: the site's nodes, or its cores if jobs ask for chunks."""
    if table.chunks is None or not counts_resources(site):
        return site.node_count
    return sum(kind.count * kind.cores for kind in node_kinds(site.kinds))


def _with_chunks_of_site(draft: Draft, site: str, jobs: Workload) -> Workload:
    """Set the chunks of the jobs in a site's trace, if the scenario has chunks for each trace."""
    chunks = draft.scenario.workload.chunks
    if not isinstance(chunks, dict) or site not in chunks:
        return jobs
    return with_chunks_from(jobs, beside(draft.folder, chunks[site]) or chunks[site])


def _transformed(draft: Draft, workload: Workload, nodes: IntArray) -> Workload | None:
    """Apply all transformations; assign homes before the first split, or at the end if there is no split."""
    scenario, report = draft.scenario, draft.report
    has_homes = False
    for number, step in enumerate(scenario.workload.transform):
        if step.split is not None and not has_homes:
            with_homes = _with_homes(draft, workload, len(nodes))
            if with_homes is None:
                return None
            workload, has_homes = with_homes, True
        key_path = ("workload", "transform", number, step.named[0])
        with reporting(report, key_path):
            workload = _step(workload, step, nodes)
        if not report.is_clean(key_path):
            return None
    return workload if has_homes else _with_homes(draft, workload, len(nodes))


def _sharing_remarks(scenario: Scenario) -> list[str]:
    """Return remarks on settings for shared nodes that have no effect."""
    shares = any(site.shares_nodes for site in sites_of(scenario))
    asks = any(entry.traits.uses_resources for entry in _entries(scenario))
    has_resources = scenario.workload.resources is not None
    if asks and not has_resources:
        return ["the needs of jobs are unknown (workload.resources), so no jobs share nodes"]
    if has_resources and not asks:
        names = ", ".join(entry.name for entry in DISCIPLINES.values() if entry.traits.uses_resources)
        return [f"no site shares its nodes (discipline {names}): workload.resources has no effect"]
    if shares and scenario.grid.control == "full" and scenario.grid.mode != "local":
        return ["under full control the grid requests whole nodes: only jobs of a site's own users share nodes"]
    return []


def _with_traffic(draft: Draft, workload: Workload) -> Workload:
    """Add the jobs' communication and data to the workload, if the scenario sets them and the settings are valid."""
    scenario, report = draft.scenario, draft.report
    communication, data = scenario.workload.communication, scenario.workload.data
    if communication is not None and report.is_clean(("workload", "communication")):
        rng = rng_of(scenario, STREAM_COMMUNICATION)
        workload = with_communication(workload, **msgspec.structs.asdict(communication), rng=rng)
    if data is not None and report.is_clean(("workload", "data")):
        names = [site.name for site in sites_of(scenario)]
        rng = rng_of(scenario, STREAM_DATA)
        workload = with_data(workload, home=home_of(workload), sites=names, **msgspec.structs.asdict(data), rng=rng)
    return workload


def _with_homes(draft: Draft, workload: Workload, sites: int) -> Workload | None:
    scenario, report = draft.scenario, draft.report
    if not report.is_clean(("workload", "home"), ("sites",)) and isinstance(scenario.workload.home, dict):
        return None
    if scenario.workload.traces is not None:
        return workload  # every job is at home at its trace's site
    names = [site.name for site in sites_of(scenario)]
    try:
        return assign_homes(workload, scenario.workload.home, names, rng_of(scenario, STREAM_HOMES))
    except InputError as error:
        report.add(("workload", "home"), str(error))
        return None


def _step(workload: Workload, step: Transformation, nodes: IntArray) -> Workload:
    """Apply one transformation."""
    if step.cut is not None:
        return transform.cut(workload, first=step.cut.first, last=step.cut.last)
    if step.shrink is not None:
        return transform.shrink(workload, step.shrink)
    if step.stretch is not None:
        return transform.stretch(workload, step.stretch)
    if step.split == "site":
        return transform.split(workload, nodes[home_of(workload)])
    assert step.split is not None
    return transform.split(workload, int(nodes.max()) if isinstance(step.split, str) else step.split)


def _report_wide(
    workload: Workload, fits: BoolArray, why: str, drop: bool, report: FileReport, remarks: list[str]
) -> bool:
    """Report the jobs that can never run, as a problem or as a remark; return whether to run the remaining jobs."""
    count = int(np.count_nonzero(~fits))
    jobs = "1 job can never run" if count == 1 else f"{count} jobs can never run"
    reason = f"{jobs}; the widest, job {workload.job_id[_widest(workload, ~fits)]}: {why}"
    if not drop:
        report.add(("workload",), f"{reason}; split them (transform), or leave them out (drop_wide = true)")
        return False
    remarks.append(f"{reason}; left out because of drop_wide")
    if not fits.any():
        report.add(("workload",), f"no job is left; {reason}")
    return bool(fits.any())


def _fits(workload: Workload, to_grid: BoolArray, sites: list[Site], policy: GridPolicy) -> tuple[BoolArray, str]:
    """Return a mask of the jobs that can run, at home or on the grid, and why the widest excluded job cannot run."""
    home, width = home_of(workload), workload.width
    chunk = np.asarray(workload.columns.get("chunk", np.full(len(workload), NO_CHUNK)), np.int64)
    cases, of_job = np.unique(np.stack((chunk, width, np.where(to_grid, -1, home))), axis=1, return_inverse=True)
    chunks = (*workload.chunks, msgspec.UNSET)  # -1: whole nodes
    reasons = [
        _why_never(policy, sites, wide, chunks[number])
        if site < 0
        else _why_never_home(sites[site], wide, chunks[number], policy)
        for number, wide, site in cases.T.tolist()
    ]
    fits = np.array([reason is None for reason in reasons], np.bool_)[of_job]
    if fits.all():
        return fits, ""
    return fits, reasons[of_job[_widest(workload, ~fits)]] or ""


def _why_never_home(site: Site, width: int, chunk: Chunk | msgspec.UnsetType, policy: GridPolicy) -> str | None:
    """Return why a job can never run at its home site, or None."""
    whose = "in mode local" if policy.mode == "local" else "submitted to its own site,"
    kinds = node_kinds(site.kinds) if counts_resources(site) else ()
    if kinds and (reason := why_never_on(kinds, width, chunk)) is not None:
        return f"{whose} at {site.name} {reason}"
    if not kinds and (reason := why_whole_only(chunk)) is not None:
        return f"{whose} at {site.name} {reason}"
    if not kinds and width > site.node_count:
        return f"{whose} it needs {width} nodes and its site has {site.node_count}"
    return None


def _why_never(policy: GridPolicy, sites: list[Site], width: int, chunk: Chunk | msgspec.UnsetType) -> str | None:
    """Return why a job can never be placed on the nodes granted to the grid, or None."""
    for_grid = np.array([_most(site, chunk) for site in sites], np.int64)
    takes_parts = np.array([DISCIPLINES[site.discipline].traits.takes_parts for site in sites], np.bool_)
    why = policy.why_never(for_grid, width)
    if why is not None or width <= for_grid.max() or takes_parts.all():
        return why
    why = policy.why_never(np.where(takes_parts, for_grid, 0), width)
    return why and f"{why} (sites that share nodes in time or in fractions accept no fragments and do not count)"


def _most(site: Site, chunk: Chunk | msgspec.UnsetType) -> int:
    """Return how many chunks, or whole nodes, of a site the grid can use for one job."""
    if not chunk:
        return owner_policy(site).nodes_for_grid(site.node_count)
    if counts_resources(site):
        return most_chunks(node_kinds(site.kinds), chunk)
    return site.node_count if why_whole_only(chunk) is None else 0


def _widest(workload: Workload, among: BoolArray) -> int:
    """Return the row of the widest selected job."""
    return int(np.flatnonzero(among)[np.argmax(workload.width[among])])
