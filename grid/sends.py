"""What a job sends over the links between the sites of a grid, as its user says it."""

from __future__ import annotations

import msgspec

from gridweave.netmodel.communication import Communication

MAX_BYTES = 2**53
"""Up to here a float64 counts every byte."""

QUIET = Communication()
"""What a job sends that sends nothing."""


class JobData(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a job reads before its work and writes after it, and at which site that lies."""

    input_bytes: int = 0
    # Numbers of sites.
    input_site: int = 0
    output_bytes: int = 0
    output_site: int = 0


class Sends(msgspec.Struct, frozen=True, gc=False):
    """What a job sends over the links between sites."""

    communication: Communication = QUIET  # between its nodes
    data: JobData = JobData()


NOTHING = Sends()
"""Of a job that sends nothing."""


def why_not_sent(sends: Sends, sites: int) -> str | None:
    """Return why no job can send that, or None if one can."""
    data = sends.data
    for what in ("input", "output"):
        n_bytes, site = getattr(data, f"{what}_bytes"), getattr(data, f"{what}_site")
        if not 0 <= n_bytes <= MAX_BYTES:
            return f"{what}_bytes {n_bytes} is not within 0 to {MAX_BYTES}"
        if not 0 <= site < sites:
            return f"{what}_site {site} is not one of the sites 0 to {sites - 1}"
    return None
