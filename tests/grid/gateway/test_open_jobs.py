"""Which jobs count as new ones of a user, and for how long a key is remembered."""

from __future__ import annotations

import pytest

from gridweave.grid.gateway import limits as module
from gridweave.grid.gateway.limits import OpenJobs
from gridweave.grid.gateway.problems import RefusalError
from gridweave.site.job import Accepted
from support.gateway import FakeBackend


def hand_in(jobs: OpenJobs, *numbers: int) -> None:
    """Hand in jobs of one user, each with its number as its key; all are taken in."""
    named = [(str(number), "anna") for number in numbers]
    with jobs.admitting(named) as answered:
        answered([Accepted(key, int(key)) for key, _ in named])


@pytest.mark.asyncio
async def test_a_key_is_known_until_many_others_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is handed in again is no new one while few others were taken in since; what is older is forgotten."""
    monkeypatch.setattr(module, "_KEYS", 3)
    jobs = OpenJobs(FakeBackend(), 8)
    await jobs.load()
    for number in range(1, 9):
        hand_in(jobs, number)
        assert jobs.count("anna") == number
    with pytest.raises(RefusalError, match="has 8 open jobs and submits 1 more; at most 8"):
        hand_in(jobs, 9)
    hand_in(jobs, 6, 7, 8)
    assert jobs.count("anna") == 8
    with pytest.raises(RefusalError, match="submits 1 more"):
        hand_in(jobs, 1)
