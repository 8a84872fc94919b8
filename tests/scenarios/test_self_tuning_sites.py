"""Sites that tune themselves where others stand: in a scenario, beside a grid in the simulated world, and live."""

from __future__ import annotations

from pathlib import Path

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.scenario.build import build_scenario
from gridweave.scenarios.scenario.run import run_scenario
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.job import JobRequest, Program
from gridweave.site.messages import Machine, UserSubmitted
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import OWN_IDS, LiveSite

MINUTE_MS = 60_000

FILE = """
workload = { generator = "lublin", jobs = 150, nodes = 32, load = 1.1 }
grid = { mode = "MODE", control = "limited" }

[[sites]]
name = "north"
nodes = 32
discipline = "dynp"
dynp = { decider = "preferred", preferred = "sjf", policies = "fcfs+sjf+ljf+saf", slackness_pct = 1 }
"""


def test_a_scenario_has_self_tuning_sites(tmp_path: Path) -> None:
    """Under mode local a site of a scenario tunes itself as its table says, and its metrics bear its name."""
    file = tmp_path / "tuning.toml"
    file.write_text(FILE.replace("MODE", "local"))
    built = build_scenario(file)
    policy = DynPPolicy(decider="preferred", preferred="sjf", policies=("fcfs", "sjf", "ljf", "saf"), slackness_pct=1)
    assert built.site_policies[0] == policy
    run = run_scenario(file)
    alone = simulate(built.workload, 32, policy)
    assert run.start_ms.tolist() == alone.start_ms.tolist()
    assert dict(run.own_metrics)["north.sjf_time_pct"] == alone.own_metrics["sjf_time_pct"] > 0


def test_a_self_tuning_site_beside_a_grid(tmp_path: Path) -> None:
    """In the simulated world, with the grid handing jobs to a single site at once, the schedule is that of the site."""
    file = tmp_path / "tuning.toml"
    file.write_text(FILE.replace("MODE", "sharing"))
    run, built = run_scenario(file), build_scenario(file)
    alone = simulate(built.workload, 32, built.site_policies[0])
    assert run.ran.all()
    assert run.start_ms.tolist() == alone.start_ms.tolist()


def test_a_live_site_names_the_policy_in_force() -> None:
    """A forecast and a quote of a live site end with the policy in force, and the rule by which a start may move."""
    machines = (Machine(name="m0", nodes=4),)
    core = LiveSite(SiteSettings(name="north", number=0, policy=DynPPolicy(), machines=machines))
    for number, minutes in enumerate((60, 600, 6)):
        wanted = JobRequest(program=Program(argv=("true",)), nodes=4, limit_ms=minutes * MINUTE_MS)
        core.handle(number, UserSubmitted(f"key {number}", wanted))
    rule = "the plan with the best artww decides again at each submission and end, and the start may move"
    forecast = core.forecast(3, OWN_IDS + 2)
    assert forecast is not None
    assert forecast.start_ms == 66 * MINUTE_MS
    assert forecast.reason.endswith(f"; the policy sjf is in force, {rule}")
    quote = core.quote(3, JobRequest(program=Program(argv=("true",)), nodes=1, limit_ms=MINUTE_MS))
    assert quote.reason.endswith(rule)
