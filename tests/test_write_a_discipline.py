"""The discipline that docs/write-a-discipline.md writes does what the page says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.site.core import SiteCore
from gridweave.site.disciplines.dictionary import DISCIPLINES, read_policy
from reference.model import Job
from stepping import step

PAGE = Path(__file__).parent.parent / "docs" / "write-a-discipline.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the names that the code of the page defines; its discipline is in the dictionary."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    code = "\n".join(blocks)
    assert sum(bool(line.strip()) for line in code.splitlines()) < 100
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(code, str(PAGE), "exec"), names)
    monkeypatch.setitem(DISCIPLINES, "fair", names["FAIR"])
    return names


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
    rng, nodes = np.random.default_rng(seed), 6
    most = int(rng.integers(3, nodes + 1))
    submits = np.sort(rng.integers(0, 60, 30)).tolist()
    jobs = [
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
    core = SiteCore(nodes, page["FairPolicy"](nodes_per_user=most))
    assert step(core, jobs).start == expected(jobs, nodes, most)


def test_the_page_is_an_entry(page: dict[str, Any]) -> None:
    """The options of a scenario's site come to its policy, and those that it does not know are refused."""
    assert read_policy("fair", 4, {"order": None}, {"order": "sjf", "backfill": "easy"}) == page["FairPolicy"]()
    with pytest.raises(OptionError, match="is not for a fair site"):
        read_policy("fair", 4, {"order": "sjf"}, {})
    with pytest.raises(OptionError, match="at least 1"):
        page["FairPolicy"](nodes_per_user=0)
