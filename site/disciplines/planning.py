"""The planning site: every job that waits has a planned start (docs/disciplines.md, "Planning").

It is stepped as a queue is (queue.py), with kernels of its own (`gridweave.site.kernels.planning`).
"""

from __future__ import annotations

from gridweave.site.disciplines.protocol import Entry, until_its_limit
from gridweave.site.disciplines.queue import COMPILED, ArrayDiscipline, read_policy
from gridweave.site.policy import BACKFILLS

ENTRY = Entry(
    name="planning",
    asks_week=lambda policy: policy.has_windows,
    about="every job that waits has a planned start, and nodes can be reserved in advance",
    make=ArrayDiscipline,
    read=lambda nodes, given, usual: read_policy("planning", given, usual),
    backfills=BACKFILLS["planning"],
    longest_stay_ms=until_its_limit,
    keeps_reservations=True,
    compiled=COMPILED,
)
