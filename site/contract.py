"""The site contract: what a meta-scheduler may ask of any site, whatever discipline it runs, and what the site answers.

Requests and answers travel in order and exactly once (`gridweave.site.channel`). A job that the grid places anew gets a
new attempt number, so that what is said of an earlier attempt is never taken for the present one. The rules are in
docs/contract.md.
"""

from __future__ import annotations

import msgspec

from gridweave.site.messages import Job, Resources


class RequestQuote(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ask when these nodes could be had for so long, if asked for now.

    Attributes
    ----------
    quote_id : int
    width : int
    length_ms : int
    resources : Resources, optional
        What the job needs beside nodes: a site whose nodes are shared then says whether it could share some.
    """

    quote_id: int
    width: int
    length_ms: int
    resources: Resources | None = None


class HoldNodes(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Ask for nodes for a fragment of a job, now or never.

    Attributes
    ----------
    job_id, attempt : int
    width : int
        Nodes of the fragment.
    length_ms : int
        How long it will run at most, from its start on.
    start_ms : int, optional
        The agreed start. Until then the hold waits to be committed; its lease ends with that instant. None: it is the
        only fragment, so nothing is to be agreed on: it starts as soon as it is granted.
    """

    job_id: int
    attempt: int
    width: int
    length_ms: int
    start_ms: int | None = None


class CommitHold(msgspec.Struct, frozen=True, tag=True, gc=False, repr_omit_defaults=True):
    """Start the fragment at the agreed instant: all sites hold their nodes.

    Attributes
    ----------
    job_id, attempt : int
    rendezvous : str
        ``host:port`` at which the ranks of a live job find each other.
    """

    job_id: int
    attempt: int
    rendezvous: str = ""


class ReleaseHold(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Give the nodes back: some other site did not grant its part."""

    job_id: int
    attempt: int


class EnqueueJob(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Delegate a job to the site's own queue.

    Attributes
    ----------
    job : Job
    attempt : int
    lease_until_ms : int
        If the job still waits after that instant, and the lease has not been renewed, the site withdraws it by itself.
    """

    job: Job
    attempt: int
    lease_until_ms: int


class WithdrawJob(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take a delegated job back if it still waits; if it has started, the site has said so already."""

    job_id: int
    attempt: int


class CancelJob(msgspec.Struct, frozen=True, tag=True, gc=False):
    """End whatever the site has of a job: a wait, a hold, or a run."""

    job_id: int
    attempt: int


class RenewLeases(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Let the delegated jobs wait on, until this instant at least."""

    until_ms: int


class DrainSite(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take in nothing new for the grid until told otherwise; what runs or waits goes on."""


class ResumeSite(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Take in jobs of the grid again."""


Request = (
    RequestQuote
    | HoldNodes
    | CommitHold
    | ReleaseHold
    | EnqueueJob
    | WithdrawJob
    | CancelJob
    | RenewLeases
    | DrainSite
    | ResumeSite
)


class Quoted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """When the nodes could be had.

    Attributes
    ----------
    quote_id : int
    free : int
        Nodes that the grid may have now, one node each for this length.
    start_ms : int or None
        The earliest start, by estimates; None if there is none, for the given reason.
    reason : str
    slowdown : float, optional
        The job could start now on nodes that others use, and would take so many times as long.
    """

    quote_id: int
    free: int
    start_ms: int | None
    reason: str = ""
    slowdown: float | None = None


class Held(msgspec.Struct, frozen=True, tag=True, gc=False, repr_omit_defaults=True):
    """The nodes are held, until the agreed start at most.

    Attributes
    ----------
    job_id, attempt : int
    rendezvous : str
        ``host:port`` at which the ranks of a live job could find each other, if the first of them is here.
    """

    job_id: int
    attempt: int
    rendezvous: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The site has not taken in a fragment or a job, and why."""

    job_id: int
    attempt: int
    reason: str


class HoldEnded(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A hold was released, or was not committed in time; its nodes are free."""

    job_id: int
    attempt: int


class Enqueued(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A delegated job waits in the site's queue."""

    job_id: int
    attempt: int


class Withdrawn(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A delegated job waits here no longer: it was taken back, cancelled, or its lease has ended."""

    job_id: int
    attempt: int


class Started(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A fragment, or a delegated job, has started."""

    job_id: int
    attempt: int
    start_ms: int


class Ended(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A fragment, or a delegated job, has left its nodes.

    Attributes
    ----------
    job_id, attempt : int
    end_ms : int
    outcome : str
        ``finished`` by itself; ``failed``: by itself, and its program says that it went wrong; ``limit``: killed at its
        limit; ``cancelled``; ``unmet``: its other fragments did not come; ``lost``: the site failed.
    """

    job_id: int
    attempt: int
    end_ms: int
    outcome: str


class SiteChanged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What the grid may have of the site has changed by what is not the grid's.

    Attributes
    ----------
    others : int
        Of the nodes that the owner lets the grid have, those that it cannot have now even if it held none; below 0
        where jobs of the grid share nodes, and so take fewer than they are wide.
    free : int
        Nodes that a job of the grid may have now.
    """

    others: int
    free: int


class RunsLate(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A fragment still runs at its end by estimate, as something slows its job; said again whenever its rate changes.

    Attributes
    ----------
    job_id, attempt : int
    left : int
        Of its work by its estimate (`gridweave.site.kernels.rates`), as of ``since_ms``.
    rate : int
        At which it has been done since then, in units of `gridweave.site.kernels.rates.RATE_ONE`.
    since_ms : int
    """

    job_id: int
    attempt: int
    left: int
    rate: int
    since_ms: int


Answer = Quoted | Held | Refused | HoldEnded | Enqueued | Withdrawn | Started | Ended | SiteChanged | RunsLate


class ToGrid(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Send an answer to the meta-scheduler."""

    answer: Answer


class SiteShut(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The site can start nothing for now: it takes in nothing new for the grid until `SiteOpened`.

    Attributes
    ----------
    reason : str
        In one line; the grid is told it.
    """

    reason: str


class SiteOpened(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The site can start jobs again."""


class FragmentsMet(msgspec.Struct, frozen=True, tag=True, gc=False):
    """All fragments of a job have started and found each other; now it runs."""

    job_id: int
    attempt: int


class RateMeasured(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The fragments of a job go on at another rate: what they send each other has other links, or more company there.

    Attributes
    ----------
    job_id, attempt : int
    rate : int
        In units of `gridweave.site.kernels.rates.RATE_ONE`; 0 if they stand still.
    left : int, optional
        Of its work by its estimate, where that is not what was left of it at the rates told so far: it has gone on to
        something else, as from fetching data to working.
    """

    job_id: int
    attempt: int
    rate: int
    left: int | None = None


class SiteRestarted(msgspec.Struct, frozen=True, tag=True, gc=False):
    """The site has failed and come back: what ran is lost, what waited still waits."""
