"""The grid queue that tunes its order: what a plan is worth, who is chosen, and that it goes on where it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from gridweave.errors import OptionError, ScenarioError
from gridweave.grid.control.queue import GridQueue
from gridweave.grid.policy import GridPolicy, GridTuning
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_world
from gridweave.site.disciplines.optimal.instance import Instance
from gridweave.site.job import Job
from support.builders import random_jobs, to_workload

FILE = """
workload = { generator = "lublin", jobs = 120, nodes = 32, load = 3.0 }

[grid]
mode = "sharing"
tuning = { policies = "fcfs+sjf+ljf" }

[[sites]]
name = "north"
nodes = 64

[[sites]]
name = "south"
nodes = 32
"""


def tuned(*orders: str, **options: object) -> GridPolicy:
    """Return a grid without splits that tunes its queue."""
    return GridPolicy(mode="sharing", tuning=GridTuning(policies=orders, **options))  # type: ignore[arg-type]


def busy_queue(policy: GridPolicy, seed: int, count: int = 12) -> GridQueue:
    """Return the queue of a grid of one site of 8 nodes at instant 100, with jobs that run and jobs that wait."""
    queue = GridQueue([8], policy)
    rng = np.random.default_rng(seed)
    for number in range(1, count + 1):
        job = Job(job_id=number, width=int(rng.integers(1, 9)), estimate_ms=int(rng.integers(50, 900)))
        queue.submit(number, job, draw=0.0, sensitivity=1.0)
        queue.run_pass(number)
    return queue


def instance_of(queue: GridQueue, now_ms: int) -> Instance:
    """Return what a queue on one site has to plan, by what it tells of itself."""
    waiting = sorted(queue.waiting, key=lambda job: job.job_id)
    running = list(queue.running)
    step_ms = np.unique([now_ms, *(run.end_ms for run in running)])
    free = [8 - sum(run.job.width for run in running if run.end_ms > at_ms) for at_ms in step_ms.tolist()]
    return Instance(
        now_ms=now_ms,
        job_id=np.array([job.job_id for job in waiting]),
        submit_ms=np.array([job.job_id for job in waiting]),  # each was submitted at the instant of its number
        width=np.array([job.width for job in waiting]),
        estimate_ms=np.array([job.estimate_ms for job in waiting]),
        step_ms=step_ms,
        step_free=np.array(free),
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_order_with_the_best_plan_is_chosen(seed: int) -> None:
    """Of a grid of one site the plans are those of a planning site, and the best by AWRT is in force."""
    orders = ("fcfs", "sjf", "ljf")
    queue = busy_queue(tuned(*orders, decider="simple"), seed)
    assert queue.tuning is not None
    before = queue.tuning.decisions
    queue.submit(100, Job(job_id=100, width=3, estimate_ms=333), draw=0.0, sensitivity=1.0)
    instance = instance_of(queue, 100)
    values = [instance.worth(instance.planned(order), "artwa") for order in orders]
    queue.run_pass(100)
    assert queue.tuning.decisions == before + 1
    assert queue.tuning.order == orders[int(np.argmin(values))]
    queue.check_invariants()


def test_a_queue_goes_on_from_its_state() -> None:
    """A queue that is restored from its state decides and places as the one that was kept."""
    policy = tuned("fcfs", "sjf", "ljf")
    kept, restored = busy_queue(policy, 3), GridQueue([8], policy)
    restored.restore(kept.copy().state())
    twin = kept.copy()
    for now_ms in (900, 1000, 1100):
        placed = []
        for queue in (kept, restored, twin):
            for job_id in queue.ending(now_ms):
                queue.ended(now_ms, job_id)
            queue.submit(now_ms, Job(job_id=now_ms, width=2, estimate_ms=70), draw=0.0, sensitivity=1.0)
            placed.append([one.job.job_id for one in queue.run_pass(now_ms)])
        assert placed[0] == placed[1] == placed[2]
    assert kept.state().tuning == restored.state().tuning == twin.state().tuning


def test_one_order_is_that_order(tmp_path: Path) -> None:
    """In the simulated world a queue that may choose of one order gives the schedule of the batch driver in it."""
    file = tmp_path / "tuned.toml"
    file.write_text(FILE)
    built = build_scenario(file, ["grid.tuning.policies=sjf"])
    assert built.needs_world
    played = run_world(built, check=True)
    plain = simulate(built.workload, built.nodes.tolist(), GridPolicy(mode="sharing", order="sjf"))
    assert played.start_ms.tolist() == plain.start_ms.tolist()
    three = run_world(build_scenario(file), check=True)
    assert three.ran.all()
    assert three.start_ms.tolist() != played.start_ms.tolist()
    assert three.label == "sharing tuned advanced fcfs+sjf+ljf"
    told = three.own_metrics
    assert told["grid.decisions"] > 0
    assert sum(told[f"grid.{order}_time_pct"] for order in ("fcfs", "sjf", "ljf")) == pytest.approx(100)
    assert sum(told[f"grid.{order}_jobs_pct"] for order in ("fcfs", "sjf", "ljf")) == pytest.approx(100)
    assert sum(told[f"grid.{order}_switches"] for order in ("fcfs", "sjf", "ljf")) == len(three.own.switched_ms) > 0
    three.write(tmp_path / "told", plots=False)
    lines = (tmp_path / "told" / "switches.csv").read_text().splitlines()
    assert lines[0] == "when_ms,policy"
    assert len(lines) == 1 + len(three.own.switched_ms)
    assert "grid.sjf_time_pct" in (tmp_path / "told" / "summary.json").read_text()


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    """Unknown names, another mode or backfilling, an order beside: each is said in a line, with its place in a file."""
    for options, line in (
        ({"mode": "local"}, "tuning: applies to the grid queue; it needs control full and a mode other than local"),
        ({"control": "limited"}, "tuning: applies to the grid queue"),
        ({"order": "sjf"}, "order: 'sjf' does not work with tuning"),
        ({"backfill": "conservative"}, "tuning: does not work with backfill conservative"),
    ):
        with pytest.raises(OptionError, match=line):
            GridPolicy(tuning=GridTuning(), **options)
    with pytest.raises(OptionError, match="preferred: 'saf' is not a candidate; one of fcfs, sjf"):
        GridTuning(policies=("fcfs", "sjf"), decider="preferred", preferred="saf")
    with pytest.raises(OptionError, match="tuning: of the queue needs the simulated world"):
        simulate(to_workload(random_jobs(np.random.default_rng(1), 5, 4)), [8], tuned("fcfs"))
    file = tmp_path / "tuned.toml"
    file.write_text(FILE)
    with pytest.raises(ScenarioError, match="slackness_pct: is -1"):
        build_scenario(file, ["grid.tuning.slackness_pct=-1"])
    with pytest.raises(ScenarioError, match="does not work with tuning"):
        build_scenario(file, ["grid.order=sjf"])
