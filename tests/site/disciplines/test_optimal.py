"""The site that plans with a solver: its plans are never worse than the best policy's, and small ones are the best."""

from __future__ import annotations

import heapq
import itertools
import sys

import numpy as np
import pytest

from gridweave.errors import OptionError, UnavailableError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.site.disciplines.dictionary import read_policy
from gridweave.site.disciplines.optimal.discipline import Optimal
from gridweave.site.disciplines.optimal.instance import Instance
from gridweave.site.disciplines.optimal.policy import OptimalPolicy
from gridweave.site.job import Job, JobRequest, Program
from gridweave.site.messages import Machine, UserSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import OWN_IDS, LiveSite
from support.builders import random_jobs, to_workload

NODES = 8
S_MS = 1000


def planned(site: Optimal, started: list[Job], instance: Instance) -> np.ndarray:
    """Return the starts of the plan that a pass has made, in the order of the instance."""
    start_ms = {job.job_id: start_ms for job, start_ms in site.waiting()}
    start_ms |= {job.job_id: instance.now_ms for job in started}
    return np.array([start_ms[job_id] for job_id in instance.job_id.tolist()])


@pytest.mark.parametrize(("effort_s", "most_jobs"), [(0.02, 30), (1e-6, 30), (0.02, 3)])
def test_no_plan_is_worse_than_the_best_policy(effort_s: float, most_jobs: int) -> None:
    """At each instant the plan made is worth no more than the best policy's; up to five jobs it is the optimum."""
    workload = to_workload(random_jobs(np.random.default_rng(11), 30, NODES, load=1.2, tick=S_MS))
    site = Optimal(NODES, OptimalPolicy(effort_s=effort_s, most_jobs=most_jobs))
    arrivals = list(zip(workload.submit_ms.tolist(), workload.job_id.tolist(), strict=True))
    rows = {job_id: row for row, job_id in enumerate(workload.job_id.tolist())}
    ends: list[tuple[int, int]] = []
    better = brute = 0
    while arrivals or ends:
        wakeup_ms = site.next_wakeup_ms()
        next_ms = [*(one[0] for one in (arrivals[:1] + ends[:1])), *([] if wakeup_ms is None else [wakeup_ms])]
        now_ms = min(next_ms)
        while ends and ends[0][0] == now_ms:
            site.ended(now_ms, heapq.heappop(ends)[1])
        while arrivals and arrivals[0][0] == now_ms:
            row = rows[arrivals.pop(0)[1]]
            job = (int(workload.job_id[row]), int(workload.width[row]), int(workload.estimate_ms[row]))
            site.submit(now_ms, Job(job_id=job[0], width=job[1], estimate_ms=job[2]))
        instance, _ = site.instance(now_ms)
        started = [start.job for start in site.run_pass(now_ms).starts]
        site.check_invariants()
        for job in started:
            heapq.heappush(ends, (now_ms + int(workload.run_ms[rows[job.job_id]]), job.job_id))
        if not len(instance):
            continue
        start_ms = planned(site, started, instance)
        assert instance.is_plan(start_ms)
        worth = instance.worth(start_ms)
        best = instance.worth(instance.best_policy(("fcfs", "sjf", "ljf"), "artww")[1])
        assert worth <= best * (1 + 1e-12)
        better += worth < best * (1 - 1e-9)
        if effort_s > 0.01 and len(instance) <= min(most_jobs, 5):
            orders = itertools.permutations(range(len(instance)))
            assert worth == pytest.approx(min(instance.worth(instance.listed(list(order))) for order in orders))
            brute += 1
    if effort_s > 0.01:
        assert brute > 5
        assert better > 0 or most_jobs == 3


def test_a_simulation_tells_of_the_plans() -> None:
    """The same run twice gives the same schedule, with what was proven and gained; a job alone starts at once."""
    workload = to_workload(random_jobs(np.random.default_rng(12), 25, NODES, load=1.2, tick=S_MS))
    first, second = (simulate(workload, NODES, OptimalPolicy(effort_s=0.02)) for _ in range(2))
    assert first.start_ms.tolist() == second.start_ms.tolist()
    metrics = dict(first.own_metrics)
    assert metrics["solved_plans"] > 5
    assert metrics["plan_gain_pct"] > 0
    assert 0 < metrics["proven_plans_pct"] <= 100
    one = workload.take(np.arange(len(workload)) == 0)
    assert simulate(one, NODES, OptimalPolicy()).start_ms.tolist() == one.submit_ms.tolist()


def test_reservations_are_kept() -> None:
    """Nodes that are reserved are left alone by the solver's plan."""
    site = Optimal(4, OptimalPolicy())
    assert site.reserve(0, 1, 100 * S_MS, 50 * S_MS, 4) == 100 * S_MS
    for number, (width, seconds) in enumerate([(4, 60), (3, 90), (2, 30), (2, 200)], start=1):
        site.submit(0, Job(job_id=number, width=width, estimate_ms=seconds * S_MS))
    started = [start.job for start in site.run_pass(0).starts]
    spans = [(0, job.estimate_ms) for job in started]
    spans += [(start_ms, start_ms + job.estimate_ms) for job, start_ms in site.waiting() if start_ms is not None]
    assert len(spans) == 4
    assert all(end_ms <= 100 * S_MS or start_ms >= 150 * S_MS for start_ms, end_ms in spans)


def test_a_live_site_names_the_rule_and_survives() -> None:
    """A forecast says that a solver plans; a site restored from its state goes on as the one that was kept."""
    machines = (Machine(name="m0", nodes=4),)
    sites = [LiveSite(SiteSettings(name="n", number=0, policy=OptimalPolicy(), machines=machines)) for _ in range(2)]
    for number, minutes in enumerate((60, 600, 6)):
        wanted = JobRequest(program=Program(argv=("true",)), nodes=4, limit_ms=minutes * 60 * S_MS)
        sites[0].handle(number, UserSubmitted(f"key {number}", wanted))
    forecast = sites[0].forecast(3, OWN_IDS + 2)
    assert forecast is not None
    assert forecast.start_ms == 66 * 60 * S_MS
    assert "a solver finds the plan with the best artww again" in forecast.reason
    sites[1].restore(sites[0].state())
    assert sites[1].forecast(3, OWN_IDS + 2) == forecast


def test_what_cannot_be_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong options, limits, and a machine without OR-Tools: each is said in one line, before anything runs."""
    for options, line in (
        ({"metric": "makespan"}, r"metric: 'makespan' is not a weighted sum of response times; one of artww"),
        ({"policies": ("x",)}, "policies: 'x' is not known; one of fcfs"),
        ({"effort_s": 0.0}, "effort_s: is 0; expected above 0"),
        ({"most_jobs": 1}, "most_jobs: is 1; expected at least 2"),
    ):
        with pytest.raises(OptionError, match=line):
            OptimalPolicy(**options)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match=r"limits: is not for a site with the discipline optimal"):
        read_policy("optimal", 4, {"limits": ("one",)}, {})
    monkeypatch.setitem(sys.modules, "ortools", None)
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    wanted = r"OR-Tools is not installed; in a checkout of gridweave run: pip install '\.\[optimum\]'"
    with pytest.raises(UnavailableError, match=wanted):
        read_policy("optimal", 4, {}, {})
    workload = to_workload(random_jobs(np.random.default_rng(1), 5, NODES))
    with pytest.raises(UnavailableError, match=wanted):
        simulate(workload, NODES, OptimalPolicy())
    assert simulate(workload, NODES, SitePolicy(discipline="planning")).start_ms.min() >= 0
