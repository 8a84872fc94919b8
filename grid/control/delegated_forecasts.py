"""Forecast the starts of jobs in sites' queues from the sites' answers and the grid's own state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from gridweave.grid.control.common import Delegation
from gridweave.grid.control.mapping import PlannedPlace
from gridweave.grid.control.offered import PlaceChoice, length_at
from gridweave.grid.control.placing import Awaited
from gridweave.grid.lifecycle import ASKING, BACKLOG, QUEUED, RUNNING, WITHDRAWING
from gridweave.site.explain import (
    Forecast,
    Forecaster,
    SiteReason,
    SplitReason,
    chunks_text,
    nodes_text,
    offer_text,
    shared_start_text,
    shut_text,
    too_small_text,
)
from gridweave.site.job import Job
from gridweave.site.messages import Quoted
from gridweave.site.times import span_text, when_text


def delegated_forecast(
    now_ms: int,
    delegation: Delegation,
    nodes: Sequence[int],
    retry_ms: int,
    names: Sequence[str],
    shut: Mapping[int, str],
    ahead_ms: int | None,
    split: SplitReason | None = None,
) -> Forecast:
    """Return the forecast for a job under limited control.

    Parameters
    ----------
    retry_ms : int
        When the sites are asked again if the job has no placement.
    shut : mapping from int to str
        Sites that accept no new jobs, and why.
    ahead_ms : int or None
        When sites are asked to reserve nodes for the job as they come free; None for never.
    split : SplitReason, optional
        The split that starts once the last nodes have arrived, for which the job is waiting.
    """
    job = delegation.job
    rows = tuple(_quoted(now_ms, delegation, site, size, names, shut) for site, size in enumerate(nodes))
    forecast = Forecast(job_id=job.job_id, now_ms=now_ms, sites=rows, split=split)
    if delegation.state == ASKING:
        reason = f"{len(delegation.quotes)} of {len(nodes)} sites have sent quotes; it is placed when all have"
        return msgspec.structs.replace(forecast, reason=reason)
    if delegation.state == BACKLOG:
        return _without_place(forecast, delegation, retry_ms, names, ahead_ms)
    name, quote = names[delegation.site], delegation.quotes.get(delegation.site)
    meant_ms = None if quote is None else quote.start_ms
    # A start that has passed is late, and only the site knows by how much.
    start_ms = None if meant_ms is None or meant_ms < now_ms else meant_ms
    forecast = msgspec.structs.replace(
        forecast, start_ms=start_ms, places=((name, job.width),), length_ms=job.estimate_ms, queues=(name,)
    )
    if delegation.state == RUNNING:
        return msgspec.structs.replace(forecast, state="running", queues=(), reason="")
    if delegation.state == WITHDRAWING:
        reason = f"it is being withdrawn from {name}, as another site could start it at once"
    else:
        is_late = meant_ms is not None and start_ms is None
        meant = f", which expected to start it {when_text(meant_ms or 0, now_ms)}" if is_late else ""
        reason = f"it waits in the queue of {name}{meant}"
    return msgspec.structs.replace(forecast, reason=reason)


def _without_place(
    forecast: Forecast, delegation: Delegation, retry_ms: int, names: Sequence[str], ahead_ms: int | None
) -> Forecast:
    """Explain what a job without a placement is waiting for; the sites are asked again at ``retry_ms``."""
    now_ms = forecast.now_ms
    again = when_text(max(retry_ms, now_ms), now_ms)
    if delegation.awaited is not None:
        reason = f"{_awaited(now_ms, delegation.awaited, forecast.split)}; the sites are asked again {again}"
        return msgspec.structs.replace(forecast, start_ms=delegation.awaited.start_ms, reason=reason)
    if delegation.mapped is not None:
        return _mapped(forecast, delegation, delegation.mapped, names)
    if ahead_ms is not None:
        return msgspec.structs.replace(forecast, reason=_reserved_ahead(now_ms, delegation, ahead_ms, again))
    who = "the remaining sites" if delegation.refusals else "all"
    return msgspec.structs.replace(forecast, reason=f"no site accepts it now; {who} are asked again {again}")


def _reserved_ahead(now_ms: int, delegation: Delegation, ahead_ms: int, again: str) -> str:
    """Explain what a job that is wider than every site is waiting for, and the longest possible wait."""
    since_ms = ahead_ms if delegation.waits_since_ms is None else delegation.waits_since_ms
    waits = span_text(ahead_ms - since_ms)
    why = "it is wider than every site, and several do not have its nodes free at one time"
    if delegation.job.chunk:
        why = "no site holds all its chunks, and several do not have room for them at one time"
    why = f"{why}; they are asked again {again}"
    if ahead_ms > now_ms:
        return f"{why}; when it has waited for {waits}, {when_text(ahead_ms, now_ms)}, they reserve nodes ahead for it"
    return f"{why}; it has waited for {waits}, and they reserve nodes ahead for it next, one job at a time"


def apart_forecast(forecaster: Forecaster) -> Forecast:
    """Return the forecast for a job that is delegated instead of queued because some sites do not accept it."""
    forecast = forecaster()
    reason = f"some sites do not accept it, so it is delegated; {forecast.reason}"
    return msgspec.structs.replace(forecast, reason=reason)


def _quoted(
    now_ms: int, delegation: Delegation, site: int, nodes: int, names: Sequence[str], shut: Mapping[int, str]
) -> SiteReason:
    """Return a site's last answer about a job, as a row of the forecast."""
    refusals, quote = delegation.refusals.get(site), delegation.quotes.get(site)
    refused = _refused(now_ms, delegation, site)
    if refused and (quote is None or delegation.avoids(site, now_ms)):
        return SiteReason(site=names[site], nodes=nodes, reason=refused)
    is_there = delegation.site == site and delegation.state in (*QUEUED, RUNNING)
    if site in shut and not is_there:
        return SiteReason(site=names[site], nodes=nodes, reason=shut_text(shut[site]))
    if quote is None:
        reason = _too_small(nodes, delegation.job) or "has not sent a quote"
        return SiteReason(site=names[site], nodes=nodes, reason=reason)
    asked_ms = delegation.quoted_ms[site]
    reason = f"quoted {when_text(asked_ms, now_ms)}: " if asked_ms != now_ms else "says: "
    if quote.start_ms is None:
        reason += quote.reason
    else:
        start = "at once" if quote.start_ms <= asked_ms else when_text(quote.start_ms, now_ms)
        reason += f"a start {start}, {_free_now(delegation.job, quote)}"
    if quote.slowdown is not None:
        reason += f"; {offer_text(quote.slowdown, quote.beside, (quote.shared_ms or now_ms) - now_ms)}"
    if refusals is not None:
        reason += f"; {_refused(asked_ms, delegation, site)}"
    return SiteReason(site=names[site], nodes=nodes, free=quote.free, start_ms=quote.start_ms, reason=reason)


def _free_now(job: Job, quote: Quoted) -> str:
    """Return how many nodes are free for a job; for a job that asks for chunks, how many fit and what is short."""
    if not job.chunk:
        return f"{nodes_text(quote.free)} free now"
    fitting = f"{min(quote.free, job.width)} of its {chunks_text(job.width)} fit now"
    return f"{fitting}: {quote.reason}" if quote.reason else fitting


def _mapped(forecast: Forecast, delegation: Delegation, place: PlannedPlace, names: Sequence[str]) -> Forecast:
    """Return the forecast for a job that was mapped over the sites together with the other waiting jobs."""
    start, where = when_text(max(place.start_ms, forecast.now_ms), forecast.now_ms), "several sites together"
    quote = delegation.quotes.get(place.site)
    if quote is not None:
        name, nodes = names[place.site], quote.nodes or delegation.job.width
        forecast, where = msgspec.structs.replace(forecast, places=((name, nodes),)), name
    plan = f"mapped over the sites with all waiting jobs, it would start {start} on {where}"
    return msgspec.structs.replace(
        forecast,
        start_ms=max(place.start_ms, forecast.now_ms),
        length_ms=place.end_ms - place.start_ms,
        reason=f"{plan}; the plan is recomputed whenever something changes",
    )


def _awaited(now_ms: int, awaited: Awaited, split: SplitReason | None, waits: str = "it waits") -> str:
    """Describe the split that a job is waiting for, with its cost and its gain."""
    cost = "split" if split is None or split.cost is None else split.cost.text
    text = f"{waits} to be {cost}; the last nodes are expected {when_text(awaited.start_ms, now_ms)}"
    text += f"; the first ones are idle for {awaited.idle_node_ms / 1000:.0f} node-seconds"
    if awaited.alone_ms is None:
        return text
    gain = span_text(awaited.alone_ms - awaited.end_ms)
    return f"{text}, and it ends {gain} sooner than on one site"


def _refused(now_ms: int, delegation: Delegation, site: int) -> str:
    """Return why a site refused a job or can never run it; empty if it has done neither."""
    if site in delegation.never:
        return f"can never run it: {delegation.never[site]}"
    refusals = delegation.refusals.get(site)
    return "" if refusals is None else f"accepted it and then refused it: {refusals.text(now_ms)}"


def _too_small(nodes: int, job: Job) -> str:
    """Return that a site is too small for a job; "" if not, or if only the site knows whether the job's chunks fit."""
    return too_small_text(nodes) if nodes < job.width and not job.chunk else ""


def sent_forecast(
    now_ms: int,
    sent: Delegation,
    nodes: Sequence[int],
    loads: Sequence[int | None],
    retry_ms: int,
    names: Sequence[str],
    shut: Mapping[int, str],
) -> Forecast:
    """Return the forecast for a job at the level of control ``none``.

    Parameters
    ----------
    loads : sequence of int or None
        For each site, the time (ms) that the site needs for the grid's jobs; None if the site has refused this job.
    retry_ms : int
        When a job that all sites have refused is sent again.
    shut : mapping from int to str
        Sites that accept no new jobs, and why.
    """
    job, site = sent.job, sent.site
    rows = tuple(
        msgspec.structs.replace(row, reason=_refused(now_ms, sent, s) or row.reason)
        for s, row in enumerate(_loaded(job, nodes, loads, names, {s: why for s, why in shut.items() if s != site}))
    )
    if sent.state == BACKLOG:
        again = when_text(max(retry_ms, now_ms), now_ms)
        return Forecast(
            job_id=job.job_id, now_ms=now_ms, reason=f"all sites have refused it; it is sent again {again}", sites=rows
        )
    return Forecast(
        job_id=job.job_id,
        now_ms=now_ms,
        places=((names[site], job.width),),
        length_ms=job.estimate_ms,
        reason=f"it was sent to {names[site]}, whose queue decides",
        sites=rows,
        queues=(names[site],),
    )


def unasked_quote(
    now_ms: int,
    job: Job,
    nodes: Sequence[int],
    refusal: str | None,
    names: Sequence[str],
    shut: Mapping[int, str],
    loads: Sequence[int | None] | None = None,
    split: SplitReason | None = None,
) -> Forecast:
    """Return a quote for a job without asking the sites.

    Parameters
    ----------
    refusal : str or None
        Why the job would be refused.
    shut, loads
        As for `sent_forecast`; ``loads`` is None under limited control.
    split : SplitReason, optional
        How the job would be split, if it is wider than every site.
    """
    if refusal is not None:
        return Forecast(now_ms=now_ms, state="refused", reason=refusal)
    if loads is None:
        reason = "the sites would be asked for quotes"
        if split is not None and split.cost is not None:
            largest = f"it needs {nodes_text(job.width)} and the largest site has {max(nodes)}"
            reason = f"{largest}; it would be {split.cost.text}, once these nodes are free at the same time; {reason}"
        unasked = "has not sent a quote"
        rows = tuple(
            SiteReason(site=name, nodes=size, reason=_too_small(size, job) or _shut(shut, site) or unasked)
            for site, (name, size) in enumerate(zip(names, nodes, strict=True))
        )
    else:
        reason = ""
        rows = _loaded(job, nodes, loads, names, shut)
    large_enough = tuple(row.site for row in rows if not _too_small(row.nodes, job))
    return Forecast(now_ms=now_ms, reason=reason, sites=rows, queues=large_enough, split=split)


def sent_quote(
    forecast: Forecast, job: Job, site: int, offers: Mapping[int, Quoted], names: Sequence[str], why: str
) -> Forecast:
    """Return a quote at the level ``none``: the job's site, its start there, and the site that could start it first.

    `site` is the site that would get the job, `offers` are the sites' quotes, and `why` is the reason for that choice.
    """
    now_ms, offer = forecast.now_ms, offers.get(site)
    reason = f"it would be sent to {names[site]}, which {why}"
    places, length_ms, start_ms = ((names[site], job.width),), job.estimate_ms, None
    if offer is not None and offer.start_ms is not None:
        start_ms = max(now_ms, offer.start_ms)
        places, length_ms = ((names[site], offer.nodes or job.width),), offer.length_ms or length_ms
        reason += f", and would start there {_when(start_ms, now_ms)}"
    starts = [(max(now_ms, other.start_ms), s) for s, other in offers.items() if other.start_ms is not None]
    first_ms, first = min(starts, default=(None, site))
    if first_ms is not None and (start_ms is None or first_ms < start_ms):
        reason += f"; {names[first]} could start it {_when(first_ms, now_ms)} (--site {names[first]})"
    return msgspec.structs.replace(forecast, start_ms=start_ms, places=places, length_ms=length_ms, reason=reason)


def _when(instant_ms: int, now_ms: int) -> str:
    return "at once" if instant_ms <= now_ms else when_text(instant_ms, now_ms)


def offered_quote(
    forecast: Forecast, job: Delegation, choice: PlaceChoice, split: SplitReason | None, names: Sequence[str]
) -> Forecast:
    """Return a quote with the placement that the grid would choose from the sites' quotes.

    `split` is the split that the grid would use or wait for. If there is no choice, return `forecast` unchanged.
    """
    now_ms = forecast.now_ms
    if choice.split is not None and split is not None and split.cost is not None:
        reason = f"it would be {split.cost.text}, at once"
        return msgspec.structs.replace(
            forecast, start_ms=now_ms, places=split.places, length_ms=choice.length_ms, reason=reason, split=split
        )
    if choice.site is None:
        if job.mapped is not None:
            return _mapped(forecast, job, job.mapped, names)
        if job.awaited is None:
            return forecast
        reason = _awaited(now_ms, job.awaited, split, "it would wait")
        return msgspec.structs.replace(forecast, start_ms=job.awaited.start_ms, reason=reason, split=split)
    quote, name, length_ms = job.quotes[choice.site], names[choice.site], length_at(job, choice.site)
    start_ms = now_ms if choice.end_ms is None or quote.start_ms is None else max(now_ms, quote.start_ms)
    reason = f"it would start at once on {name}" if start_ms <= now_ms else f"it would wait in the queue of {name}"
    if choice.end_ms is not None and quote.slowdown is not None and choice.end_ms != start_ms + length_ms:
        start_ms = quote.shared_ms or now_ms
        length_ms = choice.end_ms - start_ms
        reason = f"on {name} it would {shared_start_text(quote.slowdown, quote.beside, start_ms - now_ms)}"
    placement = ((name, quote.nodes or job.job.width),)
    return msgspec.structs.replace(forecast, start_ms=start_ms, places=placement, length_ms=length_ms, reason=reason)


def _shut(shut: Mapping[int, str], site: int) -> str:
    return shut_text(shut[site]) if site in shut else ""


def _loaded(
    job: Job, nodes: Sequence[int], loads: Sequence[int | None], names: Sequence[str], shut: Mapping[int, str]
) -> tuple[SiteReason, ...]:
    rows = []
    for site, (name, size, load_ms) in enumerate(zip(names, nodes, loads, strict=True)):
        reason = _too_small(size, job) or _shut(shut, site)
        if not reason and load_ms is None:
            reason = "has refused it"
        elif not reason:
            reason = f"has work of the grid for {span_text(load_ms or 0)} on all its {size} nodes"
        rows.append(SiteReason(site=name, nodes=size, reason=reason))
    return tuple(rows)
