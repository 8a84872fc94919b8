"""Read scenario files, apply ``--set``, convert the files to typed structs, and check everything but the workload.

The module also provides the scenarios and machine configurations that ship with gridweave, and reads networks from
other files in the same way as a simulation does.
"""

from __future__ import annotations

import contextlib
import copy
import importlib.resources
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gridweave.errors import InputError, OptionError, not_known
from gridweave.grid.config.checks import (
    IDLE_NET,
    WITHOUT_NET,
    check_fragments,
    check_links,
    check_live_only,
    check_sites,
    checked,
    counts_resources,
    grid_decides_all,
    grid_policy,
)
from gridweave.grid.config.networks import TOML, ReadNetwork, find_topology, read_network, text_of, with_source_of
from gridweave.grid.config.tables import Site
from gridweave.grid.config.toml import FileReport, convert_whole, parse_toml, text_of_file
from gridweave.netmodel.reading import build_topology, parse_network, raw_net, read_table
from gridweave.netmodel.tables import CONTENTIONS, KeyPath, NetTable, Problems
from gridweave.netmodel.topology import Topology
from gridweave.scenarios.results.metrics import Metrics
from gridweave.scenarios.scenario.tables import (
    DATA,
    FAULTS,
    HOMES,
    NET_KEYS,
    SPLITS,
    ChunkTable,
    DataTable,
    FaultsTable,
    FaultTable,
    GridTable,
    LiveTable,
    NetworkTable,
    Scenario,
    Transformation,
    WorkloadTable,
)
from gridweave.scenarios.traces.chunk_files import BY_PROCESSOR
from gridweave.scenarios.workload.chunks import ChunkRanges
from gridweave.scenarios.workload.columns import AT_HOME, check_bytes, check_fraction, check_pattern, check_site
from gridweave.scenarios.workload.estimates import with_estimates
from gridweave.scenarios.workload.priorities import with_priorities
from gridweave.scenarios.workload.run_times import is_from_file, with_run_times
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, LiveTimes, Network
from gridweave.site.resources.text import parse_memory

_MACHINES_FILE = "machines.toml"
_SUFFIX = ".toml"


class Machines(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine configuration.

    Attributes
    ----------
    description : str
    groups : list of (int, int)
        Groups of equal sites: number of sites, and number of nodes of each site.
    """

    description: str
    groups: list[tuple[int, int]]

    def sites(self) -> list[Site]:
        """Return the sites; ``n64-1`` is the first site with 64 nodes."""
        return [
            Site(name=f"n{nodes}-{number}", nodes=nodes)
            for sites, nodes in self.groups
            for number in range(1, sites + 1)
        ]

    def __str__(self) -> str:
        return " + ".join(f"{sites} x {nodes}" for sites, nodes in self.groups)


def scenario_names() -> list[str]:
    """Return the names of the scenarios that ship with gridweave, in alphabetical order."""
    names = [entry.name for entry in _folder().iterdir()]
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and name != _MACHINES_FILE)


def scenario_text(name: str) -> str:
    """Return the text of a shipped scenario.

    Parameters
    ----------
    name : str
        One of `scenario_names`.

    Raises
    ------
    InputError
        If there is no such scenario.
    """
    if name not in scenario_names():
        raise InputError(f"{name}: there is no such scenario in the catalogue; it has {', '.join(scenario_names())}")
    return (_folder() / f"{name}{_SUFFIX}").read_text(encoding="utf-8")


def machine_configurations() -> dict[str, Machines]:
    """Return the machine configurations by name (Streit, Table 7.1).

    Examples
    --------
    >>> [site.name for site in machine_configurations()["m128"].sites()]
    ['n128-1', 'n128-2', 'n128-3', 'n128-4']
    """
    return msgspec.toml.decode((_folder() / _MACHINES_FILE).read_bytes(), type=dict[str, Machines])


def _folder() -> Traversable:
    return importlib.resources.files("gridweave.scenarios") / "catalogue"


IDLE = "the network is left out: mode {} splits no jobs and moves no data"


def contention_of(scenario: Scenario) -> str:
    """Return how jobs on the same links slow each other down, from ``[grid]`` or, if not set there, from ``[net]``."""
    if scenario.grid.contention is not None:
        return scenario.grid.contention
    return "none" if scenario.net is None else scenario.net.contention


def _without_idle_network(scenario: Scenario, report: FileReport) -> Scenario:
    """Drop a network that is unused because the mode was overridden, so that one file can be run in all modes."""
    if scenario.net is None or ("grid", "mode") not in report.typed or not _is_idle(scenario):
        return scenario
    if not report.is_clean(("net",), ("workload", "communication"), ("workload", "data")):
        return scenario
    default = GridTable()
    grid = msgspec.structs.replace(scenario.grid, **{key: getattr(default, key) for key in NET_KEYS})
    sites = [msgspec.structs.replace(site, at=None) if isinstance(site, Site) else site for site in scenario.sites]
    workload = msgspec.structs.replace(scenario.workload, communication=None, data=None)
    return msgspec.structs.replace(scenario, net=None, grid=grid, sites=sites, workload=workload)


def _check_network(scenario: Scenario, report: FileReport) -> None:
    """Check the network, except for its links, and whether the rest of the scenario is consistent with the network."""
    grid = scenario.grid
    for key, allowed in (("contention", CONTENTIONS), ("data", DATA)):
        value = getattr(grid, key)
        if value is not None and value not in allowed:
            report.add(("grid", key), not_known(value, allowed))
    check_links(scenario.sites, grid, scenario.net, report)
    _check_communication(scenario, report)
    _check_data(scenario, report)
    if not report.is_clean(("net",)):
        return
    if scenario.net is None:
        for path, text in _keys_that_need_net(scenario):
            report.add(path, text)
        return
    for path, text in _net_conflicts(scenario):
        report.add(path, text)


def _is_idle(scenario: Scenario) -> bool:
    """Whether no jobs, data or messages would use the network."""
    grid = scenario.grid
    if grid.mode == "local":
        data = scenario.workload.data or DataTable()
        return grid.data == "none" or (data.input_site == AT_HOME and data.output_site == AT_HOME)
    return grid.mode == "sharing" and grid.data == "none" and not _has_messages(scenario)


def _keys_that_need_net(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys that are set although they require a network, each with the problem."""
    for key in ("contention", "data", "at"):
        value = getattr(scenario.grid, key)
        if value not in (None, "none"):
            yield ("grid", key), WITHOUT_NET.format(value)
    for key in ("communication", "data"):
        if getattr(scenario.workload, key) is not None:
            yield ("workload", key), "needs a network; add the table [net], or leave this out"


def _net_conflicts(scenario: Scenario) -> Iterator[tuple[KeyPath, str]]:
    """Yield the keys that contradict the network, each with the problem."""
    grid, net = scenario.grid, scenario.net
    assert net is not None
    if grid.mode == "local" and grid.data != "none":
        yield ("grid", "data"), f"is {grid.data!r}, but mode local moves no data between sites; write 'none'"
    elif _is_idle(scenario):
        yield ("net",), IDLE_NET.format(grid.mode)
    if grid.mode == "local" and grid.at is not None:
        yield ("grid", "at"), f"is {grid.at!r}, but mode local has no grid; leave it out"
    if grid.contention is not None and net.contention not in ("none", grid.contention):
        yield (
            ("grid", "contention"),
            f"is {grid.contention!r}, but net.contention is {net.contention!r}; leave out one of them",
        )
    if grid.data in ("blocking", "prefetch") and grid.backfill == "conservative":
        yield (
            ("grid", "data"),
            f"is {grid.data!r}, which does not support reserved starts; set backfill to 'easy' or 'none'",
        )
    if grid.data in ("blocking", "prefetch") and grid.control == "none" and grid.mode != "local":
        yield ("grid", "data"), f"is {grid.data!r}, but control 'none' ignores links; write 'none'"
    if grid.data in ("blocking", "prefetch") and scenario.workload.data is None:
        yield ("grid", "data"), f"is {grid.data!r}, but jobs have no data; add [workload.data], or write 'none'"


def _has_messages(scenario: Scenario) -> bool:
    """Whether the grid and its sites would exchange messages in a run, which then cross the network.

    This predicts `gridweave.scenarios.scenario.build.Built.needs_world` from the file alone.
    """
    if scenario.grid.mode == "local":
        return False
    tables: tuple[tuple[msgspec.Struct, msgspec.Struct], ...] = (
        (scenario.network, NetworkTable()),
        (scenario.faults, FaultsTable()),
        (scenario.live, LiveTable()),
    )
    return (
        not grid_decides_all(scenario.sites, scenario.grid)
        or scenario.grid.tuning is not None
        or scenario.grid.at is not None
        or scenario.workload.to_grid != 1
        or any(
            # The duration of faults does not matter if there are no faults.
            getattr(table, key) != getattr(default, key) and not key.endswith("_lasts_ms")
            for table, default in tables
            for key in table.__struct_fields__
        )
    )


def _check_communication(scenario: Scenario, report: FileReport) -> None:
    table = scenario.workload.communication
    if table is None:
        return
    place = ("workload", "communication")
    _report_error(report, place, partial(check_pattern, table.pattern))
    _report_error(report, place, partial(check_fraction, table.fraction))
    _report_error(report, place, partial(check_bytes, "message_bytes", table.message_bytes))


def _check_data(scenario: Scenario, report: FileReport) -> None:
    table = scenario.workload.data
    if table is None:
        return
    place, names = ("workload", "data"), _names_of_all(scenario)
    for key in ("input", "output"):
        size, site = getattr(table, f"{key}_bytes"), getattr(table, f"{key}_site")
        _report_error(report, place, partial(check_bytes, f"{key}_bytes", size))
        if names:
            _report_error(report, place, partial(check_site, f"{key}_site", site, names))


def chunk_ranges(table: ChunkTable, sites: Sequence[str]) -> ChunkRanges:
    """Return the ranges of an entry of ``workload.chunks``; raise OptionError if a value is invalid."""
    for name in table.homes or ():
        if sites and name not in sites:
            raise OptionError("homes", f"there is no site {name!r}; expected some of {', '.join(sites)}")
    memory = (table.memory, table.memory) if isinstance(table.memory, str) else table.memory
    return ChunkRanges(
        share=table.share,
        cores=(table.cores, table.cores) if isinstance(table.cores, int) else table.cores,
        memory_mb=(0, 0) if memory is None else (parse_memory("memory", memory[0]), parse_memory("memory", memory[1])),
        gpus=(table.gpus, table.gpus) if isinstance(table.gpus, int) else table.gpus,
        gpu_type=table.gpu_type,
        max_chunks=table.max_chunks,
        homes=None if table.homes is None or not sites else frozenset(map(sites.index, table.homes)),
    )


def _check_chunks(scenario: Scenario, report: FileReport) -> None:
    """Report invalid entries of ``workload.chunks``, and any chunks if no site counts resources."""
    chunks, place = scenario.workload.chunks, ("workload", "chunks")
    if chunks is None:
        return
    if not any(map(counts_resources, sites_of(scenario))):
        report.add(place, "needs a site with kinds of nodes; every site gives out whole nodes")
    if isinstance(chunks, dict):
        _check_chunks_of_sites(scenario, chunks, report)
        return
    if isinstance(chunks, str):
        if scenario.workload.traces is not None and chunks != BY_PROCESSOR:
            report.add(place, 'is one file for several traces; give one for each, such as { alpha = "alpha.csv" }')
        return
    entries: list[object] = list(chunks)
    for number, table in enumerate(entries):
        if isinstance(table, ChunkTable):
            _report_error(report, (*place, number), partial(chunk_ranges, table, _names_of_all(scenario)))


def _check_chunks_of_sites(scenario: Scenario, chunks: dict[str, str], report: FileReport) -> None:
    """Report chunks given by site if the workload has no traces, or no trace of that site."""
    traces = scenario.workload.traces
    if traces is None:
        report.add(("workload", "chunks"), "names sites, which requires traces; give a file, a list, or 'cores'")
        return
    for name in chunks:
        if name not in traces:
            report.add(
                ("workload", "chunks", name), f"there is no trace of {name!r}; expected some of {', '.join(traces)}"
            )


def _report_error(report: FileReport, place: KeyPath, check: Callable[[], object]) -> None:
    """Run a check, and report its OptionError under this key path."""
    try:
        check()
    except OptionError as error:
        report.add((*place, error.option), error.problem)


@contextlib.contextmanager
def reporting(report: FileReport, place: KeyPath) -> Iterator[None]:
    """Report an InputError of the ``with`` block under this key path, and continue after the block."""
    try:
        yield
    except InputError as error:
        report.add(place, error.problem if isinstance(error, OptionError) else str(error))


def _check_scenario(scenario: Scenario, report: FileReport) -> None:
    """Check a scenario except for its workload; sites and transformations that could not be read are UNSET."""
    check_sites(scenario.sites, report)
    check_live_only(scenario.sites, None, report)
    _check_source(scenario.workload, report)
    _check_workload(scenario.workload, report)
    _check_home(scenario, report)
    _check_faults(scenario, report)
    _check_chunks(scenario, report)
    check_fragments(scenario.grid, report)
    grid_policy(scenario.grid, report)
    checked(Network, scenario.network, ("network",), report)
    checked(Faults, scenario.faults, ("faults",), report)
    checked(LiveTimes, scenario.live, ("live",), report)
    _check_network(scenario, report)
    if not 0 <= scenario.workload.to_grid <= 1:
        report.add(("workload", "to_grid"), f"is {scenario.workload.to_grid}; expected a part of the jobs, from 0 to 1")
    for number, metric in enumerate(scenario.output.metrics):
        if metric not in Metrics.__struct_fields__:
            report.add(("output", "metrics", number), f"{metric!r} is not a metric; docs/metrics.md lists them")


def sites_of(scenario: Scenario) -> list[Site]:
    """Return the sites that could be read."""
    return [site for site in scenario.sites if isinstance(site, Site)]


def _names_of_all(scenario: Scenario) -> list[str]:
    """Return the names of all sites, or an empty list if a site could not be read."""
    names = [site.name for site in sites_of(scenario)]
    return list(dict.fromkeys(names)) if len(names) == len(scenario.sites) else []


def _check_source(table: WorkloadTable, report: FileReport) -> None:
    at = ("workload",)
    if report.stands_at(at) or not report.is_clean((*at, "trace"), (*at, "traces"), (*at, "generator")):
        return
    sources = [name for name in ("trace", "traces", "generator") if getattr(table, name) is not None]
    if not sources:
        report.add(at, "has no source; give trace, traces or generator")
    elif len(sources) > 1:
        report.add((*at, sources[-1]), f"is set together with {sources[0]}; give only one of them")
    elif table.generator is not None:
        if table.cancelled:
            report.add((*at, "cancelled"), "requires a trace; generators make no cancelled jobs")
        if table.jobs is None and report.is_clean((*at, "jobs")):
            report.add((*at, "jobs"), "is missing; give the number of jobs to generate")
    else:
        for name in ("jobs", "load"):
            if getattr(table, name) is not None:
                report.add((*at, name), "requires a generator; cut, shrink or stretch the trace instead")
        if table.traces is not None and table.home != WorkloadTable().home:
            report.add((*at, "home"), "follows from traces; leave it out")
        if table.traces is not None and table.nodes is not None:
            report.add((*at, "nodes"), "is the size of each site with traces; leave it out")


def _check_workload(table: WorkloadTable, report: FileReport) -> None:
    none = np.zeros(0, np.int64)
    for key, model, apply in (
        ("run_times", table.run_times, with_run_times),
        ("estimates", table.estimates, with_estimates),
        ("priorities", table.priorities, with_priorities),
    ):
        if is_from_file(model):
            continue  # checked when the workload is built
        with reporting(report, ("workload", key)):
            apply(Workload(none, none, none, none, none), model, np.random.default_rng(0))
    steps: list[object] = list(table.transform)
    for number, step in enumerate(steps):
        if not isinstance(step, Transformation):
            continue
        place = ("workload", "transform", number)
        if len(step.named) != 1 and report.is_clean(place):
            wrong = f"has {' and '.join(step.named)}" if step.named else "is empty"
            report.add(place, f"{wrong}; a transformation is one of cut, shrink, stretch and split")
        if isinstance(step.split, str) and step.split not in SPLITS:
            report.add(
                (*place, "split"), f"{step.split!r} is not a width; give a number of nodes, {' or '.join(SPLITS)}"
            )


def _check_faults(scenario: Scenario, report: FileReport) -> None:
    """Report planned faults that are invalid, at unknown sites, or overlapping."""
    names, ends_ms = _names_of_all(scenario), dict[tuple[str, str], int]()
    planned: list[object] = list(scenario.faults.planned)  # entries that could not be read are UNSET
    read = [(number, fault) for number, fault in enumerate(planned) if isinstance(fault, FaultTable)]
    for number, fault in sorted(read, key=lambda item: item[1].at_ms):
        place, kind = ("faults", "planned", number), (fault.site, fault.action)
        if names and fault.site not in names:
            report.add((*place, "site"), f"there is no site {fault.site!r}; expected one of {', '.join(names)}")
        if fault.action not in FAULTS:
            report.add((*place, "action"), not_known(fault.action, FAULTS))
        elif fault.at_ms <= ends_ms.get(kind, -1):
            remedy = "let one end before the other begins"
            report.add((*place, "at_ms"), f"overlaps another {fault.action} at {fault.site}; {remedy}")
        ends_ms[kind] = max(ends_ms.get(kind, -1), fault.at_ms + fault.lasts_ms)


def _check_home(scenario: Scenario, report: FileReport) -> None:
    home, place, names = scenario.workload.home, ("workload", "home"), _names_of_all(scenario)
    for name in scenario.workload.traces or ():
        if names and name not in names:
            report.add(("workload", "traces", name), f"there is no site {name!r}; expected one of {', '.join(names)}")
    if isinstance(home, str):
        if home not in HOMES:
            report.add(place, f"{home!r} is not known; give {' or '.join(HOMES)}, or shares such as {{alpha = 0.6}}")
        return
    for name, share in home.items():
        if names and name not in names:
            report.add((*place, name), f"there is no site {name!r}; expected one of {', '.join(names)}")
        if not np.isfinite(share):
            report.add((*place, name), f"is {share}; expected a finite number, at least 0")
    if not sum(home.values()) > 0:
        report.add(place, "gives no site a share above 0")


Overrides = Mapping[str, object] | Sequence[str]
"""Values by dotted key, or texts ``key=value``."""

# Overriding one source of a workload or network removes the other sources that the file sets.
_REPLACED = {
    "workload.trace": ("traces", "generator", "jobs", "load"),
    "workload.generator": ("trace", "traces", "cancelled"),
    "net.file": ("generator", "nodes", "links"),
    "net.generator": ("file", "nodes", "links"),
}
_REPLACED_IN_SITES = {"nodes": ("kinds", "placement"), "kinds": ("nodes",)}


def _apply_overrides(raw: dict[str, Any], overrides: Overrides, report: FileReport) -> None:
    """Apply overrides to a raw scenario in place; record which keys were typed, and report problems."""
    pairs = dict(overrides) if isinstance(overrides, Mapping) else dict(_parsed(text, report) for text in overrides)
    for key in pairs:
        table = raw.get(key.partition(".")[0])
        for name in _REPLACED.get(key, ()):
            if isinstance(table, dict):
                table.pop(name, None)
    for key, value in pairs.items():
        if key:
            _apply(raw, key, value, report)


def _parsed(text: str, report: FileReport) -> tuple[str, object]:
    """Parse a text ``key=value``; if it is invalid, report a problem and return an empty key."""
    key, separator, written = (part.strip() for part in text.partition("="))
    if not separator or not key:
        return _refused(key or text, "is not key=value, such as grid.overhead=0.3", report)
    try:
        return key, tomllib.loads(f"value = {written}\n")["value"]
    except (ValueError, RecursionError):
        pass
    if not written or written[0] in "[{\"'" or "\n" in written:
        return _refused(key, f"{written!r} is not a value; write it as in TOML, or as a bare word", report)
    return key, written


def _refused(key: str, text: str, report: FileReport) -> tuple[str, object]:
    path: KeyPath = (key,)
    report.typed[path] = key
    report.add(path, text)
    return "", None


def _apply(raw: dict[str, Any], key: str, value: object, report: FileReport) -> None:
    if key.startswith("sites.") and isinstance(raw.get("sites"), str):
        machines = machine_configurations().get(raw["sites"])
        if machines is not None:
            raw["sites"] = msgspec.to_builtins(machines.sites())
    done = _set(raw, (), key.split("."), value)
    if isinstance(done, str):
        _refused(key, done, report)
    else:
        report.typed[done] = key


def _set(place: Any, path: KeyPath, names: list[str], value: object) -> KeyPath | str:
    """Set a value in a nested table or list; return the value's path, or the reason why it cannot be set."""
    name, *rest = names
    if isinstance(place, list) and path == ("workload", "transform"):
        holders = [number for number, step in enumerate(place) if isinstance(step, dict) and name in step]
        if len(holders) > 1:
            return f"{name} occurs {len(holders)} times; set workload.transform as a whole"
        if not holders:
            holders = [len(place)]
            place.append({})
        return _set(place[holders[0]], (*path, holders[0]), names, value)
    if isinstance(place, list) and path == ("sites",):
        sites = [site.get("name") if isinstance(site, dict) else None for site in place]
        if name not in sites:
            return f"there is no site {name!r}; expected one of {', '.join(str(site) for site in sites)}"
        if not rest:
            return f"is a site; set one of its keys, such as sites.{name}.nodes"
        for other in _REPLACED_IN_SITES.get(rest[0], ()):
            place[sites.index(name)].pop(other, None)
        return _set(place[sites.index(name)], (*path, sites.index(name)), rest, value)
    if not isinstance(place, dict):
        return f"{'.'.join(str(key) for key in path)} is a value and has no keys"
    if not rest:
        place[name] = value
        return (*path, name)
    inside: Any = [] if (*path, name) == ("workload", "transform") else {}
    return _set(place.setdefault(name, inside), (*path, name), rest, value)


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario that may have problems.

    Attributes
    ----------
    scenario : Scenario
        Keys that could not be read have their default values, or ``UNSET`` if there is no default.
    report : FileReport
        The problems found so far.
    folder : pathlib.Path or None
        The folder of the file, if the scenario came from one.
    remarks : tuple of str
        Remarks for the user on tables that were dropped.
    """

    scenario: Scenario
    report: FileReport
    folder: Path | None
    remarks: tuple[str, ...] = ()


def read_scenario(source: str | Path | Scenario, overrides: Overrides = ()) -> Scenario:
    """Read a scenario and check everything but its workload.

    Parameters
    ----------
    source : str, pathlib.Path or Scenario
        A file, the name of a scenario in the catalogue, or a scenario object.
    overrides : mapping or sequence of str
        Changes: dotted keys and their values; later changes win. Sites are addressed by name (``sites.alpha.nodes``),
        transformations by their key (``workload.transform.split``); a new transformation is appended.

    Returns
    -------
    Scenario
        The scenario, with its sites as a list.

    Raises
    ------
    ScenarioError
        If the scenario is invalid; the error lists all problems.
    InputError
        If there is no such scenario.

    Examples
    --------
    >>> scenario = read_scenario("two-sites", ["grid.overhead=0.3"])
    >>> scenario.grid.overhead, [site.nodes for site in scenario.sites]
    (0.3, [256, 128])
    """
    draft = read_draft(source, overrides)
    draft.report.raise_if_any()
    return draft.scenario


def read_draft(source: str | Path | Scenario, overrides: Overrides = ()) -> Draft:
    """Read a scenario even if it has problems; `gridweave.scenarios.scenario.build` adds the workload's problems.

    For the parameters, see `read_scenario`. Raise ScenarioError if the file is not TOML, and InputError if there is no
    such scenario.
    """
    folder = None
    if isinstance(source, Scenario):
        raw: dict[str, Any] = msgspec.to_builtins(source)
        report = FileReport(f"scenario {source.header.name}".strip())
    else:
        name, text, folder = _text_of(source)
        raw, report = parse_toml(name, text)
        header = raw.setdefault("scenario", {})
        if isinstance(header, dict):
            header.setdefault("name", Path(name).stem)
    raw = copy.deepcopy(raw)
    _apply_overrides(raw, overrides, report)
    raw = _with_machines(raw, report)
    scenario = convert_whole(raw, Scenario, report, {"sites": [], "workload": {}})
    used = _without_idle_network(scenario, report)
    remarks = () if used is scenario else (IDLE.format(used.grid.mode),)
    _check_scenario(used, report)
    return Draft(used, report, folder, remarks)


def _text_of(source: str | Path) -> tuple[str, str, Path | None]:
    """Return a scenario's file name, text, and folder (None for a scenario in the catalogue)."""
    path = Path(source)
    try:
        there, exists = path.is_file(), path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"{source}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if there:
        return str(source), text_of_file(path), path.parent
    if isinstance(source, str) and source in scenario_names():
        return f"{source}.toml", scenario_text(source), None
    problem = "is not a file" if exists else "there is no such file"
    names = ", ".join(scenario_names())
    raise InputError(f"{source}: {problem}, and no scenario of that name; the catalogue has {names}")


def _with_machines(raw: dict[str, Any], report: FileReport) -> dict[str, Any]:
    """Replace the name of a machine configuration with the configuration's sites."""
    name = raw.get("sites")
    if not isinstance(name, str):
        return raw
    configurations = machine_configurations()
    if name in configurations:
        return raw | {"sites": msgspec.to_builtins(configurations[name].sites())}
    report.add(
        ("sites",),
        f"{name!r} is not a machine configuration; use one of {', '.join(configurations)}, or write [[sites]]",
    )
    return raw | {"sites": []}


def network_of(draft: Draft) -> ReadNetwork | None:
    """Read a scenario's network; add problems to the draft's report."""
    scenario = draft.scenario
    name = scenario.header.name or "net"
    return read_network(scenario.sites, scenario.net, name, draft.folder, draft.report)


def network_of_file(name: str) -> tuple[NetTable, Topology]:
    """Read a network from a file or a scenario.

    `name` is a file in GML or GraphML, or in TOML with a table ``[net]``. The file, and a file that its table names,
    are found by `gridweave.grid.config.networks.find_topology`. TOML with more tables is read as a scenario; its sites
    are at the nodes of their ``at`` keys. `name` may also be the name of a scenario in the catalogue.

    Raise ScenarioError with all problems, and InputError if there is no such file, or no network in the file.
    """
    if name in scenario_names() and not Path(name).exists():
        return _of_scenario(name)
    path = find_topology(name)
    text = text_of(path)
    if path.suffix.lower() != TOML:
        return parse_network(text, name if Path(name).suffix else str(path), str)
    raw = raw_net(text, name)
    return _of_table(raw["net"], name, path.parent) if set(raw) == {"net"} else _of_scenario(path)


def _of_scenario(source: str | Path) -> tuple[NetTable, Topology]:
    draft = read_draft(source)
    network = network_of(draft)
    draft.report.raise_if_any()
    if network is None:
        raise InputError(": ".join((str(source), *(draft.remarks or ("has no table [net]",)))))
    return network.table, network.topology


def _of_table(raw: dict[str, Any], name: str, folder: Path) -> tuple[NetTable, Topology]:
    problems = Problems(name)
    table = read_table(raw, problems)
    if table.file is not None and table.file.lower().endswith(TOML) and not (table.nodes or table.links):
        try:
            table = with_source_of(table, text_of(find_topology(table.file, folder)))
        except InputError as error:
            raise InputError(f"{name}: file: {table.file}: {str(error).removeprefix(f'{table.file}: ')}") from None
    topology = build_topology(table, name, lambda file: text_of(find_topology(file, folder)), problems)
    problems.raise_if_any()
    assert topology is not None
    return table, topology
