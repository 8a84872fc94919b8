"""The discipline that docs/write-a-discipline.md writes does what the page says."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.cli.options import own_options
from gridweave.errors import InputError, OptionError
from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.workload.table import Workload
from gridweave.site.disciplines.base import Decisions, Start, Traits
from gridweave.site.disciplines.compiled import Compiled
from gridweave.site.disciplines.dictionary import DISCIPLINES, read_policy
from gridweave.site.disciplines.entry import Entry, SiteOutcome
from gridweave.site.job import Running
from gridweave.site.messages import JobFinished, JobSubmitted
from gridweave.site.policy import SitePolicy
from gridweave.site.scheduler.core import SiteCore
from gridweave.site.state import dump_state, read_state
from reference.model import Job
from support.commands import blocks, install_fair, run_python
from support.stepping import site_job, step


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the code of the page defines; its discipline is in the dictionary, with the metric."""
    files = blocks()
    assert sum(bool(line.strip()) for line in files["gridweave_fair.py"].splitlines()) <= 60
    names: dict[str, Any] = {"__name__": "page"}
    for name in ("gridweave_fair.py", "metrics.py"):
        exec(compile(files[name], name, "exec", dont_inherit=True), names)
    names["FAIR"] = replace(names["FAIR"], metrics=names["spread"])
    monkeypatch.setitem(DISCIPLINES, "fair", names["FAIR"])
    return names


def drawn(seed: int, nodes: int, most: int) -> list[Job]:
    """Return some jobs of three users, in the order of submission."""
    rng = np.random.default_rng(seed)
    submits = np.sort(rng.integers(0, 60, 30)).tolist()
    return [
        Job(
            number + 1,
            submit,
            width=int(rng.integers(1, most + 1)),
            estimate=int(rng.integers(1, 20)),
            run=int(rng.integers(1, 22)),
            user=int(rng.integers(0, 3)),
        )
        for number, submit in enumerate(submits)
    ]


def workload_of(jobs: list[Job], **columns: list[int]) -> Workload:
    """Return jobs of the reference as a workload."""
    run, estimate = (np.array([getattr(job, name) for job in jobs]) for name in ("run", "estimate"))
    return Workload(
        job_id=[job.id for job in jobs],
        submit_ms=[job.submit for job in jobs],
        width=[job.width for job in jobs],
        estimate_ms=estimate,
        run_ms=np.minimum(run, estimate),
        overran=run > estimate,
        columns={"user": [job.user for job in jobs], **columns},
    )


def expected(jobs: list[Job], nodes: int, most: int) -> dict[int, int]:
    """Return when each job starts, millisecond by millisecond, straight from the rule of the page."""
    start: dict[int, int] = {}
    now = 0
    while len(start) < len(jobs):
        waits = [job for job in jobs if job.submit <= now and job.id not in start]
        while True:
            runs = [job for job in jobs if job.id in start and now < start[job.id] + min(job.run, job.estimate)]
            has = {job.user: sum(other.width for other in runs if other.user == job.user) for job in waits}
            may = sorted((has[job.user], job.submit, job.id) for job in waits if has[job.user] + job.width <= most)
            chosen = next((job for job in waits if may and job.id == may[0][2]), None)
            if chosen is None or chosen.width > nodes - sum(job.width for job in runs):
                break
            start[chosen.id] = now
            waits.remove(chosen)
        now += 1
    return start


@pytest.mark.parametrize("seed", range(20))
def test_the_page_schedules_as_it_says(page: dict[str, Any], seed: int) -> None:
    """The schedule is the one that follows from the rule alone, and the state never contradicts itself."""
    nodes = 6
    most = 3 + seed % 4
    jobs = drawn(seed, nodes, most)
    policy, start = page["FairPolicy"](nodes_per_user=most), expected(jobs, nodes, most)
    assert step(SiteCore(nodes, policy), jobs).start == start
    result = simulate(workload_of(jobs), nodes, policy, check=True)
    assert dict(zip(result.workload.job_id.tolist(), result.start_ms.tolist(), strict=True)) == start
    waits = [start[job.id] - job.submit for job in jobs]
    assert result.own_metrics == {"wait_spread_ms": max(waits) - min(waits)}
    assert result.summary()["own_metrics"] == result.own_metrics
    assert result.summary()["options"]["nodes_per_user"] == most


def test_a_site_goes_on_from_the_state_of_the_page(page: dict[str, Any]) -> None:
    """What a journal keeps of such a site is enough to go on."""
    policy = page["FairPolicy"](nodes_per_user=3)
    jobs = drawn(1, 6, 3)
    first, second = SiteCore(6, policy), SiteCore(6, policy)
    for job in jobs[:10]:
        first.handle(job.submit, JobSubmitted(site_job(job)))
    second.restore(read_state(second, dump_state(first)))
    assert [*second.waiting()] == [*first.waiting()] != []
    running = [run.job.job_id for run in first.running()]
    done = [JobFinished(job_id) for job_id in running]
    assert second.handle(70, *done) == first.handle(70, *done) != []


def test_a_discipline_tells_more_of_its_jobs(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Figures of jobs come to the result and its files, metrics may use them, and jobs that never start have 0."""

    class Telling(page["Fair"]):  # type: ignore[misc]
        passes = 0

        def run_pass(self, now_ms: int) -> Any:
            self.passes += 1
            return super().run_pass(now_ms)

        def figures(self, now_ms: int, job_id: int) -> tuple[float, ...]:
            return (self.runs[job_id].job.user + now_ms / 4,)

        def totals(self) -> dict[str, float]:
            return {"passes": self.passes}

    def metrics(played: SiteOutcome) -> dict[str, float]:
        assert played.run_ms.tolist() == [10, 20]
        return {
            "passes": played.totals["passes"],
            "marks": float(played.columns["mark"].sum()),
            "nothing": float("nan"),
        }

    entry = replace(page["FAIR"], make=Telling, traits=Traits(columns=("mark",)), metrics=metrics)
    monkeypatch.setitem(DISCIPLINES, "fair", entry)
    jobs = [Job(1, 0, 2, 10, 10, user=5), Job(2, 0, 9, 10, 10, user=5), Job(3, 0, 2, 20, 20, user=6)]
    cancelled = [*jobs, Job(4, 1, 2, 20, 20, user=6)]
    result = simulate(workload_of(cancelled, cancel_ms=[-1, 50, -1, 5]), 2, page["FairPolicy"]())
    assert result.start_ms.tolist() == [0, -1, 10, -1]
    assert result.refused == ((2, "it needs 9 nodes, and a user has at most 2"),)
    assert result.cancelled.tolist() == [False, False, False, True]
    assert result.columns["mark"].tolist() == [7.5, 0, 13.5, 0]
    assert result.own_metrics["marks"] == 21
    assert result.own_metrics["passes"] == 5
    assert result.summary()["own_metrics"]["nothing"] is None
    result.write(tmp_path, plots=False)
    lines = (tmp_path / "jobs.csv").read_text().splitlines()
    assert lines[0].endswith(",killed,mark")
    assert [line.rpartition(",")[2] for line in lines[1:]] == ["7.5", "0.0", "13.5", "0.0"]


def test_jobs_that_wait_for_ever_are_an_error(page: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A discipline that lets a job wait on an idle site is named, rather than a schedule without it returned."""

    class Idle(page["Fair"]):  # type: ignore[misc]
        def run_pass(self, now_ms: int) -> Decisions:
            return Decisions()

    monkeypatch.setitem(DISCIPLINES, "fair", replace(page["FAIR"], make=Idle))
    with pytest.raises(InputError, match="the discipline fair leaves 30 jobs waiting on an idle site, the first job 1"):
        simulate(workload_of(drawn(0, 6, 3)), 6, page["FairPolicy"]())


class GreedyPolicy(msgspec.Struct, frozen=True):
    """How a site with the compiled discipline of the page schedules."""

    reach: int
    discipline: str = "greedy"
    label: str = "greedy"


def test_the_compiled_discipline_of_the_page(
    page: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Played by the compiled loop and stepped in plain Python, the rule of the page gives one schedule."""
    for name, code in blocks().items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    greedy = importlib.import_module("greedy.compiled")

    class Greedy(page["Fair"]):  # type: ignore[misc]
        def why_never(self, job: Any) -> str | None:
            return f"the site has {self.nodes} nodes" if job.width > self.nodes else None

        def run_pass(self, now_ms: int) -> Decisions:
            started, passed = [], 0
            for job in self.queue:
                if job.width > self.free or passed == self.policy.reach:
                    passed = min(passed + 1, self.policy.reach)
                else:
                    self.runs[job.job_id] = Running(job, now_ms, now_ms + job.estimate_ms)
                    started.append(job)
            self.queue = [job for job in self.queue if job not in started]
            return Decisions([Start(job) for job in started])

    entry = Entry(
        name="greedy",
        about="what fits starts",
        make=Greedy,
        read=lambda nodes, given, usual: GreedyPolicy(given["reach"]),
        compiled=Compiled(site=greedy.compiled_site),
    )
    monkeypatch.setitem(DISCIPLINES, "greedy", entry)
    differ = 0
    for seed in range(40):
        jobs, policy = workload_of(drawn(seed, 7, 7)), GreedyPolicy(1 + seed % 5)
        compiled, stepped = (simulate(jobs, 6, policy, driver=driver) for driver in ("batch", "core"))
        assert compiled.start_ms.tolist() == stepped.start_ms.tolist(), seed
        assert compiled.refused == stepped.refused
        differ += compiled.start_ms.tolist() != simulate(jobs, 6, SitePolicy()).start_ms.tolist()
    assert differ > 20


def test_no_file_of_the_batch_driver_names_a_discipline() -> None:
    """Whoever adds a discipline with kernels leaves the loop and its callers as they are."""
    folder = Path(__file__).parent.parent / "scenarios" / "batch"
    views = {"slices.py"}  # draws the matrix of gang scheduling
    own = [name for name, entry in DISCIPLINES.items() if entry.table is not None]
    for file in folder.rglob("*.py"):
        if file.name not in views:
            text = file.read_text(encoding="utf-8")
            assert not re.findall(rf"site\.disciplines\.(?!dictionary|entry|compiled)|\b({'|'.join(own)})\b", text), (
                file
            )


def test_the_dictionary_knows_disciplines_by_their_names() -> None:
    """Each place has the entry of that name."""
    assert [entry.name for entry in DISCIPLINES.values()] == list(DISCIPLINES)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the package of the page is installed."""
    return install_fair(tmp_path_factory.mktemp("fair"))


def gridweave(installed: Path, *arguments: object) -> str:
    """Run the command where the package of the page is installed; return its output."""
    return run_python("-c", "from gridweave.cli.main import run; run()", *arguments, path=installed).stdout


def test_the_installed_package_conforms(installed: Path) -> None:
    """The discipline of the page passes the conformance suite, found by its entry point."""
    code = (
        "from gridweave.site.disciplines.dictionary import DISCIPLINES\n"
        "from gridweave.testing import check_discipline\n"
        "from gridweave_fair import FAIR, FairPolicy\n"
        "assert DISCIPLINES['fair'] is FAIR\n"
        "check_discipline(FAIR, [FairPolicy(), FairPolicy(nodes_per_user=3)])\n"
    )
    run_python("-c", code, path=installed)


def test_the_command_knows_the_installed_discipline(installed: Path, tmp_path: Path) -> None:
    """The options are there by their names, and several values are compared."""
    jobs = drawn(3, 6, 2)
    rows = [
        f"{one.id} {one.submit} -1 {one.run} {one.width} -1 -1 {one.width} {one.estimate} -1 1 {one.user}"
        for one in jobs
    ]
    trace = tmp_path / "jobs.swf"
    trace.write_text("".join(f"{row} -1 -1 -1 -1 -1 -1\n" for row in rows))
    asked = ("--nodes", 6, "--discipline", "fair", "--option", "nodes_per_user=2,4", "--json")
    results = json.loads(gridweave(installed, "simulate", trace, *asked))
    assert [result["label"] for result in results] == ["fair up to 2", "fair up to 4"]
    for result, most in zip(results, (2, 4), strict=True):
        start = expected(jobs, 6, most)
        mean_ms = 1_000 * sum(start[job.id] - job.submit for job in jobs) / len(jobs)
        assert result["metrics"]["awt_ms"] == pytest.approx(mean_ms)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("most=2", "--option: most: is not known; known are nodes_per_user"),
        ("nodes_per_user=many", "--option: nodes_per_user: is 'many'; a whole number is needed"),
        ("nodes_per_user", "--option: 'nodes_per_user' is not key=value, nor @FILE"),
    ],
)
def test_own_options_are_checked(page: dict[str, Any], text: str, problem: str) -> None:
    """An option that the discipline does not know, or that makes no sense, is named with what would be right."""
    with pytest.raises(InputError, match=re.escape(problem)):
        own_options(page["FAIR"], [text])
    with pytest.raises(OptionError, match="the discipline queue has no options of its own"):
        own_options(DISCIPLINES["queue"], [text])


def test_a_scenario_knows_the_installed_discipline(installed: Path, tmp_path: Path) -> None:
    """A site of a scenario has the discipline and its options, by itself under mode local, and beside the grid."""
    file = tmp_path / "fair.toml"
    file.write_text("""
workload = { generator = "lublin", jobs = 60, nodes = 16 }
grid = { mode = "local", control = "limited" }

[[sites]]
name = "north"
nodes = 16
discipline = "fair"
fair = { nodes_per_user = 16 }

[[sites]]
name = "south"
nodes = 16
""")
    assert "AWRT" in gridweave(installed, "run", file)
    assert "AWRT" in gridweave(installed, "run", file, "--set", "grid.mode=sharing")


def test_the_page_is_an_entry(page: dict[str, Any]) -> None:
    """The options of a scenario's site come to its policy, and those that it does not know are refused."""
    assert read_policy("fair", 4, {"order": None}, {"order": "sjf", "backfill": "easy"}) == page["FairPolicy"]()
    with pytest.raises(OptionError, match="is not for a fair site"):
        read_policy("fair", 4, {"order": "sjf"}, {})
