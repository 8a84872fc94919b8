"""Playing a small grid through before the first job comes."""

from __future__ import annotations

import pytest

from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.grid.service.driver import warm_up


@pytest.mark.parametrize(
    ("control", "mode"),
    [("full", "sharing"), ("full", "adaptive"), ("limited", "sharing"), ("limited", "adaptive"), ("none", "sharing")],
)
def test_all_jobs_of_the_warming_end(control: str, mode: str) -> None:
    """Under every control the grid that is played comes to its end, so all that a job goes through was run."""
    settings = GridSettings(sites=(("north", 4), ("south", 2)), policy=GridPolicy(mode=mode, control=control))
    grid = warm_up(settings)
    grid.check_invariants()
    assert grid.registry.records
    assert {record.outcome for record in grid.registry.records.values()} == {"finished"}
    split = [record for record in grid.registry.records.values() if len(record.places) > 1]
    assert bool(split) == (mode == "adaptive")
