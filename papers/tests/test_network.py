"""What the links between sites cost: the runs behind the study, and what holds for them whatever the figures are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gridweave_papers.registry import GROUPS, resolve
from gridweave_papers.studies.network import (
    PLACES,
    SENDING,
    Case,
    NetworkRuns,
    by_period,
    overheads_of,
    weighted_overhead,
)
from gridweave_papers.studies.streit_grid import GridRuns


def test_the_study_is_known_by_its_name() -> None:
    """The command knows it alone and among the evaluations beyond the papers."""
    assert resolve(["network"]) == ["network"]
    assert "network" in GROUPS["beyond"]


@pytest.fixture
def runs(trace_path: Callable[[str], Path]) -> NetworkRuns:
    """Return the runs on the extract."""
    return NetworkRuns(GridRuns(trace_path("CTC-SP2-1996-3.1-cln")))


@pytest.mark.trace
def test_jobs_that_send_nothing_are_split_for_nothing(runs: NetworkRuns) -> None:
    """Without communication the network is the constant p = 0, job by job."""
    ours, constant = runs.result(Case("multi-site")), runs.constant(0.0)
    assert ours.start_ms.tolist() == constant.start_ms.tolist()
    assert ours.end_ms.tolist() == constant.end_ms.tolist()
    assert weighted_overhead(ours) == 0


@pytest.mark.trace
def test_more_communication_is_a_larger_p(runs: NetworkRuns) -> None:
    """For every pattern p grows with the fraction, and the mean lies among those of the jobs."""
    for pattern in SENDING:
        little, much = (runs.result(Case("adaptive", pattern, fraction=fraction)) for fraction in (0.01, 0.1))
        assert 0 < weighted_overhead(little) < weighted_overhead(much)
        assert overheads_of(much).min() <= weighted_overhead(much) <= overheads_of(much).max()


@pytest.mark.trace
def test_the_cut_is_that_of_the_busiest_link(runs: NetworkRuns) -> None:
    """The link that is cut is on a path between sites; before the cut the schedule is that of the whole network."""
    topology, paths = runs.topology, runs.model.paths
    assert topology.sites == PLACES[runs.source]
    crossed = {
        int(topology.cable[link]) for one in range(4) for other in range(4) for link in paths.between(one, other)
    }
    assert runs.busiest_cable in crossed
    whole, cut = (runs.result(Case("adaptive", "ring", contention="dynamic", cut=one)) for one in ("none", "cut"))
    before = whole.start_ms < runs.cut_ms[0]
    assert whole.start_ms[before].tolist() == cut.start_ms[before].tolist()
    assert (whole.start_ms != cut.start_ms).any()
    assert all(np.isfinite(by_period(runs, cut)))
