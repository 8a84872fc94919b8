"""A live grid on Ray, whose parts are killed while jobs run."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gridweave.errors import UnavailableError
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, JobRequest, Program
from gridweave.site.service.calls import SITE_LABEL
from support.checks import WRITES_ITS_OWN_STORY, check_history, check_stories
from support.machine import PATIENCE_S

ray = pytest.importorskip("ray")

SITES = {"north": 6, "south": 4, "west": 4}
pytestmark = [pytest.mark.ray, pytest.mark.slow]


class Grid:
    """Raylets with labels, and the actors of a grid on them."""

    def __init__(self, folder: Path) -> None:
        from gridweave.grid.service.cluster import GridPlan, SitePlan

        self.history = folder / "story"
        self.plan = GridPlan(
            folder=str(folder / "grid"),
            sites=tuple(SitePlan(name=name, nodes=nodes) for name, nodes in SITES.items()),
            policy=GridPolicy(mode="adaptive", overhead=0.1),
            namespace=f"chaos-{os.getpid()}-{time.time_ns()}",
            retry_ms=2_000,
        )
        self.raylets: dict[str, Any] = {}
        self.up()

    def up(self) -> None:
        """Start Ray and the grid."""
        from ray.cluster_utils import Cluster

        from gridweave.grid.service.cluster import start_grid

        # No workers in stock: the hosts of actors, which need no processor, get theirs when they are made.
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        for site in SITES:
            self.add_raylet(site)
        ray.init(address=self.cluster.address, namespace=self.plan.namespace, log_to_driver=False)
        self.running = start_grid(self.plan, timeout_s=PATIENCE_S)

    def add_raylet(self, site: str) -> None:
        """Start the Ray node of a site."""
        self.raylets[site] = self.cluster.add_node(num_cpus=0, labels={SITE_LABEL: site}, wait=False)

    def down(self) -> None:
        """Take Ray down."""
        ray.shutdown()
        self.cluster.shutdown()

    def request(self, nodes: int, sleep_s: float) -> JobRequest:
        """Return a job that writes down what it does."""
        program = Program(argv=(*WRITES_ITS_OWN_STORY, str(self.history), str(sleep_s)), grace_ms=500)
        return JobRequest(program=program, nodes=nodes, limit_ms=300_000)

    def submit(self, requests: list[tuple[str, JobRequest]], site: str | None = None) -> list[int]:
        """Hand in jobs, again and again until there is an answer."""
        answers = self.insist(lambda: self.running.submit(requests, site=site))
        assert all(isinstance(answer, Accepted) for answer in answers)
        return [answer.job_id for answer in answers]

    def insist(self, what: Callable[[], Any]) -> Any:
        """Do something until it works: actors that were killed come back."""
        until_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return what()
            except (UnavailableError, ray.exceptions.RayError):
                assert time.monotonic() < until_s, "the grid does not come back"
                time.sleep(0.2)

    def settle(self, job_ids: list[int], own: dict[str, list[int]]) -> None:
        """Wait until all these jobs have ended, and the cores find themselves sound."""
        until_s = time.monotonic() + PATIENCE_S
        while not self.insist(lambda: self._have_ended(job_ids, own)):
            assert time.monotonic() < until_s, f"not ended: {self._open(job_ids)}"
            time.sleep(0.1)
        for name in self.running.actors:
            if not name.startswith("agent:"):
                self.insist(lambda name=name: self.running.call(name, "check", timeout_s=30))

    def begun(self) -> set[str]:
        """Return the ids of the jobs that have written down that they began."""
        lines = self.history.read_text().splitlines() if self.history.exists() else []
        return {line.split()[1] for line in lines if line.startswith("begin ")}

    def wait_until_begun(self, count: int) -> None:
        """Wait until so many jobs have begun in all."""
        until_s = time.monotonic() + PATIENCE_S
        while len(begun := self.begun()) < count:
            assert time.monotonic() < until_s, f"{len(begun)} jobs have begun, not {count}"
            time.sleep(0.02)

    def _have_ended(self, job_ids: list[int], own: dict[str, list[int]]) -> bool:
        if self._open(job_ids):
            return False
        records = [record for site, ids in own.items() for record in self.running.records(ids, site=site)]
        return all(record.state == "ended" for record in records)

    def _open(self, job_ids: list[int]) -> list[tuple[int, str]]:
        return [(r.job_id, r.state) for r in self.running.records(job_ids) if r.state not in ("ended", "refused")]

    def kill(self, name: str) -> None:
        """End the process of an actor with SIGKILL."""
        with contextlib.suppress(UnavailableError):
            os.kill(self.running.call(name, "process", timeout_s=30), signal.SIGKILL)

    def kill_by_ray(self, actor: str) -> None:
        """Have Ray kill an actor, which it then restarts."""
        with contextlib.suppress(ray.exceptions.RayError):
            ray.kill(self.running.actors[actor], no_restart=False)

    def kill_raylet(self, site: str) -> None:
        """End a Ray node with SIGKILL, and start one in its place."""
        self.cluster.remove_node(self.raylets[site], allow_graceful=False)
        self.add_raylet(site)

    def stop(self) -> None:
        """End the grid, so that its journals can be read whole."""
        self.running.stop()


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[Grid]:
    """Return a grid of three sites on Ray nodes of their own."""
    if ray.is_initialized():
        ray.shutdown()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what Ray says of itself
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        made = Grid(tmp_path)
        yield made
        made.down()


@pytest.mark.parametrize("seed", [1])
def test_nothing_is_lost_or_doubled_whoever_is_killed(grid: Grid, seed: int) -> None:
    """While actors, machines and Ray nodes are killed at random, every accepted job runs to its end, once and whole."""
    rng = random.Random(seed)
    print(f"seed {seed}")
    jobs: list[int] = []
    own: dict[str, list[int]] = {site: [] for site in SITES}
    for turn in range(5):
        widths = [rng.randint(1, 10) for _ in range(5)]
        named = [(f"{turn}.{k}", grid.request(width, rng.uniform(0.1, 2.0))) for k, width in enumerate(widths)]
        jobs += grid.submit(named)
        site = rng.choice(sorted(SITES))
        own[site] += grid.submit([(f"own {turn}", grid.request(rng.randint(1, SITES[site]), 0.5))], site)
        # So many more have begun, if there are so many: somewhere between the first message and the last end.
        grid.wait_until_begun(min(len(grid.begun()) + rng.randint(0, 3), len(jobs) + sum(map(len, own.values()))))
        victim = rng.choice(["raylet", "ray.kill", *sorted(grid.running.actors)])
        if victim == "raylet":
            grid.kill_raylet(rng.choice(sorted(SITES)))
        elif victim == "ray.kill":
            grid.kill_by_ray(rng.choice(sorted(grid.running.actors)))
        else:
            grid.kill(victim)
    grid.settle(jobs, own)
    grid.stop()
    outcomes = check_history(grid.plan)
    assert set(outcomes) == {*jobs, *(job_id for ids in own.values() for job_id in ids)}
    check_stories(grid.history, outcomes, SITES)
    assert set(outcomes.values()) == {"finished"}
