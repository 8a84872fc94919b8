"""A site that can never run a job says so when it is asked: it is asked no more for that, and keeps up nobody else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from gridweave.grid.messages import (
    FromSite,
    GridJobExclusions,
    GridJobHeld,
    GridJobSubmitted,
    ReportHeld,
    ReportRefused,
    ToSite,
)
from gridweave.grid.meta.core import MetaCore
from gridweave.site.job import Job
from gridweave.site.messages import (
    Answer,
    Enqueued,
    EnqueueJob,
    Quoted,
    Refused,
    RequestQuote,
    ReserveNodes,
    SiteChanged,
)
from support.stepping import RETRY_MS, do, meta, said, submitted

CONTROLS = ["full", "limited", "none"]


def grid(control: str, *nodes: int, **options: Any) -> MetaCore:
    """Return a meta-scheduler that splits nothing, unless said otherwise."""
    return meta(*nodes, **{"mode": "sharing", "control": control, **options})


def answer(
    command: ToSite, now_ms: int, *, never: bool, takes_parts: bool = False, busy: bool = False
) -> Answer | None:
    """Return what a site says to a request: that it can never run the job, or that it could now, or in an hour."""
    request, why = command.request, f"no machine of site {command.site} will do"
    if isinstance(request, RequestQuote):
        if never:
            return Quoted(request.quote_id, 4, None, why, cause="never", takes_parts=False)
        return Quoted(request.quote_id, 0 if busy else 4, now_ms + 3_600_000 * busy if request.width <= 4 else None)
    if never and isinstance(request, ReserveNodes | EnqueueJob):
        job_id = request.job_id if isinstance(request, ReserveNodes) else request.job.job_id
        return Refused(job_id, request.attempt, why, "never")
    return Enqueued(request.job.job_id, request.attempt) if isinstance(request, EnqueueJob) else None


def play(core: MetaCore, now_ms: int, *events: Any, never: tuple[int, ...], **says: bool) -> list[Any]:
    """Return all that is commanded from some events on, if some sites can never run what they are asked for."""
    found, commands = [], do(core, now_ms, *events)
    while commands:
        found += commands
        told = [c for c in commands if isinstance(c, ToSite)]
        answers = [(c.site, answer(c, now_ms, never=c.site in never, **says)) for c in told]
        events = tuple(FromSite(site, each) for site, each in answers if each is not None)
        commands = do(core, now_ms, *events) if events else []
    return found


def restored(core: MetaCore, fresh: MetaCore) -> MetaCore:
    """Return a core that knows what another has written down."""
    fresh.restore(msgspec.json.decode(msgspec.json.encode(core.state()), type=core.state_type))
    return fresh


@pytest.mark.parametrize("control", CONTROLS)
def test_a_job_longer_than_every_site_runs_is_refused_when_it_is_submitted(control: str) -> None:
    """The sites have said how long jobs may be; one that some site runs goes there alone."""
    core = grid(control, 4, 4)
    do(core, 0, *said(0, SiteChanged(0, 4, longest_ms=100)), *said(1, SiteChanged(0, 4, longest_ms=200)))
    core = restored(core, grid(control, 4, 4))
    (refused,) = do(core, 1, submitted(1, 2, 201))
    assert refused == ReportRefused(
        1,
        "no site can run it: site 0: it runs jobs of at most 100 ms, and the job may take 201 ms; give it a "
        "lower limit; "
        "site 1: it runs jobs of at most 200 ms, and the job may take 201 ms; give it a lower limit",
    )
    assert core.why_never(Job(job_id=2, width=2, estimate_ms=201)) == refused.reason
    assert core.why_never(Job(job_id=2, width=2, estimate_ms=200)) is None
    assert {command.site for command in do(core, 2, submitted(2, 2, 200))} == {1}
    do(core, 3, *said(0, SiteChanged(0, 4)))
    assert core.why_never(Job(job_id=3, width=2, estimate_ms=201)) is None


@pytest.mark.parametrize("control", CONTROLS)
def test_a_site_that_can_never_run_a_job_is_asked_once(control: str) -> None:
    """The job waits at the other site; whatever changes, also over a restart, the first hears of it no more."""
    core = grid(control, 4, 4)
    commands = play(core, 0, submitted(1, 3), never=(0,), busy=True)
    assert commands[-1].site == 1
    assert isinstance(commands[-1].request, EnqueueJob)
    assert len([c for c in commands if c.site == 0]) == 1
    for each in (core, restored(core, grid(control, 4, 4))):
        forecast = each.forecast(0, 1)
        assert forecast is not None
        assert forecast.sites[0].reason == "can never run it: no machine of site 0 will do"
        changed = [*said(0, SiteChanged(1, 3)), *said(1, SiteChanged(1, 3))]
        later = play(each, 5, *changed, never=(0,), busy=True) + play(each, RETRY_MS + 5, never=(0,), busy=True)
        assert [c for c in later if c.site == 0] == []


@pytest.mark.parametrize("control", CONTROLS)
def test_a_job_that_no_site_can_ever_run_is_refused_with_what_each_has_said(control: str) -> None:
    """Also if a third is too small for it; nothing of it is left that could wake the grid."""
    core = grid(control, 4, 4, 2)
    commands = play(core, 0, submitted(1, 3), never=(0, 1))
    reason = "no site can run it: site 0: no machine of site 0 will do; site 1: no machine of site 1 will do; "
    who = "control none" if control == "none" else "mode sharing"
    reason += f"it needs 3 nodes, the largest site has 2, and {who} splits no job; only sites that accept it count"
    assert commands[-1] == ReportRefused(1, reason)
    assert (list(core.waiting()), core.next_wakeup_ms()) == ([], None)


def test_under_full_control_such_a_job_holds_up_nobody() -> None:
    """The site goes on to be asked for the jobs behind it, at the instant at which it has said so."""
    core = grid("full", 4, 4)
    do(core, 0, submitted(1, 4), submitted(2, 4))
    commands = do(core, 1, submitted(3, 3), *said(0, Refused(1, 1, "never here", "never")))
    assert [(c.site, type(c.request)) for c in commands] == [(1, RequestQuote), (0, ReserveNodes)]
    assert commands[1].request.job_id == 3


def test_a_job_that_its_user_holds_meanwhile_is_taken_out() -> None:
    """And placed again when it comes back: what was said of it before is not kept."""
    core = grid("full", 4, 4)
    do(core, 0, submitted(1, 3))
    do(core, 1, GridJobHeld(1))
    assert do(core, 2, *said(0, Refused(1, 1, "never here", "never"))) == [ReportHeld(1, 1)]
    assert play(core, 3, GridJobSubmitted(submitted(1, 3).job, attempt=1), never=())[0].site == 0


@pytest.mark.parametrize(
    ("mode", "takes_parts", "splits"),
    [("multi-site", True, True), ("multi-site", False, False), ("sharing", True, False)],
)
def test_a_site_that_takes_a_part_of_a_job_is_asked_for_that(mode: str, takes_parts: bool, splits: bool) -> None:
    """What it can never run is the whole; where nothing is split, and if it runs no parts either, it is barred."""
    core = grid("limited", 4, 4, mode=mode, margin_ms=50)
    asked = do(core, 0, submitted(1, 4))
    quotes = [Quoted(c.request.quote_id, 2, None, "", cause="never", takes_parts=takes_parts) for c in asked]
    commands = do(core, 1, *(FromSite(c.site, quote) for c, quote in zip(asked, quotes, strict=True)))
    if splits:
        assert [c.request for c in commands] == [ReserveNodes(1, 2, 2, 100, 51)] * 2
    else:
        assert [type(c) for c in commands] == [ReportRefused]


def test_a_site_that_can_never_run_its_part_is_asked_for_no_other() -> None:
    """It has quoted nodes, and then says that it would not have the job on any: the split is over the others."""
    core = grid("limited", 4, 4, 4, mode="multi-site", margin_ms=50)
    play(core, 0, submitted(1, 6), never=())
    commands = do(core, 1, *said(0, Refused(1, 2, "it passes on no options", "never")))
    assert [c.site for c in commands if isinstance(c.request, RequestQuote)] == [1, 2]


def play_parts(core: MetaCore, *events: Any, without: tuple[int, ...]) -> list[Any]:
    """Return all that is commanded from some events on, if some idle sites of 4 nodes take no parts of jobs."""
    found, commands = [], do(core, 0, *events)
    while commands:
        found += commands
        answers: list[FromSite] = []
        for command in (each for each in commands if isinstance(each, ToSite)):
            request = command.request
            if isinstance(request, RequestQuote):
                takes_parts = command.site not in without
                answers += said(command.site, Quoted(request.quote_id, 4, None, "4 nodes", takes_parts=takes_parts))
            elif isinstance(request, ReserveNodes) and command.site in without:
                answers += said(command.site, Refused(request.job_id, request.attempt, "it runs no parts", "never"))
        commands = do(core, 0, *answers) if answers else []
    return found


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_job_that_is_too_wide_for_those_that_take_parts_is_refused(control: str) -> None:
    """No single site could have it: it is refused as soon as the others have said that they take no part."""
    core = grid(control, 4, 4, 4, mode="multi-site")
    (refused,) = [c for c in play_parts(core, submitted(1, 6), without=(0, 1)) if isinstance(c, ReportRefused)]
    assert refused.reason.startswith("no site can run it: site 0: it runs no parts")
    assert "it needs 6 nodes and all sites together have 4" in refused.reason
    assert list(core.waiting()) == []


@pytest.mark.parametrize("control", ["full", "limited"])
def test_a_job_that_fits_those_that_take_parts_is_split_over_them(control: str) -> None:
    """A site that takes no part of it takes nothing from it; nor is a job refused that such a site has room for."""
    core = grid(control, 4, 4, 4, mode="multi-site")
    commands = play_parts(core, submitted(1, 8), without=(0,))
    assert [(c.site, c.request.width) for c in commands[-2:]] == [(1, 4), (2, 4)]
    whole = play_parts(grid(control, 8, 4, mode="multi-site"), submitted(1, 8), without=(0, 1))
    assert not [c for c in whole if isinstance(c, ReportRefused)]


def test_under_full_control_what_was_said_of_parts_outlasts_a_restart() -> None:
    """And is known no more when sites say again whom they take: they may have changed."""
    core = grid("full", 4, 4, 4, mode="multi-site")
    do(core, 0, submitted(1, 6))
    do(core, 0, *said(0, Refused(1, 1, "it runs no parts", "never")))
    again = restored(core, grid("full", 4, 4, 4, mode="multi-site"))
    refusal = said(1, Refused(1, 2, "it runs no parts", "never"))
    assert [type(c) for c in do(again, 0, *refusal)] == [ToSite, ReportRefused]
    do(core, 0, GridJobExclusions(submitted(1, 6)))
    assert [type(c) for c in do(core, 0, *refusal)] == [ToSite]
    assert list(core.waiting()) == [1]


def test_a_site_that_takes_its_user_no_more_is_not_chosen_for_what_it_has_quoted() -> None:
    """It said so before the last of the others had answered."""
    core = grid("limited", 4, 4)
    first, second = do(core, 0, submitted(1, 3))
    do(core, 1, *said(0, Quoted(first.request.quote_id, 4, 1)))
    do(core, 2, GridJobExclusions(msgspec.structs.replace(submitted(1, 3), excluded=(0,))))
    (placed,) = do(core, 3, *said(1, Quoted(second.request.quote_id, 0, 500)))
    assert (placed.site, type(placed.request)) == (1, EnqueueJob)


def test_a_site_that_says_anew_whom_it_takes_is_asked_anew() -> None:
    """It may have other machines by now."""
    core = grid("limited", 4, 4)
    play(core, 0, submitted(1, 3), never=(0,), busy=True)
    assert do(core, 1, GridJobExclusions(submitted(1, 3))) == []
    assert [c.site for c in do(core, 2, *said(0, SiteChanged(1, 3)))] == [0]
