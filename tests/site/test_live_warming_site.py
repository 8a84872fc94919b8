"""Playing a small site through before the first job comes."""

from __future__ import annotations

import pytest

from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.sharing.policy import SharedNodes
from gridweave.site.messages import Machine
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.service.site_driver import warm_up

POLICIES = [SitePolicy(), SitePolicy(discipline="planning"), SitePolicy(backfill="conservative"), SharedNodes()]


@pytest.mark.parametrize("policy", POLICIES, ids=["queue", "planning", "conservative", "shared"])
def test_all_jobs_of_the_warming_run(policy: Policy) -> None:
    """Under every discipline the own users' jobs end, and the committed hold of the grid starts."""
    settings = SiteSettings(name="north", number=0, machines=(Machine(name="m0", nodes=4),), policy=policy)
    site = warm_up(settings)
    site.check_invariants()
    assert [record.outcome for record in site.registry.records.values()] == ["finished"] * 4
    assert site.core.part_state(2) == "running"
