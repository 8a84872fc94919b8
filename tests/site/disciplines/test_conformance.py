"""Every discipline that ships passes the conformance suite, and the suite finds what breaks its laws."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Self

import msgspec
import pytest
from typing_extensions import override

from gridweave.site.disciplines.base import Decisions, ExpectedRun, Traits
from gridweave.site.disciplines.dictionary import DISCIPLINES
from gridweave.site.disciplines.dynp.policy import CalendarEntry, DynPPolicy
from gridweave.site.disciplines.entry import Policy
from gridweave.site.disciplines.fractional.policy import FractionalPolicy
from gridweave.site.disciplines.gang.discipline import GangDiscipline
from gridweave.site.disciplines.gang.policy import GangPolicy
from gridweave.site.disciplines.heterogeneous.machines import Cluster
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.policy import LevelsPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.disciplines.optimal.policy import OptimalPolicy
from gridweave.site.disciplines.queue import SiteQueue, SiteQueueState
from gridweave.site.disciplines.sharing.policy import SharedNodes, SharingPolicy
from gridweave.site.explain import SiteReason
from gridweave.site.job import Job
from gridweave.site.policy import Limit, SitePolicy, Window
from gridweave.site.resources.chunks import NodeKind
from gridweave.testing import check_discipline

LEVELS = (
    Level(name="high", priority=2, evicts=("medium", "low")),
    Level(name="medium", priority=1, evicts=("low",)),
    Level(name="low", priority=0),
)
QUIET = tuple(Level(name=level.name, priority=level.priority) for level in LEVELS)
"""The same levels, none of which evicts another."""

LIMITS = (Limit(user=1, max_jobs=1), Limit(wider_than=2, max_nodes=4), Limit(user=2, window=Window(from_ms=3_000)))


def machines(**options: object) -> HeterogeneousPolicy:
    """Return the policy of a site with two classes of machines."""
    classes = (NodeKind(name="fast", count=2, speed=2.0), NodeKind(name="slow", count=4))
    clusters = (Cluster(name="c", nodes="2-5", minimum=2),)
    fixed = {"nodes": 6, "classes": classes, "clusters": clusters, "levels": LEVELS, "raise_after": 1}
    return HeterogeneousPolicy(**{**fixed, **options})


KINDS = (NodeKind(name="cpu", count=4, cores=4), NodeKind(name="gpu", count=2, cores=6, gpus=2))

POLICIES: dict[str, Policy] = {
    "queue": SitePolicy(),
    "queue, sjf": SitePolicy(order="sjf"),
    "queue, none": SitePolicy(backfill="none"),
    "queue, conservative": SitePolicy(backfill="conservative"),
    "queue, slack": SitePolicy(backfill="slack"),
    "queue, kinds": SitePolicy(kinds=KINDS),
    "queue, kinds, sjf, slack": SitePolicy(kinds=KINDS, order="sjf", backfill="slack", placement="worst-fit"),
    "queue, kinds, none": SitePolicy(kinds=KINDS, backfill="none", placement="first-fit"),
    "planning": SitePolicy(discipline="planning", order="sjf"),
    "planning, limits": SitePolicy(discipline="planning", limits=LIMITS),
    "dynp": DynPPolicy(),
    "dynp, limits": DynPPolicy(limits=LIMITS),
    "dynp, simple": DynPPolicy(decider="simple"),
    "dynp, bounds": DynPPolicy(decider="bounds"),
    "levels": LevelsPolicy(levels=LEVELS, evicted="checkpoint", raise_after=2),
    "levels, planned": LevelsPolicy(levels=LEVELS, under=SitePolicy(discipline="planning")),
    "levels, planned, none evicts": LevelsPolicy(levels=QUIET, under=SitePolicy(discipline="planning")),
    "levels, conservative, none evicts": LevelsPolicy(levels=QUIET, under=SitePolicy(backfill="conservative")),
    "levels, kinds": LevelsPolicy(levels=LEVELS, under=SitePolicy(kinds=KINDS), raise_after=2),
    "optimal": OptimalPolicy(most_jobs=5, effort_s=0.05),
    "lomarc": SharedNodes(sharing=SharingPolicy(coscheduling="always", load_threshold=0.0)),
    "gang": GangPolicy(mpl=3, slice_ms=100, switch_ms=5),
    "gang that moves": GangPolicy(mpl=3, slice_ms=100, migration="all", migration_ms=10, scheduling="discrete"),
    "fractional": FractionalPolicy(algorithm="MCB8*/per/OPT=MIN", period_ms=700, penalty_ms=50),
    "fractional, periods": FractionalPolicy(algorithm="/per/OPT=MIN", period_ms=700, penalty_ms=50),
    "fractional, stretch": FractionalPolicy(algorithm="/stretch-per/OPT=MAX", period_ms=700, penalty_ms=50),
    "fractional averages": FractionalPolicy(algorithm="GreedyPM*/OPT=AVG", penalty_ms=50),
    "machines": machines(),
    "machines that pause": machines(evicted="pause", algorithm="min-min"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_discipline_that_ships_conforms(name: str) -> None:
    """It keeps all the laws that the rest of gridweave relies on."""
    policy = POLICIES[name]
    check_discipline(DISCIPLINES[policy.discipline], [policy])


def test_all_that_ship_are_checked() -> None:
    """No discipline is left out, but for the name of a source of nodes."""
    assert {policy.discipline for policy in POLICIES.values()} == set(DISCIPLINES) - {"slurm"}


class Forgets(SiteQueue):
    """Restores no waiting job."""

    @override
    def restore(self, state: SiteQueueState) -> None:
        super().restore(state)
        for job, _ in list(self.waiting()):
            self.withdraw(0, job.job_id)


class SharesArrays(SiteQueue):
    """Copies nothing."""

    @override
    def copy(self) -> Self:
        return copy.copy(self)


class Hesitates(SiteQueue):
    """Decides in the second pass of an instant."""

    passed_ms = -1

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        is_first, self.passed_ms = self.passed_ms != now_ms, now_ms
        return Decisions() if is_first else super().run_pass(now_ms)


class Rests(SiteQueue):
    """Starts nothing, and promises nothing."""

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        return Decisions()

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        return None

    @override
    def explain(self, now_ms: int, job_id: int) -> SiteReason:
        return SiteReason(reason="it rests")


class Promises(SiteQueue):
    """Quotes a start at once for every job."""

    @override
    def expected_run(self, now_ms: int, job: Job) -> ExpectedRun | None:
        return None if self.why_never(job) else ExpectedRun(now_ms, job.width, job.estimate_ms)


class Cheats(SiteQueue):
    """Knows how often any site like it has decided."""

    passes = 0

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        Cheats.passes += 1
        return super().run_pass(now_ms) if Cheats.passes % 3 else Decisions()


class ForgetsLimits(SiteQueue):
    """Restores running jobs with another end."""

    @override
    def restore(self, state: SiteQueueState) -> None:
        super().restore(state)
        for run in list(self.running()):
            self.expect_end(0, run.job.job_id, run.end_by_estimate_ms + 1)


class NeverPauses(GangDiscipline):
    """Runs all jobs at once, whatever their time slices."""

    @override
    def run_pass(self, now_ms: int) -> Decisions:
        decisions = super().run_pass(now_ms)
        return msgspec.structs.replace(decisions, rates=[rate for rate in decisions.rates if rate.rate])


class KeepsLimits(SiteQueue):
    """Takes no other limit of a running job."""

    @override
    def expect_end(self, now_ms: int, job_id: int, end_ms: int) -> None:
        pass


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (Forgets, "a restored site differs"),
        (ForgetsLimits, "a restored site differs"),
        (SharesArrays, "a copy changes when the original does|changes the site|out of order|among the running|lost"),
        (Hesitates, "a second pass at the same instant decides more"),
        (Rests, "jobs wait forever on an idle site"),
        (Promises, "a job that was quoted a start now does not start"),
        (Cheats, "decides differently|decides more"),
        (KeepsLimits, "expect_end did not move the limit"),
    ],
)
def test_the_suite_names_the_law_that_is_broken(make: type[SiteQueue], law: str) -> None:
    """A discipline that breaks a law is found, with the law, the policy, the seed and the instant."""
    with pytest.raises(AssertionError, match=rf"queue, policy 'fcfs easy', seed \d, \d+ ms: .*({law})"):
        check_discipline(replace(DISCIPLINES["queue"], make=make))


def test_the_suite_finds_time_slices_that_overlap() -> None:
    entry = replace(DISCIPLINES["gang"], make=NeverPauses)
    with pytest.raises(AssertionError, match="two time-sliced jobs work on one node at the same time"):
        check_discipline(entry, [POLICIES["gang"]])


@pytest.mark.parametrize(
    ("name", "wrong", "law"),
    [
        ("planning", {"reserves": False}, "the trait reserves contradicts the method reserve"),
        ("queue", {"reserves": True}, "the trait reserves contradicts the method reserve"),
        ("queue", {"learns": True}, "the trait learns is declared, but SiteQueue has no method learn"),
        ("queue", {"columns": ("level",)}, "the trait columns is declared, but SiteQueue has no method figures"),
        ("queue", {"chooses_nodes": True}, "named none"),
        ("levels", {"columns": ("level",)}, "2 figures of a job do not match"),
        ("levels", {"columns": ()}, "Levels has a method figures, but the trait columns is not declared"),
        ("levels", {"evicts": False}, "a job is evicted without the trait evicts"),
        ("levels", {"saves_work": False}, "an evicted job keeps its work without the trait"),
        ("gang", {"chooses_nodes": False}, "although its traits rule that out"),
        ("gang", {"slices_time": False}, "a job pauses, but no trait allows it"),
        ("gang", {"shares_nodes": False}, "two jobs have the same node, but no trait allows it"),
        ("fractional", {"moves": False}, "a job moves without the trait moves"),
        ("lomarc", {"threads": (1, 1)}, "the threads of a start contradict the trait threads"),
        ("fractional", {"fractions": False}, "a start names a node twice"),
        ("fractional", {"elastic": True}, "a job starts although no node is present"),
        ("machines", {"forms": False}, "Heterogeneous has a method form_of, but the trait forms is not declared"),
        ("machines", {"learns": False}, "Heterogeneous has a method learn, but the trait learns is not declared"),
    ],
)
def test_the_suite_finds_a_trait_that_is_wrong(name: str, wrong: dict[str, Any], law: str) -> None:
    """A discipline that does more, or less, than its traits say is found."""
    policy = POLICIES[name]
    entry = DISCIPLINES[policy.discipline]
    traits = replace(entry.traits, **wrong)
    lies = replace(entry, traits=traits, traits_by=lambda policy: replace(entry.traits_of(policy), **wrong))
    with pytest.raises(AssertionError, match=law):
        check_discipline(lies, [policy])


def test_the_suite_finds_a_policy_that_changes_a_trait_of_every_policy() -> None:
    """Files are checked before there is a policy, so such a trait is read without one."""
    lies = replace(DISCIPLINES["queue"], traits_by=lambda policy: Traits(elastic=policy.order == "fcfs"))
    with pytest.raises(AssertionError, match=r"a policy changes Traits\.of_any_policy"):
        check_discipline(lies, [SitePolicy(order="sjf")])


def test_a_policy_whose_week_counts_says_so() -> None:
    """A discipline that depends on the time of the week, and does not declare it, is found."""
    calendar = (CalendarEntry(policy="ljf", window=Window(from_ms=0, to_ms=3_000)),)
    entry, policy = DISCIPLINES["dynp"], DynPPolicy(decider="calendar", calendar=calendar)
    check_discipline(entry, [policy])
    with pytest.raises(AssertionError, match="decides differently"):
        check_discipline(replace(entry, traits_by=None), [policy])
