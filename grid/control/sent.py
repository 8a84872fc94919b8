"""Track the work sent to sites after they were asked for quotes (docs/control.md, "Bursts"), under limited control."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from gridweave.site.job import Job
from gridweave.site.messages import Quoted


class SentWork(msgspec.Struct, frozen=True, array_like=True):
    """A job sent to a site; quotes that were requested before do not take the job into account."""

    quote_id: int  # the last quote requested before the job was sent
    sent_ms: int
    nodes: int  # its nodes, or chunks if it asks for chunks
    work: int  # its nodes or chunks times its estimate
    most: int = 0  # how many such chunks the idle site holds; 0: it takes whole nodes


class WorkSent:
    """The jobs sent to each site while other jobs wait for quotes; entries are dropped after `keep_ms`."""

    def __init__(self, nodes: Sequence[int], keep_ms: int) -> None:
        self._nodes, self._keep_ms = nodes, keep_ms
        self.by_site: dict[int, list[SentWork]] = {}

    def clear(self) -> None:
        """Drop all entries; call when no job is waiting for quotes."""
        self.by_site.clear()

    def add(self, now_ms: int, site: int, job: Job, quote_id: int, most: int = 0) -> None:
        """Record a job sent to a site.

        `quote_id` is the id of the last quote requested before the job was sent, and `most` is how many chunks of the
        job the idle site holds; 0 for whole nodes.
        """
        kept = [entry for entry in self.by_site.get(site, ()) if entry.sent_ms + self._keep_ms >= now_ms]
        self.by_site[site] = [*kept, SentWork(quote_id, now_ms, job.width, job.width * job.estimate_ms, most)]

    def subtracted(self, now_ms: int, site: int, quote: Quoted, job: Job) -> Quoted:
        """Return a quote for `job`, corrected for the jobs sent to the site since the quote was requested.

        These jobs' nodes do not count as free, and a future start is delayed by their work divided by the site's nodes.
        Without this correction, the same nodes would be promised to all jobs submitted at the same time. A job that
        asks for chunks counts as the fraction of the idle site that its chunks fill.
        """
        sent = [entry for entry in self.by_site.get(site, ()) if entry.quote_id >= quote.quote_id]
        if not sent or quote.start_ms is None:
            return quote
        nodes = self._nodes[site]
        most = quote.most or nodes if job.chunk else nodes
        free = max(0, quote.free - sum(-(-entry.nodes * most // (entry.most or nodes)) for entry in sent))
        start_ms = quote.start_ms
        if start_ms > now_ms or (quote.nodes or job.width) > free:
            work = sum(entry.work * nodes // (entry.most or nodes) for entry in sent)
            start_ms = max(start_ms, now_ms) + work // nodes
        return msgspec.structs.replace(quote, free=free, start_ms=start_ms)
