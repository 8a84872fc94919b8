"""When a job of the grid starts, and where, and why not sooner: what a meta-scheduler knows of that, in numbers.

Sites are numbers here; `gridweave.grid.explain.words` says the same in words. The rules are in docs/explain.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from gridweave.grid.control.coallocation import Fragments

SiteWhy = Literal[
    "small", "apart", "closed", "busy", "ahead", "kept", "reserved", "fits", "quoted", "silent", "load", "refused"
]
"""Why a job does not start at a site now: the site is too small for it; has no way to its data; is not asked for a
while; has too few free nodes; jobs ahead go first; its nodes are kept for the head; are reserved for others; nothing
keeps it from there but that it is, or will be, placed elsewhere; what the site has quoted; it has quoted nothing;
how much work it was sent; it has refused."""

SplitWhy = Literal["bound", "few", "fragments", "links", "alone", "later", "waits", "ahead", "pays"]
"""Why a job is, or is not, split: it is not wide enough for that; too
few nodes come free; it would take more parts than it may have; the links
forbid it; one site has the nodes by then; its nodes are not free yet; to wait ends no later; jobs ahead go first; it
ends sooner."""

Why = Literal[
    "starts", "first", "strict", "kept", "narrow", "parted", "next", "reserved", "starting", "running", "refused",
    "asking", "unasked", "unsent", "backlog", "delegated", "moving", "sent", "turned-away",
]  # fmt: skip
"""What keeps a job from starting: see `gridweave.grid.explain.words`."""


class SiteFacts(msgspec.Struct, frozen=True, kw_only=True):
    """How a job stands at a site.

    Attributes
    ----------
    site : int
    nodes, free : int
        How many the grid may have there, and how many of them are free by what the grid knows.
    why : str
    start_ms : int, optional
        When it could start there alone, were it the next, if all that runs takes as long as it may; None: never.
    delay_ms : int
        How long its data keeps the site then, beside its work.
    more : int
        Nodes that come free by then.
    waits_for : tuple of int
        The jobs that end by then and free them, by their ends.
    others : int
        Nodes that are not the grid's to have now.
    kept : int
        Free nodes that are kept for the job at the head.
    since_ms, until_ms : int
        ``closed``: when it refused, or was silent, and when it is asked again. ``quoted``: when it was asked.
    gap_ms : int, optional
        Where starts are reserved: from when on it has the nodes for as long as the job may take.
    load_ms : int
        ``load``: for how long it is busy with what the grid has sent it, each node as long as the others.
    detail : str
        ``quoted``: what the site said.
    """

    site: int
    nodes: int
    free: int
    why: SiteWhy
    start_ms: int | None = None
    delay_ms: int = 0
    more: int = 0
    waits_for: tuple[int, ...] = ()
    others: int = 0
    kept: int = 0
    since_ms: int = 0
    until_ms: int = 0
    gap_ms: int | None = None
    load_ms: int = 0
    detail: str = ""


class SplitFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The split of a job that could start soonest, were it the next.

    Attributes
    ----------
    why : str
    fragments : tuple of (int, int)
    start_ms : int, optional
    length_ms, whole_ms : int
        How long the job takes at most if it is split, and if it is not, with its data.
    gain_ms : int, optional
        By how much sooner it would end than on one site; below 0: later; None: one of both is not to be had.
    whole_site : int
        Where it would end first alone; -1 if nowhere.
    whole_end_ms : int, optional
        When.
    least : int
        The lower bound, or the number of fragments allowed.
    """

    why: SplitWhy
    fragments: Fragments = ()
    start_ms: int | None = None
    length_ms: int = 0
    whole_ms: int = 0
    gain_ms: int | None = None
    whole_site: int = -1
    whole_end_ms: int | None = None
    least: int = 0


class GridForecast(msgspec.Struct, frozen=True, kw_only=True):
    """When a job starts, and where, and why not sooner.

    Attributes
    ----------
    job_id : int
    now_ms : int
    width, estimate_ms : int
        Of the job.
    why : str
    start_ms : int, optional
        When it starts if every job takes as long as it may and no other comes; None: not known, or never.
    fragments : tuple of (int, int)
        The sites and nodes on which it starts then.
    length_ms : int
        How long it takes there at most.
    ahead : int
        How many jobs stand before it in the queue.
    head, head_start_ms : int, optional
        The job at the head of the queue, if it is another, and when that is to start.
    held : tuple of int
        ``starting``: the sites that hold their part.
    is_bounded : bool
        Whether the start was not found within the steps that are allowed.
    retry_ms : int
        When it is thought of again at the latest.
    detail : str
        ``refused``: why.
    sites : tuple of SiteFacts
    split : SplitFacts, optional
        None where nothing is split.
    """

    job_id: int
    now_ms: int
    width: int
    estimate_ms: int
    why: Why
    start_ms: int | None = None
    fragments: Fragments = ()
    length_ms: int = 0
    ahead: int = 0
    head: int | None = None
    head_start_ms: int | None = None
    held: tuple[int, ...] = ()
    is_bounded: bool = False
    retry_ms: int = 0
    detail: str = ""
    sites: tuple[SiteFacts, ...] = ()
    split: SplitFacts | None = None


Forecaster = Callable[[], GridForecast]
"""Works a forecast out, from copies that were made when it was asked for: at once, later, or in another thread."""
