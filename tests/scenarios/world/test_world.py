"""The simulated world: equal to the batch driver without faults, and free of violations with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.grid.policy import MAPPINGS, GridPolicy
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.results.schedule import NEVER, SimulationResult
from gridweave.scenarios.scenario.fuzz import WorldInputs, draw_conditions, run_world
from gridweave.scenarios.workload.table import Workload
from gridweave.scenarios.world.connections import Faults, LiveTimes, Network
from gridweave.scenarios.world.simulate import simulate_world
from gridweave.site.policy import SitePolicy
from gridweave.site.users.owner import OwnerPolicy
from support.builders import random_grid_jobs, to_workload

ORDERS = ("fcfs", "sjf", "ljf", "saf", "laf", "bfit", "wfit")
SELECTIONS = ("best-fit", "biggest-free", "equal-util", "random", "earliest-end")
TABLES: tuple[tuple[tuple[int, int], ...], ...] = ((), (), ((3, 1), (6, 2)))
OVERHEADS: tuple[float | tuple[float, ...], ...] = (0.0, 0.3, (0.1, 0.5), 1.0)


def pick(rng: np.random.Generator, choices: Any) -> Any:
    """Draw one of several values."""
    return choices[int(rng.integers(len(choices)))]


def random_policy(rng: np.random.Generator, control: str = "full") -> GridPolicy:
    """Draw a policy."""
    return GridPolicy(
        mode=pick(rng, ("sharing", "multi-site", "adaptive")),
        control=control,
        order=pick(rng, ORDERS),
        backfill=pick(rng, ("easy", "easy", "none", "conservative")),
        head_reservation=pick(rng, ("anywhere", "anywhere", "single-site", "nothing")),
        selection=pick(rng, (*SELECTIONS, *MAPPINGS) if control == "limited" else SELECTIONS),
        overhead=pick(rng, OVERHEADS),
        lower_bound=pick(rng, (0, 0, 3)),
        max_fragments=pick(rng, TABLES),
    )


def random_grid(rng: np.random.Generator, *, tick: int = 1) -> tuple[Workload, list[int], np.ndarray[Any, Any]]:
    """Draw sites, a workload with jobs that may be too wide, and sensitivities of jobs to splits."""
    nodes = rng.integers(1, 10, rng.integers(1, 5)).tolist()
    load = float(rng.choice((0.5, 0.9, 1.5)))
    case = random_grid_jobs(rng, int(rng.integers(1, 50)), nodes, load=load, tick=tick)
    return to_workload(case.jobs), nodes, np.array([case.sensitivity[job.id] for job in case.jobs])


def assert_same(world: SimulationResult, batch: SimulationResult, what: str) -> None:
    """Assert that two results have the same schedule, job by job."""
    assert world.start_ms.tolist() == batch.start_ms.tolist(), what
    assert world.end_ms.tolist() == batch.end_ms.tolist(), what
    for job in range(len(batch.workload)):
        assert world.fragments_of(job) == batch.fragments_of(job), what
    assert [job_id for job_id, _ in world.refused] == [job_id for job_id, _ in batch.refused], what


@pytest.mark.parametrize("part", range(8))
def test_without_delays_and_faults_the_world_equals_the_batch_driver(part: int) -> None:
    for seed in range(part * 150, (part + 1) * 150):
        workload, nodes, sensitivity = random_grid(np.random.default_rng(seed))
        policy = random_policy(np.random.default_rng(seed + 10**6))
        batch = simulate(workload, nodes, policy, rng=np.random.default_rng(seed).spawn(1)[0], sensitivity=sensitivity)
        world = simulate_world(
            workload,
            nodes,
            policy,
            rng=np.random.default_rng(seed),
            sensitivity=sensitivity,
            check=seed % 5 == 0,
            channels=seed % 3 == 0,
        )
        assert_same(world, batch, f"seed {seed}, {nodes}, {policy}")


def play_badly(seed: int, control: str) -> SimulationResult:
    """Simulate a random grid with all kinds of faults and all checks."""
    rng = np.random.default_rng([seed, 77])
    workload, nodes, _ = random_grid(rng, tick=1000)
    inputs = WorldInputs(
        workload=workload,
        home=np.asarray(rng.integers(0, len(nodes), len(workload))),
        nodes=tuple(nodes),
        policy=random_policy(rng, control),
        site_policies=tuple(SitePolicy(backfill=pick(rng, ("easy", "none", "conservative"))) for _ in nodes),
    )
    return run_world(inputs, draw_conditions(inputs, rng), rng)


@pytest.mark.parametrize("part", range(8))
def test_no_invariant_is_violated_under_faults(part: int) -> None:
    """Messages are lost, late and duplicated, connections cut and sites crash."""
    crashes = cuts = lost = restarts = split = 0
    for seed in range(part * 50, (part + 1) * 50):
        result = play_badly(seed, "full")
        crashes, cuts, lost = crashes + result.world.crashes, cuts + result.world.cuts, lost + result.world.lost
        restarts, split = restarts + result.world.restarts, split + int((result.n_fragments > 1).sum())
    assert min(crashes, cuts, lost, restarts, split) > 20, "there was not much trouble"


@pytest.mark.parametrize("control", ["limited", "none"])
def test_no_level_of_control_violates_an_invariant(control: str) -> None:
    for seed in range(100):
        play_badly(seed, control)


def test_own_users_never_wait_for_the_grid() -> None:
    """A site runs its own users' jobs while its connection is cut."""
    workload = Workload(job_id=[1, 2], submit_ms=[5000, 5001], width=[2, 2], estimate_ms=[100, 100], run_ms=[100, 100])
    result = simulate_world(
        workload,
        [2],
        GridPolicy(),
        to_grid=[False, False],
        network=Network(latency_ms=50, loss=0.9),
        faults=Faults(cut_every_ms=1.0, cut_lasts_ms=1e6),
    )
    assert result.start_ms.tolist() == [5000, 5100]


def test_jobs_lost_in_a_crash_run_again() -> None:
    count = 40
    workload = Workload(
        job_id=np.arange(count) + 1,
        submit_ms=np.arange(count) * 10_000,
        width=np.full(count, 3),
        estimate_ms=np.full(count, 15_000),
        run_ms=np.full(count, 15_000),
    )
    faults = Faults(crash_every_ms=50_000, crash_lasts_ms=5_000)
    result = simulate_world(workload, [2, 2], GridPolicy(mode="multi-site"), faults=faults, check=True)
    assert result.world.restarts > 0
    assert result.world.crashes > 0
    assert (result.end_ms - result.start_ms == 15_000).all()


def test_messages_delay_starts() -> None:
    """A job starts when its site receives the message; a split job starts after request, answer and commitment."""
    workload = Workload(job_id=[1, 2], submit_ms=[0, 10], width=[2, 6], estimate_ms=[10, 10], run_ms=[10, 10])
    result = simulate_world(workload, [4, 4], GridPolicy(mode="multi-site"), network=Network(latency_ms=7))
    assert result.start_ms[0] == 7
    assert result.start_ms[1] == 10 + 4 * 7
    assert result.world.messages == 3 + 10


def test_the_same_seed_gives_the_same_world() -> None:
    first, again, other = play_badly(3, "full"), play_badly(3, "full"), play_badly(4, "full")
    assert first.start_ms.tolist() == again.start_ms.tolist()
    assert (first.world.messages, first.world.lost) == (again.world.messages, again.world.lost)
    assert first.world.messages != other.world.messages


def test_random_selection_does_not_depend_on_the_network() -> None:
    rng = np.random.default_rng(5)
    workload, nodes, _ = random_grid(rng)
    policy = GridPolicy(mode="sharing", selection="random")
    plain = simulate_world(workload, nodes, policy, rng=np.random.default_rng(9))
    late = simulate_world(workload, nodes, policy, rng=np.random.default_rng(9), network=Network(duplicate=1.0))
    assert_same(late, plain, "duplicates change nothing")


def test_jobs_that_can_never_run_are_refused() -> None:
    workload = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[9, 5], estimate_ms=[9, 9], run_ms=[9, 9])
    result = simulate_world(workload, [4, 4], GridPolicy(), to_grid=[True, False])
    assert result.start_ms.tolist() == [NEVER, NEVER]
    assert [job_id for job_id, _ in result.refused] == [1, 2]


@pytest.mark.parametrize(
    ("wrong", "option"),
    [
        ({"home": [0, 2]}, "home"),
        ({"to_grid": [True]}, "to_grid"),
        ({"sensitivity": [1.0]}, "sensitivity"),
        ({"owners": [OwnerPolicy()]}, "nodes"),
        ({"site_policies": []}, "nodes"),
    ],
)
def test_arrays_of_the_wrong_length_are_refused(wrong: dict[str, Any], option: str) -> None:
    workload = Workload(job_id=[1, 2], submit_ms=[0, 0], width=[1, 1], estimate_ms=[9, 9], run_ms=[9, 9])
    with pytest.raises(OptionError, match=option):
        simulate_world(workload, [4, 4], GridPolicy(), **wrong)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Network, {"latency_ms": -1}),
        (Network, {"jitter_ms": 10**9}),
        (Network, {"loss": 0.95}),
        (Network, {"duplicate": 1.5}),
        (Faults, {"crash_every_ms": -1.0}),
        (Faults, {"cut_lasts_ms": float("nan")}),
    ],
)
def test_numbers_out_of_range_are_refused(kind: Any, wrong: dict[str, float]) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        kind(**wrong)


# -- as on a live grid


def test_jobs_hold_their_nodes_while_processes_start_and_end() -> None:
    """The times of a live grid have the effect of longer run times, up to the limit."""
    rng = np.random.default_rng(31)
    for control in ("full", "limited", "none"):
        jobs, nodes, _ = random_grid(rng)
        policy = GridPolicy(mode="sharing", control=control)
        fits = np.flatnonzero(jobs.width <= max(nodes))
        jobs = jobs.take(fits)
        longer = jobs.replace(run_ms=np.minimum(jobs.run_ms + 7, jobs.estimate_ms))
        live = simulate_world(jobs, nodes, policy, live=LiveTimes(start_ms=5, end_ms=2), check=True)
        assert_same(live, simulate_world(longer, nodes, policy), control)


def test_a_start_on_several_sites_is_agreed_ahead() -> None:
    """A split job begins a margin after its placement; its nodes stay reserved until then."""
    jobs = Workload(job_id=[1, 2], submit_ms=[0, 1], width=[6, 1], estimate_ms=[100, 50], run_ms=[100, 50])
    live = LiveTimes(start_ms=3, end_ms=4, margin_ms=20)
    result = simulate_world(jobs, [4, 2], GridPolicy(mode="multi-site"), live=live)
    assert result.start_ms.tolist() == [20, 120]
    assert result.end_ms.tolist() == [120, 170]
    shorter = jobs.replace(run_ms=np.array([90, 40]))
    assert simulate_world(shorter, [4, 2], GridPolicy(mode="multi-site"), live=live).end_ms.tolist() == [117, 164]


@pytest.mark.parametrize("times", [{"start_ms": -1}, {"end_ms": 10**9}])
def test_live_times_are_limited_to_a_day(times: dict[str, int]) -> None:
    with pytest.raises(OptionError, match="expected milliseconds from 0 to 86400000"):
        LiveTimes(**times)


def test_answers_of_polled_sites_wait_for_the_next_poll() -> None:
    """A site that is polled every 3 s receives messages at once; the grid learns of free nodes at a poll."""
    jobs = Workload(job_id=[1, 2], submit_ms=[500, 600], width=[2, 2], estimate_ms=[4000, 10], run_ms=[4000, 10])
    started = simulate_world(jobs, [2], GridPolicy(), network=Network(look_ms=3000)).start_ms.tolist()
    assert started == [500, 6000]
    own = simulate_world(jobs, [2], GridPolicy(), network=Network(look_ms=3000), to_grid=[False, False])
    assert own.start_ms.tolist() == [500, 4500]


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_polling_violates_no_invariant(control: str) -> None:
    split = 0
    for seed in range(40):
        rng = np.random.default_rng([seed, 79])
        workload, nodes, _ = random_grid(rng, tick=100)
        network = Network(look_ms=int(rng.choice((1, 700, 3000))), loss=float(rng.choice((0.0, 0.2))), latency_ms=5)
        result = simulate_world(workload, nodes, random_policy(rng, control), network=network, rng=rng, check=True)
        assert (result.ran | np.isin(workload.job_id, [job_id for job_id, _ in result.refused])).all()
        split += int((result.n_fragments > 1).sum())
    assert split > (5 if control != "none" else -1)


def test_a_negative_polling_interval_is_refused() -> None:
    with pytest.raises(OptionError, match="look_ms: is -1; expected milliseconds from 0 to 3600000"):
        Network(look_ms=-1)
