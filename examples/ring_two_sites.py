"""Compare one parallel job on one site and on two: the measured overhead of the split, and the forecast of it.

    gridweave up examples/ring_grid.toml
    python examples/ring_two_sites.py --stand-in 5,1000

submits examples/ring_allreduce.py twice, with the same number of ranks, to the grid that the configuration selects
(docs/cli.md, "Which grid"); it needs a token that may read, submit and cancel. The job carries the text of the program,
so machines need Python and nothing else. To make the grid place the first job on one site and the second on two, jobs
of the sites' own users fill the other nodes of all sites. These jobs only sleep, and are cancelled at the end.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

import gridweave
from gridweave.grid.api import Forecast, SiteInfo
from gridweave.netmodel.communication import Communication
from gridweave.netmodel.model import NetworkModel
from gridweave.netmodel.reading import parse_network
from gridweave.site.job import JobRecord, Traffic

PROGRAM = Path(__file__).with_name("ring_allreduce.py")
LIMIT_MS = 600_000
WAIT_S = 120.0

_NET = """
[net]
exchange = "overlapped"
local_latency_ms = {local_ms!r}
local_bandwidth_bps = {local_bps!r}
nodes = [{{name = "one"}}, {{name = "other"}}]
links = [{{from = "one", to = "other", latency_ms = {latency_ms!r}, bandwidth_bps = {bandwidth_bps!r}}}]
"""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one job: the grid's record, and the report of its rank 0."""

    record: JobRecord
    report: dict[str, Any]

    @property
    def median_s(self) -> float:
        """The median time of an iteration."""
        return float(median(self.report["iteration_s"]))

    @property
    def quickest_s(self) -> float:
        """The time of the fastest iteration, which other work on the machines has disturbed least."""
        return float(min(self.report["iteration_s"]))

    @property
    def job_s(self) -> float:
        """The time from the start of the ranks to the last end."""
        assert self.record.start_ms is not None
        assert self.record.end_ms is not None
        return (self.record.end_ms - self.record.start_ms) / 1000


@dataclass(frozen=True, slots=True)
class Links:
    """Latency and bandwidth of exchanges within a site and between sites, as the ring measured them."""

    local_ms: float
    local_bps: float
    latency_ms: float
    bandwidth_bps: float


def ring_request(ranks: int, options: Sequence[str], traffic: Traffic | None = None) -> gridweave.JobRequest:
    """Return the job: the text of the program, and its options."""
    argv = ("python3", "-c", PROGRAM.read_text(encoding="utf-8"), *options)
    program = gridweave.Program(argv=argv, if_lost="fail")
    return gridweave.JobRequest(program=program, nodes=ranks, limit_ms=LIMIT_MS, name="ring", traffic=traffic)


def run_once(grid: gridweave.SyncClient, request: gridweave.JobRequest, sites: int) -> Run:
    """Run a job, and return its result.

    Raises
    ------
    gridweave.GridweaveError
        If the job did not finish, or ran on another number of sites.
    """
    (job,) = grid.submit_many([request])
    try:
        record = job.check(WAIT_S)
    except BaseException:
        grid.cancel([job.id])
        raise
    if len(record.places) != sites:
        raise gridweave.InputError(f"job {job.id} ran on {places_text(record)}; expected {sites}")
    return Run(record, json.loads(job.output()))


@contextmanager
def filled(grid: gridweave.SyncClient, free: dict[str, int]) -> Iterator[None]:
    """In this context, fill all nodes of each site except the given number."""
    sleep = gridweave.Program(argv=("sleep", "600"), ranks="first-node")
    jobs: list[gridweave.SyncJobHandle] = []
    try:
        for site in grid.sites():
            if (nodes := site.free - free.get(site.name, 0)) > 0:
                fill = gridweave.JobRequest(program=sleep, nodes=nodes, limit_ms=LIMIT_MS, name="ring-others")
                jobs += grid.submit_many([fill], site=site.name)
        for job in jobs:
            wait_until_running(job)
        yield
    finally:
        grid.cancel([job.id for job in jobs])
        for job in jobs:
            job.done(WAIT_S)


def wait_until_running(job: gridweave.SyncJobHandle) -> None:
    """Poll until a job of a site's own user starts: the event stream does not show such jobs."""
    until = time.monotonic() + WAIT_S
    while job.record().state != "running":
        if time.monotonic() > until:
            raise gridweave.UnavailableError(f"job {job.id} does not start; are nodes in use by others?")
        time.sleep(0.1)


def chosen_sites(sites: Sequence[SiteInfo], ranks: int, named: Sequence[str]) -> dict[str, int]:
    """Return the two sites for the job, with the number of nodes on each that must be free.

    Raises
    ------
    gridweave.InputError
        If no two sites have enough free nodes.
    """
    by_name = {site.name: site for site in sites}
    unknown = [name for name in named if name not in by_name]
    if unknown:
        raise gridweave.InputError(f"--sites: {unknown[0]!r} is not one of {', '.join(by_name)}")
    candidates = [by_name[name] for name in dict.fromkeys(named)] or sorted(sites, key=lambda site: -site.free)
    share = ranks // 2, ranks - ranks // 2
    if len(candidates) < 2 or candidates[0].free < ranks or candidates[1].free < share[1] or not share[0]:
        free = ", ".join(f"{site.name} {site.free}" for site in sites)
        raise gridweave.InputError(
            f"{ranks} ranks need a site with {ranks} free nodes, and another with {share[1]}; free are: {free}"
        )
    return {candidates[0].name: share[0], candidates[1].name: share[1]}


def traffic_of(one: Run) -> Traffic:
    """Return the communication pattern of a job, derived from its run on one site.

    In each exchange of the all-reduce, a rank sends one part to the next rank; in the pattern ``ring`` it sends a
    message to both neighbours. So a message is half a part, and the load of nodes and links is the same.
    """
    return Traffic(pattern="ring", fraction=one.report["in_messages"], message_bytes=one.report["part_bytes"] / 2)


def links_of(one: Run, two: Run) -> Links:
    """Return the links as the ring measured them, with exchanges of no data and of one part, on one site and on two.

    An exchange on two sites takes the mean time of all messages; two of the ring's connections cross between the sites.
    """
    ranks, part_bits = one.report["ranks"], 8 * one.report["part_bytes"]
    empty, part = one.report["empty_exchange_ms"], one.report["part_exchange_ms"]
    across = [
        max(0.0, ranks * two.report[what] - (ranks - 2) * one.report[what]) / 2
        for what in ("empty_exchange_ms", "part_exchange_ms")
    ]

    def bps(span_ms: float) -> float:
        return float(part_bits / (max(span_ms, 1e-3) / 1000))

    return Links(empty, bps(part - empty), max(0.0, across[0] - empty), bps(across[1] - across[0]))


def model_factor(traffic: Traffic, links: Links, parts: Sequence[int]) -> float:
    """Return the factor by which this split lengthens the job, by netmodel."""
    text = _NET.format(**{name: getattr(links, name) for name in Links.__slots__})
    table, topology = parse_network(text, "timed.toml", read_text=str)
    model = NetworkModel.of_table(table, topology)
    ring = Communication(fraction=traffic.fraction, message_bytes=traffic.message_bytes, pattern=traffic.pattern)
    return model.split_factor(ring, dict(zip(("one", "other"), parts, strict=True)))


def quoted_factor(forecast: Forecast) -> float | None:
    """Return the factor by which a split lengthens the job, by the grid's quote; None if it would not split the job."""
    return forecast.length_ms / LIMIT_MS if len(forecast.places) > 1 else None


def places_text(record: JobRecord) -> str:
    """Return where a job ran, as text."""
    return " + ".join(f"{site} {nodes}" for site, nodes in record.places)


def compare(grid: gridweave.SyncClient, *, ranks: int, sites: Sequence[str], options: Sequence[str]) -> dict[str, Any]:
    """Run the job on one site and on two; return the measured times and the forecasts.

    Parameters
    ----------
    grid : gridweave.SyncClient
    ranks : int
    sites : sequence of str
        The two sites, first the one for the run on one site; empty: those with the most free nodes.
    options : sequence of str
        Options of the program.
    """
    chosen = chosen_sites(grid.sites(), ranks, sites)
    with filled(grid, {next(iter(chosen)): ranks}):
        one = run_once(grid, ring_request(ranks, options), 1)
    traffic = traffic_of(one)
    with filled(grid, chosen):
        request = ring_request(ranks, options, traffic)
        quote = quoted_factor(grid.quote(request))
        two = run_once(grid, request, 2)
    links = links_of(one, two)
    return {
        "ranks": ranks,
        "one_site": _plain(one),
        "two_sites": _plain(two),
        "traffic": msgspec.structs.asdict(traffic),
        "links": {name: getattr(links, name) for name in Links.__slots__},
        "overhead": {
            "measured": two.quickest_s / one.quickest_s - 1,
            "measured_of_medians": two.median_s / one.median_s - 1,
            "measured_of_jobs": two.job_s / one.job_s - 1,
            "forecast_by_grid": None if quote is None else quote - 1,
            "forecast_by_timed_links": model_factor(traffic, links, [nodes for _, nodes in two.record.places]) - 1,
        },
    }


def _plain(run: Run) -> dict[str, Any]:
    return {
        "job": run.record.job_id,
        "places": places_text(run.record),
        "job_s": run.job_s,
        "quickest_s": run.quickest_s,
        "median_s": run.median_s,
    } | run.report


def print_report(found: dict[str, Any]) -> None:
    """Print the comparison as text."""
    one, two, over, links = found["one_site"], found["two_sites"], found["overhead"], found["links"]
    for run in (one, two):
        print(
            f"job {run['job']} on {run['places']}: {run['iterations']} iterations, "
            f"fastest {run['quickest_s']:.4f} s, median {run['median_s']:.4f} s; every sum is exact"
        )
    print(
        f"messages: {found['traffic']['fraction']:.1%} of the fastest iteration on one site; an exchange of "
        f"{one['part_bytes']:,} bytes takes {one['part_exchange_ms']:.3f} ms there, "
        f"{two['part_exchange_ms']:.3f} ms on two sites"
    )
    print(f"between the sites: {links['latency_ms']:.2f} ms, {links['bandwidth_bps'] / 1e6:,.0f} Mbit/s, as timed")
    for label, value in (
        ("overhead of the fastest iteration, measured", over["measured"]),
        ("... of the median, measured", over["measured_of_medians"]),
        ("... of the whole job, measured", over["measured_of_jobs"]),
        ("... forecast, links as the grid has them", over["forecast_by_grid"]),
        ("... forecast, links as timed", over["forecast_by_timed_links"]),
    ):
        print(f"{label:46} {'none' if value is None else f'{value:+.1%}':>8}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison; return the exit status."""
    parser = argparse.ArgumentParser(description="Compare the time of one parallel job on one site and on two.")
    parser.add_argument("--url", help="URL of the grid's gateway; by default as for all commands")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument(
        "--sites", default="", help="two names with a comma; by default the sites with the most free nodes"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--elements", type=int, default=100_000)
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--stand-in", help="MS,MBPS: delay messages between sites like such a link")
    given = parser.parse_args(arguments)
    options = [f"--{name}={getattr(given, name)}" for name in ("elements", "iterations", "rounds")]
    options += [f"--stand-in={given.stand_in}"] * (given.stand_in is not None)
    try:
        with gridweave.SyncClient(given.url) as grid:
            found = compare(grid, ranks=given.ranks, sites=[s for s in given.sites.split(",") if s], options=options)
    except gridweave.GridweaveError as error:
        print(f"ring: {error}", file=sys.stderr)
        return error.exit_status
    if given.json:
        print(json.dumps(found))
    else:
        print_report(found)
    return 0 if math.isfinite(found["overhead"]["measured"]) else 1


if __name__ == "__main__":
    sys.exit(main())
