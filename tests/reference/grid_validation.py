"""Is an outcome of a grid what the rules allow? `validate_grid` looks at what came out, whoever made it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from reference.grid import GridOutcome, Rules
from reference.model import Job


def validate_grid(
    outcome: GridOutcome,
    jobs: Iterable[Job],
    nodes: Sequence[int],
    *,
    home: Mapping[int, int] | None = None,
    **options: Any,
) -> list[str]:
    """Return what is wrong with an outcome, one line each; an empty list if nothing is.

    The arguments are those of `simulate_grid`. Only ``start``, ``end``, ``fragments`` and ``refused`` are looked at, so
    that the answers of any simulator can be put in.
    """
    jobs = list(jobs)
    rules = Rules(tuple(nodes), **options)
    problems = [problem for job in jobs for problem in _problems_of(job, outcome, rules, home or {})]
    for name in ("start", "end", "fragments", "refused"):
        strangers = sorted(set(getattr(outcome, name)) - {job.id for job in jobs})
        problems += [f"{name} speaks of job {one}, which nobody submitted" for one in strangers]
    return problems or list(_problems_of_nodes(outcome, rules))


def _problems_of(job: Job, outcome: GridOutcome, rules: Rules, home: Mapping[int, int]) -> Iterator[str]:
    start, end, fragments = (getattr(outcome, name).get(job.id) for name in ("start", "end", "fragments"))
    if _must_be_refused(job, rules, home) != (job.id in outcome.refused):
        yield f"job {job.id} was refused though it need not wait forever, or the other way round"
    elif job.id in outcome.refused:
        if (start, end, fragments) != (None, None, None):
            yield f"job {job.id} was refused and yet has a start, an end or fragments"
    elif start is None or end is None or fragments is None:
        yield f"job {job.id} has no start, no end or no fragments"
    else:
        sites = [site for site, _ in fragments]
        length = rules.takes(job, job.length, fragments) if fragments else job.length
        if start < job.submit:
            yield f"job {job.id} started at {start}, before its submission at {job.submit}"
        if end != start + length:
            yield f"job {job.id} started at {start} and ended at {end}; it runs {length}"
        widths = [width for _, width in fragments]
        if sum(widths) != job.width or not all(width > 0 for width in widths):
            yield f"job {job.id} is {job.width} nodes wide, its fragments are {fragments}"
        if len(set(sites)) != len(sites) or not set(sites) <= set(range(len(rules.nodes))):
            yield f"job {job.id} has fragments {fragments} on the same site, or on one that is none"
        if len(sites) > 1 and (not rules.may_be_split(job) or len(sites) > rules.allowed_fragments(job.width)):
            yield f"job {job.id} was split into {fragments}, which is forbidden"
        if rules.mode == "local" and sites != [home[job.id]]:
            yield f"job {job.id} ran on {sites}, not at home"


def _must_be_refused(job: Job, rules: Rules, home: Mapping[int, int]) -> bool:
    if rules.mode == "local":
        return job.width > rules.nodes[home[job.id]]
    if job.width <= max(rules.nodes):
        return False
    largest = sorted(rules.nodes, reverse=True)[: int(min(rules.allowed_fragments(job.width), len(rules.nodes)))]
    return not rules.may_be_split(job) or job.width > sum(largest)


def _problems_of_nodes(outcome: GridOutcome, rules: Rules) -> Iterator[str]:
    # More nodes are in use at no instant than at one at which a job starts.
    for instant in sorted(set(outcome.start.values())):
        used = [0] * len(rules.nodes)
        for job_id, start in outcome.start.items():
            if start <= instant < outcome.end[job_id]:
                for site, width in outcome.fragments[job_id]:
                    used[site] += width
        for site, nodes in enumerate(rules.nodes):
            if used[site] > nodes:
                yield f"{used[site]} of the {nodes} nodes of site {site} are in use at {instant}"
