"""Convert the tables of sites and grids to policies, and check the rules that types cannot express."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from gridweave.errors import InputError, OptionError, not_known
from gridweave.grid.config.tables import (
    FOUND,
    FRAGMENT_TABLES,
    SITES_OF_SPLITS,
    KindTable,
    LiveGridTable,
    PolicyTable,
    Site,
    TuningTable,
    legible_kinds,
)
from gridweave.grid.config.toml import FileReport
from gridweave.grid.control.links import check_max_split_factor
from gridweave.grid.policy import LIMITED_FRAGMENTS, GridPolicy, GridTuning
from gridweave.grid.sends import UsualCommunication
from gridweave.netmodel.communication import Communication, parse_communication
from gridweave.netmodel.tables import KeyPath, NetTable
from gridweave.site.disciplines.dictionary import DISCIPLINES, read_policy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.job import MAX_WIDTH, Resources
from gridweave.site.needs.estimates import DISK_BPS, UsualNeeds
from gridweave.site.needs.text import parse_resources
from gridweave.site.policy import PLACEMENTS
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.resources.problems import OPTION_OF, kind_problems
from gridweave.site.resources.text import parse_gpus, parse_memory
from gridweave.site.service.zones import load_zone
from gridweave.site.users.owner import OwnerPolicy
from gridweave.values import parse_bytes

WITHOUT_NET = "is {!r}, and there is no network; add the table [net], or leave this out"
GIVEN_WITHOUT_NET = "is given, but there is no network; add the table [net], or leave this out"
IDLE_NET = "has no effect under mode {}, which splits no jobs, without data to move; leave it out, or choose the mode "
IDLE_NET += "multi-site or adaptive"

T = TypeVar("T", bound=msgspec.Struct)
V = TypeVar("V")
W = TypeVar("W")


def site_policy(site: Site, grid: PolicyTable) -> Policy:
    """Return a site's own scheduling policy; order and backfilling default to the grid's."""
    usual = {"order": grid.order, "backfill": grid.backfill}
    options = site.options | {"kinds": node_kinds(site.kinds) or None, "placement": site.placement}
    return read_policy(site.discipline, site.node_count, options, usual)


def counts_resources(site: Site) -> bool:
    """Whether a site gives out cores, memory and GPUs; otherwise jobs get whole nodes, even if the site has kinds."""
    return site.kinds is not None and (
        site.discipline not in DISCIPLINES or DISCIPLINES[site.discipline].counts_resources
    )


def node_kinds(
    kinds: Sequence[object] | None, place: KeyPath = (), report: FileReport | None = None
) -> tuple[NodeKind, ...]:
    """Return the kinds of a site's nodes that could be read; empty if the site gives only a number of nodes.

    If there is a report, add each invalid text to it and omit the value; otherwise, raise OptionError.
    """
    return tuple(_node_kind(kind, (*place, number), report) for number, kind in legible_kinds(kinds))


def _node_kind(kind: KindTable, place: KeyPath, report: FileReport | None) -> NodeKind:
    memory_mb = None
    if kind.memory is not None:
        memory_mb = _or_noted(None, (*place, "memory"), report, parse_memory, kind.memory)
    gpus, gpu_type = _or_noted((0, ""), (*place, "gpus"), report, parse_gpus, kind.gpus)
    return NodeKind(
        name=kind.name,
        count=kind.count,
        cores=kind.cores,
        memory_mb=memory_mb,
        gpus=gpus,
        gpu_type=gpu_type,
        others=tuple(sorted(kind.gres.items())),
        labels=tuple(sorted({*kind.labels})),
        speed=kind.speed,
    )


def owner_policy(site: Site) -> OwnerPolicy:
    """Return the limits that a site's owner sets for the grid's jobs."""
    return OwnerPolicy(grid_share=site.grid_share, own_users_first=site.own_users_first)


def grid_policy(table: PolicyTable, report: FileReport | None = None) -> GridPolicy:
    """Return the policy of a grid.

    With a report, add each invalid value to the report and use the default; without a report, raise OptionError.
    """
    values: dict[str, Any] = {name: getattr(table, name) for name in GridPolicy.__struct_fields__}
    rows = table.max_fragments
    if isinstance(rows, str):
        rows = list(LIMITED_FRAGMENTS) if rows == "limited" else []
    values["max_fragments"] = tuple(rows)
    if isinstance(table.overhead, list):
        values["overhead"] = tuple(table.overhead)
    values["tuning"] = None if table.tuning is None else _tuning(table.tuning, report)
    return _made(GridPolicy, values, ("grid",), report)


def _tuning(table: TuningTable, report: FileReport | None) -> GridTuning:
    """Return the tuning of the queue's order; handle invalid values as in `grid_policy`."""
    values = {name: getattr(table, name) for name in GridTuning.__struct_fields__}
    names = table.policies.split("+") if isinstance(table.policies, str) else table.policies
    values["policies"] = tuple(names)
    try:
        return GridTuning(**values)
    except OptionError as error:
        if report is None:
            raise
        report.add(("grid", "tuning", error.option), error.problem)
        return GridTuning()


def checked(kind: type[T], table: msgspec.Struct, place: tuple[str, ...], report: FileReport | None = None) -> T:
    """Convert a table to a struct that validates its values; handle invalid values as in `grid_policy`."""
    return _made(kind, {name: getattr(table, name) for name in kind.__struct_fields__}, place, report)


def _made(kind: type[T], values: dict[str, Any], place: tuple[str, ...], report: FileReport | None) -> T:
    """Return a struct with these values; with a report, invalid values are reported and replaced by defaults."""
    kept = dict(values)
    while True:
        try:
            return kind(**kept)
        except OptionError as error:
            if report is None:
                raise
            report.add((*place, error.option), error.problem)
            if kept.pop(error.option, None) is None:
                return kind()


def check_sites(sites: Sequence[object], report: FileReport) -> None:
    """Check the array ``[[sites]]``; an element is UNSET if the site could not be read."""
    if not sites and not report.stands_at(("sites",)):
        report.add(("sites",), "is empty; a grid has at least one site")
    seen: set[str] = set()
    read = [(number, site) for number, site in enumerate(sites) if isinstance(site, Site)]
    for number, site in read:
        if site.name in seen:
            report.add(
                ("sites", number, "name"),
                f"{site.name!r} is also the name of another site; each needs its own",
            )
        seen.add(site.name)
        check_site(site, ("sites", number), report)
    if sum(site.node_count for _, site in read) > MAX_WIDTH:
        report.add(("sites",), f"have more than {MAX_WIDTH} nodes together")


def check_live_only(sites: Sequence[object], control: str | None, report: FileReport) -> None:
    """Check that each site's discipline works in this grid: simulated, or live with this level of control.

    Parameters
    ----------
    control : str, optional
        The level of control of a live grid; None for a simulated grid.
    """
    for number, site in enumerate(sites):
        if control is None and isinstance(site, Site) and site.kinds == FOUND:
            report.add(("sites", number, "kinds"), f"is {FOUND!r}, which works only on live sites; list the kinds")
        if not isinstance(site, Site) or site.discipline not in DISCIPLINES or control in ("limited", "none"):
            continue
        entry = DISCIPLINES[site.discipline]
        key = ("sites", number, "discipline")
        if entry.lender is None or not report.is_clean(key):
            continue
        if control is not None and entry.lender.discipline_inside(site.options.get(entry.table_key)) != entry.name:
            continue  # the site itself decides when a job starts
        why = f"is {entry.name!r}, where {entry.about}"
        right = "it works only on live sites" if control is None else "give control = 'limited' or 'none' in [grid]"
        report.add(key, f"{why}; {right}")


def _check_zone(timezone: str | None, place: KeyPath, report: FileReport) -> None:
    try:
        load_zone(timezone)
    except InputError:
        report.add(place, f"{timezone!r} is not known; give an IANA name like Europe/Stockholm")


def check_site(site: Site, place: KeyPath, report: FileReport) -> None:
    """Check one site; `place` is the path of its table."""
    _check_zone(site.timezone, (*place, "timezone"), report)
    try:
        OwnerPolicy(grid_share=site.grid_share)
    except OptionError as error:
        report.add((*place, "grid_share"), error.problem)
    check_kinds(site, place, report)
    # Check the order and the other options separately: an invalid value hides all later ones.
    plain = Site(name=site.name, nodes=max(site.node_count, 1))
    discipline = site.discipline if site.discipline in DISCIPLINES else plain.discipline
    entry = DISCIPLINES[discipline]
    rest = {name: value for name, value in site.options.items() if name != "order"}
    own = {name: value for name, value in rest.items() if name == entry.table_key}
    order = [] if site.order is None else [{"discipline": discipline, "order": site.order, **own}]
    nodes: dict[str, Any] = {}
    if site.kinds not in (None, FOUND) and report.is_clean((*place, "kinds"), (*place, "placement")):
        nodes = {"nodes": None, "kinds": site.kinds, "placement": site.placement}
    # Whole nodes stand in for kinds that are not known yet, but a discipline of machines that differ has no such nodes.
    lacks = site.kinds is not None and not nodes and entry.reads_kinds and not entry.counts_resources
    for changed in (*order, *([] if lacks else [{"discipline": site.discipline, **rest, **nodes}])):
        try:
            site_policy(msgspec.structs.replace(plain, **changed), PolicyTable())
        except OptionError as error:
            at = (*place, *_table_with(discipline, error.option), error.option)
            # Do not report a missing value again if the value was unreadable.
            if report.is_clean(at) and (error.option == "order" or changed not in order):
                report.add(at, error.problem)


def check_kinds(site: Site, place: KeyPath, report: FileReport) -> None:
    """Check the kinds of a site's nodes and its placement, but not whether they suit its discipline."""
    if site.placement is not None:
        if site.placement not in PLACEMENTS:
            report.add((*place, "placement"), not_known(site.placement, PLACEMENTS))
        if site.kinds is None:
            report.add((*place, "placement"), "is for a site with kinds, and this site gives out whole nodes")
    numbers = [number for number, _ in legible_kinds(site.kinds)]
    for index, field, problem in kind_problems(node_kinds(site.kinds, (*place, "kinds"), report)):
        report.add((*place, "kinds", numbers[index], OPTION_OF.get(field, field)), problem)


def _table_with(discipline: str, option: str) -> list[str]:
    """Return the key of a discipline's table, as a list, if the table has this option; otherwise an empty list."""
    entry = DISCIPLINES[discipline]
    stands = entry.table is not None and option in entry.table.__struct_fields__ and option != entry.table_key
    return [entry.table_key] if stands else []


def check_fragments(table: PolicyTable, report: FileReport) -> None:
    """Check that the fragment table exists if it is given by name."""
    rows = table.max_fragments
    if isinstance(rows, str) and rows not in FRAGMENT_TABLES:
        report.add(
            ("grid", "max_fragments"),
            f"{rows!r} is not known; give {' or '.join(FRAGMENT_TABLES)}, or pairs of (width up to, fragments)",
        )


def check_links(sites: Sequence[object], grid: PolicyTable, net: NetTable | None, report: FileReport) -> None:
    """Check the options that depend on whether there is a network; `read_network` reads the links themselves."""
    if grid.split not in SITES_OF_SPLITS:
        report.add(("grid", "split"), not_known(grid.split, SITES_OF_SPLITS))
    try:
        check_max_split_factor(grid.max_split_factor)
    except OptionError as error:
        report.add(("grid", error.option), error.problem)
    if not report.is_clean(("net",)):
        return
    attached = [(n, site) for n, site in enumerate(sites) if isinstance(site, Site) and site.at is not None]
    usual = PolicyTable()
    if net is None:
        if isinstance(grid, LiveGridTable) and grid.communication != LiveGridTable().communication:
            report.add(("grid", "communication"), GIVEN_WITHOUT_NET)
        for key in ("split", "exact_up_to", "max_split_factor"):
            value = getattr(grid, key)
            if value != getattr(usual, key):
                report.add(("grid", key), WITHOUT_NET.format(value))
        for number, _ in attached:
            report.add(("sites", number, "at"), GIVEN_WITHOUT_NET)
        return
    if grid.overhead != usual.overhead:
        message = "is given together with [net], which determines the overhead of splits; leave one of them out"
        report.add(("grid", "overhead"), message)
    for number, site in attached:
        if site.name in net.attach:
            report.add(("sites", number, "at"), f"is given together with net.attach.{site.name}; leave one of them out")


def usual_communication(grid: LiveGridTable, report: FileReport | None = None) -> UsualCommunication:
    """Return the communication assumed for jobs that declare none; handle invalid values as in `grid_policy`."""
    table, place = grid.communication, ("grid", "communication")
    if isinstance(table, str):
        return UsualCommunication(default=_communication(table, place, report))
    return UsualCommunication(
        default=_communication(table.default, (*place, "default"), report),
        by_class={
            name: _communication(text, (*place, "by_class", name), report) for name, text in table.by_class.items()
        },
        by_user={name: _communication(text, (*place, "by_user", name), report) for name, text in table.by_user.items()},
    )


def usual_needs(grid: LiveGridTable, report: FileReport | None = None) -> UsualNeeds:
    """Return the needs per node assumed for jobs that declare none; handle invalid values as in `grid_policy`."""
    table, place = grid.resources, ("grid", "resources")
    if isinstance(table, str):
        return UsualNeeds(default=_needs(table, place, report))
    by_class = {name: _needs(text, (*place, "by_class", name), report) for name, text in table.by_class.items()}
    by_user = {name: _needs(text, (*place, "by_user", name), report) for name, text in table.by_user.items()}
    return UsualNeeds(
        default=_needs(table.default, (*place, "default"), report),
        by_class={name: needs for name, needs in by_class.items() if needs is not None},
        by_user={name: needs for name, needs in by_user.items() if needs is not None},
        disk_bps=_or_noted(DISK_BPS, (*place, "disk"), report, parse_bytes, table.disk, per_second=True),
    )


def _needs(text: str, place: tuple[str, ...], report: FileReport | None) -> Resources | None:
    return _or_noted(None, place, report, parse_resources, text) if text else None


def _or_noted(
    otherwise: W, place: KeyPath, report: FileReport | None, read: Callable[..., V], text: str | int, **more: Any
) -> V | W:
    """Parse a text from the file; if the text is invalid, report the problem and return `otherwise`.

    Raise OptionError if there is no report.
    """
    try:
        return read(".".join(str(key) for key in place), text, **more)
    except OptionError as error:
        if report is None:
            raise
        report.add(place, error.problem)
        return otherwise


def _communication(text: str, place: tuple[str, ...], report: FileReport | None) -> Communication:
    return _or_noted(Communication(), place, report, parse_communication, text)


def grid_decides_all(sites: Sequence[object], grid: PolicyTable) -> bool:
    """Whether the grid alone decides which jobs start on which nodes of all sites."""
    return grid.control == "full" and all(
        site.grid_share == 1 and not site.own_users_first and not site.varies_rates
        for site in sites
        if isinstance(site, Site)
    )
