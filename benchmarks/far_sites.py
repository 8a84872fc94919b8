"""Measure which sites jobs get, and what a real program costs, if the sites of docker-compose.yml are really far apart.

    docker build -t gridweave:0.1.0 . && docker build -t gridweave-postgres:15 --target postgres .
    python benchmarks/far_sites.py [placement] [ring]

brings up a Compose project of its own (as root), puts links between its sites (`slow_links.py`, with netem or without),
and has the grid measure them every two seconds:

- placement: alpha and gamma are 0.1 ms apart, beta is 0.1, 10 or 50 ms away from both. A job of 4 nodes finds two free
  nodes on each site, and then two on alpha and beta alone: is it split, over which sites, or does it wait for a site?
- ring: examples/ring_allreduce.py on four nodes of alpha, and on two each of alpha and beta, for three latencies and
  three message sizes. The measured factor of the split is compared with that of the model.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from measuring import write_results
from rich.console import Console
from rich.table import Table
from slow_links import End, SlowLinks, both_ways

from gridweave.errors import UnavailableError
from gridweave.grid.client.sync import SyncClient
from gridweave.site.job import JobRequest, Program, Traffic

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from ring_two_sites import compare, filled, places_text

from support.containers import ROOT, SITES, ComposeGrid, compose_command, until

PROJECT, FIRST_PORT = "gridweave-far", 28_765
NEAR_MS, LATENCIES_MS = 0.1, (0.1, 10.0, 50.0)
BANDWIDTH_BPS = 1e9
COMMUNICATION = ("none", "light", "nearest-neighbour")
LIMIT_MS = 1_200_000
"""Limit of a job to be placed; the jobs that it could wait for end within half of it."""

RANKS, ITERATIONS, LENGTHS = 4, 20, (1_000, 100_000, 500_000)


class FarGrid:
    """The grid of docker-compose.yml, and the links between its sites."""

    def __init__(self, grid: ComposeGrid, links: SlowLinks) -> None:
        self._grid, self._links = grid, links

    @contextmanager
    def client(self) -> Iterator[SyncClient]:
        """Yield a client of the grid's gateway."""
        with self._grid.client() as client:
            yield client

    def set_links(self, latency_ms: dict[tuple[str, str], float]) -> None:
        """Change the latencies, and wait until the grid has measured them."""
        self._links.lines.update(both_ways(latency_ms, BANDWIDTH_BPS))

        def is_known() -> bool:
            with self.client() as client:
                paths = {(path.origin, path.target): path for path in client.known_network().paths}
            return all(
                (known := paths[pair]).measured and abs((known.latency_ms or 0.0) - wanted) < 0.3 + 0.1 * wanted
                for pair, wanted in latency_ms.items()
            )

        until(f"the grid has measured {latency_ms}", is_known)


@contextmanager
def far_grid(folder: Path, exchange: str, most: float) -> Iterator[FarGrid]:
    """Yield a grid whose jobs use this message exchange, and which measures its links every two seconds.

    It makes no split that lengthens a job by a factor above `most`.
    """
    command = compose_command()
    if command is None:
        raise UnavailableError("there is no Compose (docker compose, or docker-compose)")
    text = (ROOT / "docker" / "grid.toml").read_text(encoding="utf-8").replace("10 Gbps", "1 Gbps")
    local = f'exchange = "{exchange}"\nlocal_latency_ms = 0.05\n'
    text = text.replace("[net]\n", f"[net]\n{local}").replace("every_s = 60\n", "every_s = 2\n")
    text = text.replace("[grid]\n", f"[grid]\nmax_split_factor = {most}\n")
    (folder / "grid.toml").write_text(text.replace("bandwidth_every_s = 3600", "bandwidth_every_s = 6"))
    services = [f"  {site}: {{environment: {{WAN: ''}}}}\n" for site in SITES]
    services.append(f"  grid: {{volumes: ['{folder}/grid.toml:/etc/gridweave/serve.toml:ro']}}\n")
    (folder / "far.yml").write_text("services:\n" + "".join(services))
    grid = ComposeGrid(folder, command, "0.1.0", PROJECT, FIRST_PORT, files=[folder / "far.yml"])
    try:
        grid.prepare()
        # The grid measures from its start, so the links must be there before.
        grid.compose("up", "-d", "--no-build", *SITES)
        for site in SITES:
            grid.wait_healthy(site)
        ends = {
            site: End(f"/proc/{grid.inspect(site)['State']['Pid']}/ns/net", grid.address(site, "peers"))
            for site in SITES
        }
        pairs = {(one, other): NEAR_MS for one in SITES for other in SITES if one < other}
        links = SlowLinks(ends, both_ways(pairs, BANDWIDTH_BPS))
        try:
            grid.up()
            yield FarGrid(grid, links)
        finally:
            links.close()
    finally:
        grid.clear()


# -- placement --------------------------------------------------------------------------------------------------------


def placements(far: FarGrid) -> list[dict[str, Any]]:
    """Return where a job of four nodes goes, for each distance of beta and each communication."""
    rows = []
    for latency_ms in LATENCIES_MS:
        far.set_links({("alpha", "beta"): latency_ms, ("beta", "gamma"): latency_ms, ("alpha", "gamma"): NEAR_MS})
        with far.client() as client:
            with filled(client, {"alpha": 2, "beta": 2, "gamma": 2}):
                rows += _rows(client, latency_ms, "alpha, beta, gamma")
            with taken(client, "gamma", 4), filled(client, {"alpha": 2, "beta": 2}):
                rows += _rows(client, latency_ms, "alpha, beta; gamma in 10 min")
    return rows


def _rows(client: SyncClient, latency_ms: float, free: str) -> list[dict[str, Any]]:
    return [
        {"latency_ms": latency_ms, "two free on": free, "communication": each} | placed(client, each)
        for each in COMMUNICATION
    ]


@contextmanager
def taken(client: SyncClient, site: str, nodes: int) -> Iterator[None]:
    """In this context, run a job on all nodes of a site; the grid knows the latest end of that job."""
    request = JobRequest(program=Program(argv=("sleep", "600")), nodes=nodes, limit_ms=LIMIT_MS // 2)
    with filled(client, {site: nodes}):
        (job,) = client.submit_many([request])
        until(f"job {job.id} runs at {site}", lambda: job.record().state == "running")
    try:
        yield
    finally:
        client.cancel([job.id])
        job.done(120)


def placed(client: SyncClient, communication: str) -> dict[str, Any]:
    """Return where a job runs or waits; a waiting job is cancelled."""
    request = JobRequest(
        program=Program(argv=("true",)), nodes=4, limit_ms=LIMIT_MS, traffic=Traffic(communication=communication)
    )
    (job,) = client.submit_many([request])
    forecast = client.explain(job.id)
    if forecast.state == "waiting":
        client.cancel([job.id])
        return {"where": f"waits for {forecast.places[0][0]}" if forecast.places else "waits", "factor": None}
    record = job.check(120)
    return {"where": places_text(record), "factor": 1.0 if record.split is None else record.split.factor}


# -- the ring ---------------------------------------------------------------------------------------------------------


def rings(far: FarGrid) -> list[dict[str, Any]]:
    """Return the factor of the split ring, measured and by the model, for each latency and message size."""
    rows = []
    for latency_ms in LATENCIES_MS:
        far.set_links({("alpha", "beta"): latency_ms})
        for length in LENGTHS:
            options = [f"--elements={length}", f"--iterations={ITERATIONS}", "--rounds=20000"]
            with far.client() as client:
                found = compare(client, ranks=RANKS, sites=["alpha", "beta"], options=options)
            over = found["overhead"]
            rows.append(
                {
                    "latency_ms": latency_ms,
                    "part_bytes": found["one_site"]["part_bytes"],
                    "fraction": found["traffic"]["fraction"],
                    "measured": 1 + over["measured_of_medians"],
                    "by_timed_links": 1 + over["forecast_by_timed_links"],
                    "by_grid": None if over["forecast_by_grid"] is None else 1 + over["forecast_by_grid"],
                }
            )
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """Print a table."""
    table = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=120).print(table)


def main() -> None:
    """Run the selected measurements, by default both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", default=["placement", "ring"], help="placement, ring")
    # The ring is split at any cost, since that is what is measured; each of its ranks waits for its neighbour only.
    ways = {"placement": ("synchronous", 2.0, placements), "ring": ("overlapped", 10_000.0, rings)}
    for name in parser.parse_args().what:
        exchange, most, measure = ways[name]
        with tempfile.TemporaryDirectory(prefix="gridweave-far-") as folder:
            Path(folder).chmod(0o755)
            with far_grid(Path(folder), exchange, most) as far:
                rows = measure(far)
        show(name, rows)
        write_results(f"far_sites_{name}", rows)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(str(error))
