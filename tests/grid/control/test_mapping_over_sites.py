"""All that waits mapped over sites that differ: the kernels against a slow reference, and what the grid makes of it."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from gridweave.errors import OptionError
from gridweave.grid.control.limited import LEASE_MS
from gridweave.grid.control.mapping import SEVERAL, JobToMap, SiteOffer, map_over_sites
from gridweave.grid.messages import FromSite, GridJobCancelled, GridJobSubmitted, ReportDone, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import MAPPINGS, GridPolicy
from gridweave.site.job import Job
from gridweave.site.messages import (
    Ended,
    Enqueued,
    EnqueueJob,
    Quoted,
    RequestQuote,
    ReserveNodes,
    SiteChanged,
    Started,
    WithdrawJob,
)
from gridweave.site.state import dump_state
from reference import site_mapping as reference
from support.stepping import RETRY_MS, do, meta, said


class Case:
    """Jobs, and sites with some nodes; few different times, so that ties are met."""

    def __init__(self, rng: np.random.Generator) -> None:
        sites = int(rng.integers(1, 5))
        self.ready = [np.sort(rng.integers(0, 6, rng.integers(0, 6))).tolist() for _ in range(sites)]
        self.parts = (rng.random(sites) < 0.8).tolist()
        self.jobs: list[reference.PlainJob] = []
        for _ in range(rng.integers(0, 10)):
            width = int(rng.integers(1, 9))
            offers = {
                site: (int(rng.integers(0, 4)), int(rng.choice([width, 1])), int(rng.integers(1, 9)))
                for site in range(sites)
                if rng.random() < 0.8
            }
            split = (width, int(rng.integers(1, 9))) if rng.random() < 0.6 else None
            self.jobs.append((offers, split))

    def mapped(self, algorithm: str) -> list[tuple[int, int, int] | None]:
        """Return what the kernels make of it."""
        jobs = [
            JobToMap(
                split[0] if split else 0,
                {site: SiteOffer(*offer) for site, offer in offers.items()},
                split[1] if split else None,
            )
            for offers, split in self.jobs
        ]
        places = map_over_sites(jobs, self.ready, self.parts, algorithm)
        return [place and (place.site, place.start_ms, place.end_ms) for place in places]


def total(places: list[tuple[int, int, int] | None]) -> int:
    """Return the sum of all ends."""
    return sum(place[2] for place in places if place is not None)


@pytest.mark.parametrize("algorithm", MAPPINGS)
def test_jobs_are_mapped_over_sites_as_the_page_says(algorithm: str) -> None:
    """On random jobs and sites each job has the place, the start and the end that the reference gives it."""
    rng = np.random.default_rng(21)
    on_several = 0
    for _ in range(200):
        case = Case(rng)
        expected = reference.mapped(algorithm, case.jobs, case.ready, case.parts).places
        found = case.mapped(algorithm)
        assert found == [expected.get(number) for number in range(len(case.jobs))]
        on_several += sum(place is not None and place[0] == SEVERAL for place in found)
    assert on_several > 20


def test_over_sites_too_pjs_is_never_worse_than_sjs() -> None:
    """By the sum of execution and delay times PJS is at most SJS, and SJS the better of its two; often PJS is less."""
    rng = np.random.default_rng(22)
    better = 0
    for _ in range(300):
        case = Case(rng)
        totals = {name: total(case.mapped(name)) for name in MAPPINGS}
        assert totals["pjs"] <= totals["sjs"] == min(totals["min-min"], totals["min-max"])
        better += totals["pjs"] < totals["sjs"]
    assert better > 20


# -- the meta-scheduler


def grid(*nodes: int, **policy: Any) -> MetaCore:
    """Return a meta-scheduler with limited control that maps by PJS, in mode sharing, unless said otherwise."""
    return meta(*nodes, **{"mode": "sharing", "control": "limited", "selection": "pjs", **policy})


def job(job_id: int, width: int = 1, estimate_ms: int = 100) -> Job:
    """Return a plain job."""
    return Job(job_id=job_id, width=width, estimate_ms=estimate_ms)


class Site:
    """How a site answers requests for quotes."""

    def __init__(self, speed: int, ready: tuple[tuple[int, int], ...], queued: int = 0) -> None:
        self.speed, self.ready, self.queued = speed, ready, queued

    def quote(self, request: RequestQuote, now_ms: int) -> Quoted:
        """Return what it expects of the job that it is told."""
        assert request.job is not None
        free = sum(nodes for instant, nodes in self.ready if instant <= now_ms)
        instants = [max(now_ms, instant) for instant, nodes in self.ready for _ in range(nodes)]
        start_ms = instants[request.width - 1] if request.width <= len(instants) else None
        length_ms = request.job.estimate_ms // self.speed
        told = {"length_ms": length_ms, "nodes": request.width, "ready": self.ready, "queued": self.queued}
        return Quoted(request.quote_id, free, start_ms, **told)


def quotes(commands: list[Any], now_ms: int, *sites: Site | None) -> list[FromSite]:
    """Answer all requests for quotes; None says nothing."""
    answers = []
    for command in commands:
        site = sites[command.site] if isinstance(command.request, RequestQuote) else None
        if site is not None:
            answers += said(command.site, site.quote(command.request, now_ms))
    return answers


def sent(commands: list[Any]) -> list[tuple[int, int]]:
    """Return which jobs are delegated to which sites: (job, site)."""
    return [(c.request.job.job_id, c.site) for c in commands if isinstance(getattr(c, "request", None), EnqueueJob)]


def test_a_job_waits_at_the_grid_for_the_site_on_which_it_ends_first() -> None:
    """Of two jobs one starts on the fast site; the other waits for that, as on the slow one it would end later."""
    core = grid(1, 1)
    slow, fast = Site(1, ((0, 1),)), Site(4, ((0, 1),))
    asked = do(core, 0, *(GridJobSubmitted(job(number)) for number in (1, 2)))
    assert [(c.site, c.request.job.job_id) for c in asked] == [(0, 1), (1, 1), (0, 2), (1, 2)]
    commands = do(core, 0, *quotes(asked, 0, slow, fast))
    assert commands == [ToSite(1, EnqueueJob(job(1), 2, LEASE_MS))]
    forecast = core.forecast(0, 2)
    assert forecast is not None
    assert (forecast.start_ms, forecast.length_ms, forecast.places) == (25, 25, (("site 1", 1),))
    assert "it would start in 25 ms on site 1; the plan is recomputed whenever something changes" in forecast.reason
    do(core, 0, *said(1, Enqueued(1, 2), Started(1, 2, 0)))
    asked = do(core, 25, *said(1, Ended(1, 2, 25, "finished")))
    assert sent(do(core, 25, *quotes(asked[1:], 25, slow, fast))) == [(2, 1)]


@pytest.mark.parametrize("mode", ["sharing", "adaptive"])
@pytest.mark.parametrize("selection", MAPPINGS)
def test_a_quote_is_what_the_mapping_then_decides(selection: str, mode: str) -> None:
    """Whatever waits already: a job that is quoted a start at once gets it there, and another waits as planned."""
    rng, seen = np.random.default_rng(5), set[str]()
    for _ in range(60):
        core = grid(3, 2, selection=selection, mode=mode)
        sites = [Site(int(rng.integers(1, 4)), ((int(rng.choice([0, 50])), nodes),)) for nodes in (3, 2)]
        before = [job(number, int(rng.integers(1, 4)), int(rng.integers(20, 200))) for number in range(1, 5)]
        asked = do(core, 0, *(GridJobSubmitted(each) for each in before))
        do(core, 0, *quotes(asked, 0, *sites))
        new = GridJobSubmitted(job(9, int(rng.integers(1, 6 if mode == "adaptive" else 4)), int(rng.integers(20, 200))))
        state = dump_state(core)
        offers = {site: sites[site].quote(request, 0) for site, request in core.questions(0, new).items()}
        quote = core.quoter(0, new, offers=offers)()
        assert dump_state(core) == state, "a quote has changed the grid"
        commands = do(core, 0, *quotes(do(core, 0, new), 0, *sites))
        found = core.forecast(0, 9)
        assert found is not None
        assert quote.start_ms == (0 if found.state == "starting" else found.start_ms), quote.reason
        assert quote.places == found.places
        assert quote.length_ms == found.length_ms or found.queues
        assert quote.reason.startswith("it would start at once on ") == (9 in dict(sent(commands)))
        assert quote.reason.startswith("it would be split over ") == (found.state == "starting")
        seen.add(quote.reason.split(" on ")[0].split(" over ")[0])
    assert {"it would start at once", "mapped"} <= seen
    assert ("it would be split" in seen) == (mode == "adaptive")


@pytest.mark.parametrize(("selection", "places"), [("olb", [(1, 0), (2, 1)]), ("best-assignment", [(1, 1)])])
def test_other_selections_map_by_other_rules(selection: str, places: list[tuple[int, int]]) -> None:
    """OLB starts both jobs at once, the first on the slow site; best assignment has both run on the fast one."""
    core = grid(1, 1, selection=selection)
    asked = do(core, 0, *(GridJobSubmitted(job(number)) for number in (1, 2)))
    assert sent(do(core, 0, *quotes(asked, 0, Site(1, ((0, 1),)), Site(4, ((0, 1),))))) == places


def test_what_was_asked_at_one_instant_is_mapped_together() -> None:
    """Min-min gives the fast node to the shorter job, though the quotes of the longer one were complete first."""
    core = grid(1, 1, selection="min-min")
    asked = do(core, 0, GridJobSubmitted(job(1, estimate_ms=100)), GridJobSubmitted(job(2, estimate_ms=60)))
    sites = Site(1, ((0, 1),)), Site(2, ((0, 1),))
    assert do(core, 1, *quotes(asked[:2], 1, *sites)) == []
    assert sent(do(core, 2, *quotes(asked[2:], 2, *sites))) == [(2, 1)]


def test_a_job_that_leaves_does_not_hold_up_those_that_were_asked_for_with_it() -> None:
    """The last for which quotes are awaited is cancelled: the other is mapped at once."""
    core = grid(4)
    asked = do(core, 0, *(GridJobSubmitted(job(number)) for number in (1, 2)))
    assert do(core, 1, *quotes(asked[:1], 1, Site(1, ((0, 4),)))) == []
    commands = do(core, 2, GridJobCancelled(2))
    assert commands[0] == ReportDone(2, "cancelled")
    assert sent(commands[1:]) == [(1, 0)]


def test_a_silent_site_is_not_waited_for_for_ever() -> None:
    """After its patience the grid maps by what the others have said."""
    core = grid(4, 4)
    asked = do(core, 0, GridJobSubmitted(job(1)))
    assert do(core, 0, *quotes(asked, 0, None, Site(1, ((0, 4),)))) == []
    assert core.next_wakeup_ms() == RETRY_MS
    assert sent(do(core, RETRY_MS)) == [(1, 1)]


def test_a_site_that_changes_amid_quotes_is_asked_again_when_all_have_answered() -> None:
    """It had quoted a start much later, and could start the job now: the job does not wait for the next round."""
    core = grid(1, 1)
    first, second = do(core, 0, GridJobSubmitted(job(1)))
    do(core, 1, *quotes([first], 1, Site(1, ((5_000, 1),)), None))
    assert do(core, 2, *said(0, SiteChanged(0, 1))) == []
    (again,) = do(core, 3, *quotes([second], 3, None, Site(1, ((9_000, 1),))))
    assert (again.site, again.request.job.job_id) == (0, 1)
    assert sent(do(core, 4, *quotes([again], 4, Site(1, ((4, 1),)), None))) == [(1, 0)]


def test_a_job_takes_its_place_in_the_queue_where_own_users_wait() -> None:
    """It would be overtaken by every job of theirs if it waited at the grid; where nobody waits it stays there."""
    busy = ((50, 4),)
    for queued, places in ((0, []), (2, [(1, 0)])):
        core = grid(4)
        asked = do(core, 0, GridJobSubmitted(job(1)))
        assert sent(do(core, 0, *quotes(asked, 0, Site(1, busy, queued)))) == places


def test_a_job_in_a_queue_is_moved_only_to_where_it_ends_sooner() -> None:
    """A slow site offers a start at once: that is no gain for a job that waits for a fast one, and will end sooner."""
    for speed, moves in ((1, False), (2, True)):
        core = grid(1, 1)
        asked = do(core, 0, GridJobSubmitted(job(1)))
        command = do(core, 0, *quotes(asked, 0, Site(1, ((90, 1),)), Site(4, ((50, 1),), queued=1)))
        assert sent(command) == [(1, 1)]
        assert do(core, 0, *said(1, Enqueued(1, 2))) == []
        asked = do(core, 20, *said(0, SiteChanged(0, 1)))
        commands = do(core, 20, *quotes(asked, 20, Site(speed, ((0, 1),)), None))
        assert [type(c.request) for c in commands] == ([WithdrawJob] if moves else [])


@pytest.mark.parametrize(("selection", "splits"), [("sjs", False), ("pjs", True)])
def test_pjs_splits_a_job_where_that_ends_sooner(selection: str, splits: bool) -> None:
    """Three nodes are free at each of two sites, and a fourth only later; a job that is too wide is split anyway."""
    for width, is_split in ((4, splits), (6, True)):
        core = grid(4, 4, selection=selection, mode="multi-site", overhead=0.2)
        asked = do(core, 0, GridJobSubmitted(job(1, width)))
        site = Site(1, ((0, 3), (500, 1)))
        commands = do(core, 0, *quotes(asked, 0, site, site))
        reserved = [(c.site, c.request.width) for c in commands if isinstance(c.request, ReserveNodes)]
        assert reserved == ([(0, 3), (1, width - 3)] if is_split else [])
        assert bool(sent(commands)) is False


def test_the_state_of_a_grid_that_maps_survives_being_written_down() -> None:
    """A fresh core that takes the state in goes on as the first would have."""
    core, twin = grid(1, 1), grid(1, 1)
    asked = do(core, 0, *(GridJobSubmitted(job(number)) for number in (1, 2)))
    do(core, 0, *quotes(asked, 0, Site(1, ((0, 1),)), Site(4, ((0, 1),))))
    twin.restore(msgspec.msgpack.decode(msgspec.msgpack.encode(core.state()), type=twin.state_type))
    assert twin.forecast(3, 2) == core.forecast(3, 2)
    assert do(twin, 9, *said(0, SiteChanged(0, 1))) == do(core, 9, *said(0, SiteChanged(0, 1)))


@pytest.mark.parametrize("options", [{}, {"control": "none"}, {"mode": "local", "control": "limited"}])
def test_such_a_selection_needs_sites_that_are_asked(options: dict[str, str]) -> None:
    """Without limited control it is refused, with what would be right."""
    with pytest.raises(OptionError, match=r"'sjs' uses the quotes of sites; it needs control limited and a mode other"):
        GridPolicy(selection="sjs", **options)
