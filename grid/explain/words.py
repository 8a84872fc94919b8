"""A forecast in words, with the names of sites: one line for each reason, with its numbers (docs/explain.md)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.grid.api import Forecast, SiteReason, SplitReason
from gridweave.grid.control.coallocation import Fragments
from gridweave.grid.explain.facts import GridForecast, SiteFacts, SplitFacts
from gridweave.site.forecast import SiteForecast
from gridweave.site.job import JobRecord, State
from gridweave.site.times import rough_span_text, when_text


def in_words(facts: GridForecast, names: Sequence[str], *, is_quote: bool = False) -> Forecast:
    """Return a forecast as the users of a grid read it.

    Parameters
    ----------
    names : sequence of str
        Of the sites.
    is_quote : bool
        Whether the job was not handed in.
    """
    states: dict[str, State] = {"starting": "starting", "running": "running", "refused": "refused"}
    return Forecast(
        job_id=None if is_quote else facts.job_id,
        now_ms=facts.now_ms,
        state=states.get(facts.why, "waiting"),
        start_ms=facts.start_ms,
        places=_named(facts.fragments, names),
        length_ms=facts.length_ms,
        ahead=facts.ahead,
        reason=_reason(facts, names),
        sites=tuple(
            SiteReason(
                site=names[site.site],
                nodes=site.nodes,
                free=site.free,
                start_ms=site.start_ms,
                reason=_site_reason(facts, site),
            )
            for site in facts.sites
        ),
        split=None if facts.split is None else _split_reason(facts, facts.split, names),
    )


def _named(fragments: Fragments, names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    return tuple((names[site], width) for site, width in fragments)


def places_text(places: Sequence[tuple[str, int]]) -> str:
    """Return where a job runs.

    Examples
    --------
    >>> places_text([("north", 4), ("south", 2)])
    'north (4) and south (2)'
    """
    return _listed([f"{name} ({nodes})" for name, nodes in places])


def nodes_text(count: int) -> str:
    """Return so many nodes in words.

    Examples
    --------
    >>> nodes_text(1), nodes_text(4)
    ('1 node', '4 nodes')
    """
    return f"{count} node{'s' * (count != 1)}"


def _listed(parts: Sequence[str]) -> str:
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def _ahead(count: int) -> str:
    return "the job ahead" if count == 1 else f"the {count} jobs ahead"


# -- the job ----------------------------------------------------------------------------------------------------------


def _reason(facts: GridForecast, names: Sequence[str]) -> str:
    """Return why a job waits."""
    told = _why(facts, names)
    if facts.why in ("starts", "starting", "running", "refused", *_ELSEWHERE):
        return told
    if facts.is_bounded:
        return f"{told}; when it starts lies too far ahead to be worked out" + (
            ": this is what is reserved now" if facts.start_ms is not None else ""
        )
    if facts.start_ms is None:
        return f"{told}; nodes that others have must come free first, and when they do is not known"
    where = places_text(_named(facts.fragments, names))
    return f"{told}; it starts {when_text(facts.start_ms, facts.now_ms)} on {where}"


_ELSEWHERE = ("asking", "unasked", "unsent", "backlog", "delegated", "moving", "sent", "turned-away")


def _why(facts: GridForecast, names: Sequence[str]) -> str:
    """Return what keeps a job from starting."""
    need, now_ms = f"it needs {nodes_text(facts.width)}", facts.now_ms
    free = [site.free for site in facts.sites]
    match facts.why:
        case "starts":
            return f"it would start at once, on {places_text(_named(facts.fragments, names))}"
        case "first":
            return f"it is first in the queue; {need}, {_most(free)}"
        case "strict":
            return f"{_ahead(facts.ahead)} must start before it: this queue lets none be overtaken"
        case "kept":
            return (
                f"{need}, which are free, but it would run for {rough_span_text(facts.estimate_ms)} on nodes that are "
                f"kept for job {facts.head}, first in the queue{_due(facts)}"
            )
        case "narrow" | "parted":
            return f"{need}, {_most(free)}; {_ahead(facts.ahead)} would be offered them before it"
        case "next":
            return f"{need}, which are free: the next pass over the queue places it, if no job ahead takes them"
        case "reserved":
            return f"its start is reserved: {need} for {rough_span_text(facts.estimate_ms)}, which no earlier gap has"
        case "starting":
            return _starting(facts, names)
        case "running":
            return f"it runs on {places_text(_named(facts.fragments, names))}"
        case "refused":
            return facts.detail
        case _:
            return _elsewhere(facts, names, now_ms)


def _most(free: Sequence[int]) -> str:
    most, total = max(free, default=0), sum(free)
    if not total:
        return "and none is free"
    return f"and {most} {'is' if most == 1 else 'are'} free at one site at most" + (
        f", {total} in all" if total > most else ""
    )


def _due(facts: GridForecast) -> str:
    if facts.head_start_ms is None:
        return ""
    return f", which is to start {when_text(facts.head_start_ms, facts.now_ms)}"


def _starting(facts: GridForecast, names: Sequence[str]) -> str:
    """Return how far the start of a job has come."""
    places = _named(facts.fragments, names)
    if len(places) == 1:
        return f"it was placed on {places_text(places)}, which is starting it"
    asked = [names[site] for site, _ in facts.fragments if site not in facts.held]
    held = [(names[site], width) for site, width in facts.fragments if site in facts.held]
    start = when_text(facts.start_ms or 0, facts.now_ms)
    if not asked:
        return f"held on {places_text(held)}: the start was agreed for {start}"
    told = f"held on {places_text(held)}" if held else "it was placed"
    return f"{told}; {_listed(asked)} {'has' if len(asked) == 1 else 'have'} been asked, to start {start}"


def _elsewhere(facts: GridForecast, names: Sequence[str], now_ms: int) -> str:
    """Return how it stands with a job that waits at a site, or is to."""
    name = names[facts.fragments[0][0]] if facts.fragments else ""
    match facts.why:
        case "asking":
            return f"{len(facts.held)} of {len(names)} sites have said when they could start it; then it is placed"
        case "unasked":
            return "the sites would be asked when they could start it"
        case "unsent":
            return "it would be sent to the site with the least work of the grid for each node"
        case "backlog":
            return f"no site would take it; all are asked again {when_text(max(facts.retry_ms, now_ms), now_ms)}"
        case "delegated":
            said = "" if facts.start_ms is None else f", which meant to start it {when_text(facts.start_ms, now_ms)}"
            return f"it waits in the queue of {name}{said}"
        case "moving":
            return f"it is being taken back from {name}, as another site could start it at once"
        case "sent":
            return f"it was sent to {name}, whose queue decides"
        case _:
            return f"all sites have refused it; it is sent again {when_text(max(facts.retry_ms, now_ms), now_ms)}"


# -- a site -----------------------------------------------------------------------------------------------------------


def _site_reason(facts: GridForecast, site: SiteFacts) -> str:
    """Return why a job does not start at a site now."""
    free = f"{site.free} of {site.nodes} nodes are free" if site.free != 1 else f"1 of {site.nodes} nodes is free"
    match site.why:
        case "small":
            return f"has {nodes_text(site.nodes)} in all: never alone"
        case "apart":
            return "has no way to its data now"
        case "closed":
            asked = when_text(max(site.until_ms, facts.now_ms), facts.now_ms)
            return f"refused, or was silent, {when_text(site.since_ms, facts.now_ms)}; is asked again {asked} at latest"
        case "busy":
            return f"needs {nodes_text(facts.width)}, {free}" + _later(facts, site)
        case "ahead":
            return f"{free}; {_ahead(facts.ahead)} must start first"
        case "kept":
            return f"{free}, {site.kept} of them kept for job {facts.head}{_due(facts)}"
        case "reserved":
            gap = "" if site.gap_ms is None else f"; they are free for that long {when_text(site.gap_ms, facts.now_ms)}"
            return f"{free}, but not for {rough_span_text(facts.estimate_ms)}: others have reserved them{gap}"
        case "fits":
            return f"{free}: it could start there now"
        case "quoted":
            return _quote_text(facts, site)
        case "silent":
            return "has not said when it could start it"
        case "refused":
            return "has refused it"
        case "load":
            return f"was sent work of the grid for {rough_span_text(site.load_ms)} on all its {site.nodes} nodes"


def _later(facts: GridForecast, site: SiteFacts) -> str:
    """Return what comes free at a site, and when."""
    others = f"; others have {site.others}" if site.others else ""
    if site.start_ms is None:
        return others + (", and when they leave is not known" if others else "")
    more = f"{site.more} more {'comes' if site.more == 1 else 'come'} free"
    ahead = f"; offered to {_ahead(facts.ahead)} first" if facts.ahead else ""
    return f"{others}; {more} {when_text(site.start_ms, facts.now_ms)} when {_ends(site.waits_for)}{ahead}"


def _ends(job_ids: Sequence[int]) -> str:
    """Return that some jobs end."""
    if len(job_ids) == 1:
        return f"job {job_ids[0]} ends"
    if len(job_ids) <= 3:
        return f"jobs {_listed([str(job_id) for job_id in job_ids])} end"
    return f"job {job_ids[-1]} and {len(job_ids) - 1} others end"


def _quote_text(facts: GridForecast, site: SiteFacts) -> str:
    said = f"said {when_text(site.since_ms, facts.now_ms)}: " if site.since_ms != facts.now_ms else "says: "
    if site.start_ms is None:
        return said + site.detail
    start = "a start at once" if site.start_ms <= site.since_ms else f"a start {when_text(site.start_ms, facts.now_ms)}"
    return f"{said}{start}, {nodes_text(site.free)} to be had now"


# -- a split ----------------------------------------------------------------------------------------------------------


def _split_reason(facts: GridForecast, split: SplitFacts, names: Sequence[str]) -> SplitReason:
    """Return what a split would cost, and gain."""
    return SplitReason(
        places=_named(split.fragments, names),
        start_ms=split.start_ms if split.fragments else None,
        length_ms=split.length_ms,
        whole_ms=split.whole_ms,
        gain_ms=split.gain_ms,
        reason=_split_text(facts, split, names),
    )


def _split_text(facts: GridForecast, split: SplitFacts, names: Sequence[str]) -> str:
    match split.why:
        case "bound":
            return f"only jobs of more than {nodes_text(split.least)} are split"
        case "fragments" if split.least == 1:
            return f"a job of {nodes_text(facts.width)} may not be split"
        case "fragments":
            return f"a job of {nodes_text(facts.width)} may be on {split.least} sites, and would need more"
        case "few":
            return "no split is possible: too few nodes come free, by what is known"
        case "links":
            return "no split is possible: its parts would have no way to each other"
        case "alone":
            alone = f"{names[split.whole_site]} alone has the nodes"
            if split.start_ms == facts.now_ms:
                return f"no split is needed: {alone} now"
            return f"no split is possible before {alone}, {when_text(split.start_ms or 0, facts.now_ms)}"
    assert split.start_ms is not None, "a split without a start"
    where = places_text(_named(split.fragments, names))
    if split.why == "pays":
        sooner = split.gain_ms is not None and split.gain_ms > 0
        gain = f", and ends {rough_span_text(split.gain_ms or 0)} sooner than {names[split.whole_site]} alone" * sooner
        lengths = f"{rough_span_text(split.length_ms)} instead of {rough_span_text(split.whole_ms)}"
        return f"it is split over {where}: it takes {lengths}{gain}"
    told = f"a split over {where} could start {when_text(split.start_ms, facts.now_ms)} and would take "
    told += f"{rough_span_text(split.length_ms)} instead of {rough_span_text(split.whole_ms)}"
    if split.gain_ms is None:
        told += "; no site has the nodes alone"
    elif split.gain_ms > 0:
        told += f"; waiting for {names[split.whole_site]} ends {rough_span_text(split.gain_ms)} later"
    elif split.gain_ms < 0:
        told += f"; waiting for {names[split.whole_site]} ends {rough_span_text(-split.gain_ms)} sooner"
    else:
        told += f"; waiting for {names[split.whole_site]} ends no later"
    return told + (f"; {_ahead(facts.ahead)} would be placed first" if split.why == "ahead" else "")


def record_forecast(record: JobRecord, now_ms: int, kept: str) -> Forecast:
    """Return what is known of a job that is not in the queue.

    Parameters
    ----------
    kept : str
        Why it is kept from the queue, if it is.
    """
    places = record.places if record.state in ("starting", "running", "ended") else ()
    return Forecast(
        job_id=record.job_id,
        now_ms=now_ms,
        state=record.state,
        start_ms=record.start_ms,
        places=places,
        length_ms=record.request.limit_ms,
        reason=kept or _standing(record, now_ms),
    )


def _standing(record: JobRecord, now_ms: int) -> str:
    """Return how it stands with a job that waits no longer."""
    where = places_text(record.places)
    match record.state:
        case "starting":
            return f"it was placed on {where}, and is being started"
        case "running":
            since = "" if record.start_ms is None else f", for {rough_span_text(max(0, now_ms - record.start_ms))}"
            return f"it runs on {where}{since}"
        case "ended":
            return f"it has ended: {record.outcome}" + (f": {record.reason}" if record.reason else "")
        case _:
            return record.reason


# -- what sites say ---------------------------------------------------------------------------------------------------


def with_site_answer(forecast: Forecast, site: str, answer: SiteForecast) -> Forecast:
    """Return a forecast with what a site says of the job.

    Parameters
    ----------
    answer : SiteForecast
        Of a job that waits there, or would.

    Returns
    -------
    Forecast
        With the site's own start and reason, if the job waits in its queue; if it is a quote, with the site that could
        start the job first, of those that have answered.
    """
    said = {"free": answer.free, "start_ms": answer.start_ms, "reason": answer.reason}
    sites = tuple(msgspec.structs.replace(known, **said) if known.site == site else known for known in forecast.sites)
    forecast = msgspec.structs.replace(forecast, sites=sites)
    start_ms = answer.start_ms
    if forecast.job_id is not None and forecast.state == "waiting" and [name for name, _ in forecast.places] == [site]:
        reason = f"it waits in the queue of {site}: {answer.reason}"
        return msgspec.structs.replace(forecast, start_ms=start_ms, ahead=answer.ahead, reason=reason)
    is_first = start_ms is not None and (forecast.start_ms is None or start_ms < forecast.start_ms)
    if forecast.job_id is None and start_ms is not None and is_first:
        return msgspec.structs.replace(
            forecast,
            start_ms=start_ms,
            places=((site, answer.width),),
            length_ms=answer.length_ms,
            ahead=answer.ahead,
            reason=f"{site} could start it first, {when_text(start_ms, answer.now_ms)}",
        )
    return forecast


def of_site(name: str, answer: SiteForecast) -> Forecast:
    """Return the forecast of a job of a site's own users.

    Parameters
    ----------
    name : str
        Of the site.
    """
    start_ms = answer.start_ms if answer.state == "waiting" else None
    site = SiteReason(site=name, nodes=answer.nodes, free=answer.free, start_ms=start_ms, reason=answer.reason)
    return Forecast(
        job_id=answer.job_id,
        now_ms=answer.now_ms,
        state=answer.state,
        start_ms=answer.start_ms,
        places=((name, answer.width),) if answer.start_ms is not None else (),
        length_ms=answer.length_ms,
        ahead=answer.ahead,
        reason=answer.reason,
        sites=(site,) if answer.state == "waiting" else (),
    )
