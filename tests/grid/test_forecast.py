"""Why a job waits, by hand: each reason with its numbers, at each site and for a split."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.cli.grid_client import print_forecast
from gridweave.grid.api import Forecast
from gridweave.grid.control.forecasts import QueueForecasts
from gridweave.grid.control.full import FullControl
from gridweave.grid.messages import FromLiveSite
from gridweave.grid.meta.live import LiveGrid
from gridweave.grid.meta.settings import GridSettings
from gridweave.grid.policy import GridPolicy, GridTuning
from gridweave.site.job import FragmentReport, JobRequest, Noted, Program
from gridweave.site.launch import Used
from gridweave.site.messages import (
    Ended,
    Enqueued,
    JobAction,
    Quoted,
    Refused,
    Reserved,
    SiteChanged,
    Started,
    UserSubmitted,
)
from gridweave.site.state import dump_state

NORTH, SOUTH, WEST = 0, 1, 2
MINUTE_MS = 60_000
SITES = (("north", 8), ("south", 4))


def request(nodes: int, minutes: float) -> JobRequest:
    """Return what a user asks for."""
    return JobRequest(program=Program(argv=("true",)), nodes=nodes, limit_ms=round(minutes * MINUTE_MS))


def grid(*jobs: tuple[int, float], sites: tuple[tuple[str, int], ...] = SITES, **policy: Any) -> LiveGrid:
    """Return a grid to which jobs, given as nodes and minutes, were handed in one after the other at 0."""
    given = {key: policy.pop(key) for key in ("margin_ms", "retry_ms", "start_ms", "end_ms") if key in policy}
    options = {"mode": "adaptive", "overhead": 0.25, **policy}
    core = LiveGrid(GridSettings(sites=sites, policy=GridPolicy(**options), **{"margin_ms": 0, **given}))
    for number, (nodes, minutes) in enumerate(jobs):
        core.handle(0, UserSubmitted(f"key {number}", request(nodes, minutes)))
    return core


def told(core: LiveGrid, job_id: int, now_ms: int = 0) -> Forecast:
    """Return the forecast of a job; nothing may have changed by it."""
    before = dump_state(core)
    forecast = core.forecast(now_ms, job_id)
    assert dump_state(core) == before, "a forecast has changed the grid"
    assert forecast is not None
    return forecast


def at(forecast: Forecast, site: str) -> tuple[int, int | None, str]:
    """Return the free nodes of a site, the start alone, and the reason."""
    (found,) = (reason for reason in forecast.sites if reason.site == site)
    return found.free, found.start_ms, found.reason


def split_of(forecast: Forecast) -> str:
    """Return why a job is split, or is not."""
    assert forecast.split is not None
    return forecast.split.reason


def test_a_quote_may_be_instead_of_a_job_that_waits() -> None:
    """What a job would gain by fewer nodes is asked as if it were cancelled first; nothing changes by that."""
    core = grid((8, 10), (4, 10), (8, 5), (4, 5))
    assert told(core, 3).start_ms == 10 * MINUTE_MS
    before = dump_state(core)
    behind, instead = (core.quoter(0, request(8, 5), job_id)().start_ms for job_id in (None, 3))
    assert (behind, instead) == (15 * MINUTE_MS, 10 * MINUTE_MS)
    assert core.quoter(0, request(8, 5), 1)().start_ms == behind, "what runs is not cancelled by a question"
    assert dump_state(core) == before


def test_a_forecast_leaves_the_nodes_of_a_split_job_in_use() -> None:
    """The simulated end of its fragments must not reach the grid itself, which would decide by it in its next turn."""
    asked, other = (grid((12, 10), (4, 5)) for _ in range(2))
    for core in (asked, other):
        core.handle(0, *(FromLiveSite(site, Reserved(1, 1)) for site in (NORTH, SOUTH)))
        core.handle(1, *(FromLiveSite(site, Started(1, 1, 0)) for site in (NORTH, SOUTH)))
    assert told(asked, 2, 3).start_ms is not None
    assert asked.quoter(3, request(2, 5))().start_ms != 3
    assert asked.handle(4, UserSubmitted("next", request(2, 5))) == other.handle(
        4, UserSubmitted("next", request(2, 5))
    )


def test_a_copy_of_the_grid_shares_no_container_with_it() -> None:
    control = grid((12, 10), (4, 5)).core._control
    copied = vars(control.copy())
    shared = [name for name, value in vars(control).items() if copied[name] is value]
    assert not [name for name in shared if isinstance(vars(control)[name], dict | list | set)]


def test_a_plan_ends_where_it_is_told_to() -> None:
    """As many jobs are planned as are asked for, by their starts."""
    core = grid((8, 10), (4, 10), (8, 5), (8, 5), (8, 5))
    assert [(job.job_id, job.start_ms) for job in core.planner(0, 2)()] == [(3, 600_000), (4, 900_000)]


def test_the_head_waits_for_nodes() -> None:
    """The first in the queue hears when each site has its nodes, which jobs free them, and when it starts where."""
    forecast = told(grid((3, 10), (3, 20), (4, 30), (7, 5), mode="sharing"), 4)
    assert (forecast.state, forecast.start_ms, forecast.places) == ("waiting", 30 * MINUTE_MS, (("north", 7),))
    assert (forecast.length_ms, forecast.ahead) == (5 * MINUTE_MS, 0)
    assert forecast.reason == (
        "it is first in the queue; it needs 7 nodes, and 1 is free at one site at most, 2 in all"
    )
    assert at(forecast, "north") == (
        1,
        30 * MINUTE_MS,
        "needs 7 nodes, 1 of 8 nodes is free; 7 more come free in 30 min when jobs 2 and 3 end",
    )
    assert at(forecast, "south") == (1, None, "offers the grid 4 nodes in total, too few for the whole job")


def test_a_site_names_the_jobs_that_it_waits_for() -> None:
    """One job, up to three, and more of them are named by who ends last; jobs behind hear who is offered the nodes."""
    core = grid((2, 10), (2, 20), (2, 30), (2, 40), (8, 5), (8, 5), sites=(("north", 8),), mode="sharing")
    assert at(told(core, 5), "north")[2] == (
        "needs 8 nodes, 0 of 8 nodes are free; 8 more come free in 40 min when job 4 and 3 others end"
    )
    assert at(told(core, 6), "north")[2].endswith("3 others end; offered to the job ahead first")
    core = grid((4, 10), (3, 20), (6, 5), (8, 5), (7, 50), sites=(("north", 8),), mode="sharing")
    assert at(told(core, 3), "north")[2].endswith("7 more come free in 20 min when jobs 1 and 2 end")
    assert at(told(core, 5), "north")[2].endswith("when jobs 1 and 2 end; offered to the 2 jobs ahead first")
    core = grid((4, 10), (6, 5), sites=(("north", 8),), mode="sharing")
    assert at(told(core, 2), "north")[2].endswith("4 of 8 nodes are free; 4 more come free in 10 min when job 1 ends")


def test_a_job_would_delay_the_head() -> None:
    """One that fits now hears that the nodes are kept, for whom and until when, and when it starts instead."""
    core = grid((6, 10), (8, 30), (2, 45), sites=(("north", 8),), mode="sharing")
    forecast = told(core, 3)
    assert (forecast.start_ms, forecast.ahead) == (40 * MINUTE_MS, 1)
    assert forecast.reason == (
        "it needs 2 nodes, which are free, but it would run for 45 min on nodes that are kept for job 2, first in the "
        "queue, which is to start in 10 min"
    )
    kept = "2 of 8 nodes are free, 2 of them kept for job 2, which is to start in 10 min"
    assert at(forecast, "north") == (2, 0, kept)


def test_nobody_is_overtaken() -> None:
    """Without backfilling the nodes may be free and are not given; all ahead must start first."""
    core = grid((6, 10), (8, 30), (2, 5), sites=(("north", 8),), mode="sharing", backfill="none")
    forecast = told(core, 3)
    assert forecast.reason == ("the job ahead must start before it: this queue lets none be overtaken")
    assert at(forecast, "north")[2] == "2 of 8 nodes are free; the job ahead must start first"


def test_too_few_nodes_anywhere() -> None:
    """One behind the head hears how many are free at most at one site, and in all."""
    core = grid((6, 10), (3, 10), (8, 30), (4, 45), mode="sharing")
    assert told(core, 4).reason.startswith(
        "it needs 4 nodes, and 2 are free at one site at most, 3 in all; the job ahe"
    )
    core = grid((8, 10), (4, 10), (8, 30), (4, 45), mode="sharing")
    assert told(core, 4).reason.startswith("it needs 4 nodes, and none is free; the job ahead would be offered them")


def test_reserved_starts() -> None:
    """Under conservative backfilling the start is the reserved one, and a gap that is too short is named as such."""
    core = grid((6, 10), (8, 30), (2, 45), sites=(("north", 8),), mode="sharing", backfill="conservative")
    forecast = told(core, 3)
    assert forecast.start_ms == 40 * MINUTE_MS
    assert forecast.reason == ("its start is reserved: it needs 2 nodes for 45 min, and no earlier gap has them")
    assert at(forecast, "north")[2] == (
        "2 of 8 nodes are free, but not for 45 min: others have reserved them; they are free for that long in 40 min"
    )


def test_others_have_the_nodes() -> None:
    """Nodes that are not the grid's are named; if they alone are missing there is no start, and it says so."""
    core = grid(mode="sharing")
    core.handle(0, FromLiveSite(NORTH, SiteChanged(3, 5)), FromLiveSite(SOUTH, SiteChanged(4, 0)))
    core.handle(1, UserSubmitted("a", request(4, 10)), UserSubmitted("b", request(6, 10)))
    forecast = told(core, 2, 1)
    assert (forecast.start_ms, forecast.places) == (None, ())
    assert forecast.reason.endswith("; nodes used by others must come free first, and it is unknown when")
    assert at(forecast, "north")[1:] == (
        None,
        "needs 6 nodes, 1 of 8 nodes is free; others have 3, and it is unknown when they leave",
    )


def test_a_site_that_refused_is_left_alone() -> None:
    """It says when it refused, and when it is asked again; the play asks it again then."""
    core = grid((4, 10), sites=(("south", 4),), retry_ms=MINUTE_MS)
    core.handle(5_000, FromLiveSite(0, Refused(1, 1, "drained")))
    forecast = told(core, 1, 15_000)
    assert (forecast.start_ms, forecast.places) == (5_000 + MINUTE_MS, (("south", 4),))
    assert at(forecast, "south")[2] == "refused a job 10 s ago: drained; is asked again in 50 s at the latest"


def test_a_site_that_was_silent_is_left_alone() -> None:
    """It is not said to have refused anything, and a site that has answered is not left alone."""
    core = grid((12, 10), retry_ms=MINUTE_MS, margin_ms=500)
    core.handle(10, FromLiveSite(NORTH, Reserved(1, 1)))
    core.handle(501, UserSubmitted("small", request(3, 10)), UserSubmitted("other", request(8, 10)))
    again = LiveGrid(core.settings)
    again.restore(core.state())
    for each in (core, again):
        assert at(told(each, 3, 10_501), "south")[2] == "offers the grid 4 nodes in total, too few for the whole job"
        assert at(told(each, 3, 10_501), "north")[2].startswith("needs 8 nodes")
        assert at(each.quote(10_501, request(3, 5)), "south")[2] == (
            "did not answer 10 s ago; is asked again in 50 s at the latest"
        )


def test_a_job_that_is_being_started() -> None:
    """It says which sites hold their part, which have been asked, and the start that is agreed on."""
    core = grid((12, 10), margin_ms=500)
    cost = "; split over north (8) and south (4): 12 min 30 s instead of 10 min (factor 1.25)"
    assert told(core, 1).reason == f"it was placed; north and south have been asked{cost}"
    core.handle(10, FromLiveSite(NORTH, Reserved(1, 1)))
    forecast = told(core, 1, 100)
    assert (forecast.state, forecast.start_ms) == ("starting", 500)
    assert forecast.reason == f"reserved on north (8); south has been asked{cost}"
    core.handle(120, FromLiveSite(SOUTH, Reserved(1, 1)))
    assert told(core, 1, 200).reason == f"reserved on north (8) and south (4): the start is agreed{cost}"
    core = grid((3, 10))
    assert (told(core, 1).reason, told(core, 1).places) == ("it was placed", (("south", 3),))
    core.handle(0, FromLiveSite(SOUTH, Started(1, 1, 0)))
    running = told(core, 1, 90_000)
    # The fields have it all: a reason would tell it again.
    assert (running.state, running.start_ms, running.places, running.reason) == ("running", 0, (("south", 3),), "")
    core.handle(100_000, FromLiveSite(SOUTH, Ended(1, 1, 100_000, "finished")))
    assert (told(core, 1, 100_000).state, told(core, 1, 100_000).reason) == ("ended", "finished")


def test_the_ends_of_jobs_are_heard_of_late() -> None:
    """Forecasts and quotes know how long it takes until the grid hears of an end: as set, or as jobs took before."""
    jobs = ((8, 10), (4, 10), (8, 5), (8, 5))
    core = grid(*jobs, end_ms=400)
    assert core.around_ms() == (0, 400)
    assert told(core, 3).start_ms == 10 * MINUTE_MS + 400
    assert told(core, 4).start_ms == 15 * MINUTE_MS + 800
    assert core.quote(0, request(8, 1)).start_ms == 20 * MINUTE_MS + 1_200
    core = grid(*jobs)
    assert (core.around_ms(), told(core, 4).start_ms) == (None, 15 * MINUTE_MS)
    places = ((1, NORTH, (90, 1_000)), (2, SOUTH, (40, 1_030)))
    core.handle(10, *(FromLiveSite(site, Started(job_id, 1, 10)) for job_id, site, _ in places))
    for job_id, site, ran_ms in places:
        report = FragmentReport(job_id, 1, "", (), Used(), ("m",), ran_ms=ran_ms)
        core.handle(1_050, FromLiveSite(site, report), FromLiveSite(site, Ended(job_id, 1, 1_040, "finished")))
    assert core.registry.records[1].ran_ms == (90, 1_000)
    assert core.around_ms() == ((90 + 40) // 2, (50 + 20) // 2)
    assert told(core, 4, 1_050).start_ms == 1_050 + 5 * MINUTE_MS + 35


def test_adaptive_waits_because_that_ends_sooner() -> None:
    """What a split would cost is said in lengths, and by how much sooner the wait ends."""
    core = grid((3, 1.5), (2, 60), (4, 10), sites=(("north", 4), ("south", 5)))
    forecast = told(core, 3)
    assert (forecast.start_ms, forecast.places) == (90_000, (("north", 4),))
    split = forecast.split
    assert split is not None
    assert (split.places, split.start_ms) == ((("south", 3), ("north", 1)), 0)
    assert (split.length_ms, split.whole_ms, split.gain_ms) == (750_000, 600_000, -60_000)
    assert split.reason == (
        "it could start now, split over south (3) and north (1): 12 min 30 s instead of 10 min (factor 1.25); "
        "waiting for north ends 1 min sooner"
    )


def printed(forecast: Forecast, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Return what the command prints of a forecast, without the table of the sites and the time on the clock."""
    print_forecast(msgspec.structs.replace(forecast, sites=()))
    return [re.sub(r" \(.*\d\d:\d\d.*?\)", "", line) for line in capsys.readouterr().out.splitlines()]


def test_a_quote_tells_each_fact_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Where and when a job would start are in one line, and the sites and the cost of a split, too."""
    core = grid((3, 30), (2, 60), sites=(("north", 4), ("south", 5)))
    assert printed(core.quote(0, request(3, 10)), capsys)[0] == (
        "such a job: it would start at once, on south (3), for at most 10 min"
    )
    assert printed(core.quote(0, request(4, 10)), capsys) == [
        (
            "such a job: it would start at once, split over south (3) and north (1): 12 min 30 s instead of 10 min "
            "(factor 1.25)"
        ),
        "the split ends 27 min 30 s sooner than north alone",
    ]


def test_a_split_that_is_awaited_names_its_sites_once(capsys: pytest.CaptureFixture[str]) -> None:
    """When it starts is in the line after, without the sites; what could start now is not told by halves."""
    core = grid((3, 30), (4, 30), (9, 10), sites=(("north", 4), ("south", 5)))
    lines = printed(told(core, 3), capsys)
    assert "\n".join(lines).count("north (4)") == 1
    assert lines[1] == "it starts in 30 min"
    core = grid((3, 1.5), (2, 60), (4, 10), sites=(("north", 4), ("south", 5)))
    assert printed(told(core, 3), capsys)[-1] == (
        "a split: it could start now, split over south (3) and north (1): 12 min 30 s instead of 10 min (factor 1.25); "
        "waiting for north ends 1 min sooner"
    )


def test_what_a_split_gains() -> None:
    """A job that is to be split hears its length, and by how much sooner it ends than alone."""
    core = grid((3, 30), (2, 60), sites=(("north", 4), ("south", 5)))
    before = dump_state(core)
    quote = core.quote(0, request(4, 10))
    assert dump_state(core) == before, "a quote has changed the grid"
    assert (quote.job_id, quote.start_ms, quote.places) == (None, 0, (("south", 3), ("north", 1)))
    cost = "split over south (3) and north (1): 12 min 30 s instead of 10 min (factor 1.25)"
    assert quote.reason == f"it would start at once, {cost}"
    assert quote.split is not None
    assert (quote.split.length_ms, quote.split.gain_ms) == (750_000, 27.5 * MINUTE_MS)
    assert split_of(quote) == f"it is {cost}, and ends 27 min 30 s sooner than north alone"


@pytest.mark.parametrize(
    ("policy", "nodes", "reason"),
    [
        ({"lower_bound": 6}, 4, "only jobs of more than 6 nodes are split"),
        ({"max_fragments": ((4, 1),)}, 4, "a job of 4 nodes may not be split"),
        (
            {"mode": "multi-site"},
            5,
            (
                "it is split over north (3) and south (2): 12 min 30 s instead of 10 min (factor 1.25), and ends "
                "27 min 30 s sooner"
            ),
        ),
        (
            {"mode": "adaptive", "overhead": 9.0},
            5,
            (
                "it could start in 30 min, split over north (3) and south (2): 1 h 40 min instead of 10 min "
                "(factor 10.00); waiting"
            ),
        ),
    ],
)
def test_why_a_job_is_not_split(policy: dict[str, Any], nodes: int, reason: str) -> None:
    """The bound, the fragments that are allowed, and nodes that are not free yet are told apart."""
    core = grid((3, 30), (2, 60), (4, 60), sites=(("north", 4), ("south", 4), ("west", 5)), **policy)
    core.handle(0, UserSubmitted("west", request(1, 90)))
    core.handle(0, UserSubmitted("next", request(nodes, 10)))
    assert split_of(told(core, 5)).removesuffix(" for west ends 1 h sooner").removesuffix(" than west alone") == reason


def test_splits_that_are_not_to_be_had() -> None:
    """Nodes that others have, and sites that are too many for the width, keep a split from being found at all."""
    core = grid(sites=(("north", 4), ("south", 4), ("west", 5)), max_fragments=((9, 2),))
    core.handle(0, FromLiveSite(WEST, SiteChanged(5, 0)), UserSubmitted("wide", request(9, 10)))
    assert split_of(told(core, 1)) == "no split is possible: too few nodes are known to come free"
    core.handle(1, FromLiveSite(WEST, SiteChanged(4, 1)))
    assert split_of(told(core, 1, 1)) == "a job of 9 nodes may be on 2 sites, but would need more"


DRAINED = "the site is being drained"
SHUT = f"accepts no new grid jobs: {DRAINED}"


def test_a_drained_site_is_not_one_that_others_use() -> None:
    """The queue's reasons name it, and no start is expected on nodes that come free there."""
    core = grid((6, 10), mode="sharing")
    core.handle(1, FromLiveSite(NORTH, SiteChanged(2, 0, DRAINED)), UserSubmitted("next", request(5, 10)))
    forecast = told(core, 2, 1)
    assert (forecast.start_ms, forecast.cause) == (None, "it is first in the queue")
    assert forecast.reason == (
        f"it is first in the queue; it needs 5 nodes, and 4 are free at one site at most; north {SHUT}; "
        "it cannot start before such a site accepts jobs again"
    )
    assert at(forecast, "north") == (0, None, SHUT)
    assert at(forecast, "south")[2] == "offers the grid 4 nodes in total, too few for the whole job"
    assert "others" not in "".join(row.reason for row in core.quote(1, request(2, 5)).sites)
    core.handle(2, UserSubmitted("after", request(5, 10)))
    assert told(core, 3, 2).cause == "sites accept no new jobs"
    core.handle(3, FromLiveSite(NORTH, SiteChanged(0, 2)))
    assert told(core, 2, 3).start_ms == 10 * MINUTE_MS


@pytest.mark.parametrize("backfill", ["easy", "conservative"])
def test_the_reservation_of_the_head_does_not_count_on_ends_at_a_drained_site(backfill: str) -> None:
    """So nobody is let ahead of the head at the site that it can have; when the other opens, its ends count again."""
    core = grid((4, 10), (3, 20), sites=(("north", 4), ("south", 4)), mode="sharing", backfill=backfill)
    core.handle(0, FromLiveSite(NORTH, Started(1, 1, 0)), FromLiveSite(SOUTH, Started(2, 1, 0)))
    core.handle(1, FromLiveSite(NORTH, SiteChanged(0, 0, DRAINED)))
    core.handle(2, UserSubmitted("head", request(4, 30)), UserSubmitted("long", request(1, 60)))
    assert (told(core, 3, 2).start_ms, told(core, 3, 2).places) == (20 * MINUTE_MS, (("south", 4),))
    assert told(core, 4, 2).state == "waiting"
    ended_ms = 5 * MINUTE_MS
    core.handle(ended_ms, FromLiveSite(NORTH, SiteChanged(4, 0, DRAINED)))
    core.handle(ended_ms, FromLiveSite(NORTH, Ended(1, 1, ended_ms, "finished")))
    core.core.check_invariants()
    assert (told(core, 3, ended_ms).start_ms, told(core, 4, ended_ms).state) == (20 * MINUTE_MS, "waiting")
    again = LiveGrid(core.settings)
    again.restore(core.state())
    assert told(again, 3, ended_ms).start_ms == 20 * MINUTE_MS
    again.handle(ended_ms + 1, FromLiveSite(NORTH, SiteChanged(0, 4)))
    again.core.check_invariants()
    assert (told(again, 3, ended_ms + 1).state, told(again, 4, ended_ms + 1).state) == ("starting", "starting")


def test_a_split_does_not_wait_for_ends_at_a_drained_site() -> None:
    """Adaptive: a site alone would have the nodes in a minute, but it gives them to nobody."""
    jobs, sites = ((8, 1), (1, 60), (1, 60)), (("north", 8), ("south", 4), ("west", 4))
    core, drained = grid(*jobs, sites=sites), grid(*jobs, sites=sites)
    drained.handle(1, FromLiveSite(NORTH, SiteChanged(0, 0, DRAINED)))
    for each in (core, drained):
        each.handle(2, UserSubmitted("wide", request(6, 10)))
    assert told(core, 4, 2).state == "waiting"
    found = told(drained, 4, 2)
    assert (found.state, found.places) == ("starting", (("west", 4), ("south", 2)))


@pytest.mark.parametrize("control", ["limited", "none"])
def test_a_drained_site_says_so_where_sites_keep_their_queues(control: str) -> None:
    """In the reasons of a job, whatever it has said before, and of one that is not submitted yet."""
    core = grid((2, 10), mode="sharing", control=control)
    core.handle(1, FromLiveSite(SOUTH, SiteChanged(4, 0, DRAINED)))
    assert at(told(core, 1, 1), "south")[2] == SHUT
    assert at(core.quote(1, request(2, 5)), "south")[2] == SHUT
    again = LiveGrid(core.settings)
    again.restore(core.state())
    assert at(told(again, 1, 1), "south")[2] == SHUT


def test_a_run_is_dated_at_its_start_however_late_the_grid_hears_of_it() -> None:
    """So a story lists it before its end, which the site has noted meanwhile."""
    core = grid((2, 10), sites=(("north", 4),), mode="sharing")
    found = core.handle(900, FromLiveSite(NORTH, Started(1, 1, 100)))
    assert [(note.kind, note.at_ms) for note in found if isinstance(note, Noted)] == [("runs", 100)]


def test_a_start_that_is_past_is_not_expected() -> None:
    """The forecast names the site that missed its quoted start, and the plan leaves the start to that site."""
    core = grid(sites=(("north", 4),), mode="sharing", control="limited")
    core.handle(0, UserSubmitted("next", request(2, 10)))
    core.handle(0, FromLiveSite(NORTH, Quoted(1, 0, 50)))
    assert told(core, 1, 40).start_ms == 50
    late = told(core, 1, 3_050)
    assert (late.start_ms, late.reason) == (None, "it waits in the queue of north, which expected to start it 3 s ago")
    assert [(job.start_ms, job.queues) for job in core.planner(3_050, 10)()] == [(None, ("north",))]


def test_sharing_splits_nothing() -> None:
    """Where nothing is split there is nothing to say of it, and what is too wide is refused."""
    core = grid((3, 30), (8, 60), (4, 10), mode="sharing")
    assert told(core, 3).split is None
    quote = core.quote(0, request(9, 10))
    assert (quote.state, quote.start_ms) == ("refused", None)
    assert quote.reason == "it needs 9 nodes, the largest site has 8, and mode sharing splits no job"
    assert core.quote(0, request(0, 10)).reason == "nodes is 0; expected a whole number from 1 to 10000000"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    jobs=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 30)), min_size=2, max_size=9),
    backfill=st.sampled_from(["easy", "conservative", "none"]),
    margin_ms=st.sampled_from([0, 500]),
    data=st.data(),
)
def test_who_else_asks_changes_no_answer(
    jobs: list[tuple[int, int]], backfill: str, margin_ms: int, data: st.DataObject
) -> None:
    """Forecasts that share one play, in whatever order they are asked for, are those of jobs asked for alone."""
    core = grid(*jobs, backfill=backfill, margin_ms=margin_ms)
    alone = {job_id: core.forecast(0, job_id) for job_id in range(1, len(jobs) + 2)}
    asked = data.draw(st.permutations(list(alone)))
    together = [forecaster and forecaster() for forecaster in core.forecasters(0, asked)]
    assert together == [alone[job_id] for job_id in asked]
    planned = core.planner(0, len(jobs))()
    for most in range(1, len(jobs)):
        assert core.planner(0, most)() == planned[:most]


def test_held_jobs_say_by_whom() -> None:
    """A job that is kept from the queue says why, and has no start."""
    core = grid((8, 30), (8, 60), mode="sharing")
    core.handle(1, JobAction("hold", (2,)))
    forecast = told(core, 2, 1)
    assert (forecast.state, forecast.start_ms, forecast.reason) == ("held", None, "is held by its user")
    core.handle(2, JobAction("cancel", (2,)))
    assert told(core, 2, 2).reason.startswith("cancelled")
    assert core.forecast(2, 77) is None


def test_a_start_too_far_ahead() -> None:
    """Beyond so many instants there is no start, and the reason says so; reserved starts are said as they are."""
    core = grid(*[(8, 10)] * 6, sites=(("north", 8),), mode="sharing")
    control = core.core._control
    assert isinstance(control, FullControl)
    assert QueueForecasts(control.copy(), 0, ["north"], most_steps=6).forecast(6).start_ms == 50 * MINUTE_MS
    bounded = QueueForecasts(control.copy(), 0, ["north"], most_steps=5).forecast(6)
    assert bounded.start_ms is None
    assert bounded.reason.endswith("; its start is too far ahead to be computed")


def test_what_is_said_of_a_start_too_far_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a start it is said why; where starts are reserved, that the reserved one is what is known."""
    jobs = [(8, 10), (12, 10), (8, 10)]
    core = grid(*jobs, margin_ms=500, backfill="conservative", mode="multi-site", overhead=0.0)
    assert told(core, 3).start_ms == 20 * MINUTE_MS + 500
    monkeypatch.setattr("gridweave.grid.control.forecasts.MOST_RESERVED", 0)
    forecast = told(core, 3)
    assert (forecast.start_ms, forecast.places) == (20 * MINUTE_MS, (("north", 8),))
    assert forecast.reason == (
        "its start is reserved: it needs 8 nodes for 10 min, and no earlier gap has them; its start is too "
        "far ahead "
        "to be computed; this is its present reservation"
    )


def test_limited_control_says_what_sites_said() -> None:
    """While sites are asked, when it waits at one, and when none has a place: with the quotes and their age."""
    core = grid((3, 10), control="limited", mode="sharing", retry_ms=MINUTE_MS)
    assert told(core, 1).reason == "0 of 2 sites have sent quotes; it is placed when all have"
    core.handle(5, FromLiveSite(NORTH, Quoted(1, 2, 600_000)))
    forecast = told(core, 1, 5)
    assert forecast.reason == "1 of 2 sites have sent quotes; it is placed when all have"
    assert at(forecast, "south") == (0, None, "has not sent a quote")
    core.handle(10, FromLiveSite(SOUTH, Quoted(2, 1, 300_000)))
    forecast = told(core, 1, 60_010)
    assert (forecast.start_ms, forecast.places, forecast.queues) == (300_000, (("south", 3),), ("south",))
    assert forecast.reason == "it waits in the queue of south"
    assert at(forecast, "north") == (2, 600_000, "quoted 1 min ago: a start in 9 min, 2 nodes free now")
    core.handle(70_000, FromLiveSite(SOUTH, Enqueued(1, 2)), FromLiveSite(SOUTH, Refused(1, 2, "drained")))
    assert told(core, 1, 70_000).reason == "no site accepts it now; all are asked again in 1 min"
    quote = core.quote(70_000, request(5, 10))
    assert quote.reason == "the sites would be asked for quotes"
    assert quote.queues == ("north",)
    assert [site.reason for site in quote.sites] == [
        "has not sent a quote",
        "offers the grid 4 nodes in total, too few for the whole job",
    ]


def test_no_control_says_where_it_was_sent() -> None:
    """The site that it was sent to, how much work of the grid each has, and who has refused it."""
    core = grid((4, 10), (4, 10), control="none", mode="sharing", retry_ms=MINUTE_MS)
    forecast = told(core, 2)
    assert (forecast.places, forecast.reason) == ((("south", 4),), "it was sent to south, whose queue decides")
    assert forecast.queues == ("south",)
    assert at(forecast, "north")[2] == "has work of the grid for 5 min on all its 8 nodes"
    quote = core.quote(0, request(4, 1))
    assert quote.reason == "it would be sent to north, which has the least work of the grid per node"
    core.handle(1, FromLiveSite(SOUTH, Refused(2, 1, "no")))
    assert at(told(core, 2, 1), "south")[2] == "has refused it"
    core.handle(2, FromLiveSite(NORTH, Refused(2, 2, "no")))
    assert told(core, 2, 2).reason == "all sites have refused it; it is sent again in 1 min"


def test_a_grid_that_tunes_its_queue_names_the_order() -> None:
    """Forecasts and quotes end with the order in force, and the rule by which a start may move."""
    tuning = GridTuning(policies=("fcfs", "sjf"), decider="preferred", preferred="sjf")
    core = grid((8, 10), (4, 10), (8, 50), (8, 20), mode="sharing", tuning=tuning)
    rule = "is in force, the plan with the best AWRT decides again at each submission and end, and the start may move"
    assert told(core, 3).reason.endswith(f"; the order sjf {rule}")
    quote = core.quote(0, request(8, 30))
    assert quote.reason.endswith(f"; the order sjf {rule}")
    assert told(core, 4).start_ms == 10 * MINUTE_MS
