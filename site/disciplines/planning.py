"""The discipline planning: every waiting job has a planned start (docs/disciplines.md, "Planning").

It shares the queue's code (queue.py), but has its own kernels (`gridweave.site.kernels.planning`).
"""

from __future__ import annotations

from dataclasses import replace

from gridweave.site.disciplines.base import Traits
from gridweave.site.disciplines.entry import Entry
from gridweave.site.disciplines.queue import COMPILED, SiteQueue, read_policy, traits_on

TRAITS = Traits(elastic=True, reserves=True)

ENTRY = Entry(
    name="planning",
    about="every job that waits has a planned start, and nodes can be reserved in advance",
    make=SiteQueue,
    read=lambda nodes, options, usual: read_policy("planning", options, usual),
    reads_kinds=True,
    traits=TRAITS,
    traits_by=lambda policy: replace(traits_on(TRAITS, policy), week=policy.has_windows),
    compiled=COMPILED,
)
