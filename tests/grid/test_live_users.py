"""Which users a site takes is its own to say: the grid places by it, explains it, and is refused if it asks anyway."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.grid.messages import FromLiveSite, SendToSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy
from gridweave.site.job import Accepted, Declined, DescribeJob, Job, JobRequest, Noted, Program
from gridweave.site.launch import AcceptedUsers
from gridweave.site.messages import (
    Ended,
    Enqueued,
    EnqueueJob,
    JobAction,
    Machine,
    MachineJoined,
    MachineTakes,
    Quoted,
    Refused,
    RequestQuote,
    Reserved,
    ReserveNodes,
    SendToGrid,
    SiteChanged,
    Started,
    TakesUsers,
    UserSubmitted,
    WithdrawJob,
    Withdrawn,
)
from gridweave.site.policy import SitePolicy
from gridweave.site.run.runs import SiteSettings
from gridweave.site.scheduler.live import LiveSite
from gridweave.site.state import dump_state, read_state

NORTH, SOUTH = 0, 1
ANNA = AcceptedUsers(anyone=False, names=("anna",), is_mapped=True)
OWNER = AcceptedUsers(anyone=False, names=("olga",))
WHY = "it has no account for 'bert'; ask its operator to add one"


def job(key: str, user: str, nodes: int = 1) -> UserSubmitted:
    """Return the submission of a job."""
    request = JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=1000, user=user)
    return UserSubmitted(key, request, user)


def grid(control: str = "full", mode: str = "sharing") -> LiveGrid:
    """Return a grid of two sites, of which the northern one takes anna alone."""
    found = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode=mode, control=control)))
    do(found, 0, FromLiveSite(NORTH, TakesUsers(ANNA)))
    return found


def do(core: Any, now_ms: int, *events: Any) -> list[Any]:
    """Return what is commanded; the state must hold, and survive being written down."""
    commands = list(core.handle(now_ms, *events))
    core.check_invariants()
    again = type(core)(core.settings)
    again.restore(read_state(again, dump_state(core)))
    again.check_invariants()
    return commands


def asked(commands: list[Any], *kinds: type) -> list[tuple[int, Any]]:
    """Return what sites are asked for, of some kinds."""
    kinds = kinds or (ReserveNodes, EnqueueJob)
    return [(c.site, c.message) for c in commands if isinstance(c, SendToSite) and isinstance(c.message, kinds)]


def place(core: LiveGrid, now_ms: int, commands: list[Any]) -> list[tuple[int, Any]]:
    """Answer the quotes that sites are asked for, as idle sites would; return what they are asked for then."""
    found = asked(commands)
    quotes = [FromLiveSite(s, Quoted(q.quote_id, 4, now_ms)) for s, q in asked(commands, RequestQuote)]
    return found + (asked(do(core, now_ms, *quotes)) if quotes else [])


def refuse_for_good(core: LiveGrid, now_ms: int, commands: list[Any]) -> list[int]:
    """Have each site say that it can never run what it is asked for, or about; return which were asked."""
    sites = []
    while requests := asked(commands, RequestQuote, ReserveNodes, EnqueueJob):
        ((site, request), *_) = requests
        why = f"no machine of site {site} will do"
        if isinstance(request, RequestQuote):
            said: Any = Quoted(request.quote_id, 0, None, why, cause="never", takes_parts=False)
        else:
            said = Refused(1, request.attempt, why, "never")
        sites.append(site)
        commands = [
            *commands[commands.index(SendToSite(site, request)) + 1 :],
            *do(core, now_ms, FromLiveSite(site, said)),
        ]
    return sites


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_no_job_is_placed_where_its_user_is_not_taken(control: str) -> None:
    """Under every level of control; four jobs of bert's go to the south, whatever is free in the north."""
    core = grid(control)
    for number in range(4):
        commands = do(core, number, job(f"b{number}", "bert"))
        assert {site for site, _ in asked(commands, RequestQuote)} <= {SOUTH}
        assert [site for site, _ in place(core, number, commands)] == [SOUTH]
    taken = {site for site, _ in place(core, 9, do(core, 9, job("a", "anna"), job("a2", "anna", 4)))}
    assert NORTH in taken


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_no_site_takes_is_refused_at_once(control: str) -> None:
    """One line names each site and its reason; a job too wide for the sites that are left is refused as well."""
    core = grid(control)
    wide = do(core, 1, job("w", "bert", 5))
    assert [type(command) for command in wide] == [Declined]
    assert "only sites that accept it count" in wide[0].reason
    do(core, 2, FromLiveSite(SOUTH, TakesUsers(OWNER)))
    why = (
        f"no site accepts jobs of 'bert': north: {WHY}; south: it only runs jobs of 'olga', and this job is of 'bert'; "
    )
    why += "docs/launchers.md says how to run jobs of other users"
    assert do(core, 3, job("b", "bert")) == [Declined("b", why)]
    quote = core.quote(3, job("b", "bert").request)
    assert (quote.state, quote.reason) == ("refused", why)
    do(core, 4, FromLiveSite(SOUTH, TakesUsers(AcceptedUsers())))
    assert Accepted in [type(command) for command in do(core, 5, job("b", "bert"))]


def test_explain_says_which_site_does_not_take_the_user() -> None:
    """The row of the site has the site's own words, for a job that waits and for a quote."""
    core = grid()
    place(core, 1, do(core, 1, job("b", "bert", 4)))
    place(core, 2, do(core, 2, job("c", "bert", 4)))
    for found in (core.forecast(2, 2), core.quote(2, job("d", "bert").request)):
        assert found is not None
        north = next(row for row in found.sites if row.site == "north")
        assert (north.start_ms, north.reason) == (None, f"does not accept it: {WHY}")
        assert found.reason.startswith("some sites do not accept it, so it is delegated; ")


def test_the_story_tells_how_often_a_site_has_refused_a_job_that_it_took() -> None:
    """And when the site is asked again; what a site refuses at its door is told as it says it."""
    core = LiveGrid(GridSettings(sites=(("north", 4),), policy=GridPolicy(control="limited")))
    stories, now_ms, commands = [], 0, do(core, 0, job("b", "bert"))
    for cause in ("", "job", "job"):
        ((_, enqueued),) = place(core, now_ms, commands)
        told = do(core, now_ms, FromLiveSite(NORTH, Refused(1, enqueued.attempt, "cancelled there", cause)))
        stories += [note.detail for note in told if isinstance(note, Noted) and note.kind == "refused"]
        now_ms = core.next_wakeup_ms() or 0
        commands = do(core, now_ms)
    assert stories == [
        "at north: cancelled there",
        "at north: cancelled there; the site is asked again in 10 s",
        "at north: cancelled there; that was refusal 2 of 6, and the site is asked again in 20 s",
    ]


def test_the_queue_knows_which_nodes_jobs_apart_have() -> None:
    """What bert's delegated job has in the south the grid does not place others on, and has again when it ends."""
    core = grid()
    ((_, enqueued),) = place(core, 1, do(core, 1, job("b", "bert", 3)))
    do(
        core,
        2,
        FromLiveSite(SOUTH, Enqueued(1, enqueued.attempt)),
        FromLiveSite(SOUTH, Started(1, enqueued.attempt, 2)),
    )
    placed = asked(do(core, 3, job("a", "anna", 4), job("a2", "anna", 4)))
    assert [site for site, _ in placed] == [NORTH]
    assert [site for site, _ in asked(do(core, 4, FromLiveSite(SOUTH, Ended(1, enqueued.attempt, 4, "finished"))))] == [
        SOUTH
    ]


def test_a_plan_has_the_jobs_that_are_apart_from_the_queue() -> None:
    """Those of the queue with their starts; bert's, with the queue of the site at which the start is known."""
    core = grid()
    do(core, 1, job("a", "anna", 4), job("a2", "anna", 4), job("a3", "anna", 4))
    ((_, enqueued),) = place(core, 2, do(core, 2, job("b", "bert", 3)))
    do(core, 3, FromLiveSite(SOUTH, Enqueued(4, enqueued.attempt)))
    planned = {each.job_id: each for each in core.planner(3, 10)()}
    assert sorted(planned) == [3, 4]
    assert planned[3].start_ms is not None
    assert planned[4].queues == ("south",)
    assert len(core.planner(3, 1)()) == 1


def test_a_site_that_refuses_a_user_is_not_asked_again_for_that_user_alone() -> None:
    """The grid did not know; it places the job elsewhere, and goes on to give that site the jobs of others."""
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="sharing")))
    ((site, request),) = asked(do(core, 0, job("b", "bert")))
    assert site == NORTH
    commands = do(core, 1, FromLiveSite(NORTH, Refused(1, request.attempt, WHY, "user")))
    assert [site for site, _ in place(core, 1, commands)] == [SOUTH]
    assert [site for site, _ in asked(do(core, 2, job("a", "anna")))] == [NORTH]
    assert {site for site, _ in place(core, 3, do(core, 3, job("c", "bert")))} == {SOUTH}


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_no_site_can_ever_run_is_refused_and_holds_nobody_up(control: str) -> None:
    """Each site that says so is asked no more for that job; it asks no site for long, and those behind it start."""
    core = LiveGrid(
        GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="sharing", control=control))
    )
    sites = refuse_for_good(core, 1, do(core, 0, job("a", "anna")))
    assert (sorted(sites), core.registry.records[1].state) == ([NORTH, SOUTH], "refused")
    assert core.registry.records[1].reason == (
        "no site can run it: north: no machine of site 0 will do; south: no machine of site 1 will do"
    )
    assert len(place(core, 3, do(core, 3, job("b", "anna")))) == 1


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_what_is_said_of_a_refused_job_names_every_site(control: str) -> None:
    """The one that does not take its user as well as the one that can never run it."""
    core = grid(control)
    assert refuse_for_good(core, 2, do(core, 1, job("b", "bert"))) == [SOUTH]
    assert core.registry.records[1].reason == f"no site can run it: south: no machine of site 1 will do; north: {WHY}"


def test_of_a_job_that_is_cancelled_while_it_is_held_no_refusal_is_kept() -> None:
    """A site can never run it, it waits for the other, is held, and then wanted no more: the state knows none of it."""
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="sharing")))
    ((_, request),) = asked(do(core, 0, job("a", "anna")))
    commands = do(core, 1, FromLiveSite(NORTH, Refused(1, request.attempt, "no machine will do", "never")))
    ((_, enqueued),) = place(core, 1, commands)
    do(core, 2, JobAction("hold", (1,)))
    do(core, 3, FromLiveSite(SOUTH, Withdrawn(1, enqueued.attempt)))
    assert core.registry.records[1].state == "held"
    do(core, 4, JobAction("cancel", (1,)))
    assert core.registry.records[1].outcome == "cancelled"
    assert b"no machine will do" not in msgspec.json.encode(msgspec.structs.replace(core.state(), registry=None))


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_job_that_is_too_wide_without_a_site_that_takes_no_parts_is_refused(control: str) -> None:
    """Its user is told at once what is left, and why no more."""
    core = grid(control, "multi-site")
    commands = do(core, 0, job("a", "anna", 6))
    quotes = dict(asked(commands, RequestQuote))
    if quotes:
        said = [
            FromLiveSite(s, Quoted(q.quote_id, 4, None, "4 nodes", takes_parts=s == SOUTH)) for s, q in quotes.items()
        ]
    else:
        ((_, request), _) = asked(commands, ReserveNodes)
        said = [FromLiveSite(NORTH, Refused(1, request.attempt, "it runs no parts", "never"))]
    do(core, 1, *said)
    record = core.registry.records[1]
    assert record.state == "refused"
    assert record.reason.startswith("no site can run it: north: it runs no parts")
    assert "it needs 6 nodes and all sites together have 4" in record.reason


def test_a_job_that_one_site_can_never_run_goes_to_another() -> None:
    """The forecast says why not, also after a snapshot; a site that reports its accepted users again is asked again."""
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="sharing")))
    ((_, request),) = asked(do(core, 0, job("a", "anna")))
    commands = do(core, 1, FromLiveSite(NORTH, Refused(1, request.attempt, "no machine will do", "never")))
    ((site, enqueued),) = place(core, 1, commands)
    assert site == SOUTH
    do(core, 1, FromLiveSite(SOUTH, Enqueued(1, enqueued.attempt)))
    again = LiveGrid(core.settings)
    again.restore(read_state(again, dump_state(core)))
    for each in (core, again):
        forecaster = each.forecaster(2, 1)
        assert forecaster is not None
        assert [(one.site, one.reason) for one in forecaster().sites][NORTH] == (
            "north",
            "can never run it: no machine will do",
        )
    told = do(core, 3, FromLiveSite(NORTH, TakesUsers(AcceptedUsers())), FromLiveSite(NORTH, SiteChanged(0, 4)))
    assert [site for site, _ in asked(told, RequestQuote)] == [NORTH]


def test_jobs_that_wait_follow_what_sites_say() -> None:
    """One in the queue goes apart, one in the queue of a site is taken back, and one that nobody takes is refused."""
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="sharing")))
    do(core, 0, job("x", "anna", 4), job("y", "anna", 4), job("b", "bert", 2))
    commands = do(core, 1, FromLiveSite(NORTH, TakesUsers(ANNA)))
    ((site, enqueued),) = place(core, 1, commands)
    assert (site, enqueued.job.job_id) == (SOUTH, 3)
    do(core, 2, FromLiveSite(SOUTH, Enqueued(3, enqueued.attempt)))
    both = [FromLiveSite(NORTH, TakesUsers(AcceptedUsers())), FromLiveSite(SOUTH, TakesUsers(ANNA))]
    assert asked(do(core, 3, *both), WithdrawJob) == [(SOUTH, WithdrawJob(3, enqueued.attempt))]
    again = place(core, 4, do(core, 4, FromLiveSite(SOUTH, Withdrawn(3, enqueued.attempt))))
    assert [site for site, _ in again] == [NORTH]
    do(core, 5, FromLiveSite(NORTH, Withdrawn(3, again[0][1].attempt)))
    do(core, 6, FromLiveSite(NORTH, TakesUsers(ANNA)))
    assert core.registry.records[3].state == "refused"
    assert core.registry.records[3].reason.startswith("no site accepts jobs of 'bert'")


def say(core: LiveGrid, now_ms: int, users: AcceptedUsers, *sites: int) -> None:
    """Have sites say whom they take; they give back what is asked for."""
    told = do(core, now_ms, *(FromLiveSite(site, TakesUsers(users)) for site in sites or (NORTH, SOUTH)))
    for site, request in asked(told, WithdrawJob):
        do(core, now_ms, FromLiveSite(site, Withdrawn(request.job_id, request.attempt)))


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_waits_is_refused_when_no_site_takes_its_user_any_more(control: str) -> None:
    """In the queue of the grid or of a site, under every level of control; one line names each site and its reason."""
    policy = GridPolicy(mode="sharing", control=control)
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=policy))
    place(core, 0, do(core, 0, job("x", "anna", 4), job("y", "anna", 4)))
    place(core, 1, do(core, 1, job("b", "bert", 2)))
    say(core, 2, ANNA)
    record = core.registry.records[3]
    assert (record.state, record.reason) == ("refused", f"no site accepts jobs of 'bert': north: {WHY}; south: {WHY}")


@pytest.mark.parametrize("order", [(NORTH, SOUTH), (SOUTH, NORTH)])
def test_what_sites_say_at_one_instant_counts_together(order: tuple[int, int]) -> None:
    """In whichever order: a job that one of them takes from now on is not refused as the other one no longer does."""
    core = grid("limited")
    do(core, 1, job("b", "bert"))
    users = {NORTH: AcceptedUsers(), SOUTH: ANNA}
    do(core, 2, *(FromLiveSite(site, TakesUsers(users[site])) for site in order))
    assert core.registry.records[1].state == "waiting"


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_comes_at_the_instant_at_which_sites_say_whom_they_take_goes_by_that(control: str) -> None:
    """Whichever is heard first: it is refused if no site accepts its user, and asked for nowhere else if some do."""
    core = grid(control)
    news = [FromLiveSite(each, TakesUsers(ANNA)) for each in (NORTH, SOUTH)]
    (answer,) = [each for each in do(core, 1, job("a", "bert"), *news) if isinstance(each, Declined)]
    assert answer.reason.startswith("no site accepts jobs of 'bert'")
    core = grid(control)
    do(core, 0, FromLiveSite(NORTH, TakesUsers(AcceptedUsers())))
    commands = do(core, 1, job("a", "bert"), FromLiveSite(NORTH, TakesUsers(ANNA)))
    assert {site for site, _ in asked(commands, RequestQuote, ReserveNodes, EnqueueJob)} == {SOUTH}


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_is_too_wide_for_the_sites_that_still_take_its_user_is_refused(control: str) -> None:
    """As it would be if it were handed in then."""
    policy = GridPolicy(mode="sharing", control=control)
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 2)), policy=policy))
    place(core, 0, do(core, 0, job("x", "anna", 4)))
    place(core, 1, do(core, 1, job("b", "bert", 3)))
    say(core, 2, ANNA, NORTH)
    assert core.registry.records[2].state == "refused"
    (declined,) = do(core, 3, job("c", "bert", 3))
    assert core.registry.records[2].reason == f"{declined.reason}; north: {WHY}"


@pytest.mark.parametrize("control", ["full", "limited", "none"])
def test_a_job_that_runs_while_no_site_takes_its_user_goes_on_and_is_placed_again(control: str) -> None:
    """If it is lost after sites take its user again, what they said in between does not count any more."""
    policy = GridPolicy(mode="sharing", control=control)
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=policy))
    ((site, request),) = place(core, 0, do(core, 0, job("b", "bert", 2)))
    do(core, 1, FromLiveSite(site, Started(1, request.attempt, 1)))
    for number, users in enumerate((ANNA, AcceptedUsers())):
        do(core, 2 + number, FromLiveSite(NORTH, TakesUsers(users)), FromLiveSite(SOUTH, TakesUsers(users)))
    assert core.registry.records[1].state == "running"
    again = place(core, 5, do(core, 5, FromLiveSite(site, Ended(1, request.attempt, 5, "lost"))))
    assert [asked_for.attempt > request.attempt for _, asked_for in again] == [True]


def test_of_a_job_that_is_refused_while_its_parts_are_reserved_nothing_is_kept() -> None:
    """One site has reserved nodes; the other, without which it is too wide, is silent, and takes its user no more."""
    core = LiveGrid(GridSettings(sites=(("north", 4), ("south", 4)), policy=GridPolicy(mode="multi-site")))
    requests = asked(do(core, 0, job("b", "bert", 6)))
    assert [site for site, _ in requests] == [NORTH, SOUTH]
    attempt = requests[0][1].attempt
    do(core, 1, FromLiveSite(NORTH, Reserved(1, attempt, "10.0.0.1:7000")))
    do(core, 2, FromLiveSite(SOUTH, TakesUsers(ANNA)))
    do(core, core.next_wakeup_ms() or 0)
    assert core.registry.records[1].state == "refused"
    assert core.state().meeting == {}


def site() -> LiveSite:
    """Return a site of two machines, of which one takes anna and bert, and the other anna alone."""
    machines = (Machine(name="a", nodes=2), Machine(name="b", nodes=2))
    found = LiveSite(SiteSettings(name="north", number=0, machines=machines, policy=SitePolicy()))
    both = AcceptedUsers(anyone=False, names=("anna", "bert"), is_mapped=True)
    told = do(found, 0, MachineJoined("a", "here", both), MachineJoined("b", "here", ANNA))
    assert [command.message for command in told if isinstance(command, SendToGrid)][-1] == TakesUsers(ANNA)
    return found


def test_a_site_refuses_a_grid_that_asks_anyway() -> None:
    """Quote, reservation and delegation are refused by one typed reason, and so are jobs of its own users."""
    core = site()
    request = job("", "bert").request
    described = [DescribeJob(number, 1, request, 1000, 0, 1, ("north",)) for number in (1, 2)]
    told = do(core, 1, *described, RequestQuote(7, 1, 1000, None, 1, "bert"), ReserveNodes(1, 1, 1, 1000))
    told += do(core, 2, EnqueueJob(Job(job_id=2, width=1, estimate_ms=1000), 1, 9_000))
    assert [command.message for command in told if isinstance(command, SendToGrid)] == [
        Quoted(7, 0, None, WHY, cause="user"),
        Refused(1, 1, WHY, "user"),
        Refused(2, 1, WHY, "user"),
    ]
    assert do(core, 3, job("own", "bert")) == [Declined("own", WHY)]
    assert core.quote(3, request).reason == WHY
    told = do(core, 4, MachineTakes("b", AcceptedUsers()))
    assert [command.message for command in told] == [
        TakesUsers(AcceptedUsers(anyone=False, names=("anna", "bert"), is_mapped=True))
    ]
    assert Accepted in [type(command) for command in do(core, 5, job("own", "bert"))]


NO_GRES = "it does not pass the option gres to a batch system; expected one of nice"


def with_options(key: str, *options: str) -> UserSubmitted:
    """Return the submission of a job with options for a batch system."""
    return UserSubmitted(key, msgspec.structs.replace(job(key, "anna").request, batch_options=options), "anna")


def test_options_for_a_batch_system_bind_a_job_to_who_passes_them_on() -> None:
    """A site that passes on none, or others, is not asked; a job that no site takes as it is asked for is refused."""
    core = grid()
    do(core, 0, FromLiveSite(NORTH, TakesUsers(AcceptedUsers(options=("nice",)))))
    told = do(core, 1, with_options("nice", "nice=3"))
    assert {site for site, _ in place(core, 1, told)} == {NORTH}
    (told,) = do(core, 2, with_options("gres", "nice=3", "gres=gpu:1"))
    why = f"north: {NO_GRES}; south: it does not pass the option nice to a batch system"
    assert told == Declined("gres", f"no site accepts this job: {why}")


def test_a_site_takes_no_job_with_options_that_it_does_not_pass_on() -> None:
    """Neither of its own users nor of the grid, which may ask it about other jobs of that user."""
    core = site()
    told = do(core, 1, *(MachineTakes(name, AcceptedUsers(options=("nice",))) for name in "ab"))
    assert [command.message for command in told] == [TakesUsers(AcceptedUsers(options=("nice",)))]
    assert do(core, 2, with_options("own", "gres=gpu:1")) == [Declined("own", NO_GRES)]
    request = with_options("", "gres=gpu:1").request
    told = do(core, 3, DescribeJob(1, 1, request, 1000, 0, 1, ("north",)), ReserveNodes(1, 1, 1, 1000))
    assert [command.message for command in told] == [Refused(1, 1, NO_GRES, "never")]
    assert Accepted in [type(command) for command in do(core, 4, with_options("nice", "nice=3"))]
