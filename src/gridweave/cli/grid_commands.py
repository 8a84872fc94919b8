"""Commands about the grid: sites, queue, quote, what-if, drain, resume, give-up, whoami, open."""

from __future__ import annotations

import webbrowser
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gridweave.cli.grid_client import (
    Reach,
    agreed,
    at_grid,
    clock,
    complete_sites,
    job_options,
    may,
    now_ms,
    plain,
    print_forecast,
    relative,
)
from gridweave.cli.options import named_as_typed
from gridweave.cli.output import print_json, print_table, say
from gridweave.errors import InputError, OptionError
from gridweave.grid.client.job_options import JobOptions, SubmitOptions
from gridweave.grid.client.options import FLAGS
from gridweave.site.query_messages import MOST_LISTED
from gridweave.site.resources.text import amount_of, resource_title
from gridweave.site.service.faults import fault_text
from gridweave.site.times import span_text

if TYPE_CHECKING:
    from gridweave.grid.api import (
        KnownNetwork,
        NetworkLink,
        NetworkPath,
        Outlook,
        Outlooks,
        Queue,
        SiteInfo,
        WhatIfAnswer,
    )
    from gridweave.grid.client.client import Client

SiteName = Annotated[str, typer.Argument(metavar="SITE", help="Name of the site.", autocompletion=complete_sites)]


@at_grid
def sites(
    reach: Reach,
    machines: Annotated[bool, typer.Option("--machines", "-m", help="Also show the machines of each site.")] = False,
    links: Annotated[
        bool,
        typer.Option(
            "--links", "-l", help="Show the latencies and bandwidths between sites that the grid uses in its decisions."
        ),
    ] = False,
) -> None:
    """Show the sites: their nodes, how many are free, and their jobs.

    Example: gridweave sites --machines

    Example: gridweave sites --links
    """
    if links:
        reach.show(reach.ask(lambda grid: grid.known_network()), _print_links)
        return
    reach.show(reach.ask(lambda grid: grid.sites()), lambda site_infos: _print_sites(site_infos, machines))


def _print_links(network: KnownNetwork) -> None:
    """Print the paths between sites, or the single links if the grid knows no paths."""
    ways: list[tuple[str, str, NetworkPath | NetworkLink]] = [(way.origin, way.target, way) for way in network.paths]
    ways = ways or [(link.one, link.other, link) for link in network.links]
    if not ways:
        say("the links between the sites are unknown")
        return
    rows = [
        (
            *ends,
            "-" if way.latency_ms is None else f"{way.latency_ms:.3g} ms",
            "-" if way.bandwidth_bps is None else f"{way.bandwidth_bps / 1e6:,.5g} Mbps",
            "measured" if way.measured else "as configured",
        )
        for *ends, way in ways
    ]
    print_table(rows, headings=("from", "to", "latency", "bandwidth", ""), right=(2, 3))


def _print_sites(site_infos: list[SiteInfo], machines: bool) -> None:
    rows = []
    names = counted_names(site_infos)
    for site in site_infos:
        numbers = (site.nodes, site.for_grid, site.free, site.running, site.waiting)
        rows.append((site.name, site_state(site), *(f"{number:,}" for number in numbers), *_free_amounts(site, names)))
        if machines:
            for machine in site.machines:
                state = "away" if not machine.here else "cannot start anything" if machine.problem else "here"
                rows.append((f"  {machine.name}", f"{state}, {machine.host}", f"{machine.nodes:,}"))
    titles = [f"free {resource_title(name)}" for name in names]
    headings = ("site", "", "nodes", "for the grid", "free", "running", "waiting", *titles)
    print_table(rows, headings=headings, left=2)
    for site in site_infos:
        for message in (site.problem, fault_text(site.fault)):
            if message:
                typer.echo(f"{site.name}: {message}")


def counted_names(site_infos: Iterable[SiteInfo]) -> list[str]:
    """Return the names of the resources that some of these sites count, in the order in which sites report them."""
    return list(dict.fromkeys(amount.name for site in site_infos for amount in site.amounts))


def _free_amounts(site: SiteInfo, names: Sequence[str]) -> list[str]:
    """Return how much of each resource is free at a site, and how much its nodes have."""
    amounts = {amount.name: amount for amount in site.amounts}
    return [
        f"{amount_of(name, amount.total - amount.used)} of {amount_of(name, amount.total)}"
        if (amount := amounts.get(name))
        else "-"
        for name in names
    ]


def site_state(site: SiteInfo) -> str:
    """Return the state of a site in a few words."""
    if not site.answers:
        return "does not answer"
    # One machine that can start jobs is enough for a site to work.
    stuck = bool(site.machines) and all(machine.problem for machine in site.machines)
    if site.problem:
        return "cut off from the grid"
    state = "cannot start anything" if stuck else "drains" if site.draining else "works"
    return f"{state}, without the grid" if site.uplink is not None and site.uplink.problem else state


_Limit = Annotated[
    int, typer.Option("--limit", "-l", metavar="N", min=1, max=MOST_LISTED, help="Show at most the first N.")
]


@at_grid
def queue(reach: Reach, limit: _Limit = 20) -> None:
    """Show the waiting jobs in queue order: when each is expected to start, and why not sooner.

    Example: gridweave queue --limit 100
    """
    reach.show(reach.ask(lambda grid: grid.queue(limit, explain=True)), _print_queue)


def _print_queue(queue: Queue) -> None:
    typer.echo(
        f"{queue.waiting:,} waiting, {queue.held:,} held, {queue.starting:,} starting, {queue.running:,} running"
        + (f", {queue.ending:,} ending" if queue.ending else "")
    )
    for message in (queue.problem and f"no jobs are accepted: {queue.problem}", fault_text(queue.fault)):
        if message:
            typer.echo(message)
    if not queue.jobs:
        return
    at_ms = now_ms()
    rows = [
        (
            str(place),
            str(job.job_id),
            job.user or "-",
            f"{job.nodes:,}",
            span_text(job.limit_ms),
            span_text(at_ms - job.submit_ms),
            relative(job.start_ms, at_ms),
            job.reason or "-",
        )
        for place, job in enumerate(queue.jobs, start=1)
    ]
    headings = ("place", "job", "user", "nodes", "limit", "has waited", "starts", "why not now")
    print_table(rows, headings=headings, right=(0, 1, 3, 4, 5, 6), wrap=True)
    if queue.waiting > len(queue.jobs):
        more = f"{queue.waiting - len(queue.jobs):,} more are waiting"
        limit = min(10 * len(queue.jobs), MOST_LISTED)
        say(f"{more}; see them with --limit {limit}" if limit > len(queue.jobs) else more)


@at_grid
@job_options(quoted=True)
def quote(reach: Reach, options: SubmitOptions) -> None:
    """Ask when and where a job would start, without submitting it; exit with status 2 if it can never run.

    Example: gridweave quote -n 4 -t 10m --communication nearest-neighbour
    """
    of_job: JobOptions = options
    with named_as_typed(**FLAGS):
        forecast = reach.ask(lambda grid: grid.quote(**of_job))
    reach.show(forecast, print_forecast)
    if forecast.state == "refused":
        raise typer.Exit(InputError.exit_status)


_POLICY = ("mode", "order", "backfill", "head_reservation", "selection", "overhead", "lower_bound")
"""The fields of the policy that --policy can change."""


_Drain = Annotated[
    list[str] | None,
    typer.Option("--drain", metavar="SITE", help="Drain a site: it takes no new jobs.", autocompletion=complete_sites),
]
_Nodes = Annotated[
    list[str] | None,
    typer.Option("--nodes", metavar="SITE=N", help="Give a site N nodes; a new name adds a site."),
]
_Cut = Annotated[list[str] | None, typer.Option("--cut", metavar="SITE:SITE", help="Cut the links between two sites.")]
_Policy = Annotated[
    list[str] | None,
    typer.Option("--policy", metavar="NAME=VALUE", help=f"Change the policy: {', '.join(_POLICY)}."),
]
_Hours = Annotated[
    float,
    typer.Option(
        "--hours",
        metavar="H",
        min=0.01,
        max=720,
        help="Look H hours ahead, replaying the arrivals of the last H hours.",
    ),
]
_Load = Annotated[float, typer.Option("--load", metavar="X", min=0, max=100, help="Multiply the arriving jobs by X.")]


@at_grid
def what_if(
    reach: Reach,
    drain: _Drain = None,
    nodes: _Nodes = None,
    cut: _Cut = None,
    policy: _Policy = None,
    load: _Load = 1.0,
    hours: _Hours = 24.0,
    nothing_comes: Annotated[bool, typer.Option("--nothing-comes", help="Assume that no more jobs arrive.")] = False,
) -> None:
    """Ask how long jobs would wait, and how busy nodes would be, if the grid were changed. Nothing is changed.

    The grid simulates its queue from now on, with and without the change. Only operators may ask.

    Example: gridweave what-if --drain north --load 2
    """
    from gridweave.grid.api import OtherPolicy, WhatIf

    question = WhatIf(
        nodes=dict(_sized(text) for text in nodes or []),
        drain=tuple(drain or ()),
        cut=tuple(_pair("--cut", text, ":", "SITE:SITE, e.g. north:south") for text in cut or []),
        policy=OtherPolicy(**dict(_setting(text) for text in policy or [])),
        load=load,
        hours=hours,
        again=not nothing_comes,
    )
    if question == WhatIf(hours=hours, again=not nothing_comes):
        raise OptionError("what-if", "nothing would change; give --drain, --nodes, --cut, --policy or --load")
    reach.show(reach.ask(lambda grid: grid.what_if(question)), _print_answer)


def _pair(option: str, text: str, sign: str, right: str) -> tuple[str, str]:
    first, separator, other = text.partition(sign)
    if not (first and separator and other):
        raise OptionError(option, f"{text!r:.100} is not {right}")
    return first, other


def _sized(text: str) -> tuple[str, int]:
    site, number = _pair("--nodes", text, "=", "SITE=N, e.g. north=16")
    if not (number.isascii() and number.isdigit()):
        raise OptionError("--nodes", f"{number!r:.100} is not a number of nodes, from 0 up")
    return site, int(number)


def _setting(text: str) -> tuple[str, Any]:
    name, value = _pair("--policy", text, "=", "NAME=VALUE, e.g. backfill=conservative")
    name = name.replace("-", "_")
    if name not in _POLICY:
        raise OptionError("--policy", f"there is no {name!r:.100}; {', '.join(_POLICY)}")
    try:
        if name == "overhead":
            return name, tuple(float(number) for number in value.split(","))
        return name, int(value) if name == "lower_bound" else value
    except ValueError:
        raise OptionError("--policy", f"{name} is {value!r:.100}; give a number") from None


def _print_answer(answer: WhatIfAnswer) -> None:
    for outlooks in answer.plays:
        print_table(_rows(outlooks), headings=("", "now", "then"), title=_length(outlooks))
    typer.echo(f"Certainty: {answer.sure}.")
    for assumed in answer.assumed:
        typer.echo(f"Assumed: {assumed}.")


def _length(outlooks: Outlooks) -> str:
    if outlooks.length == 1:
        return "If each job runs up to its limit"
    return f"If jobs run for {outlooks.length:.0%} of their limits, like the jobs that ended"


def _rows(outlooks: Outlooks) -> list[tuple[str, str, str]]:
    def row(label: str, text_of: Callable[[Outlook], str]) -> tuple[str, str, str]:
        return label, text_of(outlooks.now), text_of(outlooks.then)

    sites = dict.fromkeys(site.site for site in (*outlooks.now.sites, *outlooks.then.sites))
    return [
        row("jobs waiting or arriving", lambda outlook: f"{outlook.jobs:,}"),
        row("start", lambda outlook: f"{outlook.started:,}"),
        row("could never start", lambda outlook: f"{outlook.never:,}"),
        row("mean wait", lambda outlook: span_text(outlook.wait_ms)),
        row("longest wait", lambda outlook: span_text(outlook.longest_ms)),
        row("nodes used", lambda outlook: f"{outlook.used:.1%}"),
        *((f"  {site}", _use(outlooks.now, site), _use(outlooks.then, site)) for site in sites),
    ]


def _use(outlook: Outlook, site: str) -> str:
    return next(
        (
            f"{site_outlook.used:.1%} of {site_outlook.nodes:,}"
            for site_outlook in outlook.sites
            if site_outlook.site == site
        ),
        "-",
    )


@at_grid
def drain(reach: Reach, site: SiteName) -> None:
    """Drain a site: it takes no new jobs from the grid, and jobs already running there finish.

    Example: gridweave drain north
    """
    _drain(site, True, reach)


@at_grid
def resume(reach: Reach, site: SiteName) -> None:
    """Let a drained site take jobs from the grid again.

    Example: gridweave resume north
    """
    _drain(site, False, reach)


def _drain(site: str, draining: bool, reach: Reach) -> None:
    reach.ask(lambda grid: grid.drain(site) if draining else grid.resume(site))
    message = f"{site} takes " + ("no new jobs from the grid" if draining else "jobs from the grid again")
    reach.show({"site": site, "draining": draining}, lambda _: typer.echo(message))


@at_grid
def give_up(
    reach: Reach,
    site: SiteName,
    machine: Annotated[
        str, typer.Argument(metavar="MACHINE", help="Name of the machine, as listed by `gridweave sites -m`.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Give up on a machine that will not come back; its jobs run again.

    Only a machine that is away can be given up. If it is still alive, its jobs run twice.

    Example: gridweave give-up north m1 --yes
    """
    if not yes:
        question = f"Give up {machine} of {site}? Its jobs run again, and so twice if the machine is still alive."
        agreed("give-up", f"the jobs of {machine} would run again", question, "nothing was given up")
    reach.ask(lambda grid: grid.give_up(site, machine))
    message = f"{site} has given up {machine}; its jobs run again"
    reach.show({"site": site, "machine": machine}, lambda _: typer.echo(message))


@at_grid
def whoami(reach: Reach) -> None:
    """Show which grid you are talking to, who it thinks you are, and what you may do.

    Example: gridweave whoami
    """

    async def work(grid: Client) -> None:
        info = await grid.whoami()
        if reach.as_json:
            print_json({"url": grid.connection.url, **plain(info)})
            return
        until = "" if info.until_ms is None else f", until {clock(info.until_ms)} ({relative(info.until_ms, now_ms())})"
        rows = [("grid", grid.connection.url), ("user", info.user or "-"), ("may", may(info) + until)]
        rows += [("token", info.token_id)] if info.token_id else [("token", "none: this gateway requires no token")]
        print_table(rows, left=2)

    reach.ask(work)


@at_grid
def open_pages(
    reach: Reach,
    show: Annotated[bool, typer.Option("--print", help="Print the address instead of opening a browser.")] = False,
) -> None:
    """Open the grid in a browser, logged in as you.

    The address works once, within a minute.

    Example: gridweave open
    """
    link = reach.ask(lambda grid: grid.login_link())
    if reach.as_json or show:
        reach.show({"url": link}, lambda _: typer.echo(link))
    elif webbrowser.open(link):
        say("the grid is open in your browser")
    else:
        say("cannot start a browser here; open this address within a minute:")
        typer.echo(link)
