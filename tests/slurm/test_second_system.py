"""A batch system other than Slurm is one entry in a dictionary: whatever drives a site finds it there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest

from gridweave.errors import OptionError
from gridweave.slurm.service.dictionary import SYSTEMS
from gridweave.slurm.service.site import check_plan, make_reconciler
from gridweave.slurm.system import BatchPlan, BatchUser
from support.slurm import FakeBatch, kept_site


class BellSettings(msgspec.Struct, frozen=True):
    """Which bell is rung for nodes."""

    bell: str


class Bell(FakeBatch):
    """A batch system that is made up."""

    made: ClassVar[list[Bell]] = []

    def __init__(self, settings: BellSettings) -> None:
        super().__init__()
        self.settings = settings
        self.made.append(self)

    async def check(self, users: Iterable[BatchUser] = ()) -> tuple[str, ...]:
        """Tell for whom the bell is."""
        return (f"{self.settings.bell} is for {', '.join(sorted(user.account for user in users))}",)


@pytest.mark.asyncio
async def test_a_second_system_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is checked with the users of the plan, and asked for the nodes of jobs."""
    monkeypatch.setitem(SYSTEMS, "bell", Bell)
    users = {"anna": BatchUser(account="physics")}
    plan = BatchPlan(system="bell", settings=BellSettings("the large one"), folder=str(tmp_path / "x"), users=users)
    assert await check_plan(plan, 4) == ("the large one is for physics",)
    async with kept_site(tmp_path) as site:
        site.hub, site.reconciler = make_reconciler(site.driver, site.shared, plan)
        await site.round()
        await site.submit()
        await site.round()
        assert len(Bell.made[-1].asked) == 1
        assert not site.batch.asked


@pytest.mark.asyncio
async def test_a_system_that_nobody_knows(tmp_path: Path) -> None:
    """One line says which there are."""
    with pytest.raises(OptionError, match=r"^system: 'pbs' is not a batch system; expected one of slurm$"):
        await check_plan(BatchPlan(system="pbs", settings=None, folder=str(tmp_path)), 4)
