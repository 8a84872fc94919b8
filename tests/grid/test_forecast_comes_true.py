"""What is forecast under full control is what happens, if every job takes as long as it may and no other comes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gridweave.grid.control.links import GridNetwork
from gridweave.grid.messages import FromSite, GridCommand, GridEvent, GridJobSubmitted, ToSite
from gridweave.grid.meta.core import MetaCore
from gridweave.grid.policy import GridPolicy
from gridweave.grid.sends import JobData, Sends
from gridweave.netmodel.communication import PATTERNS, Communication
from gridweave.site.explain import Forecast
from gridweave.site.job import Job
from gridweave.site.messages import CommitNodes, Ended, Refused, Reserved, ReserveNodes, Started
from gridweave.site.state import dump_state
from support.builders import GridCase, drawn_model, grid_cases, grid_options

Start = tuple[int, tuple[tuple[int, int], ...], int]
"""A start: the instant, the (site, nodes) of the job, and its run time, in ms."""


class FaithfulSites:
    """A meta-scheduler and its sites in virtual time; sites grant each request, and jobs run for their whole estimates.

    Parameters
    ----------
    core : MetaCore
    refusals : sequence of int
        Numbers of the requests for nodes to refuse, counted from 0.
    """

    def __init__(self, core: MetaCore, refusals: Sequence[int] = ()) -> None:
        self.core = core
        self.now_ms = 0
        self.starts: dict[int, Start] = {}
        self._calendar: dict[int, list[GridEvent]] = defaultdict(list)
        self._asked: dict[tuple[int, int], list[tuple[int, ReserveNodes]]] = {}
        self.refusals = set(refusals)
        self._n_asked = 0

    def tell(self, now_ms: int, *events: GridEvent) -> None:
        """Handle events, and everything that follows from them at the same instant."""
        self.now_ms = now_ms
        told = list(events)
        while told:
            commands = self.core.handle(now_ms, *told)
            self.core.check_invariants()
            told = [answer for command in commands for answer in self._answers(command)]

    def next_ms(self) -> int | None:
        """Return the instant of the next event, or None."""
        wakeup_ms = self.core.next_wakeup_ms()
        instants = [*self._calendar, *([] if wakeup_ms is None else [wakeup_ms])]
        return min(instants, default=None)

    def go_on(self, until_ms: int) -> Iterator[int]:
        """Run all events up to an instant; yield each instant that had events."""
        while (next_ms := self.next_ms()) is not None and next_ms <= until_ms:
            self.now_ms = next_ms
            events = self._calendar.pop(next_ms, [])
            if events:
                self.tell(next_ms, *events)
            else:
                commands = self.core.handle(next_ms)
                self.tell(next_ms, *(answer for command in commands for answer in self._answers(command)))
            yield next_ms

    def _answers(self, command: GridCommand) -> list[GridEvent]:
        """Return a site's immediate answers to a command, and schedule its later ones."""
        if not isinstance(command, ToSite):
            return []
        site, request = command.site, command.request
        if isinstance(request, ReserveNodes):
            self._n_asked += 1
            if self._n_asked - 1 in self.refusals:
                return [FromSite(site, Refused(request.job_id, request.attempt, "not now"))]
            if request.start_ms is None:
                self._start([(site, request)], self.now_ms)
                return [FromSite(site, Started(request.job_id, request.attempt, self.now_ms))]
            self._asked.setdefault((request.job_id, request.attempt), []).append((site, request))
            return [FromSite(site, Reserved(request.job_id, request.attempt))]
        if isinstance(request, CommitNodes):
            parts = self._asked.pop((request.job_id, request.attempt), None)
            if parts is not None:
                start_ms = parts[0][1].start_ms
                assert start_ms is not None, "a split has no agreed start"
                self._start(parts, start_ms)
        return []

    def _start(self, parts: list[tuple[int, ReserveNodes]], start_ms: int) -> None:
        job_id, attempt, length_ms = parts[0][1].job_id, parts[0][1].attempt, parts[0][1].length_ms
        self.starts[job_id] = start_ms, tuple((site, hold.width) for site, hold in parts), length_ms
        for site, _ in parts:
            end_ms = start_ms + length_ms
            self._calendar[end_ms].append(FromSite(site, Ended(job_id, attempt, end_ms, "finished")))


LATER_MS = 10**9


def policy_of(options: dict[str, Any]) -> GridPolicy:
    """Return the policy that options of the reference mean."""
    return GridPolicy(**options | {"max_fragments": tuple(options["max_fragments"] or ())})


def forecasts(sites: FaithfulSites, now_ms: int) -> dict[int, Forecast]:
    """Return the forecasts of all jobs that wait; nothing may have changed by them."""
    before = dump_state(sites.core)
    found = {
        job_id: sites.core.forecast(now_ms, job_id)
        for job_id in range(1, 20)
        if job_id not in sites.starts and sites.core.forecast(now_ms, job_id) is not None
    }
    plan = {forecast.job_id: said_start(forecast) for forecast in sites.core.planner(now_ms, 100)()}
    assert dump_state(sites.core) == before, "a forecast has changed the core"
    placed = {job_id for job_id, forecast in found.items() if forecast is not None and forecast.state == "waiting"}
    known = {job_id: said_start(found[job_id]) for job_id in placed if found[job_id].start_ms is not None}
    assert plan == known, "one play for all jobs says the same as one for each"
    return {job_id: forecast for job_id, forecast in found.items() if forecast is not None}


def check(sites: FaithfulSites, case: GridCase, data: st.DataObject, sends: dict[int, Sends]) -> None:
    """Hand all jobs in but the last, quote that, hand it in, and see whether all comes as it was said."""
    jobs = sorted(case.jobs, key=lambda job: (job.submit, job.id))
    for job in jobs[:-1]:
        for _ in sites.go_on(job.submit):
            pass
        sites.tell(max(job.submit, sites.now_ms), submission(job, case, sends))
    last = jobs[-1]
    for _ in sites.go_on(last.submit):
        pass
    now_ms = max(last.submit, sites.now_ms)
    sites.refusals = set()
    before = dump_state(sites.core)
    submitted = submission(last, case, sends)
    quoted = sites.core.quote(now_ms, submitted.job, submitted.sensitivity, submitted.sends)
    assert dump_state(sites.core) == before, "a quote has changed the core"
    sites.tell(now_ms, submitted)
    said = [(now_ms, forecasts(sites, now_ms))]
    said += [
        (instant_ms, forecasts(sites, instant_ms)) for instant_ms in sites.go_on(LATER_MS) if data.draw(st.booleans())
    ]
    if quoted.state != "refused":
        assert said_start(quoted) == sites.starts[last.id]
    for now_ms, found in said:
        for job_id, forecast in found.items():
            assert said_start(forecast) == sites.starts[job_id], (now_ms, job_id)


def said_start(forecast: Forecast) -> tuple[int | None, tuple[tuple[int, int], ...], int]:
    """Return a start as the faithful sites note it; a core without names calls its sites by their numbers."""
    fragments = tuple((int(name.removeprefix("site ")), nodes) for name, nodes in forecast.places)
    return forecast.start_ms, fragments, forecast.length_ms


def submission(job: Any, case: GridCase, sends: dict[int, Sends]) -> GridJobSubmitted:
    """Return the submission of a job of the reference."""
    inner = Job(job_id=job.id, width=job.width, estimate_ms=job.estimate, weight=job.weight, priority=job.priority)
    return GridJobSubmitted(inner, case.sensitivity[job.id], sends.get(job.id))


@pytest.mark.parametrize("backfill", ["easy", "none", "conservative"])
@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_forecasts_come_true(backfill: str, data: st.DataObject) -> None:
    """In every mode, order and selection each job that waits starts when and where it was forecast, and quoted."""
    options = data.draw(
        grid_options(("sharing", "multi-site", "adaptive"), backfills=(backfill,), orders=("fcfs", "sjf", "wfit"))
    )
    case = data.draw(grid_cases(max_jobs=12))
    margin_ms = data.draw(st.sampled_from((0, 0, 3)))
    refusals = data.draw(st.lists(st.integers(0, 8), max_size=3))
    core = MetaCore(case.nodes, policy_of(options), rng=np.random.default_rng(7), margin_ms=margin_ms, retry_ms=5)
    check(FaithfulSites(core, refusals), case, data, {})


@pytest.mark.parametrize("backfill", ["easy", "none", "conservative"])
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_forecasts_come_true_over_links(backfill: str, data: st.DataObject) -> None:
    """So it is between links, by the length that these give each split, and with data that moves."""
    mode = data.draw(st.sampled_from(("multi-site", "adaptive")))
    staging = 0 if backfill == "conservative" else data.draw(st.integers(0, 2))
    case = data.draw(grid_cases(max_jobs=10, tick=1000))
    seed = data.draw(st.integers(0, 1000))
    model = drawn_model(np.random.default_rng(seed), len(case.nodes))
    network = GridNetwork(model, data.draw(st.booleans()), staging, 50)
    sends = {
        job.id: Sends(
            Communication(
                pattern=data.draw(st.sampled_from(tuple(PATTERNS))),
                fraction=data.draw(st.sampled_from((0.0, 0.3, 0.8))),
                message_bytes=200_000.0,
            ),
            JobData(input_bytes=data.draw(st.sampled_from((0, 10**6, 10**8))), input_site=len(case.nodes) - 1),
        )
        for job in case.jobs
    }
    policy = GridPolicy(mode=mode, backfill=backfill)
    core = MetaCore(case.nodes, policy, margin_ms=data.draw(st.sampled_from((0, 3))), retry_ms=5000, network=network)
    check(FaithfulSites(core), case, data, sends)
