"""What a priority does at a site of each discipline: the table in docs/levels.md, held against what they do."""

from __future__ import annotations

from pathlib import Path

import pytest

from gridweave.errors import OptionError
from gridweave.site.disciplines.dictionary import DISCIPLINES, deciding, read_policy
from gridweave.site.disciplines.dynp.policy import DynPPolicy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Job, Resources
from gridweave.site.messages import Command, EvictJob, JobFinished, JobSubmitted, StartJob
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.scheduler.core import SiteCore
from gridweave.slurm.policy import BatchPolicy, PilotRules

PAGE = Path(__file__).parents[3] / "docs" / "levels.md"
LEVELS = (Level(name="high", priority=5, evicts=("low",)), Level(name="low", priority=0))


def table() -> dict[str, tuple[str, ...]]:
    """Return the rows of the table: what it says of levels, of evictions, and of what a priority does."""
    section = PAGE.read_text(encoding="utf-8").partition("## Disciplines with levels")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): tuple(cell.strip() for cell in row[1:4]) for row in rows}


def policies(name: str) -> tuple[Policy | None, Policy | None]:
    """Return a site of one node as a discipline usually is, and in the order `priority`; None if it has no such."""
    if name == "levels":
        return LevelsPolicy(levels=LEVELS), None
    if name == "heterogeneous":
        return HeterogeneousPolicy(nodes=1, classes=(NodeKind(name="plain", count=1),), levels=LEVELS), None
    if name == "dynp":
        return DynPPolicy(), DynPPolicy(policies=("priority", "fcfs"), decider="preferred", preferred="priority")
    try:
        ordered = read_policy(name, 1, {"order": "priority"}, {})
    except OptionError:
        ordered = None
    return read_policy(name, 1, {}, {}), ordered


def played(policy: Policy) -> list[Command]:
    """Return what becomes of a low job that runs, another one, and a high one that comes last."""
    core = SiteCore(1, policy)

    def comes(job_id: int, priority: float) -> list[Command]:
        # Each needs all memory of the node, so that no two take turns there.
        job = Job(job_id=job_id, width=1, estimate_ms=100_000, priority=priority, resources=Resources())
        return core.handle(job_id, JobSubmitted(job))

    commands = [*comes(1, 0), *comes(2, 0), *comes(3, 5)]
    return [*commands, *core.handle(50_000, JobFinished(1))]


def starts(commands: list[Command]) -> list[int]:
    """Return the jobs that start, in that order."""
    return [command.job_id for command in commands if isinstance(command, StartJob)]


def test_the_table_has_each_discipline() -> None:
    """Whoever adds a discipline says whether it has levels."""
    assert set(table()) == set(DISCIPLINES)


@pytest.mark.parametrize("name", sorted(set(DISCIPLINES) - {"slurm"}))
def test_each_discipline_does_what_the_table_says(name: str) -> None:
    """A high job evicts a low one just where the table says so; else it goes first in the order `priority` at most."""
    has_levels, evicts, priority = table()[name]
    usual, ordered = policies(name)
    assert usual is not None
    commands = played(usual)
    assert any(isinstance(command, EvictJob) for command in commands) == (evicts == "yes")
    assert hasattr(usual, "levels") == (has_levels == "yes") == ("determines the level" in priority)
    if has_levels == "no":
        assert starts(commands)[:2] == [1, 2], "the high job does not go first"
        assert (ordered is not None) == ("`priority`" in priority)
        assert priority.endswith("nothing")
    if ordered is not None:
        assert starts(played(ordered))[:2] == [1, 3], "in the order of priorities it does"


def test_in_pilots_the_discipline_that_decides_there_has_levels() -> None:
    """A site on Slurm evicts where its pilots have levels, and nowhere else."""
    assert table()["slurm"][:2] == ("in pilots", "in pilots")
    levels, alone = BatchPolicy(pilots=PilotRules(policy=LevelsPolicy(levels=LEVELS))), BatchPolicy()
    assert [SiteCore(1, policy).traits.evicts for policy in (levels, alone)] == [True, False]
    assert [hasattr(deciding(policy)[0], "levels") for policy in (levels, alone)] == [True, False]
