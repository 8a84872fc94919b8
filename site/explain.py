"""Explain when a job will start and why not sooner, for sites, the grid, its gateway and the command line.

Each reason is worded once, by the component that knows it: a site's discipline, a site's contract, or the grid queue.
All other components pass on the text unchanged. docs/explain.md lists the reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gridweave.site.job import JobRecord
from gridweave.site.launch import NodeSharing, SplitCost
from gridweave.site.lifecycle import PLACED, JobState
from gridweave.site.times import span_text, when_text

Places = tuple[tuple[str, int], ...]
"""Sites, with the number of nodes at each."""


class SiteReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job cannot start at a site now.

    Attributes
    ----------
    site : str
        Name of the site; empty in a discipline's answer, because the discipline does not know the name.
    nodes, free : int
        Number of nodes at the site (in the grid's answer: in the grid's share), and how many of these are free.
    start_ms : int, optional
        The job's start in the site's schedule. In the grid's answer: its start if it were the next job and all running
        jobs used their whole estimates. None: it never starts, or has no promised start, e.g. behind a queue's head.
    is_bound : bool
        Whether the site guarantees ``start_ms``: it can only become earlier, unless an estimate is exceeded or, in a
        queue, a job moves ahead of this one. Never true at a planning site, which recomputes its plan, nor with slack.
    ahead : int
        Number of jobs ahead of this job in the queue.
    waits_for : tuple of int
        The running jobs that end by ``start_ms`` according to their estimates; may be empty.
    reason : str
        One readable line, with numbers.
    cause : str
        The reason without numbers, if the discipline provides it; used to group reasons that differ in numbers only.
    offer : str
        The jobs with which the job could share nodes now, and the slowdown; empty if there are none.
    """

    site: str = ""
    nodes: int = 0
    free: int = 0
    start_ms: int | None = None
    is_bound: bool = False
    ahead: int = 0
    waits_for: tuple[int, ...] = ()
    reason: str = ""
    cause: str = ""
    offer: str = ""

    def with_offer(self) -> SiteReason:
        """Return a copy whose reason ends with the site's offer of shared nodes."""
        return msgspec.structs.replace(self, reason=f"{self.reason}; {self.offer}") if self.offer else self


STARTS_AT_ONCE = "it would start at once"
"""Beginning of the reason for a job that would not have to wait; the placement follows."""


class SplitReason(msgspec.Struct, frozen=True, kw_only=True):
    """The cost and gain of splitting a job.

    Attributes
    ----------
    places : tuple of (str, int)
        Sites and nodes of the best split that could start now, or else of the earliest possible split.
    start_ms : int, optional
        Start of the job with this split.
    length_ms, whole_ms : int
        Wall time limit of the job with the split and without it.
    gain_ms : int, optional
        How much earlier the job ends with the split than on one site; negative: later; None: either is impossible.
    reason : str
        Why the job is or is not split.
    cost : SplitCost, optional
        Cost of the split, even if the split is rejected because of its cost.
    """

    places: Places = ()
    start_ms: int | None = None
    length_ms: int = 0
    whole_ms: int = 0
    gain_ms: int | None = None
    reason: str = ""
    cost: SplitCost | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When and where a job will start, and why not sooner, for a submitted job or a quote.

    Attributes
    ----------
    job_id : int, optional
        None for a quote.
    start_ms : int, optional
        Start if every job uses its whole time limit and no other job is submitted; None: unknown or never.
    places : tuple of (str, int)
        Sites and nodes on which the job would then start.
    length_ms : int
        Wall time limit with this placement.
    ahead : int
        Number of jobs before it in the queue.
    reason : str
        Why the job has to wait, in one line.
    cause : str
        The reason without numbers, if its source provides it; used to group reasons that differ in numbers only.
    split : SplitReason, optional
        None if the grid does not split jobs.
    queues : tuple of str
        The sites in whose queues the job is waiting, or could wait after submission; only these sites know its start.
        Empty with full control.
    evicted : str
        How often a grid job was evicted, with the last eviction's time and site and the job that caused it; also part
        of ``reason``.
    offers : tuple of str
        The sites that could start the job on shared nodes now if it were submitted to a grid with full control.
    """

    job_id: int | None = None
    now_ms: int
    state: JobState = "waiting"
    start_ms: int | None = None
    places: Places = ()
    length_ms: int = 0
    ahead: int = 0
    reason: str = ""
    cause: str = ""
    sites: tuple[SiteReason, ...] = ()
    split: SplitReason | None = None
    queues: tuple[str, ...] = ()
    evicted: str = ""
    offers: tuple[str, ...] = ()


Planner = Callable[[], list[Forecast]]
"""A function that computes forecasts for all waiting jobs, each the same as a `Forecaster`'s where possible."""

Forecaster = Callable[[], Forecast]
"""A function that computes a forecast from copies made when the question was asked; callable at any time and in any
thread."""


def settled(forecast: Forecast) -> Forecaster:
    """Wrap a forecast that is already computed in a forecaster."""
    return lambda: forecast


def forecast_at(
    site: str,
    site_reason: SiteReason,
    now_ms: int,
    job_id: int | None,
    width: int,
    length_ms: int,
    state: JobState = "waiting",
) -> Forecast:
    """Return a job's forecast for one site, given the site's reason."""
    site_reason = site_reason.with_offer()
    return Forecast(
        job_id=job_id,
        now_ms=now_ms,
        state=state,
        start_ms=site_reason.start_ms,
        places=() if site_reason.start_ms is None else ((site, width),),
        length_ms=length_ms,
        ahead=site_reason.ahead,
        reason=site_reason.reason,
        cause=site_reason.cause,
        sites=(msgspec.structs.replace(site_reason, site=site),),
    )


def with_refusals(forecast: Forecast, refusals: Mapping[str, str]) -> Forecast:
    """Return a copy in which each site in ``refusals`` shows why it does not accept the job."""
    rows = [
        msgspec.structs.replace(row, start_ms=None, is_bound=False, waits_for=(), reason=f"does not accept it: {why}")
        if (why := refusals.get(row.site))
        else row
        for row in forecast.sites
    ]
    return msgspec.structs.replace(forecast, sites=tuple(rows))


def with_cost(forecaster: Forecaster, cost: SplitCost) -> Forecast:
    """Return the forecast of a starting job, with the cost of its split added to the reason."""
    forecast = forecaster()
    return msgspec.structs.replace(forecast, reason=f"{forecast.reason}; {cost.text}")


def took_text(record: JobRecord, now_ms: int | None = None) -> str:
    """Describe how long a job ran that has ended or is ending at `now_ms`; empty if the job has never run."""
    end_ms = now_ms if record.end_ms is None else record.end_ms
    if record.start_ms is None or end_ms is None:
        return ""
    return f"it took {span_text(max(0, end_ms - record.start_ms))}"


def offer_text(slowdown: float, beside: Sequence[int], wait_ms: int = 0) -> str:
    """Describe the jobs with which a job could share nodes, now or after a wait, and the job's slowdown.

    Examples
    --------
    >>> offer_text(1.28, [12])
    'or it could start now on nodes shared with job 12, and take 1.28 times as long'
    """
    return f"or it could {shared_start_text(slowdown, beside, wait_ms)}"


def shared_start_text(slowdown: float, beside: Sequence[int], wait_ms: int = 0) -> str:
    """Describe how a job would start on other jobs' nodes; the slowdown includes the wait.

    Examples
    --------
    >>> shared_start_text(1.28, [])
    'start now on nodes shared with other jobs, and take 1.28 times as long'
    """
    jobs = f"job{'s' * (len(beside) > 1)} {listed([str(job_id) for job_id in beside])}" if beside else "other jobs"
    where = f"on nodes shared with {jobs}"
    if wait_ms > 0:
        return f"start {when_text(wait_ms, 0)} {where}, and end after {slowdown:.2f} times its length from now"
    return f"start now {where}, and take {slowdown:.2f} times as long"


def really_text(sharing: NodeSharing) -> str:
    """Describe the measured slowdown of an ended job that shared nodes.

    Examples
    --------
    >>> really_text(NodeSharing(beside=(2,), slowdown=1.3, real=1.25, alone_ms=60_000, alone_runs=3))
    'it actually took 1.25 times as long (alone: 1 min, the mean of 3 runs)'
    """
    if sharing.real is None:
        return "its run time alone is unknown, because no such job has run alone"
    runs = "one run" if sharing.alone_runs == 1 else f"the mean of {sharing.alone_runs:,} runs"
    return f"it actually took {sharing.real:.2f} times as long (alone: {span_text(sharing.alone_ms)}, {runs})"


def record_forecast(record: JobRecord, now_ms: int, kept: str = "") -> Forecast:
    """Return the forecast of a job that is in no queue, from its record; ``kept`` is the reason if it is held."""
    return Forecast(
        job_id=record.job_id,
        now_ms=now_ms,
        state=record.state,
        start_ms=record.start_ms,
        places=record.places if record.state in (*PLACED, "ended") else (),
        length_ms=record.request.limit_ms,
        reason=kept or _recorded(record),
    )


def _recorded(record: JobRecord) -> str:
    """Return a record's reason without its state, start and placement, which are separate fields of the forecast."""
    match record.state:
        case "starting":
            return "it was placed"
        case "running":
            cost = record.split or record.sharing
            return "" if cost is None else cost.text
        case "ending":
            return "it is ending, within its grace period" if record.places else "it is ending"
        case "ended":
            ended = f"{record.outcome}: {record.reason}" if record.reason else f"{record.outcome}"
            took = "" if record.split is None else took_text(record)
            return f"{ended}; {took}, {record.split.text}" if record.split is not None and took else ended
        case _:
            return record.reason


# -- common phrases ---------------------------------------------------------------------------------------------------


def nodes_text(count: int) -> str:
    """Return a number of nodes in words.

    Examples
    --------
    >>> nodes_text(1), nodes_text(4)
    ('1 node', '4 nodes')
    """
    return f"{count} node{'s' * (count != 1)}"


def chunks_text(count: int) -> str:
    """Return a number of chunks in words.

    Examples
    --------
    >>> chunks_text(1), chunks_text(4)
    ('1 chunk', '4 chunks')
    """
    return f"{count} chunk{'s' * (count != 1)}"


def too_small_text(nodes: int) -> str:
    """Say that the grid can use fewer nodes at a site than a job needs.

    Examples
    --------
    >>> too_small_text(4)
    'offers the grid 4 nodes in total, too few for the whole job'
    """
    return f"offers the grid {nodes_text(nodes)} in total, too few for the whole job"


def shut_text(why: str) -> str:
    """Say that a site accepts no new grid jobs, and why.

    Examples
    --------
    >>> shut_text("the site is being drained")
    'accepts no new grid jobs: the site is being drained'
    """
    return f"accepts no new grid jobs: {why}"


def free_text(free: int, nodes: int | None = None) -> str:
    """Return how many nodes are free, in words, with the total if given.

    Examples
    --------
    >>> free_text(1, 8), free_text(0, 1), free_text(0), free_text(2)
    ('1 of 8 nodes is free', '0 of 1 node are free', 'none is free', '2 are free')
    """
    if nodes is None:
        return f"{free or 'none'} {'is' if free <= 1 else 'are'} free"
    return f"{free} of {nodes_text(nodes)} {'is' if free == 1 else 'are'} free"


def ahead_text(count: int) -> str:
    """Return the number of jobs ahead in a queue, in words.

    Examples
    --------
    >>> ahead_text(1), ahead_text(3)
    ('the job ahead', 'the 3 jobs ahead')
    """
    return "the job ahead" if count == 1 else f"the {count} jobs ahead"


def places_text(placement: Sequence[tuple[str, int]]) -> str:
    """Return the placement of a job in words.

    Examples
    --------
    >>> places_text([("north", 4), ("south", 2)])
    'north (4) and south (2)'
    """
    return listed([f"{site} ({nodes})" for site, nodes in placement])


def listed(parts: Sequence[str]) -> str:
    """Join parts with commas and a final "and".

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def with_evictions(reason: str, evicted: str) -> str:
    """Return a waiting job's reason, followed by its evictions, if any."""
    return f"{reason}; {evicted}" if evicted else reason


def evicted_text(times: int, last_ms: int, now_ms: int, reason: str, site: str = "") -> str:
    """Describe how often a job was evicted, with the time, the reason and, if given, the site of the last eviction.

    Examples
    --------
    >>> evicted_text(1, 50_000, 60_000, "job 7 takes its nodes")
    'it was evicted 10 s ago: job 7 takes its nodes'
    >>> evicted_text(2, 50_000, 60_000, "job 7 takes its nodes", "north")
    'it was evicted 2 times, last 10 s ago, at north: job 7 takes its nodes'
    """
    often = "" if times == 1 else f" {times} times, last"
    where = f"{',' * (times > 1)} at {site}" if site else ""
    return f"it was evicted{often} {when_text(last_ms, now_ms)}{where}: {reason}"


def without_site_answer(forecast: Forecast, site: str) -> Forecast:
    """Return a copy that marks a site as not responding; the forecast's older information about the site is kept."""
    rows = tuple(
        msgspec.structs.replace(row, start_ms=None, reason=f"does not answer now; {row.reason}")
        if row.site == site
        else row
        for row in forecast.sites
    )
    reason = forecast.reason
    if forecast.job_id is not None:
        reason += f"; {site} does not answer now"
    return msgspec.structs.replace(forecast, sites=rows, reason=reason)


def with_site_answer(forecast: Forecast, site: str, answer: Forecast) -> Forecast:
    """Return a forecast updated with the answer of a site in whose queue the job is waiting or would wait.

    A waiting job's forecast gets the site's start and reason. A quote gets the earliest start among the sites that have
    answered.
    """
    site_reason = answer.sites[0] if answer.sites else SiteReason(start_ms=answer.start_ms, reason=answer.reason)
    rows = tuple(
        msgspec.structs.replace(site_reason, site=site, nodes=row.nodes) if row.site == site else row
        for row in forecast.sites
    )
    forecast = msgspec.structs.replace(forecast, sites=rows)
    start_ms = answer.start_ms
    if forecast.job_id is not None:
        where = f"it waits in the queue of {site}" if answer.state == "waiting" else f"at {site}"
        reason = with_evictions(f"{where}: {answer.reason}" if answer.reason else "", forecast.evicted)
        return msgspec.structs.replace(
            forecast, state=answer.state, start_ms=start_ms, ahead=answer.ahead, reason=reason
        )
    if start_ms is None or (forecast.start_ms is not None and forecast.start_ms <= start_ms):
        return forecast
    return msgspec.structs.replace(
        forecast,
        start_ms=start_ms,
        places=answer.places,
        length_ms=answer.length_ms,
        ahead=answer.ahead,
        reason=f"{site} could start it earliest",
    )
