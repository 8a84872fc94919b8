"""When a job starts, and why not sooner: the one answer that sites, the grid, its gateway and the command line give.

Whoever knows a reason words it: the discipline of a site, its contract, the grid queue. Nobody words it again.
The reasons are listed in docs/explain.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from gridweave.site.job import JobRecord
from gridweave.site.launch import NodeSharing, SplitCost
from gridweave.site.lifecycle import PLACED, JobState
from gridweave.site.times import span_text, when_text

Places = tuple[tuple[str, int], ...]
"""Names of sites, and nodes of each."""


class SiteReason(msgspec.Struct, frozen=True, kw_only=True):
    """Why a job does not start at a site now.

    Attributes
    ----------
    site : str
        Its name; empty in the answer of a discipline, which does not know it.
    nodes, free : int
        How many nodes it has (in the answer of the grid: those that the grid may have there), and how many are free.
    start_ms : int, optional
        When the job starts there by the site's word, or, by the grid's, when it could if it were the next and all
        that runs took as long as it may. None: never, or nothing is promised, as in a queue to the jobs behind the
        head.
    is_bound : bool
        Whether the site guarantees ``start_ms``: it can only become earlier, as long as no estimate is exceeded and (in
        a queue) no job goes ahead of this one. Never on a planning site, whose plan is made anew, nor with slack.
    ahead : int
        How many jobs stand before it in the queue.
    waits_for : tuple of int
        The running jobs that end by ``start_ms``, by their estimates; empty if there is none.
    reason : str
        One line for a person, with numbers.
    cause : str
        The same without numbers, if the discipline tells it; what differs in numbers alone is one cause.
    offer : str
        Beside whom it could start now, and how much longer it would take; empty: beside nobody.
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
        """Return this with a reason that ends with what the site offers."""
        return msgspec.structs.replace(self, reason=f"{self.reason}; {self.offer}") if self.offer else self


STARTS_AT_ONCE = "it would start at once"
"""So the reason of a job begins that would not wait; where it would start follows."""


class SplitReason(msgspec.Struct, frozen=True, kw_only=True):
    """What a split would cost, and gain.

    Attributes
    ----------
    places : tuple of (str, int)
        The sites and nodes of the best split that could start now, or soonest.
    start_ms : int, optional
        When.
    length_ms, whole_ms : int
        How long the job takes at most if it is split, and if it is not.
    gain_ms : int, optional
        By how much sooner it would end than on one site; below 0: later; None: one of both is not to be had.
    reason : str
        Why it is, or is not, split.
    cost : SplitCost, optional
        What that split costs, or, where none is made that costs so much, what it would cost.
    """

    places: Places = ()
    start_ms: int | None = None
    length_ms: int = 0
    whole_ms: int = 0
    gain_ms: int | None = None
    reason: str = ""
    cost: SplitCost | None = None


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a job starts, and where, and why not sooner: an explanation, or a quote for one that was not handed in.

    Attributes
    ----------
    job_id : int, optional
        None for a quote.
    start_ms : int, optional
        When it starts if every job takes as long as it may and no other comes; None: not known, or never.
    places : tuple of (str, int)
        The sites and nodes on which it starts then.
    length_ms : int
        How long it takes there at most.
    ahead : int
        How many jobs stand before it in the queue.
    reason : str
        Why it waits, in one line.
    cause : str
        The same without numbers, if whoever words it tells it; what differs in numbers alone is one cause.
    split : SplitReason, optional
        None where nothing is split.
    queues : tuple of str
        The sites in whose own queues it waits, or could wait if it were handed in: they know when it starts there.
        Empty under full control.
    evicted : str
        Of a job of the grid that sites have evicted: how often, when last, where, and for which job; ``reason`` says so
        too.
    offers : tuple of str
        The sites that know beside whom it could start now, if it were handed in to a grid with full control.
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
"""Works out when all that waits starts, as far as it can be told, as a `Forecaster` does for one job."""

Forecaster = Callable[[], Forecast]
"""Works a forecast out, from copies that were made when it was asked for: at once, later, or in another thread."""


def settled(forecast: Forecast) -> Forecaster:
    """Return the forecaster of a forecast that needs no more work."""
    return lambda: forecast


def forecast_at(
    site: str,
    said: SiteReason,
    now_ms: int,
    job_id: int | None,
    width: int,
    length_ms: int,
    state: JobState = "waiting",
) -> Forecast:
    """Return the forecast of a job that is, or would be, at one site, from what is said of it there."""
    said = said.with_offer()
    return Forecast(
        job_id=job_id,
        now_ms=now_ms,
        state=state,
        start_ms=said.start_ms,
        places=() if said.start_ms is None else ((site, width),),
        length_ms=length_ms,
        ahead=said.ahead,
        reason=said.reason,
        cause=said.cause,
        sites=(msgspec.structs.replace(said, site=site),),
    )


def with_refusals(forecast: Forecast, refusals: Mapping[str, str]) -> Forecast:
    """Return a forecast in which sites that do not take the user of a job, by their names, say so and why."""
    rows = [
        msgspec.structs.replace(row, start_ms=None, is_bound=False, waits_for=(), reason=f"does not take it: {why}")
        if (why := refusals.get(row.site))
        else row
        for row in forecast.sites
    ]
    return msgspec.structs.replace(forecast, sites=tuple(rows))


def with_cost(forecaster: Forecaster, cost: SplitCost) -> Forecast:
    """Return the forecast of a job that is being started, with what its split costs."""
    found = forecaster()
    return msgspec.structs.replace(found, reason=f"{found.reason}; {cost.text}")


def took_text(record: JobRecord, now_ms: int | None = None) -> str:
    """Return how long a job really took that has ended, or ends now; empty if it has not run."""
    end_ms = now_ms if record.end_ms is None else record.end_ms
    if record.start_ms is None or end_ms is None:
        return ""
    return f"it took {span_text(max(0, end_ms - record.start_ms))}"


def offer_text(slowdown: float, beside: Sequence[int]) -> str:
    """Return that a job could start now beside others, and how much longer it would take.

    Examples
    --------
    >>> offer_text(1.28, [12])
    'or it could start now beside job 12, and take 1.28 times as long'
    """
    jobs = f"job{'s' * (len(beside) > 1)} {listed([str(job_id) for job_id in beside])}" if beside else "others"
    return f"or it could start now beside {jobs}, and take {slowdown:.2f} times as long"


def really_text(sharing: NodeSharing) -> str:
    """Return what sharing nodes really did to a job that has ended.

    Examples
    --------
    >>> really_text(NodeSharing(beside=(2,), slowdown=1.3, real=1.25, alone_ms=60_000, alone_runs=3))
    'it really took 1.25 times as long (alone: 1 min, the mean of 3 runs)'
    """
    if sharing.real is None:
        return "how long it takes alone is not known, as no such job has run alone"
    runs = "one run" if sharing.alone_runs == 1 else f"the mean of {sharing.alone_runs:,} runs"
    return f"it really took {sharing.real:.2f} times as long (alone: {span_text(sharing.alone_ms)}, {runs})"


def record_forecast(record: JobRecord, now_ms: int, kept: str = "") -> Forecast:
    """Return what is known of a job that is not in a queue, and why it is kept from that, if it is."""
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
    """Return what the forecast's fields do not say: these have the state, the start, and where that is."""
    match record.state:
        case "starting":
            return "it was placed"
        case "running":
            cost = record.split or record.sharing
            return "" if cost is None else cost.text
        case "ending":
            return "it was told to end, and has time for that" if record.places else "it was told to end"
        case "ended":
            ended = f"{record.outcome}: {record.reason}" if record.reason else f"{record.outcome}"
            took = "" if record.split is None else took_text(record)
            return f"{ended}; {took}, {record.split.text}" if record.split is not None and took else ended
        case _:
            return record.reason


# -- words that all of them use ---------------------------------------------------------------------------------------


def nodes_text(count: int) -> str:
    """Return so many nodes in words.

    Examples
    --------
    >>> nodes_text(1), nodes_text(4)
    ('1 node', '4 nodes')
    """
    return f"{count} node{'s' * (count != 1)}"


def too_small_text(nodes: int) -> str:
    """Return that a site is too small for a job, of so many nodes that the grid may have there.

    Examples
    --------
    >>> too_small_text(4)
    'offers the grid 4 nodes in all: never alone'
    """
    return f"offers the grid {nodes_text(nodes)} in all: never alone"


def shut_text(why: str) -> str:
    """Return that a site takes in nothing new for the grid, and why.

    Examples
    --------
    >>> shut_text("the site is being drained")
    'takes nothing new from the grid: the site is being drained'
    """
    return f"takes nothing new from the grid: {why}"


def free_text(free: int, nodes: int | None = None) -> str:
    """Return how many nodes are free, of so many if that is given.

    Examples
    --------
    >>> free_text(1, 8), free_text(0, 1), free_text(0), free_text(2)
    ('1 of 8 nodes is free', '0 of 1 node are free', 'none is free', '2 are free')
    """
    if nodes is None:
        return f"{free or 'none'} {'is' if free <= 1 else 'are'} free"
    return f"{free} of {nodes_text(nodes)} {'is' if free == 1 else 'are'} free"


def ahead_text(count: int) -> str:
    """Return the jobs that stand before one in a queue.

    Examples
    --------
    >>> ahead_text(1), ahead_text(3)
    ('the job ahead', 'the 3 jobs ahead')
    """
    return "the job ahead" if count == 1 else f"the {count} jobs ahead"


def places_text(places: Sequence[tuple[str, int]]) -> str:
    """Return where a job runs.

    Examples
    --------
    >>> places_text([("north", 4), ("south", 2)])
    'north (4) and south (2)'
    """
    return listed([f"{site} ({nodes})" for site, nodes in places])


def listed(parts: Sequence[str]) -> str:
    """Return parts as people list them.

    Examples
    --------
    >>> listed(["a"]), listed(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def with_evictions(reason: str, evicted: str) -> str:
    """Return why a job waits, with what is known of its evictions, if there were any."""
    return f"{reason}; {evicted}" if evicted else reason


def evicted_text(times: int, last_ms: int, now_ms: int, reason: str, site: str = "") -> str:
    """Return how often a job was evicted, and when, where (if that is not here) and why that was last.

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
    """Return a forecast that says of a site that it does not answer; what is known of the job there is older."""
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
    """Return a forecast with what a site says of the job, that waits there or would.

    It has the site's own start and reason, if the job waits in its queue; if it is a quote, the site that could start
    the job first, of those that have answered.
    """
    said = answer.sites[0] if answer.sites else SiteReason(start_ms=answer.start_ms, reason=answer.reason)
    rows = tuple(
        msgspec.structs.replace(said, site=site, nodes=row.nodes) if row.site == site else row for row in forecast.sites
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
        reason=f"{site} could start it first",
    )
