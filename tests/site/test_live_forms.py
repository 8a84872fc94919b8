"""A live site whose machines differ: jobs have forms, and the site chooses one and the machines for it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.site.disciplines.heterogeneous.machines import Cluster, Form
from gridweave.site.disciplines.heterogeneous.policy import HeterogeneousPolicy
from gridweave.site.disciplines.levels.rights import Level
from gridweave.site.job import Declined, DescribeJob, JobForm, JobRequest, Program, RecordUsage
from gridweave.site.known_times import EXPERIENCE, KnownTimes, read_times
from gridweave.site.messages import (
    DisciplineEdited,
    JobAction,
    Machine,
    MachineJoined,
    ReserveNodes,
    RunEnded,
    RunStarted,
    SendToGrid,
    StartRun,
    TakesUsers,
    UserSubmitted,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.resources.chunks import NodeKind
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import dump_state, read_state

NEVER = "none of its forms fits a machine or a cluster in service here"
OWN = 1_000_000_000_001
AGENTS = (Machine(name="m0", nodes=4), Machine(name="m1", nodes=2))
POLICY = HeterogeneousPolicy(
    nodes=6,
    classes=(
        NodeKind(name="old", count=4, memory_mb=256),
        NodeKind(name="new", count=2, speed=2.0, labels=("x86",)),
    ),
    clusters=(Cluster(name="a", nodes="0-3"), Cluster(name="b", nodes="4-5")),
    forms=(Form(), Form(job_class="cfd", width=4, speed=3.0)),
    levels=(Level(name="high", priority=2, users=("anna",)), Level(name="low", priority=0)),
)


def site(policy: Any = POLICY) -> LiveSite:
    """Return a site of two agents: four slow machines at one, two fast ones at the other."""
    return LiveSite(SiteSettings(name="north", number=0, machines=AGENTS, policy=policy))


def asked(*forms: JobForm, **options: Any) -> JobRequest:
    """Return a request for 60 s in one of these forms."""
    nodes = max((form.width for form in forms), default=1)
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=60_000, forms=forms, **options)


def starts(commands: list[Any]) -> list[tuple[str, int, tuple[int, ...], int, int]]:
    """Return the machine, the job, its nodes there, its ranks in all and its limit, of each order to start."""
    orders = [each for each in commands if isinstance(each, StartRun)]
    return [(o.machine, o.launch.job_id, o.slots, o.launch.size, o.launch.limit_ms or 0) for o in orders]


def test_a_job_starts_in_the_form_that_ends_first_on_the_agent_of_its_machines() -> None:
    """Two fast machines end sooner than one; when they are taken, a form for the four slow ones does. Limits follow."""
    north = site()
    both = asked(JobForm(width=2, on=("x86",), speed=1.5), JobForm(width=4, on=("old",), speed=2.0))
    commands = north.handle(0, UserSubmitted("one", both))
    assert starts(commands) == [("m1", OWN, (0, 1), 2, 20_000)]
    assert north.registry.records[OWN].places == (("north", 2),)
    commands = north.handle(1, UserSubmitted("two", both))
    # They would end at 30 s there, and at 40 s behind the first.
    assert starts(commands) == [("m0", OWN + 1, (0, 1, 2, 3), 4, 30_000)]
    north.handle(2, RunStarted("m1", OWN, 1), RunStarted("m0", OWN + 1, 1))
    commands = north.handle(9_000, RunEnded("m1", OWN, 1, "finished"))
    assert [(each.width, each.run_ms) for each in commands if isinstance(each, RecordUsage)] == [(2, 9_000)]
    assert north.registry.records[OWN].outcome == "finished"
    north.check_invariants()


def test_a_form_may_have_a_command_of_its_own() -> None:
    """The job runs the command of the form in which it starts, and its own in a form that names none."""
    north = site()
    forms = (
        JobForm(width=2, on=("x86",), speed=1.5, argv=("mpi", "-n", "2")),
        JobForm(width=4, on=("old",), speed=2.0),
    )
    commands = north.handle(0, UserSubmitted("one", asked(*forms)), UserSubmitted("two", asked(*forms)))
    launched = [each.launch for each in commands if isinstance(each, StartRun)]
    assert [(one.size, one.argv) for one in launched] == [(2, ("mpi", "-n", "2")), (4, ("true",))]
    again = site()
    again.restore(read_state(again, dump_state(north)))
    assert [each.launch for each in again.runs.orders("m0", "m1") if isinstance(each, StartRun)] == launched


def test_jobs_of_a_class_have_the_forms_of_the_class() -> None:
    """``--job-class cfd`` has the form that the site has for the class of that name; others run on one machine."""
    north = site()
    assert starts(north.handle(0, UserSubmitted("one", asked(job_class="cfd")))) == [
        ("m0", OWN, (0, 1, 2, 3), 4, 20_000)
    ]
    assert starts(north.handle(1, UserSubmitted("two", asked()))) == [("m1", OWN + 1, (0,), 1, 30_000)]


def test_a_site_learns_how_long_a_class_runs_by_its_name() -> None:
    """After one run of 5 s the next of its class is expected to be as short, and starts behind it."""
    north = site(HeterogeneousPolicy(nodes=6, classes=(NodeKind(name="all", count=6),)))
    north.handle(0, UserSubmitted("one", asked(job_class="short")), *[UserSubmitted(str(n), asked()) for n in range(5)])
    north.handle(1, *[RunStarted("m0" if n < 4 else "m1", OWN + n, 1) for n in range(6)])
    north.handle(5_000, RunEnded("m0", OWN, 1, "finished"), UserSubmitted("a", asked(job_class="short")))
    north.handle(5_001, UserSubmitted("b", asked()))
    told = north.forecast(5_001, OWN + 7)
    assert told is not None
    assert told.start_ms == 10_000
    known = [
        (one.job_class, one.user, one.resource, one.mean_ms) for one in read_times(north.core.site.answer(EXPERIENCE))
    ]
    # Users have no name here, so they are all number 0.
    assert known == [(None, 0, "", 5_000), ("short", None, "", 5_000), ("short", None, "all", 5_000)]


def test_a_site_learns_only_from_jobs_that_ended_well() -> None:
    """A run that failed, was cancelled or was lost teaches nothing; one that finished does."""
    north = site(HeterogeneousPolicy(nodes=6, classes=(NodeKind(name="all", count=6),)))
    north.handle(0, *[UserSubmitted(str(n), asked(job_class="x")) for n in range(4)])
    north.handle(1, *[RunStarted("m0", OWN + n, 1) for n in range(4)])
    north.handle(2, JobAction("cancel", (OWN + 1,)))
    for n, outcome in enumerate(("failed", "cancelled", "lost")):
        north.handle(50 + n, RunEnded("m0", OWN + n, 1, outcome))
    assert north.core.site.answer(EXPERIENCE) == []
    north.handle(60, RunEnded("m0", OWN + 3, 1, "finished"))
    assert {one.mean_ms for one in read_times(north.core.site.answer(EXPERIENCE))} == {60}


def test_an_outage_is_not_learned_as_run_time() -> None:
    """The job ended after 5 s, and its machine was away for 20 more: the next of its class is expected to take 5 s."""
    north = site(HeterogeneousPolicy(nodes=6, classes=(NodeKind(name="all", count=6),)))
    north.handle(0, UserSubmitted("one", asked(job_class="x")))
    north.handle(1, RunStarted("m0", OWN, 1))
    commands = north.handle(25_000, RunEnded("m0", OWN, 1, "finished", ran_ms=(10, 5_000)))
    assert [each.run_ms for each in commands if isinstance(each, RecordUsage)] == [5_000]
    assert {one.mean_ms for one in read_times(north.core.site.answer(EXPERIENCE))} == {5_000}


def test_what_a_live_site_knows_is_edited() -> None:
    """An operator knows that a class takes 8 s, and is believed from then on; what is forgotten is not known."""
    north = site(HeterogeneousPolicy(nodes=6, classes=(NodeKind(name="all", count=6),)))
    jobs = [UserSubmitted(str(number), asked(job_class="cfd", user="anna")) for number in range(7)]
    cfd = KnownTimes(job_class="cfd", resource="all", runs=3, mean_ms=8_000, deviation_ms=100)
    bert = KnownTimes(user="bert", runs=1, mean_ms=1_000)
    north.handle(0, DisciplineEdited(msgspec.to_builtins((cfd, bert))), *jobs)
    told = north.forecast(0, OWN + 6)
    assert told is not None
    assert told.start_ms == 8_000
    north.handle(1, DisciplineEdited(msgspec.to_builtins([msgspec.structs.replace(bert, runs=0)])))
    again = site(north.settings.policy)
    again.restore(read_state(again, dump_state(north)))
    for each in (north, again):
        assert read_times(each.core.site.answer(EXPERIENCE)) == [cfd]


@pytest.mark.parametrize(
    ("request_", "policy", "reason"),
    [
        (
            asked(JobForm(on=("gpu",)), JobForm(width=5)),
            POLICY,
            f"{NEVER}; 'gpu' is neither a class nor a label; expected one of new, old, x86",
        ),
        (
            asked(JobForm(memory_mb=999, on=("old",))),
            POLICY,
            NEVER,
        ),
        (
            asked(priority=2, user="bert"),
            POLICY,
            "priority 2 belongs to level 'high', which is for users anna; its user is bert",
        ),
        (
            asked(JobForm()),
            SitePolicy(),
            "its machines are all alike, and the job has forms; submit it with --nodes instead of --form",
        ),
        (
            asked(JobForm(argv=("a", "b\0"))),
            POLICY,
            "command: 'b\\x00' contains a NUL character, which the operating system does not accept",
        ),
        (asked(JobForm(speed=0.0)), POLICY, "form 1 has speed 0; expected above 0 and at most 10000"),
    ],
)
def test_what_cannot_run_is_declined_in_one_line(request_: JobRequest, policy: Any, reason: str) -> None:
    """Each says what was wrong, and where it helps what would be right; the user who may use a level is taken."""
    told = site(policy).handle(0, UserSubmitted("one", request_))
    assert [each.reason for each in told if isinstance(each, Declined)] == [reason]


def test_a_user_who_may_use_a_level_is_taken() -> None:
    """By name, as people are known live."""
    assert starts(site().handle(0, UserSubmitted("one", asked(priority=2, user="anna"))))


@pytest.mark.parametrize(("start_ms", "width"), [(None, 2), (50_000, 3)])
def test_a_job_of_the_grid_has_its_forms_unless_it_is_on_several_sites(start_ms: int | None, width: int) -> None:
    """The grid says how wide it is at most; a part of a larger job is as wide as that."""
    north = site()
    sites = ("north",) if start_ms is None else ("north", "south")
    request = asked(JobForm(width=2, on=("x86",)), JobForm(width=3, on=("gpu",)))
    described = DescribeJob(7, 1, request, 60_000, 0, 3, sites)
    north.handle(0, described, ReserveNodes(7, 1, 3, 60_000, start_ms))
    grant = north.core.grant_of(7)
    assert grant is not None
    assert sum(high - low for low, high in grant.nodes) == width


@pytest.mark.parametrize(("policy", "told"), [(POLICY, [True]), (SitePolicy(), [])])
def test_the_grid_hears_which_sites_take_forms(policy: Any, told: list[bool]) -> None:
    """A site whose machines differ says so when its first machine is there; by that the grid bars the others."""
    commands = site(policy).handle(0, MachineJoined("m0", "h"))
    messages = [each.message for each in commands if isinstance(each, SendToGrid)]
    assert [each.users.forms for each in messages if isinstance(each, TakesUsers)] == told


def test_a_quote_is_that_of_the_form_that_would_be_chosen() -> None:
    """How long a job would take, and on how many machines, is told of the form in which it would run."""
    quote = site().quote(0, asked(JobForm(on=("x86",))))
    assert (quote.start_ms, quote.length_ms, quote.places) == (0, 30_000, (("north", 1),))
    wide = site().quote(0, asked(JobForm(width=4, speed=3.0, on=("old",)), JobForm(on=("old",))))
    assert (wide.start_ms, wide.length_ms, wide.places) == (0, 20_000, (("north", 4),))
