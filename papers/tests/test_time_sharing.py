"""The evaluations of time sharing beyond the paper: that they compare what they say, over the same jobs."""

from __future__ import annotations

from typing import NamedTuple, cast

import numpy as np
import pytest

from gridweave.scenarios.batch.simulate import simulate
from gridweave.scenarios.generators.registry import generate, load_model
from gridweave.scenarios.workload.table import Workload
from gridweave.site.policy import SitePolicy
from gridweave_papers.studies.report import Findings
from gridweave_papers.studies.streit import THESIS_TRACES, ThesisJobs, ThesisRuns, ThesisTrace
from gridweave_papers.studies.streit_grid import GridRuns
from gridweave_papers.studies.time_sharing import BF, GRID_LINES, LEVELS, LINES, report


def few_jobs(seed: int, nodes: int, load: float) -> Workload:
    """Return jobs of the model of CTC."""
    return generate(load_model("ctc-sp2"), 150, np.random.default_rng(seed), nodes=nodes, load=load)


class FewExtracts:
    """In the place of the extracts of CTC: a few jobs, some of them wider than a site."""

    def extract(self, name: str) -> Workload:
        """Return jobs on 512 nodes."""
        return few_jobs(3, 512, 2.0)


class FewJobs(NamedTuple):
    """In the place of the jobs of a trace: as much of them as the evaluation reads."""

    trace: ThesisTrace
    scheduled: Workload


class FewTraces(ThesisRuns):
    """Two of the four traces, of a few jobs."""

    def present(self) -> dict[str, ThesisJobs]:
        """Return the jobs of the traces."""
        traces = {key: THESIS_TRACES[key] for key in ("CTC", "KTH")}
        few = {key: FewJobs(trace, few_jobs(7, trace.nodes, 1.0)) for key, trace in traces.items()}
        return cast("dict[str, ThesisJobs]", few)

    def missing(self) -> tuple[str, ...]:
        """Return the names of the others."""
        return ("LANL", "SDSC")


@pytest.fixture(scope="module")
def at_sites() -> Findings:
    """Return the evaluation of grids."""
    return report("time-sharing-grid", cast("GridRuns", FewExtracts()))


def test_every_strategy_stands_beside_backfilling_on_every_trace() -> None:
    """Each trace has a row for each strategy, BF is EASY, and conclusions are judged by the slowdowns of the rows."""
    traces = FewTraces()
    findings = report("time-sharing", traces)
    (section,) = findings.sections
    assert [row.labels for row in section.rows] == [(key, line) for key in ("CTC", "KTH") for line in LINES]
    assert findings.missing == ("LANL", "SDSC")
    slowdown = {row.labels: row.values[0].ours for row in section.rows}
    awrt_s = {row.labels: row.values[1].ours for row in section.rows}
    for key, jobs in traces.present().items():
        easy = simulate(jobs.scheduled, jobs.trace.nodes, SitePolicy()).metrics()
        assert awrt_s[key, BF] == pytest.approx(easy.awrt_width_ms / 1000)
        better, worse = slowdown[key, "BGS-5"], slowdown[key, BF]
        assert better is not None
        assert worse is not None
        assert findings.conclusions[0].verdicts[key].holds is (better < worse)


def test_every_level_has_a_row_for_sites_that_share_time_and_for_those_that_do_not(at_sites: Findings) -> None:
    """The grids are those of the levels, and under full control the sites have nothing to slice."""
    (section,) = at_sites.sections
    assert len(section.rows) == len(LEVELS) * len(GRID_LINES)
    awrt_s = {row.labels: row.values[0].ours for row in section.rows}
    assert len({awrt_s["full", "sharing", line] for line in GRID_LINES}) == 1
    assert len({awrt_s["no grid", "local", line] for line in GRID_LINES}) == len(GRID_LINES)


def test_sites_that_share_time_take_no_parts(at_sites: Findings) -> None:
    """Adaptive multi-site splits jobs over sites with backfilling, and none over sites that share time."""
    split_jobs = {row.labels: row.values[2].ours for row in at_sites.sections[0].rows}
    assert (split_jobs["full", "adaptive", BF] or 0) > 0
    assert split_jobs["full", "adaptive", "BGS-5"] == 0
